"""What a whole proxy says of its upstreams: in /state all that routing knows, on /metrics its state, its load, whether it is drained."""

import asyncio
import re

from support.proxied import proxied, whole
from support.scripted_upstream import ScriptedUpstream, plain, refusing

BUSY = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="tiny"} 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="tiny"} 2
"""


def test_of_each_upstream_it_is_told_whether_it_is_well_and_drained() -> None:
    async def test() -> None:
        async with (
            ScriptedUpstream() as well,
            ScriptedUpstream(refusing()) as ill,
            proxied([well, ill]) as proxy,
        ):
            ill.stop_listening()
            await proxy.admin("/drain", {"upstream": "u0"})
            assert (await proxy.ask()).status == 502
            drained, gone = (await proxy.admin("/state")).json["upstreams"]
            page = (await proxy.admin("/metrics")).body.decode()
        assert (drained["name"], drained["draining"], drained["state"]) == ("u0", True, "up")
        assert (gone["name"], gone["draining"], gone["state"]) == ("u1", False, "left")
        assert (gone["reason"], gone["failures"]) == ("unreachable", 1)
        assert 0 < gone["back_in_s"] <= 5.0
        states = re.findall(
            r'^toolkit_proxy_upstream_state{state="(.+)",upstream="(.+)"} (.)', page, re.MULTILINE
        )
        # up, trying, left, of each
        assert len(states) == 6
        assert [each[:2] for each in states if each[2] == "1"] == [("up", "u0"), ("left", "u1")]
        assert '\ntoolkit_proxy_upstream_draining{upstream="u0"} 1.0\n' in page
        assert '\ntoolkit_proxy_upstream_draining{upstream="u1"} 0.0\n' in page

    asyncio.run(test())


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
