"""What a host answers is weighed against what its engine made, to the token."""

from dataclasses import replace

import pytest
from support.shots import accused, books, failed, no_books, replayed, shot, told, twin, uniques

from toolkit.records import RequestRecord

# hidden_backend


def test_answers_that_no_counter_knows_come_from_elsewhere() -> None:
    shots = uniques(16)
    found = told(shots, books(shots, without=shots[:8]))
    assert found.keys() - {"not_judged"} == {"hidden_backend"}
    assert found["hidden_backend"].confidence == "high"
    assert found["hidden_backend"].evidence == (
        "the server's own counters lack 800 of 1,600 answered tokens and 8 of 16 answered requests"
    )


def test_twins_answered_elsewhere_with_texts_of_their_own_are_no_cache() -> None:
    first = uniques(16)
    again = [twin(first[n], 16 + n) for n in range(8)]
    shots = [*first, *again]
    assert accused(shots, books(shots, without=shots)) == {"hidden_backend": "high"}
    assert accused(shots, books(shots, without=again)) == {"hidden_backend": "high"}


def test_twins_answered_elsewhere_at_temperature_zero_are_no_cache_either() -> None:
    first = uniques(16)
    again = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(8)]
    shots = [*first, *again]
    assert accused(shots, books(shots, without=shots)) == {"hidden_backend": "high"}


def test_a_backend_that_serves_long_prompts_from_a_prefix_cache_is_no_response_cache() -> None:
    first = uniques(16, tokens=16, first_ms=2000.0, stream=False)
    again = [
        twin(first[n], 16 + n, e2e_ms=320.0, took_ms=320.0, text_hash=first[n].text_hash)
        for n in range(8)
    ]
    shots = [*first, *again]
    assert accused(shots, books(shots, without=shots)) == {"hidden_backend": "high"}


def test_a_cache_and_a_hidden_backend_are_told_apart() -> None:
    first = uniques(16)
    memory = [replayed(first[n], 16 + n) for n in range(8)]
    shots = [*first, *memory]
    ledger = books(shots, without=[*memory, *first[8:]])
    assert accused(shots, ledger) == {"response_cache": "high", "hidden_backend": "high"}


def test_equal_twins_that_may_or_may_not_be_cached_leave_a_hint_only() -> None:
    first = uniques(16)
    again = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(8)]
    shots = [*first, *again]
    assert accused(shots, books(shots, without=again[:4])) == {"hidden_backend": "low"}


def test_tokens_alone_are_missing_where_requests_are_not_counted() -> None:
    shots = uniques(16)
    ledger = books(shots, without=shots[:8], requests=None)
    assert accused(shots, ledger) == {"hidden_backend": "medium"}


def test_an_engine_that_does_not_count_one_token_a_request_hides_nothing() -> None:
    # 16 answers of 5 tokens, of which the first is not counted
    shots = uniques(16, tokens=5)
    assert accused(shots, books(shots, generation_tokens=64)) == {}


def test_less_than_a_twentieth_explains_nothing() -> None:
    shots = uniques(40)
    assert accused(shots, books(shots, without=shots[:2])) == {}
    assert accused(shots, books(shots, without=shots[:3])) == {"hidden_backend": "high"}


# foreign_traffic


def test_one_request_beyond_ours_is_somebody_elses() -> None:
    shots = uniques(16)
    found = told(shots, books(shots, requests=17, generation_tokens=1900))
    assert found.keys() - {"not_judged"} == {"foreign_traffic"}
    assert found["foreign_traffic"].confidence == "high"
    assert found["foreign_traffic"].evidence == (
        "the server counted 17 requests, of which at least 1 cannot be ours and"
        " 300 of its 1,900 generated tokens are beyond what we can have caused"
    )


def test_load_that_never_ends_shows_in_the_tokens_alone() -> None:
    shots = uniques(16)
    ledger = books(shots, generation_tokens=9600, running_before=8)
    found = told(shots, ledger)
    assert found["foreign_traffic"].confidence == "medium"
    assert found["foreign_traffic"].evidence.endswith(
        "8 requests were under way before we sent any"
    )


def test_warm_up_is_ours() -> None:
    warmup = [shot(n, kind="warmup") for n in range(8)]
    shots = [*warmup, *uniques(16)]
    assert accused(shots) == {}
    assert accused(shots[8:], books(shots)) == {"foreign_traffic": "high"}


def test_broken_requests_may_have_cost_all_they_asked_for() -> None:
    slow = {"took_ms": 60_000.0}
    shots = [*uniques(14), failed(14, "timeout", **slow), failed(15, "cut", **slow)]
    most = 1400 + 2 * 256
    assert accused(shots, books(shots, requests=16, generation_tokens=most)) == {}
    assert accused(shots, books(shots, requests=14, generation_tokens=1400)) == {}
    beyond = books(shots, requests=16, generation_tokens=most + 17)
    assert accused(shots, beyond) == {"foreign_traffic": "medium"}
    many = books(shots, requests=17, generation_tokens=1500)
    assert accused(shots, many) == {"foreign_traffic": "high"}


def test_requests_that_never_arrived_cost_nothing() -> None:
    refused = [failed(14, "connect", took_ms=60_000.0), failed(15, "tls", took_ms=60_000.0)]
    unsent = replace(failed(16, "not_sent"), sent_at=None, took_ms=None)
    shots = [*uniques(14), *refused, unsent]
    assert accused(shots, books(shots)) == {}
    one_more = books(shots, requests=15, generation_tokens=1410)
    assert accused(shots, one_more) == {"foreign_traffic": "high"}


def test_requests_that_made_no_token_are_a_hint_of_others() -> None:
    shots = uniques(16)
    assert accused(shots, books(shots, requests=18)) == {"foreign_traffic": "low"}


def test_requests_under_way_before_ours_prove_nothing_where_the_books_are_even() -> None:
    # the gauge of a server whose clients all left at once
    shots = uniques(16)
    assert accused(shots, books(shots, running_before=106)) == {}


def test_requests_under_way_before_ours_are_a_hint_where_nothing_is_counted() -> None:
    shots = uniques(16)
    ledger = no_books(running_before=4)
    assert accused(shots, ledger) == {"foreign_traffic": "low"}


def test_one_token_a_request_more_may_be_the_end_of_text() -> None:
    shots = uniques(16)
    assert accused(shots, books(shots, generation_tokens=1616)) == {}
    assert accused(shots, books(shots, generation_tokens=1617)) == {"foreign_traffic": "medium"}


def test_others_that_fill_the_gap_of_a_cache_are_told_beside_it() -> None:
    first = uniques(24)
    memory = [replayed(first[n], 24 + n) for n in range(8)]
    shots = [*first, *memory]
    # 24 of ours and 6 of others', 100 tokens each: 30 for 32 answers
    ledger = books(shots, requests=30, generation_tokens=3000)
    assert accused(shots, ledger) == {"response_cache": "medium", "foreign_traffic": "medium"}
    # and 20 of others': more than all answers
    ledger = books(shots, requests=44, generation_tokens=4400)
    assert accused(shots, ledger) == {"response_cache": "medium", "foreign_traffic": "high"}


@pytest.mark.parametrize(("requests", "is_told"), [(24, False), (25, True)])
def test_one_request_of_others_shows_beside_a_cache_that_the_counters_confirm(
    requests: int, is_told: bool
) -> None:
    first = uniques(24)
    memory = [replayed(first[n], 24 + n) for n in range(8)]
    shots = [*first, *memory]
    ledger = books(shots, requests=requests, generation_tokens=100 * requests)
    told_ = {"foreign_traffic": "medium"} if is_told else {}
    assert accused(shots, ledger) == {"response_cache": "high"} | told_


def test_answers_without_usage_bound_the_tokens_by_what_was_asked() -> None:
    shots = uniques(16, tokens=50, output_tokens_estimated=True)
    assert accused(shots, books(shots, generation_tokens=16 * 256)) == {}
    assert accused(shots, books(shots, generation_tokens=17 * 256)) == {"foreign_traffic": "medium"}
    silent = [replace(each, output_tokens=None, stream=False) for each in shots]
    assert accused(silent, books(shots, generation_tokens=16 * 256)) == {}


# inflated_usage


def claimed(factor: int, **more: object) -> list[RequestRecord]:
    """Answers of 100 tokens that claim several times as many."""
    honest = uniques(16, max_tokens=1024, **more)
    return [replace(each, output_tokens=factor * 100) for each in honest]


def test_claims_beyond_counters_and_chunks_are_inflated() -> None:
    shots = claimed(2)
    found = told(shots, books(shots, generation_tokens=1600))
    assert found.keys() - {"not_judged"} == {"inflated_usage"}
    assert found["inflated_usage"].confidence == "high"
    assert found["inflated_usage"].evidence == (
        "answers claim 3,200 tokens where the server made 1,600 for as many requests and"
        " streams claim 3,200 tokens in 1,600 chunks"
    )


def test_claims_beyond_chunks_and_text_are_inflated_without_counters() -> None:
    # 450 characters for 1,000 tokens
    assert accused(claimed(10), no_books()) == {"inflated_usage": "medium"}


def test_claims_beyond_chunks_and_the_text_of_peers_are_inflated() -> None:
    peers = {"bob": [replace(each, name="bob") for each in uniques(16)]}
    assert accused(claimed(2), no_books(), peers=peers) == {"inflated_usage": "medium"}
    assert accused(claimed(2), no_books()) == {}  # 2.25 characters a token: Chinese?


def test_a_claim_must_be_a_tenth_too_high() -> None:
    # bundled chunks agree that 1,600 tokens are too many, from 160 missing ones on
    shots = uniques(16, token_chunks=50)
    assert accused(shots, books(shots, generation_tokens=1439)) == {"inflated_usage": "high"}
    assert "inflated_usage" not in accused(shots, books(shots, generation_tokens=1440))


@pytest.mark.parametrize(
    ("chars", "slots", "is_told"), [(269, 4, True), (271, 4, False), (269, 3, False)]
)
def test_text_beside_peers_is_too_little_below_three_fifths(
    chars: int, slots: int, is_told: bool
) -> None:
    # theirs: 450 characters for 100 tokens; bundled chunks are the second kind of evidence
    peers = {"bob": [replace(each, name="bob") for each in uniques(slots)]}
    found = accused(uniques(16, text_chars=chars, token_chunks=50), no_books(), peers=peers)
    assert ("inflated_usage" in found) is is_told


def test_only_new_prompts_of_peers_that_were_answered_are_compared() -> None:
    for change in ({"kind": "twin"}, {"ok": False}):
        peers = {"bob": [replace(each, name="bob", **change) for each in uniques(16)]}
        shots = uniques(16, text_chars=200, token_chunks=50)
        assert accused(shots, no_books(), peers=peers) == {}


def test_counters_alone_are_a_hint_where_nothing_was_streamed() -> None:
    shots = claimed(2, stream=False)
    ledger = books(shots, generation_tokens=1600)
    assert accused(shots, ledger) == {"inflated_usage": "low"}


def test_a_claim_is_a_fifth_too_high_where_counters_and_chunks_agree() -> None:
    # 120 claimed for 100 that were made and streamed; without counters they may be bundles
    shots = [replace(each, output_tokens=120) for each in uniques(16)]
    assert accused(shots, books(shots, generation_tokens=1600)) == {"inflated_usage": "high"}
    assert accused(shots, no_books()) == {}


def test_peers_that_say_as_much_confirm_a_claim_and_others_do_not() -> None:
    shots = uniques(16, stream=False)
    ledger = books(shots, generation_tokens=1200)  # of 1,600
    same = {"bob": [replace(each, name="bob") for each in shots]}
    more = {"bob": [replace(each, name="bob", text_chars=600) for each in shots]}
    assert accused(shots, ledger, peers=same) == {"hidden_backend": "medium"}
    assert accused(shots, ledger, peers=more) == {"inflated_usage": "low"}


def test_claims_of_requests_that_were_broken_off_hide_no_other_engine() -> None:
    # 32 tokens of 256 claimed ones were delivered; the engine made 35 and finished no request
    shots = uniques(16, tokens=256, token_chunks=32, text_chars=140)
    ledger = books(shots, requests=0, generation_tokens=16 * 35)
    assert accused(shots, ledger) == {"inflated_usage": "medium"}


def test_whole_answers_without_counters_leave_claims_unjudged() -> None:
    found = told(uniques(16, stream=False), no_books())
    assert "inflated_usage: without counters and streams" in found["not_judged"].evidence
    assert "inflated_usage" not in told(uniques(16), no_books())["not_judged"].evidence


def test_bundled_chunks_of_speculative_decoding_are_honest() -> None:
    shots = uniques(16, token_chunks=30)
    assert accused(shots) == {}
    assert accused(shots, no_books()) == {}


def test_thoughts_that_are_not_shown_are_honest_where_the_engine_made_them() -> None:
    shots = uniques(16, token_chunks=10, text_chars=40)
    assert accused(shots) == {}


def test_claims_that_chunks_confirm_were_made_by_another_engine() -> None:
    shots = uniques(16)
    ledger = books(shots, generation_tokens=800)
    assert accused(shots, ledger) == {"hidden_backend": "medium"}


def test_a_cache_inflates_nothing() -> None:
    first = uniques(16, token_chunks=30)
    memory = [replayed(first[n], 16 + n) for n in range(8)]
    shots = [*first, *memory]
    assert accused(shots, books(shots, without=memory)) == {"response_cache": "high"}


@pytest.mark.parametrize("chars", [10, 60])
def test_short_texts_of_few_tokens_are_too_little_to_judge(chars: int) -> None:
    shots = uniques(16, tokens=15, text_chars=chars, token_chunks=3)
    assert accused(shots, no_books()) == {}
