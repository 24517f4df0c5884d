"""The leaderboard: one table of our own, as text in the page, for eyes, screen readers and tests alike.

It draws standings as they are and ranks nothing. Places that are covered (a reveal under way) hold no figure at all.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from leaderboard_page.badges import badges, taint_note
from leaderboard_page.colours import NOBODY
from leaderboard_page.icons import icon
from leaderboard_page.sparkline import sparkline
from toolkit.board.ranking import FEW_FOR_P50, FEW_FOR_P95
from toolkit.board.standings import Board, RankBy, Standing
from toolkit.report.charts import LineStyle
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN, milliseconds, rate, share, time_of_day


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumn:
    """One column of figures."""

    key: str
    title: str
    explained: str
    ranks: RankBy | None
    """The ranking that it decides."""
    cell: Callable[[Standing], object]


def _figure(text: str) -> Markup:
    """A number and its smaller unit."""
    number, _, unit = text.rpartition(" ") if text[-1:] in {"s", "%"} else (text, "", "")
    return Markup.joined((number, tag("small", f" {unit}") if unit else None))


def _latency(value_ms: float | None, samples: int, few: int) -> Markup:
    """Marked where too few answers make it unsure."""
    told = _figure(milliseconds(value_ms))
    if value_ms is None or samples >= few:
        return told
    note = f"Unsure: of {samples:,} answers, and {few} make a sure quantile"
    return tag("span", told, "?", title=note, class_="unsure")


def _hits(standing: Standing) -> object:
    told = share(standing.hit_share)
    if not standing.hit_share_inferred or standing.hit_share is None:
        return _figure(told)
    note = "Judged by time, as the host tells no Cache-Status"
    return tag("span", "~", _figure(told), title=note, class_="inferred")


def _tokens(standing: Standing) -> object:
    told = rate(standing.output_tokens_per_s)
    if not standing.output_tokens_estimated:
        return told
    return tag(
        "span", "~", told, title="Counted from chunks where no usage was told", class_="inferred"
    )


def _score(standing: Standing) -> str:
    return UNKNOWN if standing.score is None else f"{standing.score:.3f}"


COLUMNS = (
    FigureColumn(
        key="score",
        title="score",
        explained="Geometric mean of each metric relative to the best, times the share of successes",
        ranks="score",
        cell=_score,
    ),
    FigureColumn(
        key="tokens",
        title="tok/s",
        explained="Output tokens a second, over the window",
        ranks="output_tokens_per_s",
        cell=_tokens,
    ),
    FigureColumn(
        key="ttft50",
        title="TTFT p50",
        explained="Time to the first token, median of the streams",
        ranks="ttft_p50",
        cell=lambda standing: _latency(standing.ttft_p50_ms, standing.streamed, FEW_FOR_P50),
    ),
    FigureColumn(
        key="ttft95",
        title="TTFT p95",
        explained="Time to the first token, 95th percentile of the streams",
        ranks="ttft_p95",
        cell=lambda standing: _latency(standing.ttft_p95_ms, standing.streamed, FEW_FOR_P95),
    ),
    FigureColumn(
        key="p50",
        title="p50",
        explained="Time to the whole answer, median",
        ranks="p50",
        cell=lambda standing: _latency(standing.p50_ms, standing.ok, FEW_FOR_P50),
    ),
    FigureColumn(
        key="p95",
        title="p95",
        explained="Time to the whole answer, 95th percentile",
        ranks="p95",
        cell=lambda standing: _latency(standing.p95_ms, standing.ok, FEW_FOR_P95),
    ),
    FigureColumn(
        key="errors",
        title="errors",
        explained="Failed requests / all that ended",
        ranks="error_rate",
        cell=lambda standing: _figure(share(standing.error_rate)),
    ),
    FigureColumn(
        key="hits",
        title="cache hits",
        explained="Answers from a response cache / answers that tell; ~ is judged by time",
        ranks=None,
        cell=_hits,
    ),
)
WORDS: Mapping[RankBy, str] = {
    "rps": "requests/s",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "TTFT p95",
    "p50": "latency p50",
    "p95": "latency p95",
    "error_rate": "error rate",
    "output_tokens_per_s": "output tokens/s",
    "score": "score",
}
"""What each ranking is called."""
_ORDER = {"rps": "descending", "output_tokens_per_s": "descending", "score": "descending"}
"""Rankings in which more is better; in the others less is."""


def table(
    board: Board,
    *,
    looks: Mapping[str, LineStyle],
    sparklines: Mapping[str, Sequence[float]],
    rows: int,
    covered: Collection[int] = (),
) -> Markup:
    """The leaderboard's first `rows` hosts, and those left out of an honest one below them."""
    fastest = max((one.rps for one in board.standings), default=0.0)
    shown = [
        _covered_row(place)
        if place in covered
        else _row(
            one,
            place,
            board,
            look=looks.get(one.name, NOBODY),
            spark=sparklines.get(one.name, ()),
            fastest=fastest,
        )
        for place, one in enumerate(board.standings[:rows], 1)
    ]
    out = [
        _row(one, 0, board, look=looks.get(one.name, NOBODY), spark=(), fastest=fastest)
        for one in ([] if covered else board.left_out)
    ]
    return tag(
        "table",
        tag("caption", _caption(board), class_="unseen"),
        _head(board.rank_by),
        tag("tbody", shown, id="standings"),
        tag("tbody", _left_out_head(len(out)), out, id="left-out") if out else None,
        id="board",
        class_="board",
        data_rank_by=board.rank_by,
    )


def _caption(board: Board) -> str:
    honest = ", honest board" if board.honest else ""
    return f"Standings by {WORDS[board.rank_by]}{honest}, at {time_of_day(board.at_s)}"


def _head(rank_by: RankBy) -> Markup:
    def heading(key: str, title: object, explained: str, *, ranks: object = None) -> Markup:
        ranked = ranks is not None and ranks == rank_by
        return tag(
            "th",
            title,
            scope="col",
            class_=f"c-{key}" + (" ranked" if ranked else ""),
            title=explained,
            aria_sort=(_ORDER.get(rank_by, "ascending")) if ranked else None,
        )

    return tag(
        "thead",
        tag(
            "tr",
            heading("rank", "#", "Rank; hosts that the window cannot tell apart share one"),
            heading("move", "1 / 5 min", "Places won or lost against 1 and 5 minutes ago"),
            heading(
                "host", "host", "Host, what explains its figures, and what still weighs on them"
            ),
            heading("rps", "requests/s", "Ok requests a second, over the window", ranks="rps"),
            heading(
                "spark", "trend", "Requests a second over the window, each host on its own scale"
            ),
            [heading(c.key, c.title, c.explained, ranks=c.ranks) for c in COLUMNS],
        ),
    )


def _row(
    one: Standing,
    place: int,
    board: Board,
    *,
    look: LineStyle,
    spark: Sequence[float],
    fastest: float,
) -> Markup:
    return tag(
        "tr",
        tag("td", _rank(one), class_="c-rank"),
        tag("td", _moves(one), class_="c-move"),
        _host(one),
        tag("td", _bar(one.rps, fastest), tag("b", rate(one.rps)), class_="c-rps"),
        tag("td", sparkline(spark), class_="c-spark"),
        [
            tag("td", column.cell(one), class_=_classes(column, board), data_title=column.title)
            for column in COLUMNS
        ],
        data_host=one.name,
        data_rank=one.rank,
        data_place=place or None,
        data_ok=one.ok,
        class_=_states(one, place),
        style=f"--host:{look.colour}",
    )


def _host(one: Standing) -> Markup:
    """Who it is, what explains its figures, and what still weighs on them."""
    return tag(
        "th",
        tag("i", class_="chip"),
        tag("span", one.name, class_="name", title=one.url),
        badges(one),
        taint_note(one.taints),
        tag("span", _silence(one), class_="note")
        if one.ok == 0 or one.trouble == "failing"
        else None,
        scope="row",
        class_="c-host",
    )


def _states(one: Standing, place: int) -> str | None:
    states = {
        "dead": one.ok == 0,
        "out": one.left_out,
        "first": place == 1,
        "bad": one.trouble is not None,
    }
    return " ".join(name for name, holds in states.items() if holds) or None


def _classes(column: FigureColumn, board: Board) -> str:
    return f"c-{column.key}" + (" ranked" if column.ranks == board.rank_by else "")


def _rank(one: Standing) -> Markup:
    if one.rank is None:
        return tag("span", UNKNOWN, class_="rank", title="Left out of the honest board")
    if not one.tied:
        return tag("span", one.rank, class_="rank")
    tie = tag("abbr", "=", class_="tie", title="Tied: the window cannot tell them apart")
    return tag("span", one.rank, tie, class_="rank")


def _moves(one: Standing) -> list[Markup]:
    return [_move(one.rank_change, "1 min", "near"), _move(one.rank_change_5m, "5 min", "far")]


def _move(change: int | None, since: str, size: str) -> Markup:
    if not change:
        told = "no board" if change is None else "same place"
        return tag("span", icon("same"), class_=f"move same {size}", title=f"{told} {since} ago")
    way = "up" if change > 0 else "down"
    return tag(
        "span",
        icon(way),
        abs(change),
        class_=f"move {way} {size}",
        title=f"{way} {abs(change)} against {since} ago",
    )


def _bar(value: float, most: float) -> Markup:
    return tag("span", class_="bar", style=f"--w:{value / most if most > 0 else 0.0:.3f}")


def _silence(one: Standing) -> str:
    if one.ok:
        return f"{one.errors:,} of {one.ok + one.errors:,} requests failed"
    return f"no answer, {one.errors:,} errors" if one.errors else "nothing answered yet"


def _covered_row(place: int) -> Markup:
    span = tag("td", "still covered", colspan=len(COLUMNS) + 4)
    return tag(
        "tr",
        tag("td", tag("span", place, class_="rank"), class_="c-rank"),
        span,
        class_="covered",
        data_key=f"covered-{place}",
        data_place=place,
    )


def _left_out_head(count: int) -> Markup:
    hosts = "1 host is" if count == 1 else f"{count} hosts are"
    told = f"{hosts} left out of the honest board; the badge says why"
    return tag("tr", tag("td", told, colspan=len(COLUMNS) + 5), class_="divider", data_key="out")
