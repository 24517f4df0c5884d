from typing import get_args

from toolkit.proxy.calls.attempt import OUTCOMES
from toolkit.proxy.faults import FAULTS, TRIES_ANOTHER, Fault, FaultKind


def test_each_kind_has_its_status_and_no_other_word_is_a_kind() -> None:
    kinds = set(get_args(FaultKind))
    assert set(FAULTS) == kinds
    assert kinds >= TRIES_ANOTHER
    assert kinds >= set(OUTCOMES)
    assert {status for status, _ in FAULTS.values()} == {500, 502, 503, 504}


def test_a_fault_of_ours_or_a_missed_deadline_is_not_handed_round_and_blames_nobody_for_ours() -> (
    None
):
    ours = {"ours", "draining", "no_upstream"}
    late = {"timeout_first_token", "timeout_gap", "timeout_whole"}
    assert not TRIES_ANOTHER & (ours | late)
    assert not set(OUTCOMES) & (ours | {"timeout_whole"})
    assert Fault(kind="timeout_gap", message="it stood still").status == 504
