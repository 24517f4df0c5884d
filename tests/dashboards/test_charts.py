import base64
import io
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaderboard_page import charts
from leaderboard_page.charts import (
    COLOURS,
    NOBODY,
    SHAPES,
    density_chart,
    event_sentence,
    heat_strip,
    line_styles,
    pareto,
    rank_chart,
    series_chart,
    solid,
    tradeoff_chart,
)
from matplotlib.image import imread
from support.page_html import Node, tree
from support.standings import AT_S, standing, taint

from toolkit.board.history import Density, Heat, HostSeries, Ranks
from toolkit.board.ranking import Figures
from toolkit.board.standings import Standing
from toolkit.records import Event
from toolkit.report.charts import LineStyle
from toolkit.units import time_of_day

BEGAN = 1_750_000_000


def corners(chart: Node, host: str) -> list[tuple[float, float]]:
    """The corners of a host's line, out of 1000, from the top left."""
    path = chart.one("g", data_host=host).one("path", class_="ink")["d"] or ""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def test_each_ten_hosts_have_ten_colours_whoever_leads_among_them() -> None:
    names = [f"h{n:02}" for n in range(40)]
    # by chance the first ten have two wishes for one colour: h03 and h13, h07 and h27
    top = ["h13", "h03", "h07", "h27", "h00", "h01", "h02", "h04", "h05", "h36"]
    rest = [name for name in names if name not in top]
    found = line_styles([*top, *rest])
    assert len(set(found.values())) == 40
    assert {found[name].stroke for name in top} == {""}
    assert len({found[name].colour for name in top}) == COLOURS == 10
    # ranks that change within the ten change no colour
    assert line_styles([*reversed(top), *rest]) == found
    # when h37 comes for h36, all who have the colour that they wish keep it
    other = line_styles([*top[:-1], "h37", *(name for name in [*rest, "h36"] if name != "h37")])
    settled = ["h00", "h01", "h02", "h03", "h04", "h05", "h07"]
    assert {name: other[name] for name in settled} == {name: found[name] for name in settled}


def test_few_hosts_are_drawn_solid_but_where_two_have_one_colour() -> None:
    known = {"a": LineStyle("red", ""), "b": LineStyle("red", "9 5"), "c": LineStyle("blue", "9 5")}
    assert solid(known, ["b", "c"]) == {"b": LineStyle("red", ""), "c": LineStyle("blue", "")}
    assert solid(known, ["a", "b", "d"]) == {"a": known["a"], "b": known["b"], "d": NOBODY}


# How the eye sees a colour, as linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1.
EYES = {
    "usual": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]
    ),
}  # fmt: skip
# Ottosson 2020: linear RGB -> cone responses -> OKLab, in which equal steps look equal
CONES = np.array(
    [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]]
)  # fmt: skip
OKLAB = np.array(
    [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099], [0.0259040371, 0.7827717662, -0.808675766]]
)  # fmt: skip


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_the_page_and_from_each_other_for_all_eyes(theme: int) -> None:
    css = (Path(charts.__file__).parent / "page.css").read_text()
    pairs = dict(re.findall(r"--(c\d|ground): light-dark\((#\w{6}), ?#\w{6}\)", css))
    assert set(pairs) == {"ground", *(f"c{n}" for n in range(COLOURS))}
    linear = {}
    for name, both in re.findall(r"--(c\d|ground): light-dark\(([^)]+)\)", css):
        written = both.split(", ")[theme]
        rgb = np.array([int(written[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear[name] = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    light = {name: float(rgb @ (0.2126, 0.7152, 0.0722)) + 0.05 for name, rgb in linear.items()}
    ground = light.pop("ground")
    assert min(max(one, ground) / min(one, ground) for one in light.values()) >= 3
    for eye in EYES.values():
        seen = [
            OKLAB @ np.cbrt(CONES @ np.clip(eye @ linear[name], 0, 1)) for name in sorted(light)
        ]
        nearest = min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2))
        # 0.02 is what can just be told apart side by side
        assert nearest >= 0.08


# --- ranks over time ------------------------------------------------------------------------------


def ranked(
    *names: str, events: tuple[Event, ...] = (), above: int = 0, **ranks: list[int | None]
) -> Node:
    count = len(next(iter(ranks.values())))
    found = Ranks(
        times=tuple(BEGAN + 10 * n for n in range(count)),
        ranks={name: tuple(of_host) for name, of_host in ranks.items()},
    )
    shown = names or tuple(ranks)
    return tree(rank_chart(found, events, names=shown, styles=line_styles(ranks), above=above))


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


def test_beside_a_later_page_of_the_table_its_first_place_is_on_top() -> None:
    # places 3 and 4 of four, and one that was first before; of three tied hosts the third in the table is here
    chart = ranked("a", "b", "c", "d", a=[3, 1], b=[2, 1], c=[1, 1], d=[4, 4], above=2)
    assert {line["data-host"] for line in chart.all("g", class_="line")} == {"c", "d"}
    # c comes from two rows above: half a row over the top and more is all the same
    assert corners(chart, "c") == [(0.0, -250.0), (1000.0, 250.0)]
    assert corners(chart, "d") == [(0.0, 750.0), (1000.0, 750.0)]
    assert [end.text for end in chart.all("span", class_="end")] == ["c", "d"]


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
        assert event_sentence(event) == f"{time_of_day(at)} {words}"
    evil = "<script>alert(1)</script>"
    chart = ranked(**{evil: [1, 1]})
    assert chart.all("script") == []
    assert chart.one("span", class_="end").text == evil


# --- the trade-off --------------------------------------------------------------------------------


HOSTS = [
    standing("quick", rps=10.0, p95_ms=100.0),
    standing("busy", rps=100.0, p95_ms=1000.0),
    standing("slow", rps=1.0, p95_ms=316.2),
    standing("broken", rps=200.0, p95_ms=50.0, error_rate=0.25, errors=300),
    standing("dead", rps=0.0, ok=0, errors=9, error_rate=1.0, p95_ms=None),
]


def dots_of(*standings: Standing, **more: Any) -> dict[str, Node]:
    drawn = tree(tradeoff_chart(standings, styles=line_styles(s.name for s in standings), **more))
    return {dot["data-host"] or "": dot for dot in drawn.all("span", class_="dot")}


def test_each_decade_has_the_same_room_and_who_is_beaten_by_nobody_in_both_is_marked() -> None:
    # whoever fails offers nobody a choice
    assert [one.name for one in pareto(HOSTS)] == ["quick", "busy"]
    dots = dots_of(*HOSTS)
    assert {name for name, dot in dots.items() if "best" in dot.classes} == {"quick", "busy"}
    assert set(dots) == {"quick", "busy", "slow", "broken"}
    left, top = (
        {
            name: float(re.findall(r"([\d.]+)%", dot["style"] or "")[axis])
            for name, dot in dots.items()
        }
        for axis in (0, 1)
    )
    # faster is further left and busier is higher: a tenth is as far as a tenth
    assert left["slow"] - left["quick"] == pytest.approx(left["busy"] - left["slow"], abs=0.1)
    assert top["quick"] - top["busy"] == pytest.approx(top["slow"] - top["quick"], abs=0.1)
    assert top["slow"] > top["quick"]
    chart = tree(tradeoff_chart(HOSTS[-1:], styles={}))
    assert "once they have answered" in chart.text
    assert "No answer in this window: dead (never answered)" in chart.text


def test_every_dot_has_a_name_and_the_second_ten_another_shape() -> None:
    names = [f"host-{n:02}" for n in range(20)]
    dots = dots_of(*(standing(name, rps=10.0 + n) for n, name in enumerate(names)))
    assert [dot.one("span", class_="name").text for dot in dots.values()] == names
    for ten, shape in ((names[:10], "disc"), (names[10:], "square")):
        assert {frozenset(dots[name].classes & set(SHAPES)) for name in ten} == {frozenset({shape})}
        looks = {(dots[name]["style"] or "").partition("--host:")[2] for name in ten}
        assert len(looks) == 10


@pytest.mark.parametrize(
    ("error_rate", "level", "note"),
    [
        (0.01, None, ""),
        (0.011, "over1", "1.1 % errors"),
        (0.05, "over1", "5.0 % errors"),
        (0.051, "over5", "5.1 % errors"),
        (0.1, "over5", "10.0 % errors"),
        (0.101, "over10", "10.1 % errors"),
    ],
)
def test_errors_over_1_5_and_10_per_cent_are_marked_and_said(
    error_rate: float, level: str | None, note: str
) -> None:
    dot = dots_of(standing("a", error_rate=error_rate))["a"]
    assert dot.classes & {"over1", "over5", "over10"} == ({level} if level else set())
    assert dot.text == f"a {note}".strip()


def test_a_host_that_is_down_is_grey_with_its_last_sign_of_life() -> None:
    silent = standing("gone", rps=0.0, ok=0, errors=9, error_rate=1.0, p95_ms=None)
    fallen = standing("fell", error_rate=0.3, taints=(taint(to_s=None, clean_in_s=None),))
    since = {"fell": AT_S - 600.0, "gone": AT_S - 3600.0}
    dot = dots_of(standing("a"), fallen, down_since=since)["fell"]
    assert "down" in dot.classes
    assert "over10" not in dot.classes
    at = time_of_day(AT_S - 600, seconds=False)
    assert dot.text == f"fell down since {at}"
    drawn = tree(tradeoff_chart([fallen, silent], styles={}, down_since=since))
    before = time_of_day(AT_S - 3600, seconds=False)
    assert (
        drawn.one("p", class_="gone").text
        == f"No answer in this window: gone (down since {before})"
    )


def test_the_honest_leader_bears_a_star_and_the_key_explains_only_what_is_there() -> None:
    drawn = tree(tradeoff_chart(HOSTS, styles={}, honest_leader="busy"))
    assert [
        dot["data-host"] for dot in drawn.all("span", class_="dot") if dot.all("i", class_="star")
    ] == ["busy"]
    assert [item.text for item in drawn.one("ul", class_="legend").all("li")] == [
        "Pareto front: nobody is faster and busier",
        "honest leader",
        "errors over 10 %",
    ]
    assert tree(tradeoff_chart([standing("a")], styles={})).all("ul", class_="legend") == []


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
