"""The leaderboard: one table of our own, as text in the page, for eyes, screen readers and tests alike.

It draws standings as they are and ranks nothing. Places that are covered (a reveal under way) hold no figure at all.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median_low
from typing import NamedTuple

from leaderboard_page.address import USUAL, link
from leaderboard_page.badges import badge, error_level, icon, shown_verdicts
from leaderboard_page.charts import host_style
from toolkit.board.ranking import FEW_FOR_P50, FEW_FOR_P95
from toolkit.board.standings import AffectedInterval, Board, RankBy, Standing
from toolkit.report.charts import LineStyle
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN, milliseconds, rate, share, span, time_of_day


class Figure(NamedTuple):
    """A figure of a host: a column of the table."""

    key: str
    field: str
    """Of Standing."""
    ranks: RankBy | None
    """The ranking that it decides."""
    name: str
    title: str
    """Of its column: short."""
    written: Callable[[float | None], str]


def _score(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


FIGURES = (
    Figure("rps", "rps", "rps", "requests/s", "requests/s", rate),
    Figure("score", "score", "score", "score", "score", _score),
    Figure(
        "tokens", "output_tokens_per_s", "output_tokens_per_s", "output tokens/s", "tok/s", rate
    ),
    Figure("ttft50", "ttft_p50_ms", "ttft_p50", "TTFT p50", "TTFT p50", milliseconds),
    Figure("ttft95", "ttft_p95_ms", "ttft_p95", "TTFT p95", "TTFT p95", milliseconds),
    Figure("p50", "p50_ms", "p50", "latency p50", "p50", milliseconds),
    Figure("p95", "p95_ms", "p95", "latency p95", "p95", milliseconds),
    Figure("errors", "error_rate", "error_rate", "error rate", "errors", share),
    Figure("hits", "hit_share", None, "cache hits", "cache hits", share),
)
_EXPLAINED = {
    "rank": "Rank; hosts that the window cannot tell apart share one",
    "move": "Places won or lost against 1 and 5 minutes ago",
    "host": "Host, what explains its figures, and what still weighs on them",
    "rps": "Ok requests a second, over the window",
    "spark": "Requests a second over the window, each host on its own scale",
    "score": "Geometric mean of each metric relative to the best, times the share of successes",
    "tokens": "Output tokens a second, over the window",
    "ttft50": "Time to the first token, median of the streams",
    "ttft95": "Time to the first token, 95th percentile of the streams",
    "p50": "Time to the whole answer, median",
    "p95": "Time to the whole answer, 95th percentile",
    "errors": "Failed requests / all that ended",
    "hits": "Answers from a response cache / answers that say; ~ is judged by time",
}
RANKINGS = {figure.ranks: figure for figure in FIGURES if figure.ranks}
_DESCENDING = frozenset({"rps", "output_tokens_per_s", "score"})
"""Rankings in which more is better; in the others less is."""
_SPARK_WIDTH, _SPARK_HEIGHT = 100, 24
FLAT = 8
"""When the fastest host is so many times ahead of the middle one, bars are broken: they would show nothing but that."""
BREAK_AT = 0.7
"""Where they are broken, as a share of the longest; page.css has it, too."""


class BarScale(NamedTuple):
    """How long a bar of requests/s is: in proportion, or with a scale of its own beyond the break."""

    rest: float
    """The fastest host below the break; as much as `most` where there is none."""
    most: float

    @property
    def is_broken(self) -> bool:
        """Whether there is a break."""
        return self.rest < self.most

    def length(self, rps: float) -> float:
        """0 to 1."""
        if not self.is_broken:
            return rps / self.most if self.most else 0.0
        if rps <= self.rest:
            return BREAK_AT * rps / self.rest
        return BREAK_AT + (1 - BREAK_AT) * (rps - self.rest) / (self.most - self.rest)


def bar_scale(rates: Iterable[float]) -> BarScale:
    """The scale for these requests/s; the break is where the widest gap parts at most a half of the hosts from the rest."""
    known = sorted((each for each in rates if each > 0), reverse=True)
    if not known:
        return BarScale(0.0, 0.0)
    if known[0] < FLAT * median_low(known):
        return BarScale(known[0], known[0])
    _, first_of_rest = max((known[n - 1] / known[n], n) for n in range(1, len(known) // 2 + 1))
    return BarScale(known[first_of_rest], known[0])


def table(
    board: Board,
    *,
    styles: Mapping[str, LineStyle],
    sparklines: Mapping[str, Sequence[float]],
    rows: int,
    first: int = 0,
    pages: bool = False,
    covered: Collection[int] = (),
    down_since: Mapping[str, float] | None = None,
) -> Markup:
    """The leaderboard's `rows` hosts behind the `first` ones, and those left out of an honest one below them.

    With `pages` all hosts, those left out as the last, make pages of so many rows.
    """
    # nothing of a covered row may be seen, its rate in the length of the others' bars neither
    seen = [one for place, one in enumerate(board.standings, 1) if place not in covered]
    seen += () if covered else board.left_out
    bars = bar_scale(one.rps for one in seen)

    def heading(key: str, title: str, ranks: RankBy | None = None) -> Markup:
        explained, axis = _EXPLAINED[key], None
        if key == "rps" and bars.is_broken:
            explained += f"; bars up to {rate(bars.rest)} and beyond the break, up to {rate(bars.most)}, have scales of their own"
            ends = (tag("span", rate(bars.rest)), tag("i"), tag("span", rate(bars.most)))
            axis = tag("span", ends, class_="axis", aria_hidden="true")
        is_ranked = ranks == board.rank_by
        order = "descending" if board.rank_by in _DESCENDING else "ascending"
        words: object = title
        if ranks is not None:
            # a link without words says the usual, which stays out of links
            words = tag("a", title, href=link(rank="" if ranks == USUAL.rank else ranks))
        return tag(
            "th",
            words,
            axis,
            scope="col",
            class_=f"c-{key}" + (" ranked" if is_ranked else ""),
            title=explained,
            aria_sort=order if is_ranked else None,
        )

    heads = [heading(figure.key, figure.title, figure.ranks) for figure in FIGURES]
    heads.insert(1, heading("spark", "trend"))
    heads = [heading("rank", "#"), heading("move", "1 / 5 min"), heading("host", "host"), *heads]
    shown = []
    for place, one in enumerate(board.standings[first : first + rows], first + 1):
        if place in covered:
            rank = tag("td", tag("span", place, class_="rank"), class_="c-rank")
            hidden = tag("td", "still covered", colspan=len(FIGURES) + 3)
            key = f"covered-{place}"
            row = tag("tr", rank, hidden, class_="covered", data_key=key, data_place=place)
        else:
            spark = sparkline(sparklines.get(one.name, ()))
            style, since = host_style(one.name, styles), (down_since or {}).get(one.name)
            row = _row(one, place, board.rank_by, bars, spark, style, since)
        shown.append(row)
    out, below = None, board.left_out
    if pages:
        ranked = len(board.standings)
        below = below[max(0, first - ranked) : max(0, first + rows - ranked)]
    if below and not covered:
        count = len(board.left_out)
        hosts = "1 host is" if count == 1 else f"{count} hosts are"
        text = f"{hosts} left out of the honest board; the badge says why"
        across = tag("td", text, colspan=len(FIGURES) + 4)
        divider = tag("tr", across, class_="divider", data_key="out")
        lines = [
            _row(
                one,
                None,
                board.rank_by,
                bars,
                None,
                host_style(one.name, styles),
                (down_since or {}).get(one.name),
            )
            for one in below
        ]
        out = tag("tbody", divider, lines, id="left-out")
    caption = (
        f"Standings by {RANKINGS[board.rank_by].name}{', honest board' if board.honest else ''}"
    )
    return tag(
        "table",
        tag("caption", f"{caption}, at {time_of_day(board.at_s)}", class_="unseen"),
        tag("thead", tag("tr", heads)),
        # each page is a node of its own, so that it comes in as one (page.css)
        tag("tbody", shown, id="standings", data_key=f"page/{first}" if pages else None),
        out,
        id="board",
        class_="board",
        data_rank_by=board.rank_by,
    )


def _row(
    one: Standing,
    place: int | None,
    rank_by: RankBy,
    bars: BarScale,
    spark: Markup | None,
    style: str,
    down_since: float | None,
) -> Markup:
    """One host; those that are left out have no place."""
    if one.rank is None:
        rank = tag("span", UNKNOWN, class_="rank", title="Left out of the honest board")
    else:
        tie = tag("abbr", "=", class_="tie", title="Tied: the window cannot tell them apart")
        rank = tag("span", one.rank, tie if one.tied else None, class_="rank")
    moves = []
    for change, since, size in (
        (one.rank_change, "1 min", "near"),
        (one.rank_change_5m, "5 min", "far"),
    ):
        way = "up" if (change or 0) > 0 else "down" if change else "same"
        text = f"{way} {abs(change)} against" if change else "same place"
        text = "no board" if change is None else text
        number = abs(change) if change else None
        title = f"{text} {since} ago"
        moves.append(tag("span", icon(way), number, class_=f"move {way} {size}", title=title))

    # who it is, what explains its figures (its trouble first), and what still weighs on them
    badges = [badge(verdict) for verdict in shown_verdicts(one)]
    failed = f"{one.errors:,} of {one.ok + one.errors:,} requests failed"
    if one.trouble:
        sign, code = icon("warning"), one.trouble
        badges.insert(0, tag("span", sign, code, class_="badge foul", data_code=code, title=failed))
    silence = None
    if one.trouble == "failing":
        silence = failed
    elif not one.ok:
        silence = f"no answer, {one.errors:,} errors" if one.errors else "nothing answered yet"
        if down_since is not None and not one.taints:
            silence = f"down since {time_of_day(down_since, seconds=False)}, {one.errors:,} errors"
    host = (
        tag("i", class_="chip"),
        tag("a", one.name, href=link(host=one.name), class_="name", title=one.url),
        tag("span", badges, class_="badges") if badges else None,
        _outage_note(one.taints),
        tag("span", silence, class_="note") if silence else None,
    )
    length = bars.length(one.rps)
    cut = f";--cut:{BREAK_AT / length:.1%}" if length > BREAK_AT and bars.is_broken else ""
    bar = tag("span", class_="bar broken" if cut else "bar", style=f"--w:{length:.3f}{cut}")
    states = {
        "dead": one.ok == 0,
        "out": one.left_out,
        "first": place == 1,
        "bad": one.trouble is not None,
        "down": one.trouble == "down",
    }
    figures = []
    for figure in FIGURES[1:]:
        class_ = f"c-{figure.key}" + (" ranked" if figure.ranks == rank_by else "")
        level = error_level(one.error_rate) if figure.key == "errors" else None
        class_ += f" {level}" if level else ""
        cell = _cell(figure, one)
        figures.append(tag("td", cell, class_=class_, data_title=figure.title))
    return tag(
        "tr",
        tag("td", rank, class_="c-rank"),
        tag("td", moves, class_="c-move"),
        tag("th", host, scope="row", class_="c-host"),
        tag("td", bar, tag("b", rate(one.rps)), class_="c-rps"),
        tag("td", spark, class_="c-spark"),
        figures,
        data_host=one.name,
        data_rank=one.rank,
        data_place=place,
        data_ok=one.ok,
        class_=" ".join(name for name, holds in states.items() if holds) or None,
        style=style,
    )


def _cell(figure: Figure, one: Standing) -> Markup:
    """A number and its smaller unit, marked where it is unsure or inferred."""
    value = getattr(one, figure.field)
    text = figure.written(value)
    number, _, unit = text.rpartition(" ") if text[-1:] in {"s", "%"} else (text, "", "")
    shown = Markup.joined((number, tag("small", f" {unit}") if unit else None))
    samples = one.streamed if figure.key.startswith("ttft") else one.ok
    few = FEW_FOR_P95 if figure.key.endswith("95") else FEW_FOR_P50
    if figure.written is milliseconds and value is not None and samples < few:
        note = f"Unsure: of {samples:,} answers, and {few} make a sure quantile"
        return tag("span", shown, "?", title=note, class_="unsure")
    if figure.key == "hits" and one.hit_share_inferred and value is not None:
        note = "Judged by time, as the host sends no Cache-Status"
        return tag("span", "~", shown, title=note, class_="inferred")
    if figure.key == "tokens" and one.output_tokens_estimated:
        note = "Counted from chunks where no usage was sent"
        return tag("span", "~", shown, title=note, class_="inferred")
    return shown


def _outage_note(outages: Sequence[AffectedInterval]) -> Markup | None:
    """`still in the window: 4 min 10 s of the 14:32 restart`; of an outage that lasts, how long it does."""
    if not outages:
        return None
    *_, last = outages
    if last.to_s is None:
        text, title = (
            f"not answering since {time_of_day(last.from_s)}",
            f"{last.errors:,} requests failed",
        )
        return tag("span", text, class_="note", title=title)
    what = f"{len(outages)} outages"
    if len(outages) == 1:
        kind = "restart" if last.restarted else "outage"
        what = f"the {time_of_day(last.from_s, seconds=False)} {kind}"
    text = f"still in the window: {span(sum(each.in_window_s for each in outages))} of {what}"
    clean = None if last.clean_in_s is None else f"Out of the window in {span(last.clean_in_s)}"
    return tag("span", text, class_="note", title=clean)


def sparkline(values: Sequence[float]) -> Markup | None:
    """A line as small as a word, with the ground below it, stretched to its own highest value; nothing for fewer than two."""
    if len(values) < 2:
        return None
    most = max(values) or 1.0
    step = _SPARK_WIDTH / (len(values) - 1)
    points = [
        f"{place * step:.1f} {_SPARK_HEIGHT - 2 - (_SPARK_HEIGHT - 4) * max(0.0, value) / most:.1f}"
        for place, value in enumerate(values)
    ]
    line = "M" + " L".join(points)
    ground = f"{line} L{_SPARK_WIDTH} {_SPARK_HEIGHT} L0 {_SPARK_HEIGHT} Z"
    return tag(
        "svg",
        tag("path", d=ground, class_="ground"),
        tag("path", d=line, class_="line"),
        class_="spark",
        viewBox=f"0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
