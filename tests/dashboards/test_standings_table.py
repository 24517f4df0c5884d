from typing import Any

import pytest
from leaderboard_page.badges import evidence
from leaderboard_page.charts import looks
from leaderboard_page.standings_table import table
from support.page_html import Node, tree
from support.standings import AT_S, board, standing, taint, verdict

from toolkit.board.standings import Board
from toolkit.units import UNKNOWN, time_of_day


def drawn(shown: Board, **changes: Any) -> Node:
    names = [one.name for one in (*shown.standings, *shown.left_out)]
    told: dict[str, Any] = {"looks": looks(names), "sparklines": {}, "rows": 20} | changes
    return tree(table(shown, **told)).one("table", id="board")


def row(shown: Board, host: str, **changes: Any) -> Node:
    return drawn(shown, **changes).one("tr", data_host=host)


def cell(shown: Board, host: str, column: str) -> str:
    return row(shown, host).one(class_=f"c-{column}").text


def test_hosts_stand_in_the_boards_order_with_rank_and_place() -> None:
    shown = board(standing("b", 1), standing("a", 2, tied=True), standing("c", 2, tied=True))
    rows = drawn(shown).one("tbody", id="standings").all("tr")
    assert [(r["data-host"], r["data-rank"], r["data-place"]) for r in rows] == [
        ("b", "1", "1"),
        ("a", "2", "2"),
        ("c", "2", "3"),
    ]


def test_only_as_many_rows_as_asked_for_are_drawn() -> None:
    shown = board(*(standing(f"h{n}", n) for n in range(1, 6)))
    assert len(drawn(shown, rows=3).one("tbody", id="standings").all("tr")) == 3


def test_tied_hosts_are_marked_and_others_are_not() -> None:
    shown = board(standing("a", 1), standing("b", 2, tied=True))
    assert cell(shown, "a", "rank") == "1"
    assert cell(shown, "b", "rank") == "2 ="


@pytest.mark.parametrize(
    ("change", "classes", "told"),
    [(2, {"up"}, "2"), (-3, {"down"}, "3"), (0, {"same"}, ""), (None, {"same"}, "")],
)
def test_an_arrow_shows_places_won_and_lost(
    change: int | None, classes: set[str], told: str
) -> None:
    near = row(board(standing("a", rank_change=change)), "a").one(class_="near")
    assert near.classes == {"move", "near"} | classes
    assert near.text == told


def test_arrows_tell_a_minute_from_five() -> None:
    moves = row(board(standing("a", rank_change=1, rank_change_5m=-4)), "a").all(class_="move")
    assert [(m.text, m["title"]) for m in moves] == [
        ("1", "up 1 against 1 min ago"),
        ("4", "down 4 against 5 min ago"),
    ]


def test_the_longest_bar_is_the_fastest_hosts_and_others_are_in_proportion() -> None:
    shown = board(standing("a", 1, rps=40.0), standing("b", 2, rps=10.0), standing("c", 3, rps=0.0))
    bars = [bar["style"] for bar in drawn(shown).all(class_="bar")]
    assert bars == ["--w:1.000", "--w:0.250", "--w:0.000"]


def test_no_host_with_any_answer_makes_no_bar_and_no_error() -> None:
    shown = board(standing("a", 1, rps=0.0, ok=0))
    assert drawn(shown).one(class_="bar")["style"] == "--w:0.000"


def test_figures_stand_in_their_columns_with_their_units() -> None:
    shown = board(
        standing(
            "a",
            rps=12.34,
            score=0.5,
            output_tokens_per_s=1234.0,
            ttft_p50_ms=1.5,
            ttft_p95_ms=22.0,
            p50_ms=333.0,
            p95_ms=4440.0,
            error_rate=0.055,
            hit_share=0.25,
        )
    )
    columns = ["rps", "score", "tokens", "ttft50", "ttft95", "p50", "p95", "errors", "hits"]
    assert [cell(shown, "a", column) for column in columns] == [
        "12.3",
        "0.500",
        "1,234",
        "1.50 ms",
        "22.0 ms",
        "333 ms",
        "4.44 s",
        "5.5 %",
        "25.0 %",
    ]


def test_what_is_unknown_is_a_dash() -> None:
    none = dict.fromkeys(["score", "ttft_p50_ms", "ttft_p95_ms", "p50_ms", "p95_ms", "error_rate"])
    shown = board(standing("a", **none))
    columns = ["score", "ttft50", "ttft95", "p50", "p95", "errors", "hits"]
    assert {cell(shown, "a", column) for column in columns} == {UNKNOWN}


def test_an_inferred_hit_share_and_estimated_tokens_say_so() -> None:
    shown = board(
        standing("a", hit_share=0.8, hit_share_inferred=True, output_tokens_estimated=True)
    )
    assert cell(shown, "a", "hits") == "~80.0 %"
    assert cell(shown, "a", "tokens") == "~100"


def test_a_quantile_of_too_few_answers_is_marked_unsure() -> None:
    # a sure median takes 11 answers, a sure 95th percentile 130
    shown = board(standing("a", ok=129, streamed=10), standing("b", 2, ok=130, streamed=11))
    told = {
        host: [
            cell(shown, host, column)[-1] == "?" for column in ("ttft50", "ttft95", "p50", "p95")
        ]
        for host in "ab"
    }
    assert told == {"a": [True, True, False, True], "b": [False, True, False, False]}


def test_an_unknown_hit_share_is_not_said_to_be_inferred() -> None:
    assert cell(board(standing("a", hit_share_inferred=True)), "a", "hits") == UNKNOWN


def test_a_dead_host_is_on_the_board_and_says_what_became_of_it() -> None:
    shown = board(standing("a", ok=0, errors=4500, rps=0.0), standing("b", 2, ok=0, rps=0.0))
    assert "dead" in row(shown, "a").classes
    assert row(shown, "a").one(class_="note").text == "no answer, 4,500 errors"
    assert row(shown, "b").one(class_="note").text == "nothing answered yet"


@pytest.mark.parametrize(
    ("changes", "badge", "note"),
    [
        ({"error_rate": 0.11, "errors": 111}, "failing", "111 of 1,011 requests failed"),
        ({"error_rate": 0.1, "errors": 100}, None, None),
        ({"ok": 0, "errors": 5, "error_rate": 1.0}, "down", "no answer, 5 errors"),
        ({"taints": (taint(to_s=None, clean_in_s=None),)}, "down", None),
        ({"ok": 0, "rps": 0.0}, None, "nothing answered yet"),
    ],
)
def test_a_host_that_fails_or_is_down_is_red_and_has_a_badge(
    changes: dict[str, Any], badge: str | None, note: str | None
) -> None:
    drawn_row = row(board(standing("a", **changes)), "a")
    assert ("bad" in drawn_row.classes) == (badge is not None)
    assert [found.text for found in drawn_row.all(class_="badge")] == ([badge] if badge else [])
    if note:
        assert note in [found.text for found in drawn_row.all(class_="note")]


def test_each_verdict_is_a_badge_with_its_evidence_and_clean_is_none() -> None:
    found = (verdict("response_cache", "9 of 9 twins", "medium"), verdict("clean"))
    badge = row(board(standing("a", verdicts=found)), "a").one(class_="badge")
    assert (badge.text, badge["data-code"]) == ("cached", "response_cache")
    assert badge["title"] == "9 of 9 twins (confidence: medium)"


def test_a_verdict_that_the_page_was_never_told_of_is_still_a_badge() -> None:
    badge = row(board(standing("a", verdicts=(verdict("new_trick"),))), "a").one(class_="badge")
    assert badge.text == "new trick"


def test_the_evidence_of_every_badge_is_listed_and_a_long_list_starts_closed() -> None:
    few = [standing("a", verdicts=(verdict("restarted", "started anew"), verdict("clean")))]
    listed = tree(evidence(few) or "").one("details", id="evidence")
    assert [line.text for line in listed.all("li")] == ["a restarted started anew confidence: high"]
    assert "open" in listed.attributes
    many = [standing(f"h{n}", verdicts=(verdict("cold"),)) for n in range(6)]
    assert "open" not in tree(evidence(many) or "").one("details").attributes


def test_without_any_badge_there_is_no_list() -> None:
    assert evidence([standing("a", verdicts=(verdict("clean"),))]) is None


def test_an_outage_that_is_over_says_how_much_of_it_still_weighs() -> None:
    shown = board(standing("a", taints=(taint(),)))
    note = row(shown, "a").one(class_="note")
    began = time_of_day(AT_S - 600, seconds=False)
    assert note.text == f"still in the window: 4 min 10 s of the {began} restart"
    assert note["title"] == "Out of the window in 9 min 10 s"


def test_several_outages_are_summed_and_one_that_lasts_is_told_first() -> None:
    two = (taint(in_window_s=30), taint(in_window_s=40, restarted=False))
    assert (
        row(board(standing("a", taints=two)), "a").one(class_="note").text
        == "still in the window: 1 min 10 s of 2 outages"
    )
    lasting = (taint(), taint(to_s=None, clean_in_s=None, from_s=AT_S - 20))
    assert (
        row(board(standing("a", taints=lasting)), "a").one(class_="note").text
        == f"not answering since {time_of_day(AT_S - 20)}"
    )


def test_who_is_left_out_of_the_honest_board_stands_below_without_a_rank() -> None:
    out = standing("trick", None, left_out=True, verdicts=(verdict("truncated_output"),))
    shown = board(standing("a"), left_out=(out,), honest=True)
    below = drawn(shown).one("tbody", id="left-out")
    assert below.one("tr", data_host="trick").one(class_="c-rank").text == UNKNOWN
    assert "1 host is left out" in below.text
    assert [r["data-host"] for r in drawn(shown).one("tbody", id="standings").all("tr")] == ["a"]


@pytest.mark.parametrize(
    ("rank_by", "column", "order"),
    [("rps", "rps", "descending"), ("p95", "p95", "ascending"), ("score", "score", "descending")],
)
def test_the_ranking_column_is_marked_for_eyes_and_readers(
    rank_by: Any, column: str, order: str
) -> None:
    heads = drawn(board(standing("a"), rank_by=rank_by)).all("th", class_="ranked")
    assert [(h.classes, h["aria-sort"]) for h in heads] == [({f"c-{column}", "ranked"}, order)]


def test_a_covered_place_holds_neither_name_nor_figure() -> None:
    shown = board(standing("winner", 1, rps=77.7), standing("second", 2))
    html = table(shown, looks={}, sparklines={"winner": [1.0, 2.0]}, rows=20, covered=range(1, 2))
    assert "winner" not in html
    assert "77.7" not in html
    body = tree(html).one("tbody", id="standings")
    assert [r.get("data-host") for r in body.all("tr")] == [None, "second"]


def test_covered_places_hide_who_is_left_out_too() -> None:
    shown = board(standing("a"), left_out=(standing("trick", None, left_out=True),), honest=True)
    assert "trick" not in table(shown, looks={}, sparklines={}, rows=20, covered=range(1, 2))


def test_what_hosts_say_is_text_and_never_markup() -> None:
    evil = '<img src=x onerror="alert(1)">'
    shown = board(standing(evil, url=f"http://{evil}", verdicts=(verdict("cold", evil),)))
    found = drawn(shown)
    assert found.all("img") == []
    assert found.one("tr", data_host=evil).one(class_="name").text == evil


def test_a_sparkline_is_scaled_to_its_own_highest_value() -> None:
    spark = row(board(standing("a")), "a", sparklines={"a": [0.0, 5.0, 10.0]}).one(
        "svg", class_="spark"
    )
    line = spark.one("path", class_="line")["d"]
    # 24 high with 2 to spare: nothing is at 22, half way at 12, the highest at 2
    assert line == "M0.0 22.0 L50.0 12.0 L100.0 2.0"


def test_one_value_is_no_line() -> None:
    assert row(board(standing("a")), "a", sparklines={"a": [3.0]}).all("svg", class_="spark") == []
