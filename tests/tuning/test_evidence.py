"""What each source says of a host, worked out by hand: pages some seconds apart, requests, seconds, profiles."""

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
    evidence_of_requests,
    evidence_of_samples,
    evidence_of_seconds,
    evidence_of_verdicts,
    sample_of_page,
    sample_of_sighting,
)

RECORDED = Path(__file__).parents[1] / "data" / "vllm-0.32.0-cpu"


def has(found: Evidence, **facts: object) -> None:
    """These facts, to a part in a million; a latency that comes of a histogram within its 1 %."""
    for name, value in facts.items():
        close = (
            value if value is None or isinstance(value, bool) else pytest.approx(value, rel=1e-6)
        )
        assert getattr(found, name) == close, name


def histogram(*counts: float, total: float) -> Histogram:
    """Buckets that end at 0.01, 0.1 and 1 second, and the one beyond."""
    edges = (0.01, 0.1, 1.0, float("inf"))
    return Histogram(edges=edges, counts=counts, sum=total, count=counts[-1])


def sample(at_s: float, *, cpu_s: float | None = None, histograms=None, **numbers) -> LoadSample:
    plain = {"engine": "vllm", "dialect": "v1", "running": 1.0, "waiting": 0.0, **numbers}
    return LoadSample(
        at_s=at_s, cpu_s=cpu_s, histograms=histograms or {}, numbers=EngineNumbers(**plain)
    )


def test_gauges_are_counted_over_all_looks() -> None:
    gauges = [(8, 2, 0.5), (8, 0, 0.78), (6, 1, 0.6), (0, 3, 0.0), (0, 0, 0.0)]
    seen = [
        sample(at, running=running, waiting=waiting, kv_cache_usage=usage)
        for at, (running, waiting, usage) in enumerate(gauges)
    ]
    has(
        evidence_of_samples(seen),
        running_mean=4.4,
        running_max=8,
        running_min=0,
        waiting_mean=1.2,
        waiting_share=0.6,
        at_ceiling_share=0.2,  # only the first had a queue while as many ran as ever did
        idle_share=0.2,  # only at the last nothing waited and nothing ran
        kv_cache_usage_max=0.78,
        kv_cache_with_one_more=0.78 * 9 / 8,
    )
    has(evidence_of_samples(seen[4:]), kv_cache_usage_max=0, kv_cache_with_one_more=None)


def test_counters_are_taken_from_the_first_look_to_the_last() -> None:
    before = {"requests": 100, "preemptions": 10, "generation_tokens": 1000, "prefix_queries": 50}
    after = {"requests": 120, "preemptions": 15, "generation_tokens": 6000, "prefix_queries": 250}
    first = sample(0, cpu_s=5, prefix_hits_total=0, **{f"{k}_total": v for k, v in before.items()})
    last = sample(10, cpu_s=14, prefix_hits_total=50, **{f"{k}_total": v for k, v in after.items()})
    has(
        evidence_of_samples([first, sample(5), last]),
        interval_s=10,
        requests=20,
        output_tokens_per_s=500,
        preemptions_per_request=0.25,
        api_cpu_cores=0.9,
        prefix_hit_ratio=0.25,
    )
    # though no request ended, preemptions count; and of a counter that fell nothing is known
    none_ended = [sample(at, requests_total=5, preemptions_total=at) for at in (0, 7)]
    has(evidence_of_samples(none_ended), preemptions_per_request=7)
    fell = [sample(at, prefix_hits_total=9.0 - at, prefix_queries_total=at) for at in (0, 7)]
    has(evidence_of_samples(fell), prefix_hit_ratio=None)


@pytest.mark.parametrize("started", [(1000.0, 2000.0), (None, None)])
def test_a_process_that_began_anew_is_judged_by_what_came_since(started) -> None:
    """By the moment that it says, or by counters that fell."""
    old = [
        sample(at, requests_total=500 + at, started_at=started[0], running=99) for at in range(3)
    ]
    new = [sample(at, requests_total=float(at), started_at=started[1]) for at in range(3, 6)]
    has(evidence_of_samples([*old, *new]), running_max=1, interval_s=2, requests=2)


def test_latencies_are_of_the_interval_and_not_since_the_start() -> None:
    before = histogram(0, 0, 50, 50, total=40.0)
    # between the looks: 10 under 10 ms, 10 from 10 to 100 ms, which took 0.6 s together
    after = histogram(10, 20, 70, 70, total=40.6)
    gaps = histogram(99, 99, 100, 100, total=1.99)
    none = histogram(0, 0, 0, 0, total=0.0)
    first = sample(0, histograms={"ttft": before, "gap": none, "queue": none})
    last = sample(9, histograms={"ttft": after, "gap": gaps, "queue": after})
    has(
        evidence_of_samples([first, last]),
        ttft_mean_ms=30.0,
        ttft_p50_ms=10.0,  # in the first bucket: at most its edge
        ttft_p95_ms=91.0,  # rank 19 of 20: 10 + 90 * 9 / 10
        ttft_p95_over_p50=9.1,
        queue_mean_ms=580.0,  # 40.6 s over 70
        queue_share=580 / 30,
        # 99 gaps of 5 to 10 ms, one of a second: 1.99 s over 100 against a median of 10 ms
        gap_stretch=1.99,
    )


def answered(at_s: float, *counts: float, total: float, in_flight: float = 4.0) -> LoadSample:
    """So many answers in all that began within 0.01, 0.1 and 1 s, and later; their sum."""
    ttft = histogram(*counts, counts[-1], total=total)
    return sample(at_s, running=in_flight, histograms={"ttft": ttft})


NONE_YET = answered(0, 0, 0, 0, total=0.0)


@pytest.mark.parametrize(
    ("looks", "over_later", "over_row"),
    [
        # four answers of 0.8 s, each slower than 0.1, of four at once; then six of 0.01 to 0.1, whose median is 0.055
        ([(0, 0, 4, 3.2), (0, 6, 10, 3.5)], 800 / 55, 800 / 55 / 4),
        ([(0, 0, 4, 3.2), (0, 2, 6, 3.3)], None, None),  # two later ones are too few
        # 64 at once: 8 began within 0.01 s, 24 within 0.1, all within 1 s: they waited for each other; the third of them did not
        ([(8, 24, 64, 20.0), (68, 84, 124, 20.6)], 1.0, 1 / 64),
        # all of the 64 waited for the compiler, for half a second on average; 64 of the later ones would take 0.64 s
        ([(0, 0, 64, 32.0), (60, 60, 124, 32.6)], 50.0, 0.5 / 0.64),
    ],
)  # fmt: skip
def test_the_third_of_the_first_answers_is_compared_with_later_ones(
    looks, over_later: float | None, over_row: float | None
) -> None:
    in_flight = looks[0][2]
    seen = [NONE_YET, *(
        answered(at, *counts, total=total, in_flight=float(in_flight))
        for at, (*counts, total) in enumerate(looks, start=1)
    )]  # fmt: skip
    has(evidence_of_samples(seen), first_over_later=over_later, first_over_row=over_row)


def test_quick_answers_that_follow_within_the_same_look_hide_nobody_who_waited() -> None:
    # eight waited for 0.9 s, and 24 that came after them for nothing: the third of the eight is the 27th of the 32
    cold = [
        NONE_YET,
        answered(1, 24, 24, 32, total=7.4, in_flight=8.0),
        answered(2, 54, 54, 62, total=7.7),
    ]
    # 7.4 s over the eight slowest are 0.925 s each; the mean of all 32 would be 0.23
    has(evidence_of_samples(cold), first_over_later=92.5, first_excess_ms=915)


def test_looks_with_sums_only_cannot_tell_a_crowd_from_a_compiler() -> None:
    counts = [(0, 0.0), (8, 80.0), (16, 80.1)]
    looks = [
        sample(at, histograms={"ttft": Histogram(edges=(), counts=(), sum=total, count=count)})
        for at, (count, total) in enumerate(counts)
    ]
    has(evidence_of_samples(looks), ttft_mean_ms=80_100 / 16, first_over_later=None)


def test_one_look_knows_gauges_and_settings_and_no_rates() -> None:
    look = sample(0, requests_total=5, prefix_caching=False, max_model_len=512)
    has(
        evidence_of_samples([look]),
        prefix_caching=False,
        max_model_len=512,
        running_mean=1,
        interval_s=None,
        requests=None,
        ttft_p50_ms=None,
    )
    assert evidence_of_samples([]) == Evidence()


def test_a_recorded_page_is_read_whole() -> None:
    found = (each for each in sorted(RECORDED.rglob("*")) if "metrics" in each.name)
    text = next(each for each in found if "load" in each.name).read_text()
    look = sample_of_page(read_page(text), at_s=0.0, max_model_len=512)
    assert look is not None
    assert set(look.histograms) == {"ttft", "queue", "gap", "tpot", "prompt", "output"}
    assert (look.cpu_s is not None, look.numbers.prefix_caching) == (True, True)
    # by hand: the page's own line
    mark = "vllm:request_prompt_tokens_count{"
    line = next(row for row in text.splitlines() if row.startswith(mark))
    assert look.histograms["prompt"].count == float(line.split()[-1])


def test_a_page_of_no_engine_is_none_and_of_the_first_generation_the_cpu_says_nothing() -> None:
    assert sample_of_page(read_page("go_goroutines 5\n"), at_s=0.0) is None
    page = "vllm:num_requests_swapped 0\nvllm:num_requests_running 1\nprocess_cpu_seconds_total 9\n"
    old = sample_of_page(read_page(page), at_s=0.0)
    assert old is not None
    assert old.cpu_s is None


def test_a_stored_look_knows_what_its_readings_hold() -> None:
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
    values = [("request_prompt_tokens_sum", 300.0), ("request_prompt_tokens_count", 3.0)]
    values += [("prefix_cache_hits_total", 5.0), ("prefix_cache_hits_total", 6.0)]
    readings = [
        Reading(name=f"vllm:{name}", labels=(("engine", str(place)),), value=value)
        for place, (name, value) in enumerate(values)
    ]
    found = sample_of_sighting(sighting, readings)
    assert found is not None
    numbers = found.numbers
    assert (numbers.running, numbers.waiting, numbers.requests_total) == (3, 1, 7)
    assert numbers.prefix_hits_total == 11
    assert (found.histograms["prompt"].mean(), found.response_cache) == (100, True)
    assert sample_of_sighting(replace(sighting, running=None), readings) is None


def looks(busy: str) -> list[LoadSample]:
    """A second apart, `X` under load: 8 run and 3 wait then, and 40 tokens come until the next look."""
    return [
        sample(
            at,
            running=8.0 * (now == "X"),
            waiting=3.0 * (now == "X"),
            generation_tokens_total=40.0 * busy[:at].count("X"),
        )
        for at, now in enumerate(busy)
    ]


@pytest.mark.parametrize(
    ("busy", "facts"),
    [
        ("XXXXX......", {"waiting_share": 1, "watched_s": 10, "interval_s": 5, "output_tokens_per_s": 40}),
        ("......XXXXX", {"waiting_share": 1, "watched_s": 10, "interval_s": 5}),
        # one idle look at an end may be chance, and two busy ones are too few
        (".XXXXX", {"waiting_share": 5 / 6, "watched_s": None}),
        ("XXXXX.", {"waiting_share": 5 / 6, "watched_s": None}),
        ("....XX.....", {"waiting_share": 2 / 11, "short_load_s": 3, "watched_s": None}),
        ("....", {"idle_share": 1, "short_load_s": None, "watched_s": None}),
    ],
)  # fmt: skip
def test_a_load_that_ends_or_begins_in_the_midst_is_judged_by_its_own_looks(busy, facts) -> None:
    has(evidence_of_samples(looks(busy)), **facts)


def test_as_a_load_ends_its_last_requests_are_no_load_once_fewer_than_half_are_left() -> None:
    seen = looks("XXXXX......")
    for at in (5, 6, 7):  # of 11 at once 6 are more than half, 4 and 2 are not
        seen[at] = sample(at, running=8.0 - 2 * (at - 4), generation_tokens_total=200.0)
    has(evidence_of_samples(seen), waiting_share=5 / 6)


# --- as the client saw it


def test_a_benchs_requests_say_what_the_client_saw() -> None:
    found = evidence_of_requests(
        [
            *shots.uniques(14),
            shots.failed(14, "connect", status_code=None),
            shots.failed(15, "http_500"),
            shots.shot(99, kind="warmup", first_ms=9e4),
        ]
    )
    # 30 tokens of prompt and 256 that were asked for
    has(found, requests=16, error_share=2 / 16, refused_share=1 / 16, longest_request_tokens=286)
    has(found, prompt_tokens_mean=30, first_over_later=1)
    assert found.client_ttft_p50_ms == pytest.approx(100, rel=0.01)
    assert found.tpot_p50_ms == pytest.approx(20, rel=0.01)


def test_a_first_wave_that_waited_is_told_from_one_whose_requests_waited_for_each_other() -> None:
    cold = [shots.shot(slot, first_ms=5000.0) for slot in range(8)]
    found = evidence_of_requests([*cold, *shots.uniques(16, 8)])
    has(found, first_over_later=50, first_excess_ms=4900, first_over_row=50 / 8)
    has(evidence_of_requests(cold), first_over_later=None)
    # eight at once, the prompts of which are read one after the other, a second each; later ones wait for themselves alone
    row = [shots.shot(slot, first_ms=1000.0 * (slot + 1)) for slot in range(8)]
    found = evidence_of_requests([*row, *shots.uniques(16, 8, first_ms=1000.0)])
    # the third waited for three; their median, 4.5 s, would be 4.5 times as long, and all eight read alone are 8 s
    has(found, first_over_later=3, first_over_row=3 / 8)


def seconds(*ttft_ms: float, ok: int = 8, **more) -> Evidence:
    """A blast of 40 s, eight answers of 1 s in each; the first seconds' TTFTs in turn, all later ones 100 ms."""
    tallies = [
        tally(
            S + at,
            ok=ok,
            e2e=sketch(*[1000.0] * ok),
            ttft=sketch(*(ttft_ms[at * ok : at * ok + ok] or [100.0] * ok)),
            **more,
        )
        for at in range(40)
    ]
    return evidence_of_seconds(cells_of_tallies(tallies, range(S, S + 40)))


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


def test_no_requests_are_no_evidence_and_a_blasts_seconds_say_how_many_and_how_long() -> None:
    assert evidence_of_requests([]) == evidence_of_seconds([]) == Evidence()
    kinds = (ErrorCount(kind="connect", count=1), ErrorCount(kind="http_500", count=1))
    found = seconds(ok=8, errors=2, output_tokens=800, error_kinds=kinds)
    has(found, interval_s=40, requests=400, error_share=0.2, refused_share=0.1)
    has(found, output_tokens_per_s=800)


def test_a_ledger_says_what_the_counters_moved_by() -> None:
    counts = {"requests": 20, "preemptions": 5, "prefix_queries": 100, "prefix_hits": 25}
    found = evidence_of_ledger(Ledger(run="r", name="a", url="u", queue_mean_ms=7.0, **counts))
    has(found, preemptions_per_request=0.25, prefix_hit_ratio=0.25, queue_mean_ms=7)
    assert evidence_of_ledger(Ledger(run="r", name="a", url="u")) == Evidence()


@pytest.mark.parametrize(
    ("codes", "client_ok", "facts"),
    [
        (["truncated_output", "not_judged"], False, (True, False, True)),
        (["clean"], True, (False, False, False)),
        (["response_cache"], True, (False, True, False)),
        (["not_judged"], None, (None, None, None)),
    ],
)
def test_verdicts_accuse_acquit_or_say_nothing(codes, client_ok, facts) -> None:
    found = evidence_of_verdicts(codes, client_ok=client_ok)
    assert (found.truncated, found.response_cache, found.client_limited) == facts


def prompt(name: str, text: str, **more) -> Prompt:
    return Prompt(name=name, messages=({"role": "user", "content": text},), **more)


def test_a_profile_says_what_repeats_and_what_is_shared_in_whole_blocks() -> None:
    contest = Profile(name="c", prompts=(prompt("a", "x" * 60), prompt("b", "y" * 40)))
    # 2 of 200 are new; a block stands for 64 characters
    found = evidence_of_profile(contest, 200)
    has(found, repeat_share=0.99, shared_prefix_share=0, chained=False)
    # 200 characters in common are three blocks of 64; each prompt has 300
    prompts = tuple(prompt(name, "p" * 200 + name * 100) for name in "abcd")
    found = evidence_of_profile(Profile(name="s", prompts=prompts, unique_share=1.0), 100)
    # of 1,200 characters three prompts' 192 were read before
    has(found, repeat_share=0, shared_prefix_share=3 * 192 / 1200)
    chain = Profile(name="c", prompts=(prompt("a", "x", then=("{answer}",)),))
    has(evidence_of_profile(chain, 10), chained=True)
    assert evidence_of_profile(chain, 0) == Evidence()
