"""What is counted, under which labels, and that workers' counts add up."""

import pytest

from toolkit.proxy.telemetry.metrics import (
    EDGES_S,
    MAX_LABEL_CHARS,
    MAX_MODELS,
    Counters,
    Served,
    no_times,
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


def timed(counters: Counters, name: str, cache: str | None = None) -> list[float]:
    """All rows of one histogram added up, or those of one way to be served."""
    rows = [row for (_, how), row in counters.times[name].items() if cache in (None, how)]
    return [sum(column) for column in zip(no_times(), *rows, strict=True)]


def test_tokens_are_summed_by_how_they_were_served() -> None:
    counters = Counters()
    counters.take(served(prompt_tokens=10, output_tokens=5, cached_tokens=8))
    counters.take(served(prompt_tokens=20, output_tokens=7))
    counters.take(served(cache="hit", prompt_tokens=10, output_tokens=5, cached_tokens=8))
    assert counters.total("prompt_tokens", cache="miss") == 30
    assert counters.total("output_tokens", cache="miss") == 12
    assert counters.total("output_tokens", cache="hit") == 5
    # a hit repeats what the stored answer says: the prefix cache was asked once
    assert counters.counts["prefix_cached_tokens"] == {("qwen",): 8}


def test_the_buckets_tell_a_hit_of_a_tenth_of_a_millisecond_from_one_of_a_millisecond() -> None:
    counters = Counters()
    for took_s in (0.0001, 0.001, 99.0, 1000.0):
        counters.take(served(latency_ms=took_s * 1000))
    *counts, sum_s = timed(counters, "latency")
    assert sum_s == pytest.approx(1099.0011)
    places = [place for place, count in enumerate(counts) if count]
    # an edge belongs to the bucket below it; beyond the last edge there is one more
    assert [EDGES_S[place] for place in places[:3]] == [0.0001, 0.001, 100.0]
    assert places[3] == len(EDGES_S)
    assert list(EDGES_S) == sorted(set(EDGES_S))


def test_a_tally_is_one_for_all_answers_of_its_kind_and_goes_on_after_settling() -> None:
    counters = Counters()
    tally = counters.tally("red", "qwen", "chat/completions", stream=False)
    assert counters.tally("red", "qwen", "chat/completions", stream=False) is tally
    assert counters.tally("blue", "qwen", "chat/completions", stream=False) is not tally
    tally.hits += 1
    counters.settle()
    tally.hits += 1
    assert counters.settle().total("requests", cache="hit") == 2


def test_the_sixty_fifth_model_that_answered_is_other() -> None:
    counters = Counters()
    counters.take(served(model="qwen"))
    for number in range(MAX_MODELS):
        counters.take(served(model=f"m{number}"))
    models = {key[1] for key in counters.counts["requests"]}
    # 64 places: qwen, m0 to m62, and what came then
    assert len(models) == MAX_MODELS + 1
    assert {"qwen", "m62", "other"} <= models
    assert "m63" not in models


def test_a_hostile_model_name_is_short_and_printable() -> None:
    counters = Counters()
    counters.take(served(model='a"\n\x1b[2J\ud800' + "b" * 1_000_000))
    (key,) = counters.counts["requests"]
    assert key[1].startswith('a"??[2J?bb')
    assert len(key[1]) == MAX_LABEL_CHARS


def test_more_kinds_of_errors_than_there_can_be_are_other() -> None:
    counters = Counters()
    for number in range(2000):
        counters.take(served(status=None, error_kind=f"kind {number}"))
    assert len(counters.counts["errors"]) == 257
    assert counters.total("errors") == 2000


def test_a_merge_holds_the_bound_of_models() -> None:
    whole = Counters()
    for worker in range(2):
        counters = Counters()
        for number in range(MAX_MODELS):
            counters.take(served(model=f"{worker} {number}"))
        whole.merge(counters.as_dict())
    assert len({key[1] for key in whole.counts["requests"]}) == MAX_MODELS + 1
    assert whole.total("requests", model="other") == MAX_MODELS
