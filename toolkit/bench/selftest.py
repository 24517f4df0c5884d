"""Is the clock right? The bench's own client against a server whose tokens say when they were sent.

It starts the server, sends and times; the arithmetic is in small functions of plain numbers. It judges this machine's
client, never a host. Milliseconds of one monotonic clock, which the server's process shares:

    client   sent ----------------------------- read token 0 -------- read token 1 ...
    server         received -- sent token 0 --------------- sent token 1 ...
             |------|        send delay
                              |----------------|             token delay
    added to TTFT = (read 0 - sent) - (sent 0 - received) = send delay + token delay of the first
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise, takewhile
from statistics import fmean
from typing import Any

import uvloop

from toolkit.bench.client import HostClient
from toolkit.bench.health import quiet_collector
from toolkit.bench.host_runner import MOST_READY_CONNECTIONS
from toolkit.bench.request_record import Response
from toolkit.bench.requests import request_body
from toolkit.bench.stamped import MODEL, TokenPace, read_stamps
from toolkit.errors import ToolkitError
from toolkit.records import Host
from toolkit.stats import nearest_rank
from toolkit.units import counted

ROUNDS = 3
"""Answers that each stream reads, one after the other."""
SPREAD_TOKENS = 20
"""The streams begin over so many token intervals: neither in lockstep nor long apart."""
FEWEST_FOR_P99 = 100
SLACK_S = 60.0
"""What an answer may take beyond twice its time, before it is given up."""
RATE_STREAMS, RATE_TOKENS = 50, 300

MOST_P50_MS, MOST_P99_MS, MANY_STREAMS = 2.0, 10.0, 100
"""What the client may add to a TTFT, up to so many streams (Python's vLLM bench adds 23 ms on average at
100 streams, the Rust one 3.5)."""
MOST_MEAN_MS = 20.0
"""The same beyond, on average (at 500 streams: 137 and 19.9)."""
LATE_SERVER_MS = 5.0
"""Its timer, which counts whole milliseconds, makes it 1.1 to 1.7 ms late at p99 on two quiet cores."""


Exchange = tuple[Response, float, float]
"""What `HostClient.exchange` tells of a request: what came back, when it was sent, when it was over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What many values of one delay come to, milliseconds; None without values."""

    p50_ms: float | None
    p99_ms: float | None
    """None below 100 values."""
    mean_ms: float | None

    @classmethod
    def of(cls, values_ms: Sequence[float]) -> "Delay":
        """Sum up values, quantiles by nearest rank."""
        return cls(
            p50_ms=nearest_rank(values_ms, 0.5),
            p99_ms=nearest_rank(values_ms, 0.99) if len(values_ms) >= FEWEST_FOR_P99 else None,
            mean_ms=fmean(values_ms) if values_ms else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestLevel:
    """What the client added at one number of streams."""

    streams: int
    requests: int
    errors: int
    tokens: int
    took_s: float
    ttft_delay: Delay
    """The client's TTFT - the server's."""
    send_delay: Delay
    """Of the request on its way; the wait for the server's turn is in it."""
    token_delay: Delay
    """Of a token on its way: the client's stamp - the server's stamp of the same token."""
    itl_error: Delay
    """|the client's gap between two tokens - the server's|."""
    cpu_us_per_event: float | None
    """CPU of the client's process / tokens, the request's own cost included."""
    cpu_share: float | None
    """CPU / wall time: 1 is a whole core."""
    server_late: Delay
    """When the server sent a token - when it was due. Not the client's fault, and not in its delays."""
    error: str | None = None
    """Of the first request that failed."""

    @property
    def events_per_cpu_s(self) -> float | None:
        """Tokens / CPU seconds of the client's process."""
        return 1e6 / self.cpu_us_per_event if self.cpu_us_per_event else None

    @property
    def figures(self) -> dict[str, Any]:
        """The keys of `toolkit selftest --json`, e.g., `ttft_delay_p50_ms`."""
        flat: dict[str, Any] = {}
        for key, value in asdict(self).items():
            flat |= (
                {f"{key}_{of}": one for of, one in value.items()}
                if isinstance(value, dict)
                else {key: value}
            )
        return flat


# --- arithmetic --------------------------------------------------------------------------------------


def level(
    exchanges: Sequence[Exchange], pace: TokenPace, *, streams: int, wall_s: float, cpu_s: float
) -> SelftestLevel:
    """Sum up one level. Raises ValueError when an answer is no stamped one, or one clock saw a token more."""
    ttft: list[float] = []
    send: list[float] = []
    token: list[float] = []
    gap: list[float] = []
    late: list[float] = []
    errors: list[str | None] = []
    for response, sent_s, _ in exchanges:
        answer, failure = response.answer, response.failure
        if answer is None or not answer.ok or failure is not None:
            errors.append(failure.error if failure else answer.error if answer else None)
            continue
        stamps = read_stamps(answer.text)
        if answer.first_token_at is None:
            raise ValueError("the answer has no token")
        read_s = accumulate((gap_s for gap_s, _ in answer.gaps), initial=answer.first_token_at)
        delays = [
            read * 1000 - sent / 1e6 for read, sent in zip(read_s, stamps.sent_ns, strict=True)
        ]
        send_delay = stamps.received_ns / 1e6 - sent_s * 1000
        send.append(send_delay)
        token += delays
        ttft.append(send_delay + delays[0])
        # gap by the client - gap by the server = delay of the second token - delay of the first
        gap += [abs(after - before) for before, after in pairwise(delays)]
        if pace.interval_ms:
            late += [
                (sent - stamps.received_ns) / 1e6 - (pace.ttft_ms + number * pace.interval_ms)
                for number, sent in enumerate(stamps.sent_ns)
            ]
    return SelftestLevel(
        streams=streams,
        requests=len(exchanges),
        errors=len(errors),
        tokens=len(token),
        took_s=wall_s,
        ttft_delay=Delay.of(ttft),
        send_delay=Delay.of(send),
        token_delay=Delay.of(token),
        itl_error=Delay.of(gap),
        cpu_us_per_event=cpu_s * 1e6 / len(token) if token else None,
        cpu_share=cpu_s / wall_s if wall_s else None,
        server_late=Delay.of(late),
        error=errors[0] if errors else None,
    )


def fault(one: SelftestLevel) -> str | None:
    """Why the clock isn't fit at a level: the first bar that it misses; None when it is."""
    where = f"at {counted(one.streams, 'stream')}"
    added = one.ttft_delay
    if one.errors or added.p50_ms is None:
        return f"{where} {one.errors} of {one.requests} requests failed: {one.error}"
    if one.streams > MANY_STREAMS:
        bars = [("on average", added.mean_ms, MOST_MEAN_MS)]
    else:
        bars = [("at p50", added.p50_ms, MOST_P50_MS), ("at p99", added.p99_ms, MOST_P99_MS)]
    for which, added_ms, most_ms in bars:
        if added_ms is not None and added_ms > most_ms:
            said = (
                f"{where} the client added {added_ms:.1f} ms to TTFT {which}, over {most_ms:g} ms"
            )
            late_ms = one.server_late.p99_ms
            if late_ms is None or late_ms <= LATE_SERVER_MS:
                return said
            # a machine that is too busy for its server is too busy for its client
            late = f"the server itself was {late_ms:.0f} ms late at p99"
            return f"{said} ({late}: this machine lacks CPU)"
    return None


def fit_up_to(levels: Sequence[SelftestLevel]) -> int | None:
    """The most streams at which the clock is fit, and at every smaller level, too."""
    rising = sorted(levels, key=lambda each: each.streams)
    return max((one.streams for one in takewhile(lambda one: not fault(one), rising)), default=None)


def conclusion(levels: Sequence[SelftestLevel]) -> str:
    """Whether the clock is fit, in a plain sentence."""
    if not levels:
        return "Nothing was measured."
    wrong, upto = list(filter(None, map(fault, levels))), fit_up_to(levels)
    fit = "is not fit" if upto is None else f"is fit up to {counted(upto, 'stream')}"
    if not wrong:
        return f"The clock {fit}."
    return f"The clock {fit}{', not beyond' if upto else ''}: {'; '.join(wrong)}."


# --- the load ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedServer:
    """One that runs."""

    url: str
    pace: TokenPace


@contextmanager
def stamped_server(
    pace: TokenPace, program: Sequence[str] = ("-m", "toolkit.bench.stamped")
) -> Iterator[StampedServer]:
    """Start a server in a process of its own, Python's with these words; it ends with the block, or with this process."""
    settings = {"ttft-ms": pace.ttft_ms, "interval-ms": pace.interval_ms, "tokens": pace.tokens}
    words = [f"--{name}={value}" for name, value in settings.items()]
    # -P: a folder `toolkit` where the user happens to stand must not be taken for this one
    command = [sys.executable, "-P", *program, *words]
    with subprocess.Popen(  # noqa: S603 (our own module, started without a shell)
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise ToolkitError(
                    "the stamped server did not start on `127.0.0.1`", "Its own words are above"
                )
            yield StampedServer(url=url, pace=pace)
        finally:
            process.kill()


def loaded(
    server: StampedServer, streams: int, *, tokens: int, spread_s: float
) -> tuple[list[Exchange], float, float]:
    """Put one level's load on a server, from an event loop of its own like the bench's.

    The streams begin `spread_s` apart, first to last; each reads three answers, one after the other. What became of all
    requests, and the wall and CPU seconds that they took this process.
    """
    answer_s = (server.pace.ttft_ms + tokens * server.pace.interval_ms) / 1000
    limit_s = SLACK_S + 2 * answer_s
    exchanges: list[Exchange] = []

    async def stream(client: HostClient, number: int) -> None:
        await asyncio.sleep(spread_s * number / streams)
        for turn in range(ROUNDS):
            said = f"[{number * ROUNDS + turn:08}] What time is it?"
            body = request_body(MODEL, [{"role": "user", "content": said}], True, tokens, None)
            exchanges.append(await client.exchange(body, time.monotonic() + limit_s))

    async def load() -> tuple[float, float]:
        async with HostClient(Host(name=MODEL, url=server.url), timeout_s=limit_s) as client:
            await client.open_connections(min(streams, MOST_READY_CONNECTIONS))
            with quiet_collector():
                began_s, cpu_began_s = time.monotonic(), time.process_time()
                await asyncio.gather(*(stream(client, number) for number in range(streams)))
                cpu_s, wall_s = time.process_time() - cpu_began_s, time.monotonic() - began_s
        return wall_s, cpu_s

    wall_s, cpu_s = uvloop.run(load())
    return exchanges, wall_s, cpu_s


def measured(server: StampedServer, streams: int, *, tokens: int) -> SelftestLevel:
    """Measure one level; its streams begin a few token intervals apart."""
    spread_s = SPREAD_TOKENS * server.pace.interval_ms / 1000
    exchanges, wall_s, cpu_s = loaded(server, streams, tokens=tokens, spread_s=spread_s)
    return level(exchanges, server.pace, streams=streams, wall_s=wall_s, cpu_s=cpu_s)


def unpaced(streams: int = RATE_STREAMS, tokens: int = RATE_TOKENS) -> SelftestLevel:
    """Measure how many events a second of CPU reads, when there is always one to read."""
    with stamped_server(TokenPace(ttft_ms=0.0, interval_ms=0.0, tokens=tokens)) as server:
        return measured(server, streams, tokens=tokens)
