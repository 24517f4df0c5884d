"""A whole proxy and requests that name what their engine would fetch from."""

import pytest
from support.proxied import CHAT, proxied, whole
from support.proxy_calls import run
from support.scripted_upstream import ScriptedUpstream

SEEING = {
    "model": "tiny",
    "messages": [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/a"}}],
        }
    ],
}


@pytest.mark.parametrize("path", [CHAT, "/v1/chat/completions/render"])
def test_no_request_makes_an_engine_fetch_from_where_it_likes(path: str) -> None:
    async def test() -> None:
        async with ScriptedUpstream(whole()) as engine:
            async with proxied(engine) as proxy:
                answer = await proxy.ask(SEEING, path=path)
                assert answer.status == 400
                assert "169.254.169.254" in answer.json["error"]["message"]
                assert engine.lines == []
            upstream = f'[[upstream]]\nurl = "{engine.url}"\nprobes = false\n'
            allowed = f'media_hosts = ["169.254.169.254"]\n{upstream}'
            async with proxied(engine, allowed) as proxy:
                assert (await proxy.ask(SEEING, path=path)).status == 200

    run(test())
