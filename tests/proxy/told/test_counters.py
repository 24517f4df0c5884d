"""What is counted, under which labels, and that workers' counts add up."""

import json

import pytest

from toolkit.proxy.exchange import Served
from toolkit.proxy.told.counters import (
    EDGES_S,
    MOST_CHARACTERS,
    MOST_MODELS,
    Counters,
    Times,
    error_kind,
)


def served(**told: object) -> Served:
    usual: dict[str, object] = {
        "ts": 1_700_000_000.0,
        "team": "red",
        "endpoint": "chat/completions",
        "model": "qwen",
        "status": 200,
        "cache": "miss",
    }
    return Served(**{**usual, **told})  # type: ignore[arg-type]


def test_a_request_counts_once_under_its_team_model_endpoint_cache_and_status_class() -> None:
    counters = Counters()
    counters.take(served())
    counters.take(served(cache="coalesced"))
    counters.take(served(cache=None, bypass="no-store", status=404))
    assert counters.counts["requests"] == {
        ("red", "qwen", "chat/completions", "miss", "2xx"): 1,
        ("red", "qwen", "chat/completions", "coalesced", "2xx"): 1,
        ("red", "qwen", "chat/completions", "bypass", "4xx"): 1,
    }
    assert counters.counts["bypasses"] == {("no-store",): 1}


def test_a_request_of_no_status_and_no_model_is_counted_as_none() -> None:
    counters = Counters()
    counters.take(served(status=None, model=None, left=True))
    assert counters.counts["requests"] == {("red", "none", "chat/completions", "miss", "none"): 1}


def test_a_rejection_is_no_error_and_neither_is_a_client_that_left() -> None:
    counters = Counters()
    counters.take(served(status=429, rejected="team_queue_full", error_kind="http_429"))
    counters.take(served(status=200, left=True, error_kind="cut"))
    counters.take(served(status=502, error_kind="connect"))
    counters.take(served(status=400))
    assert counters.counts["rejections"] == {("red", "team_queue_full"): 1}
    assert counters.counts["left"] == {("red", "qwen"): 1}
    assert counters.counts["errors"] == {
        # the 400 is the client's own slip
        ("red", "qwen", "connect"): 1,
    }
    assert counters.total("requests") == 4


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({}, None),
        ({"status": 503}, "http_503"),
        ({"status": 404}, None),
        ({"status": 200, "error_kind": "stream_error"}, "stream_error"),
        ({"status": 503, "rejected": "queue_full"}, None),
        ({"status": None, "left": True}, None),
    ],
)
def test_what_failed_has_a_kind(told: dict[str, object], kind: str | None) -> None:
    assert error_kind(served(**told)) == kind


def test_tokens_are_summed_by_how_they_were_served() -> None:
    counters = Counters()
    counters.take(served(prompt_tokens=10, output_tokens=5, cached_tokens=8))
    counters.take(served(prompt_tokens=20, output_tokens=7))
    counters.take(served(cache="hit", prompt_tokens=10, output_tokens=5, cached_tokens=8))
    assert counters.total("prompt_tokens", cache="miss") == 30
    assert counters.total("output_tokens", cache="miss") == 12
    assert counters.total("output_tokens", cache="hit") == 5
    # a hit repeats what the stored answer says: the prefix cache was asked once
    assert counters.counts["prefix_tokens"] == {("qwen",): 8}


def test_times_are_split_by_model_and_cache_and_leave_failures_out() -> None:
    counters = Counters()
    counters.take(served(ttft_ms=100, tpot_ms=10, latency_ms=1500, queue_ms=3))
    counters.take(served(cache="coalesced", ttft_ms=400, latency_ms=1400))
    counters.take(served(status=500, ttft_ms=1, latency_ms=2, queue_ms=3))
    counters.take(served(left=True, latency_ms=2))
    assert {key: times.count for key, times in counters.times["ttft"].items()} == {
        ("qwen", "miss"): 1,
        ("qwen", "coalesced"): 1,
    }
    assert counters.timed("latency").count == 2
    assert counters.timed("latency", cache="miss").sum_s == 1.5
    # the failed one waited for its slot like any other
    assert counters.timed("queue").count == 2


def test_the_buckets_tell_a_hit_of_a_tenth_of_a_millisecond_from_one_of_a_millisecond() -> None:
    times = Times()
    for took_s in (0.0001, 0.001, 99.0, 1000.0):
        times.observe(took_s)
    places = [place for place, count in enumerate(times.counts) if count]
    # an edge belongs to the bucket below it; beyond the last edge there is one more
    assert [EDGES_S[place] for place in places[:3]] == [0.0001, 0.001, 100.0]
    assert places[3] == len(EDGES_S)
    assert list(EDGES_S) == sorted(set(EDGES_S))


def test_hits_of_a_tally_are_requests_hits_tokens_and_times_after_settling() -> None:
    counters = Counters()
    tally = counters.tally("red", "qwen", "chat/completions", stream=False)
    tally.hit(0.00003, 1200, prompt_tokens=20, output_tokens=5)
    tally.hit(0.0003, 1200, prompt_tokens=20, output_tokens=5)
    counters.settle()
    counters.settle()
    assert counters.counts["requests"] == {("red", "qwen", "chat/completions", "hit", "2xx"): 2}
    assert counters.counts["hits"] == {("memory",): 2}
    assert counters.counts["hit_bytes"] == {("qwen",): 2400}
    assert counters.counts["prompt_tokens"] == {("red", "qwen", "hit"): 40}
    assert counters.counts["output_tokens"] == {("red", "qwen", "hit"): 10}
    latency = counters.timed("latency", cache="hit")
    # 30 us lie below the first edge, 50 us; 300 us below the fourth, 500 us
    assert (latency.counts[0], latency.counts[3], latency.count) == (1, 1, 2)
    assert latency.sum_s == pytest.approx(0.00033)
    assert counters.timed("ttft").count == 0


def test_only_a_streamed_hit_has_a_time_to_the_first_token() -> None:
    counters = Counters()
    counters.tally("", "qwen", "chat/completions", stream=True).hit(0.001, 10)
    counters.settle()
    assert counters.timed("ttft", cache="hit").count == 1


def test_a_tally_is_one_for_all_answers_of_its_kind_and_goes_on_after_settling() -> None:
    counters = Counters()
    tally = counters.tally("red", "qwen", "chat/completions", stream=False)
    assert counters.tally("red", "qwen", "chat/completions", stream=False) is tally
    assert counters.tally("blue", "qwen", "chat/completions", stream=False) is not tally
    tally.hits += 1
    counters.settle()
    tally.hits += 1
    assert counters.settle().total("requests", cache="hit") == 2


def test_models_that_nobody_serves_take_no_place() -> None:
    counters = Counters()
    for number in range(MOST_MODELS + 1):
        counters.take(served(model=f"made up {number}", status=404))
    counters.take(served(model="qwen"))
    models = {key[1] for key in counters.counts["requests"]}
    assert models == {"other", "qwen"}


def test_the_sixty_fifth_model_that_answered_is_other() -> None:
    counters = Counters()
    counters.take(served(model="qwen"))
    for number in range(MOST_MODELS):
        counters.take(served(model=f"m{number}"))
    models = {key[1] for key in counters.counts["requests"]}
    # 64 places: qwen, m0 to m62, and what came then
    assert len(models) == MOST_MODELS + 1
    assert {"qwen", "m62", "other"} <= models
    assert "m63" not in models


def test_a_hostile_model_name_is_short_and_printable() -> None:
    counters = Counters()
    counters.take(served(model='a"\n\x1b[2J\ud800' + "b" * 1_000_000))
    (key,) = counters.counts["requests"]
    assert key[1].startswith('a"??[2J?bb')
    assert len(key[1]) == MOST_CHARACTERS


def test_more_kinds_of_errors_than_there_can_be_are_other() -> None:
    counters = Counters()
    for number in range(2000):
        counters.take(served(status=None, error_kind=f"kind {number}"))
    assert len(counters.counts["errors"]) == 257
    assert counters.total("errors") == 2000


def test_workers_counts_add_up_over_json() -> None:
    one, two = Counters(), Counters()
    one.take(served(ttft_ms=100, latency_ms=200))
    one.tally("red", "qwen", "chat/completions", stream=False).hit(0.00001, 7)
    two.take(served(ttft_ms=300, latency_ms=400))
    two.take(served(model="llama", status=500))
    two.refuse("no host")
    whole = Counters()
    for worker in (one, two):
        whole.merge(json.loads(json.dumps(worker.as_dict())))
    assert whole.total("requests") == 4
    assert whole.total("requests", model="qwen", cache="miss") == 2
    assert whole.total("errors", kind="http_500") == 1
    assert whole.total("refusals") == 1
    assert whole.timed("ttft").sum_s == pytest.approx(0.4)
    assert whole.timed("latency").count == 3


def test_a_merge_holds_the_bound_of_models() -> None:
    whole = Counters()
    for worker in range(2):
        counters = Counters()
        for number in range(MOST_MODELS):
            counters.take(served(model=f"{worker} {number}"))
        whole.merge(counters.as_dict())
    assert len({key[1] for key in whole.counts["requests"]}) == MOST_MODELS + 1
    assert whole.total("requests", model="other") == MOST_MODELS


def test_calls_upstream_count_once_however_many_they_answer() -> None:
    counters = Counters()
    counters.ask_upstream("a")
    counters.fail_upstream("a", "connect")
    counters.ask_upstream("b", 1)
    counters.take(served(upstream="b"))
    counters.take(served(upstream="b", cache="coalesced"))
    assert counters.counts["upstream_requests"] == {("a",): 1, ("b",): 1}
    assert counters.counts["upstream_retries"] == {("b",): 1}
    assert counters.counts["upstream_errors"] == {("a", "connect"): 1}


def test_a_verified_hit_is_the_same_or_different() -> None:
    counters = Counters()
    counters.verify("qwen", is_same=True)
    counters.verify("qwen", is_same=False)
    counters.verify("qwen", is_same=True)
    assert counters.counts["verified"] == {("qwen", "same"): 2, ("qwen", "different"): 1}
