"""Requests a second against the p95 latency: who is both fast and busy, and who buys the one with the other."""

from collections.abc import Mapping, Sequence

from leaderboard_page.colours import NOBODY
from toolkit.board.standings import Standing
from toolkit.report.charts import (
    ChartFrame,
    LineStyle,
    Scale,
    chart,
    empty,
    grid_x,
    grid_y,
    linear_ticks,
    log_scale,
    log_ticks,
    trace,
    word,
)
from toolkit.report.html import Markup, tag
from toolkit.units import milliseconds, rate, tick, tick_ms

FRAME = ChartFrame(
    key="tradeoff",
    title="Requests/s against latency p95",
    alt="Each host's requests a second against the 95th percentile of its latency; up and left is better",
    axes="up and left is better",
)


def pareto(standings: Sequence[Standing]) -> list[Standing]:
    """The hosts that nobody beats in both: by rising latency, each with more requests/s than all quicker ones."""
    front: list[Standing] = []
    known = [one for one in standings if one.p95_ms is not None]
    for one in sorted(known, key=lambda one: (one.p95_ms or 0.0, -one.rps)):
        if not front or one.rps > front[-1].rps:
            front.append(one)
    return front


def tradeoff_chart(standings: Sequence[Standing], *, looks: Mapping[str, LineStyle]) -> Markup:
    """A dot a host, and the front joined by steps."""
    known = [one for one in standings if one.p95_ms is not None]
    if not known:
        return empty(FRAME, "Hosts are drawn here once they have answered.")
    x = log_scale([one.p95_ms or 0.0 for one in known], room=1.5)
    y = Scale(0.0, 1.15 * max(one.rps for one in known))
    columns, below = grid_x([(x.at(v), tick_ms(v)) for v in log_ticks(x, most=5)])
    rows, beside = grid_y([(y.at(v), tick(v)) for v in linear_ticks(y.high)])
    front = pareto(known)
    return chart(
        FRAME,
        [columns, rows, _steps(front, x, y)],
        [*below, *beside, *_dots(known, front, (x, y), looks)],
    )


def _steps(front: Sequence[Standing], x: Scale, y: Scale) -> Markup | None:
    if len(front) < 2:
        return None
    corners = []
    for one, after in zip(front, [*front[1:], None], strict=True):
        level = y.at(one.rps)
        corners.append((x.at(one.p95_ms or 0.0), level))
        if after is not None:
            corners.append((x.at(after.p95_ms or 0.0), level))
    return tag("path", tag("title", "Pareto front"), d=trace(corners), class_="front")


def _dots(
    known: Sequence[Standing],
    front: Sequence[Standing],
    scales: tuple[Scale, Scale],
    looks: Mapping[str, LineStyle],
) -> list[Markup]:
    x, y = scales
    best = {one.name for one in front}
    taken: list[tuple[float, float]] = []
    found = []
    for one in sorted(known, key=lambda one: -one.rps):
        place = (x.at(one.p95_ms or 0.0), y.at(one.rps))
        crowded = any(abs(place[0] - u) < 0.16 and abs(place[1] - v) < 0.06 for u, v in taken)
        if not crowded:
            taken.append(place)
        kind = "dot" + (" best" if one.name in best else "") + (" crowded" if crowded else "")
        kind += " leftward" if place[0] > 0.72 else ""
        found.append(
            word(
                tag("span", one.name, class_="name"),
                x=place[0],
                y=place[1],
                class_=kind,
                style=f"--host:{looks.get(one.name, NOBODY).colour}",
                title=f"{one.name}: {rate(one.rps)} requests/s, p95 {milliseconds(one.p95_ms)}",
                data_host=one.name,
            )
        )
    return found
