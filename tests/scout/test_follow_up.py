"""What is asked next, by what was answered first."""

from dataclasses import replace

import pytest

from toolkit.scout import answers as pages
from toolkit.scout.answers import PageAnswer, follow_ups

HEALTHY = {
    pages.HEALTH: PageAnswer(status=200),
    pages.VERSION: PageAnswer(status=200, body=b'{"version":"0.32.0"}'),
    pages.MODELS: PageAnswer(status=200, body=b'{"data":[]}'),
    pages.METRICS: PageAnswer(status=200, body=b"vllm:num_requests_running 1\n"),
}
MISSING = PageAnswer(status=404)


def asked(*, has_key: bool = False, **changed: PageAnswer) -> list[tuple[str, str]]:
    answers = HEALTHY | {getattr(pages, name): answer for name, answer in changed.items()}
    return [(request.method, request.path) for request in follow_ups(answers, has_key=has_key)]


def test_an_open_vllm_needs_no_second_round() -> None:
    assert asked() == []


@pytest.mark.parametrize("answer", [MISSING, PageAnswer(status=200, body=b' [{"iter": 1}]')])
def test_metrics_are_looked_for_where_trtllm_keeps_them(answer: PageAnswer) -> None:
    assert asked(METRICS=answer) == [("GET", "/prometheus/metrics")]


def test_a_guarded_health_page_is_replaced_by_one_that_calls_no_model() -> None:
    assert asked(HEALTH=PageAnswer(status=401)) == [("GET", "/health/liveliness")]


def test_behind_a_key_the_open_doors_are_tried_and_none_runs_inference() -> None:
    # GET on a POST route answers 405 and runs nothing
    assert asked(MODELS=PageAnswer(status=401)) == [("GET", "/invocations"), ("POST", "/tokenize")]


def test_with_a_key_that_opens_the_models_the_door_beside_it_is_still_tried() -> None:
    assert asked(has_key=True) == [("GET", "/invocations")]


@pytest.mark.parametrize(
    ("metrics", "models", "path"),
    [
        (b"sglang:num_running_reqs 1\n", b"{}", "/server_info"),
        (b"tgi_queue_size 0\n", b"{}", "/info"),
        (b"llamacpp:requests_processing 0\n", b"{}", "/props"),
        (b"# metrics are off", b'{"data":[{"id":"m","owned_by":"llamacpp"}]}', "/props"),
    ],
)
def test_an_engine_without_a_version_page_is_asked_where_it_tells(
    metrics: bytes, models: bytes, path: str
) -> None:
    ok = PageAnswer(status=200)
    found = asked(
        VERSION=MISSING, METRICS=replace(ok, body=metrics), MODELS=replace(ok, body=models)
    )
    assert found == [("GET", path)]


def test_the_key_never_goes_where_it_would_call_every_model() -> None:
    assert pages.HEALTH not in pages.KEY_GOES_TO
    assert pages.LITELLM_ALIVE not in pages.KEY_GOES_TO
    assert pages.INVOCATIONS not in pages.KEY_GOES_TO
