"""Does a run pass the lab? Seven criteria of a course on vLLM (week 11), each met, not met or unknown, with what says so.

Unknown is an answer: it names what would settle it. Facts in, criteria out; it reads nothing. Of a request log, whose lines come as
objects, it holds counts and moments only; another tool's log is read alike where it uses the proxy's words.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from toolkit.hosts import is_loopback
from toolkit.records import Event, Run
from toolkit.tuning.cells import Cell, summed
from toolkit.units import counted, milliseconds, share, span

Status = Literal["met", "not met", "unknown"]
WORST_FIRST: tuple[Status, ...] = ("not met", "unknown", "met")
MOST_FAILURES = 2.0
LEAST_REQUESTS = 100
LAB = {
    "model_loading": ("Model loading", "cold start and warm restart times recorded"),
    "api_compatibility": ("API compatibility", "an OpenAI client can complete a chat call"),
    "stability": ("Stability", "0 to 2 timeouts or out-of-memory errors of 100 requests"),
    "cost": ("Cost", "a table that compares the GPU hour with an API"),
    "observability": (
        "Observability",
        "at least request id, model, tokens and latency logged for each request",
    ),
    "boundaries": ("Boundaries", "access to the external network and to files is separated"),
    "admission": ("Admission", "each team's queue is isolated, and rejections are logged"),
}
"""The lab's list in the course's sense: each criterion's code, its title and what it takes."""
OUT_OF_TIME = ("timeout",)
MAY_BE_MEMORY = ("http_500", "http_503", "cut", "connect", "stream_error")
"""Kinds of errors that an engine out of memory leaves, as others do."""
READY = re.compile(r"\bready after ([\d.]+) s\b")
TTFT = re.compile(r"\bcold TTFT ([\d.]+) ms, warm TTFT ([\d.]+) ms")
MEMORY = re.compile(r"out of memory|\bOOM\b|OutOfMemory|no memory left", re.IGNORECASE)
"""What `toolkit serve` and `toolkit watchdog` write of a start, of a warm-up and of an engine's end."""


class Judgement(NamedTuple):
    """What became of one criterion."""

    status: Status
    evidence: str
    """What says so, in a sentence."""
    settle: str | None = None
    """What would settle it, where it is unknown; or what would mend it, where it is not met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One line of the lab's list, with its Judgement; the fields are keys of `toolkit report --json`."""

    code: str
    title: str
    asks: str
    """What it takes, in the course's sense."""
    status: Status
    evidence: str
    settle: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The GPU hour against the API. None: not given, or not known."""

    gpu_hour: float
    gpus: int
    per_million_tokens: float | None
    api_per_million_tokens: float | None
    per_thousand_requests: float | None = None
    api_per_thousand_requests: float | None = None
    even_rps: float | None = None
    """Requests a second from which on the GPUs are cheaper."""


def criteria(
    hosts: Sequence[tuple[str, Cell]],
    *,
    events: Sequence[Event] = (),
    serve: Run | None = None,
    call: Judgement | None = None,
    costs: Costs | None = None,
    log: "RequestLog | None" = None,
    rejected: int | None = None,
) -> tuple[Criterion, ...]:
    """All seven, in the course's order. None: nobody recorded it.

    `hosts`: each name with what it answered in the whole run; `events` are the run's and the stack's; `serve` is what `toolkit serve` recorded
    of the stack; `call` is what came of a call by the official client; `rejected`: how many requests a proxy answered with 429, by
    the store's rows.
    """

    def worst(judge: Callable[[Cell, Iterable[Event]], Judgement]) -> Judgement:
        """Of several hosts the one that fares worst: thousands of good answers of one must not hide another's failures."""
        if len(hosts) > 1:
            judged = {
                name: judge(cell, [each for each in events if each.name in (None, name)])
                for name, cell in hosts
            }
            name = min(judged, key=lambda each: WORST_FIRST.index(judged[each].status))
            if judged[name].status != "met":
                return judged[name]._replace(evidence=f"`{name}`: {judged[name].evidence}")
        return judge(summed(cell for _, cell in hosts), events)

    judgements = {
        "model_loading": model_loading(events, serve),
        "api_compatibility": call or worst(compatibility),
        "stability": worst(stability),
        "cost": cost(costs, hosts),
        "observability": observability(log),
        "boundaries": boundaries(serve),
        "admission": admission(log, rejected),
    }
    return tuple(
        Criterion(code=code, title=title, asks=asks, **judgements[code]._asdict())
        for code, (title, asks) in LAB.items()
    )


# --- the request log ------------------------------------------------------------------------------------

NEAR_S = 30.0
"""A request is beside a rejection when it came within so long of one."""
TURNED_AWAY = (413, 429, 503)
MOST_MOMENTS = 200_000
"""Of rejections and of served requests; later ones are counted, but not placed."""
LAST_MOMENT_S = 1e12
"""A `ts` beyond it is no moment of anybody's clock."""


@dataclass(slots=True)
class RequestLog:
    """What a proxy's log of its requests holds, counted line by line."""

    name: str
    requests: int = 0
    missing: Counter[str] = field(default_factory=Counter)
    """What requests lack, and how many of them."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of rejections."""
    without_reason: int = 0
    """Answered 413, 429 or 503."""
    own_rejections: int = 0
    """By the queue of a team."""
    nameless_rejections: int = 0
    """By a queue, of a request that is no team's."""
    rejected_teams: set[str] = field(default_factory=set)
    rejected_at: list[float] = field(default_factory=list)
    others: list[tuple[str, float, bool]] = field(default_factory=list)
    """Of requests that were not rejected: whose, when, and whether they were served."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one line; an event of its own, without a `request_id`, is no request."""
        # a `GET` of /v1/models or /metrics has no tokens; who logs no method logs what was asked of the model
        is_event = "event" in line and "request_id" not in line
        if is_event or line.get("method") not in (None, "POST"):
            return
        self.requests += 1
        status, reason, left = line.get("status"), line.get("rejected"), line.get("left")
        is_ok = isinstance(status, int) and status < 400
        # a client that left has no latency, and only an answered request can have tokens and a model
        if not left:
            self.missing.update(
                each for each in ("request_id", "latency_ms") if line.get(each) is None
            )
        if is_ok and not left:
            output = line.get("completion_tokens", line.get("output_tokens"))
            if not line.get("model"):
                self.missing["model"] += 1
            if None in (line.get("prompt_tokens"), output):
                self.missing["tokens"] += 1

        team, ts = line.get("team"), line.get("ts")
        at = None
        if team and isinstance(ts, int | float) and abs(ts) < LAST_MOMENT_S:
            at = float(ts)
        if reason:
            self.reasons[str(reason)] += 1
            self.own_rejections += str(reason).startswith("team_")
            is_queues = reason in ("queue_full", "too_slow", "expired")
            self.nameless_rejections += is_queues and not team
            if at is not None:
                self.rejected_teams.add(str(team))
                if len(self.rejected_at) < MOST_MOMENTS:
                    self.rejected_at.append(at)
            return
        self.without_reason += status in TURNED_AWAY
        if at is not None and len(self.others) < MOST_MOMENTS:
            self.others.append((str(team), at, is_ok))

    def beside_rejections(self) -> list[tuple[str, bool]]:
        """The requests of teams that were never rejected, near a rejection of another's: whose, and whether it was served."""
        found, moments = [], sorted(self.rejected_at)
        for team, at, is_ok in self.others:
            place = bisect_left(moments, at - NEAR_S)
            is_near = place < len(moments) and moments[place] <= at + NEAR_S
            if team not in self.rejected_teams and is_near:
                found.append((team, is_ok))
        return found


# --- one by one --------------------------------------------------------------------------------------


def model_loading(events: Iterable[Event], serve: Run | None) -> Judgement:
    """Each engine's first start is cold, a later one warm: both times are to be recorded. Of several engines the slowest counts."""
    ready: dict[str | None, list[float]] = {}
    ttft = None
    for event in events:
        if found := READY.search(event.text):
            ready.setdefault(event.name, []).append(float(found[1]))
        ttft = ttft or TTFT.search(event.text)
    if not ready and serve is None:
        return Judgement(
            "unknown",
            "no start of an engine is recorded here",
            "Serve with `toolkit serve` on the same database: its events tell how long each start took",
        )
    times = {
        "cold start": max((each[0] for each in ready.values()), default=None),
        "warm restart": max((each[-1] for each in ready.values() if len(each) > 1), default=None),
    }
    known = [
        f"{name} {f'{value:.1f} s' if value < 120 else span(value)}"
        for name, value in times.items()
        if value is not None
    ]
    if ttft:
        cold, warm = (milliseconds(float(each)) for each in ttft.groups())
        known.append(f"first token after {cold} cold and {warm} warm")
    recorded, by = ", ".join(known) or "no time", "serve" if serve else "watchdog"
    missing = [name for name, value in times.items() if value is None]
    if not missing:
        return Judgement("met", f"{recorded}, recorded by `toolkit {by}`")
    return Judgement(
        "not met",
        f"`toolkit {by}` recorded {recorded}, but no {' and no '.join(missing)}",
        "Start it once more, e.g., `toolkit serve restart`; its events tell how long that took",
    )


def compatibility(whole: Cell, _: Iterable[Event]) -> Judgement:
    """By what was answered; the official client's own word goes before it."""
    if whole.ok:
        return Judgement(
            "met",
            f"{whole.ok:,} chat calls of OpenAI's form were answered to their finish reason, {whole.streamed:,} of "
            f"them as streams and {whole.ok - whole.streamed:,} whole, as our own reader saw them; `--call URL` asks "
            "with the official client",
        )
    if whole.errors:
        return Judgement(
            "not met",
            f"none of {whole.errors:,} chat calls was answered: {whole.kinds_in_words}",
            "`toolkit scout` tells what is at that address",
        )
    settle = "Name the server: `toolkit report RUN --call URL`"
    return Judgement("unknown", "no chat call was made", settle)


def stability(whole: Cell, events: Iterable[Event]) -> Judgement:
    """Timeouts and out-of-memory errors of 100 requests; errors that might be either leave it open."""
    if not whole.ended:
        settle = "Load it: `toolkit blast` or `toolkit bench`"
        return Judgement("unknown", "no request ended", settle)
    timeouts = sum(whole.error_kinds[kind] for kind in OUT_OF_TIME)
    out_of_memory = sum(bool(MEMORY.search(event.text)) for event in events)
    sure = timeouts + out_of_memory
    perhaps = sum(whole.error_kinds[kind] for kind in MAY_BE_MEMORY)
    rate, most = (100 * count / whole.ended for count in (sure, sure + perhaps))
    found = (
        f"{timeouts:,} timeouts and {out_of_memory:,} out-of-memory errors of {whole.ended:,} requests, "
        f"{rate:.2f} of 100"
    )
    if rate > MOST_FAILURES:
        return Judgement("not met", found, "`toolkit diagnose` tells which bottleneck this is")
    if whole.ended < LEAST_REQUESTS:
        more = f"Send {LEAST_REQUESTS} or more, e.g., `toolkit bench HOST --num-prompts 100`"
        return Judgement("unknown", f"{found}; too few to judge", more)
    if most > MOST_FAILURES:
        return Judgement(
            "unknown",
            f"{found}; but {perhaps:,} more failed as an engine out of memory might have: {whole.kinds_in_words}",
            "Look for `out of memory` in the engine's log; `toolkit serve` records each restart's cause",
        )
    return Judgement("met", found)


def cost(costs: Costs | None, hosts: Sequence[tuple[str, Cell]]) -> Judgement:
    """The table stands in the report once both prices are given and something was answered."""
    if costs is None and len(hosts) > 1:
        evidence = "what several hosts answered together is no one GPU's work"
        return Judgement("unknown", evidence, "Report on one of them: `RUN:HOST`")
    if costs is None or costs.api_per_million_tokens is None:
        missing = "the price of a GPU hour" if costs is None else "an API's price"
        return Judgement(
            "unknown",
            f"{missing} was not given",
            "Say both: `--gpu-hour 2.00 --api-price 0.15/0.60` (prices for a million prompt and answer tokens)",
        )
    own, api, (_, whole) = costs.per_million_tokens, costs.api_per_million_tokens, hosts[0]
    if own is None:
        return Judgement(
            "not met",
            f"nothing was answered for {costs.gpu_hour * costs.gpus:.2f} an hour, so there is no price to compare",
            "Compare a run that has ok answers",
        )
    return Judgement(
        "met",
        f"a million tokens cost {own:.3f} at the rate of this run ({whole.ok:,} answers in {span(whole.elapsed_s)}), "
        f"{api:.3f} at the API: {'the GPU' if own < api else 'the API'} is cheaper at this load",
    )


def observability(log: RequestLog | None) -> Judgement:
    """Each line of the request log has id, model, tokens and latency; a request that failed has no tokens."""
    if log is None:
        return Judgement(
            "unknown",
            "no request log was given",
            "Give the proxy's: `--log requests.jsonl` (`toolkit proxy --log FILE` writes one)",
        )
    if not log.requests:
        return Judgement(
            "unknown", f"`{log.name}` holds no request", "Give the log of this run's time"
        )
    if log.missing:
        lacking = ", ".join(f"{name} ({count:,})" for name, count in sorted(log.missing.items()))
        return Judgement(
            "not met",
            f"of {log.requests:,} requests in `{log.name}` some lack {lacking}",
            "`toolkit proxy --log FILE` writes all of them",
        )
    return Judgement("met", f"all {log.requests:,} requests in `{log.name}` name all four")


def boundaries(serve: Run | None) -> Judgement:
    """What a request can reach beyond the model, by the recorded settings: other machines, files, code."""
    stack = serve.plan if serve else {}
    engines, proxy = stack.get("engines"), stack.get("proxy")
    if not isinstance(engines, list) or not engines:
        return Judgement(
            "unknown",
            "how the stack was set up is not recorded here",
            "Serve with `toolkit serve` on the same database: it records its settings",
        )
    found: dict[str, list[str]] = {}
    for engine in (each for each in engines if isinstance(each, dict)):
        flags = engine.get("flags", {})
        pairs = (
            flags.items() if isinstance(flags, dict) else (each for each in flags if len(each) == 2)
        )
        given = {str(key).lstrip("-").replace("_", "-"): value for key, value in pairs}
        is_alone = is_loopback(str(engine.get("host", "127.0.0.1")).strip("[]"))
        runs_code = given.get("trust-remote-code") not in (None, False)
        for is_so, fault in (
            (not is_alone, "listens to more than its own machine"),
            (given.get("allowed-local-media-path"), "lets requests read its files"),
            (runs_code, "runs code that came with the weights"),
        ):
            if is_so:
                found.setdefault(fault, []).append(f"`{engine.get('name', 'engine')}`")
    faults = [f"{', '.join(names)} {fault}" for fault, names in found.items()]
    if not isinstance(proxy, dict):
        faults.append("no proxy stands before the engines")
    media = proxy.get("media_hosts") if isinstance(proxy, dict) else ()
    if isinstance(media, list | tuple) and "*" in media:
        faults.append("requests may have engines fetch from anywhere")
    if faults:
        return Judgement(
            "not met",
            "; ".join(faults),
            "Bind engines to 127.0.0.1 behind the proxy, name `media_hosts`, and leave out "
            "`allowed-local-media-path` and `trust-remote-code`",
        )
    if not isinstance(media, list | tuple):
        return Judgement(
            "unknown",
            "engines listen to their own machine alone, behind the proxy, and let no request read files; but from where a "
            "request may have them fetch is not recorded",
            "See `media_hosts` in the proxy's settings: empty is nowhere",
        )
    return Judgement(
        "met",
        "by the recorded settings engines listen to their own machine alone, behind the proxy; no request has them "
        "fetch from elsewhere, read files or run foreign code",
    )


def admission(log: RequestLog | None, rejected: int | None) -> Judgement:
    """One team's crowd meets a queue of its own, others are served meanwhile, and each rejection is written down."""
    provoke = (
        "Let one team send more than its queue holds while another asks, with `toolkit proxy --log FILE`, and give "
        "the log: `--log FILE`"
    )
    if log is None:
        seen = f"; {rejected:,} requests were answered 429, whoever sent them" if rejected else ""
        return Judgement("unknown", f"no request log was given{seen}", provoke)
    count = log.reasons.total()
    if log.without_reason:
        return Judgement(
            "not met",
            f"{log.without_reason:,} of {count + log.without_reason:,} requests that were turned away stand in `{log.name}` "
            "without a reason",
            "`toolkit proxy --log FILE` writes the reason of each",
        )
    if not count:
        return Judgement("unknown", f"`{log.name}` holds no rejection", provoke)
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in log.reasons.most_common())
    if log.nameless_rejections or not log.own_rejections:
        return Judgement(
            "not met",
            f"{counted(count, 'rejection')} ({reasons}), but from a queue that all share",
            "Give teams keys and queues of their own: `[[team]]` in the proxy's settings",
        )
    beside = log.beside_rejections()
    served = {team for team, is_ok in beside if is_ok}
    if not served:
        nobody = f"{counted(count, 'rejection')} ({reasons}), but nobody else asked meanwhile"
        return Judgement("unknown", nobody, provoke)
    rejected_teams, served_teams = (
        f"team{'s' * (len(names) > 1)} {', '.join(f'`{name}`' for name in sorted(names))}"
        for names in (log.rejected_teams, served)
    )
    return Judgement(
        "met",
        f"{counted(log.own_rejections, 'rejection')} ({reasons}) of {rejected_teams} stand in the log, while "
        f"{served_teams} had {share(sum(is_ok for _, is_ok in beside) / len(beside))} of their requests served",
    )
