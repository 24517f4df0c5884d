"""Who shares a call upstream and who waits for one; over real sockets, with real admission, routing and recorder."""

import asyncio
from dataclasses import replace

from support.chat import DONE, FINISH, HEAD, LAST, ROLE, token
from support.proxy_calls import JOB, KEY, WHOLE_JOB, bench, gates, run
from support.scripted_upstream import (
    Line,
    hanging,
    plain,
    slow,
    streaming,
)

from toolkit.proxy.exchange import View
from toolkit.proxy.settings import AdmissionSetting


def test_a_whole_stream_comes_event_by_event_and_is_kept_before_its_flight_ends() -> None:
    async def test() -> None:
        async with bench(streaming("Hello", " there")) as made:
            client = made.ask()
            await client.over.wait()
            assert client.told == ["began", "ended"]
            # role, two tokens, the finish, [DONE]
            assert len(client.data) == 5
            assert client.data[-1] == b"data: [DONE]\n\n"
            call = client.call
            assert call is not None
            assert (call.status, call.upstream, call.error, call.stored) == (200, "a", None, True)
            ((key, _, kept),) = made.kept
            assert (key, kept.body) == (KEY, client.text)
            assert made.in_flight_when_kept == [1]
            await made.idle()

    run(test())


def test_equal_requests_make_one_call_and_joiners_have_the_beginning_at_once() -> None:
    async def test() -> None:
        go = gates(2)
        async with bench(slow(["Hello", " there"], go)) as made:
            leader = made.ask()
            go[0].set()
            await leader.until(b"Hello")
            joiners = [made.ask() for _ in range(31)]
            # without a turn of the loop: it was there
            assert all(b"Hello" in each.text for each in joiners)
            assert [each.led for each in joiners] == [False] * 31
            go[1].set()
            for each in (leader, *joiners):
                await each.over.wait()
            assert {each.text for each in joiners} == {leader.text}
            assert len(made.server.lines) == 1
            # one slot, and one answer stored
            assert (made.admission.served, len(made.kept)) == (1, 1)

    run(test())


def test_a_request_with_no_key_shares_its_call_with_nobody() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:
            clients = [made.ask(None) for _ in range(3)]
            for each in clients:
                await each.over.wait()
            assert len(made.server.lines) == 3
            assert made.kept == []

    run(test())


def test_no_listener_is_called_before_ask_returns() -> None:
    async def test() -> None:
        limits = AdmissionSetting(concurrency=1, queue=0)
        async with bench(hanging(), admission=limits) as made:
            made.ask(b"1")
            rejected = made.ask(b"2")
            assert rejected.told == []
            await rejected.over.wait()
            assert rejected.told == ["rejected"]
            assert rejected.rejection is not None
            assert rejected.rejection.reason == "queue_full"

    run(test())


def test_a_whole_body_is_kept_and_joined() -> None:
    async def test() -> None:
        body = (
            b'{"id": "1", "object": "chat.completion", "model": "tiny", "choices": [{"index": 0, "message":'
            b' {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1,'
            b' "completion_tokens": 1}}'
        )
        async with bench(plain("200 OK", body)) as made:
            clients = [made.ask(job=WHOLE_JOB) for _ in range(2)]
            for each in clients:
                await each.over.wait()
                assert each.text == body
            ((_, _, kept),) = made.kept
            assert (kept.body, kept.streamed) == (body, False)

    run(test())


def test_an_answer_is_stored_for_whoever_allows_it_and_for_nobody_else() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:
            strict = replace(JOB, is_cacheable=False)
            await made.ask(b"1", strict).over.wait()
            assert made.kept == []
            leader = made.ask(b"2", strict)
            made.ask(b"2", replace(JOB, team="blue"))
            await leader.over.wait()
            ((key, job, _),) = made.kept
            assert (key, job.team) == (b"2", "blue")

    run(test())


def test_a_slot_that_is_freed_goes_to_who_waits() -> None:
    async def test() -> None:
        limits = AdmissionSetting(concurrency=1)
        async with bench(streaming(), admission=limits, ticks=False) as made:
            clients = [made.ask(bytes([each])) for each in range(5)]
            for each in clients:
                await each.over.wait()
                assert each.told == ["began", "ended"]
            assert made.server.most == 1

    run(test())


def test_all_who_wait_for_one_slot_are_rejected_together() -> None:
    async def test() -> None:
        limits = AdmissionSetting(concurrency=1, wait_s=30.0)
        async with bench(hanging(), admission=limits) as made:
            made.ask(b"1")
            waiting = [made.ask(b"2") for _ in range(2)]
            made.clock.ahead_s = 31.0
            for each in waiting:
                await each.over.wait()
                assert each.told == ["rejected"]
            assert ("rejected", {"reason": "expired", "team": "", "clients": 2}) in made.events

    run(test())


def test_the_recorder_is_told_how_the_leader_sees_the_answer() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:
            job = replace(JOB, view=View(stream=True, usage=True))
            client = made.ask(job=job)
            await client.over.wait()
            assert client.call is not None
            assert client.call.led_by_view == View(stream=True, usage=True)
            assert client.call.recorder is not None
            assert client.call.recorder.view == client.call.led_by_view

    run(test())


def test_a_connection_is_used_again_though_the_body_ends_behind_the_last_event() -> None:
    async def test() -> None:
        async def play(line: Line) -> None:
            line.send(HEAD + ROLE + token("Hello") + FINISH + DONE)
            for _ in range(3):
                await asyncio.sleep(0)
            line.send(LAST)

        async with bench(play) as made:
            for key in (b"1", b"2"):
                await made.ask(key).over.wait()
                await made.calls.drain(5.0)
            assert (len(made.server.lines), made.server.connections) == (2, 1)

    run(test())
