"""The summary of a board: who leads and why, who is the best without a trick, what became of who restarted."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import get_args

import pytest
from support import standings

from toolkit.board.outages import Outage
from toolkit.board.standings import Board, RankBy, Standing
from toolkit.board.summary import figure, first_clause, summary
from toolkit.records import Event, Verdict

CACHE = Verdict(
    code="response_cache", confidence="high", evidence="32 of 40 twins came back in 3 ms."
)
CUT = Verdict(code="truncated_output", confidence="medium", evidence="1 token of 256")
CLEAN = Verdict(code="clean", confidence="high", evidence="nothing")
END = 52_400  # 14:33:20, in seconds from midnight


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def standing(rank: int, name: str, rps: float, *verdicts: Verdict, **changes: object) -> Standing:
    told = {
        "score": rps / 1000,
        "rps": rps,
        "output_tokens_per_s": rps * 256,
        "ttft_p50_ms": 30.0,
        "ttft_p95_ms": 40.0,
        "p50_ms": 1000.0,
        "p95_ms": None,
        "verdicts": verdicts,
    }
    return standings.standing(name, rank, **{**told, **changes})


def board(*ranked: Standing, rank_by: RankBy = "rps") -> Board:
    return standings.board(*ranked, rank_by=rank_by, at_s=END, window_s=30)


# --- who leads, and who is the best without a trick ---------------------------------------------------


def test_a_cached_leader_is_said_to_be_one_with_evidence_and_the_best_model_is_named() -> None:
    lead, best, _ = summary(
        board(
            standing(1, "dave", 182.4, CACHE), standing(2, "alice", 5.13), standing(3, "bob", 4.0)
        ),
        clock=clock,
    )
    assert lead == (
        "dave leads with 182 RPS: it answers from a response cache (32 of 40 twins came back in 3 ms)."
    )
    assert best == "The best whose own model does the work is alice with 5.13 RPS, rank 2."


def test_a_host_that_leads_by_cutting_its_answers_is_named_and_so_is_the_cache_behind_it() -> None:
    lead, best, _ = summary(
        board(
            standing(1, "erin", 250, CUT), standing(2, "dave", 180, CACHE), standing(3, "alice", 5)
        ),
        clock=clock,
    )
    assert lead == (
        "erin leads with 250 RPS, but not on the honest board: it cuts its answers short (1 token of 256)."
    )
    assert best == (
        "The best whose own model does the work is alice with 5 RPS, rank 3; "
        "dave (rank 2) answers from a response cache."
    )


def test_an_honest_leader_is_not_accused_and_the_next_is_named() -> None:
    lead, best, _ = summary(
        board(standing(1, "alice", 5, CLEAN), standing(2, "erin", 4, CUT), standing(3, "bob", 3)),
        clock=clock,
    )
    assert lead == "alice leads with 5 RPS, and nothing speaks against it."
    assert best == "bob comes next with 3 RPS; erin (rank 2) cuts its answers short."


def test_an_earlier_bench_speaks_where_the_blasts_own_verdicts_are_silent() -> None:
    told = board(standing(1, "dave", 182, CLEAN), standing(2, "alice", 5))
    assert "response cache" in summary(told, clock=clock, bench={"dave": [CACHE]})[0]
    assert "response cache" not in summary(told, clock=clock, bench={"alice": [CACHE]})[0]


def test_the_surer_word_is_the_one_that_is_told() -> None:
    sure = replace(CUT, confidence="high", evidence="the engine was asked for 1 token")
    told = board(standing(1, "erin", 250, CUT))
    assert "(the engine was asked" in summary(told, clock=clock, bench={"erin": [sure]})[0]
    same = replace(CUT, evidence="of the bench")
    assert "(1 token of 256)" in summary(told, clock=clock, bench={"erin": [same]})[0]


def test_a_trick_that_only_the_bench_saw_leaves_out_nobody_of_this_board() -> None:
    lead = summary(board(standing(1, "erin", 250, CLEAN)), clock=clock, bench={"erin": [CUT]})[0]
    assert lead == "erin leads with 250 RPS: it cuts its answers short (1 token of 256)."


@pytest.mark.parametrize(
    ("evidence", "clause"),
    [
        (
            "6 of 6 (medians, of all) were fast, and they bear ids",
            "6 of 6 (medians, of all) were fast",
        ),
        ("they took 1,130 ms; more", "they took 1,130 ms"),
        ("one sentence.", "one sentence"),
        ("an open ( bracket, and more", "an open ( bracket, and more"),
    ],
)
def test_evidence_is_told_up_to_its_first_comma(evidence: str, clause: str) -> None:
    assert first_clause(evidence) == clause


def test_a_hint_is_no_accusation() -> None:
    hint = replace(CACHE, confidence="low")
    lead = summary(board(standing(1, "dave", 182, hint)), clock=clock)[0]
    assert lead == "dave leads with 182 RPS, and nothing speaks against it."


def test_a_level_lead_names_all_who_share_it() -> None:
    told = board(standing(1, "a", 5), standing(1, "b", 5), standing(3, "c", 4))
    assert summary(told, clock=clock)[0].startswith("a leads, level with b, with 5 RPS")
    told = board(standing(1, "d", 9, CACHE), standing(2, "a", 5), standing(2, "b", 5))
    assert summary(told, clock=clock)[1] == (
        "The best whose own model does the work is a, level with b, with 5 RPS, rank 2."
    )


def test_boards_with_few_or_nobody_have_a_summary_too() -> None:
    assert summary(board(standing(1, "a", 0, ok=0)), clock=clock) == [
        "Nobody has answered in this window."
    ]
    alone = summary(board(standing(1, "a", 5), standing(2, "b", 0, ok=0)), clock=clock)
    assert alone[1] == "Nobody else has answered."
    tricks = summary(board(standing(1, "a", 5, CACHE)), clock=clock)
    assert tricks[1] == (
        "Nobody is left of whom it is known that its own model explains what it shows."
    )


@pytest.mark.parametrize(
    ("rank_by", "words"),
    [
        ("rps", "5 RPS"),
        ("output_tokens_per_s", "1,280 tokens a second"),
        ("error_rate", "0% errors"),
        ("score", "a score of 0.005"),
        ("ttft_p50", "a TTFT p50 of 30 ms"),
        ("ttft_p95", "a TTFT p95 of 40 ms"),
        ("p50", "a p50 of 1,000 ms"),
        ("p95", "nothing measured"),
    ],
)
def test_a_lead_is_told_in_what_is_ranked(rank_by: RankBy, words: str) -> None:
    assert figure(standing(1, "a", 5), rank_by) == words
    assert words in summary(board(standing(1, "a", 5), rank_by=rank_by), clock=clock)[0]
    assert rank_by in get_args(RankBy)


# --- who fell ------------------------------------------------------------------------------------------

# 14:33:00 to 14:33:10
DOWN = Outage(from_s=52_380, to_s=52_390, errors=40, is_over=True, restarted=True)


def fall(*outages: Outage, at_s: int = END, events: tuple[Event, ...] = ()) -> str:
    told = replace(
        board(standing(1, "alice", 5), standing(2, "frank", 3, error_rate=0.372)), at_s=at_s
    )
    return summary(told, clock=clock, outages={"frank": outages}, events=events)[2]


def test_a_restart_is_told_with_its_length_its_errors_and_when_the_window_is_clean() -> None:
    assert fall(DOWN) == (
        "frank restarted at 14:33:00 and was down for 10 s: 37% errors in the window, which holds it "
        "until 14:33:40."
    )


def test_who_came_back_as_another_is_said_to_have() -> None:
    drift = Verdict(code="config_drift", confidence="high", evidence="max_model_len 4096 -> 8192")
    told = board(standing(1, "alice", 5, drift), standing(2, "frank", 3, drift))
    line = summary(told, clock=clock, outages={"frank": [DOWN]})[2]
    assert line.startswith("frank restarted at 14:33:00 with other settings and was down for 10 s:")


def test_a_restart_leaves_the_window_with_the_second_that_is_a_window_behind_it() -> None:
    assert "holds it until" in fall(DOWN, at_s=52_390 + 28)
    # the window of 30 s that ends with this second begins with 52,390
    assert fall(DOWN, at_s=52_390 + 29) == (
        "frank restarted at 14:33:00 and was down for 10 s; nothing of it is left in the window."
    )


def test_who_is_still_down_is_said_to_be() -> None:
    assert fall(replace(DOWN, is_over=False)) == (
        "frank went down at 14:33:00 and has not come back: 37% errors in the window."
    )


def test_an_outage_without_a_known_restart_is_no_restart() -> None:
    assert fall(replace(DOWN, restarted=False)).startswith("frank went down at 14:33:00 and was")


def test_the_longest_downtime_is_told_and_the_others_are_named() -> None:
    short = replace(DOWN, to_s=52_383)
    told = summary(
        board(standing(1, "frank", 3), standing(2, "gina", 2)),
        clock=clock,
        outages={"gina": [short], "frank": [short, DOWN], "alice": []},
    )[2]
    assert told.startswith("frank restarted at 14:33:00 and was down for 10 s")
    assert told.endswith("Also down for a while: gina.")


def test_a_restart_that_cost_no_second_is_told_as_such() -> None:
    events = (
        Event(name="frank", url="http://frank:1", at=52_380.0, kind="restart"),
        Event(name="alice", url="http://alice:1", at=52_381.0, kind="config"),
    )
    assert fall(events=events) == "frank restarted, and no second went by without an answer."
    assert fall() == "Nobody restarted or went down."


def test_an_outage_of_a_host_that_is_on_no_board_is_no_reason_to_fail() -> None:
    told = summary(board(standing(1, "alice", 5)), clock=clock, outages={"gone": [DOWN]})
    assert told[2].startswith("gone restarted at 14:33:00 and was down for 10 s: no request in the")
