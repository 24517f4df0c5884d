"""Requests, seconds and profiles, worked out by hand."""

import pytest
from support import shots
from support.tallies import S, sketch, tally

from toolkit.improve.cells import cells_of_tallies
from toolkit.improve.evidence import Evidence
from toolkit.improve.measured import (
    evidence_of_ledger,
    evidence_of_profile,
    evidence_of_seconds,
    evidence_of_shots,
    evidence_of_verdicts,
)
from toolkit.profiles import Profile, Prompt
from toolkit.records import ErrorCount, Ledger


def prompt(name: str, text: str, **more) -> Prompt:
    return Prompt(name=name, messages=({"role": "user", "content": text},), **more)


def test_a_benchs_requests_say_what_the_client_saw() -> None:
    found = evidence_of_shots(
        [
            *shots.uniques(14),
            shots.failed(14, "connect", status_code=None),
            shots.failed(15, "http_500"),
            shots.shot(99, kind="warmup", first_ms=9e4),
        ]
    )
    assert (found.requests, found.error_share, found.refused_share) == (16, 2 / 16, 1 / 16)
    assert found.client_ttft_p50_ms == pytest.approx(100, rel=0.01)
    assert found.tpot_p50_ms == pytest.approx(20, rel=0.01)
    # 30 tokens of prompt and 256 that were asked for
    assert (found.prompt_tokens_mean, found.longest_request_tokens) == (30, 286)
    assert found.first_over_later == pytest.approx(1.0)


def test_a_first_wave_that_waited_is_seen() -> None:
    cold = [shots.shot(slot, first_ms=5000.0) for slot in range(8)]
    found = evidence_of_shots([*cold, *shots.uniques(16, 8)])
    assert (found.first_over_later, found.first_excess_ms) == (50, 4900)
    assert evidence_of_shots(cold).first_over_later is None


def test_no_requests_are_no_evidence() -> None:
    assert evidence_of_shots([]) == Evidence()
    assert evidence_of_seconds([]) == Evidence()


def test_a_blasts_seconds_say_how_many_and_how_long() -> None:
    tallies = [
        tally(
            S + at,
            ok=9,
            errors=1,
            output_tokens=900,
            error_kinds=(ErrorCount(kind="connect" if at == 0 else "http_500", count=1),),
            ttft=sketch(*[3000.0 if at < 4 else 100.0] * 5),
        )
        for at in range(40)
    ]
    cells = cells_of_tallies(tallies, range(S, S + 40))
    found = evidence_of_seconds(cells, tallies)
    assert (found.interval_s, found.requests, found.requests_per_s) == (40, 400, 9)
    assert (found.error_share, found.refused_share, found.output_tokens_per_s) == (
        0.1,
        1 / 400,
        900,
    )
    # the first tenth of the seconds that answered against the last half
    assert found.first_over_later == pytest.approx(30, rel=0.02)


def test_a_ledger_says_what_the_counters_moved_by() -> None:
    ledger = Ledger(
        run="r", name="a", url="u", requests=20, preemptions=5, prefix_queries=100, prefix_hits=25,
        queue_mean_ms=7.0,
    )  # fmt: skip
    found = evidence_of_ledger(ledger)
    assert (found.preemptions_per_request, found.prefix_hit_ratio, found.queue_mean_ms) == (
        0.25,
        0.25,
        7,
    )
    assert evidence_of_ledger(Ledger(run="r", name="a", url="u")) == Evidence()


def test_verdicts_accuse_acquit_or_say_nothing() -> None:
    accused = evidence_of_verdicts(["truncated_output", "not_judged"], client_ok=False)
    assert (accused.truncated, accused.response_cache, accused.client_limited) == (
        True,
        False,
        True,
    )
    clean = evidence_of_verdicts(["clean"], client_ok=True)
    assert (clean.truncated, clean.response_cache, clean.client_limited) == (False, False, False)
    silent = evidence_of_verdicts(["not_judged"], client_ok=None)
    assert (silent.truncated, silent.response_cache, silent.client_limited) == (None, None, None)


def test_two_prompts_repeat_and_are_too_short_to_share_a_block() -> None:
    contest = Profile(name="c", prompts=(prompt("a", "x" * 60), prompt("b", "y" * 40)))
    found = evidence_of_profile(contest, 200)
    # 2 of 200 are new; a block stands for 64 characters
    assert (found.repeat_share, found.shared_prefix_share, found.chained) == (0.99, 0.0, False)


def test_a_common_beginning_is_shared_in_whole_blocks() -> None:
    # 200 characters in common are three blocks of 64; each prompt has 300
    prompts = tuple(prompt(name, "p" * 200 + name * 100) for name in "abcd")
    found = evidence_of_profile(Profile(name="s", prompts=prompts, unique_share=1.0), 100)
    assert found.repeat_share == 0
    # of 1,200 characters three prompts' 192 were read before
    assert found.shared_prefix_share == pytest.approx(3 * 192 / 1200)


def test_calls_that_follow_one_another_are_chained() -> None:
    chain = Profile(name="c", prompts=(prompt("a", "x", then=("{answer}",)),))
    assert evidence_of_profile(chain, 10).chained is True
    assert evidence_of_profile(chain, 0) == Evidence()
