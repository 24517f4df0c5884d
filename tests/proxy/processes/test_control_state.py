"""What a whole proxy says of its upstreams: in /state all that routing knows, on /metrics its state, its load, whether it is drained."""

import asyncio
import json
from typing import Any

from support.proxied import proxied, whole
from support.scripted_upstream import ScriptedUpstream, plain, refusing

BUSY = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="tiny"} 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="tiny"} 2
"""


async def told(settings: str = "") -> tuple[dict[str, Any], str]:
    """State and metrics where the first upstream was drained and the second can't be reached."""
    async with (
        ScriptedUpstream() as well,
        ScriptedUpstream(refusing()) as ill,
        proxied([well, ill], settings) as proxy,
    ):
        ill.stop_listening()
        await proxy.admin("/drain", {"upstream": "u0"})
        assert (await proxy.ask()).status == 502
        state = (await proxy.admin("/state")).json
        return state, (await proxy.admin("/metrics")).body.decode()


def test_the_state_tells_of_each_upstream_all_that_routing_knows():
    state, _ = asyncio.run(told())
    drained, gone = state["upstreams"]
    assert (drained["name"], drained["draining"], drained["state"]) == ("u0", True, "up")
    assert (gone["name"], gone["draining"], gone["state"]) == ("u1", False, "left")
    assert (gone["reason"], gone["failures"]) == ("unreachable", 1)
    assert 0 < gone["back_in_s"] <= 5.0
    assert json.dumps(state)


def test_the_page_tells_the_state_by_the_words_of_the_list_and_who_is_drained():
    _, page = asyncio.run(told())
    samples = dict(
        line.removeprefix("toolkit_proxy_").rsplit(" ", 1)
        for line in page.splitlines()
        if line.startswith("toolkit_proxy_upstream_")
    )
    states = {name: value for name, value in samples.items() if name.startswith("upstream_state{")}
    assert {name for name, value in states.items() if value == "1.0"} == {
        'upstream_state{state="up",upstream="u0"}',
        'upstream_state{state="left",upstream="u1"}',
    }
    # up, trying, left, of each
    assert len(states) == 6
    assert samples['upstream_draining{upstream="u0"}'] == "1.0"
    assert samples['upstream_draining{upstream="u1"}'] == "0.0"


def test_what_an_upstream_s_own_page_says_stands_on_ours_and_in_the_state() -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream(plain("200 OK", BUSY)) as engine,
            proxied(engine, probes=True) as proxy,
        ):
            page = (await proxy.admin("/metrics")).body.decode()
            assert '\ntoolkit_proxy_upstream_running{upstream="u0"} 3.0\n' in page
            assert '\ntoolkit_proxy_upstream_waiting{upstream="u0"} 2.0\n' in page
            (one,) = (await proxy.admin("/state")).json["upstreams"]
            assert (one["running"], one["waiting"]) == (3.0, 2.0)

    asyncio.run(test())


def test_each_call_counts_at_the_upstream_that_was_asked_and_each_failure_at_the_one_that_failed() -> (
    None
):
    async def test() -> None:
        async with (
            ScriptedUpstream(refusing()) as ill,
            ScriptedUpstream(whole()) as well,
            proxied([ill, well]) as proxy,
        ):
            assert (await proxy.ask()).status == 200
            page = (await proxy.admin("/metrics")).body.decode()
            told = {
                line.removeprefix("toolkit_proxy_upstream_")
                for line in page.splitlines()
                if line.startswith("toolkit_proxy_upstream_")
            }
            assert 'requests_total{upstream="u0"} 1.0' in told
            assert 'requests_total{upstream="u1"} 1.0' in told
            assert 'errors_total{kind="cut",upstream="u0"} 1.0' in told
            assert 'retries_total{upstream="u1"} 1.0' in told
            assert not any(
                line.startswith('errors_total{kind="cut",upstream="u1"') for line in told
            )

    asyncio.run(test())
