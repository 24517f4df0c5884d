"""Answers cut short are told from answers that are short."""

from dataclasses import replace
from typing import Any

import pytest
from support.shots import accused, books, failed, no_books, shot, told, uniques

from toolkit.records import RequestRecord, ServedModel

CUT = "truncated_output"
WHOLE = uniques(16)
"""100 tokens of the 256 asked for, and 450 characters each."""
ONE = uniques(16, tokens=1, text_chars=4)
FULL = uniques(16, prompt_tokens=3996, finish_reason="length")
"""Their prompts and answers are all of the model's 4,096 tokens."""


def alike(count: int = 16, **more: object) -> list[RequestRecord]:
    """Answers of 32 tokens each, and of as many characters as their texts happen to have."""
    return [
        replace(each, text_chars=130 + each.slot % 5, **more) for each in uniques(count, tokens=32)
    ]


def ignoring_the_end(*tokens: int) -> list[RequestRecord]:
    return [
        shot(slot, tokens=count, ignore_eos=True, finish_reason="length")
        for slot, count in enumerate(tokens)
    ]


def by_length(cut: int, of: int) -> list[RequestRecord]:
    """So many end by length below what was asked for."""
    return [*uniques(cut, finish_reason="length"), *uniques(of - cut, start=cut)]


@pytest.mark.parametrize(
    ("records", "counted", "expected"),
    [
        # the contest's trick: the front asks the engine for one token, which ends by `length`; the answer claims `stop`
        (ONE, {"finished_stop": 0, "finished_length": 16, "asked_tokens": 16}, {CUT: "high"}),
        (ONE, {"asked_tokens": 16}, {CUT: "medium"}),
        # a limit of 128 tokens: three answers in four run into it, one stops of itself
        ([*uniques(12, tokens=128), *uniques(4, start=12, tokens=80)],
         {"finished_stop": 4, "finished_length": 12, "asked_tokens": 16 * 128}, {CUT: "high"}),
        # four of somebody else's, 100 tokens each of 100 asked for, hide no limit
        (ONE, {"requests": 20, "generation_tokens": 416, "finished_stop": 0, "finished_length": 20,
               "asked_tokens": 416, "asked_requests": 20}, {CUT: "high", "foreign_traffic": "high"}),
        (WHOLE, {"asked_tokens": 16 * 200}, {}),  # a lower limit that no answer reached
        (ONE, {"generation_tokens": 16 * 200}, {CUT: "medium"}),  # the front keeps the rest back
        (uniques(16, tokens=2, text_chars=8), {"generation_tokens": 64}, {CUT: "medium"}),
        (uniques(16, tokens=2, text_chars=8), {"generation_tokens": 63}, {"foreign_traffic": "medium"}),
        # told to go on: any answer that ends is cut
        (ignoring_the_end(*[256] * 15, 255), {}, {CUT: "medium"}),
        (ignoring_the_end(*[256] * 16), {}, {}),
        # by length below what was asked for: two answers, and one in twenty
        (by_length(4, of=16), None, {CUT: "medium"}),
        (by_length(2, of=40), None, {CUT: "medium"}),
        (by_length(1, of=16), None, {}),
        (by_length(2, of=41), None, {}),
        (uniques(16, tokens=256, finish_reason="length"), {}, {}),  # at its limit
        (uniques(16, tokens=256, finish_reason="length"), None, {}),
        # speculative decoding without usage: 64 chunks hold 256 tokens
        (uniques(16, tokens=64, output_tokens_estimated=True, finish_reason="length"),
         {"generation_tokens": 16 * 256}, {}),
        # the model's own length may end an answer
        (FULL, {"asked_tokens": 1600}, {}),
        ([replace(each, ignore_eos=True) for each in FULL], {"asked_tokens": 1600}, {}),
        (FULL, {"asked_tokens": 1600, "models_before": (ServedModel(id="tiny", max_model_len=8192),),
                "models_after": (ServedModel(id="tiny", max_model_len=8192),)}, {CUT: "high"}),
        (WHOLE, {"models_before": (), "models_after": ()}, {}),
        # answers say `stop` where the server counted `length`: two, and one in twenty
        (uniques(40), {"finished_stop": 38, "finished_length": 2}, {CUT: "medium"}),
        (WHOLE, {"finished_stop": 15, "finished_length": 1}, {}),
        (uniques(41), {"finished_stop": 39, "finished_length": 2}, {}),
        ([*uniques(14), failed(14, "cut", took_ms=2000.0), failed(15, "cut", took_ms=2000.0)],
         {"requests": 16, "generation_tokens": 1400 + 512, "finished_length": 2}, {}),  # the broken ones
        (WHOLE, {"requests": 26, "generation_tokens": 4160, "finished_length": 10},
         {"foreign_traffic": "high"}),
        # 20 of somebody else's that ended by `length`, where ten of ours were answered elsewhere
        (WHOLE, {"requests": 26, "generation_tokens": 2600, "finished_stop": 6, "finished_length": 20},
         {"foreign_traffic": "high"}),
        # unlike texts that all stop at one number of tokens: a limit that nobody admits
        (alike(), None, {CUT: "medium"}),
        (alike(), {"asked_tokens": 16 * 32}, {CUT: "high"}),
        ([*alike(16), *uniques(4, start=16, tokens=90)], {}, {CUT: "medium"}),
        ([*alike(15), *uniques(5, start=15, tokens=90)], {}, {}),
        (alike(finish_reason="length", max_tokens=32), None, {}),
        (alike(output_tokens=15), None, {}),
        (alike(output_tokens_estimated=True), None, {}),
        ([replace(each, text_chars=130 + each.slot % 4) for each in alike()], None, {CUT: "medium"}),
        ([replace(each, text_chars=130 + each.slot % 3) for each in alike()], None, {}),
        # the front hung up: the server finished no request, though it made all their tokens
        (WHOLE, {"requests": 0, "generation_tokens": 3200, "finished_stop": 0, "finished_length": 0},
         {CUT: "medium"}),
        (WHOLE, {"requests": 14, "generation_tokens": 1600}, {CUT: "medium"}),
        (WHOLE, {"requests": 15, "generation_tokens": 1600}, {}),
        (WHOLE, {"requests": 14, "generation_tokens": 1599}, {}),
    ],
)  # fmt: skip
def test_an_answer_cut_short_contradicts_itself_or_the_counters(
    records: list[RequestRecord], counted: dict[str, Any] | None, expected: dict[str, str]
) -> None:
    ledger = no_books() if counted is None else books(records, **counted)
    assert accused(records, ledger) == expected


def test_what_broken_requests_may_have_cost_does_not_stand_in_for_answers() -> None:
    records = [*WHOLE, *(failed(16 + n, "timeout", took_ms=120_000.0) for n in range(4))]
    # 16 answers of 100 tokens from elsewhere, and 4 * 256 + 600 that others made
    assert CUT not in accused(records, books(records, requests=2, generation_tokens=1624))


@pytest.mark.parametrize(
    ("records", "counted", "sentence"),
    [
        (ONE, {"finished_stop": 0, "finished_length": 16, "asked_tokens": 16}, (
            "the engine was asked for 1 token per request where we asked for 256 (means) and"
            " 16 of 16 answers say `stop` where the server counted `length`: the limit ended them")),
        (by_length(4, of=16), None, "4 of 16 answers ended by `length` after 100 of 256 tokens"),
        (alike(), None, "16 of 16 answers stop at exactly 32 tokens, though their texts differ"),
        (WHOLE, {"requests": 0, "generation_tokens": 3200, "finished_stop": 0, "finished_length": 0}, (
            "16 of 16 answers claim to be complete where the server finished no request,"
            " though it made all their tokens")),
    ],
)  # fmt: skip
def test_the_evidence_is_a_sentence(
    records: list[RequestRecord], counted: dict[str, Any] | None, sentence: str
) -> None:
    ledger = no_books() if counted is None else books(records, **counted)
    assert told(records, ledger)[CUT].evidence == sentence


# what peers say to the same prompts


def at(name: str, records: list[RequestRecord], **changes: Any) -> dict[str, list[RequestRecord]]:
    return {name: [replace(each, name=name, **changes) for each in records]}


LONG = at("bob", uniques(16, tokens=200))


@pytest.mark.parametrize(
    ("records", "peers", "is_told"),
    [
        (ONE, LONG, True),
        (ONE, at("bob", uniques(4, tokens=200)), True),
        (ONE, at("bob", uniques(3, tokens=200)), False),  # prompts to compare
        # what peers say shows that a prompt calls for much
        (ONE, at("bob", uniques(16, tokens=64)), True),
        (ONE, at("bob", uniques(16, tokens=63)), False),
        (ONE, at("bob", uniques(16, tokens=16, max_tokens=16, finish_reason="length")), True),
        (ONE, at("bob", uniques(16, tokens=15, max_tokens=15, finish_reason="length")), False),
        # a tenth of 900 characters, or of 200 tokens where nobody knows the text
        (uniques(16, tokens=9, text_chars=90), LONG, True),
        (uniques(16, tokens=9, text_chars=91), LONG, False),
        (uniques(16, tokens=20, text_chars=None), LONG, True),
        (uniques(16, tokens=21, text_chars=None), LONG, False),
        (WHOLE, LONG, False),  # half as much
        # a terse model beside a chatty one, and short answers beside short ones or to some prompts only
        (uniques(16, tokens=3, text_chars=10), at("bob", uniques(16, tokens=40)), False),
        (uniques(16, tokens=3, text_chars=10), at("bob", uniques(16, tokens=4, text_chars=14)), False),
        ([*ONE[:8], *uniques(8, start=8)], LONG, False),
        (ONE, LONG | at("carol", ONE), False),  # one peer of two
        (ONE, at("bob", LONG["bob"], kind="twin"), False),
        (ONE, at("bob", LONG["bob"], prompt="other"), False),
        ([replace(each, kind="repeat") for each in ONE], at("bob", LONG["bob"], kind="repeat"), True),
    ],
)  # fmt: skip
def test_peers_that_say_ten_times_as_much_show_an_answer_to_be_cut(
    records: list[RequestRecord], peers: dict[str, list[RequestRecord]], is_told: bool
) -> None:
    assert accused(records, no_books(), peers=peers) == ({CUT: "medium"} if is_told else {})


def test_one_token_that_claims_many_is_cut_and_inflated_beside_peers_and_sure_with_counters() -> (
    None
):
    claimed = uniques(16, tokens=256, text_chars=4, token_chunks=1)
    found = told(claimed, no_books(), peers=LONG)
    assert found.keys() - {"not_judged"} == {CUT, "inflated_usage"}
    assert found[CUT].evidence.startswith("16 of 16 answers hold 256 tokens (median) where other")
    assert accused(ONE, books(ONE, asked_tokens=16), peers=LONG) == {CUT: "high"}


# what cannot be judged


@pytest.mark.parametrize(
    ("known", "is_judged"),
    [({}, False), ({"asked_tokens": 4096.0}, True), ({"finished_stop": 16.0}, True)],
)
def test_answers_of_one_token_are_judged_by_a_counter_or_peers_only(
    known: dict[str, float], is_judged: bool
) -> None:
    for records in (ONE, uniques(16, tokens=1, text_chars=4, max_tokens=8)):
        found = told(records, replace(no_books(), **known))
        assert set(found) == {"not_judged"}
        evidence = found["not_judged"].evidence
        assert ("truncated_output: answers of one token" not in evidence) is is_judged


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_short_answers_are_clean_where_the_counters_agree(tokens: int) -> None:
    records = uniques(16, tokens=tokens, text_chars=10)
    assert accused(records) == {}
    assert CUT not in told(records)["not_judged"].evidence
