"""A response cache is told from a prefix cache, from luck and from a slow moment."""

from dataclasses import replace

import pytest
from support.shots import AT, WAVE_S, accused, books, no_books, replayed, shot, told, twin, uniques

from toolkit.bench.verdicts.replays import repeated
from toolkit.records import RequestRecord

WHOLE = {"stream": False}


def with_twins(
    hits: int, misses: int = 0, **more: object
) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """Sixteen unique requests and twins of the first of them; and which came from memory."""
    first = uniques(16, **more)
    memory = [replayed(first[n], 16 + n) for n in range(hits)]
    return [*first, *memory, *(twin(first[n], 16 + n) for n in range(hits, hits + misses))], memory


# must accuse


@pytest.mark.parametrize("more", [{}, WHOLE])
def test_twins_that_the_counters_lack_are_a_response_cache_with_high_confidence(
    more: dict[str, object],
) -> None:
    shots, memory = with_twins(8, **more)
    found = told(shots, books(shots, without=memory))
    assert set(found) == {"response_cache"}
    assert found["response_cache"].confidence == "high"
    # e2e of a unique: 100 + 99 * 20 = 2,080 ms; tokens: 8 * 100
    assert found["response_cache"].evidence == (
        "8 of 8 repeated requests were answered from memory: they took 3.0 ms where the first answers took"
        " 2,080 ms (medians) and the server's counters lack 800 tokens, and these answers hold 800"
    )


def test_streams_without_time_between_their_tokens_are_enough_without_counters() -> None:
    shots, _ = with_twins(8)
    assert accused(shots, no_books()) == {"response_cache": "medium"}


def test_a_stream_replayed_in_one_chunk_counts_too() -> None:
    first = uniques(16)
    memory = [
        replayed(first[n], 16 + n, ttft_ms=3.0, tpot_ms=None, token_chunks=1) for n in range(4)
    ]
    assert accused([*first, *memory], no_books()) == {"response_cache": "medium"}


def test_whole_answers_that_came_sooner_prove_nothing_without_counters() -> None:
    # 11 ms for 100 tokens where the first answers took 2,080 ms
    first = uniques(16, **WHOLE)
    soon = [replayed(first[n], 16 + n, e2e_ms=11.0, took_ms=11.0) for n in range(8)]
    shots = [*first, *soon]
    assert accused(shots, no_books()) == {}
    assert "response_cache" in told(shots, no_books())["not_judged"].evidence


@pytest.mark.parametrize(
    ("first_ms", "change", "is_told"),
    [
        (100.0, {"e2e_ms": 10.0}, True),  # 0.1 ms a token
        (100.0, {"e2e_ms": 10.1}, False),
        (
            100.0,
            {"prompt_tokens": 2300},
            True,
        ),  # 2,080 ms * 100 / 2,400 is 87 ms, a tenth of it 8.7
        (100.0, {"prompt_tokens": 9900}, False),  # a prefix cache may have left 20.8 ms of it
        (100.0, {"prompt_tokens": None}, False),
        (100.0, {"output_tokens": 7}, False),
        (89_000.0, {"e2e_ms": 10.0}, True),  # cold at first: later answers say what is usual
    ],
)
def test_a_whole_answer_that_no_engine_writes_so_soon_was_remembered(
    first_ms: float, change: dict[str, float | None], is_told: bool
) -> None:
    first = [*uniques(8, first_ms=first_ms, **WHOLE), *uniques(8, start=8, **WHOLE)]
    soon = [replayed(first[n], 16 + n, **{"e2e_ms": 5.0} | change) for n in range(8)]
    assert accused([*first, *soon], no_books()).get("response_cache") == (
        "medium" if is_told else None
    )


def test_an_engine_that_writes_every_answer_that_soon_remembers_nothing() -> None:
    # 0.08 ms a token, also where nothing was asked before
    first = uniques(16, first_ms=0.1, token_ms=0.08, **WHOLE)
    soon = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(8)]
    assert accused([*first, *soon], no_books()) == {}


@pytest.mark.parametrize("sign", [{"answer_id": "same"}, {"cache_status": "HIT"}])
def test_an_id_or_a_header_tells_of_memory_without_counters(sign: dict[str, str]) -> None:
    first = uniques(16, **WHOLE)
    memory = []
    for n in range(4):
        id_ = {"answer_id": first[n].answer_id} if "answer_id" in sign else sign
        memory.append(replayed(first[n], 16 + n, **id_))
    found = accused([*first, *memory], no_books())
    assert found == {"response_cache": "high"}  # and they came far sooner


def test_the_hit_ratio_is_named_by_the_headers_of_all_answers() -> None:
    first = [replace(one, cache_status="toolkit; fwd=uri-miss; stored") for one in uniques(16)]
    memory = [replayed(first[n], 16 + n, cache_status="toolkit; hit; ttl=60") for n in range(8)]
    # neither counts: no header, and a request for which the cache was not asked
    others = [
        replace(one, cache_status=header)
        for one, header in zip(
            uniques(2, start=30), (None, "toolkit; fwd=bypass; detail=no-store"), strict=True
        )
    ]
    found = told([*first, *memory, *others], no_books())
    # 8 of 16 + 8
    assert "by its header the hit ratio is 0.33 of 24 answers" in found["response_cache"].evidence


def test_a_cache_that_says_nothing_has_no_ratio() -> None:
    shots, _ = with_twins(8)
    assert "ratio" not in told(shots, no_books())["response_cache"].evidence


def test_a_slow_replay_is_told_by_counters_that_lack_exactly_the_repeated_tokens() -> None:
    first = uniques(16)
    late = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(4)]
    shots = [*first, *late]
    assert accused(shots, books(shots, without=late)) == {"response_cache": "medium"}


def test_a_cache_is_charged_with_its_slow_and_its_fast_answers() -> None:
    # three streams without time between their tokens, and three whole answers that took 300 ms of 2,080
    first = [*uniques(8), *uniques(8, start=8, **WHOLE)]
    fast = [replayed(first[n], 16 + n) for n in range(3)]
    slow = [replayed(first[8 + n], 24 + n, e2e_ms=300.0, took_ms=300.0) for n in range(3)]
    shots = [*first, *fast, *slow]
    found = told(shots, books(shots, without=[*fast, *slow]))
    assert set(found) == {"response_cache"}
    assert found["response_cache"].evidence.startswith("6 of 6 repeated requests")


def test_half_the_twins_from_memory_are_enough() -> None:
    shots, memory = with_twins(4, misses=4)
    assert accused(shots, books(shots, without=memory)) == {"response_cache": "high"}
    assert accused(shots, no_books()) == {"response_cache": "medium"}


def test_one_tenth_is_enough_where_the_counters_agree_and_too_little_where_there_are_none() -> None:
    shots, memory = with_twins(1, misses=9)
    assert accused(shots, books(shots, without=memory)) == {"response_cache": "high"}
    assert accused(shots, no_books()) == {}


def test_two_of_ten_are_below_three_tenths() -> None:
    assert accused(with_twins(2, misses=8)[0], no_books()) == {}
    assert accused(with_twins(3, misses=7)[0], no_books()) == {"response_cache": "medium"}


def test_two_replays_are_enough_when_they_are_most() -> None:
    assert accused(with_twins(2, misses=2)[0], no_books()) == {"response_cache": "medium"}


def test_one_of_sixteen_is_too_little_even_where_the_counters_agree() -> None:
    shots, memory = with_twins(1, misses=15)
    assert accused(shots, books(shots, without=memory)) == {}


def test_one_fast_twin_alone_is_luck() -> None:
    assert accused(with_twins(1)[0], no_books()) == {}


def test_a_single_twin_that_the_counters_lack_is_no_luck() -> None:
    shots, memory = with_twins(1)
    assert accused(shots, books(shots, without=memory)) == {"response_cache": "high"}


def test_broken_requests_do_not_hide_a_cache() -> None:
    shots, memory = with_twins(8)
    broken = shot(40, ok=False, error_kind="cut", output_tokens=None, e2e_ms=None, took_ms=2000.0)
    # the cut one made the engine write 100 tokens, so 700 of 800 are missing
    ledger = books(shots, without=memory, generation_tokens=1700)
    assert accused([*shots, broken], ledger) == {"response_cache": "high"}


def test_the_round_trip_is_not_the_hosts_time() -> None:
    # 60 ms to a far host: 10 ms for 8 tokens become 70, and from memory 61
    first = uniques(16, tokens=8, first_ms=63.0, token_ms=1.0)
    memory = [replayed(first[n], 16 + n, ttft_ms=60.5, e2e_ms=60.6, took_ms=60.6) for n in range(8)]
    assert accused([*first, *memory], no_books(rtt_ms=60.0)) == {"response_cache": "medium"}
    assert accused([*first, *memory], no_books(rtt_ms=0.0)) == {}


# where the lines are; the unique ones take 100 + 99 * 20 = 2,080 ms unless a case says otherwise

STREAM = {"ttft_ms": 100.0, "e2e_ms": 101.0, "took_ms": 101.0}


@pytest.mark.parametrize(
    ("first", "again", "is_replayed"),
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
    ],
)
def test_a_stream_is_replayed_where_its_tokens_took_no_time(
    first: dict[str, float], again: dict[str, float], is_replayed: bool
) -> None:
    unique = uniques(16, **first)
    twins = [replayed(unique[n], 16 + n, **again) for n in range(8)]
    expected = {"response_cache": "medium"} if is_replayed else {}
    assert accused([*unique, *twins], no_books()) == expected


@pytest.mark.parametrize(("e2e_ms", "code"), [(520.0, "response_cache"), (521.0, "hidden_backend")])
def test_a_whole_answer_of_unknown_text_must_come_in_a_quarter_of_the_time(
    e2e_ms: float, code: str
) -> None:
    first = uniques(16, stream=False)
    twins = [
        replayed(first[n], 16 + n, text_hash=None, e2e_ms=e2e_ms, took_ms=e2e_ms) for n in range(8)
    ]
    shots = [*first, *twins]
    assert accused(shots, books(shots, without=twins)) == {code: "high"}


def test_of_the_replayed_tokens_four_fifths_must_be_missing() -> None:
    shots, memory = with_twins(10)
    ledger = books(shots, without=memory)
    # 10 * 100 tokens and 10 requests were replayed; others filled a fifth of the gap, and a little more
    fifth = replace(ledger, requests=18, generation_tokens=1800)
    more = replace(ledger, requests=18, generation_tokens=1801)
    requests = replace(ledger, requests=19, generation_tokens=1800)
    assert accused(shots, fifth)["response_cache"] == "high"
    assert accused(shots, more)["response_cache"] == "medium"
    assert accused(shots, requests)["response_cache"] == "medium"


def test_without_other_signs_hardly_more_may_be_missing_than_was_repeated() -> None:
    first = uniques(16)
    again = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(10)]
    shots = [*first, *again]
    ledger = books(shots, without=again)
    at_most = replace(ledger, generation_tokens=1500)  # 1,100 missing of 1,000 repeated
    beyond = replace(ledger, generation_tokens=1499)
    assert "response_cache" in accused(shots, at_most)
    assert "response_cache" not in accused(shots, beyond)


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
    kept = {each.prompt: each for each in first}
    memory = [
        replayed(
            kept[f"p{slot % 2}"],
            slot,
            kind="repeat",
            pair=None,
            text_hash=kept[f"p{slot % 2}"].text_hash,
        )
        for slot in range(8, 32)
    ]
    shots = [*first, *memory]
    assert accused(shots, books(shots, without=memory)) == {"response_cache": "high"}
    assert accused(shots, no_books()) == {"response_cache": "medium"}


def test_requests_under_way_together_repeat_nothing() -> None:
    # eight at once with two prompts, and one more once they are answered
    shots = repeats(2, 1)
    later = shot(8, kind="repeat", prompt="p0", text_hash=shots[2].text_hash)
    assert repeated(shots) == []
    assert [(pair.first.slot, pair.again.slot) for pair in repeated([*shots, later])] == [(2, 8)]
    other = replace(later, text_hash="of its own")
    assert [(pair.first.slot, pair.again.slot) for pair in repeated([*shots, other])] == [(0, 8)]


def test_repeats_from_an_engine_with_a_prefix_cache_are_clean() -> None:
    all_ = repeats(2, 4)
    shots = [
        *all_[:8],
        *(shot(s.slot, kind="repeat", prompt=s.prompt, first_ms=20.0) for s in all_[8:]),
    ]
    assert accused(shots) == {}
    assert accused(shots, no_books()) == {}


@pytest.mark.parametrize("token_ms", [20.0, 90.0])
def test_counters_that_stand_still_are_no_cache(token_ms: float) -> None:
    # temperature 0: eight first answers, in a slow moment or not, and 120 equal ones; none of them is counted
    then = {"planned_at": AT - 60, "token_ms": token_ms}
    first = [shot(n, kind="repeat", prompt="p0", **then) for n in range(8)]
    shots = [
        replace(each, text_hash="text", stream=False, ttft_ms=None)
        for each in (*first, *repeats(1, 16)[8:])
    ]
    assert accused(shots, books(shots, without=shots)) == {"hidden_backend": "high"}


def test_a_cache_that_was_warm_before_the_run_is_told_by_counters_that_stand_still() -> None:
    shots = [
        shot(
            slot,
            kind="repeat",
            prompt=f"p{slot % 2}",
            first_ms=2.0,
            token_ms=0.01,
            text_hash=f"text-{slot % 2}",
        )
        for slot in range(16)
    ]
    assert accused(shots, books(shots, without=shots)) == {"response_cache": "medium"}


def test_a_cache_that_overlooks_the_mark_is_told_by_the_ids_of_new_prompts() -> None:
    first = uniques(4)
    copies = [
        shot(
            n,
            first_ms=2.0,
            token_ms=0.01,
            text_hash=first[n % 4].text_hash,
            answer_id=first[n % 4].answer_id,
        )
        for n in range(8, 16)
    ]
    shots = [*first, *copies]
    found = told(shots, books(shots, without=copies))
    assert found.keys() - {"not_judged"} == {"response_cache"}
    assert "8 of 12 requests with new prompts" in found["response_cache"].evidence


# must not accuse


@pytest.mark.parametrize("stream", [True, False])
def test_a_prefix_cache_hit_of_a_long_prompt_is_legal(stream: bool) -> None:
    # 8,000 tokens of prompt take 2 s to read and nothing the second time; 16 tokens of answer, 20 ms each
    first = uniques(16, tokens=16, first_ms=2000.0, stream=stream, prompt_tokens=8000)
    again = [
        twin(
            first[n],
            16 + n,
            ttft_ms=20.0 if stream else None,
            e2e_ms=320.0,
            took_ms=320.0,
            text_hash=first[n].text_hash,
        )
        for n in range(8)
    ]
    shots = [*first, *again]
    assert accused(shots) == {}
    assert accused(shots, no_books()) == {}


def test_equal_texts_at_temperature_zero_are_no_cache() -> None:
    first = uniques(16)
    again = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(8)]
    assert accused([*first, *again]) == {}
    assert accused([*first, *again], no_books()) == {}


def test_an_answer_with_another_text_was_written_anew_however_fast() -> None:
    first = uniques(16)
    again = [replayed(first[n], 16 + n, text_hash=f"other-{n}") for n in range(8)]
    assert accused([*first, *again], no_books()) == {}


def test_a_first_answer_in_a_slow_moment_makes_no_fast_twin() -> None:
    first = uniques(16)
    slow = [shot(n, first_ms=30_000.0, token_ms=400.0) for n in range(4)]
    again = [twin(first[n], 16 + n, text_hash=first[n].text_hash) for n in range(4)]
    assert "response_cache" not in accused([*slow, *first[4:], *again], no_books())


def test_a_host_that_streams_only_when_all_is_written_is_no_cache() -> None:
    first = uniques(16, first_ms=2000.0, token_ms=0.1)
    # the twins found the host idle, and took half the time
    again = [
        twin(
            first[n],
            16 + n,
            ttft_ms=900.0,
            e2e_ms=900.5,
            took_ms=900.5,
            text_hash=first[n].text_hash,
        )
        for n in range(8)
    ]
    assert accused([*first, *again], no_books()) == {}


def test_short_answers_have_no_pace_to_lose() -> None:
    first = uniques(16, tokens=3, first_ms=60.0, token_ms=20.0)
    again = [
        twin(
            first[n], 16 + n, ttft_ms=10.0, e2e_ms=10.0, took_ms=10.0, text_hash=first[n].text_hash
        )
        for n in range(8)
    ]
    assert accused([*first, *again], no_books()) == {}
    assert "prefix cache" in told([*first, *again], no_books())["not_judged"].evidence
    assert accused([*first, *again]) == {}


def test_one_id_for_every_answer_says_nothing() -> None:
    first = uniques(16, answer_id="chatcmpl-1")
    again = [twin(first[n], 16 + n, answer_id="chatcmpl-1") for n in range(8)]
    assert accused([*first, *again], no_books()) == {}


def test_a_few_ids_that_are_drawn_twice_say_nothing() -> None:
    first = uniques(64, tokens=2, text_hash="Singapore.")
    shots = [*first[:-2], shot(62, tokens=2, text_hash="Singapore.", answer_id=first[0].answer_id)]
    assert accused(shots, no_books()) == {}


def test_counters_that_hold_every_token_acquit_streams_that_came_at_once() -> None:
    shots, _ = with_twins(8)
    assert accused(shots, books(shots)) == {}


def test_two_kinds_of_evidence_stand_against_counters_that_disagree() -> None:
    first = uniques(16)
    memory = [replayed(first[n], 16 + n, answer_id=first[n].answer_id) for n in range(8)]
    found = told([*first, *memory])
    assert found["response_cache"].confidence == "medium"
    assert found["response_cache"].evidence.endswith("yet its counters hold all tokens")


def test_equal_answers_in_half_the_time_are_not_judged_without_counters() -> None:
    # 10 ms a token instead of 20: a slow replay, or an engine with less to do
    first = uniques(16)
    for tpot_ms, is_told in ((10.0, False), (11.0, True)):
        e2e_ms = 40.0 + 99 * tpot_ms
        faster = {"e2e_ms": e2e_ms, "took_ms": e2e_ms, "tpot_ms": tpot_ms, "ttft_ms": 40.0}
        again = [replayed(first[n], 16 + n, **faster) for n in range(8)]
        found = told([*first, *again], no_books())
        assert set(found) == {"not_judged"}
        assert ("response_cache" not in found["not_judged"].evidence) is is_told


def test_a_twin_whose_first_was_not_answered_is_no_pair() -> None:
    shots, memory = with_twins(8)
    assert accused([each for each in shots if each.kind == "twin"], no_books()) == {}
    assert memory


def test_an_open_loops_own_delay_is_not_the_hosts_time() -> None:
    # each left 2 s late, and the clock of an open loop runs from the plan
    late = {"concurrency": None, "send_lag_ms": 2000.0}
    first = [
        shot(n, **late, first_ms=2100.0, planned_at=AT + n, sent_at=AT + n + 2.0) for n in range(16)
    ]
    memory = [
        replayed(
            first[n], 16 + n, send_lag_ms=2000.0, ttft_ms=2002.0, e2e_ms=2003.0, took_ms=2003.0
        )
        for n in range(8)
    ]
    assert accused([*first, *memory], no_books()) == {"response_cache": "medium"}


def test_waves_do_not_overlap_in_these_facts() -> None:
    assert shot(0).e2e_ms == 2080.0 < WAVE_S * 1000


def test_each_answer_costs_the_same_however_many_came_from_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted, not timed: 6,400 answers of which 1,600 were replayed took 5.5 s and 10 million hashes."""
    first = uniques(600)
    memory = [replayed(first[n], 600 + n) for n in range(200)]
    shots, ledger = [*first, *memory], books([*first, *memory], without=memory)
    right, hashes = RequestRecord.__hash__, 0

    def counting(record: RequestRecord) -> int:
        nonlocal hashes
        hashes += 1
        return right(record)

    monkeypatch.setattr(RequestRecord, "__hash__", counting)
    assert "response_cache" in told(shots, ledger)
    assert hashes < 30 * len(shots)
