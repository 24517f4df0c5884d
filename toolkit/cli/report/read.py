"""What a report rests on, read from the store, a request log and one call: facts, not yet judged."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.bench.summary import window_s
from toolkit.cli.named_run import run_of
from toolkit.cli.places import command_on
from toolkit.cli.report.options import ReportOptions
from toolkit.cli.waiting import waiting_for
from toolkit.errors import ToolkitError
from toolkit.records import Event, Run, Tally, Verdict
from toolkit.store import Store
from toolkit.tuning.criteria import (
    Boundaries,
    ClientCall,
    Costs,
    LogFacts,
    RequestOutcomes,
    Starts,
    criteria,
    log_facts,
)
from toolkit.tuning.lab_report import HostReport, Report, host_report, tallied

READY = re.compile(r"\bready after ([\d.]+) s\b")
TTFT = re.compile(r"\bcold TTFT ([\d.]+) ms, warm TTFT ([\d.]+) ms")
MEMORY = re.compile(r"out of memory|\bOOM\b|OutOfMemory|no memory left", re.IGNORECASE)
LOOPBACK = ("127.", "localhost", "::1", "[::1]")
MOST_EVENTS = 200


def report_of(options: ReportOptions) -> Report:
    """All of it. Raises ToolkitError where the run holds nothing to report on."""
    run_id, _, name = options.run.partition(":")
    with waiting_for("Reading"), Store.open_readonly(options.database) as store:
        run = run_of(store, run_id, options.database)
        tallies = _tallies(store, run, name)
        if not tallies:
            raise _nothing(run, name, options.database)
        hosts = _hosts(store, run, tallies)
        serve = _serve_run(store, run)
        events = _events(store, run, serve, name)
        requests = _requests(tallies, hosts, events)
        rejected = _rejected(store, run)
    # what several hosts answered together is no one GPU's work
    costs = _costs(options, requests) if len(hosts) == 1 else None
    found = criteria(
        requests,
        _by_host(tallies, hosts, events),
        starts=starts_of(events, serve),
        call=_call(options),
        costs=costs,
        log=_log(options.log),
        stack=boundaries_of(serve),
        rejected=rejected,
    )
    return Report(
        run=run.id,
        verb=run.verb,
        started_at=run.started_at,
        ended_at=run.ended_at,
        told=_told(run),
        hosts=hosts,
        criteria=found,
        costs=costs,
        events=events,
        notes=tuple(_notes(run, hosts)),
    )


def _nothing(run: Run, name: str, database: Path) -> ToolkitError:
    if name:
        return ToolkitError(
            f"run `{run.id}` has no host `{name}` that was asked anything",
            f"`{command_on(database, 'report', run.id)}` reports on all of its hosts",
        )
    return ToolkitError(
        f"run `{run.id}`, of `toolkit {run.verb}`, holds no timed request",
        "Report on a blast or a bench; `toolkit runs` lists them, `toolkit sweep --show` shows a sweep",
    )


def _tallies(store: Store, run: Run, name: str) -> list[Tally]:
    found = store.tallies(run.id, kind="ranked", name=name or None)
    return found or tallied(store.shots(run.id, name=name or None))


def _hosts(store: Store, run: Run, tallies: Sequence[Tally]) -> tuple[HostReport, ...]:
    first_s, last_s = _first_second(store, run, tallies), max(each.at_s for each in tallies)
    by_host: dict[tuple[str, str], list[Tally]] = {}
    for each in tallies:
        by_host.setdefault((each.name, each.url), []).append(each)
    verdicts = _verdicts(store, run, last_s - first_s + 1)
    told = [
        host_report(mine, first_s, last_s, verdicts.get(key, ())) for key, mine in by_host.items()
    ]
    return tuple(_over_its_own_time(store, run, each) for each in told)


def _over_its_own_time(store: Store, run: Run, host: HostReport) -> HostReport:
    """A bench tells each host's rate from its first planned send to its last end: so does a report on it, to the same figure."""
    if run.verb != "bench":
        return host
    shots = [each for each in store.shots(run.id, name=host.name) if each.url == host.url]
    length_s = window_s([each for each in shots if each.kind != "warmup"])
    return replace(host, duration_s=length_s or host.duration_s)


def _first_second(store: Store, run: Run, tallies: Sequence[Tally]) -> int:
    """Of the load: a blast's run begins with it, a bench's with looks and a warm-up."""
    ended = min(each.at_s for each in tallies)
    if run.verb == "blast":
        return min(int(run.started_at), ended)
    sent = [shot.sent_at for shot in store.shots(run.id) if shot.kind != "warmup" and shot.sent_at]
    return min(int(min(sent, default=ended)), ended)


def _verdicts(
    store: Store, run: Run, length_s: int
) -> Mapping[tuple[str, str], tuple[Verdict, ...]]:
    """A bench's stand in the store; a blast's are judged whenever somebody looks, over all of it here."""
    if run.verb != "blast":
        return store.verdicts(run.id)
    from toolkit.board.feed import Feed

    standings = Feed(store, run).board(window_s=length_s).standings
    return {(one.name, one.url): one.verdicts for one in standings}


def _told(run: Run) -> str:
    """The plan in a few words, of what its settings tell."""
    told = run.plan
    words = []
    if told.get("profile"):
        words.append(f"the prompts of {told['profile']}")
    if isinstance(told.get("users"), int):
        words.append(f"{told['users']:,} users")
    if told.get("concurrency"):
        words.append(f"{told['concurrency']} requests at once")
    return ", ".join(words)


def _notes(run: Run, hosts: Sequence[HostReport]) -> Iterator[str]:
    if run.client_ok is False:
        yield "The measuring machine was the limit for a part of the run: figures describe it, too."
    told = run.plan
    if told.get("non_neutral"):
        yield f"Not neutral: {str(told['non_neutral']).replace('`', '')}; the load took CPU from what it measured."
    if run.ended_at is None:
        yield "The run never said that it ended: it is still on, or was cut off."
    if len(hosts) > 1:
        yield (
            f"Of the {len(hosts)} hosts the criteria name the one that fares worst; cost is told of one host alone: "
            "`RUN:HOST`."
        )


# --- requests ------------------------------------------------------------------------------------------


def _requests(
    tallies: Sequence[Tally], hosts: Sequence[HostReport], events: Sequence[Event]
) -> RequestOutcomes:
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


def _by_host(
    tallies: Sequence[Tally], hosts: Sequence[HostReport], events: Sequence[Event]
) -> dict[str, RequestOutcomes]:
    found = {}
    for host in hosts:
        mine = [each for each in tallies if (each.name, each.url) == (host.name, host.url)]
        told = [event for event in events if event.name in (None, host.name)]
        found[host.name] = _requests(mine, [host], told)
    return found


def _costs(options: ReportOptions, requests: RequestOutcomes) -> Costs | None:
    if options.gpu_hour is None:
        return None
    from toolkit.plan.capacity import Prices, cost

    into, out = options.api_price or (None, None)
    prompt = (requests.prompt_tokens or 0) / requests.ok if requests.ok else None
    output = (requests.output_tokens or 0) / requests.ok if requests.ok else None
    found = cost(
        Prices(gpu_hour=options.gpu_hour, api_input=into, api_output=out),
        gpus=options.gpus,
        requests_per_s=requests.ok / requests.window_s if requests.ok else None,
        prompt_tokens=prompt,
        output_tokens=output,
        request_tokens=(prompt or 0) + (output or 0) or 1.0,
    )
    if found is None:
        return None
    return Costs(
        gpu_hour=options.gpu_hour,
        gpus=options.gpus,
        per_million_tokens=found.per_million_tokens,
        # of no answer the mix of tokens is unknown, and so the API's price for it; one is told all the same
        api_per_million_tokens=found.api_per_million_tokens if requests.ok else out,
        per_thousand_requests=found.per_thousand_requests,
        api_per_thousand_requests=found.api_per_thousand_requests,
        even_rps=found.even_rps,
    )


def _rejected(store: Store, run: Run) -> int | None:
    """Requests that a proxy's rows of the run's time tell to have been answered 429."""
    found: int | None = None
    end = run.ended_at or float("inf")
    for other in store.runs(verb="proxy", limit=5):
        if other.started_at <= end and (other.ended_at or float("inf")) >= run.started_at:
            rows = store.seen(other.id, from_ts=run.started_at, to_ts=min(end, 1e12), texts=False)
            found = (found or 0) + sum(each.status == 429 for each in rows)
    return found


# --- serve's record ----------------------------------------------------------------------------------


def _serve_run(store: Store, run: Run) -> Run | None:
    """The stack that was on when the run began, the last begun of several; one that was killed never said its end."""
    before = [
        each for each in store.runs(verb="serve", limit=50) if each.started_at <= run.started_at
    ]
    for place, each in enumerate(before):
        if each.ended_at is None and place:
            continue  # another one began after it: it was killed
        if each.ended_at is None or each.ended_at >= run.started_at:
            return each
    return None


def _events(store: Store, run: Run, serve: Run | None, name: str) -> tuple[Event, ...]:
    """The run's own, and the stack's up to the run's end, in the order of time, each once."""
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
    try:
        stack = json.loads(serve.settings) if serve else None
    except ValueError:
        return None
    engines = stack.get("engines") if isinstance(stack, dict) else None
    if not isinstance(stack, dict) or not isinstance(engines, list) or not engines:
        return None
    proxy = stack.get("proxy")
    media = proxy.get("media_hosts") if isinstance(proxy, dict) else ()
    return Boundaries(
        open_engines=_names(engines, lambda one: not _is_own(str(one.get("host", "127.0.0.1")))),
        has_proxy=isinstance(proxy, dict),
        media_anywhere="*" in media if isinstance(media, list | tuple) else None,
        file_engines=_names(engines, lambda one: bool(_flag(one, "allowed-local-media-path"))),
        code_engines=_names(
            engines, lambda one: _flag(one, "trust-remote-code") not in (None, False)
        ),
    )


def _names(engines: Sequence[Any], is_so: Any) -> tuple[str, ...]:
    return tuple(
        str(one.get("name", "engine")) for one in engines if isinstance(one, dict) and is_so(one)
    )


def _is_own(host: str) -> bool:
    return host.startswith(LOOPBACK)


def _flag(engine: Mapping[str, Any], name: str) -> Any:
    flags = engine.get("flags", {})
    pairs = flags.items() if isinstance(flags, dict) else [each for each in flags if len(each) == 2]
    return next(
        (value for key, value in pairs if str(key).lstrip("-").replace("_", "-") == name), None
    )


# --- a log, and a call ---------------------------------------------------------------------------------


def _log(word: str | None) -> LogFacts | None:
    if word is None:
        return None
    name = "standard input" if word == "-" else word
    try:
        with waiting_for("Reading the log"):
            if word == "-":
                return log_facts(name, _objects(sys.stdin.buffer, name))
            with Path(word).open("rb") as file:
                return log_facts(name, _objects(file, name))
    except OSError as error:
        reason = (error.strerror or "no reason given").lower()
        raise ToolkitError(
            f"`{word}` cannot be read: {reason}", "Name the file of `toolkit proxy --log`"
        ) from error


def _objects(lines: Iterable[bytes], name: str) -> Iterator[dict[str, Any]]:
    """A line an object; a last one that is torn is left out."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                return
            raise ToolkitError(
                f"`{name}` line {number} is not JSON", "Give a log of `toolkit proxy --log FILE`"
            ) from error
        if isinstance(told, dict):
            yield told


def _call(options: ReportOptions) -> ClientCall | None:
    if options.call is None:
        return None
    from toolkit.cli.report.call import called

    return called(options.call, options.call_key_env)
