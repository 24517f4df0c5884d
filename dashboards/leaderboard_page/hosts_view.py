"""What scout, bench and capture know of the hosts: the whole page before the first blast, and `?view=hosts` from then on.

`known` reads the store, at most once in KEEP_S for all viewers; all else draws what was read. A bench is ranked by requests/s.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple

from leaderboard_page.address import Address, link, with_view
from leaderboard_page.badges import MOST_OPEN, badge, evidence, icon, shown_verdicts
from leaderboard_page.sections import captured_figures, feeding, rows
from leaderboard_page.source import DatabaseSource, ReadResult, error_sentence
from leaderboard_page.strip import fact
from toolkit.bench.contrast import tied
from toolkit.bench.evidence import over_at
from toolkit.bench.summary import HostSummary, summary
from toolkit.board.inventory import Inventory, inventory
from toolkit.board.standings import reasons
from toolkit.cli.runs import Listed, listed
from toolkit.errors import ToolkitError
from toolkit.records import RequestRecord, Run, Sighting, Verdict
from toolkit.report.html import Markup, tag
from toolkit.store import Store
from toolkit.units import (
    UNKNOWN,
    counted,
    day,
    milliseconds,
    rate,
    share,
    span,
    spoken_list,
    time_of_day,
    whole,
)

KEEP_S = 1.5
"""A viewer who looks every 2 s gets a new reading, and fifty viewers one of the same."""
BENCH_KEEP_S = 4.0
KEEP_PER_REQUEST_S = 0.0005
"""While a bench runs, all its requests are counted anew: 10,000 take a quarter of a second, a twentieth of the time."""
NEWEST_RUNS = 10
"""Looked through for one that had begun by a moment."""
MOST_NAMES = 4
OLD_S = 600.0
"""A host that was seen so much earlier than others was not looked at with them; the table says when it was."""
DAY_S = 86_400.0
LEAST_TO_DIFFER = 3
"""Of fewer hosts none can be said to differ from the most."""
NO_FAULTS = frozenset({"gateway", "response_cache", "metrics_open"})
"""Findings that say what a host is, and not what is wrong with it."""


# --- what is known --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What one reading of the database found."""

    inventory: Inventory
    newest: tuple[Sighting, ...]
    """Each host's last snapshot, by name."""
    with_settings: Mapping[str, Sighting]
    """By name: the last one with settings, as that of a host that is down has none."""
    bench: Listed | None
    ranking: tuple[HostSummary, ...]
    """Of the newest bench, the most requests/s first."""
    captured: Mapping[str, Any] | None
    """What the newest capture says of itself."""


def known(source: DatabaseSource, store: Store, until: float) -> Known:
    """Read what was stored up to a moment: the newest snapshot of each host, the newest bench, the newest capture."""
    # of one name at several addresses the one seen last
    newest = {seen.name: seen for seen in sorted(store.newest_sightings(until), key=_at)}
    with_settings = {
        seen.name: seen for seen in sorted(store.newest_sightings(until, telling=True), key=_at)
    }
    bench, ranking, run = None, (), newest_bench(store, until)
    if run is not None:
        (bench,) = listed(store, [run])
        keep_s = max(BENCH_KEEP_S, KEEP_PER_REQUEST_S * bench.requests)
        bench, ranking = source.once(
            ("bench so far", run.id, until),
            (run.ended_at, bench.requests),
            partial(_bench_until, store, run, bench, until),
            keep_s=keep_s if run.ended_at is None else 0.0,
        )
    return Known(
        inventory=inventory(store, until),
        newest=tuple(newest[name] for name in sorted(newest)),
        with_settings=with_settings,
        bench=bench,
        ranking=ranking,
        captured=newest_capture(store, until, until),
    )


def newest_bench(store: Store, begun_by: float) -> Run | None:
    """The newest bench that had begun by a moment."""
    benches = store.runs(verb="bench", limit=NEWEST_RUNS)
    return next((run for run in benches if run.started_at <= begun_by), None)


def newest_capture(store: Store, begun_by: float, until: float) -> Mapping[str, Any] | None:
    """What the newest capture says of itself that had begun by a moment, and saw nothing later than `until`."""
    for run in store.runs(verb="capture", limit=NEWEST_RUNS):
        found = store.capture(run.id) if run.started_at <= begun_by else None
        if found and (found.get("to_ts") or 0) <= until:
            return found
    return None


def _at(seen: Sighting) -> float:
    return seen.at


def _bench_until(
    store: Store, run: Run, bench: Listed, until: float
) -> tuple[Listed, tuple[HostSummary, ...]]:
    """A bench and its ranking as they stood at a moment: what it was answered since is left out, and its verdicts came at its end."""
    shots, verdicts = store.shots(run.id), store.verdicts(run.id)
    if until < (run.ended_at or inf):
        shots, verdicts = [shot for shot in shots if over_at(shot) < until], {}
        run = replace(run, ended_at=None)
        bench = replace(
            bench,
            state="cut" if bench.state == "cut" else "on",
            requests=sum(shot.kind != "warmup" for shot in shots),
            client_ok=None,
        )
    return bench, _ranking(shots, run, verdicts)


def _ranking(
    shots: Sequence[RequestRecord],
    run: Run,
    verdicts: Mapping[tuple[str, str], tuple[Verdict, ...]],
) -> tuple[HostSummary, ...]:
    by_host: dict[tuple[str, str], dict[int | None, list[RequestRecord]]] = {}
    by_name: dict[str, list[RequestRecord]] = {}
    for shot in shots:
        by_name.setdefault(shot.name, []).append(shot)
        if shot.kind != "warmup":
            by_host.setdefault((shot.name, shot.url), {}).setdefault(shot.concurrency, []).append(
                shot
            )
    ties = tied(by_name) if run.ended_at is not None else {}
    best = []
    for (name, url), levels in by_host.items():
        figures = [
            summary(
                of_level,
                name=name,
                url=url,
                run=run.id,
                verdicts=verdicts.get((name, url), ()),
                concurrency=level,
            )
            for level, of_level in levels.items()
        ]
        # of a sweep the level at which a host answered the most
        shown = max(figures, key=lambda one: one.rps or 0.0)
        best.append(replace(shown, tied_with=ties.get(name, ())))
    return tuple(sorted(best, key=lambda one: (-(one.rps or 0.0), one.name)))


# --- the page -------------------------------------------------------------------------------------


def hosts_view(
    source: DatabaseSource,
    found: ReadResult,
    address: Address,
    name: str,
    *,
    now: float,
    viewers: int,
) -> bytes:
    """The whole page; while the board of any run is frozen it shows nothing that came after that."""
    run, store = found.feed and found.feed.run, source.store
    if store is None:
        return feeding(found.trouble).to_bytes()
    try:
        until = source.public_until(now)
        key = ("hosts", run and run.id, until)
        seen = source.once(key, now, lambda: known(source, store, until), keep_s=KEEP_S)
    except ToolkitError as error:
        return feeding(error_sentence(error)).to_bytes()
    if not seen.inventory.words and run is None:
        return feeding(found.trouble).to_bytes()
    drawn = source.once((*key, "drawn"), seen, lambda: _body(seen).to_bytes())
    head = _head(seen, found, name, now=now, viewers=viewers)
    return with_view(head.to_bytes(), address) + drawn


def _head(seen: Known, found: ReadResult, name: str, *, now: float, viewers: int) -> Markup:
    """How far the preparation is, which command comes next, and the few figures that matter most."""
    there, run = seen.inventory, found.feed and found.feed.run
    last_at = max((each.at for each in seen.newest), default=None)
    when: object = "none yet"
    if last_at is not None:
        age_s = max(0.0, now - last_at)
        ago = f" {span(age_s)} ago" if age_s < DAY_S else f" {day(last_at)}"
        when = (time_of_day(last_at), tag("small", ago))
    phase = (
        "before the blast" if run is None else "blast is over" if run.ended_at else "blast is on"
    )
    facts = [
        ("phase", "phase", phase),
        ("snapshots", "snapshots", f"{there.snapshots:,}"),
        ("seen", "last snapshot", when),
        ("benches", "benches", f"{there.benches:,}"),
        ("captures", "captures", f"{there.captures:,}"),
        ("viewers", "viewers", viewers),
    ]
    trouble = tag("p", icon("warning"), found.trouble, class_="trouble", role="status")
    strip = tag(
        "header",
        tag("h1", name if run is None else f"{name}: hosts", class_="title"),
        tag("ul", [fact(*each) for each in facts], class_="facts"),
        trouble if found.trouble else None,
        class_="strip",
    )

    if run is not None:
        since = f"since {time_of_day(run.started_at)}"
        first = ("leader", phase, tag("a", "Leaderboard", href=link(view="")), since)
    else:
        command = tag("code", f"toolkit {' '.join(there.next_step)}")
        turns = (
            " and this page turns into the leaderboard" if there.next_step[0] == "blast" else None
        )
        first = ("leader", "next step", there.next_step[0], (command, turns))
    cards = tag("ul", fact(*first), [fact(*card) for card in _cards(seen)], class_="kpis")
    return Markup.joined((strip, cards))


def _cards(seen: Known) -> Iterator[tuple[str, str, object, object]]:
    down = [each.name for each in seen.newest if each.status == "down"]
    up = f"{len(seen.newest) - len(down)} of {len(seen.newest)}" if seen.newest else UNKNOWN
    below = (
        f"down: {spoken_list(down, MOST_NAMES)}"
        if down
        else "all answer"
        if seen.newest
        else "no snapshot yet"
    )
    yield "up", "hosts up", up, below

    with_findings = [each for each in seen.newest if each.findings]
    count = sum(len(each.findings) for each in with_findings)
    where = f"at {counted(len(with_findings), 'host')}" if count else "nothing stands out"
    findings = (f"{count:,}", where) if seen.newest else (UNKNOWN, "no snapshot yet")
    yield "found", "findings", *findings

    best = next((one for one in seen.ranking if one.ok and not _explained(one)), None)
    first = (UNKNOWN, "no bench yet" if seen.bench is None else "no host is clean")
    if best is not None:
        first = tag("span", best.name, class_="name"), f"{rate(best.rps)} requests/s"
    is_judged = seen.bench is None or seen.bench.state == "ended"
    what = "best honest host of the bench" if is_judged else "fastest in the bench, not judged yet"
    yield "best", what, *first

    sent = (UNKNOWN, "no capture yet")
    if seen.captured is not None:
        repeats = f"{share(seen.captured.get('repeat_share'))} repeats"
        sent = f"{seen.captured.get('requests') or 0:,}", repeats
    yield "captured", "requests captured", *sent


def _explained(one: HostSummary) -> bool:
    """Whether a host's place is not its engine's own work, or nobody knows."""
    return bool(reasons(one.verdicts)) or one.is_failing


def _body(seen: Known) -> Markup:
    pair = tag("div", _bench(seen), _workload(seen.captured), class_="pair")
    return tag("div", _hosts(seen), pair, id="before")


# --- hosts ----------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the table of hosts."""

    key: str
    title: str
    written: Callable[[Sighting], str | None]
    """None: unknown."""
    is_setting: bool = True
    """Somebody chose it: a host that differs from most is marked."""


def _number(name: str) -> Callable[[Sighting], str | None]:
    def written(seen: Sighting) -> str | None:
        value = getattr(seen, name)
        return None if value is None else f"{value:,}"

    return written


def _engine(seen: Sighting) -> str | None:
    return " ".join(part for part in (seen.engine, seen.version) if part) or None


def _model(seen: Sighting) -> str | None:
    more = len(seen.models) - 1
    return seen.model and seen.model + (f" +{more}" if more > 0 else "")


def _load(seen: Sighting) -> str | None:
    if seen.running is None:
        return None
    return f"{whole(seen.running)} / {whole(seen.waiting or 0)}"


COLUMNS = (
    Column("engine", "engine", _engine),
    Column("model", "model", _model),
    Column("length", "max model length", _number("max_model_len")),
    Column(
        "memory",
        "GPU memory utilization",
        lambda seen: (
            None if seen.gpu_memory_utilization is None else f"{seen.gpu_memory_utilization:g}"
        ),
    ),
    Column("blocks", "KV blocks", _number("num_gpu_blocks")),
    Column("tokens", "KV tokens", _number("kv_cache_tokens")),
    Column("dtype", "KV cache dtype", lambda seen: seen.cache_dtype),
    Column(
        "prefix",
        "prefix caching",
        lambda seen: (
            None if seen.prefix_caching is None else "on" if seen.prefix_caching else "off"
        ),
    ),
    Column("load", "running / waiting", _load, is_setting=False),
    Column(
        "kv",
        "KV cache full",
        lambda seen: None if seen.kv_cache_usage is None else share(seen.kv_cache_usage),
        is_setting=False,
    ),
)


def _absent(what: str, command: str, does: str) -> Markup:
    return tag("p", f"No {what} yet: ", tag("code", command), does, class_="nothing")


def _hosts(seen: Known) -> Markup:
    """Each host's settings as scout last saw them, what is remarkable, and what the bench found."""
    title = tag("h2", "Hosts")
    if not seen.newest:
        words = "toolkit scout hosts.txt --watch", " shows each host's settings here, live."
        return tag("section", title, _absent("snapshot", *words), class_="hosts")

    with_settings = [seen.with_settings.get(each.name, each) for each in seen.newest]
    usual: dict[str, str] = {}
    for column in COLUMNS:
        values = Counter(
            value for one in with_settings if (value := column.written(one)) is not None
        )
        if column.is_setting and values:
            value, count = values.most_common(1)[0]
            if len(with_settings) >= LEAST_TO_DIFFER and 2 * count > values.total():
                usual[column.key] = value

    answering = sum(each.status != "down" for each in seen.newest)
    grouped: dict[tuple[str, str], list[str]] = {}
    for each in seen.newest:
        for finding in each.findings:
            grouped.setdefault((finding.code, finding.text), []).append(each.name)
    verdicts = {one.name: shown_verdicts(one) for one in seen.ranking}
    last_at = max(each.at for each in seen.newest)
    lines = []
    for each, settings in zip(seen.newest, with_settings, strict=True):
        badges = [
            finding_badge(finding.code, finding.text)
            for finding in each.findings
            # what holds for most stands once, below
            if answering < LEAST_TO_DIFFER
            or 2 * len(grouped[finding.code, finding.text]) <= answering
        ]
        badges += [badge(verdict) for verdict in verdicts.get(each.name, ())]
        if each.status != "ok":
            word = each.status.replace("_", " ")
            tone = "foul" if each.status == "down" else "warn"
            badges.insert(
                0, tag("span", icon("warning"), word, class_=f"badge {tone}", data_code=each.status)
            )
        age = f"last snapshot {time_of_day(each.at)}" if last_at - each.at > OLD_S else None
        name = (
            tag("span", each.name, class_="name", title=each.url),
            tag("span", badges, class_="badges") if badges else None,
            [tag("span", words, class_="note") for words in (each.error, age) if words],
        )
        cells = []
        for column in COLUMNS:
            value = column.written(settings if column.is_setting else each)
            usual_value = usual.get(column.key)
            is_odd = None not in (value, usual_value) and value != usual_value
            cells.append(
                tag(
                    "td",
                    UNKNOWN if value is None else value,
                    class_=f"c-{column.key}" + (" odd" if is_odd else ""),
                    title=f"Most hosts: {usual_value}" if is_odd else None,
                    data_title=column.title,
                )
            )
        lines.append(
            tag(
                "tr",
                tag("th", name, scope="row"),
                cells,
                data_key=f"host/{each.name}",
                class_="dead" if each.status == "down" else None,
            )
        )
    found = [
        tag(
            "li",
            tag(
                "b",
                "all that answer"
                if len(names) == answering > 1
                else spoken_list(names, MOST_NAMES),
                class_="name",
            ),
            finding_badge(code, text),
            tag("span", text, class_="because"),
            data_key=f"{code}/{text}",
        )
        for (code, text), names in grouped.items()
    ]
    heads = [
        tag("th", "host", scope="col"),
        *(tag("th", column.title, scope="col") for column in COLUMNS),
    ]
    table = tag(
        "table", tag("thead", tag("tr", heads)), tag("tbody", lines), class_="plain settings"
    )
    marked = "Settings as each host last reported them; what differs from most hosts is marked."
    return tag(
        "section",
        title,
        tag("div", table, class_="wide"),
        tag("p", marked if usual else None, class_="nothing"),
        tag(
            "details",
            tag("summary", "Findings"),
            tag("ul", found),
            id="findings",
            class_="evidence",
            open=len(found) <= MOST_OPEN,
        )
        if found
        else None,
        class_="hosts",
    )


def finding_badge(code: str, text: str) -> Markup:
    """One of scout's findings in a word or two."""
    sign, tone = ("info", "info") if code in NO_FAULTS else ("warning", "warn")
    words = code.replace("_", " ").replace("kv", "KV").replace("gpu", "GPU")
    return tag("span", icon(sign), words, class_=f"badge {tone}", data_code=code, title=text)


# --- bench and workload ---------------------------------------------------------------------------


def _bench(seen: Known) -> Markup:
    """The newest bench, as far as it is."""
    bench, title = seen.bench, tag("h2", "Bench")
    if bench is None:
        words = "toolkit bench hosts.txt", " asks every host the same, at the same time."
        return tag("section", title, _absent("bench", *words), class_="bench")
    is_sweep = len({one.concurrency for one in seen.ranking}) > 1
    head = [
        "host",
        *(["at once"] if is_sweep else []),
        "requests/s",
        "tok/s",
        "TTFT p50",
        "p50",
        "p95",
        "ok",
    ]
    # the best of each host's group: who is tied with it shares its rank, as on the leaderboard
    bests: list[str] = []
    for one in seen.ranking:
        is_tied = bests and bests[-1] in one.tied_with
        bests.append(bests[-1] if is_tied else one.name)
    tie = tag("abbr", "=", title="Tied: this run cannot tell them apart")
    body = []
    for one, best in zip(seen.ranking, bests, strict=True):
        badges = [badge(verdict) for verdict in shown_verdicts(one)]
        if one.is_failing:
            kinds = ", ".join(f"{count} {kind}" for kind, count in one.error_kinds.items())
            failing = tag("span", icon("warning"), "failing", class_="badge foul", title=kinds)
            badges.insert(0, failing)
        name = (
            tag("b", bests.index(best) + 1, tie if bests.count(best) > 1 else None, class_="place"),
            tag("span", one.name, class_="name", title=one.url),
            tag("span", badges, class_="badges") if badges else None,
            tag("span", one.error, class_="note") if one.error else None,
        )
        tokens = ("~" if one.output_tokens_estimated else "") + rate(one.output_tokens_per_s)
        body.append(
            (
                name,
                *([f"{one.concurrency}"] if is_sweep else []),
                rate(one.rps),
                tokens,
                milliseconds(one.ttft_p50_ms),
                milliseconds(one.e2e_p50_ms),
                milliseconds(one.e2e_p95_ms),
                f"{one.ok:,} of {one.requests:,}",
            )
        )
    asked = (
        f"{counted(bench.requests, 'request')} so far"
        if bench.state == "on"
        else counted(bench.requests, "request")
    )
    how = {
        "on": "it runs; verdicts come at its end",
        "cut": "it was cut off, and judged nobody",
        "ended": "by requests/s, each host under the same load",
    }[bench.state]
    when = f"Bench of {time_of_day(bench.started_at)}, {asked}: {how}."
    if bench.client_ok is False:
        when += " The load generator was the limit: its figures are not valid for ranking."
    below = tag("p", when, class_="nothing")
    table = rows(head, body, class_="bench-ranking")
    return tag(
        "section", title, table, below, evidence(seen.ranking, key="verdicts"), class_="bench"
    )


def _workload(captured: Mapping[str, Any] | None) -> Markup:
    """What clients sent."""
    title = tag("h2", "Workload")
    if captured is None:
        words = (
            "toolkit capture --port 8000",
            " on a host counts what clients send and how it repeats.",
        )
        return tag("section", title, _absent("capture", *words), class_="workload")
    return tag("section", title, captured_figures(captured), class_="workload")
