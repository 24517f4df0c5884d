"""Figures of a blast: which seconds count, what answers that lie partly in them add, and what counters moved by."""

import pytest
from support.tallies import S, second, shot, sketch, tally

from toolkit.metrics.parser import read_page
from toolkit.records import ErrorCount, Event
from toolkit.tuning.figures import (
    COUNTERS,
    counted_seconds,
    counters,
    counters_moved,
    figure,
    known_metric,
    measured,
    metric,
)


def begun(at: float, kind: str = "start") -> Event:
    return Event(run="r", at=at, kind=kind)  # type: ignore[arg-type]


def test_seconds_in_which_users_come_and_those_after_the_load_do_not_count() -> None:
    loader = [second(S + place, worker) for place in range(14) for worker in ("w1", "w2")]
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


def test_where_nothing_is_known_nothing_counts() -> None:
    assert counted_seconds([], [begun(S)], settle_s=1, duration_s=5) == frozenset()
    found = measured([], frozenset())
    assert (found["output_tokens_per_s"], found["error_rate"]) == (None, None)


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
        # a bucket of the sketch is known within 1 %
        assert measured(waves, window)["rps"] == pytest.approx(2, rel=0.02)


def test_latencies_and_errors_are_of_the_ranked_requests_that_ended() -> None:
    kinds = (ErrorCount(kind="timeout", count=1),)
    tallies = [
        tally(S, ok=3, errors=1, error_kinds=kinds, e2e=sketch(10, 20, 30), ttft=sketch(5, 5, 5)),
        tally(S, ok=9, kind="canary", e2e=sketch(*[9000] * 9)),
        tally(S + 1, ok=1, e2e=sketch(9000)),
    ]
    found = measured(tallies, frozenset({S}))
    assert (found["error_rate"], found["requests"], found["seconds"]) == (0.25, 4, 1)
    assert found["e2e_p50_ms"] == pytest.approx(20, rel=0.02)
    assert found["ttft_p95_ms"] == pytest.approx(5, rel=0.02)


def test_canaries_are_told_apart_by_the_first_word_of_their_prompts() -> None:
    def canary(prompt: str, tpot_ms: float, at: float = S, **more):
        told = {"ok": True, "kind": "unique", "ttft_ms": 10 * tpot_ms, "tpot_ms": tpot_ms}
        return shot(at, prompt=prompt, **(told | more))

    canaries = [canary("long-1", 30.0), canary("long 2", 30.0), canary("short", 10.0)]
    # sent outside the seconds, twins, and failures say nothing
    canaries += [canary("short", 99.0, S + 5), canary("short", 99.0, kind="twin")]
    canaries += [canary("short", 99.0, ok=False), canary("broken", 99.0, ok=False)]
    found = measured([], frozenset({S}), canaries)
    # exact: two that differ by less than a sketch's bucket are no equals, and no bucket apart
    assert found["tpot_p50_ms"] == 30.0
    assert found["ttft_p95_ms:long"] == 300.0
    assert found["ttft_p95_ms:short"] == 100.0
    assert "ttft_p95_ms:broken" not in found


def test_every_counter_is_found_under_the_name_that_vllm_writes_and_series_add_up() -> None:
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
    lines = [f'{name}{{engine="{engine}"}} 2' for name in names.values() for engine in "01"]
    lines.append("vllm:spec_decode_num_accepted_tokens_per_pos_total 99")
    assert counters(read_page("\n".join(lines) + "\n")) == dict.fromkeys(names, 4.0)
    old = counters(
        read_page("vllm:gpu_prefix_cache_queries_total 40\nvllm:num_requests_running 7\n")
    )
    assert old == {"prefix_queries": 40}


def test_what_counters_moved_by_becomes_figures() -> None:
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
    assert set(counters_moved({}, {}).values()) == {None}
    # it started anew meanwhile, and counted from 0
    assert counters_moved({"preemptions": 9}, {"preemptions": 1})["preemptions"] is None


def test_a_figure_has_a_definition_and_what_is_none_goes_by_its_name() -> None:
    for name in ("ttft_p95_ms:short", "rps", "invalid_json_ratio"):
        assert metric(name).definition
    for name in ("nonsense", "rps:short", "ttft_p96_ms:short", ""):
        assert known_metric(name) is None
        assert metric(name).title == name
    found = metric("ttft_p95_ms:short")
    assert (found.title, found.more_is_better) == ("TTFT p95 of `short`", False)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("output_tokens_per_s", 3114.4, "3,114"),
        ("rps", 4.25, "4.25"),
        ("ttft_p95_ms", 219.0, "219 ms"),
        ("ttft_p95_ms:short", 89_000.0, "89.0 s"),
        ("error_rate", 0.045, "4.5 %"),
        ("rps", None, "\N{EN DASH}"),
    ],
)
def test_a_figure_has_its_unit(name: str, value: float | None, words: str) -> None:
    assert figure(name, value) == words
