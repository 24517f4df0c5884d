"""Hostile requests over real connections: each is refused, its connection closed, and nothing of it is ever served."""

import asyncio

import pytest
from support.fronting import House, Run, get, house, later, on_both_loops, post
from support.hostile import ALL, FOUR, SIXTEEN


def test_the_list_is_the_one_that_was_measured() -> None:
    assert (len(SIXTEEN), len(FOUR)) == (16, 4)


async def assert_refused(front: House, before: bytes, name: str, *, answered: int) -> None:
    data, status = ALL[name]
    client = await front.client()
    await client.send(before + data)
    for _ in range(answered):
        assert (await client.answer()).body == b"hello"
    got = await client.answer()
    assert (got.status, got.headers["connection"]) == (status, "close"), name
    assert got.headers["content-type"] == "application/json"
    # nothing comes after it, whatever else was sent
    assert await client.rest() == b""
    assert [refused for refused, _, _ in front.desk.refusals] == [status], name
    front.desk.refusals.clear()


@on_both_loops
def test_a_hostile_request_is_refused_and_closes_its_connection(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            for name in ALL:
                await assert_refused(front, b"", name, answered=0)
            assert front.desk.requests == []
            assert front.faults == []

    run(talk())


@on_both_loops
def test_a_hostile_request_behind_a_good_one_does_not_take_its_answer(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            for name in ALL:
                await assert_refused(front, post(b'{"a": 1}'), name, answered=1)
            assert [request.body for request in front.desk.requests] == [b'{"a": 1}'] * len(ALL)

    run(talk())


@on_both_loops
def test_a_hostile_request_waits_for_the_answer_before_it(run: Run) -> None:
    async def talk() -> None:
        async with house(later) as front:
            for name, (data, status) in ALL.items():
                client = await front.client()
                await client.send(get("/good") + data)
                reply = await front.desk.taken.get()
                assert front.desk.refusals == [], name
                reply.whole(200, [], b"good")
                assert (await client.answer()).body == b"good"
                assert (await client.answer()).status == status
                assert await client.rest() == b""
                front.desk.refusals.clear()
            assert set(front.desk.paths()) == {"/good"}

    run(talk())


@on_both_loops
def test_what_follows_an_answer_that_closes_is_never_served(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            for first in (get("/", "Connection: close"), get(version="1.0")):
                client = await front.client()
                await client.send(first + get("/more") * 3)
                assert (await client.answer()).body == b"hello"
                assert await client.rest() == b""
            assert front.desk.paths() == ["/", "/"]

    run(talk())


@pytest.mark.parametrize("name", ["both lengths", "two hosts", "line feed in an extension"])
@on_both_loops
def test_a_hostile_request_in_single_bytes_is_refused(run: Run, name: str) -> None:
    data, status = ALL[name]

    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            for byte in data:
                if front.desk.refusals:
                    break
                await client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.answer()).status == status
            assert await client.rest() == b""
            assert front.desk.requests == []

    run(talk())


@on_both_loops
def test_the_bytes_of_a_hostile_request_are_never_known(run: Run) -> None:
    # the desk may only remember a request that was framed: a refused one has no `raw`, and so no answer by its bytes
    async def talk() -> None:
        async with house() as front:
            for name, (data, _) in ALL.items():
                front.desk.recalled.clear()
                client = await front.client()
                await client.send(data)
                await client.answer()
                assert len(front.desk.recalled) <= 1, name
            assert front.desk.requests == []

    run(talk())
