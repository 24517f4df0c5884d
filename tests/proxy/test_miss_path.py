"""What one streamed miss runs through: no more functions, files and classes than it did, and all that docs/one-request.md names."""

import asyncio
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from support.chat import DONE, FINISH, HEAD, LAST, ROLE, USAGE, token, until
from support.proxied import ASKED, proxied
from support.scripted_upstream import Line, ScriptedUpstream

import toolkit

PACKAGE = str(Path(toolkit.__file__).parent)
WALK = Path(__file__).parents[2] / "docs" / "one-request.md"
STREAMED = ASKED | {"stream": True}
MOST = {"functions": 132, "files": 21, "classes": 23}
"""As measured (130), the least of five, as a read may bring several parts; what comes after the client's end counts: 34 functions read the
request and the answer, in toolkit/protocol, 12 pack and store it. It was 409, 51 and 41; the aim is 60, 12 and 12."""


def test_a_streamed_miss_runs_through_few_functions_files_and_classes() -> None:
    seen: dict[str, set[str]] = {}
    counts: list[dict[str, int]] = []
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(PACKAGE):
            return
        name = frame.f_code.co_qualname
        if "<" in name.rpartition(".")[2]:
            return  # a comprehension or a lambda is a part of the function that it stands in
        seen["functions"].add(f"{file} {name}")
        seen["files"].add(file)
        if "." in name:
            seen["classes"].add(f"{file} {name.partition('.')[0]}")

    async def stream(line: Line) -> None:
        for part in (HEAD, ROLE, token("one"), token("two"), FINISH, USAGE, DONE, LAST):
            line.send(part)

    async def test() -> None:
        async with ScriptedUpstream(stream) as engine, proxied(engine) as proxy:
            client = await proxy.client()
            # the first one makes what all others find made
            await client.ask(STREAMED)
            await until(lambda: len(proxy.proxy.cache.memory) == 1)
            # what runs ten times a second is no part of a miss, though it falls into one on a machine that is busy
            for task in proxy.proxy._ticking:
                task.cancel()
            for number in range(1, 6):
                seen.update({kind: set() for kind in MOST})
                sys.setprofile(note)
                try:
                    answer = await client.ask(STREAMED | {"seed": number})
                    # until it is packed and stored, too
                    await until(lambda most=number: len(proxy.proxy.cache.memory) > most)
                finally:
                    sys.setprofile(None)
                assert answer.text == "onetwo"
                passed.update(name.rpartition(" ")[2] for name in seen["functions"])
                counts.append({kind: len(names) for kind, names in seen.items()})

    asyncio.run(asyncio.wait_for(test(), 60))
    walk = WALK.read_text().partition("## In")[2].partition("## What this")[0]
    named = re.findall(r"`((?:[A-Z]\w+\.)?[a-z_]+)`", walk)
    assert [
        name for name in named if not any(f".{each}".endswith(f".{name}") for each in passed)
    ] == []
    least = min(counts, key=lambda each: each["functions"])
    assert all(least[kind] <= most for kind, most in MOST.items()), (least, seen)
