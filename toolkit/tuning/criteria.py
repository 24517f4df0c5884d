"""Does a run pass the lab? Seven criteria of a course on vLLM (week 11), each met, not met or unknown, with what says so.

Unknown is an answer: it names what would settle it. Here is decided which outcome it is; what the outcomes say stands in
catalog/criteria.toml. Facts in, criteria out; it reads nothing. Of a request log, whose lines come as
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
from toolkit.tuning.cells import Cell, summed
from toolkit.units import counted, milliseconds, share, span

Status = Literal["met", "not met", "unknown"]
WORST_FIRST: tuple[Status, ...] = ("not met", "unknown", "met")
MOST_FAILURES = 2.0
LEAST_REQUESTS = 100
OUT_OF_TIME = ("timeout",)
MAY_BE_MEMORY = ("http_500", "http_503", "cut", "connect", "stream_error")
"""Kinds of errors that an engine out of memory leaves, as others do."""
READY = re.compile(r"\bready after ([\d.]+) s\b")
TTFT = re.compile(r"\bcold TTFT ([\d.]+) ms, warm TTFT ([\d.]+) ms")
MEMORY = re.compile(r"out of memory|\bOOM\b|OutOfMemory|no memory left", re.IGNORECASE)
"""What `toolkit serve` and `toolkit watchdog` write of a start, of a warm-up and of an engine's end."""


Outcome = tuple[str, Mapping[str, object]]
"""What became of a criterion: its name in the catalog's table, and what the sentence there is filled in with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """One line of the lab's list; the fields are keys of `toolkit report --json`."""

    code: str
    title: str
    asks: str
    """What it takes, in the course's sense."""
    status: Status
    evidence: str
    """What says so, in a sentence."""
    settle: str | None
    """What would settle it, where it is unknown; or what would mend it, where it is not met."""


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
    lab: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[tuple[str, Cell]],
    *,
    events: Sequence[Event] = (),
    serve: Run | None = None,
    call: Outcome | None = None,
    costs: Costs | None = None,
    log: "RequestLog | None" = None,
    rejected: int | None = None,
) -> tuple[Criterion, ...]:
    """All seven, in the course's order. None: nobody recorded it.

    `lab` is the catalog's table `criteria`. `hosts`: each name with what it answered in the whole run; `events` are the run's and
    the stack's; `serve` is what `toolkit serve` recorded of the stack; `call` is what came of a call by the official client;
    `rejected`: how many requests a proxy answered with 429, by the store's rows.
    """

    def criterion(code: str, outcome: Outcome) -> Criterion:
        name, facts = outcome
        row, found = lab[code], lab[code][name]
        settle = found.get("settle", row.get("settle")) if found["status"] != "met" else None
        return Criterion(
            code=code,
            title=row["title"],
            asks=row["asks"],
            status=found["status"],
            evidence=found["evidence"].format(**facts),
            settle=settle and settle.format(**facts),
        )

    def worst(code: str, judge: Callable[[Cell, Iterable[Event]], Outcome]) -> Criterion:
        """Of several hosts the one that fares worst: thousands of good answers of one must not hide another's failures."""
        if len(hosts) > 1:
            judged = {}
            for name, cell in hosts:
                own = [each for each in events if each.name in (None, name)]
                judged[name] = criterion(code, judge(cell, own))
            name = min(judged, key=lambda each: WORST_FIRST.index(judged[each].status))
            if judged[name].status != "met":
                return replace(judged[name], evidence=f"`{name}`: {judged[name].evidence}")
        return criterion(code, judge(summed(cell for _, cell in hosts), events))

    return (
        criterion("model_loading", model_loading(events, serve)),
        criterion("api_compatibility", call) if call else worst("api_compatibility", compatibility),
        worst("stability", stability),
        criterion("cost", cost(costs, hosts)),
        criterion("observability", observability(log)),
        criterion("boundaries", boundaries(serve)),
        criterion("admission", admission(log, rejected)),
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


def model_loading(events: Iterable[Event], serve: Run | None) -> Outcome:
    """Each engine's first start is cold, a later one warm: both times are to be recorded. Of several engines the slowest counts."""
    ready: dict[str | None, list[float]] = {}
    ttft = None
    for event in events:
        if found := READY.search(event.text):
            ready.setdefault(event.name, []).append(float(found[1]))
        ttft = ttft or TTFT.search(event.text)
    if not ready and serve is None:
        return "no_start", {}
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
    missing = " and no ".join(name for name, value in times.items() if value is None)
    by = "`toolkit serve`" if serve else "`toolkit watchdog`"
    facts = {"recorded": ", ".join(known) or "no time", "by": by}
    return "one_missing" if missing else "both", facts | {"missing": missing}


def compatibility(whole: Cell, _: Iterable[Event]) -> Outcome:
    """By what was answered; the official client's own word goes before it."""
    if whole.ok:
        facts = {"ok": whole.ok, "streamed": whole.streamed, "whole": whole.ok - whole.streamed}
        return "answered", facts
    if whole.errors:
        return "none_answered", {"errors": whole.errors, "kinds": whole.kinds_in_words}
    return "no_call", {}


def stability(whole: Cell, events: Iterable[Event]) -> Outcome:
    """Timeouts and out-of-memory errors of 100 requests; errors that might be either leave it open."""
    if not whole.ended:
        return "no_request", {}
    timeouts = sum(whole.error_kinds[kind] for kind in OUT_OF_TIME)
    out_of_memory = sum(bool(MEMORY.search(event.text)) for event in events)
    sure = timeouts + out_of_memory
    perhaps = sum(whole.error_kinds[kind] for kind in MAY_BE_MEMORY)
    rate, most = (100 * count / whole.ended for count in (sure, sure + perhaps))
    counts = f"{timeouts:,} timeouts and {out_of_memory:,} out-of-memory errors of {whole.ended:,} requests"
    facts = {"counts": f"{counts}, {rate:.2f} of 100", "least": LEAST_REQUESTS}
    if rate > MOST_FAILURES:
        return "too_many", facts
    if whole.ended < LEAST_REQUESTS:
        return "too_few", facts
    if most > MOST_FAILURES:
        return "perhaps_too_many", facts | {"perhaps": perhaps, "kinds": whole.kinds_in_words}
    return "held", facts


def cost(costs: Costs | None, hosts: Sequence[tuple[str, Cell]]) -> Outcome:
    """The table stands in the report once both prices are given and something was answered."""
    if costs is None:
        return "several_hosts" if len(hosts) > 1 else "no_price", {
            "missing": "the price of a GPU hour"
        }
    own, api, whole = costs.per_million_tokens, costs.api_per_million_tokens, hosts[0][1]
    if api is None:
        return "no_price", {"missing": "an API's price"}
    if own is None:
        return "no_answer", {"hour": costs.gpu_hour * costs.gpus}
    return "compared", {
        "own": own,
        "api": api,
        "ok": whole.ok,
        "length": span(whole.elapsed_s),
        "cheaper": "the GPU" if own < api else "the API",
    }


def observability(log: RequestLog | None) -> Outcome:
    """Each line of the request log has id, model, tokens and latency; a request that failed has no tokens."""
    if log is None:
        return "no_log", {}
    lacking = ", ".join(f"{name} ({count:,})" for name, count in sorted(log.missing.items()))
    facts = {"name": log.name, "requests": log.requests, "lacking": lacking}
    return "empty" if not log.requests else "lacking" if lacking else "whole", facts


def boundaries(serve: Run | None) -> Outcome:
    """What a request can reach beyond the model, by the recorded settings: other machines, files, code."""
    stack = serve.plan if serve else {}
    engines, proxy = stack.get("engines"), stack.get("proxy")
    if not isinstance(engines, list) or not engines:
        return "no_stack", {}
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
        return "open", {"faults": "; ".join(faults)}
    return "closed" if isinstance(media, list | tuple) else "fetches_unknown", {}


def admission(log: RequestLog | None, rejected: int | None) -> Outcome:
    """One team's crowd meets a queue of its own, others are served meanwhile, and each rejection is written down."""
    if log is None:
        seen = f"; {rejected:,} requests were answered 429, whoever sent them" if rejected else ""
        return "no_log", {"seen": seen}
    count, without = log.reasons.total(), log.without_reason
    if without:
        facts = {"name": log.name, "without": without, "turned_away": count + without}
        return "without_reason", facts
    if not count:
        return "no_rejection", {"name": log.name}
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in log.reasons.most_common())
    facts = {"rejections": counted(count, "rejection"), "reasons": reasons}
    if log.nameless_rejections or not log.own_rejections:
        return "shared_queue", facts
    beside = log.beside_rejections()
    served = {team for team, is_ok in beside if is_ok}
    if not served:
        return "nobody_beside", facts
    for key, names in (("rejected", log.rejected_teams), ("served", served)):
        listed = ", ".join(f"`{name}`" for name in sorted(names))
        facts[key] = f"team{'s' * (len(names) > 1)} {listed}"
    facts["share"] = share(sum(is_ok for _, is_ok in beside) / len(beside))
    return "isolated", facts | {"rejections": counted(log.own_rejections, "rejection")}
