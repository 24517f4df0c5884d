import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from leaderboard_page.charts import (
    COLOURS,
    NOBODY,
    density_chart,
    heat_strip,
    line_styles,
    pareto,
    rank_chart,
    sentence,
    series_chart,
    solid,
    tradeoff_chart,
)
from matplotlib.image import imread
from support.page_html import Node, tree
from support.standings import standing

from toolkit.board.history import Density, Heat, HostSeries, Ranks
from toolkit.board.ranking import Figures
from toolkit.records import Event
from toolkit.report.charts import LineStyle
from toolkit.units import time_of_day

BEGAN = 1_750_000_000


def corners(chart: Node, host: str) -> list[tuple[float, float]]:
    """The corners of a host's line, out of 1000, from the top left."""
    path = chart.one("g", data_host=host).one("path", class_="ink")["d"] or ""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def test_a_hosts_colour_follows_its_name_and_no_two_of_32_look_alike() -> None:
    assert line_styles(["b", "a", "c"]) == line_styles(["c", "b", "a"])
    found = line_styles(f"h{n:02}" for n in range(4 * COLOURS))
    assert len(set(found.values())) == 4 * COLOURS
    # few hosts are drawn solid but where two have one colour
    known = {"a": LineStyle("red", ""), "b": LineStyle("red", "9 5"), "c": LineStyle("blue", "9 5")}
    assert solid(known, ["b", "c"]) == {"b": LineStyle("red", ""), "c": LineStyle("blue", "")}
    assert solid(known, ["a", "b", "d"]) == {"a": known["a"], "b": known["b"], "d": NOBODY}


# --- ranks over time ------------------------------------------------------------------------------


def ranked(*names: str, events: tuple[Event, ...] = (), **ranks: list[int | None]) -> Node:
    count = len(next(iter(ranks.values())))
    found = Ranks(
        times=tuple(BEGAN + 10 * n for n in range(count)),
        ranks={name: tuple(of_host) for name, of_host in ranks.items()},
    )
    return tree(rank_chart(found, events, names=names or tuple(ranks), styles=line_styles(ranks)))


def test_a_rank_is_the_height_of_a_row_and_a_level_line_has_two_points() -> None:
    # two rows: their middles are at a quarter and three quarters
    chart = ranked(a=[1, 1, 2], b=[2, 2, 1])
    assert corners(chart, "a") == [(0.0, 250.0), (500.0, 250.0), (1000.0, 750.0)]
    assert corners(chart, "b") == [(0.0, 750.0), (500.0, 750.0), (1000.0, 250.0)]
    ends = chart.all("span", class_="end")
    assert [(end.text, (end["style"] or "").split(";")[1]) for end in ends] == [
        ("a", "top:75.00%"),
        ("b", "top:25.00%"),
    ]
    level = ranked(a=[1, 1, 1, 1, 1], b=[2, 2, 2, 2, 2])
    assert corners(level, "a") == [(0.0, 250.0), (1000.0, 250.0)]
    assert "a few seconds old" in ranked(a=[1]).text


def test_tied_hosts_stand_side_by_side_and_who_is_below_leaves_at_the_foot() -> None:
    # three rows in the table's order: middles at a sixth, three and five sixths
    chart = ranked("b", "a", "c", a=[1, 1], b=[1, 1], c=[3, 3])
    heights = {name: corners(chart, name)[0][1] for name in "abc"}
    assert heights == {"b": 166.7, "a": 500.0, "c": 833.3}
    below = ranked("a", "b", a=[1, 1], b=[7, 2])
    assert corners(below, "b") == [(0.0, 1250.0), (1000.0, 750.0)]
    # one that had no rank yet begins where it got one
    assert corners(ranked(a=[1, 1, 1], b=[None, 2, 2]), "b")[0] == (500.0, 750.0)


def test_a_long_run_is_thinned_and_its_last_moment_stays() -> None:
    wild = [1 + n % 2 for n in range(1000)]
    found = corners(ranked(a=wild, b=[3 - n for n in wild]), "a")
    assert len(found) <= 240
    assert found[-1] == (1000.0, 750.0)


def test_what_concerns_all_is_a_rule_and_what_concerns_a_host_a_mark_on_its_line() -> None:
    events = (
        Event(run="r", at=BEGAN - 60.0, kind="phase", text="early"),
        Event(run="r", at=BEGAN + 10.0, kind="phase", text="full load"),
        Event(run="r", name="b", url="u", at=BEGAN + 20.0, kind="mark", text="GPTQ"),
        Event(run="r", name="b", url="u", at=BEGAN + 20.0, kind="mark", text="again"),
        Event(run="r", name="c", url="u", at=BEGAN + 5.0, kind="mark", text="elsewhere"),
    )
    chart = ranked(a=[1, 1, 1], b=[2, 2, 2], events=events)
    (rule,) = chart.all("g", class_="rule")
    assert rule.one("path", class_="ink")["d"] == "M500.0 0V1000"
    # two of one moment stand side by side; one outside the chart or of a host not drawn has none
    assert [(mark.text, mark["style"]) for mark in chart.all("span", class_="mark")] == [
        ("1", "left:50.00%;top:0.00%;margin-left:0.0em"),
        ("2", "left:100.00%;top:75.00%;margin-left:0.0em"),
        ("3", "left:100.00%;top:75.00%;margin-left:1.7em"),
    ]
    assert [line.text for line in chart.one("ol", class_="happened").all("li")][:2] == [
        f"1 {time_of_day(BEGAN + 10)} phase: full load",
        f"2 {time_of_day(BEGAN + 20)} b GPTQ",
    ]


def test_an_event_is_said_once_in_its_own_words_and_names_are_text() -> None:
    at = float(BEGAN)
    for event, words in (
        (Event(run="r", name="a", url="u", at=at, kind="restart"), "a restarted"),
        (
            Event(run="r", name="a", url="u", at=at, kind="restart", text="began anew"),
            "a began anew",
        ),
        (Event(run="r", at=at, kind="freeze"), "the board was frozen"),
    ):
        assert sentence(event) == f"{time_of_day(at)} {words}"
    evil = "<script>alert(1)</script>"
    chart = ranked(**{evil: [1, 1]})
    assert chart.all("script") == []
    assert chart.one("span", class_="end").text == evil


# --- the trade-off --------------------------------------------------------------------------------


def test_every_host_that_answered_is_a_dot_and_who_is_beaten_by_nobody_in_both_is_marked() -> None:
    hosts = [
        standing("quick", rps=10.0, p95_ms=100.0),
        standing("busy", rps=50.0, p95_ms=900.0),
        standing("slow", rps=9.0, p95_ms=200.0),
        standing("late", rps=50.0, p95_ms=1000.0),
        standing("dead", rps=0.0, p95_ms=None),
    ]
    assert [one.name for one in pareto(hosts)] == ["quick", "busy"]
    chart = tree(tradeoff_chart(hosts, styles={}))
    dots = {dot["data-host"]: dot for dot in chart.all("span", class_="dot")}
    assert {name for name, dot in dots.items() if "best" in dot.classes} == {"quick", "busy"}
    assert set(dots) == {"quick", "busy", "slow", "late"}
    # faster is further left and busier is higher; a name that would cover another waits for the pointer
    left, top = (
        {
            name: float(re.findall(r"([\d.]+)%", dot["style"] or "")[axis])
            for name, dot in dots.items()
        }
        for axis in (0, 1)
    )
    assert left["quick"] < left["slow"] < left["busy"] < left["late"]
    assert top["busy"] == top["late"] < top["quick"] < top["slow"]
    assert {name for name, dot in dots.items() if "crowded" in dot.classes} == {"late"}
    assert "once they have answered" in tree(tradeoff_chart(hosts[-1:], styles={})).text


# --- densities and series -------------------------------------------------------------------------

GAMMA = 1.01 / 0.99


def densities(**counts: dict[int, int]) -> Node:
    """Counts by number of bucket, from the first to the last of them."""
    found = []
    for name, of_host in counts.items():
        buckets = range(min(of_host), max(of_host) + 1) if of_host else range(0)
        one = Density(
            name=name,
            values_ms=tuple(GAMMA**n for n in buckets),
            counts=tuple(of_host.get(n, 0) for n in buckets),
        )
        found.append(one)
    return tree(density_chart(found, styles={}, key="d"))


def test_a_density_shows_both_humps_of_a_cache_and_no_comb() -> None:
    # a half in 2 ms, a half in 2 s, and nothing between
    peaks = [x for x, y in corners(densities(a={35: 50, 380: 50}), "a") if y < 200]
    assert len(peaks) == 2
    assert peaks[0] < 150
    assert peaks[1] > 850
    # 300 even buckets in columns of 5: 60 full ones
    level = corners(densities(a=dict.fromkeys(range(300), 7)), "a")
    assert len({y for _, y in level if y < 1000}) == 1


def test_shares_of_hosts_with_few_and_many_answers_are_alike_and_one_without_leaves_the_others() -> (
    None
):
    chart = densities(few={100: 1, 200: 1}, none={}, many={100: 900, 200: 900})
    assert corners(chart, "few") == corners(chart, "many")
    assert [item.text for item in chart.one("ul", class_="legend").all("li")] == ["few", "many"]
    assert "No answers" in densities(none={}).text


@pytest.mark.parametrize(
    ("p95_ms", "strokes"), [([100.0, 200.0, None, 100.0, 300.0], 2), ([None, None], 0)]
)
def test_a_line_breaks_where_a_host_answered_nothing(
    p95_ms: list[float | None], strokes: int
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(Figures._fields, 0)
    series = HostSeries(
        name="a",
        times=tuple(BEGAN + 10 * n for n in range(len(p95_ms))),
        figures=tuple(Figures(**nothing | {"p95_ms": value}) for value in p95_ms),
    )
    chart = tree(series_chart([series], metric="p95_ms", title="p95", styles={}))
    if strokes:
        path = chart.one("g", data_host="a").one("path", class_="ink")["d"] or ""
        assert path.count("M") == strokes
    else:
        assert "Nothing to draw" in chart.text


# --- the heat strip -------------------------------------------------------------------------------


def heat(counts: list[list[int]]) -> Node:
    found = Heat(
        name="a",
        step_s=10,
        times=tuple(BEGAN + 10 * n for n in range(len(counts))),
        edges_ms=tuple(10.0 * 2**n for n in range(len(counts[0]) + 1)),
        counts=tuple(tuple(column) for column in counts),
    )
    return tree(heat_strip(found))


def test_a_field_is_the_opaquer_the_larger_its_share_of_its_moment() -> None:
    # times go right, latencies up: 3 of 4 answers of the first moment were quick
    style = heat([[3, 1, 0], [0, 0, 9], [0, 0, 0]]).one("div", class_="heat")["style"] or ""
    encoded = re.search(r"base64,([A-Za-z0-9+/=]+)", style)
    assert encoded
    picture = imread(io.BytesIO(base64.b64decode(encoded[1])), format="png")
    # of the largest share, 1: sqrt(3/4) and sqrt(1/4) of 255; a moment without answers stays clear
    assert np.rint(255 * picture[:, :, -1]).astype(int).tolist() == [
        [0, 255, 0],
        [128, 0, 0],
        [221, 0, 0],
    ]


@pytest.mark.parametrize("counts", [[[0, 0], [0, 0]], [[1, 0]]])
def test_without_two_moments_and_an_answer_there_is_no_strip(counts: list[list[int]]) -> None:
    assert "No answers yet" in heat(counts).text
