"""What stands beside and below the leaderboard: one host in full, hosts side by side, the bench's word, the workload, the method.

Pure: it draws records that others have read. Unknown stays a dash, and nothing is guessed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import floor, inf
from typing import Any

from leaderboard_page.address import MOST_COMPARED, link, story_link, written_names
from leaderboard_page.badges import badge, confidence, shown_verdicts
from leaderboard_page.charts import event_sentence, host_style
from leaderboard_page.standings_table import FIGURES
from toolkit.bench.summary import HostSummary
from toolkit.board.history import Ranks
from toolkit.board.impact import explained, recorded
from toolkit.board.outages import CLOCKS_S, NOTICED_S, Outage, RunSeconds, outage_at
from toolkit.board.ranking import FORMULAS, TIES
from toolkit.board.standings import Board, Standing
from toolkit.records import Event, Run, Sighting
from toolkit.report.charts import LineStyle
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN, milliseconds, rate, share, span, spoken_list, time_of_day

CAPTURE_LOSSES = ("kernel_drops", "app_drops", "gaps", "truncated", "encrypted", "unparsed")
# the score says nothing of one host alone; errors are a count and a share here
OF_HOST = [
    ("errors" if figure.key == "errors" else figure.name, figure.field, figure.written)
    for figure in FIGURES
    if figure.key != "score"
]
SETTINGS = (
    ("engine", "engine"),
    ("version", "version"),
    ("model", "model"),
    ("max_model_len", "max model length"),
    ("gpu_memory_utilization", "GPU memory"),
    ("cache_dtype", "KV cache type"),
    ("block_size", "block size"),
    ("kv_cache_tokens", "KV cache, tokens"),
    ("prefix_caching", "prefix caching"),
    ("config_hash", "settings' hash"),
)
MOST_SIGHTINGS = 12


def rows(head: Iterable[object], body: Iterable[Sequence[object]], *, class_: str) -> Markup:
    """A plain table; the first cell of each row is its heading."""
    heads = [tag("th", cell, scope="col") for cell in head]
    lines = [
        tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in rest])
        for first, *rest in body
    ]
    inner = (tag("thead", tag("tr", heads)), tag("tbody", lines))
    return tag("div", tag("table", inner, class_=f"plain {class_}"), class_="wide")


def host_name(name: str, styles: Mapping[str, LineStyle]) -> Markup:
    """A host's name beside its colour."""
    chip, words = tag("i", class_="chip"), tag("span", name, class_="name")
    return tag("span", chip, words, style=host_style(name, styles), class_="who", data_host=name)


def differences(chosen: Sequence[Standing], styles: Mapping[str, LineStyle]) -> Markup:
    """Each figure of a few hosts, and how the others' differ from the first's."""
    body = []
    for title, field, written in OF_HOST:
        first, *others = (getattr(one, field) for one in chosen)
        cells = [tag("span", written(first))]
        for value in others:
            difference = difference_from(value, first)
            beside = None if difference is None else tag("small", f" {difference}")
            cells.append(tag("span", written(value), beside))
        body.append((title, *cells))
    head = ["", *(host_name(one.name, styles) for one in chosen)]
    return rows(head, body, class_="differences")


def difference_from(mine: float | None, first: float | None) -> str | None:
    """`+12 %`, `3.4 times`, or nothing where there is nothing to divide by."""
    if mine is None or first is None or first <= 0:
        return None
    ratio = mine / first
    if ratio >= 3:
        return f"{ratio:.1f} times"
    percent = 100 * (ratio - 1)
    return "equal" if abs(percent) < 0.05 else f"{percent:+.1f} %"


def _pairs(pairs: Iterable[tuple[str, object]]) -> Markup:
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs], class_="pairs")


def _note(*words: object) -> Markup:
    return tag("p", words, class_="nothing")


def panel(about: str, *parts: object) -> Markup:
    """What a click opened, beside the table; `about`: the host, or the moment. Escape and its link close it (live.js)."""
    close = tag("a", "Close", href=link(host=""), class_="close")
    return tag(
        "aside", close, parts, class_="panel", data_of=about, aria_label=about, tabindex="-1"
    )


def host_panel(
    one: Standing,
    *,
    styles: Mapping[str, LineStyle],
    compared: Sequence[str],
    event_story: Markup | None,
    charts: Iterable[Markup],
    kinds: Mapping[str, int],
    sightings: Sequence[Sighting],
    events: Sequence[Event],
) -> Markup:
    """One host in full: an event's story, evidence, results, charts, errors, settings as scout saw them, history."""
    with_it = [name for name in compared if name != one.name]
    without = len(with_it) < len(compared)
    words = "Compare no longer" if without else "Compare with others"
    if not without:
        with_it = [*with_it, one.name][-MOST_COMPARED:]
    compare = tag("a", words, href=link(cmp=written_names(with_it)), class_="compare")
    head = tag("header", tag("h2", host_name(one.name, styles)), _note(one.url), compare)

    clean = [each.evidence for each in one.verdicts if each.code == "clean"]
    found: object = _note("No anomaly found: " + clean[0] if clean else "Not judged yet.")
    if accused := shown_verdicts(one):
        found = tag(
            "ul",
            [
                tag(
                    "li",
                    badge(each),
                    tag("span", each.because, class_="because"),
                    confidence(each),
                )
                for each in accused
            ],
            class_="evidence",
        )

    results: list[tuple[str, object]] = [
        ("rank", UNKNOWN if one.rank is None else f"{one.rank}{' =' if one.tied else ''}")
    ]
    results += [(title, written(getattr(one, field))) for title, field, written in OF_HOST]
    results += [("answers", f"{one.ok:,}"), ("of these streams", f"{one.streamed:,}")]

    errors: tuple[Markup, ...] = (_note("None in this window."),)
    if kinds:
        most = max(kinds.values())
        bars = [
            tag(
                "li",
                tag("span", kind.replace("_", " "), class_="kind"),
                tag("span", class_="bar", style=f"width:{60 * count / most:.1f}%"),
                tag("b", f"{count:,}"),
            )
            for kind, count in kinds.items()
        ]
        text = f"{one.errors:,} of {one.ok + one.errors:,} requests in the window"
        errors = (tag("ul", bars, class_="kinds"), _note(text))

    seen = next((seen for seen in reversed(sightings) if seen.config_hash), None)
    watch = tag("code", "toolkit scout --watch")
    settings: tuple[Markup, ...] = (
        _note("Unknown: run ", watch, " beside the blast to see settings here."),
    )
    if seen is not None:
        pairs = []
        for name, title in SETTINGS:
            value = getattr(seen, name)
            if isinstance(value, bool):
                pairs.append((title, "on" if value else "off"))
            elif value is not None:
                pairs.append((title, f"{value:,}" if isinstance(value, int) else str(value)))
        settings = (_pairs(pairs), _note(f"As seen at {time_of_day(seen.at)}"))

    # newest first: what was noted of the host, and its sightings where status or settings were not as before, and the last
    lines: list[tuple[float, Markup]] = [
        (event.at, tag("a", event_sentence(event), href=story_link(event.at, one.name)))
        for event in events
        if event.name in {one.name, None}
    ]
    state: object = None
    for number, seen in enumerate(sightings, 1):
        before, state = state, (seen.status, seen.config_hash, seen.started_at, seen.model)
        if state == before and number < len(sightings):
            continue
        parts = [f"{time_of_day(seen.at)} {seen.status.replace('_', ' ')}", seen.error]
        if seen.running is not None:
            parts.append(f"{seen.running:.0f} running, {seen.waiting or 0:.0f} waiting")
        if seen.kv_cache_usage is not None:
            parts.append(f"KV cache {share(seen.kv_cache_usage)} full")
        lines.append((seen.at, tag("span", ", ".join(part for part in parts if part))))
    newest = [tag("li", text) for _, text in sorted(lines, reverse=True)[:MOST_SIGHTINGS]]
    history = tag("ul", newest, class_="history") if newest else _note("None yet.")

    return tag(
        "div",
        head,
        event_story,
        tag("section", tag("h3", "Evidence"), found),
        tag("section", tag("h3", "Results"), _pairs(results), class_="results"),
        charts,
        tag("section", tag("h3", "Errors by kind"), errors),
        tag("section", tag("h3", "Configuration"), settings),
        tag("section", tag("h3", "History"), history),
        class_="facts-of-host",
    )


def story(
    events: Sequence[Event],
    ranks: Ranks,
    *,
    name: str | None,
    seconds: RunSeconds | None,
    down: Sequence[Outage],
    window_s: int,
) -> Markup:
    """What happened at one moment, and what came of it: for the host `name`, whose `seconds` these are, or the ranking."""
    began = at = events[0].at
    lines = [event_sentence(event) for event in events]
    if seconds is not None:
        near = outage_at(down, at)
        if near and near.from_s - CLOCKS_S <= at < near.to_s + NOTICED_S:
            began = near.from_s
            end = f"until {time_of_day(near.to_s)}" if near.is_over else "and is not back yet"
            length = span(near.to_s - near.from_s)
            lost = f"{near.errors:,} requests failed"
            lines.append(f"Down from {time_of_day(near.from_s)} {end}: {length}, {lost}.")
            lines += explained(recorded(seconds, near, window_s, down))
        else:
            moment = floor(at)
            spans = ((moment - 60, moment), (moment + 1, min(moment + 61, seconds.end_s)))
            before, after = (
                rate(seconds.answered(*each) / (each[1] - each[0]))
                if each[1] > each[0]
                else UNKNOWN
                for each in spans
            )
            lines.append(
                f"No outage beside it: {before} requests/s in the minute before, {after} in the minute after."
            )

    places = []
    last_s = ranks.times[-1] if ranks.times else -inf
    for words, until_s in (
        ("before it", began - 1),
        ("a minute later", at + 60),
        ("five minutes later", at + 300),
        ("now", last_s),
    ):
        step = bisect_right(ranks.times, until_s) - 1
        if step < 0 or until_s > last_s:
            continue
        if name is None:
            first = [one for one, of_host in ranks.ranks.items() if of_host[step] == 1]
            places.append(f"{spoken_list(first, most=2)} {words}")
        elif (rank := ranks.ranks.get(name, (None,) * len(ranks.times))[step]) is not None:
            places.append(f"{rank} {words}")
    if places:
        lines.append(f"{'Rank' if name else 'First'}: {', '.join(places)}.")
    title = tag("h3", f"What happened at {time_of_day(at)}")
    return tag("section", title, [tag("p", line) for line in lines], class_="story")


def bench_results(
    run: Run | None, summaries: Sequence[HostSummary], board: Board, styles: Mapping[str, LineStyle]
) -> Markup:
    """The newest bench's figures beside the blast's: one request at a time says something else than a crowd."""
    title = tag("h2", "Bench beside blast")
    if run is None or not summaries:
        command = tag("code", "toolkit bench HOSTS")
        note = _note("No bench in this database: ", command, " adds one.")
        return tag("section", title, note, class_="bench")
    blast = {one.name: one for one in (*board.standings, *board.left_out)}
    head = "host,bench req/s,blast req/s,bench TTFT p50,blast TTFT p50,bench p95,blast p95"
    body = [
        (
            host_name(one.name, styles),
            rate(one.rps),
            rate(here.rps),
            milliseconds(one.ttft_p50_ms),
            milliseconds(here.ttft_p50_ms),
            milliseconds(one.e2e_p95_ms),
            milliseconds(here.p95_ms),
        )
        for one in summaries
        if (here := blast.get(one.name)) is not None
    ]
    when = f"Bench of {time_of_day(run.started_at, seconds=False)}, every prompt new"
    below = _note(f"{when}; blast over {span(board.window_s)}.")
    table = rows(head.split(","), body, class_="bench-table")
    return tag("section", title, table, below, class_="bench")


def workload(board: Board, profile: str, captured: Mapping[str, Any] | None) -> Markup:
    """What the blast sends and what hosts remember of it; and what clients sent, where a capture saw that.

    `captured` is the newest capture's word on itself (toolkit/capture/summary.py); what follows from it is the business
    of `toolkit workload`.
    """
    shares = [one.hit_share for one in board.standings if one.hit_share is not None]
    sent = sum(one.ok + one.errors for one in board.standings)
    pairs = [
        ("profile", profile),
        ("requests in the window", f"{sent:,}"),
        ("hosts that say or show cache hits", f"{len(shares)} of {len(board.standings)}"),
        ("hosts that answer mostly from memory", f"{sum(each >= 0.5 for each in shares)}"),
    ]
    if captured is None:
        below: Iterable[Markup] = (
            _note(
                "These are the blast's own prompts. What real clients send, how it repeats and what a cache would save"
                " comes from ",
                tag("code", "toolkit capture"),
                "; none is in this database yet.",
            ),
        )
    else:
        below = captured_figures(captured)
    return tag("section", tag("h2", "Workload"), _pairs(pairs), below, class_="workload")


def captured_figures(captured: Mapping[str, Any]) -> tuple[Markup, Markup]:
    """What clients sent: how much, how often the same, and what a cache would answer of it."""
    requests, unique = captured.get("requests") or 0, captured.get("unique") or 0
    top = [one for one in captured.get("top") or () if isinstance(one, dict) and "share" in one]
    shares = [float(one["share"]) for one in top]
    repeats = captured.get("repeat_share")
    cached: object = UNKNOWN
    if repeats is not None and top:
        # a prompt's first request is asked in any case
        with_prompt = captured.get("prompts") or requests
        of_top = max(0.0, sum(shares) - len(top) / with_prompt) if with_prompt else 0.0
        most = f"the {len(top)} most frequent answers"
        cached = (
            f"{share(repeats)} with every answer held",
            tag("small", f", {share(of_top)} with {most}") if unique > len(top) else None,
        )
    lost = sum(captured.get(name) or 0 for name in CAPTURE_LOSSES)
    seen: list[tuple[str, object]] = [
        ("requests captured", f"{requests:,}"),
        ("unique prompts", f"{unique:,}"),
        ("repeats", share(repeats)),
        ("most frequent prompt", share(shares[0]) if top else UNKNOWN),
    ]
    seen += [
        (f"the {count} most frequent", share(sum(shares[:count])))
        for count in (2, 10)
        if len(top) >= count
    ]
    seen += [
        ("a response cache would answer up to", cached),
        ("streams", share(captured.get("stream_share"))),
        ("lost or unreadable", f"{lost:,}"),
    ]
    when = f"{time_of_day(captured.get('from_ts'))} to {time_of_day(captured.get('to_ts'))}"
    more = tag("code", "toolkit workload")
    return _pairs(seen), _note(
        f"Captured {when}; ", more, " has the whole hit curve and what follows from it"
    )


def method(board: Board) -> Markup:
    """How the figures are reckoned, in the words of the code that does it."""
    window = (
        f"Window: the last {span(board.window_s)}; a second without answers counts as zero; while the run is younger"
        " than the window, rates are over the time since its start. Latencies are nearest ranks within 1 % and hold"
        " no failure. Canary requests are tallied apart and never ranked. A recount from the stored tallies gives"
        " the same board, bit for bit."
    )
    # the score's formula stands once, whether or not it ranks
    formulas = dict.fromkeys((FORMULAS[board.rank_by], FORMULAS["score"]))
    lines = [tag("p", text) for text in (*formulas, TIES, window)]
    return tag("section", tag("h2", "Methodology"), lines, class_="method")


def feeding(trouble: str | None) -> Markup:
    """The page while there is nothing to show: how to feed it."""
    steps = (
        ("toolkit scout hosts.txt --watch", "each host's settings and load"),
        ("toolkit bench hosts.txt", "every host asked the same, and judged"),
        ("toolkit capture --port 8000", "what clients send, on a host"),
        (
            "toolkit blast hosts.txt --duration 2h --users 32",
            "all hosts under the same load: the leaderboard. Plain Locust: ",
            tag("code", "locust -f locustfiles/blast.py"),
        ),
        ("toolkit demo", "all of it in small, on this machine"),
    )
    return tag(
        "div",
        tag("h2", "Nothing measured yet"),
        tag("p", "Whatever is measured appears here by itself:"),
        tag(
            "ul", [tag("li", tag("code", command), tag("span", words)) for command, *words in steps]
        ),
        tag("p", trouble, class_="trouble") if trouble else None,
        class_="feeding",
        id="feeding",
    )
