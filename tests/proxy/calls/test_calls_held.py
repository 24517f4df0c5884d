"""Calls for an upstream that is being started again: held without a slot, sent when it is back, rejected in their time."""

from support.proxy_calls import bench, run
from support.scripted_upstream import refusing, streaming

from toolkit.proxy.settings import AdmissionSetting


def test_a_held_call_has_no_slot_and_goes_on_when_its_upstream_is_back() -> None:
    async def test() -> None:
        async with bench(streaming("Hello"), admission=AdmissionSetting(concurrency=1)) as made:
            made.routing.drain("a", "restart", made.clock() + 40.0)
            client = made.ask()
            made.calls.tick()
            assert (made.admission.in_use, made.calls.held().total()) == (0, 1)
            made.routing.undrain("a", 40.0)
            made.calls.tick()
            await client.over.wait()
            assert client.call is not None
            assert (client.call.status, made.calls.held().total()) == (200, 0)
            await made.idle()

    run(test())


def test_who_leaves_while_held_leaves_nothing_and_a_drain_ends_the_others_at_once() -> None:
    async def test() -> None:
        async with bench(streaming("Hello")) as made:
            made.routing.drain("a", "restart", made.clock() + 40.0)
            one, other = made.ask(key=b"1" * 16), made.ask(key=b"2" * 16)
            assert one.call is not None
            assert other.call is not None
            made.calls.leave(one.call, one)
            assert made.calls.held().total() == 1
            await made.calls.drain(30.0)
            assert other.call.error is not None
            assert other.call.error.kind == "draining"
            await made.idle()

    run(test())


def test_after_its_wait_and_beyond_the_queue_it_is_told_when_to_come_again() -> None:
    async def test() -> None:
        setting = AdmissionSetting(queue=1, wait_s=30.0)
        async with bench(streaming("Hello"), admission=setting) as made:
            made.routing.drain("a", "restart", made.clock() + 40.0)
            first, second = made.ask(key=b"1" * 16), made.ask(key=b"2" * 16)
            await second.over.wait()
            assert second.rejection is not None
            assert (second.rejection.reason, second.rejection.status) == ("queue_full", 503)
            assert 39.0 < (second.rejection.retry_after_s or 0.0) <= 40.0
            made.clock.ahead_s = 30.0
            made.calls.tick()
            await first.over.wait()
            assert first.rejection is not None
            assert (first.rejection.reason, first.rejection.status) == ("restarting", 503)
            assert 9.0 < (first.rejection.retry_after_s or 0.0) <= 10.0
            await made.idle()

    run(test())


def test_what_ends_its_upstream_is_asked_once_more_and_not_again() -> None:
    async def test() -> None:
        async with bench(refusing()) as made:
            made.routing.undrain("a", 40.0)
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert client.call.error is not None
            assert (client.call.error.kind, client.call.retries) == ("cut", 1)
            assert len(made.server.lines) == 2
            await made.idle()

    run(test())
