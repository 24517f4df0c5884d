from typing import get_args

import pytest

from toolkit.proxy.call import OUTCOMES
from toolkit.proxy.errors import FAULTS, TRIES_ANOTHER, Fault, FaultKind, Reason, rejection_of


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
    assert Fault("timeout_gap", "it stood still").status == 504


@pytest.mark.parametrize("reason", get_args(Reason)[2:])
def test_each_rejection_but_those_with_their_own_sentences_has_its_words(reason: Reason) -> None:
    if reason != "unknown_model":
        told = rejection_of(reason, "a", 2.0)
        assert (told.reason, told.retry_after_s) == (reason, 2.0)
        assert told.status == (429 if reason.startswith("team_") else 503)
        assert ("`a`" in told.message) == reason.startswith("team_")
