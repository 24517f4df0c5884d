"""Every metric and label that a rule or a panel asks for stands on a live page: of the simulator, which wears vLLM's names
(tests/real asks a real vLLM for the same), or of a real proxy that hit, missed, failed, rejected and lost a client."""

import asyncio
from dataclasses import replace
from functools import cache

import httpx
import pytest
from support.chat import until
from support.dashboard import SITE, recorded_names, rules_and_panels
from support.promql import asked, missing, samples
from support.proxied import ASKED, Proxied, proxied, raw, whole
from support.scripted_upstream import ScriptedUpstream, hanging, refusing, streaming

from toolkit.deploy.site import Site
from toolkit.sim.app import serve_in_thread


@pytest.mark.parametrize("site", [SITE, replace(SITE, proxy=None)], ids=["proxy", "engines alone"])
def test_nothing_is_asked_for_that_no_page_has(site: Site) -> None:
    pages = samples(engine_page() + (proxy_page() if site.proxy else ""))
    assert missing(asked(rules_and_panels(site)), pages, recorded_names(SITE)) == []


@cache
def engine_page() -> str:
    with serve_in_thread("gptq-int4") as server, httpx.Client(base_url=server.url) as client:
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        client.post("/v1/chat/completions", json=body).raise_for_status()
        return client.get("/metrics").text


@cache
def proxy_page() -> str:
    return asyncio.run(_proxy_page())


async def _proxy_page() -> str:
    settings = "[admission]\nconcurrency = 4\nmax_output_tokens = 50\n"
    settings += '[cache]\nredis_env = "REDIS_URL"\n'
    # nobody listens there: Redis is lost
    told = {"REDIS_URL": "redis://127.0.0.1:1"}
    upstream = ScriptedUpstream(whole())
    async with upstream, proxied(upstream, settings, environ=told) as running:
        upstream.scripts = [streaming()]
        for _ in range(2):  # a miss, then a hit
            await running.ask({**ASKED, "stream": True})
        await running.ask({**ASKED, "seed": 1}, headers=["cache-control: no-cache, no-store"])
        assert (await running.ask({**ASKED, "max_tokens": 99})).status >= 400  # too many
        upstream.script = refusing()
        assert (await running.ask({**ASKED, "seed": 2})).status >= 500
        upstream.script = hanging()
        await _two_that_leave(running)
        # stands for an engine that was seen to have started anew
        running.proxy.fingerprints.raise_all()
        return (await running.admin("/metrics")).body.decode()


async def _two_that_leave(running: Proxied) -> None:
    """The second one joins the call of the first."""
    clients = [await running.client(), await running.client()]
    for client in clients:
        client.writer.write(raw({**ASKED, "seed": 3}))
    calls = running.proxy.calls
    await until(lambda: [len(each.waiters) for each in calls._under_way] == [2])
    for client in clients:
        client.close()
    await until(lambda: running.total("clients_left") == 2)
