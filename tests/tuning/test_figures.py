"""Figures of a blast: which seconds count, what answers that lie partly in them add, and what counters moved by."""

import pytest
from support.tallies import S, second, shot, sketch, tally

from toolkit.records import ErrorCount, Event, Reading
from toolkit.tuning.figures import (
    COUNTERS,
    counted_seconds,
    counters,
    counters_moved,
    meant,
    measured,
    metric,
)


def begun(at: float, kind: str = "start") -> Event:
    return Event(run="r", at=at, kind=kind)  # type: ignore[arg-type]


def test_seconds_in_which_users_come_and_those_after_the_load_do_not_count() -> None:
    loader = [second(S + place) for place in range(14)]
    found = counted_seconds(loader, [begun(S + 0.5)], settle_s=3, duration_s=10)
    # users come until S + 3.5, the load ends at S + 10.5: whole seconds from S + 4 up to S + 10
    assert found == {S + place for place in range(4, 10)}


def test_a_run_that_was_cut_off_and_resumed_has_two_stretches() -> None:
    # 5 s of load, a gap of 100 s, and the other 5 s of 10
    loader = [second(S + place) for place in range(5)]
    loader += [second(S + 100 + place) for place in range(8)]
    events = [begun(S), begun(S + 100, "resume")]
    found = counted_seconds(loader, events, settle_s=2, duration_s=10, drain_s=1)
    # of the first one the last second, in which users waited for their last answers, does not count either
    assert found == {S + 2, S + 3, S + 102, S + 103, S + 104}


def test_two_workers_tell_of_the_same_seconds() -> None:
    loader = [second(S + place, worker) for place in range(6) for worker in ("w1", "w2")]
    assert counted_seconds(loader, [begun(S)], settle_s=1, duration_s=5) == {
        S + place for place in range(1, 5)
    }


def test_nothing_was_told_and_nothing_counts() -> None:
    assert counted_seconds([], [begun(S)], settle_s=1, duration_s=5) == frozenset()
    assert measured([], frozenset())["output_tokens_per_s"] is None
    assert measured([], frozenset())["error_rate"] is None


def test_an_answer_is_counted_by_the_part_of_its_time_that_counts() -> None:
    # one answer of 4 s and 100 tokens ends in the middle of second S + 5: it lies in S + 1.5 .. S + 5.5
    tallies = [tally(S + 5, ok=1, output_tokens=100, e2e=sketch(4000))]
    # of these 4 s two are in S + 2, S + 3: 50 tokens in 2 s
    half = measured(tallies, frozenset({S + 2, S + 3}))
    assert half["output_tokens_per_s"] == pytest.approx(25, rel=0.02)
    assert half["rps"] == pytest.approx(0.25, rel=0.02)
    # it did not end in them, so they have no latency and no share of errors
    assert (half["e2e_p50_ms"], half["error_rate"]) == (None, None)
    # all of it lies in seven seconds around: 100 tokens in 7 s
    whole = measured(tallies, frozenset(range(S, S + 7)))
    assert whole["output_tokens_per_s"] == pytest.approx(100 / 7, rel=0.02)


def test_users_in_step_bring_the_same_rate_wherever_the_window_cuts() -> None:
    # 8 users, answers of 4 s that all end in the same second: 2 requests a second
    waves = [tally(S + 4 * place, ok=8, e2e=sketch(*[4000] * 8)) for place in range(1, 11)]
    for start in range(8, 14):
        window = frozenset(range(S + start, S + start + 6))
        ended = sum(each.ok for each in waves if each.at_s in window) / 6
        assert ended in (pytest.approx(8 / 6), pytest.approx(16 / 6))
        # a bucket of the sketch is known within 1 %
        assert measured(waves, window)["rps"] == pytest.approx(2, rel=0.02)


def test_ranked_requests_count_and_canaries_do_not() -> None:
    tallies = [
        tally(S, ok=3, errors=1, error_kinds=(ErrorCount(kind="timeout", count=1),)),
        tally(S, kind="canary", ok=9, errors=9),
    ]
    found = measured(tallies, frozenset({S}))
    assert (found["error_rate"], found["requests"]) == (0.25, 4.0)


def test_quantiles_are_of_answers_that_ended_in_the_seconds_that_count() -> None:
    tallies = [
        tally(S, ok=1, streamed=1, e2e=sketch(9000), ttft=sketch(9000)),
        tally(S + 1, ok=2, streamed=2, e2e=sketch(100, 200), ttft=sketch(10, 20)),
    ]
    found = measured(tallies, frozenset({S + 1}))
    assert found["e2e_p50_ms"] == pytest.approx(100, rel=0.01)
    assert found["ttft_p95_ms"] == pytest.approx(20, rel=0.01)


def test_canaries_are_told_by_the_first_word_of_their_prompts() -> None:
    shots = [
        shot(S + 1, slot=1, prompt="short-a", ok=True, ttft_ms=10.0, e2e_ms=50.0, tpot_ms=1.0),
        shot(S + 1, slot=2, prompt="short-b", ok=True, ttft_ms=30.0, e2e_ms=70.0, tpot_ms=3.0),
        shot(S + 1, slot=3, prompt="long-x", ok=True, ttft_ms=900.0, e2e_ms=950.0, tpot_ms=2.0),
        # a twin may come from a cache, a failure has no time, and another second does not count
        shot(S + 1, slot=4, prompt="short-a", kind="twin", ok=True, ttft_ms=1.0),
        shot(S + 1, slot=5, prompt="short-a", ok=False),
        shot(S + 9, slot=6, prompt="short-a", ok=True, ttft_ms=5000.0),
    ]
    found = measured([], frozenset({S + 1}), shots)
    assert found["ttft_p95_ms:short"] == 30.0
    assert found["ttft_p50_ms:short"] == 10.0
    assert found["e2e_p95_ms:long"] == 950.0
    assert found["tpot_p50_ms"] == 2.0


def reading(name: str, value: float, **labels: str) -> Reading:
    return Reading(name=name, labels=tuple(sorted(labels.items())), value=value)


def test_counters_of_all_engines_add_up_whatever_their_version_calls_them() -> None:
    found = counters(
        [
            reading("vllm:prefix_cache_hits_total", 10, engine="0"),
            reading("vllm:prefix_cache_hits_total", 5, engine="1"),
            reading("vllm:gpu_prefix_cache_queries_total", 40),
            reading("vllm:spec_decode_num_accepted_tokens_total", 3),
            reading("vllm:spec_decode_num_accepted_tokens_per_pos_total", 99),
            reading("vllm:num_requests_running", 7),
        ]
    )
    assert found == {"prefix_hits": 15, "prefix_queries": 40, "spec_accepted": 3}


def test_every_counter_is_found_under_the_name_that_vllm_writes() -> None:
    names = {
        "spec_drafts": "vllm:spec_decode_num_drafts_total",
        "spec_drafted": "vllm:spec_decode_num_draft_tokens_total",
        "spec_accepted": "vllm:spec_decode_num_accepted_tokens_total",
        "prefix_queries": "vllm:prefix_cache_queries_total",
        "prefix_hits": "vllm:prefix_cache_hits_total",
        "preemptions": "vllm:num_preemptions_total",
        "queue_s": "vllm:request_queue_time_seconds_sum",
        "queued": "vllm:request_queue_time_seconds_count",
    }
    assert names.keys() == COUNTERS.keys()
    found = counters([reading(name, 1.0) for name in names.values()])
    assert found == dict.fromkeys(names, 1.0)


def test_what_counters_moved_by_is_what_is_told() -> None:
    before = {"spec_drafts": 100, "spec_drafted": 300, "spec_accepted": 60, "prefix_hits": 0}
    before |= {"prefix_queries": 0, "queue_s": 1.0, "queued": 10, "preemptions": 4}
    after = {"spec_drafts": 200, "spec_drafted": 600, "spec_accepted": 210, "prefix_hits": 30}
    after |= {"prefix_queries": 120, "queue_s": 3.0, "queued": 50, "preemptions": 4}
    assert counters_moved(before, after) == {
        "prefix_hit_ratio": 0.25,  # 30 of 120
        "spec_acceptance_ratio": 0.5,  # 150 of 300
        "spec_mean_length": 2.5,  # 1 + 150 / 100
        "spec_drafts": 100,
        "preemptions": 0,
        "queue_mean_ms": 50.0,  # 2 s for 40 requests
    }


def test_a_server_that_tells_no_counters_has_no_figures_of_them() -> None:
    assert set(counters_moved({}, {}).values()) == {None}
    # it started anew meanwhile, and counted from 0
    assert counters_moved({"preemptions": 9}, {"preemptions": 1})["preemptions"] is None


# --- what a figure is called, and which way is better


@pytest.mark.parametrize("name", ["ttft_p95_ms:short", "rps", "invalid_json_ratio"])
def test_a_figure_has_a_definition(name: str) -> None:
    found = metric(name)
    assert found is not None
    assert found.definition


@pytest.mark.parametrize("name", ["nonsense", "rps:short", "ttft_p96_ms:short", ""])
def test_what_is_no_figure_has_none(name: str) -> None:
    assert metric(name) is None
    assert meant(name).title == name, "it is told all the same"


def test_a_figure_of_some_prompts_is_told_with_them() -> None:
    found = meant("ttft_p95_ms:short")
    assert found.title == "TTFT p95 of `short`"
    assert not found.more_is_better
