"""All rules together: honest hosts are clean, causes do not spill over, and what cannot be known is said."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.shots import (
    AT,
    HOST,
    WAVE_S,
    accused,
    books,
    failed,
    no_books,
    replayed,
    shot,
    step,
    told,
    twin,
    uniques,
)

from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import judgement
from toolkit.records import Ledger, RequestRecord

EMPTY = Ledger(run="r", name="alice", url="http://h:1")
Records = list[RequestRecord]


def with_twins(count: int, twins: int) -> Records:
    first = uniques(count)
    return [*first, *(twin(first[n], count + n) for n in range(twins))]


HONEST = with_twins(24, 8)
FIRST, SHORT = uniques(24), uniques(16, tokens=1, text_chars=4)
MEMORY = [replayed(FIRST[n], 24 + n, answer_id=FIRST[n].answer_id) for n in range(8)]
CLAIMED = uniques(16, tokens=256, text_chars=4, token_chunks=1, finish_reason="length")
ONE_WHOLE = uniques(16, tokens=1, text_chars=4, stream=False)
SHORT_MEMORY = [
    replayed(ONE_WHOLE[n], 16 + n, answer_id=ONE_WHOLE[n].answer_id, cache_status="HIT")
    for n in range(8)
]
FLAKY = [
    *FIRST,
    *(failed(n, kind, took_ms=90.0) for n, kind in enumerate(["cut", "stream_error"] * 3, 24)),
    *(twin(FIRST[n], 30 + n) for n in range(8)),
]
CUT, OTHERS = "truncated_output", "foreign_traffic"


@pytest.mark.parametrize(
    ("records", "counted", "expected"),
    [
        # a cache under somebody else's load: 40 requests of 100 tokens more than fill the gap of 8
        ([*FIRST, *MEMORY], {"requests": 64, "generation_tokens": 6400, "running_before": 8},
         {"response_cache": "high", OTHERS: "high"}),
        # a cut answer is neither hidden nor foreign, and inflated only if it claims more:
        # the engine was asked for one token, or made all that is claimed and the front kept it back, or passed one on
        (CLAIMED, {"generation_tokens": 16, "asked_tokens": 16}, {CUT: "medium", "inflated_usage": "high"}),
        (CLAIMED, {"asked_tokens": 16}, {CUT: "medium", "inflated_usage": "medium"}),
        (SHORT, {"generation_tokens": 4096}, {CUT: "medium"}),
        # a cache of cut answers
        ([*ONE_WHOLE, *SHORT_MEMORY],
         {"without": SHORT_MEMORY, "finished_stop": 0, "finished_length": 16, "asked_tokens": 16},
         {"response_cache": "high", CUT: "high"}),
        # a flaky host is only flaky, whatever its broken requests cost
        (FLAKY, {}, {"fast_failures": "high"}),
        (FLAKY, {"requests": 37, "generation_tokens": 3205}, {"fast_failures": "high"}),
        (FLAKY, {"requests": 38, "generation_tokens": 3200 + 6 * 256}, {"fast_failures": "high"}),
        # somebody else's queue
        (uniques(16), {"requests": 80, "generation_tokens": 9000}, {OTHERS: "high"}),
        (uniques(16), {"requests": 80, "generation_tokens": 9000, "queue_mean_ms": 900.0, "waiting_max": 30},
         {OTHERS: "high", "saturated": "medium"}),
    ],
)  # fmt: skip
def test_one_cause_is_reported_once_and_two_are_both(
    records: Records, counted: dict[str, Any], expected: dict[str, str]
) -> None:
    assert accused(records, books(records, **counted)) == expected


# clean and not judged


@pytest.mark.parametrize(
    ("records", "counted", "confidence", "sentence"),
    [
        # 32 answers of 100 tokens
        (HONEST, {}, "high",
         "32 requests were answered and the server counted the 3,200 tokens that they hold"),
        # books that are not even make it less sure
        (HONEST, {"requests": 31}, "medium", "no anomaly found in its 32 answers"),
        (HONEST, {"generation_tokens": 3199}, "medium", "no anomaly found in its 32 answers"),
        (HONEST, {"generation_tokens": 3201}, "medium", "no anomaly found in its 32 answers"),
        # what a start looked like is needed by nobody to be clean
        (with_twins(4, 2), {}, "high", (
            "6 requests were answered and the server counted the 600 tokens that they hold"
            " (not judged: cold: no new request followed the first answers)")),
    ],
)  # fmt: skip
def test_a_host_is_clean_where_enough_was_judged(
    records: Records, counted: dict[str, Any], confidence: str, sentence: str
) -> None:
    (only,) = told(records, books(records, **counted)).values()
    assert (only.code, only.confidence, only.evidence) == ("clean", confidence, sentence)


@pytest.mark.parametrize(
    ("records", "ledger", "sentence"),
    [
        (HONEST, no_books(), "hidden_backend, foreign_traffic, and saturated: `/metrics` answered 404"),
        (HONEST, replace(EMPTY, restarted=True, models_before=no_books().models_before),
         "hidden_backend, foreign_traffic, and saturated: the server started anew during the run"),
        (uniques(4), no_books(models_before=()), (
            "hidden_backend, foreign_traffic, and saturated: `/metrics` answered 404;"
            " response_cache: no request was answered twice;"
            " model_mismatch: no list of models;"
            " cold: no new request followed the first answers")),
        # an open loop is judged by its own delays
        ([replace(each, concurrency=None) for each in HONEST], no_books(),
         "hidden_backend and foreign_traffic: `/metrics` answered 404"),
        ([], EMPTY, "most codes: nothing was answered"),
        ([failed(n, "timeout", took_ms=120_000.0) for n in range(8)], EMPTY, "most codes: nothing was answered"),
    ],
)  # fmt: skip
def test_what_nobody_can_tell_is_not_judged(
    records: Records, ledger: Ledger, sentence: str
) -> None:
    (only,) = told(records, ledger).values()
    assert (only.code, only.confidence, only.evidence) == ("not_judged", "high", sentence)


def test_a_sweep_is_judged_by_its_levels_where_there_is_no_queue_to_see() -> None:
    two = [step(1, 0.5, 2000.0), step(8, 4.0, 2000.0)]
    assert "saturated" not in told(HONEST, no_books(), levels=two)["not_judged"].evidence
    assert "saturated" in told(HONEST, no_books(), levels=two[:1])["not_judged"].evidence


def test_what_was_accused_was_judged_and_a_small_gap_beside_it_is_a_hint() -> None:
    found = told([*FIRST, *MEMORY], no_books(running_before=3))
    assert set(found) == {"response_cache", OTHERS, "not_judged"}
    assert found["not_judged"].evidence == "hidden_backend and saturated: `/metrics` answered 404"
    # which leaves nobody out of the honest board
    records = with_twins(4, 2)
    found = told(records, books(records, requests=90, generation_tokens=9000))
    assert {code: each.confidence for code, each in found.items()} == {
        OTHERS: "high",
        "not_judged": "low",
    }


@pytest.mark.parametrize(("failures", "codes"), [(3, {"clean"}), (8, set())])
def test_who_fails_over_a_tenth_is_not_clean_though_its_answers_are(
    failures: int, codes: set[str]
) -> None:
    # as slow as an answer, so that no speed comes of it
    bad = [failed(n, "timeout", took_ms=60_000.0) for n in range(40, 40 + failures)]
    records = [*HONEST, *bad]
    found = judgement(Case(records=records, ledger=books(records), host=HOST)).verdicts
    assert {each.code for each in found} & {"clean", "fast_failures"} == codes


# whatever an honest host does


@st.composite
def honest(draw: st.DrawFn) -> tuple[list[RequestRecord], Ledger]:
    """An honest engine's answers of any length, at its own pace, and its exact counters.

    Texts are equal or not (temperature 0), usage is told, chunks bundle tokens, prefixes are cached for twins, and a
    request may be broken off late, after any number of tokens.
    """
    tokens = st.integers(1, 256)
    count = draw(st.integers(1, 24))
    greedy = draw(st.booleans())
    bundle = draw(st.integers(1, 4))
    token_ms = draw(st.floats(1.0, 50.0))
    slow = st.floats(1.0, 3.0)
    shots: list[RequestRecord] = []
    for n in range(count):
        said = draw(tokens)
        pace = draw(slow)
        shots.append(
            shot(
                n,
                tokens=said,
                first_ms=100.0 * pace,
                token_ms=token_ms * pace,
                stream=draw(st.booleans()),
                token_chunks=-(-said // bundle),
                text_chars=said * 3,
                finish_reason="length" if said == 256 else "stop",
            )
        )
    for n in range(draw(st.integers(0, count))):
        first = shots[n]
        faster = draw(st.floats(0.3, 1.0))
        e2e_ms = (first.e2e_ms or 0.0) * faster
        shots.append(
            replace(
                twin(first, count + n),
                text_hash=first.text_hash if greedy else f"anew-{n}",
                ttft_ms=None if first.ttft_ms is None else first.ttft_ms * faster,
                e2e_ms=e2e_ms,
                took_ms=e2e_ms,
            )
        )
    made = [s for s in shots if s.ok]
    ours = books(made)
    cut = draw(st.lists(st.integers(0, 256), max_size=3))
    lost = [failed(900 + n, "timeout", took_ms=120_000.0) for n in range(len(cut))]
    counted = draw(st.integers(0, len(cut)))
    return [*shots, *lost], replace(
        ours,
        requests=(ours.requests or 0) + counted,
        finished_length=(ours.finished_length or 0) + counted,
        generation_tokens=(ours.generation_tokens or 0) + sum(cut),
        asked_tokens=(ours.asked_tokens or 0) + 256 * counted,
        asked_requests=(ours.asked_requests or 0) + counted,
        running_before=draw(st.sampled_from([None, 0.0, 4.0])),
    )


@settings(deadline=None, max_examples=150)
@given(honest())
def test_honest_answers_with_exact_counters_are_always_clean(
    case: tuple[list[RequestRecord], Ledger],
) -> None:
    shots, ledger_ = case
    assert accused(shots, ledger_) == {}


@settings(deadline=None, max_examples=80)
@given(honest(), honest())
def test_an_honest_host_is_clean_beside_an_honest_peer(
    case: tuple[list[RequestRecord], Ledger], other: tuple[list[RequestRecord], Ledger]
) -> None:
    peers = {"bob": [replace(each, name="bob") for each in other[0]]}
    found = accused(case[0], case[1], peers=peers)
    # a peer of another model may say so much more that one token looks cut: nothing else may be said
    assert found in ({}, {"truncated_output": "medium"})


def any_shot(dice: Random) -> RequestRecord:
    """A shot with any field unknown that may be, and with figures that contradict each other."""

    def amount() -> float | None:
        return dice.choice([None, 0.0, dice.uniform(0, 10), dice.uniform(0, 1e6)])

    def count(most: int) -> int | None:
        return dice.choice([None, 0, dice.randint(0, most), dice.randint(0, most)])

    return RequestRecord(
        run="r",
        name="alice",
        url="http://h:1",
        slot=dice.randint(0, 6),
        kind=dice.choice(["unique", "twin", "repeat", "warmup"]),
        pair=count(6),
        prompt=dice.choice("ab"),
        concurrency=dice.choice([None, 8]),
        stream=dice.random() < 0.5,
        max_tokens=dice.choice([1, 256]),
        ignore_eos=dice.choice([None, True]),
        planned_at=AT + dice.uniform(0, 10 * WAVE_S),
        sent_at=dice.choice([None, AT]),
        send_lag_ms=amount(),
        took_ms=amount(),
        ok=dice.random() < 0.5,
        error_kind=dice.choice([None, "cut", "timeout"]),
        ttft_ms=amount(),
        e2e_ms=amount(),
        prompt_tokens=count(6),
        output_tokens=count(300),
        output_tokens_estimated=dice.random() < 0.5,
        token_chunks=count(300),
        text_chars=count(300),
        text_hash=dice.choice([None, "x", "y"]),
        finish_reason=dice.choice([None, "stop", "length"]),
        model=dice.choice([None, "", "Qwen3-8B", "a/b:c"]),
        answer_id=dice.choice([None, "", "i", "j"]),
        cache_status=dice.choice([None, "", "HIT", "x;hit", ";=,", "\N{SNOWMAN}"]),
    )


def test_no_facts_raise_and_every_code_stands_once() -> None:
    names = (
        "requests generation_tokens finished_length finished_stop asked_tokens asked_requests"
        " preemptions queue_mean_ms running_before waiting_max rtt_ms"
    ).split()
    # dice, as Hypothesis took seconds of CPU to make up 40 cases of 30 shots with 28 fields
    for seed in range(300):
        dice = Random(seed)
        shots, others = ([any_shot(dice) for _ in range(dice.randint(0, n))] for n in (20, 10))
        moved = {name: dice.choice([None, 0.0, dice.uniform(0, 1e6)]) for name in names}
        found = told(shots, replace(EMPTY, **moved), peers={"bob": others})
        assert found, seed
        assert all(each.evidence and "\n" not in each.evidence for each in found.values()), seed
        assert ("clean" in found) <= (set(found) <= {"clean", "not_judged"}), seed
