"""What is counted, under which labels, and that workers' counts add up."""

from toolkit.proxy.telemetry.metrics import (
    MAX_LABEL_CHARS,
    MAX_MODELS,
    Counters,
    Served,
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
