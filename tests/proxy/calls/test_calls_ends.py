"""What each kind of end of a call upstream does, and to whom."""

import asyncio
from typing import Any

import pytest
from support.chat import DONE, FINISH, HEAD, ROLE, token
from support.proxy_calls import KEY, WHOLE_JOB, Bench, Client, bench, gates, run
from support.scripted_upstream import (
    Line,
    dying,
    error_event,
    hanging,
    hanging_in_stream,
    plain,
    slow,
    streaming,
)

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.faults import Fault
from toolkit.proxy.settings import AdmissionSetting


def test_a_leader_that_leaves_does_not_end_the_call() -> None:
    async def test() -> None:
        go = gates(1)
        async with bench(slow(["Hello"], go)) as made:
            leader = made.ask()
            joiner = made.ask()
            await joiner.until(b"role")
            made.leave(leader)
            go[0].set()
            await joiner.over.wait()
            assert joiner.text.endswith(b"data: [DONE]\n\n")
            assert "ended" not in leader.told
            assert len(made.kept) == 1

    run(test())


def test_the_last_client_that_leaves_closes_the_connection_and_frees_the_slot() -> None:
    async def test() -> None:
        async with bench(hanging_in_stream("Hello")) as made:
            clients = [made.ask() for _ in range(3)]
            await clients[0].until(b"Hello")
            for each in clients:
                assert made.admission.in_use == 1
                made.leave(each)
            # at once, not at the next turn of the loop
            assert made.admission.in_use == 0
            await made.server.lines[0].gone.wait()
            assert made.names() == ["aborted"]
            again = made.ask()
            assert again.led

    run(test())


def test_clients_that_leave_before_the_head_close_the_connection_too() -> None:
    async def test() -> None:
        async with bench(hanging()) as made:
            client = made.ask()
            line = await made.server.asked()
            made.leave(client)
            await line.gone.wait()

    run(test())


def test_clients_that_leave_before_the_request_is_sent_send_none() -> None:
    async def test() -> None:
        async with bench(hanging()) as made:
            made.leave(made.ask())
            await made.calls.drain(1.0)
            assert made.server.lines == []
            await made.idle()

    run(test())


def test_a_client_that_leaves_twice_or_after_the_end_changes_nothing() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:
            client, other = made.ask(), made.ask()
            made.leave(client)
            made.leave(client)
            await other.over.wait()
            made.leave(other)
            made.leave(client)
            await made.idle()

    run(test())


def test_an_upstream_that_dies_in_the_stream_is_told_to_all_and_nothing_is_stored() -> None:
    async def test() -> None:
        async with bench(dying("Hello")) as made:
            clients = [made.ask() for _ in range(3)]
            for each in clients:
                await each.over.wait()
                assert each.told == ["began", "ended"]
                assert b"Hello" in each.text
                assert each.call is not None
                assert each.call.error is not None
                assert each.call.error.kind == "cut"
            assert made.kept == []
            assert len(made.server.lines) == 1
            await made.idle()
            # the next equal request leads anew
            assert made.ask().led

    run(test())


def test_an_error_inside_a_stream_is_joined_by_nobody_and_not_stored() -> None:
    async def test() -> None:
        end = asyncio.Event()
        async with bench(error_event("Hello", end=end)) as made:
            client = made.ask()
            await client.until(b'"error"')
            assert made.ask().led
            end.set()
            await client.over.wait()
            assert client.call is not None
            # the upstream's own words, and no fault of the connection
            assert client.call.error is None
            assert made.kept == []

    run(test())


def test_an_error_status_is_passed_on_joined_by_nobody_and_not_stored() -> None:
    async def test() -> None:
        end = asyncio.Event()

        async def play(line: Line) -> None:
            line.send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 13\r\n\r\n" + b'{"error"')
            await end.wait()
            line.send(b": {}}")

        async with bench(play) as made:
            client = made.ask()
            await client.until(b'{"error"')
            assert made.ask().led
            end.set()
            await client.over.wait()
            assert client.call is not None
            assert (client.call.status, client.text) == (400, b'{"error": {}}')
            assert (client.call.error, client.call.stored, made.kept) == (None, False, [])

    run(test())


def test_an_empty_answer_begins_and_ends() -> None:
    async def test() -> None:
        async with bench(plain("204 No Content", b"")) as made:
            client = made.ask()
            await client.over.wait()
            assert client.told == ["began", "ended"]
            assert client.call is not None
            assert client.call.status == 204

    run(test())


def test_a_client_that_goes_as_soon_as_it_has_the_last_event_costs_nobody_the_stored_answer() -> (
    None
):
    async def test() -> None:
        class Hasty(Client):
            def grew(self, call: Any) -> None:
                super().grew(call)
                if b"[DONE]" in self.text:
                    made.leave(self)

        async with bench(streaming()) as made:
            client = Hasty()
            made.ask(client=client)
            await made.calls.drain(5.0)
            assert [key for key, _, _ in made.kept] == [KEY]
            await made.idle()

    run(test())


def test_a_last_client_that_leaves_while_it_is_told_closes_the_connection() -> None:
    async def test() -> None:
        class Leaving(Client):
            def grew(self, call: Any) -> None:
                super().grew(call)
                made.leave(self)

        async with bench(hanging_in_stream("Hello")) as made:
            made.ask(client=Leaving())
            line = await made.server.asked()
            await line.gone.wait()
            assert made.names() == ["aborted"]
            await made.idle()

    run(test())


def test_the_end_is_told_with_the_last_event_though_the_body_goes_on() -> None:
    async def test() -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + ROLE + token("Hello") + FINISH + DONE)
            await line.gone.wait()

        async with bench(play) as made:
            client = made.ask()
            await client.until(b"[DONE]")
            assert client.over.is_set()
            assert client.call is not None
            assert client.call.error is None
            assert len(made.kept) == 1
            # and the connection is not left to it
            await made.server.lines[0].gone.wait()

    run(test())


def test_a_listener_that_throws_hurts_no_other_and_is_told_once() -> None:
    async def test() -> None:
        class Broken(Client):
            def grew(self, call: Any) -> None:  # noqa: ARG002 (a listener's)
                raise RuntimeError("a fault of this client's")

        async with bench(streaming("a", "b", "c")) as made:
            broken, fine = Broken(), Client()
            made.ask(client=broken)
            made.ask(client=fine)
            await fine.over.wait()
            assert fine.text.endswith(b"[DONE]\n\n")
            assert "ended" in broken.told
            assert made.names().count("listener_failed") == 1

    run(test())


def test_an_answer_that_cannot_be_stored_reaches_its_clients() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:

            def keep(*_: object) -> None:
                raise OSError("disk full")

            made.calls._keep = keep
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert (client.call.error, client.call.stored) == (None, False)
            assert made.names() == ["keep_failed"]

    run(test())


def test_what_waits_for_a_slot_is_joined_and_leaves_the_queue_with_its_last_client() -> None:
    async def test() -> None:
        limits = AdmissionSetting(concurrency=1)
        async with bench(hanging(), admission=limits) as made:
            made.ask(b"1")
            waiting = [made.ask(b"2") for _ in range(3)]
            assert (made.admission.in_use, made.admission.waiting) == (1, 1)
            for each in waiting:
                assert made.admission.waiting == 1
                made.leave(each)
            assert (made.admission.waiting, len(made.flights)) == (0, 1)

    run(test())


async def ends_at(made: Bench, client: Client, limit_s: float) -> Fault:
    """Why a call ended that goes on for a second less than its limit, and not for longer."""
    made.clock.ahead_s = limit_s - 1.0
    made.calls.tick()
    assert not client.over.is_set()
    made.clock.ahead_s = limit_s + 0.1
    await client.over.wait()
    assert client.call is not None
    assert client.call.error is not None
    return client.call.error


def test_a_stream_may_be_late_with_its_first_token_only_so_long() -> None:
    async def test() -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + ROLE)
            await line.gone.wait()

        limits = AdmissionSetting(first_token_s=120.0, token_gap_s=60.0, whole_s=600.0)
        async with bench(play, admission=limits) as made:
            client = made.ask()
            await client.until(b"role")
            # a role is no token: the gap between tokens does not count yet
            assert (await ends_at(made, client, 120.0)).kind == "timeout_first_token"
            await made.server.lines[0].gone.wait()

    run(test())


def test_a_stream_that_stands_still_is_ended_after_the_longest_gap() -> None:
    async def test() -> None:
        async with bench(hanging_in_stream("Hello")) as made:
            client = made.ask()
            await client.until(b"Hello")
            fault = await ends_at(made, client, 60.0)
            assert (fault.kind, fault.status) == ("timeout_gap", 504)

    run(test())


def test_a_whole_body_is_waited_for_as_long_as_a_whole_answer_may_take() -> None:
    async def test() -> None:
        async with bench(hanging()) as made:
            client = made.ask(job=WHOLE_JOB)
            await made.server.asked()
            assert (await ends_at(made, client, 600.0)).kind == "timeout_whole"

    run(test())


def test_draining_waits_for_what_is_under_way() -> None:
    async def test() -> None:
        go = gates(1)
        async with bench(slow(["Hello"], go)) as made:
            client = made.ask()
            draining = asyncio.ensure_future(made.calls.drain(15.0))
            await client.until(b"role")
            assert not draining.done()
            go[0].set()
            await draining
            assert client.told == ["began", "ended"]
            assert client.call is not None
            assert client.call.error is None

    run(test())


def test_draining_aborts_what_takes_too_long_and_what_waits() -> None:
    async def test() -> None:
        limits = AdmissionSetting(concurrency=1)
        async with bench(hanging(), admission=limits) as made:
            clients = [made.ask(bytes([each])) for each in range(3)]
            line = await made.server.asked()
            await made.calls.drain(0.0)
            for each in clients:
                assert each.told == ["ended"]
                assert each.call is not None
                assert each.call.error is not None
                assert each.call.error.kind == "draining"
            await line.gone.wait()
            assert len(made.server.lines) == 1
            await made.idle()

    run(test())


def test_a_broken_chunk_in_the_stream_ends_the_call() -> None:
    async def test() -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + ROLE + token("Hello") + b"zz\r\nno chunk\r\n")
            await line.gone.wait()

        async with bench(play) as made:
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert client.call.error is not None
            assert client.call.error.kind == "garbage"
            await made.idle()

    run(test())


def test_a_fault_before_the_call_is_made_leaves_no_flight_that_others_would_join() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:
            asked = made.admission.ask

            def throws(*_: object) -> None:
                raise KeyError("a fault of ours")

            made.admission.ask = throws  # type: ignore[assignment,method-assign]
            with pytest.raises(KeyError):
                made.ask()
            made.admission.ask = asked  # type: ignore[method-assign]
            client = made.ask()
            assert client.led
            await client.over.wait()
            await made.idle()

    run(test())


@pytest.mark.parametrize("method", ["feed", "end"])
def test_a_fault_of_our_own_ends_the_call_and_gives_its_slot_back(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def throws(*_: object, **__: object) -> None:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(Recorder, method, throws)

    async def test() -> None:
        async with bench(streaming()) as made:
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert client.call.error is not None
            assert (client.call.error.kind, client.call.error.status) == ("ours", 500)
            assert "fault" in made.names()
            await made.idle()

    run(test())
