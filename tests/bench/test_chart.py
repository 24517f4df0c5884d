"""A sweep's picture: what stands in it, for names, times and hosts of all kinds."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.shots import no_books, step

from toolkit.bench.chart import draw, picture
from toolkit.bench.plan import BenchPlan
from toolkit.bench.results import Result, results
from toolkit.bench.summary import HostSummary
from toolkit.records import Host

NOTHING = results(
    [(Host(name="-", url="-"), [], no_books())],
    plan=BenchPlan(),
    run="r",
    client_ok=True,
    limits=None,
)[0].summary


def level(concurrency: int, e2e_ms: float | None, tokens_per_s: float | None) -> HostSummary:
    return step(concurrency, 1.0, e2e_ms, output_tokens_per_s=tokens_per_s)


STEPS = (level(1, 1000, 50), level(4, 1500, 200), level(16, 4000, 300))


def host(name: str, *levels: HostSummary) -> Result:
    return Result(summary=replace(NOTHING, name=name, url="http://10.0.0.4:8000"), levels=levels)


def names(figure: Figure) -> list[str]:
    return [text.get_text().removeprefix("\u200b") for text in figure.legends[0].get_texts()]


def axes_of(told: Sequence[Result]) -> Axes:
    figure = picture(told)
    figure.draw_without_rendering()
    return figure.axes[0]


def test_a_line_is_a_host_and_a_point_a_level() -> None:
    axes = axes_of([host("alice", *STEPS), host("bob", *STEPS[:2])])
    first, second = axes.get_lines()
    assert [tuple(point) for point in first.get_xydata()] == [(1.0, 50), (1.5, 200), (4.0, 300)]
    assert len(second.get_xydata()) == 2
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()
    assert [text.get_text() for text in axes.texts] == ["1", "4", "16", "1", "4"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("[red]bold[/red]", "[red]bold[/red]"),
        ("_hidden", "_hidden"),
        ("e-ß-ж", "e-ß-ж"),
        # no boxes: the font has no such letters, but every host has a URL
        ("日本", "http://10.0.0.4:8000"),
        # 32 of 60: 15, a dot dot dot, 16
        ("a" * 30 + "b" * 30, "a" * 15 + "…" + "b" * 16),
        ("$x$", r"\$x\$"),  # a dollar begins no formula
    ],
)
def test_the_legend_calls_a_host_what_can_be_read(name: str, shown: str) -> None:
    assert names(picture([host(name, *STEPS)])) == [shown]


def test_a_host_without_figures_is_named_and_has_no_point(tmp_path: Path) -> None:
    told = [host("alice", *STEPS), host("dead", level(1, None, 0), level(2, None, None))]
    figure = picture(told)
    assert names(figure) == ["alice", "dead (no figures)"]
    assert len(figure.axes[0].get_lines()[1].get_xydata()) == 0
    draw([told[1]], tmp_path / "dead.png")  # nobody has any


@pytest.mark.parametrize(
    ("low_ms", "high_ms"),
    [
        (40, 40),
        (0.6, 2.4),
        (950, 1050),
        (12, 110),
        (70, 7_000),
        (3, 4_000),
        (0.01, 300_000),
    ],
)
def test_the_time_axis_has_numbers_that_do_not_overlap(low_ms: float, high_ms: float) -> None:
    figure = picture([host("alice", level(1, low_ms, 50), level(2, high_ms, 60))])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    left, right = axes.get_xlim()
    assert left <= low_ms / 1000 <= high_ms / 1000 <= right
    inside = [
        label
        for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        if left <= tick <= right
    ]
    assert len(inside) >= 2
    boxes = [label.get_window_extent() for label in inside]
    assert all(one.x1 < following.x0 for one, following in pairwise(boxes))
    assert [float(label.get_text().replace("\u2212", "-")) for label in inside] == pytest.approx(
        [tick for tick in axes.get_xticks() if left <= tick <= right]
    )
    assert axes.get_xticklabels(minor=True) == []


def test_every_point_is_inside_also_of_one_level_or_of_no_speed() -> None:
    axes = axes_of([host("alice", level(8, 100, 3000)), host("bob", level(8, 130, 3200))])
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 3200
    assert axes_of([host("alice", level(8, 100, 0))]).get_ylim() == (0, 1)


@pytest.mark.parametrize("count", [1, 20, 60])
def test_the_legend_lies_beside_the_lines_whole(count: int) -> None:
    figure = picture([host(f"host-{number}", *STEPS) for number in range(count)])
    figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert len(names(figure)) == count
    assert legend.x0 >= axes.x1
    assert legend.y0 >= 0
    assert legend.x1 <= figure.bbox.x1
    assert axes.width > figure.bbox.width / 2


def test_the_file_is_a_png_of_a_fixed_size_whatever_a_users_settings_of_matplotlib(
    tmp_path: Path,
) -> None:
    odd = [host("a$x^2", *STEPS), host(r"$\frac$", *STEPS)]
    draw(odd, tmp_path / "plain.png")
    with mpl.rc_context({"font.size": 40, "axes.facecolor": "black", "font.family": "Nowhere"}):
        draw(odd, tmp_path / "dressed.png")
        assert mpl.rcParams["font.size"] == 40  # and ours change none of theirs
    data = (tmp_path / "plain.png").read_bytes()
    assert data == (tmp_path / "dressed.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    # 10 x 6.5 inches of 120 dots
    assert struct.unpack(">II", data[16:24]) == (1200, 780)
    with pytest.raises(OSError, match="No such file"):
        draw(odd, tmp_path / "nowhere" / "a.png")
