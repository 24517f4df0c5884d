"""Upstreams' own pages, recorded and strange."""

import orjson
import pytest
from support.raw_server import recorded

from toolkit.proxy.upstreams import upstream_pages as pages
from toolkit.proxy.upstreams.identity import Identity, Model


def test_a_recorded_page_tells_load_tokens_and_steps() -> None:
    told = pages.metrics(recorded("metrics_after_load.txt"), "text/plain")
    text = recorded("metrics_after_load.txt").decode()

    def line(name: str) -> float:
        (found,) = [row for row in text.splitlines() if row.startswith(name)]
        return float(found.split()[-1])

    look = pages.look(told, Identity(models=(Model(id="tiny"), Model(id="lora"))))
    assert (look.running, look.waiting) == (0.0, 0.0)
    assert look.generation_tokens_total == line("vllm:generation_tokens_total{")
    assert look.prompt_tokens_total == line("vllm:prompt_tokens_total{")
    assert look.steps_total == line("vllm:iteration_tokens_total_count{") > 0
    assert look.kv_cache_usage == line("vllm:kv_cache_usage_perc{")
    assert look.models == {"tiny", "lora"}


def test_without_a_page_a_look_knows_only_what_it_serves() -> None:
    assert pages.look(None, None) == pages.Look()
    assert pages.look(None, Identity(models=())) == pages.Look(models=frozenset())


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\x00", b"up 1\n", b'{"detail":"no"}'])
def test_what_is_no_engines_page_is_none(body: bytes) -> None:
    assert pages.metrics(body, "") is None


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (recorded("version.json"), "0.32.0"),
        (b'{"version":"' + b"9" * 500 + b'"}', "9" * 200),
        (b'{"version":1}', None),
        (b'{"version":""}', None),
        (b"[]", None),
        (b"no", None),
        (b"", None),
    ],
)
def test_a_version_is_a_word(body: bytes, word: str | None) -> None:
    assert pages.version(body) == word


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_probe_asks_for_one_token(path: str) -> None:
    asked = orjson.loads(pages.probe(path, "tiny"))
    assert (asked["model"], asked["max_tokens"]) == ("tiny", 1)
    assert ("prompt" in asked) != ("messages" in asked)


@pytest.mark.parametrize(
    ("status", "body", "token"),
    [
        (200, recorded("completions.body"), True),
        (200, recorded("chat.json"), True),
        (200, b'{"choices":[]}', False),
        (200, b"not json", False),
        (200, b"[]", False),
        (500, b'{"choices":[{}]}', False),
        (502, b"", False),
        # too many ask, or it may not be asked so: nothing is said about the engine
        (503, b"{}", None),
        (429, b"{}", None),
        (400, recorded("err_overlong.body"), None),
        (404, recorded("err_unknown_model.body"), None),
        (401, b"{}", None),
        (307, b"", None),
    ],
)
def test_what_counts_as_a_token(status: int, body: bytes, token: bool | None) -> None:
    assert pages.made_token(status, body) is token
