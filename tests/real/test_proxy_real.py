"""`toolkit proxy` in front of a real vLLM: the same answers, to the official client; nothing asked twice."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from support.proxy_verb import Verb, proxying
from support.real_vllm import ANSWER_LIMIT_S

STORY = [{"role": "user", "content": "Tell a story"}]
NAMED = {
    "type": "function",
    "function": {
        "name": "paint",
        "description": "Paint it",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "paint", "schema": NAMED["function"]["parameters"]},
}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two choices": {"n": 2, "seed": 7, "temperature": 1},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "stop": {"stop": ["e"]},
    "structured": {"response_format": SCHEMA, "max_tokens": 64},
    "vLLM's own": {"extra_body": {"min_p": 0.1, "repetition_penalty": 1.1, "top_k": 3}},
}
A_TOOL: dict[str, Any] = {
    "model": "tiny-slow",
    "messages": STORY,
    "tools": [NAMED],
    "tool_choice": {"type": "function", "function": {"name": "paint"}},
    "max_tokens": 32,
    "temperature": 0,
}
OWN = ("id", "created", "system_fingerprint")
"""What differs between two answers to one request."""


@pytest.fixture(scope="module")
def behind(locked_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verb]:
    """A proxy without teams before the server that wants a key."""
    folder = tmp_path_factory.mktemp("proxy")
    settings = folder / "proxy.toml"
    settings.write_text(
        f'[[upstream]]\nname = "real"\nurl = "{locked_server.url}"\nkey_env = "ENGINE_KEY"\n'
    )
    with proxying("--config", settings, cwd=folder, ENGINE_KEY=locked_server.key) as proxy:
        yield proxy


def client(url: str, key: str = "none") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=ANSWER_LIMIT_S)


def said(told: Any) -> Any:
    """An answer without what is its own; chunks are a list."""
    if isinstance(told, list):
        return [said(each) for each in told]
    fields = told.model_dump(exclude_unset=True) if hasattr(told, "model_dump") else told
    return json.loads(
        re.sub(
            r'"chatcmpl-tool-[0-9a-f]+"',
            '"tool"',
            json.dumps({name: value for name, value in fields.items() if name not in OWN}),
        )
    )


def chat(asking: OpenAI, name: str, *, stream: bool, salt: int = 0) -> Any:
    fields = {"max_tokens": 12, "temperature": 0} | CHATS[name]
    messages = [{"role": "user", "content": f"Tell a story {salt}"}]
    told = asking.chat.completions.create(model="tiny", messages=messages, stream=stream, **fields)
    return said(list(told)) if stream else said(told)


def together(chunks: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What a stream says in the end, put together by hand: text, tool arguments and why each choice ended."""
    texts: dict[int, str] = {}
    arguments: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            index, delta = choice["index"], choice["delta"]
            texts[index] = texts.get(index, "") + (delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                arguments[index] = arguments.get(index, "") + (
                    call["function"].get("arguments") or ""
                )
            if choice.get("finish_reason"):
                reasons[index] = choice["finish_reason"]
    return texts, arguments, reasons


def told_by(whole: dict[str, Any]) -> tuple[Any, ...]:
    choices = {choice["index"]: choice for choice in whole["choices"]}
    calls = {
        index: "".join(call["function"]["arguments"] for call in choice["message"]["tool_calls"])
        for index, choice in choices.items()
        if choice["message"].get("tool_calls")
    }
    texts = {index: choice["message"].get("content") or "" for index, choice in choices.items()}
    return texts, calls, {index: choice["finish_reason"] for index, choice in choices.items()}


@pytest.mark.parametrize("name", CHATS)
def test_the_official_client_gets_what_it_gets_directly(
    locked_server: Any, behind: Verb, name: str
) -> None:
    direct = client(locked_server.url, locked_server.key)
    through = client(f"http://127.0.0.1:{behind.port}")
    whole = chat(direct, name, stream=False)
    assert [chat(through, name, stream=False) for _ in range(3)] == [whole] * 3
    # a stream of its own, and not one made of the whole that is stored by now
    streamed = together(chat(direct, name, stream=True, salt=1))
    for _ in range(3):
        assert together(chat(through, name, stream=True, salt=1)) == streamed


@pytest.mark.parametrize("name", CHATS)
def test_what_is_stored_in_one_view_is_shown_in_the_other_as_the_engine_would(
    locked_server: Any, behind: Verb, name: str
) -> None:
    direct = client(locked_server.url, locked_server.key)
    through = client(f"http://127.0.0.1:{behind.port}")
    chat(through, name, stream=True, salt=2)
    whole = told_by(chat(through, name, stream=False, salt=2))
    assert whole == told_by(chat(direct, name, stream=False, salt=2))
    chat(through, name, stream=False, salt=3)
    streamed = together(chat(through, name, stream=True, salt=3))
    assert streamed == together(chat(direct, name, stream=True, salt=3))


def test_a_tools_call_is_the_same_in_both_views(roomy_server: Any, tmp_path: Path) -> None:
    direct = client(roomy_server.url)
    whole = told_by(said(direct.chat.completions.create(**A_TOOL)))
    streamed = together(said(list(direct.chat.completions.create(**A_TOOL, stream=True))))
    with proxying("--upstream", roomy_server.url, cwd=tmp_path) as proxy:
        through = client(f"http://127.0.0.1:{proxy.port}")
        for _ in range(2):
            assert told_by(said(through.chat.completions.create(**A_TOOL))) == whole
            told = list(through.chat.completions.create(**A_TOOL, stream=True))
            assert together(said(told)) == streamed


def test_completions_are_the_same_too(locked_server: Any, behind: Verb) -> None:
    def ask(asking: OpenAI) -> Any:
        return said(
            asking.completions.create(
                model="tiny",
                prompt=["Once", "Twice"],
                max_tokens=8,
                temperature=0,
                logprobs=2,
            )
        )

    whole = ask(client(locked_server.url, locked_server.key))
    through = client(f"http://127.0.0.1:{behind.port}")
    assert [ask(through) for _ in range(3)] == [whole] * 3


def test_the_engine_counts_nothing_on_hits(locked_server: Any, behind: Verb) -> None:
    through = client(f"http://127.0.0.1:{behind.port}")
    for stream in (False, True):
        chat(through, "plain", stream=stream, salt=9)
    before = counted(locked_server)
    for _ in range(10):
        chat(through, "plain", stream=False, salt=9)
        chat(through, "plain", stream=True, salt=9)
    assert counted(locked_server) == before


def counted(server: Any) -> dict[str, float]:
    """The engine's token counters."""
    with server.client() as asking:
        page = asking.get("/metrics").text
    return {
        name: sum(
            float(value)
            for value in re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
        )
        for name in ("prompt_tokens_total", "generation_tokens_total")
    }


def test_an_error_is_the_engines_own_and_is_asked_for_each_time(
    locked_server: Any, behind: Verb
) -> None:
    bad = {"model": "tiny", "messages": STORY, "temperature": -1}
    with locked_server.client() as asking:
        direct = asking.post("/v1/chat/completions", json=bad)
    for _ in range(2):
        status, headers, body = behind.ask(bad)
        assert (status, json.loads(body)) == (direct.status_code, direct.json())
        assert "stored" not in headers["cache-status"]


def test_a_client_that_leaves_ends_the_work_in_the_engine(
    roomy_server: Any, tmp_path: Path
) -> None:
    with proxying("--upstream", roomy_server.url, cwd=tmp_path) as proxy:
        before = counted(roomy_server)["generation_tokens_total"]
        asking = client(f"http://127.0.0.1:{proxy.port}")
        stream = asking.chat.completions.create(
            model="tiny-slow", messages=STORY, max_tokens=400, stream=True
        )
        next(iter(stream))
        assert running(roomy_server) == 1
        stream.close()
        asking.close()
        give_up = time.monotonic() + 30
        while running(roomy_server):
            assert time.monotonic() < give_up, "the engine works on for nobody"
            time.sleep(0.1)
        # 400 tokens of 25 ms would have been 10 s of work
        tokens = counted(roomy_server)["generation_tokens_total"] - before
        assert tokens < 300


def running(server: Any) -> float:
    with server.client() as asking:
        page = asking.get("/metrics").text
    return sum(
        map(float, re.findall(r"^vllm:num_requests_running(?:{.*})? (\S+)$", page, re.MULTILINE))
    )
