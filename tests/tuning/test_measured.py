"""Requests, seconds and profiles, worked out by hand."""

import pytest
from support import shots
from support.tallies import S, sketch, tally

from toolkit.profiles import Profile, Prompt
from toolkit.records import ErrorCount, Ledger
from toolkit.tuning.cells import cells_of_tallies
from toolkit.tuning.evidence import Evidence
from toolkit.tuning.measured import (
    evidence_of_ledger,
    evidence_of_profile,
    evidence_of_seconds,
    evidence_of_shots,
    evidence_of_verdicts,
)


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
    assert found.first_over_row == pytest.approx(50 / 8)
    assert evidence_of_shots(cold).first_over_later is None


def test_a_first_wave_whose_requests_waited_for_each_other_is_not_cold() -> None:
    # eight at once, the prompts of which are read one after the other, a second each; later ones wait for themselves alone
    row = [shots.shot(slot, first_ms=1000.0 * (slot + 1)) for slot in range(8)]
    found = evidence_of_shots([*row, *shots.uniques(16, 8, first_ms=1000.0)])
    # the third waited for three; their median, 4.5 s, would be 4.5 times as long, and all eight read alone are 8 s
    assert found.first_over_later == pytest.approx(3)
    assert found.first_over_row == pytest.approx(3 / 8)


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


def seconds(*ttft_ms: float, ok: int = 8, seconds: int = 40) -> Evidence:
    """A blast of 40 s, eight answers of 1 s in each; the first seconds' TTFTs in turn, all later ones 100 ms."""
    tallies = [
        tally(
            S + at,
            ok=ok,
            e2e=sketch(*[1000.0] * ok),
            ttft=sketch(*(ttft_ms[at * ok : at * ok + ok] or [100.0] * ok)),
        )
        for at in range(seconds)
    ]
    return evidence_of_seconds(cells_of_tallies(tallies, range(S, S + seconds)), tallies)


def test_in_a_blast_too_the_third_of_those_at_once_tells_whether_it_was_cold() -> None:
    # eight answers of a second each second: eight at once (Little's law). The first second's eight waited in a row, 0.3 s
    # each; of the 32 answers of the first tenth of the seconds the eight slowest are they, the third of these 0.9 s
    row = seconds(*[300.0 * (place + 1) for place in range(8)])
    assert row.first_over_later == pytest.approx(9, rel=0.02)
    assert row.first_excess_ms == pytest.approx(800, rel=0.03)
    # and here all eight waited for the compiler
    cold = seconds(*[2400.0] * 8)
    assert cold.first_over_later == pytest.approx(24, rel=0.02)
    assert cold.first_over_row == pytest.approx(24 / 8, rel=0.04)


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
