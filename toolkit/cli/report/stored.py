"""What a report rests on in the store: a run's hosts, its requests, and what `toolkit serve` recorded. Facts, not yet judged."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toolkit.bench.summary import window_s
from toolkit.cli.named_run import verdicts_of
from toolkit.hosts import is_loopback
from toolkit.records import Event, Run, Tally
from toolkit.store import Store
from toolkit.tuning.criteria import Boundaries, RequestOutcomes, Starts
from toolkit.tuning.lab_report import HostReport, host_report

READY = re.compile(r"\bready after ([\d.]+) s\b")
TTFT = re.compile(r"\bcold TTFT ([\d.]+) ms, warm TTFT ([\d.]+) ms")
MEMORY = re.compile(r"out of memory|\bOOM\b|OutOfMemory|no memory left", re.IGNORECASE)
MOST_EVENTS = 200


def host_reports(store: Store, run: Run, tallies: Sequence[Tally]) -> tuple[HostReport, ...]:
    """Each host's figures and verdicts, in the order in which they answered."""
    shots = store.shots(run.id) if run.verb != "blast" else []
    sent = [shot.sent_at for shot in shots if shot.kind != "warmup" and shot.sent_at]
    # a blast's run begins with its load, a bench's with looks and a warm-up
    began = run.started_at if run.verb == "blast" else min(sent, default=float("inf"))
    seconds = [each.at_s for each in tallies]
    first_s, last_s = int(min(began, *seconds)), max(seconds)
    verdicts = verdicts_of(store, run)
    by_host: dict[tuple[str, str], list[Tally]] = {}
    for each in tallies:
        by_host.setdefault((each.name, each.url), []).append(each)
    found = []
    for key, mine in by_host.items():
        host = host_report(mine, first_s, last_s, verdicts.get(key, ()))
        if run.verb == "bench":
            # a bench tells each host's rate from its first planned send to its last end: so does a report on it
            timed = [each for each in shots if (each.name, each.url) == key]
            length_s = window_s([each for each in timed if each.kind != "warmup"])
            host = replace(host, duration_s=length_s or host.duration_s)
        found.append(host)
    return tuple(found)


def outcomes(
    tallies: Iterable[Tally], hosts: Sequence[HostReport], events: Iterable[Event]
) -> RequestOutcomes:
    """What became of the requests to these hosts."""
    mine = {(host.name, host.url) for host in hosts}
    tallies = [each for each in tallies if (each.name, each.url) in mine]
    kinds: Counter[str] = Counter()
    for each in tallies:
        kinds.update({one.kind: one.count for one in each.error_kinds})
    return RequestOutcomes(
        ok=sum(each.ok for each in tallies),
        errors=sum(each.errors for each in tallies),
        error_kinds=dict(kinds),
        streamed=sum(each.streamed for each in tallies),
        prompt_tokens=sum(each.prompt_tokens for each in tallies),
        output_tokens=sum(each.output_tokens for each in tallies),
        out_of_memory=sum(bool(MEMORY.search(event.text)) for event in events),
        window_s=max(host.duration_s for host in hosts),
        of_several=len(hosts) > 1,
    )


def rejected(store: Store, run: Run) -> int | None:
    """Requests that a proxy's rows of the run's time tell to have been answered 429."""
    found: int | None = None
    end = run.ended_at or float("inf")
    for other in store.runs(verb="proxy", limit=5):
        if other.started_at <= end and (other.ended_at or float("inf")) >= run.started_at:
            rows = store.seen(other.id, from_ts=run.started_at, to_ts=min(end, 1e12), texts=False)
            found = (found or 0) + sum(each.status == 429 for each in rows)
    return found


# --- serve's record ----------------------------------------------------------------------------------


def stack_of(store: Store, run: Run) -> Run | None:
    """The serve that was on when the run began, the last begun of several; one that was killed never said its end."""
    before = [
        each for each in store.runs(verb="serve", limit=50) if each.started_at <= run.started_at
    ]
    for place, each in enumerate(before):
        if each.ended_at is None and place:
            continue  # another one began after it: it was killed
        if each.ended_at is None or each.ended_at >= run.started_at:
            return each
    return None


def events_of(store: Store, run: Run, serve: Run | None, name: str) -> tuple[Event, ...]:
    """The run's own, and the stack's up to the run's end, in the order of time, each once; `name`: of this host alone."""
    found = [event for _, event in store.events(run.id)]
    if name:
        found = [event for event in found if event.name in (None, name)]
    if serve is not None:
        end = run.ended_at or float("inf")
        found += [event for _, event in store.events(serve.id) if event.at <= end]
    # serve tells the board of a restart, too, under the address that clients know and with the engine's name before it
    boards = {(event.at, event.kind, f"{event.name}: {event.text}") for event in found}
    found = [event for event in found if (event.at, event.kind, event.text) not in boards]
    once = {(event.at, event.kind, event.name, event.text): event for event in found}
    return tuple(sorted(once.values(), key=lambda event: event.at))[-MOST_EVENTS:]


def starts_of(events: Iterable[Event], serve: Run | None) -> Starts | None:
    """How long starts took: each engine's first is cold, a later one warm. Of several engines the slowest counts."""
    ready: dict[str | None, list[float]] = {}
    cold_ttft, warm_ttft = [], []
    for event in events:
        if found := READY.search(event.text):
            ready.setdefault(event.name, []).append(float(found[1]))
        if found := TTFT.search(event.text):
            cold_ttft.append(float(found[1]))
            warm_ttft.append(float(found[2]))
    if not ready and serve is None:
        return None
    warm = [each[-1] for each in ready.values() if len(each) > 1]
    return Starts(
        by="`toolkit serve`" if serve else "`toolkit watchdog`",
        cold_s=max((each[0] for each in ready.values()), default=None),
        warm_s=max(warm, default=None),
        cold_ttft_ms=cold_ttft[0] if cold_ttft else None,
        warm_ttft_ms=warm_ttft[0] if warm_ttft else None,
    )


def boundaries_of(serve: Run | None) -> Boundaries | None:
    """How the recorded stack was set up; None: no stack is recorded, or not in a form that is known."""
    stack = serve.plan if serve else {}
    engines, proxy = stack.get("engines"), stack.get("proxy")
    if not isinstance(engines, list) or not engines:
        return None
    open_engines, file_engines, code_engines = [], [], []
    for engine in engines:
        if not isinstance(engine, dict):
            continue
        name, flags = str(engine.get("name", "engine")), engine.get("flags", {})
        pairs = (
            flags.items() if isinstance(flags, dict) else [one for one in flags if len(one) == 2]
        )
        told = {str(key).lstrip("-").replace("_", "-"): value for key, value in pairs}
        if not is_loopback(str(engine.get("host", "127.0.0.1")).strip("[]")):
            open_engines.append(name)
        if told.get("allowed-local-media-path"):
            file_engines.append(name)
        if told.get("trust-remote-code") not in (None, False):
            code_engines.append(name)
    media = proxy.get("media_hosts") if isinstance(proxy, dict) else ()
    return Boundaries(
        open_engines=tuple(open_engines),
        has_proxy=isinstance(proxy, dict),
        media_anywhere="*" in media if isinstance(media, list | tuple) else None,
        file_engines=tuple(file_engines),
        code_engines=tuple(code_engines),
    )
