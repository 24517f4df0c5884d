"""A plan, a profile and a runner for tests of what moves in a bench."""

import re
import time
from collections.abc import Sequence
from typing import Any

from support.chat import ChatServer

from toolkit.bench.client import HostClient
from toolkit.bench.host_runner import HostRunner
from toolkit.bench.plan import BenchPlan
from toolkit.bench.request_record import RequestContext
from toolkit.profiles import Profile, Prompt
from toolkit.records import Host, RequestRecord

MARK = re.compile(r"^\[[0-9a-z]{4}-[0-9a-z]{4}\] ")
"""What makes a prompt unlike all others, as plan and README describe it."""


def profile(*texts: str) -> Profile:
    """Prompts `a`, `b`, ... with these texts."""
    prompts = tuple(
        Prompt(name=name, messages=({"role": "user", "content": text},))
        for name, text in zip("abcdefgh", texts or ("Tell me", "Ask me", "Teach me"), strict=False)
    )
    return Profile(name="test", prompts=prompts)


def plan(**changes: Any) -> BenchPlan:
    """Eight unique requests, two at once, unless said otherwise."""
    usual: dict[str, Any] = {
        "requests": 8,
        "concurrency": 2,
        "max_tokens": 4,
        "sameness": "unique",
        "timeout_s": 30.0,
    }
    return BenchPlan(**usual | changes)


def runner_at(
    url: str,
    wanted: BenchPlan,
    *,
    model: str | None = None,
    listed: str | None = None,
    timeout_s: float | None = None,
) -> HostRunner:
    """A runner whose wall clock is the monotonic one; `listed` is the model that a hosts file names."""
    host = Host(name="alice", url=url, model=listed)
    client = HostClient(host, timeout_s=timeout_s or wanted.timeout_s)
    return runner_of(client, wanted, model=model)


def runner_of(client: HostClient, wanted: BenchPlan, *, model: str | None = None) -> HostRunner:
    """A runner with a client of the test's own."""
    host = client.host
    context = RequestContext(
        run="r", name=host.name, url=host.url, concurrency=None, wall_offset_s=0.0
    )
    return HostRunner(
        client, wanted, profile(), context, nonce="nonce", model=model, on_record=lambda _: None
    )


async def measured(runner: HostRunner, *, levels: int = 1) -> list[RequestRecord]:
    """Take a runner through a whole run, as a bench does; its shots."""
    async with runner.client:
        await runner.choose_model()
        await runner.prepare()
        await runner.warm_up()
        for level in range(levels):
            await runner.connect(level)
            await runner.measure(level, time.monotonic())
        await runner.finish()
    return runner.records


def texts(server: ChatServer) -> list[str]:
    """What the last message of each chat request said, in order of arrival."""
    return [body["messages"][-1]["content"] for body in server.asked()]


def unmarked(said: Sequence[str]) -> list[str]:
    """The same without the marks, which must be there."""
    assert all(MARK.match(text) for text in said)
    return [MARK.sub("", text) for text in said]
