"""All rules together: honest hosts are clean, causes do not spill over, and what cannot be known is said."""

from dataclasses import replace
from random import Random

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

from toolkit.bench.counters import with_counters
from toolkit.bench.verdicts.case import Case
from toolkit.bench.verdicts.judgement import judgement
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import Ledger, RequestRecord

EMPTY = Ledger(run="r", name="alice", url="http://h:1")


def with_twins() -> list[RequestRecord]:
    first = uniques(24)
    return [*first, *(twin(first[n], 24 + n) for n in range(8))]


# clean and not judged


def test_an_honest_host_is_clean_and_nothing_else() -> None:
    shots = with_twins()
    (only,) = judgement(Case(records=shots, ledger=books(shots), host=HOST)).verdicts
    assert (only.code, only.confidence) == ("clean", "high")
    # 32 answers of 100 tokens
    assert only.evidence == (
        "32 requests were answered and the server counted the 3,200 tokens that they hold"
    )


def test_books_that_are_not_even_make_clean_less_sure() -> None:
    first = uniques(32)
    shots = [*first, *(twin(first[n], 32 + n) for n in range(8))]
    for uneven in ({"requests": 39}, {"generation_tokens": 3999}, {"generation_tokens": 4001}):
        found = told(shots, books(shots, **uneven))
        assert found["clean"].confidence == "medium"
        assert found["clean"].evidence == "nothing speaks against its 40 answers"


def test_a_sweep_is_judged_by_its_ladder_where_there_is_no_queue_to_see() -> None:
    two = [step(1, 0.5, 2000.0), step(8, 4.0, 2000.0)]
    assert "saturated" not in told(with_twins(), no_books(), levels=two)["not_judged"].evidence
    assert "saturated" in told(with_twins(), no_books(), levels=two[:1])["not_judged"].evidence


def test_without_counters_nobody_is_clean_and_it_says_what_nobody_can_tell() -> None:
    found = told(with_twins(), no_books())
    assert set(found) == {"not_judged"}
    assert found["not_judged"].confidence == "high"
    assert found["not_judged"].evidence == (
        "hidden_backend, foreign_traffic, and saturated: `/metrics` answered 404"
    )


def test_a_restarted_server_is_not_judged_by_its_counters() -> None:
    before = EngineNumbers(engine="vllm", dialect="v1", requests_total=90, started_at=1.0)
    after = replace(before, requests_total=4, started_at=900.0)
    restarted = with_counters(Ledger(run="r", name="alice", url="http://h:1"), before, after)
    found = told(with_twins(), restarted)
    assert set(found) == {"not_judged"}
    assert "foreign_traffic, and saturated: the server started anew" in found["not_judged"].evidence


def test_reasons_are_told_apart_and_each_once() -> None:
    found = told(uniques(4), no_books(models_before=()))
    assert found["not_judged"].evidence == (
        "hidden_backend, foreign_traffic, and saturated: `/metrics` answered 404;"
        " response_cache: no request was answered twice;"
        " model_mismatch: no list of models;"
        " cold: no new request followed the first answers"
    )


def test_what_a_start_looked_like_is_needed_by_nobody_to_be_clean() -> None:
    first = uniques(4)
    shots = [*first, *(twin(first[n], 4 + n) for n in range(2))]
    (only,) = judgement(Case(records=shots, ledger=books(shots), host=HOST)).verdicts
    assert (only.code, only.confidence) == ("clean", "high")
    gap = "(not judged: cold: no new request followed the first answers)"
    assert only.evidence.endswith(gap)
    # beside an accusation it is a hint, which leaves nobody out of the honest board
    found = told(shots, books(shots, requests=90, generation_tokens=9000))
    assert {code: each.confidence for code, each in found.items()} == {
        "foreign_traffic": "high",
        "not_judged": "low",
    }


def test_what_was_accused_was_judged() -> None:
    first = uniques(16)
    shots = [
        *first,
        *(
            replayed(first[n], 16 + n, stream=False, ttft_ms=None, answer_id=first[n].answer_id)
            for n in range(8)
        ),
    ]
    found = told(shots, no_books(running_before=3))
    assert set(found) == {"response_cache", "foreign_traffic", "not_judged"}
    assert "foreign_traffic" not in found["not_judged"].evidence
    assert "response_cache" not in found["not_judged"].evidence


def test_nothing_sent_is_not_judged() -> None:
    assert set(told([], EMPTY)) == {"not_judged"}


def test_no_answer_is_not_clean() -> None:
    shots = [failed(n, "timeout", took_ms=120_000.0) for n in range(8)]
    assert set(told(shots, books(shots))) == {"not_judged"}


def test_an_open_loop_is_judged_by_its_own_delays() -> None:
    shots = [replace(each, concurrency=None) for each in with_twins()]
    assert "saturated" not in told(shots, no_books())["not_judged"].evidence


# causes that hide each other


def test_a_cache_under_somebody_elses_load_is_both() -> None:
    first = uniques(24)
    memory = [replayed(first[n], 24 + n, answer_id=first[n].answer_id) for n in range(8)]
    shots = [*first, *memory]
    # the others' 40 requests of 100 tokens more than fill the gap of 8
    crowded = books(shots, without=memory, requests=64, generation_tokens=6400, running_before=8)
    assert accused(shots, crowded) == {"response_cache": "high", "foreign_traffic": "high"}


def test_a_cut_answer_is_neither_hidden_nor_foreign_and_inflated_only_if_it_claims_more() -> None:
    # the engine was asked for one token; the answer claims 256
    shots = uniques(16, tokens=256, text_chars=4, token_chunks=1, finish_reason="length")
    short = books(shots, generation_tokens=16, asked_tokens=16)
    assert accused(shots, short) == {"truncated_output": "medium", "inflated_usage": "high"}
    # the engine made what is claimed, and the front kept it back
    made = books(shots, asked_tokens=16)
    assert accused(shots, made) == {"truncated_output": "medium", "inflated_usage": "medium"}
    # the engine wrote 256, and the front passed one on
    kept = uniques(16, tokens=1, text_chars=4)
    assert accused(kept, books(kept, generation_tokens=4096)) == {"truncated_output": "medium"}


def test_a_cache_of_cut_answers_is_both() -> None:
    first = uniques(16, tokens=1, text_chars=4, stream=False)
    memory = [
        replayed(first[n], 16 + n, answer_id=first[n].answer_id, cache_status="HIT")
        for n in range(8)
    ]
    shots = [*first, *memory]
    ledger_ = books(shots, without=memory, finished_stop=0, finished_length=16, asked_tokens=16)
    assert accused(shots, ledger_) == {"response_cache": "high", "truncated_output": "high"}


def test_a_flaky_host_is_only_flaky() -> None:
    first = uniques(24)
    bad = [failed(n, kind, took_ms=90.0) for n, kind in enumerate(["cut", "stream_error"] * 3, 24)]
    again = [twin(first[n], 30 + n) for n in range(8)]
    shots = [*first, *bad, *again]
    ours = books(shots)
    assert ours.generation_tokens is not None
    for extra in (0, 5, 6 * 256):
        made = replace(ours, requests=32 + min(extra, 6), generation_tokens=3200.0 + extra)
        assert accused(shots, made) == {"fast_failures": "high"}


@pytest.mark.parametrize(("failures", "codes"), [(3, {"clean"}), (8, set())])
def test_who_fails_over_a_tenth_is_not_clean_though_its_answers_are(
    failures: int, codes: set[str]
) -> None:
    first = uniques(24)
    # as slow as an answer, so that no speed comes of it
    bad = [failed(n, "timeout", took_ms=60_000.0) for n in range(24, 24 + failures)]
    shots = [*first, *bad, *(twin(first[n], 40 + n) for n in range(8))]
    told = judgement(Case(records=shots, ledger=books(shots), host=HOST)).verdicts
    assert {each.code for each in told} & {"clean", "fast_failures"} == codes


def test_somebody_elses_queue_is_told_as_theirs_and_as_a_queue() -> None:
    shots = uniques(16)
    quiet = books(shots, requests=80, generation_tokens=9000)
    assert accused(shots, quiet) == {"foreign_traffic": "high"}
    queued = replace(quiet, queue_mean_ms=900.0, waiting_max=30)
    assert accused(shots, queued) == {"foreign_traffic": "high", "saturated": "medium"}


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
