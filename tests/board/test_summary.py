"""The summary of a board: who leads and why, who is the best without a trick, what became of who restarted."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from support import standings

from toolkit.board.outages import Outage
from toolkit.board.standings import Board, RankBy, Standing
from toolkit.board.summary import summary
from toolkit.records import Event, Verdict

CACHE = Verdict(
    code="response_cache", confidence="high", evidence="32 of 40 twins came back in 3 ms."
)
CUT = Verdict(code="truncated_output", confidence="medium", evidence="1 token of 256")
CLEAN = Verdict(code="clean", confidence="high", evidence="nothing")
DRIFT = Verdict(code="config_drift", confidence="high", evidence="max_model_len 4096 -> 8192")
END = 52_400  # 14:33:20, in seconds from midnight


def standing(rank: int, name: str, rps: float, *verdicts: Verdict, **changes: object) -> Standing:
    usual = {
        "score": rps / 1000,
        "rps": rps,
        "output_tokens_per_s": rps * 256,
        "ttft_p50_ms": 30.0,
        "ttft_p95_ms": 40.0,
        "p50_ms": 1000.0,
        "p95_ms": None,
        "verdicts": verdicts,
    }
    return standings.standing(name, rank, **{**usual, **changes})


def sentences(
    *ranked: Standing, rank_by: RankBy = "rps", at_s: int = END, **more: Any
) -> list[str]:
    board: Board = standings.board(*ranked, rank_by=rank_by, at_s=at_s, window_s=30)
    return summary(
        board, clock=lambda at: datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S"), **more
    )


# --- who leads, and who is the best without a trick ---------------------------------------------------


@pytest.mark.parametrize(
    ("ranked", "lead", "best"),
    [
        (
            [("dave", 182.4, CACHE), ("alice", 5.13), ("bob", 4.0)],
            "dave leads with 182 RPS: it answers from a response cache (32 of 40 twins came back in 3 ms).",
            "The best host whose own model does the work is alice with 5.13 RPS, rank 2.",
        ),
        (
            [("erin", 250, CUT), ("dave", 180, CACHE), ("alice", 5)],
            "erin leads with 250 RPS, but not on the honest board: it cuts its answers short (1 token of 256).",
            (
                "The best host whose own model does the work is alice with 5 RPS, rank 3; "
                "dave (rank 2) answers from a response cache."
            ),
        ),
        (
            [("alice", 5, CLEAN), ("erin", 4, CUT), ("bob", 3)],
            "alice leads with 5 RPS, and no anomaly was found.",
            "bob comes next with 3 RPS; erin (rank 2) cuts its answers short.",
        ),
        # a hint is no accusation
        (
            [("dave", 182, replace(CACHE, confidence="low"))],
            "dave leads with 182 RPS, and no anomaly was found.",
            "No other host answered.",
        ),
        (
            [("a", 5, CACHE)],
            "a leads with 5 RPS: it answers from a response cache (32 of 40 twins came back in 3 ms).",
            "No host is left whose figures are known to come from its own model.",
        ),
    ],
)
def test_a_leader_is_accused_with_evidence_and_the_best_without_a_trick_is_named(
    ranked: list[tuple[Any, ...]], lead: str, best: str
) -> None:
    found = sentences(*(standing(rank, *one) for rank, one in enumerate(ranked, 1)))
    assert found[:2] == [lead, best]


def test_an_earlier_bench_speaks_where_the_blasts_own_verdicts_are_silent() -> None:
    ranked = (standing(1, "dave", 182, CLEAN), standing(2, "alice", 5))
    assert "response cache" in sentences(*ranked, bench={"dave": [CACHE]})[0]
    assert "response cache" not in sentences(*ranked, bench={"alice": [CACHE]})[0]
    # a trick that only the bench saw leaves out nobody of this board
    lead = sentences(standing(1, "erin", 250, CLEAN), bench={"erin": [CUT]})[0]
    assert lead == "erin leads with 250 RPS: it cuts its answers short (1 token of 256)."
    # the surer word is the one that is shown; of equals the blast's own
    sure = replace(CUT, confidence="high", evidence="the engine was asked for 1 token")
    same = replace(CUT, evidence="of the bench")
    for bench, evidence in ((sure, "(the engine was asked"), (same, "(1 token of 256)")):
        assert evidence in sentences(standing(1, "erin", 250, CUT), bench={"erin": [bench]})[0]


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
def test_evidence_is_shown_up_to_its_first_comma(evidence: str, clause: str) -> None:
    lead = sentences(standing(1, "dave", 1, replace(CACHE, evidence=evidence)))[0]
    assert lead.endswith(f"response cache ({clause}).")


def test_a_level_lead_names_all_who_share_it() -> None:
    shared = sentences(standing(1, "a", 5), standing(1, "b", 5), standing(3, "c", 4))
    assert shared[0].startswith("a leads, level with b, with 5 RPS")
    behind = sentences(standing(1, "d", 9, CACHE), standing(2, "a", 5), standing(2, "b", 5))
    assert behind[1] == (
        "The best host whose own model does the work is a, level with b, with 5 RPS, rank 2."
    )
    assert sentences(standing(1, "a", 0, ok=0)) == ["No host answered in this window."]


def test_a_leader_that_fails_or_was_not_judged_is_said_to_be_so() -> None:
    failing = standing(1, "a", 5, errors=500, error_rate=0.36)
    assert sentences(failing)[0] == "a leads with 5 RPS, though 36% of its requests failed."
    unjudged = Verdict(
        code="not_judged", confidence="high", evidence="most codes: too early, so far"
    )
    assert sentences(standing(1, "a", 5, unjudged))[0] == (
        "a leads with 5 RPS, but it was not judged (most verdicts: too early)."
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
def test_a_lead_is_given_in_what_is_ranked(rank_by: RankBy, words: str) -> None:
    assert sentences(standing(1, "a", 5), rank_by=rank_by)[0].startswith(f"a leads with {words},")


# --- who fell ------------------------------------------------------------------------------------------

# 14:33:00 to 14:33:10
DOWN = Outage(from_s=52_380, to_s=52_390, errors=40, is_over=True, restarted=True)


def fall(*outages: Outage, verdict: Verdict = CLEAN, **more: Any) -> str:
    frank = standing(2, "frank", 3, verdict, error_rate=0.372)
    return sentences(standing(1, "alice", 5), frank, outages={"frank": outages}, **more)[2]


def test_a_restart_is_told_with_its_length_its_errors_and_when_the_window_is_clean() -> None:
    until = "37% errors in the window, which holds it until 14:33:40."
    assert fall(DOWN) == f"frank restarted at 14:33:00 and was down for 10 s: {until}"
    assert fall(DOWN, at_s=52_390 + 28) == fall(DOWN)
    # the window of 30 s that ends with this second begins with 52,390
    assert fall(DOWN, at_s=52_390 + 29) == (
        "frank restarted at 14:33:00 and was down for 10 s; the window no longer holds any of it."
    )
    assert fall(replace(DOWN, is_over=False)) == (
        "frank went down at 14:33:00 and has not come back: 37% errors in the window."
    )
    assert fall(replace(DOWN, restarted=False)).startswith("frank went down at 14:33:00 and was")
    changed = "frank restarted at 14:33:00 with other settings and was down for 10 s:"
    assert fall(DOWN, verdict=DRIFT).startswith(changed)


def test_the_longest_downtime_is_told_and_the_others_are_named() -> None:
    short = replace(DOWN, to_s=52_383)
    found = {"gina": [short], "frank": [short, DOWN], "alice": []}
    last = sentences(standing(1, "frank", 3), standing(2, "gina", 2), outages=found)[2]
    assert last.startswith("frank restarted at 14:33:00 and was down for 10 s")
    assert last.endswith("Also down for a while: gina.")
    # who is on no board is no reason to fail
    gone = sentences(standing(1, "alice", 5), outages={"gone": [DOWN]})[2]
    assert gone.startswith("gone restarted at 14:33:00 and was down for 10 s: no request in the")


def test_a_restart_that_cost_no_second_is_told_as_such() -> None:
    events = (
        Event(name="frank", url="http://frank:1", at=52_380.0, kind="restart"),
        Event(name="alice", url="http://alice:1", at=52_381.0, kind="config"),
    )
    assert fall(events=events) == "frank restarted without a second of downtime."
    assert fall() == "No host restarted or went down."
