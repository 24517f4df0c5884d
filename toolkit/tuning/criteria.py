"""Does a run pass the lab? Seven criteria of a course on vLLM (week 11), each met, not met or unknown, with what says so.

Unknown is an answer: it names what would settle it. Facts in, criteria out; it reads nothing. Of a request log, whose lines come as
objects, it holds counts and moments only; another tool's log is read alike where it uses the proxy's words.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
class Starts:
    """What is recorded of an engine's starts. None: nothing is."""

    by: str
    """Whose record it is."""
    cold_s: float | None = None
    """The first, from launch to ready."""
    warm_s: float | None = None
    """A later one, in the same record."""
    cold_ttft_ms: float | None = None
    warm_ttft_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcomes:
    """What became of the run's requests."""

    ok: int = 0
    errors: int = 0
    error_kinds: Mapping[str, int] = field(default_factory=dict)
    """Of the errors, by kind."""
    streamed: int = 0
    """Of ok."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    out_of_memory: int = 0
    """Events of the engine that tell of it."""
    window_s: float = 0.0
    of_several: bool = False
    """Hosts, all together."""

    @property
    def all(self) -> int:
        """Ended ones."""
        return self.ok + self.errors


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """One chat call by the official client, made for this report."""

    ok: bool
    told: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """How a stack was set up, as `toolkit serve` recorded it."""

    open_engines: tuple[str, ...] = ()
    """Engines that listen to more than their own machine, past the proxy."""
    has_proxy: bool = False
    media_anywhere: bool | None = False
    """A request may have an engine fetch from wherever it says; None: not recorded."""
    file_engines: tuple[str, ...] = ()
    """Engines that let a request read files of theirs."""
    code_engines: tuple[str, ...] = ()
    """Engines that run code which came with the weights."""


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
    requests: RequestOutcomes,
    hosts: Mapping[str, RequestOutcomes],
    *,
    starts: Starts | None = None,
    call: ClientCall | None = None,
    costs: Costs | None = None,
    log: LogFacts | None = None,
    stack: Boundaries | None = None,
    rejected: int | None = None,
) -> tuple[Criterion, ...]:
    """All seven, in the course's order. None: nobody recorded it.

    `requests` are all hosts' together, `hosts` each one's; `rejected` how many a proxy answered with 429, by the store's rows.
    """

    def worst(judge: Callable[[RequestOutcomes], Judgement]) -> Judgement:
        """Of several hosts the one that fares worst: thousands of good answers of one must not hide another's failures."""
        judged = {name: judge(one) for name, one in hosts.items()}
        name = min(judged, key=lambda each: ORDER.index(judged[each][0]), default=None)
        if name is None or len(hosts) < 2 or judged[name][0] == "met":
            return judge(requests)
        status, evidence, settle = judged[name]
        return status, f"`{name}`: {evidence}", settle

    judgements = {
        "model_loading": model_loading(starts),
        "api_compatibility": worst(lambda one: compatibility(one, call)),
        "stability": worst(stability),
        "cost": cost(costs, requests),
        "observability": observability(log),
        "boundaries": boundaries(stack),
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


def model_loading(starts: Starts | None) -> Judgement:
    """Both times, the cold and the warm one."""
    again = "Start it once more, e.g., `toolkit serve restart`; its events tell how long that took"
    if starts is None:
        return (
            "unknown",
            "no start of an engine is recorded here",
            "Serve with `toolkit serve` on the same database: its events tell how long each start took",
        )
    times = {"cold start": starts.cold_s, "warm restart": starts.warm_s}
    known = [
        f"{name} {f'{value:.1f} s' if value < 120 else span(value)}"
        for name, value in times.items()
        if value is not None
    ]
    if starts.cold_ttft_ms is not None and starts.warm_ttft_ms is not None:
        ttft = (
            f"{milliseconds(starts.cold_ttft_ms)} cold and {milliseconds(starts.warm_ttft_ms)} warm"
        )
        known.append(f"first token after {ttft}")
    recorded = ", ".join(known) or "no time"
    missing = [name for name, value in times.items() if value is None]
    if not missing:
        return "met", f"{recorded}, recorded by {starts.by}", None
    return ("not met", f"{starts.by} recorded {recorded}, but no {' and no '.join(missing)}", again)


def compatibility(requests: RequestOutcomes, call: ClientCall | None) -> Judgement:
    """The official client's own word goes first."""
    if call is not None:
        mend = None if call.ok else "Ask the same by hand, e.g., `toolkit bench URL --requests 1`"
        return "met" if call.ok else "not met", call.told, mend
    if requests.ok:
        whole = requests.ok - requests.streamed
        return (
            "met",
            (
                f"{requests.ok:,} chat calls of OpenAI's form were answered to their finish reason, {requests.streamed:,} of "
                f"them as streams and {whole:,} whole, as our own reader saw them; `--call URL` asks with the official client"
            ),
            None,
        )
    if requests.errors:
        return (
            "not met",
            f"none of {requests.errors:,} chat calls was answered: {_kinds(requests.error_kinds)}",
            "`toolkit scout` tells what is at that address",
        )
    return ("unknown", "no chat call was made", "Name the server: `toolkit report RUN --call URL`")


def stability(requests: RequestOutcomes) -> Judgement:
    """Timeouts and out-of-memory errors of 100 requests; errors that might be either leave it open."""
    if not requests.all:
        return ("unknown", "no request ended", "Load it: `toolkit blast` or `toolkit bench`")
    timeouts = sum(requests.error_kinds.get(kind, 0) for kind in OUT_OF_TIME)
    sure = timeouts + requests.out_of_memory
    perhaps = sum(requests.error_kinds.get(kind, 0) for kind in MAY_BE_MEMORY)
    rate, most = (100 * count / requests.all for count in (sure, sure + perhaps))
    found = (
        f"{timeouts:,} timeouts and {requests.out_of_memory:,} out-of-memory errors of {requests.all:,} requests, "
        f"{rate:.2f} of 100"
    )
    if rate > MOST_FAILURES:
        return ("not met", found, "`toolkit diagnose` tells which bottleneck this is")
    if requests.all < LEAST_REQUESTS:
        more = f"Send {LEAST_REQUESTS} or more, e.g., `toolkit bench HOST --requests 100`"
        return "unknown", f"{found}; too few to judge", more
    if most > MOST_FAILURES:
        return (
            "unknown",
            f"{found}; but {perhaps:,} more failed as an engine out of memory might have: {_kinds(requests.error_kinds)}",
            "Look for `out of memory` in the engine's log; `toolkit serve` records each restart's cause",
        )
    return "met", found, None


def _kinds(kinds: Mapping[str, int]) -> str:
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {kind}" for kind, count in ordered) or "no kind told"


def cost(costs: Costs | None, requests: RequestOutcomes) -> Judgement:
    """The table stands in the report once both prices are told and something was answered."""
    if costs is None and requests.of_several:
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
            f"a million tokens cost {costs.per_million_tokens:.3f} at the rate of this run ({requests.ok:,} answers in "
            f"{span(requests.window_s)}), {costs.api_per_million_tokens:.3f} at the API: "
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


def boundaries(found: Boundaries | None) -> Judgement:
    """What a request can reach beyond the model: other machines, files, code."""
    if found is None:
        return (
            "unknown",
            "how the stack was set up is not recorded here",
            "Serve with `toolkit serve` on the same database: it records its settings",
        )
    faults = [
        *_fault(found.open_engines, "listens to more than its own machine"),
        *([] if found.has_proxy else ["no proxy stands before the engines"]),
        *(["requests may have engines fetch from anywhere"] if found.media_anywhere else []),
        *_fault(found.file_engines, "lets requests read its files"),
        *_fault(found.code_engines, "runs code that came with the weights"),
    ]
    if faults:
        return (
            "not met",
            "; ".join(faults),
            (
                "Bind engines to 127.0.0.1 behind the proxy, name `media_hosts`, and leave out "
                "`allowed-local-media-path` and `trust-remote-code`"
            ),
        )
    if found.media_anywhere is None:
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


def _fault(engines: tuple[str, ...], what: str) -> list[str]:
    return [f"{', '.join(f'`{name}`' for name in engines)} {what}"] if engines else []


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
