"""When another upstream is asked, and when none is: retries, fallbacks, full upstreams and such that stand still."""

import asyncio
import json
from dataclasses import replace

import pytest
from support.chat import HEAD, ROLE, token
from support.proxy_calls import JOB, KEY, bench, gates, run
from support.scripted_upstream import (
    Line,
    dying,
    hanging,
    hanging_in_stream,
    plain,
    refusing,
    slow,
    streaming,
)

from toolkit.proxy.calls.attempt import with_model
from toolkit.proxy.settings import AdmissionSetting, RoutingSetting


async def head_only(line: Line) -> None:
    """The head comes, and then the connection ends."""
    line.send(HEAD)
    line.close()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (refusing(), "cut"),
        (plain("503 Service Unavailable"), "busy"),
        (plain("502 Bad Gateway"), "busy"),
        (head_only, "cut"),
    ],
    ids=["cut", "503", "502", "cut behind the head"],
)
def test_what_fails_before_its_first_event_is_asked_elsewhere(broken: object, why: str) -> None:
    async def test() -> None:
        async with bench(broken, streaming("Hello")) as made:
            client = made.ask()
            await client.over.wait()
            call = client.call
            assert call is not None
            assert (call.status, call.error, call.upstream, call.retries) == (200, None, "b", 1)
            assert client.told == ["began", "ended"]
            assert made.events == [("retry", {"upstream": "a", "other": "b", "why": why})]
            # both had the very same request, one slot was taken, and the answer is stored
            assert [server.lines[0].body for server in made.servers] == [JOB.body, JOB.body]
            assert (made.admission.served, len(made.kept)) == (1, 1)
            await made.idle()

    run(test())


def test_a_refused_connection_is_tried_elsewhere() -> None:
    async def test() -> None:
        async with bench(hanging(), streaming("Hello")) as made:
            made.server.stop_listening()
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert (client.call.upstream, client.call.error) == ("b", None)
            assert made.events == [("retry", {"upstream": "a", "other": "b", "why": "connect"})]
            (state, _) = made.routing.states(made.clock())
            assert state.reason == "unreachable"

    run(test())


@pytest.mark.parametrize("status", ["400 Bad Request", "429 Too Many Requests", "500 Oops"])
def test_an_answer_that_another_upstream_would_give_too_is_passed_on(status: str) -> None:
    async def test() -> None:
        async with bench(plain(status, b'{"error": 1}'), streaming()) as made:
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert client.call.status == int(status[:3])
            assert client.text == b'{"error": 1}'
            assert made.servers[1].lines == []

    run(test())


def test_a_busy_upstream_without_another_has_its_own_words_passed_on() -> None:
    async def test() -> None:
        script = plain("503 Service Unavailable", b'{"error": "loading"}', "retry-after: 7")
        async with bench(script) as made:
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert (client.call.status, client.call.error) == (503, None)
            assert (b"retry-after", b"7") in client.call.headers
            assert client.text == b'{"error": "loading"}'

    run(test())


def test_what_fails_after_its_first_event_is_asked_nowhere_else() -> None:
    async def test() -> None:
        async with bench(dying("Hello"), streaming()) as made:
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert client.call.error is not None
            assert client.call.error.kind == "cut"
            assert made.servers[1].lines == []

    run(test())


def test_a_deadline_that_was_missed_is_missed_and_not_tried_again() -> None:
    async def test() -> None:
        async with bench(hanging(), streaming()) as made:
            client = made.ask()
            await made.server.asked()
            made.clock.ahead_s = 120.1
            await client.over.wait()
            assert client.call is not None
            assert client.call.error is not None
            assert client.call.error.kind == "timeout_first_token"
            assert made.servers[1].lines == []

    run(test())


def test_no_more_upstreams_are_tried_than_was_allowed() -> None:
    async def test() -> None:
        scripts = [refusing() for _ in range(4)]
        async with bench(*scripts, routing=RoutingSetting(retries=2)) as made:
            client = made.ask()
            await client.over.wait()
            assert [len(server.lines) for server in made.servers] == [1, 1, 1, 0]
            assert client.call is not None
            assert client.call.error is not None
            assert (client.call.error.kind, client.call.retries) == ("cut", 2)
            assert made.ask().led

    run(test())


def test_a_fallback_is_asked_for_its_own_model_and_its_answer_is_not_stored() -> None:
    async def test() -> None:
        own = {"b": {"fallback": True, "model": "small"}}
        scripts = [refusing(), streaming("Hello")]
        async with bench(*scripts, upstreams=own, routing=RoutingSetting(retries=0)) as made:
            client = made.ask()
            await client.over.wait()
            call = client.call
            assert call is not None
            assert (call.error, call.upstream, call.is_fallback) == (None, "b", True)
            asked = json.loads(made.servers[1].lines[0].body)
            assert asked == {"model": "small", "messages": [], "stream": True}
            assert (made.kept, call.stored) == ([], False)

    run(test())


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_fallback_with_the_same_model_is_stored_where_its_changes_are_seen(
    is_watched: bool,
) -> None:
    async def test() -> None:
        # unwatched by itself: its tokens may cost
        how = {"fallback": True, "probes": True} if is_watched else {"fallback": True}
        async with bench(refusing(), streaming(), upstreams={"b": how}) as made:
            client = made.ask()
            await client.over.wait()
            assert made.servers[1].lines[0].body == JOB.body
            assert [key for key, _, _ in made.kept] == [KEY] * is_watched

    run(test())


def test_a_model_is_replaced_and_nothing_else() -> None:
    body = b'{"seed": 123456789012345678901234567890, "model": "big", "stop": ["\\ud83d\\ude00"], "t": 1.0}'
    replaced = json.loads(with_model(body, "small"))
    assert replaced == {
        "seed": 123456789012345678901234567890,
        "model": "small",
        "stop": ["\U0001f600"],
        "t": 1.0,
    }
    assert with_model(b"no JSON", "small") == b"no JSON"
    assert with_model(b'{"input": 1}', "small") == b'{"input": 1}'


def test_who_finds_all_upstreams_full_waits_for_room_in_the_order_of_coming() -> None:
    async def test() -> None:
        go = gates(1)
        async with bench(slow(["Hello"], go), upstreams={"a": {"concurrency": 1}}) as made:
            first, second, third = (made.ask(bytes([each])) for each in range(3))
            await first.until(b"role")
            assert len(made.server.lines) == 1
            made.leave(second)
            fourth = made.ask(b"4")
            go[0].set()
            for each in (first, third, fourth):
                await each.over.wait()
            assert made.server.most == 1
            assert len(made.server.lines) == 3
            await made.idle()

    run(test())


def test_who_waits_for_room_is_rejected_in_time() -> None:
    async def test() -> None:
        limits = AdmissionSetting(wait_s=30.0)
        own = {"a": {"concurrency": 1}}
        async with bench(hanging_in_stream("Hello"), upstreams=own, admission=limits) as made:
            first = made.ask(b"1")
            await first.until(b"Hello")
            second = made.ask(b"2")
            made.clock.ahead_s = 30.1
            await second.over.wait()
            assert second.rejection is not None
            assert (second.rejection.reason, second.told) == ("expired", ["rejected"])
            assert not first.over.is_set()
            made.leave(first)
            await made.idle()

    run(test())


def test_a_place_that_comes_free_for_nobody_any_more_goes_to_the_next() -> None:
    async def test() -> None:
        async with bench(hanging(), upstreams={"a": {"concurrency": 1}}) as made:
            first = made.ask(b"1")
            await made.server.asked()
            second, third = made.ask(b"2"), made.ask(b"3")
            await asyncio.sleep(0)
            # the first one's place is given to the second, which goes before it can take it
            made.leave(first)
            await made.server.lines[0].gone.wait()
            made.leave(second)
            line = await made.server.asked(2)
            assert not line.gone.is_set()
            made.leave(third)
            await line.gone.wait()
            await made.idle()

    run(test())


def test_a_call_without_a_byte_leaves_an_upstream_that_stands_still_for_one_that_does_not() -> None:
    async def test() -> None:
        async with bench(hanging(), streaming("Hello")) as made:
            client = made.ask()
            line = await made.server.asked()
            made.routing.given_up = lambda: ("a",)  # type: ignore[method-assign]
            await client.over.wait()
            await line.gone.wait()
            assert client.call is not None
            assert (client.call.upstream, client.call.error) == ("b", None)
            assert ("retry", {"upstream": "a", "other": "b", "why": "stuck"}) in made.events
            assert made.admission.served == 1
            await made.idle()

    run(test())


def test_a_call_with_bytes_or_without_another_upstream_stays_where_it_is() -> None:
    async def test() -> None:
        async with bench(hanging_in_stream("Hello"), hanging()) as made:
            begun = made.ask(b"1")
            await begun.until(b"Hello")
            made.routing.drain("b")
            made.server.script = hanging()
            alone = made.ask(b"2")
            await made.server.asked(2)
            made.routing.given_up = lambda: ("a",)  # type: ignore[method-assign]
            made.calls.tick()
            await asyncio.sleep(0)
            made.routing.undrain("b")
            assert (begun.told, alone.told) == (["began"], [])
            assert not any(line.gone.is_set() for line in made.server.lines)

    run(test())


def test_where_all_upstreams_are_drained_none_can_be_asked() -> None:
    async def test() -> None:
        async with bench(streaming()) as made:
            made.routing.drain("a")
            client = made.ask()
            await client.over.wait()
            assert client.call is not None
            assert client.call.error is not None
            assert (client.call.error.kind, client.call.error.status) == ("no_upstream", 503)
            await made.idle()

    run(test())


def test_what_asks_for_no_token_takes_no_slot() -> None:
    async def test() -> None:
        limits = AdmissionSetting(concurrency=1)
        async with bench(hanging(), admission=limits) as made:
            made.ask(b"1")
            await made.server.asked()
            made.server.scripts = [plain("200 OK", b'{"data": []}')]
            models = made.ask(None, replace(JOB, method="GET", path="/v1/models", body=b""))
            await models.over.wait()
            assert models.text == b'{"data": []}'

    run(test())


def test_routing_is_told_how_each_request_ended() -> None:
    async def test() -> None:
        told: list[str] = []

        async def lone(line: Line) -> None:
            line.send(HEAD + ROLE + token("Hello"))
            await line.gone.wait()

        async with bench(streaming()) as made:
            made.routing.ended = lambda *ended: told.append(ended[1])  # type: ignore[method-assign]
            made.routing.got_bytes = lambda *_: told.append("bytes")  # type: ignore[method-assign]
            ends = [streaming(), plain("500 Oops"), plain("404 Not Found"), refusing(), dying()]
            for script in ends:
                made.server.script = script
                await made.ask(None).over.wait()
            made.server.script = lone
            client = made.ask(None)
            await client.until(b"Hello")
            made.leave(client)
            late = made.ask(None)
            await late.until(b"Hello")
            made.clock.ahead_s = 61.0
            await late.over.wait()
            await made.calls.drain(5.0)
            # an error's body is no sign of life: an engine that is dead can still say so
            told = [each for each, before in zip(told, ["", *told], strict=False) if each != before]
            assert told == [
                *("bytes", "ok", "error", "ok", "cut", "bytes", "cut"),
                *("bytes", "left", "bytes", "cut"),
            ]

    run(test())
