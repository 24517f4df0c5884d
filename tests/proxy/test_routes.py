"""Where a request goes: an allow-list of paths, letter by letter."""

import pytest

from toolkit.protocol.request import endpoint
from toolkit.proxy.config import Settings, TeamSetting, UpstreamSetting
from toolkit.proxy.routes import ANSWERS, OWN, PUBLIC, route

UPSTREAMS = (UpstreamSetting(name="one", url="http://127.0.0.1:9"),)
OPEN = Settings(upstreams=UPSTREAMS)
TEAMS = (TeamSetting(name="red", key_env="RED"),)


def status(method: str, path: str, settings: Settings = OPEN) -> int | str:
    found = route(method, path, settings)
    return found.status or found.kind


@pytest.mark.parametrize("path", sorted(ANSWERS))
def test_an_answers_name_is_the_one_that_forecasts_and_captures_use(path: str) -> None:
    assert ANSWERS[path] == endpoint(path)


TRICKS = [
    *("/v1/../metrics", "//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/"),
    *("/./v1/chat/completions", "/v1/x/../chat/completions", "/v1/chat%2fcompletions"),
    *("/v1/chat/%63ompletions", "/%76%31/chat/completions", "/v1/chat/completions%00", "/v1/%2e%2e/metrics"),
    *("/V1/chat/completions", "/v1/Chat/Completions", "/v1/chat/completions;x", "/v1;a=b/chat/completions"),
    *("/v1/chat/completions\x00", "/v1/chat/completions ", " /v1/chat/completions", "/v1/chat/completions\t"),
    *("/v1\\chat\\completions", "\\v1/chat/completions", "v1/chat/completions", "/v1/chat/completions#x"),
    *("/v1/chat/completions?x", "http://h/v1/chat/completions", "/v1/chat/completions/../../metrics"),
    *("/health/", "/metrics/", "//metrics", "/Metrics", "/metrics;x", "/%6detrics", "/metrics%20", "/ready\x00"),
    "/v1/chat/completion\N{LATIN SMALL LETTER LONG S}",
]  # fmt: skip


@pytest.mark.parametrize("path", TRICKS)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_other_spelling_of_a_path_is_that_path(method: str, path: str) -> None:
    assert status(method, path) == 404
    assert status(method, path, Settings(upstreams=UPSTREAMS, paths=("/tokenize",))) == 404


def test_settings_make_no_answer_and_no_own_page_another_one() -> None:
    paths = (*ANSWERS, *OWN, *PUBLIC)
    settings = Settings(upstreams=UPSTREAMS, paths=paths)
    assert {status("POST", path, settings) for path in ANSWERS} == {"answer"}
    assert {status("GET", path, settings) for path in (*OWN, *PUBLIC)} == {"own"}
    closed = Settings(upstreams=UPSTREAMS, teams=TEAMS, paths=paths)
    assert {status("GET", path, closed) for path in PUBLIC} == {404}
