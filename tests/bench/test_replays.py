"""A response cache is told from a prefix cache, from luck and from a slow moment."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.shots import AT, WAVE_S, accused, books, no_books, replayed, shot, told, twin, uniques

from toolkit.bench.verdicts.replays import repeated
from toolkit.records import RequestRecord

SURE, PROBABLE = {"response_cache": "high"}, {"response_cache": "medium"}
FIRST = uniques(16)
"""100 tokens in 100 + 99 * 20 = 2,080 ms each; from memory they come in 3 ms, tokens 0.01 ms apart."""
WHOLE = uniques(16, stream=False)


def again(first: Sequence[RequestRecord], count: int = 8, **changes: Any) -> list[RequestRecord]:
    """Twins of the first of these from memory; `changes` may be functions of the first answer."""
    start = len(first)
    return [
        replayed(one, start + n, **{k: v(one) if callable(v) else v for k, v in changes.items()})
        for n, one in enumerate(first[:count])
    ]


def equal(first: Sequence[RequestRecord], count: int = 8, **changes: Any) -> list[RequestRecord]:
    """Twins of the first of these that the engine wrote, with the same texts."""
    return [
        twin(one, len(first) + n, text_hash=one.text_hash, **changes)
        for n, one in enumerate(first[:count])
    ]


def anew(first: Sequence[RequestRecord], start: int, end: int) -> list[RequestRecord]:
    """Twins that the engine wrote, with texts of their own."""
    return [twin(first[n], len(first) + n) for n in range(start, end)]


def own_id(first: RequestRecord) -> str | None:
    return first.answer_id


# with counters that lack what came from memory, and without counters


@pytest.mark.parametrize(
    ("records", "memory", "counted", "alone"),
    [
        (FIRST, again(FIRST), SURE, PROBABLE),
        (WHOLE, again(WHOLE), SURE, PROBABLE),  # 0.03 ms a token: no engine writes so soon
        (FIRST, again(FIRST, 4, ttft_ms=3.0, tpot_ms=None, token_chunks=1), SURE, PROBABLE),
        ([*FIRST, *anew(FIRST, 4, 8)], again(FIRST, 4), SURE, PROBABLE),
        ([*FIRST, *anew(FIRST, 1, 10)], again(FIRST, 1), SURE, {}),  # a tenth
        ([*FIRST, *anew(FIRST, 1, 16)], again(FIRST, 1), {}, {}),
        ([*FIRST, *anew(FIRST, 2, 10)], again(FIRST, 2), SURE, {}),
        ([*FIRST, *anew(FIRST, 3, 10)], again(FIRST, 3), SURE, PROBABLE),  # three tenths
        ([*FIRST, *anew(FIRST, 2, 4)], again(FIRST, 2), SURE, PROBABLE),
        (FIRST, again(FIRST, 1), SURE, {}),  # one alone is luck, unless the counters lack it
        (FIRST, equal(FIRST, 4), PROBABLE, {}),  # a slow replay: exactly its tokens are missing
        # whole answers that came in 11 ms prove nothing without counters
        (WHOLE, again(WHOLE, e2e_ms=11.0, took_ms=11.0), SURE, {}),
        # three streams without time between their tokens, and three whole answers that took 300 ms
        ([*FIRST[:8], *WHOLE[8:]],
         [*again(FIRST, 3), *(replayed(WHOLE[8 + n], 24 + n, e2e_ms=300.0, took_ms=300.0) for n in range(3))],
         SURE, PROBABLE),
        # an id or a header, and far sooner
        (WHOLE, again(WHOLE, 4, answer_id=own_id), SURE, SURE),
        (WHOLE, again(WHOLE, 4, cache_status="HIT"), SURE, SURE),
        # other texts were written anew, however fast: elsewhere, where the counters lack them
        (FIRST, again(FIRST, text_hash="another"), {"hidden_backend": "high"}, {}),
    ],
)  # fmt: skip
def test_what_came_from_memory_is_told(
    records: list[RequestRecord],
    memory: list[RequestRecord],
    counted: dict[str, str],
    alone: dict[str, str],
) -> None:
    records = [*records, *memory]
    assert accused(records, books(records, without=memory)) == counted
    assert accused(records, no_books()) == alone


def test_the_evidence_is_a_sentence_with_its_kinds() -> None:
    memory = again(FIRST)
    found = told([*FIRST, *memory], books([*FIRST, *memory], without=memory))
    assert found["response_cache"].evidence == (
        "8 of 8 repeated requests were answered from memory: they took 3.0 ms where the first answers took"
        " 2,080 ms (medians) and the server's counters lack 800 tokens, and these answers hold 800"
    )


def test_the_hit_ratio_is_named_by_the_headers_of_all_answers() -> None:
    first = [replace(one, cache_status="toolkit; fwd=uri-miss; stored") for one in FIRST]
    memory = again(first, cache_status="toolkit; hit; ttl=60")
    # neither counts: no header, and a request for which the cache was not asked
    others = uniques(1, start=30) + uniques(1, start=31, cache_status="toolkit; fwd=bypass")
    found = told([*first, *memory, *others], no_books())
    # 8 of 16 + 8
    assert "by its header the hit ratio is 0.33 of 24 answers" in found["response_cache"].evidence
    silent = told([*FIRST, *again(FIRST)], no_books())
    assert "ratio" not in silent["response_cache"].evidence


# where the lines are

STREAM = {"ttft_ms": 100.0, "e2e_ms": 101.0, "took_ms": 101.0}


@pytest.mark.parametrize(
    ("first", "changes", "is_replayed"),
    [
        # a tenth of 20 ms a token: 99 * 2 = 198 ms between first and last
        ({}, {**STREAM, "e2e_ms": 298.0}, True),
        ({}, {**STREAM, "e2e_ms": 299.0}, False),
        # half of the time, all of it before the first token
        ({}, {"ttft_ms": 1039.0, "e2e_ms": 1040.0}, True),
        ({}, {"ttft_ms": 1040.0, "e2e_ms": 1041.0}, False),
        # 8 tokens: 100 + 7 * 20 = 240 ms; 7 tokens are too few
        ({"tokens": 8}, STREAM, True),
        ({"tokens": 7}, STREAM, False),
        # 16 tokens of 20 ms are 320 ms, a fifth of 1,600 ms = 1,300 + 15 * 20
        ({"tokens": 16, "first_ms": 1300.0}, STREAM, True),
        ({"tokens": 16, "first_ms": 1302.0}, STREAM, False),
        # 2 + 7 * 0.5 = 5.5 ms are enough to tell, 4.5 ms are not
        ({"tokens": 8, "first_ms": 2.0, "token_ms": 0.5}, {"ttft_ms": 0.2, "e2e_ms": 0.2}, True),
        ({"tokens": 8, "first_ms": 1.0, "token_ms": 0.5}, {"ttft_ms": 0.2, "e2e_ms": 0.2}, False),
        # whole answers: 0.1 ms a token, and a tenth of the prompt's share of 2,080 ms:
        # of 2,400 tokens, 87 ms; of 10,000, 20.8 ms, which a prefix cache may have left
        ({"stream": False}, {"e2e_ms": 10.0}, True),
        ({"stream": False}, {"e2e_ms": 10.1}, False),
        ({"stream": False}, {"e2e_ms": 5.0, "prompt_tokens": 2300}, True),
        ({"stream": False}, {"e2e_ms": 5.0, "prompt_tokens": 9900}, False),
        ({"stream": False}, {"e2e_ms": 5.0, "prompt_tokens": None}, False),
        ({"stream": False}, {"e2e_ms": 5.0, "output_tokens": 7}, False),
    ],
)
def test_an_answer_is_replayed_where_its_tokens_took_no_time(
    first: dict[str, Any], changes: dict[str, Any], is_replayed: bool
) -> None:
    unique = uniques(16, **first)
    assert accused([*unique, *again(unique, **changes)], no_books()) == (
        PROBABLE if is_replayed else {}
    )


def test_what_is_usual_is_not_what_a_cold_first_wave_took() -> None:
    first = [*uniques(8, first_ms=89_000.0, stream=False), *WHOLE[8:]]
    assert "response_cache" in accused([*first, *again(first, e2e_ms=10.0)], no_books())
    slow = [shot(n, first_ms=30_000.0, token_ms=400.0) for n in range(4)]
    assert "response_cache" not in accused([*slow, *FIRST[4:], *equal(FIRST, 4)], no_books())


@pytest.mark.parametrize(("e2e_ms", "code"), [(520.0, "response_cache"), (521.0, "hidden_backend")])
def test_a_whole_answer_of_unknown_text_must_come_in_a_quarter_of_the_time(
    e2e_ms: float, code: str
) -> None:
    memory = again(WHOLE, text_hash=None, e2e_ms=e2e_ms, took_ms=e2e_ms)
    records = [*WHOLE, *memory]
    assert accused(records, books(records, without=memory)) == {code: "high"}


@pytest.mark.parametrize(
    ("records", "requests", "tokens", "confidence"),
    [
        # of 10 replayed requests and 1,000 tokens four fifths must be missing
        ([*FIRST, *again(FIRST, 10)], 18, 1800, "high"),
        ([*FIRST, *again(FIRST, 10)], 18, 1801, "medium"),
        ([*FIRST, *again(FIRST, 10)], 19, 1800, "medium"),
        # without another sign hardly more may be missing than was repeated: 1,100 of 1,000
        ([*FIRST, *equal(FIRST, 10)], 16, 1500, "medium"),
        ([*FIRST, *equal(FIRST, 10)], 16, 1499, None),
    ],
)
def test_the_missing_tokens_must_be_those_of_the_repeats(
    records: list[RequestRecord], requests: int, tokens: int, confidence: str | None
) -> None:
    ledger = books(records, requests=requests, generation_tokens=tokens)
    assert accused(records, ledger).get("response_cache") == confidence


def test_broken_requests_do_not_hide_a_cache() -> None:
    memory = again(FIRST)
    records = [*FIRST, *memory]
    broken = shot(40, ok=False, error_kind="cut", output_tokens=None, e2e_ms=None, took_ms=2000.0)
    # the cut one made the engine write 100 tokens, so 700 of 800 are missing
    ledger = books(records, without=memory, generation_tokens=1700)
    assert accused([*records, broken], ledger) == SURE


def test_neither_the_round_trip_nor_an_open_loops_delay_is_the_hosts_time() -> None:
    # 60 ms to a far host: 10 ms for 8 tokens become 70, and from memory 61
    first = uniques(16, tokens=8, first_ms=63.0, token_ms=1.0)
    memory = again(first, ttft_ms=60.5, e2e_ms=60.6, took_ms=60.6)
    assert accused([*first, *memory], no_books(rtt_ms=60.0)) == PROBABLE
    assert accused([*first, *memory], no_books(rtt_ms=0.0)) == {}
    # each left 2 s late, and the clock of an open loop runs from the plan
    first = [
        shot(n, concurrency=None, send_lag_ms=2000.0, first_ms=2100.0, planned_at=AT + n, sent_at=AT + n + 2)
        for n in range(16)
    ]  # fmt: skip
    memory = again(first, send_lag_ms=2000.0, ttft_ms=2002.0, e2e_ms=2003.0, took_ms=2003.0)
    assert accused([*first, *memory], no_books()) == PROBABLE


# repeated prompts


def repeats(prompts: int, waves: int, **more: object) -> list[RequestRecord]:
    """Waves of eight requests with few prompts, the first wave before any answer."""
    return [
        shot(slot, kind="repeat", prompt=f"p{slot % prompts}", **more) for slot in range(8 * waves)
    ]


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_repeated_many_times_shows_the_cache_after_the_first_wave(stream: bool) -> None:
    first = repeats(2, 1, stream=stream)
    # each of the first wave has a text of its own, and the cache keeps the last one of each prompt
    kept = [{each.prompt: each for each in first}[f"p{slot % 2}"] for slot in range(8, 32)]
    memory = [replayed(one, 8 + n, kind="repeat", pair=None) for n, one in enumerate(kept)]
    records = [*first, *memory]
    assert accused(records, books(records, without=memory)) == SURE
    assert accused(records, no_books()) == PROBABLE


def test_requests_under_way_together_repeat_nothing() -> None:
    # eight at once with two prompts, and one more once they are answered
    records = repeats(2, 1)
    later = shot(8, kind="repeat", prompt="p0", text_hash=records[2].text_hash)
    assert repeated(records) == []
    assert [(pair.first.slot, pair.again.slot) for pair in repeated([*records, later])] == [(2, 8)]
    other = replace(later, text_hash="of its own")
    assert [(pair.first.slot, pair.again.slot) for pair in repeated([*records, other])] == [(0, 8)]


@pytest.mark.parametrize("token_ms", [20.0, 90.0])
def test_counters_that_stand_still_are_no_cache(token_ms: float) -> None:
    # temperature 0: eight first answers, in a slow moment or not, and 120 equal ones; none of them is counted
    then = {"planned_at": AT - 60, "token_ms": token_ms}
    first = [shot(n, kind="repeat", prompt="p0", **then) for n in range(8)]
    records = [
        replace(each, text_hash="text", stream=False, ttft_ms=None)
        for each in (*first, *repeats(1, 16)[8:])
    ]
    assert accused(records, books(records, without=records)) == {"hidden_backend": "high"}


def test_a_cache_that_was_warm_before_the_run_is_told_by_counters_that_stand_still() -> None:
    records = [
        replace(each, text_hash=f"text-{each.slot % 2}")
        for each in repeats(2, 2, first_ms=2.0, token_ms=0.01)
    ]
    assert accused(records, books(records, without=records)) == PROBABLE


def test_a_cache_that_overlooks_the_mark_is_told_by_the_ids_of_new_prompts() -> None:
    copies = [
        shot(n, first_ms=2.0, token_ms=0.01, text_hash=FIRST[n % 4].text_hash, answer_id=FIRST[n % 4].answer_id)
        for n in range(8, 16)
    ]  # fmt: skip
    records = [*FIRST[:4], *copies]
    found = told(records, books(records, without=copies))
    assert found.keys() - {"not_judged"} == {"response_cache"}
    assert "8 of 12 requests with new prompts" in found["response_cache"].evidence


# must not accuse


def prefix_cached(stream: bool) -> list[RequestRecord]:
    """8,000 tokens of prompt take 2 s to read and nothing the second time; 16 tokens of answer, 20 ms each."""
    first = uniques(16, tokens=16, first_ms=2000.0, stream=stream, prompt_tokens=8000)
    return [*first, *equal(first, ttft_ms=20.0 if stream else None, e2e_ms=320.0, took_ms=320.0)]


FAST = uniques(16, first_ms=0.1, token_ms=0.08, stream=False)
AT_THE_END = uniques(16, first_ms=2000.0, token_ms=0.1)
SHORT = uniques(16, tokens=3, first_ms=60.0)
ONE_ID = uniques(16, answer_id="chatcmpl-1")
ONE_TEXT = uniques(64, tokens=2, text_hash="Singapore.")
PREFIX_REPEATS = [*repeats(2, 4)[:8], *repeats(2, 4, first_ms=20.0)[8:]]


@pytest.mark.parametrize(
    "records",
    [
        prefix_cached(True),
        prefix_cached(False),
        PREFIX_REPEATS,
        [*FIRST, *equal(FIRST)],  # temperature 0
        [*FAST, *equal(FAST)],  # 0.08 ms a token, also where nothing was asked before
        # it streams only when all is written; the twins found it idle, and took half the time
        [*AT_THE_END, *equal(AT_THE_END, ttft_ms=900.0, e2e_ms=900.5, took_ms=900.5)],
        # short answers have no pace to lose
        [*SHORT, *equal(SHORT, ttft_ms=10.0, e2e_ms=10.0, took_ms=10.0)],
        [*ONE_ID, *equal(ONE_ID, answer_id="chatcmpl-1")],  # whose ids are all the same
        # a few ids that are drawn twice
        [*ONE_TEXT[:-2], shot(62, tokens=2, text_hash="Singapore.", answer_id=ONE_TEXT[0].answer_id)],
        again(FIRST),  # whose first ones were not answered
    ],
)  # fmt: skip
def test_an_honest_engine_is_accused_of_nothing(records: list[RequestRecord]) -> None:
    assert accused(records, books(records)) == accused(records, no_books()) == {}


def test_counters_that_hold_every_token_acquit_one_kind_of_evidence_and_not_two() -> None:
    assert accused([*FIRST, *again(FIRST)]) == {}
    found = told([*FIRST, *again(FIRST, answer_id=own_id)])
    assert found["response_cache"].confidence == "medium"
    assert found["response_cache"].evidence.endswith("yet its counters hold all tokens")


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([*SHORT, *equal(SHORT, ttft_ms=10.0, e2e_ms=10.0)], "a prefix cache looks the same"),
        ([*WHOLE, *again(WHOLE, e2e_ms=11.0)], "a prefix cache looks the same"),
        # 10 ms a token instead of 20: a slow replay, or an engine with less to do; 11 ms are over half the time
        ([*FIRST, *again(FIRST, ttft_ms=40.0, e2e_ms=1030.0)], "response_cache: equal answers came in half"),
        ([*FIRST, *again(FIRST, ttft_ms=40.0, e2e_ms=1129.0)], None),
    ],
)  # fmt: skip
def test_without_counters_some_answers_cannot_be_judged(
    records: list[RequestRecord], why: str | None
) -> None:
    found = told(records, no_books())
    assert set(found) == {"not_judged"}
    evidence = found["not_judged"].evidence
    assert why in evidence if why else "response_cache" not in evidence


def test_each_answer_costs_the_same_however_many_came_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed: 6,400 answers of which 1,600 were replayed took 5.5 s and 10 million hashes."""
    assert shot(0).e2e_ms == 2080.0 < WAVE_S * 1000  # waves do not overlap in these facts
    first = uniques(600)
    memory = again(first, 200)
    records, ledger = [*first, *memory], books([*first, *memory], without=memory)
    right, hashes = RequestRecord.__hash__, 0

    def counting(record: RequestRecord) -> int:
        nonlocal hashes
        hashes += 1
        return right(record)

    monkeypatch.setattr(RequestRecord, "__hash__", counting)
    assert "response_cache" in told(records, ledger)
    assert hashes < 30 * len(records)
