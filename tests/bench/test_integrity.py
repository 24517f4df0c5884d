"""What a host answers is weighed against what its engine made, to the token."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.shots import accused, books, failed, no_books, replayed, shot, told, twin, uniques

from toolkit.records import RequestRecord

FIRST, MORE = uniques(16), uniques(24)
"""100 tokens and 450 characters each, in 100 chunks."""
ANEW = [twin(FIRST[n], 16 + n) for n in range(8)]
EQUAL = [replace(each, text_hash=FIRST[n].text_hash) for n, each in enumerate(ANEW)]
"""The same requests again, answered by an engine, as at temperature 0 with the same texts."""
MEMORY = [replayed(FIRST[n], 16 + n) for n in range(8)]
LATER_MEMORY = [replayed(MORE[n], 24 + n) for n in range(8)]
SLOWLY = {"took_ms": 60_000.0}
BROKEN = [*uniques(14), failed(14, "timeout", **SLOWLY), failed(15, "cut", **SLOWLY)]
NEVER_ARRIVED = [
    *uniques(14),
    failed(14, "connect", **SLOWLY),
    failed(15, "tls", **SLOWLY),
    replace(failed(16, "not_sent"), sent_at=None, took_ms=None),
]
WARMED_UP = [*(shot(n, kind="warmup") for n in range(8)), *FIRST]
LONG_PROMPTS = uniques(16, tokens=16, first_ms=2000.0, stream=False)
READ_BEFORE = [
    twin(LONG_PROMPTS[n], 16 + n, e2e_ms=320.0, took_ms=320.0, text_hash=LONG_PROMPTS[n].text_hash)
    for n in range(8)
]
BUNDLED = uniques(16, token_chunks=30)
ESTIMATED = uniques(16, tokens=50, output_tokens_estimated=True)
NO_USAGE = [replace(each, output_tokens=None, stream=False) for each in ESTIMATED]
HIDDEN, OTHERS, CACHE = "hidden_backend", "foreign_traffic", "response_cache"


def claims(tokens: int, **more: Any) -> list[RequestRecord]:
    """Answers that claim so many tokens, whatever they hold."""
    return [replace(each, output_tokens=tokens) for each in uniques(16, max_tokens=1024, **more)]


@pytest.mark.parametrize(
    ("records", "counted", "expected"),
    [
        # hidden_backend: answers that no counter knows
        (FIRST, {"without": FIRST[:8]}, {HIDDEN: "high"}),
        (FIRST, {"without": FIRST[:8], "requests": None}, {HIDDEN: "medium"}),
        (BUNDLED, {"without": BUNDLED[:8]}, {HIDDEN: "high"}),
        (FIRST, {"generation_tokens": 800}, {HIDDEN: "medium"}),  # as many chunks as it claims
        ([*FIRST, *ANEW], {"without": [*FIRST, *ANEW]}, {HIDDEN: "high"}),  # and no cache
        ([*FIRST, *ANEW], {"without": ANEW}, {HIDDEN: "high"}),
        ([*FIRST, *EQUAL], {"without": [*FIRST, *EQUAL]}, {HIDDEN: "high"}),
        ([*FIRST, *EQUAL], {"without": EQUAL[:4]}, {HIDDEN: "low"}),  # some may be cached
        # a backend that serves long prompts from a prefix cache is no response cache
        ([*LONG_PROMPTS, *READ_BEFORE], {"without": [*LONG_PROMPTS, *READ_BEFORE]}, {HIDDEN: "high"}),
        ([*FIRST, *MEMORY], {"without": [*MEMORY, *FIRST[8:]]}, {CACHE: "high", HIDDEN: "high"}),
        ([*FIRST, *MEMORY], {"requests": 16, "generation_tokens": 1400}, {CACHE: "high", HIDDEN: "medium"}),
        (uniques(16, tokens=5), {"generation_tokens": 64}, {}),  # it does not count the first token
        (uniques(40), {"without": uniques(40)[:2]}, {}),  # a twentieth explains nothing
        (uniques(40), {"without": uniques(40)[:3]}, {HIDDEN: "high"}),
        # foreign_traffic: counts that cannot be ours
        (WARMED_UP, {}, {}),
        (FIRST, {"requests": 24, "generation_tokens": 2400}, {OTHERS: "high"}),
        (BROKEN, {"requests": 16, "generation_tokens": 1400 + 2 * 256}, {}),  # all they asked for
        (BROKEN, {"requests": 16, "generation_tokens": 1400 + 2 * 256 + 16}, {}),
        (BROKEN, {"requests": 14, "generation_tokens": 1400}, {}),
        (BROKEN, {"requests": 16, "generation_tokens": 1400 + 2 * 256 + 17}, {OTHERS: "medium"}),
        (BROKEN, {"requests": 17, "generation_tokens": 1500}, {OTHERS: "high"}),
        (NEVER_ARRIVED, {}, {}),
        (NEVER_ARRIVED, {"requests": 15, "generation_tokens": 1410}, {OTHERS: "high"}),
        (FIRST, {"requests": 18}, {OTHERS: "low"}),  # which made no token
        (FIRST, {"running_before": 106}, {}),  # the gauge of a server whose clients all left at once
        (FIRST, {"generation_tokens": 1616}, {}),  # the end of text, counted
        (FIRST, {"generation_tokens": 1617}, {OTHERS: "medium"}),
        (ESTIMATED, {"generation_tokens": 16 * 256}, {}),  # bound by what was asked for
        (ESTIMATED, {"generation_tokens": 17 * 256}, {OTHERS: "medium"}),
        (NO_USAGE, {"requests": 16, "generation_tokens": 16 * 256}, {}),
        # 24 of ours and 6, 20, none, or one of others', 100 tokens each, for 32 answers of which 8 were replayed
        ([*MORE, *LATER_MEMORY], {"requests": 30, "generation_tokens": 3000}, {CACHE: "medium", OTHERS: "medium"}),
        ([*MORE, *LATER_MEMORY], {"requests": 44, "generation_tokens": 4400}, {CACHE: "medium", OTHERS: "high"}),
        ([*MORE, *LATER_MEMORY], {"requests": 24, "generation_tokens": 2400}, {CACHE: "high"}),
        ([*MORE, *LATER_MEMORY], {"requests": 25, "generation_tokens": 2500}, {CACHE: "high", OTHERS: "medium"}),
        ([*MORE, *LATER_MEMORY], {"requests": 25, "generation_tokens": 2410}, {CACHE: "high", OTHERS: "medium"}),
        # inflated_usage: two of counters, chunks and text speak against a claim
        (claims(200), {"generation_tokens": 1600}, {"inflated_usage": "high"}),
        (claims(1000), None, {"inflated_usage": "medium"}),  # 450 characters for 1,000 tokens
        (claims(200), None, {}),  # 2.25 characters a token: Chinese?
        (claims(200, stream=False), {"generation_tokens": 1600}, {"inflated_usage": "low"}),
        (claims(120), {"generation_tokens": 1600}, {"inflated_usage": "high"}),
        (claims(120), None, {}),  # they may be bundles
        # with bundled chunks a claim must be a tenth too high, from 160 missing tokens on
        (uniques(16, token_chunks=50), {"generation_tokens": 1439}, {"inflated_usage": "high"}),
        (uniques(16, token_chunks=50), {"generation_tokens": 1440}, {}),
        # 32 tokens of 256 claimed ones were delivered; the engine made 35 and finished no request
        (uniques(16, tokens=256, token_chunks=32, text_chars=140),
         {"requests": 0, "generation_tokens": 16 * 35}, {"inflated_usage": "medium"}),
        (BUNDLED, {}, {}),  # speculative decoding bundles honestly
        (BUNDLED, None, {}),
        (uniques(16, token_chunks=10, text_chars=40), {}, {}),  # thoughts that are not shown
        (uniques(16, tokens=15, text_chars=10, token_chunks=3), None, {}),  # too little to judge
        (uniques(16, tokens=15, text_chars=60, token_chunks=3), None, {}),
    ],
)  # fmt: skip
def test_answers_and_counters_are_held_against_each_other(
    records: list[RequestRecord], counted: dict[str, Any] | None, expected: dict[str, str]
) -> None:
    ledger = no_books() if counted is None else books(records, **counted)
    assert accused(records, ledger) == expected


def test_requests_under_way_before_ours_are_a_hint_where_nothing_is_counted() -> None:
    assert accused(FIRST, no_books(running_before=4)) == {OTHERS: "low"}


def test_a_cache_whose_tokens_were_bundled_inflates_nothing() -> None:
    first = uniques(16, token_chunks=30)
    memory = [replayed(first[n], 16 + n) for n in range(8)]
    assert accused([*first, *memory], books([*first, *memory], without=memory)) == {CACHE: "high"}


@pytest.mark.parametrize(
    ("records", "counted", "sentence"),
    [
        (FIRST, {"without": FIRST[:8]},
         "the server's own counters lack 800 of 1,600 answered tokens and 8 of 16 answered requests"),
        (FIRST, {"requests": 17, "generation_tokens": 1900}, (
            "the server counted 17 requests, of which at least 1 cannot be ours and"
            " 300 of its 1,900 generated tokens are beyond what we can have caused")),
        (FIRST, {"generation_tokens": 9600, "running_before": 8}, (
            "8,000 of its 9,600 generated tokens are beyond what we can have caused and"
            " 8 requests were under way before we sent any")),
        (claims(200), {"generation_tokens": 1600}, (
            "answers claim 3,200 tokens where the server made 1,600 for as many requests and"
            " streams claim 3,200 tokens in 1,600 chunks")),
    ],
)  # fmt: skip
def test_the_evidence_is_a_sentence_with_both_counts(
    records: list[RequestRecord], counted: dict[str, Any], sentence: str
) -> None:
    found = told(records, books(records, **counted))
    (verdict,) = [each for code, each in found.items() if code != "not_judged"]
    assert verdict.evidence == sentence


# beside peers


def at_bob(records: Sequence[RequestRecord], **changes: Any) -> dict[str, list[RequestRecord]]:
    return {"bob": [replace(each, name="bob", **changes) for each in records]}


@pytest.mark.parametrize(
    ("chars", "peers", "is_told"),
    [
        # theirs: 450 characters for 100 tokens; bundled chunks are the second kind of evidence
        (269, at_bob(uniques(4)), True),
        (271, at_bob(uniques(4)), False),
        (269, at_bob(uniques(3)), False),
        # only new prompts that were answered are compared
        (200, at_bob(FIRST, kind="twin"), False),
        (200, at_bob(FIRST, ok=False), False),
    ],
)
def test_text_beside_peers_is_too_little_below_three_fifths(
    chars: int, peers: dict[str, list[RequestRecord]], is_told: bool
) -> None:
    found = accused(uniques(16, text_chars=chars, token_chunks=50), no_books(), peers=peers)
    assert found == ({"inflated_usage": "medium"} if is_told else {})


def test_peers_that_say_as_much_confirm_a_claim_and_others_do_not() -> None:
    records = uniques(16, stream=False)
    ledger = books(records, generation_tokens=1200)  # of 1,600
    assert accused(records, ledger, peers=at_bob(records)) == {HIDDEN: "medium"}
    longer = at_bob(records, text_chars=600)
    assert accused(records, ledger, peers=longer) == {"inflated_usage": "low"}


def test_whole_answers_without_counters_leave_claims_unjudged() -> None:
    found = told(uniques(16, stream=False), no_books())
    assert "inflated_usage: without counters and streams" in found["not_judged"].evidence
    assert "inflated_usage" not in told(FIRST, no_books())["not_judged"].evidence
