"""A running `toolkit proxy` and who asks it: for the tests that fill it up over real processes and sockets."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support.proxied import Answer, Client
from support.proxy_verb import Verb, proxying

Fields = dict[str, Any]


def p(share: float, values: Sequence[float]) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


async def until(holds: Callable[[], Awaitable[object]], patience_s: float = 60.0) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(patience_s):
        while not await holds():  # noqa: ASYNC110 (the condition is another process's)
            await asyncio.sleep(0.02)


@dataclass
class House:
    """One proxy, and what it told."""

    verb: Verb
    folder: Path
    answers: list[Answer] = field(default_factory=list)
    """Of all who asked through `ask`."""

    async def ask(self, body: Fields, *, key: str | None = None) -> tuple[Answer, float]:
        """Over a connection of its own; with the seconds that it took."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.verb.port))
        began_s = time.monotonic()
        answer = await client.ask(body, key=key)
        took_s = time.monotonic() - began_s
        client.close()
        await client.writer.wait_closed()
        self.answers.append(answer)
        return answer, took_s

    async def admin(self, path: str, told: Fields | None = None) -> bytes:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.verb.admin))
        method, body = ("GET", b"") if told is None else ("POST", json.dumps(told).encode())
        answer = await client.ask(body, path=path, method=method)
        client.close()
        assert answer.status == 200, (path, answer)
        return answer.body

    async def state(self) -> Fields:
        return json.loads(await self.admin("/state"))

    async def upstreams(self) -> dict[str, Fields]:
        return {each["name"]: each for each in (await self.state())["upstreams"]}

    async def until(self, holds: Any, patience_s: float = 60.0) -> Fields:
        """Its state, once something is so in it."""
        give_up_s = time.monotonic() + patience_s
        while not holds(state := await self.state()):
            assert time.monotonic() < give_up_s, state
            await asyncio.sleep(0.02)
        return state

    async def counted(self, name: str, *labels: str) -> Counter[tuple[str, ...]]:
        """A counter's values by some of its labels."""
        found: Counter[tuple[str, ...]] = Counter()
        for family in text_string_to_metric_families((await self.admin("/metrics")).decode()):
            for sample in family.samples:
                if sample.name == f"toolkit_proxy_{name}":
                    found[tuple(sample.labels[label] for label in labels)] += int(sample.value)
        return found

    def lines(self) -> list[Fields]:
        """Its log so far; all of it once it has ended."""
        text = (self.folder / "log.jsonl").read_text()
        return [json.loads(line) for line in text.split("\n")[:-1]]


@contextmanager
def house(folder: Path, settings: str, **environ: str) -> Iterator[House]:
    """Run one, with a log and without a file for answers; a traceback on its standard error is a failure."""
    folder.mkdir(exist_ok=True)
    config = folder / "proxy.toml"
    config.write_text(settings)
    words = ("--config", config, "--no-cache-file", "--log", "log.jsonl")
    with proxying(*words, cwd=folder, **environ) as verb:
        yield House(verb, folder)
        assert verb.end() == 0
    assert not [line for line in verb.said if "Traceback" in line], verb.said


def upstreams(*urls: str, more: Sequence[str] = ()) -> str:
    """TOML of upstreams u0, u1...; `more`: further lines of each."""
    lines = [*more, *[""] * (len(urls) - len(more))]
    return "".join(
        f'[[upstream]]\nname = "u{number}"\nurl = "{url}"\n{line}\n'
        for number, (url, line) in enumerate(zip(urls, lines, strict=True))
    )


def teams(**lines: str) -> tuple[str, dict[str, str]]:
    """TOML of teams and the environment with their keys, `sk-NAME`."""
    text = "".join(
        f'[[team]]\nname = "{name}"\nkey_env = "{name.upper()}_KEY"\n{more}\n'
        for name, more in lines.items()
    )
    return text, {f"{name.upper()}_KEY": f"sk-{name}" for name in lines}
