"""What a body asks for: settings, and why it cannot be read. The prompt's side is in test_request_body_prompts.py."""

import json
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.records import Asked
from toolkit.request_body import MAX_INTEGER, asked, endpoint
from toolkit.request_key import canonical, request_key

CHAT = "/v1/chat/completions"
SAID = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> Asked:
    return asked(json.dumps({"messages": SAID, **fields}).encode(), path=CHAT)


def test_a_chat_request_tells_its_settings() -> None:
    told = chat(
        model="m",
        stream=True,
        max_tokens=128,
        temperature=0,
        top_p=0.9,
        n=2,
        seed=7,
        tools=[],
        logprobs=True,
        stream_options={},
    )
    assert (told.model, told.stream, told.max_tokens) == ("m", True, 128)
    assert (told.temperature, told.top_p, told.n, told.seed) == (0.0, 0.9, 2, 7)
    assert type(told.temperature) is float
    assert told.options == ("logprobs", "stream_options", "tools")
    assert told.problem is None
    assert told.messages == 1


def test_what_a_body_does_not_set_is_unknown() -> None:
    told = chat(max_tokens=None, temperature=None, stream=None, logprobs=None)
    assert (told.model, told.stream, told.max_tokens) == (None, None, None)
    assert (told.temperature, told.top_p, told.n, told.seed) == (None, None, None, None)
    assert told.options == ()


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 5.0}, 5),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": 5.5}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": []}, None),
        ({"max_tokens": MAX_INTEGER}, MAX_INTEGER),
        ({"max_tokens": MAX_INTEGER + 1}, None),  # no database column and no server takes it
    ],
)
def test_the_limit_is_max_completion_tokens_where_that_is_given(
    limits: dict[str, Any], told: int | None
) -> None:
    assert chat(**limits).max_tokens == told


@pytest.mark.parametrize("nonsense", ["x", [], {}, True])
def test_nonsense_is_no_setting(nonsense: Any) -> None:
    told = chat(temperature=nonsense, top_p=nonsense, n=nonsense, seed=nonsense, model=[nonsense])
    assert (told.temperature, told.top_p, told.n, told.seed) == (None, None, None, None)
    assert told.model is None
    assert chat(stream="yes").stream is None


def test_what_tgi_and_sglang_keep_inside_counts_as_set() -> None:
    tgi = {"inputs": "hi", "parameters": {"max_new_tokens": 5, "temperature": 0.5, "top_k": 3}}
    told = asked(json.dumps(tgi).encode(), path="/generate_stream")
    assert (told.max_tokens, told.temperature, told.stream) == (5, 0.5, True)
    assert told.options == ("top_k",)
    assert told.prompt_chars == 2
    sglang = {"text": "hello", "sampling_params": {"max_new_tokens": 6}, "stream": False}
    told = asked(json.dumps(sglang).encode(), path="/generate")
    assert (told.max_tokens, told.stream, told.prompt_chars) == (6, False, 5)


def test_equal_bytes_have_one_exact_key_and_other_bytes_another() -> None:
    body = json.dumps({"messages": SAID}).encode()
    assert asked(body).exact_key == blake2b(body, digest_size=16).hexdigest()
    assert asked(body).exact_key != asked(body + b" ").exact_key
    assert asked(body).request_key == asked(body + b" ").request_key
    assert asked(body).body_bytes == len(body)


def test_the_request_key_is_of_the_canonical_form_and_the_endpoint() -> None:
    body = json.dumps({"messages": SAID, "temperature": 0.0, "stream": True}).encode()
    form = b'{"messages":[{"content":"hi","role":"user"}],"temperature":0}'
    expected = request_key(form, endpoint="chat/completions")
    assert canonical(body) == (form, {"messages": SAID, "temperature": 0, "stream": True})
    assert asked(body, path=CHAT).request_key == expected
    # a prefix of a proxy and a missing path do not make it another request
    assert asked(body, path="/team/a/v1/chat/completions/").request_key == expected
    assert asked(body).request_key == expected
    assert asked(body, path="/v1/messages").request_key != expected


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (CHAT, "chat/completions"),
        ("/chat/completions", "chat/completions"),
        ("/proxy/v1/completions", "completions"),
        ("/v1/chat/completions/batch", "chat/completions/batch"),
        ("/generate_stream", "generate"),
        ("/generate", "generate"),
        ("/api/generate", "api/generate"),
        ("/v1/responses", "responses"),
        ("/metrics", "/metrics"),
        ("/", "/"),
        ("", ""),
        ("*", "*"),
        ("/chat/completions/x", "/chat/completions/x"),
    ],
)
def test_an_endpoint_has_one_name_whatever_stands_before_it(path: str, name: str) -> None:
    assert endpoint(path, {}) == name


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "not JSON"),
        (b"not json", "not JSON"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "not UTF-8"),
        (b"[1,2]", "not a JSON object"),
        (b'{"model":"m"}', "no prompt"),
        (b'{"messages":null}', "no prompt"),
        (b'{"messages":[]}', "no prompt"),
        (b'{"messages":5}', "no prompt"),
    ],
)
def test_a_body_without_a_readable_prompt_says_why(body: bytes, problem: str) -> None:
    told = asked(body, path=CHAT)
    assert told.problem == problem
    assert told.prompt_key is None
    assert (told.prompt_chars, told.prompt_blocks, told.block_tokens) == (None, b"", None)
    assert told.exact_key == blake2b(body, digest_size=16).hexdigest()
    assert told.body_bytes == len(body)


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ('"seed":1,"seed":2', "duplicate keys"),
        ('"seed":18446744073709551616', "integer beyond 64 bits"),
        ('"top_p":NaN', "NaN or Infinity"),
        ('"top_p":1e999', "number beyond a double"),
        (r'"user":"\ud800"', "lone surrogate"),
        ('"metadata":' + "[" * 70 + "]" * 70, "nested deeper than 64"),
        ('"metadata":' + "[" * 300 + "]" * 300, "nested deeper than 64"),
    ],
)
def test_what_no_cache_may_take_still_tells_its_prompt(extra: str, problem: str) -> None:
    plain = '{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]'
    told = asked(f"{plain},{extra}}}".encode(), path=CHAT)
    same = asked(f"{plain}}}".encode(), path=CHAT)
    assert told.problem == problem
    assert told.request_key is None
    assert same.request_key is not None
    assert told.prompt_key == same.prompt_key
    assert (told.model, told.max_tokens, told.prompt_chars) == ("m", 9, 2)
    assert told.top_p is None


def test_a_prompt_too_deep_to_hash_is_told_as_such() -> None:
    deep = b'{"a":' * 960 + b"1" + b"}" * 960
    told = asked(b'{"messages":[{"role":"user","content":[%s]}]}' % deep, path=CHAT)
    assert told.problem == "nested deeper than 64"
    assert told.exact_key


def test_half_a_surrogate_pair_comes_out_as_text_that_can_be_written() -> None:
    body = rb'{"model":"\ud800","messages":[{"role":"user","content":"a\udc00b"}],"\ud801":1}'
    told = asked(body, path=CHAT, keep_text=True)
    assert (told.model, told.prompt_text, told.options) == ("?", "user: a?b", ("?",))
    assert told.prompt_chars == 3
    assert told.prompt_key != asked(body.replace(b"dc00", b"dc01"), path=CHAT).prompt_key


def test_a_client_cannot_fill_the_memory_with_names() -> None:
    told = chat(model="m" * 5000, **{f"field{n:05}": 1 for n in range(1000)}, **{"x" * 3000: 1})
    assert told.model == "m" * 256
    assert told.options == tuple(f"field{n:05}" for n in range(64))


@given(st.binary(max_size=80), st.none() | st.text(max_size=20))
def test_no_bytes_and_no_path_make_it_raise(body: bytes, path: str | None) -> None:
    assert asked(body, path=path, keep_text=True).exact_key


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from("role content type text tool_calls function name arguments".split())
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    "messages prompt input inputs system tools functions max_tokens temperature stream n model"
    " parameters documents prompt_embeds query".split()
)
PATHS = st.sampled_from([CHAT, "/v1/completions", "/v1/responses", "/rerank", "/x", None])


@given(st.dictionaries(FIELDS, JSON, max_size=5), PATHS)
@example({"messages": [{"role": 5, "content": [[[1]], None, {"type": ["x"]}]}]}, CHAT)
@example({"messages": [[], [5], [{"content": {}}]]}, CHAT)
@example({"input": [{"type": "function_call", "arguments": {}}, 7, "a"]}, "/v1/responses")
def test_no_json_makes_it_raise_and_whatever_comes_out_can_be_stored(
    fields: dict[str, Any], path: str | None
) -> None:
    told = asked(json.dumps(fields).encode(), path=path, keep_text=True)
    for text in (told.prompt_text, told.model, *told.options):
        assert text is None or text.encode() is not None
    for number in (told.max_tokens, told.n, told.seed):
        assert number is None or abs(number) <= MAX_INTEGER
    assert told.temperature is None or abs(told.temperature) < float("inf")
    assert (told.prompt_key is None) == (told.prompt_text is None)
    assert len(told.prompt_blocks) % 8 == 0
