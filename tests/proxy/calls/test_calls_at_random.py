"""Clients that come and go, upstreams that answer, refuse, hang and die, in any order: nothing is lost, nothing is left behind."""

import asyncio
import random
from dataclasses import replace

import pytest
import uvloop
from support.chat import DONE, FINISH, HEAD, LAST, ROLE, chunk, token
from support.proxy_calls import JOB, WHOLE_JOB, Bench, Client, bench
from support.scripted_upstream import Line, plain

from toolkit.proxy.settings import AdmissionSetting, CacheSetting, RoutingSetting, TeamSetting

ERROR = chunk(b'data: {"error": {"message": "engine died"}}\n\n')
LARGE = 2000


class Actor:
    """Plays any upstream's part, as the dice fall."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.on_stage: dict[Line, asyncio.Event] = {}
        self.begun: set[Line] = set()

    async def play(self, line: Line) -> None:
        through = self.on_stage[line] = asyncio.Event()
        gone = asyncio.ensure_future(line.gone.wait())
        done = asyncio.ensure_future(through.wait())
        try:
            await asyncio.wait([gone, done], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            done.cancel()
            self.on_stage.pop(line, None)

    async def act(self) -> None:
        if not self.on_stage:
            return
        line = self.dice.choice(list(self.on_stage))
        if line not in self.begun:
            act = self.dice.choice(("begin", "begin", "begin", "whole", "die", "503", "garbage"))
        else:
            act = self.dice.choice(("token", "token", "large", "end", "die", "close", "error"))
        if act == "begin":
            self.begun.add(line)
            line.send(HEAD + ROLE)
        elif act == "token":
            line.send(token("word"))
        elif act == "large":
            line.send(token("x" * LARGE))
        elif act == "error":
            line.send(ERROR)
        elif act == "close":
            line.close()
        else:
            await self._finish(line, act)

    async def _finish(self, line: Line, act: str) -> None:
        through = self.on_stage.pop(line)
        if act == "end":
            line.send(FINISH + DONE + LAST)
        elif act == "whole":
            await plain("200 OK", b'{"choices": []}')(line)
        elif act == "503":
            await plain("503 Busy", b"{}")(line)
        elif act == "garbage":
            line.send(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        else:
            line.abort()
        through.set()


class Watched(Client):
    """A client that checks what it is told against what it was told before."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__(waits=waits)
        self.has_left = False

    def began(self, call: object) -> None:
        assert not self.told
        self._check()
        super().began(call)  # type: ignore[arg-type]

    def grew(self, call: object) -> None:
        self._check()
        super().grew(call)  # type: ignore[arg-type]

    def ended(self, call: object) -> None:
        self._check()
        super().ended(call)  # type: ignore[arg-type]

    def rejected(self, rejection: object) -> None:
        self._check()
        super().rejected(rejection)  # type: ignore[arg-type]

    def _check(self) -> None:
        assert not self.has_left, "told after it left"
        assert not self.over.is_set(), "told after the end"


async def _play(made: Bench, dice: random.Random, actor: Actor, turns: int) -> list[Watched]:
    clients: list[Watched] = []
    aboard: list[Watched] = []
    for _ in range(turns):
        act = dice.choices(("ask", "leave", "act", "tick", "late", "turn"), (6, 4, 12, 2, 0.3, 6))[
            0
        ]
        if act == "ask":
            client = Watched(waits=dice.random() < 0.2)
            key = dice.choice((None, b"1", b"2", b"3", b"4"))
            job = replace(
                JOB if dice.random() < 0.8 else WHOLE_JOB,
                team=dice.choice(("red", "blue")),
                is_cacheable=dice.random() < 0.9,
            )
            made.ask(key, job, client)
            clients.append(client)
            aboard.append(client)
        elif act == "leave" and aboard:
            client = aboard.pop(dice.randrange(len(aboard)))
            made.leave(client)
            client.has_left = not client.over.is_set()
        elif act == "act":
            await actor.act()
        elif act == "tick":
            made.calls.tick()
        elif act == "late":
            made.clock.ahead_s += dice.choice((31.0, 61.0, 601.0))
        else:
            await asyncio.sleep(0.001 * dice.random())
        assert made.admission.in_use <= 3
        assert len(made.flights) <= 4
    return clients


async def _run(seed: int) -> None:
    dice = random.Random(seed)
    actor = Actor(dice)
    async with bench(
        *(actor.play for _ in range(3)),
        upstreams={"a": {"concurrency": 1}, "c": {"fallback": True, "model": "small"}},
        teams=(TeamSetting(name="red", concurrency=2, queue=2), TeamSetting(name="blue")),
        admission=AdmissionSetting(concurrency=3, queue=4),
        routing=RoutingSetting(back_s=0.01),
        cache=CacheSetting(max_answer_bytes=4 * LARGE),
    ) as made:
        clients = await _play(made, dice, actor, turns=400)
        stays = [each for each in clients if not each.has_left]
        if dice.random() < 0.5:
            for each in stays:
                made.leave(each)
                each.has_left = not each.over.is_set()
        else:
            await made.calls.drain(0.0)
            for each in stays:
                # each was told one end, and there is no end without one
                assert each.over.is_set()
                assert sum(word in {"ended", "rejected"} for word in each.told) == 1
        for line in tuple(actor.on_stage):
            await line.gone.wait()
        await made.idle()
        assert {name for name in made.names() if name in {"fault", "listener_failed"}} == set()
        for client in clients:
            # who shares a call sees the same, from its beginning
            assert client.call is not None
            others = [each.text for each in clients if each.call is client.call]
            assert max(others, key=len).startswith(client.text)
        for _, _, kept in made.kept:
            assert kept.body.endswith(b"data: [DONE]\n\n")
            assert b'"error"' not in kept.body


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_and_nothing_is_left_behind(seed: int) -> None:
    asyncio.run(asyncio.wait_for(_run(seed), 60))


def test_so_it_is_on_uvloop() -> None:
    uvloop.run(asyncio.wait_for(_run(99), 60))
