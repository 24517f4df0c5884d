"""What a whole proxy says of its upstreams: in /state all that routing knows, on /metrics its state, its load, whether it is drained."""

from support.proxied import proxied, whole
from support.scripted_upstream import ScriptedUpstream, refusing


async def test_each_call_counts_at_the_upstream_that_was_asked_and_each_failure_at_the_one_that_failed() -> (
    None
):
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
        assert not any(line.startswith('errors_total{kind="cut",upstream="u1"') for line in told)
