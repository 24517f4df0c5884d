"""Answers cut short are told from answers that are short."""

from dataclasses import replace

import pytest
from support.shots import HOST, MODEL, accused, books, failed, no_books, shot, told, uniques

from toolkit.records import RequestRecord, ServedModel

ONE = {"tokens": 1, "text_chars": 4}


def at_bob(shots: list[RequestRecord]) -> dict[str, list[RequestRecord]]:
    return {"bob": [replace(each, name="bob") for each in shots]}


def long_peer(count: int = 16) -> dict[str, list[RequestRecord]]:
    return at_bob(uniques(count, tokens=200))


# must accuse


def test_the_contests_first_token_trick_is_told_by_the_servers_own_counters() -> None:
    # the front asks the engine for one token; the engine ends by `length`, the answer claims `stop`
    shots = uniques(16, **ONE)
    ledger = books(shots, finished_stop=0, finished_length=16, asked_tokens=16)
    found = told(shots, ledger)
    assert found.keys() - {"not_judged"} == {"truncated_output"}
    assert found["truncated_output"].confidence == "high"
    assert found["truncated_output"].evidence == (
        "the engine was asked for 1 of the 256 tokens a request that we asked for (means) and"
        " 16 of 16 answers say `stop` where the server counted `length`: it was the limit that ended them"
    )


def test_a_limit_put_in_the_way_is_told_though_answers_are_long() -> None:
    # 128 of 256 tokens asked for; three answers in four run into it, one stops of itself
    cut = uniques(12, tokens=128)
    shots = [*cut, *uniques(4, start=12, tokens=80)]
    ledger = books(shots, finished_stop=4, finished_length=12, asked_tokens=16 * 128)
    assert accused(shots, ledger) == {"truncated_output": "high"}


def test_others_requests_do_not_hide_the_limit() -> None:
    shots = uniques(16, **ONE)
    # four of somebody else's: 100 tokens each of 100 asked for
    ledger = books(
        shots,
        requests=20,
        generation_tokens=16 + 400,
        finished_stop=0,
        finished_length=20,
        asked_tokens=16 + 400,
        asked_requests=20,
    )
    assert accused(shots, ledger) == {"truncated_output": "high", "foreign_traffic": "high"}


@pytest.mark.parametrize("claim", [1, 256])
def test_peers_that_say_much_to_the_same_prompts_show_one_token_to_be_cut(claim: int) -> None:
    shots = uniques(16, tokens=claim, text_chars=4, token_chunks=1)
    found = told(shots, no_books(), peers=long_peer())
    # of 256 claimed tokens one came, in one chunk of four characters
    claims = {"inflated_usage"} if claim > 1 else set()
    assert found.keys() - {"not_judged"} == {"truncated_output"} | claims
    assert found["truncated_output"].confidence == "medium"
    assert found["truncated_output"].evidence.startswith("16 of 16 answers hold")


def test_peers_and_counters_together_are_sure() -> None:
    shots = uniques(16, **ONE)
    ledger = books(shots, asked_tokens=16)
    assert accused(shots, ledger) == {"truncated_output": "medium"}
    assert accused(shots, ledger, peers=long_peer()) == {"truncated_output": "high"}


def test_an_answer_that_ends_by_length_below_what_was_asked_contradicts_itself() -> None:
    shots = [*uniques(12), *uniques(4, start=12, finish_reason="length")]
    found = told(shots, no_books())
    assert found["truncated_output"].confidence == "medium"
    assert found["truncated_output"].evidence == (
        "4 of 16 answers ended by `length` after 100 of 256 tokens"
    )


def test_any_answer_that_ends_although_told_to_go_on_is_cut() -> None:
    asked = {"ignore_eos": True, "finish_reason": "length"}
    shots = [*uniques(15, tokens=256, **asked), shot(15, tokens=255, **asked)]
    assert accused(shots) == {"truncated_output": "medium"}
    assert accused(uniques(16, tokens=256, **asked)) == {}


def test_an_engine_that_writes_what_the_front_keeps_back_is_told() -> None:
    shots = uniques(16, **ONE)
    ledger = books(shots, generation_tokens=16 * 200)
    assert accused(shots, ledger) == {"truncated_output": "medium"}


# where the lines are


@pytest.mark.parametrize(
    ("cut", "all_", "is_told"), [(2, 40, True), (1, 16, False), (2, 41, False)]
)
def test_two_answers_and_one_in_twenty_must_contradict_themselves(
    cut: int, all_: int, is_told: bool
) -> None:
    shots = [*uniques(cut, finish_reason="length"), *uniques(all_ - cut, start=cut)]
    assert ("truncated_output" in accused(shots, no_books())) is is_told


@pytest.mark.parametrize(
    ("lied", "all_", "is_told"), [(2, 40, True), (1, 16, False), (2, 41, False)]
)
def test_two_answers_and_one_in_twenty_must_claim_another_end(
    lied: int, all_: int, is_told: bool
) -> None:
    shots = uniques(all_)
    ledger = books(shots, finished_stop=all_ - lied, finished_length=lied)
    assert ("truncated_output" in accused(shots, ledger)) is is_told


@pytest.mark.parametrize(
    ("theirs", "finish_reason", "is_told"),
    [(64, "stop", True), (63, "stop", False), (16, "length", True), (15, "length", False)],
)
def test_peers_show_that_a_prompt_calls_for_much(
    theirs: int, finish_reason: str, is_told: bool
) -> None:
    peers = at_bob(uniques(16, tokens=theirs, finish_reason=finish_reason, max_tokens=theirs))
    found = accused(uniques(16, **ONE), no_books(), peers=peers)
    assert ("truncated_output" in found) is is_told


@pytest.mark.parametrize(
    ("mine", "is_told"),
    [
        ({"tokens": 9, "text_chars": 90}, True),  # a tenth of 900 characters
        ({"tokens": 9, "text_chars": 91}, False),
        ({"tokens": 20, "text_chars": None}, True),  # a tenth of 200 tokens
        ({"tokens": 21, "text_chars": None}, False),
    ],
)
def test_a_tenth_of_what_peers_say_is_cut(mine: dict[str, int], is_told: bool) -> None:
    found = accused(uniques(16, **mine), no_books(), peers=long_peer())
    assert ("truncated_output" in found) is is_told


def test_four_prompts_in_common_are_enough() -> None:
    found = accused(uniques(16, **ONE), no_books(), peers=long_peer(4))
    assert found == {"truncated_output": "medium"}


def test_twice_the_tokens_must_have_been_kept_back() -> None:
    shots = uniques(16, tokens=2, text_chars=8)
    assert accused(shots, books(shots, generation_tokens=64)) == {"truncated_output": "medium"}
    assert "truncated_output" not in accused(shots, books(shots, generation_tokens=63))
    assert "truncated_output" not in accused(uniques(1, **ONE), books(uniques(1), requests=1))


@pytest.mark.parametrize("known", [{"asked_tokens": 4096.0}, {"finished_stop": 16.0}])
def test_either_counter_is_enough_to_judge_short_answers(known: dict[str, float]) -> None:
    found = told(uniques(16, **ONE), replace(no_books(), **known))
    assert "truncated_output" not in found["not_judged"].evidence


# must not accuse


def test_short_answers_of_a_lone_host_are_not_judged_without_counters() -> None:
    shots = uniques(16, **ONE)
    found = told(shots, no_books())
    assert set(found) == {"not_judged"}
    assert "truncated_output: answers of one token" in found["not_judged"].evidence


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_short_answers_are_clean_where_the_counters_agree(tokens: int) -> None:
    shots = uniques(16, tokens=tokens, text_chars=10)
    assert accused(shots) == {}
    assert "truncated_output" not in told(shots)["not_judged"].evidence


def test_short_answers_beside_short_answers_are_clean() -> None:
    shots = uniques(16, tokens=3, text_chars=10)
    assert accused(shots, no_books(), peers=at_bob(uniques(16, tokens=4, text_chars=14))) == {}


def test_a_terse_model_beside_a_chatty_one_is_clean() -> None:
    # `Singapore.` beside `The capital of Singapore is Singapore. It is a city-state ...` of 40 tokens
    shots = uniques(16, tokens=3, text_chars=10)
    assert accused(shots, no_books(), peers=at_bob(uniques(16, tokens=40))) == {}


def test_a_model_that_says_half_as_much_is_clean() -> None:
    assert accused(uniques(16, tokens=100), no_books(), peers=long_peer()) == {}


def test_short_answers_to_some_prompts_only_are_clean() -> None:
    shots = [*uniques(8, **ONE), *uniques(8, start=8)]
    assert accused(shots, no_books(), peers=long_peer()) == {}


def test_three_prompts_to_compare_are_too_few() -> None:
    assert accused(uniques(16, **ONE), no_books(), peers=long_peer(3)) == {}


def test_one_peer_of_two_shows_nothing() -> None:
    peers = {**long_peer(), "carol": [replace(s, name="carol") for s in uniques(16, **ONE)]}
    assert accused(uniques(16, **ONE), no_books(), peers=peers) == {}


def test_peers_twins_and_other_prompts_are_not_compared() -> None:
    twins = [replace(each, kind="twin") for each in long_peer()["bob"]]
    others = [replace(each, prompt="other") for each in long_peer()["bob"]]
    assert accused(uniques(16, **ONE), no_books(), peers={"bob": twins}) == {}
    assert accused(uniques(16, **ONE), no_books(), peers={"bob": others}) == {}


def test_the_models_own_length_may_end_an_answer() -> None:
    # 3,996 tokens of prompt and 100 of answer are all of 4,096
    shots = uniques(16, prompt_tokens=3996, finish_reason="length")
    ledger = books(shots, asked_tokens=16 * 100)
    assert accused(shots, ledger) == {}
    longer = ServedModel(id="tiny", max_model_len=8192)
    ledger = replace(ledger, models_before=(longer,), models_after=(longer,))
    assert accused(shots, ledger) == {"truncated_output": "high"}


def test_ignoring_the_end_of_text_does_not_lengthen_the_model() -> None:
    shots = uniques(16, prompt_tokens=3996, finish_reason="length", ignore_eos=True)
    assert accused(shots, books(shots, asked_tokens=1600)) == {}


def test_answers_at_their_limit_end_by_length_honestly() -> None:
    shots = uniques(16, tokens=256, finish_reason="length")
    assert accused(shots) == {}
    assert accused(shots, no_books()) == {}


def test_tokens_counted_in_chunks_are_no_short_answer() -> None:
    # speculative decoding without usage: 64 chunks hold 256 tokens
    shots = uniques(16, tokens=64, output_tokens_estimated=True, finish_reason="length")
    assert accused(shots, books(shots, generation_tokens=16 * 256)) == {}


def test_a_lower_limit_that_no_answer_reached_cut_nothing() -> None:
    shots = uniques(16, tokens=100)
    assert accused(shots, books(shots, asked_tokens=16 * 200)) == {}


def test_one_odd_answer_is_no_habit() -> None:
    shots = [*uniques(15), shot(15, finish_reason="length")]
    assert accused(shots, no_books()) == {}


def test_broken_requests_may_have_ended_by_length() -> None:
    shots = [*uniques(14), failed(14, "cut", took_ms=2000.0), failed(15, "cut", took_ms=2000.0)]
    ledger = books(shots, requests=16, generation_tokens=1400 + 512, finished_length=2)
    assert accused(shots, ledger) == {}


def test_others_that_end_by_length_are_not_ours() -> None:
    shots = uniques(16)
    ledger = books(shots, requests=26, generation_tokens=4160, finished_length=10)
    assert accused(shots, ledger) == {"foreign_traffic": "high"}


def test_a_listed_host_without_models_is_judged_by_what_was_asked() -> None:
    shots = uniques(16)
    assert accused(shots, books(shots, models_before=(), models_after=()), host=HOST) == {}
    assert MODEL.max_model_len == 4096


# a limit that nobody admits


def alike(count: int = 16, **more: object) -> list[RequestRecord]:
    """Answers of 32 tokens each, and of as many characters as their texts happen to have."""
    return [
        replace(each, text_chars=130 + each.slot % 5) for each in uniques(count, tokens=32, **more)
    ]


def test_unlike_texts_that_all_stop_at_one_number_of_tokens_were_cut() -> None:
    found = told(alike(), no_books())
    assert found["truncated_output"].confidence == "medium"
    assert found["truncated_output"].evidence == (
        "16 of 16 answers stop at exactly 32 tokens, though their texts differ"
    )
    # the engine made what it was asked for: that all was asked for is the second kind of evidence
    short = books(alike(), asked_tokens=16 * 32)
    assert accused(alike(), short) == {"truncated_output": "high"}


def test_four_fifths_must_stop_at_that_number() -> None:
    assert "truncated_output" in accused([*alike(16), *uniques(4, start=16, tokens=90)])
    assert accused([*alike(15), *uniques(5, start=15, tokens=90)]) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"finish_reason": "length", "max_tokens": 32},
        {"text_chars": 130},
        {"output_tokens": 15},
        {"output_tokens_estimated": True},
    ],
)
def test_answers_of_one_length_may_be_honest(change: dict[str, object]) -> None:
    # at their limit, all the same text, too short to differ, or counted in chunks
    shots = [replace(each, **change) for each in alike()]
    assert accused(shots, no_books()) == {}


def test_requests_that_the_server_never_finished_were_broken_off() -> None:
    # 200 tokens each were made before the front hung up, 100 of them handed on
    shots = uniques(16)
    ledger = books(shots, requests=0, generation_tokens=3200, finished_stop=0, finished_length=0)
    found = told(shots, ledger)
    assert found.keys() - {"not_judged"} == {"truncated_output"}
    assert found["truncated_output"].evidence == (
        "16 of 16 answers claim to be complete where the server finished no request,"
        " though it made all their tokens"
    )


@pytest.mark.parametrize(
    ("requests", "tokens", "is_told"), [(14, 1600, True), (15, 1600, False), (14, 1599, False)]
)
def test_two_requests_must_be_unfinished_and_no_token_missing(
    requests: int, tokens: int, is_told: bool
) -> None:
    ledger = books(uniques(16), requests=requests, generation_tokens=tokens)
    assert ("truncated_output" in accused(uniques(16), ledger)) is is_told


def test_what_broken_requests_may_have_cost_does_not_stand_in_for_answers() -> None:
    shots = [*uniques(16), *(failed(16 + n, "timeout", took_ms=120_000.0) for n in range(4))]
    # 16 answers of 100 tokens from elsewhere, and 4 * 256 + 600 that others made
    ledger = books(shots, requests=2, generation_tokens=1624)
    assert "truncated_output" not in accused(shots, ledger)


def test_one_token_of_eight_is_not_judged_alone_either() -> None:
    shots = uniques(16, **ONE, max_tokens=8)
    assert "truncated_output" in told(shots, no_books())["not_judged"].evidence


def test_repeated_prompts_are_compared_with_peers_too() -> None:
    shots = uniques(16, **ONE, kind="repeat")
    peers = at_bob(uniques(16, tokens=200, kind="repeat"))
    assert accused(shots, no_books(), peers=peers) == {"truncated_output": "medium"}
