"""Does a run pass the lab? Seven criteria of a course on vLLM (week 11), each met, not met or unknown, with what says so.

Unknown is an answer: it names what would settle it. Facts in, criteria out; it reads nothing. Of a request log, whose lines come as
objects, it holds counts and moments only; another tool's log is read alike where it uses the proxy's words.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toolkit.hosts import is_loopback
from toolkit.records import Event, Run
from toolkit.tuning.cells import summed
from toolkit.tuning.host_report import HostReport
from toolkit.units import counted, milliseconds, share, span

Status = Literal["met", "not met", "unknown"]
Judgement = tuple[Status, str, str | None]
"""The status, what says so, and what would settle or mend it."""
ORDER: tuple[Status, ...] = ("not met", "unknown", "met")
MOST_FAILURES = 2.0
LEAST_REQUESTS = 100
ASKED = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One line of the lab's list."""

    code: str
    title: str
    asks: str
    """What it takes, in the course's sense."""
    status: Status
    evidence: str
    """What says so, in a sentence."""
    settle: str | None = None
    """What would settle it, where it is unknown; or what would mend it, where it is not met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The GPU hour against the API. None: not told, or not known."""

    gpu_hour: float
    gpus: int
    per_million_tokens: float | None
    api_per_million_tokens: float | None
    per_thousand_requests: float | None = None
    api_per_thousand_requests: float | None = None
    even_rps: float | None = None
    """Requests a second from which on the GPUs are cheaper."""


# --- the request log ------------------------------------------------------------------------------------

NEAR_S = 30.0
"""A request is beside a rejection when it came within so long of one."""
TURNED_AWAY = (413, 429, 503)
MOST_MOMENTS = 200_000
"""Of rejections and of served requests; later ones are counted, but not placed."""
LAST_MOMENT_S = 1e12
"""A `ts` beyond it is no moment of anybody's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """One log."""

    name: str
    requests: int = 0
    missing: Mapping[str, int] = field(default_factory=dict)
    """What requests do not tell, and how many of them."""
    turned_away: int = 0
    rejected: int = 0
    """With their reason."""
    unlogged_rejections: int = 0
    """Answered 413, 429 or 503 without a reason."""
    own_rejections: int = 0
    """By the queue of a team."""
    nameless_rejections: int = 0
    """By a queue, of a request that is no team's."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    rejected_teams: tuple[str, ...] = ()
    served_beside: tuple[str, ...] = ()
    """Teams that were not rejected, and asked while others were."""
    beside_ok_share: float | None = None
    """Of their requests then, those that were served."""


def log_facts(name: str, lines: Iterable[Mapping[str, Any]]) -> LogFacts:
    """Count a log's lines; events of their own, without a `request_id`, are no requests, and pages that ask no model neither."""
    requests = turned_away = unlogged = own = nameless = 0
    missing, reasons = Counter[str](), Counter[str]()
    rejected_teams: set[str] = set()
    rejected_at: list[float] = []
    others: list[tuple[str, float, bool]] = []
    for line in lines:
        # a `GET` of /v1/models or /metrics has no tokens to tell; who logs no method logs what was asked of the model
        is_event = "event" in line and "request_id" not in line
        if is_event or line.get("method") not in (None, "POST"):
            continue
        requests += 1
        status, reason, left = line.get("status"), line.get("rejected"), line.get("left")
        is_ok = isinstance(status, int) and status < 400

        # a client that left has no latency to be told, and only an answered request can tell tokens and a model
        if not left:
            missing.update(key for key in ("request_id", "latency_ms") if line.get(key) is None)
        if is_ok and not left:
            output = line.get("completion_tokens", line.get("output_tokens"))
            if not line.get("model"):
                missing["model"] += 1
            if None in (line.get("prompt_tokens"), output):
                missing["tokens"] += 1

        team, ts = line.get("team"), line.get("ts")
        at = float(ts) if isinstance(ts, int | float) and abs(ts) < LAST_MOMENT_S else None
        if reason:
            turned_away += 1
            reasons[str(reason)] += 1
            if str(reason).startswith("team_"):
                own += 1
            elif reason in ("queue_full", "too_slow", "expired") and not team:
                nameless += 1
            if team and at is not None:
                rejected_teams.add(str(team))
                if len(rejected_at) < MOST_MOMENTS:
                    rejected_at.append(at)
            continue
        if status in TURNED_AWAY:
            turned_away += 1
            unlogged += 1
        if team and at is not None and len(others) < MOST_MOMENTS:
            others.append((str(team), at, is_ok))

    rejected_at.sort()
    beside = []
    for team, at, is_ok in others:
        place = bisect_left(rejected_at, at - NEAR_S)
        is_near = place < len(rejected_at) and rejected_at[place] <= at + NEAR_S
        if team not in rejected_teams and is_near:
            beside.append((team, is_ok))
    return LogFacts(
        name=name,
        requests=requests,
        missing=dict(sorted(missing.items())),
        turned_away=turned_away,
        rejected=sum(reasons.values()),
        unlogged_rejections=unlogged,
        own_rejections=own,
        nameless_rejections=nameless,
        reasons=dict(reasons.most_common()),
        rejected_teams=tuple(sorted(rejected_teams)),
        served_beside=tuple(sorted({team for team, is_ok in beside if is_ok})),
        beside_ok_share=sum(is_ok for _, is_ok in beside) / len(beside) if beside else None,
    )


# --- the judgement -------------------------------------------------------------------------------------


def criteria(
    hosts: Sequence[HostReport],
    *,
    events: Sequence[Event] = (),
    serve: Run | None = None,
    call: Judgement | None = None,
    costs: Costs | None = None,
    log: LogFacts | None = None,
    rejected: int | None = None,
) -> tuple[Criterion, ...]:
    """All seven, in the course's order. None: nobody recorded it.

    `events` are the run's and the stack's; `serve` is what `toolkit serve` recorded of the stack; `call` is what came of a call
    by the official client; `rejected`: how many requests a proxy answered with 429, by the store's rows.
    """

    def worst(judge: Callable[[HostReport, Iterable[Event]], Judgement]) -> Judgement:
        """Of several hosts the one that fares worst: thousands of good answers of one must not hide another's failures."""
        if len(hosts) > 1:
            judged = {
                host.name: judge(host, [each for each in events if each.name in (None, host.name)])
                for host in hosts
            }
            name = min(judged, key=lambda each: ORDER.index(judged[each][0]))
            status, evidence, settle = judged[name]
            if status != "met":
                return status, f"`{name}`: {evidence}", settle
        all_hosts = replace(
            hosts[0],
            whole=summed(host.whole for host in hosts),
            streamed=sum(host.streamed for host in hosts),
        )
        return judge(all_hosts, events)

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
        Criterion(
            code=code,
            title=ASKED[code][0],
            asks=ASKED[code][1],
            status=status,
            evidence=evidence,
            settle=settle,
        )
        for code, (status, evidence, settle) in judgements.items()
    )


# --- one by one --------------------------------------------------------------------------------------


def model_loading(events: Iterable[Event], serve: Run | None) -> Judgement:
    """Each engine's first start is cold, a later one warm: both times are to be recorded. Of several engines the slowest counts."""
    ready: dict[str | None, list[float]] = {}
    ttft = None
    for event in events:
        if found := READY.search(event.text):
            ready.setdefault(event.name, []).append(float(found[1]))
        if ttft is None:
            ttft = TTFT.search(event.text)
    if not ready and serve is None:
        return (
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
        return "met", f"{recorded}, recorded by `toolkit {by}`", None
    return (
        "not met",
        f"`toolkit {by}` recorded {recorded}, but no {' and no '.join(missing)}",
        "Start it once more, e.g., `toolkit serve restart`; its events tell how long that took",
    )


def compatibility(host: HostReport, _: Iterable[Event]) -> Judgement:
    """By what was answered; the official client's own word goes before it."""
    whole = host.whole
    if whole.ok:
        return (
            "met",
            (
                f"{whole.ok:,} chat calls of OpenAI's form were answered to their finish reason, {host.streamed:,} of "
                f"them as streams and {whole.ok - host.streamed:,} whole, as our own reader saw them; `--call URL` asks "
                "with the official client"
            ),
            None,
        )
    if whole.errors:
        return (
            "not met",
            f"none of {whole.errors:,} chat calls was answered: {host.kinds_told}",
            "`toolkit scout` tells what is at that address",
        )
    return ("unknown", "no chat call was made", "Name the server: `toolkit report RUN --call URL`")


def stability(host: HostReport, events: Iterable[Event]) -> Judgement:
    """Timeouts and out-of-memory errors of 100 requests; errors that might be either leave it open."""
    ended = host.whole.ended
    if not ended:
        return ("unknown", "no request ended", "Load it: `toolkit blast` or `toolkit bench`")
    timeouts = sum(host.whole.error_kinds[kind] for kind in OUT_OF_TIME)
    out_of_memory = sum(bool(MEMORY.search(event.text)) for event in events)
    sure = timeouts + out_of_memory
    perhaps = sum(host.whole.error_kinds[kind] for kind in MAY_BE_MEMORY)
    rate, most = (100 * count / ended for count in (sure, sure + perhaps))
    found = (
        f"{timeouts:,} timeouts and {out_of_memory:,} out-of-memory errors of {ended:,} requests, "
        f"{rate:.2f} of 100"
    )
    if rate > MOST_FAILURES:
        return ("not met", found, "`toolkit diagnose` tells which bottleneck this is")
    if ended < LEAST_REQUESTS:
        more = f"Send {LEAST_REQUESTS} or more, e.g., `toolkit bench HOST --num-prompts 100`"
        return "unknown", f"{found}; too few to judge", more
    if most > MOST_FAILURES:
        return (
            "unknown",
            f"{found}; but {perhaps:,} more failed as an engine out of memory might have: {host.kinds_told}",
            "Look for `out of memory` in the engine's log; `toolkit serve` records each restart's cause",
        )
    return "met", found, None


def cost(costs: Costs | None, hosts: Sequence[HostReport]) -> Judgement:
    """The table stands in the report once both prices are told and something was answered."""
    if costs is None and len(hosts) > 1:
        return (
            "unknown",
            "what several hosts answered together is no one GPU's work",
            "Report on one of them: `RUN:HOST`",
        )
    if costs is None or costs.api_per_million_tokens is None:
        missing = "the price of a GPU hour" if costs is None else "an API's price"
        return (
            "unknown",
            f"{missing} was not told",
            "Say both: `--gpu-hour 2.00 --api-price 0.15/0.60` (prices for a million prompt and answer tokens)",
        )
    if costs.per_million_tokens is None:
        return (
            "not met",
            f"nothing was answered for {costs.gpu_hour * costs.gpus:.2f} an hour, so there is no price to compare",
            "Compare a run that has ok answers",
        )
    cheaper = costs.per_million_tokens < costs.api_per_million_tokens
    return (
        "met",
        (
            f"a million tokens cost {costs.per_million_tokens:.3f} at the rate of this run ({hosts[0].whole.ok:,} answers in "
            f"{span(hosts[0].whole.elapsed_s)}), {costs.api_per_million_tokens:.3f} at the API: "
            f"{'the GPU' if cheaper else 'the API'} is cheaper at this load"
        ),
        None,
    )


def observability(log: LogFacts | None) -> Judgement:
    """Each line of the request log tells id, model, tokens and latency; a request that failed has no tokens to tell."""
    if log is None:
        return (
            "unknown",
            "no request log was given",
            "Give the proxy's: `--log requests.jsonl` (`toolkit proxy --log FILE` writes one)",
        )
    if not log.requests:
        return ("unknown", f"`{log.name}` holds no request", "Give the log of this run's time")
    if log.missing:
        lacking = ", ".join(f"{name} in {count:,}" for name, count in log.missing.items())
        return (
            "not met",
            f"of {log.requests:,} requests in `{log.name}` some tell no {lacking}",
            "`toolkit proxy --log FILE` tells all of them",
        )
    return ("met", f"all {log.requests:,} requests in `{log.name}` tell all four", None)


def boundaries(serve: Run | None) -> Judgement:
    """What a request can reach beyond the model, by the recorded settings: other machines, files, code."""
    stack = serve.plan if serve else {}
    engines, proxy = stack.get("engines"), stack.get("proxy")
    if not isinstance(engines, list) or not engines:
        return (
            "unknown",
            "how the stack was set up is not recorded here",
            "Serve with `toolkit serve` on the same database: it records its settings",
        )
    open_engines, file_engines, code_engines = [], [], []
    for engine in (each for each in engines if isinstance(each, dict)):
        name, flags = f"`{engine.get('name', 'engine')}`", engine.get("flags", {})
        pairs = (
            flags.items() if isinstance(flags, dict) else (one for one in flags if len(one) == 2)
        )
        told = {str(key).lstrip("-").replace("_", "-"): value for key, value in pairs}
        if not is_loopback(str(engine.get("host", "127.0.0.1")).strip("[]")):
            open_engines.append(name)
        if told.get("allowed-local-media-path"):
            file_engines.append(name)
        if told.get("trust-remote-code") not in (None, False):
            code_engines.append(name)
    media = proxy.get("media_hosts") if isinstance(proxy, dict) else ()

    faults = []
    if open_engines:
        faults.append(f"{', '.join(open_engines)} listens to more than its own machine")
    if not isinstance(proxy, dict):
        faults.append("no proxy stands before the engines")
    if isinstance(media, list | tuple) and "*" in media:
        faults.append("requests may have engines fetch from anywhere")
    if file_engines:
        faults.append(f"{', '.join(file_engines)} lets requests read its files")
    if code_engines:
        faults.append(f"{', '.join(code_engines)} runs code that came with the weights")
    if faults:
        return (
            "not met",
            "; ".join(faults),
            (
                "Bind engines to 127.0.0.1 behind the proxy, name `media_hosts`, and leave out "
                "`allowed-local-media-path` and `trust-remote-code`"
            ),
        )
    if not isinstance(media, list | tuple):
        return (
            "unknown",
            (
                "engines listen to their own machine alone, behind the proxy, and let no request read files; but from where a "
                "request may have them fetch is not recorded"
            ),
            "See `media_hosts` in the proxy's settings: empty is nowhere",
        )
    return (
        "met",
        (
            "by the recorded settings engines listen to their own machine alone, behind the proxy; no request has them "
            "fetch from elsewhere, read files or run foreign code"
        ),
        None,
    )


def admission(log: LogFacts | None, rejected: int | None) -> Judgement:
    """One team's crowd meets a queue of its own, others are served meanwhile, and each rejection is written down."""
    provoke = (
        "Let one team send more than its queue holds while another asks, with `toolkit proxy --log FILE`, and give "
        "the log: `--log FILE`"
    )
    if log is None:
        seen = (
            "" if not rejected else f"; {rejected:,} requests were answered 429, whoever sent them"
        )
        return "unknown", f"no request log was given{seen}", provoke
    if log.unlogged_rejections:
        return (
            "not met",
            f"{log.unlogged_rejections:,} of {log.turned_away:,} requests that were turned away stand in `{log.name}` without a reason",
            "`toolkit proxy --log FILE` writes the reason of each",
        )
    if not log.rejected:
        return "unknown", f"`{log.name}` holds no rejection", provoke
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in log.reasons.items())
    if log.nameless_rejections or not log.own_rejections:
        return (
            "not met",
            f"{counted(log.rejected, 'rejection')} ({reasons}), but from a queue that all share",
            "Give teams keys and queues of their own: `[[team]]` in the proxy's settings",
        )
    if not log.served_beside:
        return (
            "unknown",
            f"{counted(log.rejected, 'rejection')} ({reasons}), but nobody else asked meanwhile",
            provoke,
        )
    return (
        "met",
        (
            f"{counted(log.own_rejections, 'rejection')} ({reasons}) of {_teams(log.rejected_teams)} stand in the log, while "
            f"{_teams(log.served_beside)} had {share(log.beside_ok_share)} of their requests served"
        ),
        None,
    )


def _teams(names: tuple[str, ...]) -> str:
    return f"team{'s' * (len(names) > 1)} {', '.join(f'`{name}`' for name in names)}"
