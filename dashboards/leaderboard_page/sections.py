"""What stands below the leaderboard: hosts side by side, one host in full, the bench's word, the workload, the method.

Pure: it draws records that others have read. Unknown stays a dash, and nothing is guessed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from leaderboard_page.badges import evidence
from leaderboard_page.colours import NOBODY
from leaderboard_page.rank_chart import sentence
from toolkit.bench.summary import HostSummary
from toolkit.board.ranking import FORMULAS, TIES
from toolkit.board.standings import Board, Standing
from toolkit.records import Event, Run, Sighting
from toolkit.report.charts import LineStyle
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN, milliseconds, rate, share, span, time_of_day

CAPTURE_LOSSES = ("kernel_drops", "app_drops", "gaps", "truncated", "encrypted", "unparsed")

FIGURES: Sequence[tuple[str, Callable[[Standing], float | None], Callable[[float | None], str]]] = (
    ("requests/s", lambda one: one.rps, rate),
    ("output tokens/s", lambda one: one.output_tokens_per_s, rate),
    ("TTFT p50", lambda one: one.ttft_p50_ms, milliseconds),
    ("TTFT p95", lambda one: one.ttft_p95_ms, milliseconds),
    ("latency p50", lambda one: one.p50_ms, milliseconds),
    ("latency p95", lambda one: one.p95_ms, milliseconds),
    ("errors", lambda one: one.error_rate, share),
    ("cache hits", lambda one: one.hit_share, share),
)


def rows(head: Sequence[object], body: Iterable[Sequence[object]], *, class_: str) -> Markup:
    """A plain table; the first cell of each row is its heading."""
    return tag(
        "div",
        tag(
            "table",
            tag("thead", tag("tr", [tag("th", cell, scope="col") for cell in head])),
            tag(
                "tbody",
                [
                    tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in rest])
                    for first, *rest in body
                ],
            ),
            class_=f"plain {class_}",
        ),
        class_="wide",
    )


def host_name(name: str, looks: Mapping[str, LineStyle]) -> Markup:
    """A host's name beside its colour."""
    look = looks.get(name, NOBODY)
    return tag(
        "span",
        tag("i", class_="chip"),
        tag("span", name, class_="name"),
        style=f"--host:{look.colour}",
        class_="who",
    )


# --- hosts side by side ---------------------------------------------------------------------------


def differences(chosen: Sequence[Standing], looks: Mapping[str, LineStyle]) -> Markup:
    """Each figure of a few hosts, and how the others' differ from the first's."""
    first = chosen[0]
    body = [
        (title, *(_against(value(one), value(first), one is first, written) for one in chosen))
        for title, value, written in FIGURES
    ]
    head = ["", *(host_name(one.name, looks) for one in chosen)]
    return rows(head, body, class_="differences")


def _against(
    mine: float | None, first: float | None, is_first: bool, written: Callable[[float | None], str]
) -> Markup:
    difference = None if is_first else difference_from(mine, first)
    return tag(
        "span", written(mine), tag("small", f" {difference}") if difference is not None else None
    )


def difference_from(mine: float | None, first: float | None) -> str | None:
    """`+12 %`, `3.4 times`, or nothing where there is nothing to divide by."""
    if mine is None or first is None or first <= 0:
        return None
    ratio = mine / first
    if ratio >= 3:
        return f"{ratio:.1f} times"
    percent = 100 * (ratio - 1)
    return "equal" if abs(percent) < 0.05 else f"{percent:+.1f} %"


# --- one host in full -----------------------------------------------------------------------------

SETTINGS: Sequence[tuple[str, str]] = (
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


def host_facts(
    one: Standing,
    *,
    kinds: Mapping[str, int],
    sightings: Sequence[Sighting],
    events: Sequence[Event],
) -> Markup:
    """Results, verdicts, errors by kind, settings as scout saw them, and what happened to one host."""
    return tag(
        "div",
        tag("section", tag("h3", "Results"), _results(one)),
        tag("section", tag("h3", "Errors by kind"), _kinds(one, kinds)),
        tag("section", tag("h3", "Configuration"), _settings(sightings)),
        tag("section", tag("h3", "Sightings and events"), _history(sightings, events, one.name)),
        class_="facts-of-host",
    )


def _results(one: Standing) -> Markup:
    pairs = [("rank", UNKNOWN if one.rank is None else f"{one.rank}{' =' if one.tied else ''}")]
    pairs += [(title, written(value(one))) for title, value, written in FIGURES]
    pairs += [("answers", f"{one.ok:,}"), ("of these streams", f"{one.streamed:,}")]
    return Markup.joined((_pairs(pairs), evidence([one], key="evidence-of-host")))


def _pairs(pairs: Iterable[tuple[str, object]]) -> Markup:
    return tag("dl", [(tag("dt", name), tag("dd", told)) for name, told in pairs], class_="pairs")


def _kinds(one: Standing, kinds: Mapping[str, int]) -> Markup:
    if not kinds:
        return tag("p", "None in this window.", class_="nothing")
    most = max(kinds.values())
    items = [
        tag(
            "li",
            tag("span", kind.replace("_", " "), class_="kind"),
            tag("span", class_="bar", style=f"width:{60 * count / most:.1f}%"),
            tag("b", f"{count:,}"),
        )
        for kind, count in kinds.items()
    ]
    whole = one.ok + one.errors
    told = f"{one.errors:,} of {whole:,} requests in the window"
    return Markup.joined((tag("ul", items, class_="kinds"), tag("p", told, class_="nothing")))


def _settings(sightings: Sequence[Sighting]) -> Markup:
    telling = next((one for one in reversed(sightings) if one.config_hash), None)
    if telling is None:
        return tag(
            "p",
            "Unknown: run ",
            tag("code", "toolkit scout --watch"),
            " beside the blast to see settings here.",
            class_="nothing",
        )
    pairs = [
        (title, _setting(getattr(telling, name)))
        for name, title in SETTINGS
        if getattr(telling, name) is not None
    ]
    told = f"As seen at {time_of_day(telling.at)}"
    return Markup.joined((_pairs(pairs), tag("p", told, class_="nothing")))


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _history(sightings: Sequence[Sighting], events: Sequence[Event], name: str) -> Markup:
    """What changed between looks, and what was told of the host, newest first."""
    lines = [(event.at, sentence(event)) for event in events if event.name in {name, None}]
    lines += [(seen.at, _sighting(seen)) for seen in _changed(sightings)]
    if not lines:
        return tag("p", "None yet.", class_="nothing")
    newest = sorted(lines, reverse=True)[:MOST_SIGHTINGS]
    return tag("ul", [tag("li", told) for _, told in newest], class_="history")


def _changed(sightings: Sequence[Sighting]) -> list[Sighting]:
    """The first sighting, the last, and all in which status or settings were not as before."""
    kept: list[Sighting] = []
    for seen in sightings:
        if not kept or _state(seen) != _state(kept[-1]):
            kept.append(seen)
    if sightings and kept[-1] is not sightings[-1]:
        kept.append(sightings[-1])
    return kept


def _state(seen: Sighting) -> tuple[object, ...]:
    return seen.status, seen.config_hash, seen.started_at, seen.model


def _sighting(seen: Sighting) -> str:
    parts = [f"{time_of_day(seen.at)} {seen.status.replace('_', ' ')}"]
    if seen.error:
        parts.append(seen.error)
    if seen.running is not None:
        parts.append(f"{seen.running:.0f} running, {seen.waiting or 0:.0f} waiting")
    if seen.kv_cache_usage is not None:
        parts.append(f"KV cache {share(seen.kv_cache_usage)} full")
    return ", ".join(parts)


# --- the bench, the workload, the method ----------------------------------------------------------


def bench_results(
    run: Run | None, summaries: Sequence[HostSummary], board: Board, looks: Mapping[str, LineStyle]
) -> Markup:
    """The newest bench's figures beside the blast's: one request at a time tells another story than a crowd."""
    title = tag("h2", "Bench beside blast")
    if run is None or not summaries:
        told = ("No bench in this database: ", tag("code", "toolkit bench HOSTS"), " adds one.")
        return tag("section", title, tag("p", told, class_="nothing"), class_="bench")
    blast = {one.name: one for one in (*board.standings, *board.left_out)}
    head = (
        "host",
        "bench req/s",
        "blast req/s",
        "bench TTFT p50",
        "blast TTFT p50",
        "bench p95",
        "blast p95",
    )
    body = [
        (
            host_name(one.name, looks),
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
    below = tag("p", f"{when}; blast over {span(board.window_s)}.", class_="nothing")
    return tag("section", title, rows(head, body, class_="bench-table"), below, class_="bench")


def workload(board: Board, profile: str | None, captured: Mapping[str, Any] | None) -> Markup:
    """What the blast sends and what hosts remember of it; and what clients sent, where a capture saw that.

    `captured` is the newest capture's word on itself (toolkit/capture/summary.py).
    """
    hosts = [one for one in board.standings if one.hit_share is not None]
    told = [one for one in hosts if one.hit_share and one.hit_share >= 0.5]
    sent = sum(one.ok + one.errors for one in board.standings)
    pairs = [
        ("profile", profile or UNKNOWN),
        ("requests in the window", f"{sent:,}"),
        ("hosts that tell or show cache hits", f"{len(hosts)} of {len(board.standings)}"),
        ("hosts that answer mostly from memory", f"{len(told)}"),
    ]
    return tag(
        "section",
        tag("h2", "Workload"),
        _pairs(pairs),
        _no_capture() if captured is None else _captured(captured),
        class_="workload",
    )


def _no_capture() -> Markup:
    return tag(
        "p",
        "These are the blast's own prompts. What real clients send, how it repeats and what a cache would save comes from ",
        tag("code", "toolkit capture"),
        "; none is in this database yet.",
        class_="nothing",
    )


def _captured(captured: Mapping[str, Any]) -> Markup:
    """A capture in five figures; what follows from them is `toolkit workload`'s business."""
    number = captured.get
    top = [one["share"] for one in number("top") or () if isinstance(one, dict) and "share" in one]
    lost = sum(number(name) or 0 for name in CAPTURE_LOSSES)
    pairs = [
        ("requests captured", f"{number('requests') or 0:,}"),
        ("unlike prompts", f"{number('unique') or 0:,}"),
        ("repeats", share(number("repeat_share"))),
        ("most frequent prompt", share(top[0]) if top else UNKNOWN),
        ("lost or unreadable", f"{lost:,}"),
    ]
    when = f"{time_of_day(number('from_ts'))} to {time_of_day(number('to_ts'))}"
    below = tag(
        "p", f"Captured {when}; its levers: ", tag("code", "toolkit workload"), class_="nothing"
    )
    return Markup.joined((_pairs(pairs), below))


def method(board: Board) -> Markup:
    """How the figures are reckoned, in the words of the code that does it."""
    return tag(
        "section",
        tag("h2", "How it is reckoned"),
        tag("p", FORMULAS[board.rank_by]),
        tag("p", FORMULAS["score"]) if board.rank_by != "score" else None,
        tag("p", TIES),
        tag(
            "p",
            f"Window: the last {span(board.window_s)}; a second without answers counts as zero; while the run is younger"
            " than the window, rates are over the time since its start. Latencies are nearest ranks within 1 % and hold"
            " no failure. Canary requests are tallied apart and never ranked. A recount from the stored tallies gives"
            " the same board, bit for bit.",
        ),
        class_="method",
    )


def feeding(trouble: str | None) -> Markup:
    """The page before there is anything on it: how to feed it."""
    return tag(
        "div",
        tag("h2", "No blast yet"),
        tag(
            "p",
            "Blast all hosts at once and the ranking appears here by itself: ",
            tag("code", "toolkit blast hosts.txt --duration 2h --users 32"),
            " or, as plain Locust, ",
            tag("code", "locust -f locustfiles/blast.py"),
            ".",
        ),
        tag("p", trouble, class_="trouble") if trouble else None,
        class_="feeding",
        id="feeding",
    )
