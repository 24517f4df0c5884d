"""Ranks over time: one line a host, the first place on top, what happened marked where it happened.

It ranks nothing. Tied hosts share a rank but not a line: on the chart they stand side by side, in the table's order.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from leaderboard_page.colours import NOBODY
from toolkit.board.history import Ranks
from toolkit.records import Event
from toolkit.report.charts import (
    ChartFrame,
    LineStyle,
    Point,
    Scale,
    chart,
    empty,
    grid_x,
    line,
    rule,
    time_ticks,
    word,
)
from toolkit.report.html import Markup, tag
from toolkit.units import time_of_day

MOST_POINTS = 240
"""Moments drawn: more are finer than a screen shows, and cost every viewer bytes."""
MARKED = frozenset({"mark", "restart", "model", "config", "phase", "freeze", "reveal", "resume"})
SAME_MOMENT_S = 5.0
CROWDED = 0.03
"""Marks that are nearer to each other than this share of the axis would hide one another."""


def rank_chart(
    ranks: Ranks,
    events: Sequence[Event],
    *,
    names: Sequence[str],
    looks: Mapping[str, LineStyle],
    title: str = "Rank over time",
) -> Markup:
    """The chart of the hosts in `names`, which stand in the table's order."""
    frame = ChartFrame(key="ranks", title=title, alt=_told(ranks, names))
    if len(ranks.times) < 2 or not names:
        return empty(frame, "Ranks are drawn here once the blast is a few seconds old.")
    kept = _thinned(len(ranks.times))
    times = [ranks.times[place] for place in kept]
    places = _places(ranks, kept, names)
    x = Scale(times[0], times[-1])
    points = {
        name: [
            None if place is None else (x.at(at), _level(place, len(names)))
            for at, place in zip(times, of_host, strict=True)
        ]
        for name, of_host in places.items()
    }
    grid, ticks = grid_x([(x.at(at), told) for at, told in time_ticks(times[0], times[-1])])
    marks = _marks(events, x, points)
    lines = [
        line(name, points[name], looks.get(name, NOBODY), title=_line_title(name, ranks))
        for name in reversed(names)
    ]
    return chart(
        frame,
        [grid, marks[0], lines],
        [*ticks, *_ends(names, points, looks), *marks[1]],
        _happened(events, x),
    )


def _told(ranks: Ranks, names: Sequence[str]) -> str:
    if not ranks.times or not names:
        return "No ranks yet"
    return f"Ranks until {time_of_day(ranks.times[-1])}; now from the first: {', '.join(names)}"


def _thinned(count: int) -> list[int]:
    """Which of the moments are drawn: evenly spread, the last always among them."""
    step = -(-count // MOST_POINTS)
    return sorted(range(count - 1, -1, -step))


def _places(ranks: Ranks, kept: Sequence[int], names: Sequence[str]) -> dict[str, list[int | None]]:
    """The level of each host at each moment: its rank among the drawn, tied ones in the table's order."""
    found: dict[str, list[int | None]] = {name: [] for name in names}
    for moment in kept:
        ranked = [
            (rank, order, name)
            for order, name in enumerate(names)
            if (rank := _rank_at(ranks, name, moment)) is not None
        ]
        taken = 0
        levels: dict[str, int] = {}
        for rank, of_rank in groupby(sorted(ranked), key=lambda entry: entry[0]):
            for *_, name in of_rank:
                # a host below the drawn ones leaves its line at the chart's foot
                taken = max(taken + 1, rank)
                levels[name] = taken
        for name in names:
            level = levels.get(name)
            found[name].append(level if level is None else min(level, len(names) + 1))
    return found


def _rank_at(ranks: Ranks, name: str, moment: int) -> int | None:
    of_host = ranks.ranks.get(name)
    return None if of_host is None else of_host[moment]


def _level(place: int, count: int) -> float:
    """The first place's row on top, the last's at the foot, as the table's rows stand."""
    return 1 - (place - 0.5) / count


def _line_title(name: str, ranks: Ranks) -> str:
    known = [rank for rank in ranks.ranks.get(name, ()) if rank is not None]
    return f"{name}: now {known[-1]}, best {min(known)}, worst {max(known)}" if known else name


def _ends(
    names: Sequence[str],
    points: Mapping[str, Sequence[Point | None]],
    looks: Mapping[str, LineStyle],
) -> list[Markup]:
    """Each host's name where its line ends."""
    found = []
    for name in names:
        last = points[name][-1] if points[name] else None
        if last is not None and last[1] >= 0:
            style = f"--host:{looks.get(name, NOBODY).colour}"
            found.append(
                word(name, x=1, y=last[1], class_="end", style=style, data_key=f"end/{name}")
            )
    return found


# --- what happened --------------------------------------------------------------------------------


def _shown(events: Sequence[Event], x: Scale) -> list[Event]:
    return [e for e in events if e.kind in MARKED and x.low <= e.at <= x.high + SAME_MOMENT_S]


def _marks(
    events: Sequence[Event], x: Scale, points: Mapping[str, Sequence[Point | None]]
) -> tuple[list[Markup], list[Markup]]:
    """A rule across for what concerns all, a ring on the line for what concerns one host; and their numbers."""
    rules, words = [], []
    taken: list[Point] = []
    for number, event in enumerate(_shown(events, x), 1):
        at = x.at(event.at)
        if event.name is None:
            rules.append(rule(at, class_=event.kind, title=sentence(event)))
            place: Point | None = (at, 1.0)
        else:
            near = _nearest(points.get(event.name, ()), at)
            place = None if near is None else (at, near[1])
        if place is None or place[1] < 0:
            continue
        beside = sum(abs(at - there) < CROWDED and level == place[1] for there, level in taken)
        taken.append(place)
        words.append(_number(number, event, place, beside))
    return rules, words


def _number(number: int, event: Event, place: Point, beside: int) -> Markup:
    """A mark's number; `beside` marks are there already, and it stands to their right."""
    return word(
        number,
        x=place[0],
        y=place[1],
        class_=f"mark {event.kind}" + (" all" if event.name is None else ""),
        title=sentence(event),
        data_key=f"mark/{number}",
        style=f"margin-left:{1.7 * beside:.1f}em",
    )


def _nearest(points: Sequence[Point | None], x: float) -> Point | None:
    known = [point for point in points if point is not None]
    return min(known, key=lambda point: abs(point[0] - x), default=None)


def _happened(events: Sequence[Event], x: Scale) -> Markup | None:
    """The marks' sentences, by number."""
    shown = _shown(events, x)
    if not shown:
        return None
    items = [
        tag("li", tag("b", number, class_=f"mark {event.kind}"), sentence(event))
        for number, event in enumerate(shown, 1)
    ]
    return tag("ol", items, class_="happened")


WORDS = {
    "mark": "",
    "restart": "restarted",
    "model": "serves another model",
    "config": "other settings",
    "phase": "phase",
    "freeze": "the board was frozen",
    "reveal": "the board was revealed",
    "resume": "the blast was resumed",
    "start": "the blast began",
    "stop": "the blast ended",
}


TOLD_BY_TEXT = frozenset({"restart", "model", "config"})
"""Kinds whose text, where there is any, says it all."""


def sentence(event: Event) -> str:
    """An event in words: `14:32:10 alice restarted: vLLM 0.11.2`."""
    what = WORDS.get(event.kind, event.kind)
    if event.text and event.kind in TOLD_BY_TEXT:
        what = ""
    told = ": ".join(part for part in (what, event.text) if part)
    return " ".join(part for part in (time_of_day(event.at), event.name, told) if part)
