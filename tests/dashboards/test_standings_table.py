from typing import Any

import pytest
from leaderboard_page.badges import evidence
from leaderboard_page.charts import line_styles
from leaderboard_page.standings_table import bar_scale, table
from support.page_html import Node, tree
from support.standings import AT_S, board, standing, taint, verdict

from toolkit.board.standings import Board
from toolkit.units import UNKNOWN, time_of_day


def drawn(shown: Board, **changes: Any) -> Node:
    names = [one.name for one in (*shown.standings, *shown.left_out)]
    usual: dict[str, Any] = {"styles": line_styles(names), "sparklines": {}, "rows": 20} | changes
    return tree(table(shown, **usual)).one("table", id="board")


def row(**changes: Any) -> Node:
    """The row of one host alone."""
    return drawn(board(standing("a", **changes))).one("tr", data_host="a")


def cells(*columns: str, **changes: Any) -> list[str]:
    found = row(**changes)
    return [found.one(class_=f"c-{column}").text for column in columns]


def test_hosts_stand_in_the_boards_order_with_rank_place_and_bar() -> None:
    ranked = (
        standing("b", 1, rps=40.0),
        standing("a", 2, rps=10.0, tied=True),
        standing("c", 2, rps=0.0, tied=True),
    )
    rows = drawn(board(*ranked)).one("tbody", id="standings").all("tr")
    # the longest bar is the fastest host's, and others are in proportion
    assert [
        (
            *(r[f"data-{key}"] for key in ("host", "rank", "place")),
            r.one(class_="c-rank").text,
            r.one(class_="bar")["style"],
        )
        for r in rows
    ] == [
        ("b", "1", "1", "1", "--w:1.000"),
        ("a", "2", "2", "2 =", "--w:0.250"),
        ("c", "2", "3", "2 =", "--w:0.000"),
    ]
    assert len(drawn(board(*ranked), rows=2).one("tbody", id="standings").all("tr")) == 2
    assert row(rps=0.0, ok=0).one(class_="bar")["style"] == "--w:0.000"


def test_a_cache_far_ahead_breaks_the_bars_and_the_head_says_where() -> None:
    ranked = [standing(name, rps=rps) for name, rps in (("cache", 800.0), ("a", 10.0), ("b", 5.0))]
    shown = drawn(board(*ranked))
    bars = {
        r["data-host"]: r.one(class_="bar") for r in shown.one("tbody", id="standings").all("tr")
    }
    # below the break in proportion: 10 is at seven tenths, 5 half of that; beyond it 800 is the end
    assert {name: bar["style"] for name, bar in bars.items()} == {
        "cache": "--w:1.000;--cut:70.0%",
        "a": "--w:0.700",
        "b": "--w:0.350",
    }
    assert [name for name, bar in bars.items() if "broken" in bar.classes] == ["cache"]
    head = shown.one("th", class_="c-rps")
    assert head.one(class_="axis").text == "10.0 800"
    assert "bars up to 10.0 and beyond the break, up to 800, have scales of their own" in (
        head["title"] or ""
    )


@pytest.mark.parametrize(
    ("rates", "rest", "most"),
    [
        # the middle one is an eighth of the first, or more: no break
        ([8.0, 1.01, 0.5], 8.0, 8.0),
        # the widest gap: from 20 to 2, not from 80 to 20
        ([80.0, 20.0, 2.0, 1.0, 1.0, 1.0], 2.0, 80.0),
        # one that hardly answers makes no break for the others
        ([10.0, 10.0, 10.0, 0.01], 10.0, 10.0),
        # and is no reason to break at it
        ([80.0, 10.0, 9.0, 0.01, 0.0], 10.0, 80.0),
        ([5.0], 5.0, 5.0),
        ([80.0, 1.0], 1.0, 80.0),
        ([0.0], 0.0, 0.0),
        ([], 0.0, 0.0),
    ],
)
def test_bars_are_broken_only_where_the_rest_would_be_flat(
    rates: list[float], rest: float, most: float
) -> None:
    assert bar_scale(rates) == (rest, most)
    # whoever answers more has the longer bar, and nobody leaves the column
    lengths = [bar_scale(rates).length(each) for each in sorted(rates)]
    assert lengths == sorted(lengths)
    assert all(0 <= length <= 1 for length in lengths)


@pytest.mark.parametrize(
    ("error_rate", "level"), [(0.01, None), (0.02, "over1"), (0.06, "over5"), (0.11, "over10")]
)
def test_an_error_rate_is_amber_or_red_by_how_bad_it_is(
    error_rate: float, level: str | None
) -> None:
    cell = row(error_rate=error_rate).one("td", class_="c-errors")
    assert cell.classes == {"c-errors", *([level] if level else [])}


def test_a_host_that_the_window_never_heard_of_shows_its_last_sign_of_life() -> None:
    silent = standing("a", ok=0, errors=7, rps=0.0, error_rate=1.0)
    since = time_of_day(AT_S - 5400, seconds=False)
    found = drawn(board(silent), down_since={"a": AT_S - 5400.0}).one("tr", data_host="a")
    assert found.one(class_="note").text == f"down since {since}, 7 errors"
    assert {"down", "bad", "dead"} <= found.classes


@pytest.mark.parametrize(
    ("change", "way", "text", "title"),
    [
        (2, "up", "2", "up 2 against 1 min ago"),
        (-3, "down", "3", "down 3 against 1 min ago"),
        (0, "same", "", "same place 1 min ago"),
        (None, "same", "", "no board 1 min ago"),
    ],
)
def test_an_arrow_shows_places_won_and_lost(
    change: int | None, way: str, text: str, title: str
) -> None:
    near, late = row(rank_change=change, rank_change_5m=-4).all(class_="move")
    assert (near.classes, near.text, near["title"]) == ({"move", "near", way}, text, title)
    assert (late.text, late["title"]) == ("4", "down 4 against 5 min ago")


def test_figures_stand_in_their_columns_with_their_units_and_unknown_is_a_dash() -> None:
    columns = ("rps", "score", "tokens", "ttft50", "ttft95", "p50", "p95", "errors", "hits")
    figures = {
        "rps": 12.34,
        "score": 0.5,
        "output_tokens_per_s": 1234.0,
        "ttft_p50_ms": 1.5,
        "ttft_p95_ms": 22.0,
        "p50_ms": 333.0,
        "p95_ms": 4440.0,
        "error_rate": 0.055,
        "hit_share": 0.25,
    }
    assert cells(*columns, **figures) == [
        *("12.3", "0.500", "1,234", "1.50 ms", "22.0 ms", "333 ms", "4.44 s", "5.5 %", "25.0 %")
    ]
    unknown = dict.fromkeys(("score", *(name for name in figures if name[-2:] in ("ms", "te"))))
    known = {"rps", "tokens"}
    dashes = cells(*(column for column in columns if column not in known), **unknown)
    assert set(dashes) == {UNKNOWN}


def test_what_is_inferred_estimated_or_of_too_few_answers_is_marked() -> None:
    sure = {"hit_share_inferred": True, "output_tokens_estimated": True}
    assert cells("hits", "tokens", hit_share=0.8, **sure) == ["~80.0 %", "~100"]
    assert cells("hits", hit_share_inferred=True) == [UNKNOWN]
    # a sure median takes 11 answers, a sure 95th percentile 130
    quantiles = ("ttft50", "ttft95", "p50", "p95")
    for counts, marked in (
        ({"ok": 129, "streamed": 10}, [True, True, False, True]),
        ({"ok": 130, "streamed": 11}, [False, True, False, False]),
    ):
        assert [text[-1] == "?" for text in cells(*quantiles, **counts)] == marked


@pytest.mark.parametrize(
    ("changes", "badge", "note"),
    [
        ({"error_rate": 0.11, "errors": 111}, "failing", "111 of 1,011 requests failed"),
        ({"error_rate": 0.1, "errors": 100}, None, None),
        ({"ok": 0, "errors": 4500, "error_rate": 1.0}, "down", "no answer, 4,500 errors"),
        ({"taints": (taint(to_s=None, clean_in_s=None),)}, "down", None),
        ({"ok": 0, "rps": 0.0}, None, "nothing answered yet"),
    ],
)
def test_a_host_that_fails_or_is_down_is_red_and_says_what_became_of_it(
    changes: dict[str, Any], badge: str | None, note: str | None
) -> None:
    found = row(**changes)
    assert ("bad" in found.classes, "dead" in found.classes) == (
        badge is not None,
        changes.get("ok") == 0,
    )
    assert [each.text for each in found.all(class_="badge")] == ([badge] if badge else [])
    if note:
        assert note in [each.text for each in found.all(class_="note")]


def test_each_verdict_is_a_badge_with_its_evidence_and_clean_is_none() -> None:
    verdicts = (verdict("response_cache", "9 of 9 twins", "medium"), verdict("clean"))
    badge = row(verdicts=verdicts).one(class_="badge")
    assert (badge.text, badge["data-code"]) == ("cached", "response_cache")
    assert badge["title"] == "9 of 9 twins (confidence: medium)"
    # a code that the page does not know
    assert row(verdicts=(verdict("new_trick"),)).one(class_="badge").text == "new trick"


def test_the_evidence_of_every_badge_is_listed_and_a_long_list_starts_closed() -> None:
    few = [standing("a", verdicts=(verdict("restarted", "started anew"), verdict("clean")))]
    listed = tree(evidence(few) or "").one("details", id="evidence")
    assert [line.text for line in listed.all("li")] == ["a restarted started anew confidence: high"]
    assert "open" in listed.attributes
    many = [standing(f"h{n}", verdicts=(verdict("cold"),)) for n in range(6)]
    assert "open" not in tree(evidence(many) or "").one("details").attributes
    assert evidence([standing("a", verdicts=(verdict("clean"),))]) is None


def test_outages_say_how_much_of_them_still_weighs_and_one_that_lasts_comes_first() -> None:
    began = time_of_day(AT_S - 600, seconds=False)
    note = row(taints=(taint(),)).one(class_="note")
    assert note.text == f"still in the window: 4 min 10 s of the {began} restart"
    assert note["title"] == "Out of the window in 9 min 10 s"
    for outages, text in (
        (
            (taint(in_window_s=30), taint(in_window_s=40, restarted=False)),
            "still in the window: 1 min 10 s of 2 outages",
        ),
        (
            (taint(), taint(to_s=None, clean_in_s=None, from_s=AT_S - 20)),
            f"not answering since {time_of_day(AT_S - 20)}",
        ),
    ):
        assert row(taints=outages).one(class_="note").text == text


@pytest.mark.parametrize(
    ("rank_by", "column", "order"),
    [("rps", "rps", "descending"), ("p95", "p95", "ascending"), ("score", "score", "descending")],
)
def test_the_ranking_column_is_marked_for_eyes_and_readers(
    rank_by: Any, column: str, order: str
) -> None:
    heads = drawn(board(standing("a"), rank_by=rank_by)).all("th", class_="ranked")
    assert [(h.classes, h["aria-sort"]) for h in heads] == [({f"c-{column}", "ranked"}, order)]


def test_who_is_left_out_stands_below_without_a_rank_and_covered_places_hide_all() -> None:
    out = standing("trick", None, left_out=True, verdicts=(verdict("truncated_output"),))
    shown = board(standing("winner", 1, rps=77.7), standing("second", 2), left_out=(out,))
    below = drawn(shown).one("tbody", id="left-out")
    assert below.one("tr", data_host="trick").one(class_="c-rank").text == UNKNOWN
    assert "1 host is left out" in below.text
    html = table(shown, styles={}, sparklines={"winner": [1.0, 2.0]}, rows=20, covered=range(1, 2))
    assert not any(hidden in html for hidden in ("winner", "77.7", "trick"))
    # nor can its rate be reckoned from the others' bars
    assert tree(html).one(class_="bar")["style"] == "--w:1.000"
    body = tree(html).one("tbody", id="standings")
    assert [r.get("data-host") for r in body.all("tr")] == [None, "second"]


def test_what_hosts_say_is_text_and_never_markup() -> None:
    evil = '<img src=x onerror="alert(1)">'
    shown = board(standing(evil, url=f"http://{evil}", verdicts=(verdict("cold", evil),)))
    found = drawn(shown)
    assert found.all("img") == []
    assert found.one("tr", data_host=evil).one(class_="name").text == evil


def test_a_sparkline_is_scaled_to_its_own_highest_value_and_one_value_is_no_line() -> None:
    shown = board(standing("a"))
    spark = drawn(shown, sparklines={"a": [0.0, 5.0, 10.0]}).one("svg", class_="spark")
    # 24 high with 2 to spare: nothing is at 22, half way at 12, the highest at 2
    assert spark.one("path", class_="line")["d"] == "M0.0 22.0 L50.0 12.0 L100.0 2.0"
    assert drawn(shown, sparklines={"a": [3.0]}).all("svg", class_="spark") == []


def test_a_page_of_the_table_has_its_places_and_the_last_those_that_are_left_out() -> None:
    ranked = [standing(f"h{n}", n) for n in range(1, 6)]
    out = [standing(f"out{n}", None, left_out=True) for n in (1, 2)]
    shown = board(*ranked, left_out=tuple(out), honest=True)
    pages = [drawn(shown, rows=3, first=first, pages=True) for first in (0, 3, 6)]
    assert [
        [row["data-host"] for row in page.all("tr") if row.get("data-host")] for page in pages
    ] == [
        ["h1", "h2", "h3"],
        ["h4", "h5", "out1"],
        ["out2"],
    ]
    assert [row["data-place"] for row in pages[1].one("tbody", id="standings").all("tr")] == [
        "4",
        "5",
    ]
    # all of them are counted, however many stand on the page
    assert "2 hosts are left out" in pages[2].one("tr", class_="divider").text
    # a node of its own, so that a page comes in as one
    assert len({page.one("tbody", id="standings")["data-key"] for page in pages}) == 3
