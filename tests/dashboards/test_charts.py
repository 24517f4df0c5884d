import base64
import re
import struct
import zlib

import pytest
from leaderboard_page.charts import (
    COLOURS,
    NOBODY,
    density_chart,
    heat_strip,
    looks,
    pareto,
    series_chart,
    solid,
    tradeoff_chart,
)
from support.page_html import Node, tree
from support.standings import standing

from toolkit.board.history import Density, Heat, HostSeries
from toolkit.report.charts import LineStyle

BEGAN = 1_750_000_000


def corners(path: Node) -> list[tuple[float, float]]:
    found = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path["d"] or "")
    return [(float(x), float(y)) for x, y in found]


# --- colours --------------------------------------------------------------------------------------


def test_a_hosts_colour_follows_its_name_and_not_its_rank() -> None:
    assert looks(["b", "a", "c"]) == looks(["c", "b", "a"])


def test_no_two_of_32_hosts_look_alike() -> None:
    found = looks(f"h{n:02}" for n in range(4 * COLOURS))
    assert len(set(found.values())) == 4 * COLOURS


def test_few_hosts_are_drawn_solid_but_where_two_have_one_colour() -> None:
    known = {"a": LineStyle("red", ""), "b": LineStyle("red", "9 5"), "c": LineStyle("blue", "9 5")}
    assert solid(known, ["b", "c"]) == {"b": LineStyle("red", ""), "c": LineStyle("blue", "")}
    assert solid(known, ["a", "b", "d"]) == {
        "a": LineStyle("red", ""),
        "b": LineStyle("red", "9 5"),
        "d": NOBODY,
    }


# --- the trade-off --------------------------------------------------------------------------------


def test_the_front_holds_who_is_beaten_by_nobody_in_both() -> None:
    quick = standing("quick", rps=10.0, p95_ms=100.0)
    busy = standing("busy", rps=50.0, p95_ms=900.0)
    slow = standing("slow", rps=9.0, p95_ms=200.0)
    late = standing("late", rps=50.0, p95_ms=1000.0)
    dead = standing("dead", rps=0.0, p95_ms=None)
    assert [one.name for one in pareto([slow, late, busy, dead, quick])] == ["quick", "busy"]


def test_every_host_that_answered_is_a_dot_and_those_of_the_front_are_marked() -> None:
    told = [
        standing("a", rps=10.0, p95_ms=100.0),
        standing("b", rps=5.0, p95_ms=400.0),
        standing("c", p95_ms=None),
    ]
    chart = tree(tradeoff_chart(told, looks=looks("abc")))
    dots = {dot["data-host"]: "best" in dot.classes for dot in chart.all("span", class_="dot")}
    assert dots == {"a": True, "b": False}


def test_faster_is_further_left_and_busier_is_higher() -> None:
    told = [standing("a", rps=10.0, p95_ms=100.0), standing("b", rps=5.0, p95_ms=400.0)]
    chart = tree(tradeoff_chart(told, looks={}))
    style = {dot["data-host"]: dot["style"] or "" for dot in chart.all("span", class_="dot")}
    place = {
        name: [float(n) for n in re.findall(r"([\d.]+)%", of_host)]
        for name, of_host in style.items()
    }
    assert place["a"][0] < place["b"][0]
    assert place["a"][1] < place["b"][1]


def test_names_that_would_cover_each_other_wait_for_the_pointer() -> None:
    told = [standing(name, rps=10.0, p95_ms=100.0) for name in "ab"]
    chart = tree(tradeoff_chart(told, looks={}))
    assert ["crowded" in dot.classes for dot in chart.all("span", class_="dot")] == [False, True]


def test_nobody_who_answered_is_no_chart() -> None:
    assert "once they have answered" in tree(tradeoff_chart([], looks={})).text


# --- densities ------------------------------------------------------------------------------------

GAMMA = 1.01 / 0.99


def density(name: str, counts: dict[int, int]) -> Density:
    """Counts by number of bucket, from the first to the last of them."""
    span = range(min(counts), max(counts) + 1)
    return Density(
        name=name,
        metric="e2e",
        values_ms=tuple(GAMMA**n for n in span),
        counts=tuple(counts.get(n, 0) for n in span),
    )


def test_a_density_shows_both_humps_of_a_cache() -> None:
    # a half in 2 ms, a half in 2 s, and nothing between
    two_ms, two_s = 35, 380
    chart = tree(density_chart([density("a", {two_ms: 50, two_s: 50})], looks={}, key="d"))
    line = corners(chart.one("g", data_host="a").one("path", class_="ink"))
    peaks = [x for x, y in line if y < 200]
    assert len(peaks) == 2
    assert peaks[0] < 150
    assert peaks[1] > 850


def test_even_answers_draw_a_level_line_and_no_comb() -> None:
    chart = tree(density_chart([density("a", dict.fromkeys(range(300), 7))], looks={}, key="d"))
    line = corners(chart.one("g", data_host="a").one("path", class_="ink"))
    heights = {y for _, y in line if y < 1000}
    # 300 buckets in columns of 5: 60 full ones
    assert len(heights) == 1


def test_shares_of_hosts_with_few_and_many_answers_are_alike() -> None:
    few, many = density("few", {100: 1, 200: 1}), density("many", {100: 900, 200: 900})
    chart = tree(density_chart([few, many], looks={}, key="d"))
    lines = [
        corners(chart.one("g", data_host=name).one("path", class_="ink"))
        for name in ("few", "many")
    ]
    assert lines[0] == lines[1]
    assert [item.text for item in chart.one("ul", class_="legend").all("li")] == ["few", "many"]


def test_a_host_without_answers_leaves_the_others_drawn() -> None:
    none = Density(name="none", metric="e2e", values_ms=(), counts=())
    chart = tree(density_chart([none, density("a", {50: 3})], looks={}, key="d"))
    assert [line["data-host"] for line in chart.all("g", class_="line")] == ["a"]
    assert "No answers" in tree(density_chart([none], looks={}, key="d")).text


# --- series ---------------------------------------------------------------------------------------


def series(name: str, p95_ms: list[float | None]) -> HostSeries:
    count = len(p95_ms)
    return HostSeries(
        name=name,
        step_s=10,
        times=tuple(BEGAN + 10 * n for n in range(count)),
        rps=(1.0,) * count,
        output_tokens_per_s=(1.0,) * count,
        ok=(10,) * count,
        errors=(0,) * count,
        p50_ms=(None,) * count,
        p95_ms=tuple(p95_ms),
        ttft_p50_ms=(None,) * count,
        ttft_p95_ms=(None,) * count,
    )


def test_a_line_breaks_where_a_host_answered_nothing() -> None:
    told = series("a", [100.0, 200.0, None, 100.0, 300.0])
    chart = tree(series_chart([told], metric="p95_ms", title="p95", looks={}))
    assert (chart.one("g", data_host="a").one("path", class_="ink")["d"] or "").count("M") == 2


def test_nothing_known_is_no_chart() -> None:
    told = series("a", [None, None])
    assert (
        "Nothing to draw" in tree(series_chart([told], metric="p95_ms", title="p95", looks={})).text
    )


# --- the heat strip -------------------------------------------------------------------------------


def pixels(chart: Node) -> list[list[int]]:
    """The opacity of each field, from the top line down, read by the PNG standard."""
    style = chart.one("div", class_="heat")["style"] or ""
    encoded = re.search(r"base64,([A-Za-z0-9+/=]+)", style)
    assert encoded
    png = base64.b64decode(encoded[1])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    place, found = 8, {}
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, body = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        (check,) = struct.unpack(">I", png[place + 8 + length : place + 12 + length])
        assert check == zlib.crc32(kind + body)
        found[kind] = body
        place += 12 + length
    width, height = struct.unpack(">II", found[b"IHDR"][:8])
    raw = zlib.decompress(found[b"IDAT"])
    line = 1 + 2 * width
    assert len(raw) == line * height
    return [list(raw[n * line + 2 : (n + 1) * line : 2]) for n in range(height)]


def heat(counts: list[list[int]]) -> Heat:
    return Heat(
        name="a",
        step_s=10,
        times=tuple(BEGAN + 10 * n for n in range(len(counts))),
        edges_ms=tuple(10.0 * 2**n for n in range(len(counts[0]) + 1)),
        counts=tuple(tuple(column) for column in counts),
    )


def test_a_field_is_the_opaquer_the_larger_its_share_of_its_moment() -> None:
    # times go right, latencies up: 3 of 4 answers of the first moment were quick
    shown = pixels(tree(heat_strip(heat([[3, 1, 0], [0, 0, 9], [0, 0, 0]]))))
    # of the largest share, 1: sqrt(3/4) and sqrt(1/4) of 255; a moment without answers stays clear
    assert shown == [[0, 255, 0], [128, 0, 0], [221, 0, 0]]


@pytest.mark.parametrize("counts", [[[0, 0], [0, 0]], [[1, 0]]])
def test_without_two_moments_and_an_answer_there_is_no_strip(counts: list[list[int]]) -> None:
    assert "No answers yet" in tree(heat_strip(heat(counts))).text
