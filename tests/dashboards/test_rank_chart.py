import re

from leaderboard_page.charts import looks, rank_chart, sentence
from support.page_html import Node, tree

from toolkit.board.history import Ranks
from toolkit.records import Event
from toolkit.units import time_of_day

BEGAN = 1_750_000_000


def drawn(ranks: dict[str, list[int | None]], *names: str, events: tuple[Event, ...] = ()) -> Node:
    count = len(next(iter(ranks.values())))
    told = Ranks(
        times=tuple(BEGAN + 10 * n for n in range(count)),
        ranks={name: tuple(of_host) for name, of_host in ranks.items()},
    )
    return tree(rank_chart(told, events, names=names or tuple(ranks), looks=looks(ranks)))


def points(chart: Node, host: str) -> list[tuple[float, float]]:
    """The corners of a host's line, out of 1000, from the top left."""
    path = chart.one("g", data_host=host).one("path", class_="ink")["d"] or ""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)]


def test_a_rank_is_the_height_of_a_row_and_the_first_stands_on_top() -> None:
    # two rows: their middles are at a quarter and three quarters
    chart = drawn({"a": [1, 1, 2], "b": [2, 2, 1]})
    assert points(chart, "a") == [(0.0, 250.0), (500.0, 250.0), (1000.0, 750.0)]
    assert points(chart, "b") == [(0.0, 750.0), (500.0, 750.0), (1000.0, 250.0)]


def test_points_on_a_level_line_are_left_out() -> None:
    chart = drawn({"a": [1, 1, 1, 1, 1], "b": [2, 2, 2, 2, 2]})
    assert points(chart, "a") == [(0.0, 250.0), (1000.0, 250.0)]


def test_tied_hosts_stand_side_by_side_in_the_tables_order() -> None:
    chart = drawn({"a": [1, 1], "b": [1, 1], "c": [3, 3]}, "b", "a", "c")
    # three rows: middles at a sixth, three and five sixths
    heights = {name: points(chart, name)[0][1] for name in "abc"}
    assert heights == {"b": 166.7, "a": 500.0, "c": 833.3}


def test_a_host_below_the_drawn_ones_leaves_at_the_foot() -> None:
    chart = drawn({"a": [1, 1], "b": [7, 2]}, "a", "b")
    assert points(chart, "b") == [(0.0, 1250.0), (1000.0, 750.0)]


def test_a_host_that_had_no_rank_yet_begins_where_it_got_one() -> None:
    chart = drawn({"a": [1, 1, 1], "b": [None, 2, 2]})
    assert points(chart, "b")[0] == (500.0, 750.0)


def test_each_line_ends_with_its_hosts_name() -> None:
    chart = drawn({"a": [1, 2], "b": [2, 1]}, "b", "a")
    ends = chart.all("span", class_="end")
    assert [(end.text, (end["style"] or "").split(";")[1]) for end in ends] == [
        ("b", "top:25.00%"),
        ("a", "top:75.00%"),
    ]


def test_a_long_run_is_thinned_and_its_last_moment_stays() -> None:
    count = 1000
    wild = [1 + n % 2 for n in range(count)]
    chart = drawn({"a": wild, "b": [3 - n for n in wild]})
    found = points(chart, "a")
    assert len(found) <= 240
    assert found[-1] == (1000.0, 750.0)


def test_before_there_is_a_line_the_chart_says_so() -> None:
    assert "a few seconds old" in drawn({"a": [1]}).text


def test_what_concerns_all_is_a_rule_and_what_concerns_a_host_a_mark_on_its_line() -> None:
    events = (
        Event(run="r", at=BEGAN + 10.0, kind="phase", text="full load"),
        Event(run="r", name="b", url="u", at=BEGAN + 20.0, kind="mark", text="GPTQ"),
    )
    chart = drawn({"a": [1, 1, 1], "b": [2, 2, 2]}, events=events)
    (rule,) = chart.all("g", class_="rule")
    assert rule.one("path", class_="ink")["d"] == "M500.0 0V1000"
    first, second = (m for m in chart.all("span", class_="mark"))
    assert (first.text, first["style"]) == ("1", "left:50.00%;top:0.00%;margin-left:0.0em")
    assert (second.text, second["style"]) == ("2", "left:100.00%;top:75.00%;margin-left:0.0em")
    assert [line.text for line in chart.one("ol", class_="happened").all("li")] == [
        f"1 {time_of_day(BEGAN + 10)} phase: full load",
        f"2 {time_of_day(BEGAN + 20)} b GPTQ",
    ]


def test_marks_of_one_moment_stand_side_by_side() -> None:
    events = tuple(
        Event(run="r", name="b", url="u", at=BEGAN + 10.0, kind="mark", text=text) for text in "xyz"
    )
    chart = drawn({"a": [1, 1], "b": [2, 2]}, events=events)
    assert [(m["style"] or "").split(";")[2] for m in chart.all("span", class_="mark")] == [
        "margin-left:0.0em",
        "margin-left:1.7em",
        "margin-left:3.4em",
    ]


def test_an_event_outside_the_chart_or_of_a_host_not_drawn_makes_no_mark() -> None:
    events = (
        Event(run="r", at=BEGAN - 60.0, kind="phase", text="early"),
        Event(run="r", name="c", url="u", at=BEGAN + 5.0, kind="mark", text="elsewhere"),
    )
    assert drawn({"a": [1, 1], "b": [2, 2]}, events=events).all("span", class_="mark") == []


def test_an_event_is_told_once_in_its_own_words() -> None:
    at = float(BEGAN)
    when = time_of_day(at)
    restart = Event(run="r", name="a", url="u", at=at, kind="restart")
    assert sentence(restart) == f"{when} a restarted"
    told = Event(run="r", name="a", url="u", at=at, kind="restart", text="started anew")
    assert sentence(told) == f"{when} a started anew"
    assert sentence(Event(run="r", at=at, kind="freeze")) == f"{when} the board was frozen"


def test_a_hosts_name_is_text_in_every_corner_of_the_chart() -> None:
    evil = "<script>alert(1)</script>"
    chart = drawn({evil: [1, 1]})
    assert chart.all("script") == []
    assert chart.one("span", class_="end").text == evil
