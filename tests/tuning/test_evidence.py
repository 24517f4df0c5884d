"""What each source tells of a host, worked out by hand: pages some seconds apart, requests, seconds, profiles."""

from dataclasses import replace
from pathlib import Path

import pytest
from support import shots
from support.tallies import S, sketch, tally

from toolkit.metrics.dialects import EngineNumbers
from toolkit.metrics.parser import Histogram, read_page
from toolkit.profiles import Profile, Prompt
from toolkit.records import ErrorCount, Finding, Ledger, Reading, Sighting
from toolkit.tuning.cells import cells_of_tallies
from toolkit.tuning.evidence import (
    Evidence,
    LoadSample,
    evidence_of_ledger,
    evidence_of_profile,
    evidence_of_samples,
    evidence_of_seconds,
    evidence_of_shots,
    evidence_of_verdicts,
    sample_of_page,
    sample_of_sighting,
)

RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"
LABELS = '{engine="0",model_name="m"}'


def histogram(*counts: float, total: float) -> Histogram:
    """Buckets that end at 0.01, 0.1 and 1 second, and the one beyond."""
    return Histogram(
        edges=(0.01, 0.1, 1.0, float("inf")), counts=counts, sum=total, count=counts[-1]
    )


def sample(at_s: float, *, cpu_s: float | None = None, histograms=None, **numbers) -> LoadSample:
    told = {"engine": "vllm", "dialect": "v1", "running": 1.0, "waiting": 0.0, **numbers}
    return LoadSample(
        at_s=at_s, cpu_s=cpu_s, histograms=histograms or {}, numbers=EngineNumbers(**told)
    )


def test_gauges_are_counted_over_all_looks() -> None:
    seen = [
        sample(0, running=8, waiting=2, kv_cache_usage=0.5),
        sample(1, running=8, waiting=0, kv_cache_usage=0.7),
        sample(2, running=6, waiting=1, kv_cache_usage=0.6),
        sample(3, running=0, waiting=3, kv_cache_usage=0.0),
        sample(4, running=0, waiting=0, kv_cache_usage=0.0),
    ]
    found = evidence_of_samples(seen)
    assert (found.looks, found.running_mean, found.running_max, found.running_min) == (5, 4.4, 8, 0)
    assert (found.waiting_mean, found.waiting_share) == (1.2, 0.6)
    # only the first had a queue while as many ran as ever did; only at the last nothing waited and nothing ran
    assert (found.at_ceiling_share, found.idle_share) == (0.2, 0.2)
    assert (found.kv_cache_usage_max, found.kv_cache_usage_mean) == (0.7, pytest.approx(0.36))


def test_counters_are_told_as_they_moved_from_the_first_look_to_the_last() -> None:
    first = sample(
        0,
        requests_total=100,
        preemptions_total=10,
        generation_tokens_total=1000,
        cpu_s=5,
        prefix_queries_total=50,
        prefix_hits_total=0,
    )
    last = sample(
        10,
        requests_total=120,
        preemptions_total=15,
        generation_tokens_total=6000,
        cpu_s=14,
        prefix_queries_total=250,
        prefix_hits_total=50,
    )
    found = evidence_of_samples([first, sample(5), last])
    assert (found.interval_s, found.requests, found.requests_per_s) == (10, 20, 2)
    assert (found.output_tokens_per_s, found.preemptions_per_request) == (500, 0.25)
    assert (found.api_cpu_cores, found.prefix_hit_ratio) == (pytest.approx(0.9), 0.25)


def test_preemptions_count_though_no_request_ended() -> None:
    found = evidence_of_samples(
        [
            sample(0, requests_total=5, preemptions_total=0),
            sample(9, requests_total=5, preemptions_total=7),
        ]
    )
    assert found.preemptions_per_request == 7


def test_a_process_that_began_anew_is_judged_by_what_came_since() -> None:
    old = [sample(at, requests_total=500 + at, started_at=1000.0, running=99) for at in range(3)]
    new = [sample(at, requests_total=float(at), started_at=2000.0) for at in range(3, 6)]
    found = evidence_of_samples([*old, *new])
    assert (found.looks, found.running_max, found.interval_s, found.requests) == (3, 1, 2, 2)
    fell = [replace(each, numbers=replace(each.numbers, started_at=None)) for each in (*old, *new)]
    assert evidence_of_samples(fell) == replace(found, uptime_s=None)


def test_latencies_are_of_the_interval_and_not_since_the_start() -> None:
    before = histogram(0, 0, 50, 50, total=40.0)
    # between the looks: 10 under 10 ms, 10 from 10 to 100 ms, which took 0.6 s together
    after = histogram(10, 20, 70, 70, total=40.6)
    found = evidence_of_samples(
        [sample(0, histograms={"ttft": before}), sample(9, histograms={"ttft": after})]
    )
    assert found.ttft_mean_ms == pytest.approx(30.0)
    assert found.ttft_p50_ms == pytest.approx(10.0)  # in the first bucket: at most its edge
    # rank 19 of 20: 10 + 90 * 9 / 10
    assert found.ttft_p95_ms == pytest.approx(91.0)


def test_tokens_that_stand_still_stretch_the_mean_gap() -> None:
    # 99 gaps of 5 to 10 ms, one of a second: 1.99 s over 100
    gaps = histogram(99, 99, 100, 100, total=1.99)
    none = histogram(0, 0, 0, 0, total=0.0)
    found = evidence_of_samples(
        [sample(0, histograms={"gap": none}), sample(9, histograms={"gap": gaps})]
    )
    assert found.gap_stretch == pytest.approx(1.99)


def answered(at_s: float, *counts: float, total: float, under_way: float = 4.0) -> LoadSample:
    """So many answers in all that began within 0.01, 0.1 and 1 s, and later; their sum."""
    return sample(
        at_s, running=under_way, histograms={"ttft": histogram(*counts, counts[-1], total=total)}
    )


def histogram_of_none(at_s: float = 0) -> LoadSample:
    return answered(at_s, 0, 0, 0, total=0.0)


def test_the_first_answers_are_compared_with_later_ones_where_there_are_enough_of_both() -> None:
    # four answers of 0.8 s, each slower than 0.1, of four under way; then six of 0.01 to 0.1, whose median is 0.055
    seen = [
        histogram_of_none(),
        answered(5, 0, 0, 4, total=3.2),
        answered(9, 0, 6, 10, total=3.5),
    ]
    found = evidence_of_samples(seen)
    # the third of four took 1 s at most by its bucket; by the sum the four took 0.8 s each
    assert (found.first_over_later, found.first_excess_ms) == (
        pytest.approx(800 / 55),
        pytest.approx(745),
    )
    few = [*seen[:2], answered(9, 0, 2, 6, total=3.3)]
    assert evidence_of_samples(few).first_over_later is None


def test_a_crowd_that_comes_at_once_is_judged_by_who_came_first_in_the_row() -> None:
    # 64 at once: 8 began within 0.01 s, 24 within 0.1, all within 1 s: they waited for each other
    burst = [
        histogram_of_none(),
        answered(1, 8, 24, 64, total=20.0, under_way=64.0),
        answered(2, 68, 84, 124, total=20.6),
    ]
    # the third began within 0.01 s, as the later ones did
    assert evidence_of_samples(burst).first_over_later == pytest.approx(1.0)
    # all of the 64 waited for the compiler, for half a second on average
    cold = [
        histogram_of_none(),
        answered(1, 0, 0, 64, total=32.0, under_way=64.0),
        answered(2, 60, 60, 124, total=32.6),
    ]
    # 32 s / 64 = 0.5 s, of later ones half took less than 0.01; 64 of these would take 0.64 s
    assert evidence_of_samples(cold).first_over_later == pytest.approx(50)
    assert evidence_of_samples(cold).first_over_row == pytest.approx(0.5 / 0.64)


def test_quick_answers_that_follow_within_the_same_look_hide_nobody_who_waited() -> None:
    # eight waited for 0.9 s, and 24 that came after them for nothing: the third of the eight is the 27th of the 32
    cold = [
        histogram_of_none(),
        answered(1, 24, 24, 32, total=7.4, under_way=8.0),
        answered(2, 54, 54, 62, total=7.7),
    ]
    found = evidence_of_samples(cold)
    # 7.4 s over the eight slowest are 0.925 s each; the mean of all 32 would be 0.23
    assert found.first_over_later == pytest.approx(0.925 / 0.01)
    assert found.first_over_row == pytest.approx(0.925 / 0.08)


def test_looks_that_tell_sums_only_cannot_tell_a_crowd_from_a_compiler() -> None:
    def summed(at_s: float, count: float, total: float) -> LoadSample:
        told = Histogram(edges=(), counts=(), sum=total, count=count)
        return sample(at_s, histograms={"ttft": told})

    found = evidence_of_samples([summed(0, 0, 0.0), summed(1, 8, 80.0), summed(2, 16, 80.1)])
    assert found.ttft_mean_ms is not None
    assert found.first_over_later is None


def test_one_look_tells_gauges_and_settings_and_no_rates() -> None:
    found = evidence_of_samples(
        [sample(0, requests_total=5, prefix_caching=False, max_model_len=512)]
    )
    assert (found.prefix_caching, found.max_model_len, found.looks) == (False, 512, 1)
    assert (found.interval_s, found.requests_per_s, found.ttft_p50_ms) == (None, None, None)
    assert evidence_of_samples([]) == Evidence()


def test_a_recorded_page_is_read_whole() -> None:
    path = next(
        path
        for path in sorted(RECORDED.rglob("*"))
        if "metrics" in path.name and "load" in path.name
    )
    found = sample_of_page(read_page(path.read_text()), at_s=0.0, max_model_len=512)
    assert found is not None
    assert set(found.histograms) == {"ttft", "queue", "gap", "tpot", "prompt", "output"}
    assert (found.cpu_s is not None, found.numbers.prefix_caching) == (True, True)
    # by hand: the page's own line
    line = next(
        row for row in path.read_text().splitlines()
        if row.startswith("vllm:request_prompt_tokens_count{")
    )  # fmt: skip
    assert found.histograms["prompt"].count == float(line.split()[-1])


def test_a_page_of_no_engine_is_none() -> None:
    assert sample_of_page(read_page("go_goroutines 5\n"), at_s=0.0) is None


def test_the_cpu_of_a_server_that_computes_in_the_same_process_says_nothing_of_its_front() -> None:
    page = f"vllm:num_requests_swapped{LABELS} 0\nvllm:num_requests_running{LABELS} 1\nprocess_cpu_seconds_total 9\n"
    found = sample_of_page(read_page(page), at_s=0.0)
    assert found is not None
    assert found.cpu_s is None


def test_a_stored_look_tells_what_its_readings_hold() -> None:
    labels = (("engine", "0"),)
    sighting = Sighting(
        name="a",
        url="http://h:1",
        at=50.0,
        status="ok",
        engine="vllm",
        running=3.0,
        waiting=1.0,
        requests_total=7.0,
        prefix_caching=True,
        findings=(Finding(code="response_cache", text="..."),),
    )
    readings = [
        Reading(name="vllm:request_prompt_tokens_sum", labels=labels, value=300.0),
        Reading(name="vllm:request_prompt_tokens_count", labels=labels, value=3.0),
        Reading(name="vllm:prefix_cache_hits_total", labels=labels, value=5.0),
        Reading(name="vllm:prefix_cache_hits_total", labels=(("engine", "1"),), value=6.0),
    ]
    found = sample_of_sighting(sighting, readings)
    assert found is not None
    assert (found.numbers.running, found.numbers.waiting, found.numbers.requests_total) == (3, 1, 7)
    assert found.numbers.prefix_hits_total == 11
    assert found.histograms["prompt"].mean() == 100
    assert found.response_cache is True
    assert sample_of_sighting(replace(sighting, running=None), readings) is None


def test_how_full_the_cache_were_with_one_more_is_told_where_something_runs() -> None:
    looks = [sample(float(at), running=2.0, waiting=5.0, kv_cache_usage=0.78) for at in (0, 1)]
    assert evidence_of_samples(looks).kv_cache_with_one_more == pytest.approx(1.17)  # 0.78 x 3 / 2
    idle = [sample(0.0, running=0.0, waiting=0.0, kv_cache_usage=0.0)]
    assert evidence_of_samples(idle).kv_cache_with_one_more is None


def test_a_load_that_ends_or_begins_in_the_midst_is_judged_by_its_own_looks() -> None:
    def looks(*busy: bool) -> list[LoadSample]:
        """A second apart; while something runs, 40 tokens come until the next look."""
        return [
            sample(
                at,
                running=8.0 * now,
                waiting=3.0 * now,
                generation_tokens_total=40.0 * sum(busy[:at]),
            )
            for at, now in enumerate(busy)
        ]

    ends = looks(*[True] * 5, *[False] * 6)
    found = evidence_of_samples(ends)
    assert (found.looks, found.waiting_share, found.watched_s) == (5, 1.0, 10)
    assert (found.interval_s, found.output_tokens_per_s) == (5, 40)
    # as the load ends its last requests run on, and no other comes: of 11 at once 6 are more than half, 4 and 2 are not
    tail = [
        *ends[:5],
        *(
            sample(at, running=8.0 - 2 * (at - 4), generation_tokens_total=200.0)
            for at in range(5, 8)
        ),
        *ends[8:],
    ]
    assert evidence_of_samples(tail).looks == 6
    begins = evidence_of_samples(looks(*[False] * 6, *[True] * 5))
    assert (begins.looks, begins.waiting_share, begins.interval_s) == (5, 1.0, 5)
    # one idle look at an end may be chance, and two busy ones are too few
    assert evidence_of_samples(looks(False, *[True] * 5)).looks == 6
    assert evidence_of_samples(ends[:6]).watched_s is None
    short = evidence_of_samples(looks(*[False] * 4, True, True, *[False] * 5))
    assert (short.looks, short.short_load_s, short.watched_s) == (11, 3, None)
    idle = evidence_of_samples(looks(*[False] * 4))
    assert (idle.watched_s, idle.short_load_s, idle.idle_share) == (None, None, 1.0)


# --- as the client saw it


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
    found = evidence_of_seconds(cells)
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
    return evidence_of_seconds(cells_of_tallies(tallies, range(S, S + seconds)))


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
