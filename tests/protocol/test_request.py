"""What a body asks for: settings, the prompt that a model reads, its chain of blocks, and why it cannot be read."""

import base64
import json
import struct
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolkit.protocol.request import MAX_INTEGER, MOST_BLOCKS, asked, endpoint
from toolkit.records import Asked

SCHEMAS: dict[str, list[str]] = json.loads(
    (Path(__file__).parents[1] / "data" / "vllm-0.32.0-request-fields.json").read_text()
)["schemas"]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


SAID = [user("hi")]


def told(path: str | None = CHAT, **fields: Any) -> Asked:
    return asked(json.dumps(fields).encode(), path=path, keep_text=True)


def chat(*messages: Any, **fields: Any) -> Asked:
    return told(messages=messages or SAID, **fields)


def text(*parts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in parts]


def image(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


# Settings


def test_a_chat_request_tells_its_settings() -> None:
    given = chat(model="m", stream=True, max_tokens=128, temperature=0, n=2, seed=7, tools=[], logprobs=True)  # fmt: skip
    assert (given.model, given.stream, given.max_tokens) == ("m", True, 128)
    assert (given.temperature, given.n, given.seed) == (0.0, 2, 7)
    assert type(given.temperature) is float
    assert (given.options, given.problem, given.messages) == (("logprobs", "tools"), None, 1)
    tgi = {"inputs": "hi", "parameters": {"max_new_tokens": 5, "temperature": 0.5, "top_k": 3}}
    given = told("/generate_stream", **tgi)
    assert (given.max_tokens, given.temperature, given.stream) == (5, 0.5, True)
    assert (given.options, given.prompt_chars) == (("top_k",), 2)
    both = {"sampling_params": {"max_new_tokens": 6, "seed": 1}, "seed": 2, "stream": False}
    given = told("/generate", text="hello", **both)
    assert (given.max_tokens, given.stream, given.seed, given.prompt_chars) == (6, False, 2, 5)


def test_a_client_cannot_fill_the_memory_with_names() -> None:
    given = chat(model="m" * 5000, **{f"field{n:05}": 1 for n in range(1000)}, **{"x" * 3000: 1})
    assert given.model == "m" * 256
    assert given.options == tuple(f"field{n:05}" for n in range(64))


def test_an_endpoint_has_one_name_whatever_stands_before_it() -> None:
    for path in (CHAT, "/chat/completions/", "/team/a/v1/chat/completions"):
        assert endpoint(path) == "chat/completions"
    assert endpoint("/proxy/v1/chat/completions/batch") == "chat/completions/batch"
    assert endpoint("/generate_stream") == endpoint("/generate") == "generate"
    assert endpoint("/api/generate") == "api/generate"
    for path in ("/metrics", "/", "", "*", "/chat/completions/x"):
        assert endpoint(path) == path


# What cannot be read


def test_a_body_without_a_readable_prompt_says_why() -> None:
    for problem, body in (
        ("not JSON", b"not json"),
        ("not a JSON object", b"[1,2]"),
        ("no prompt", b'{"messages":[]}'),
        ("nested deeper than 64", b'{"messages":[%s]}' % (b'{"a":' * 960 + b"1" + b"}" * 960)),
    ):
        given = asked(body, path=CHAT)
        assert (given.problem, given.prompt_blocks, given.block_tokens) == (problem, b"", None)
        assert given.exact_key == blake2b(body, digest_size=16).hexdigest()


NAMES = st.sampled_from("role content type text tool_calls function name arguments".split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    "messages prompt input inputs system tools functions max_tokens temperature stream n model"
    " parameters documents prompt_embeds query".split()
)
BODIES = st.dictionaries(FIELDS, JSON, max_size=5).map(json.dumps).map(str.encode)


@given(
    BODIES | st.binary(max_size=80),
    st.sampled_from([CHAT, TEXT, RESPONSES, "/rerank", "/x", None]) | st.text(max_size=20),
)
@example(b'{"messages":[{"role":5,"content":[[[1]],null,{"type":["x"]}]}]}', CHAT)
@example(b'{"messages":[[],[5],[{"content":{}}]]}', CHAT)
@example(b'{"input":[{"type":"function_call","arguments":{}},7,"a"]}', RESPONSES)
def test_nothing_makes_it_raise_and_whatever_comes_out_can_be_stored(
    body: bytes, path: str | None
) -> None:
    given = asked(body, path=path, keep_text=True)
    for said in (given.prompt_text, given.model, *given.options):
        assert said is None or said.encode() is not None
    for number in (given.max_tokens, given.n, given.seed):
        assert number is None or abs(number) <= MAX_INTEGER
    assert given.temperature is None or abs(given.temperature) < float("inf")
    assert (given.prompt_key is None) == (given.prompt_text is None)
    assert len(given.prompt_blocks) % 8 == 0


# The prompt

READ = {
    (CHAT, "ChatCompletionRequest", "messages"): (
        "add_generation_prompt add_special_tokens chat_template chat_template_kwargs continue_final_message documents"
        " media_io_kwargs messages mm_processor_kwargs reasoning_effort tools truncate_prompt_tokens truncation_side"
    ),
    (TEXT, "CompletionRequest", "prompt"): (
        "add_special_tokens prompt prompt_embeds suffix truncate_prompt_tokens truncation_side"
    ),
    (RESPONSES, "ResponsesRequest", "input"): (
        "chat_template_kwargs input instructions media_io_kwargs mm_processor_kwargs previous_input_messages"
        " previous_response_id prompt reasoning tools"
    ),
    ("/v1/messages", "AnthropicMessagesRequest", "messages"): (
        "chat_template_kwargs messages system thinking tools"
    ),
}
"""What of each request a model reads."""


@pytest.mark.parametrize(("path", "schema", "holder"), list(READ))
def test_the_prompt_key_is_of_exactly_the_fields_that_a_model_reads(
    path: str, schema: str, holder: str
) -> None:
    fields = {holder: SAID if holder == "messages" else "hi"}
    key = told(path, **fields).prompt_key
    assert key is not None
    read = [
        field
        for field in SCHEMAS[schema]
        if told(path, **{**fields, field: [user("ho")]}).prompt_key != key
    ]
    assert read == READ[path, schema, holder].split()


def test_a_prompt_key_is_of_the_canonical_form_of_what_is_read() -> None:
    read = b'prompt {"messages":[{"content":"hi","role":"user"}],"tools":"[]"}'
    given = told(tools=[], messages=[{"role": "user", "content": "hi"}], temperature=1)
    assert given.prompt_key == blake2b(read, digest_size=16).hexdigest()
    others = [
        *(chat(user("hi ")), chat(user("hi"), user("hi")), chat(user("hi", name="ann"))),
        *(chat({"role": "system", "content": "hi"}), told(prompt="hi"), told(input="hi")),
        *(chat(user([])), chat(user("")), chat()),
        # a rendering could be forged by a text that holds another message
        *(chat(user("a\nassistant: b")), chat(user("a"), {"role": "assistant", "content": "b"})),
        told(RESPONSES, input="hi", prompt={"id": "p1"}),
    ]
    assert others[-3].prompt_text == others[-2].prompt_text == "user: a\nassistant: b"
    assert len({each.prompt_key for each in others}) == len(others)


def test_a_chat_is_counted_in_characters_and_rendered_line_by_line() -> None:
    given = chat({"role": "system", "content": "Be kind."}, user("caf\u00e9 \U0001f600"))
    assert given.prompt_text == "system: Be kind.\nuser: caf\u00e9 \U0001f600"
    assert (given.prompt_chars, given.messages, given.images) == (8 + 6, 2, 0)
    batch = told(CHAT + "/batch", messages=[SAID, [user("b"), user("c")]])
    assert (batch.messages, batch.prompt_text) == (3, "user: hi\nuser: b\nuser: c")
    # no text is kept unless it is asked for
    assert "secret" not in repr(asked(b'{"messages":[{"content":"secret"}]}', path=CHAT))


def test_calls_of_tools_and_what_they_gave_are_read() -> None:
    tool = {"type": "function", "function": {"name": "sum"}}
    call = {"id": "1", "type": "function", "function": {"name": "sum", "arguments": '{"a":1}'}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    given = chat(assistant, {"role": "tool", "tool_call_id": "1", "content": "2"}, tools=[tool])
    tools = '[{"type":"function","function":{"name":"sum"}}]'
    assert given.prompt_text == f'tools: {tools}\nassistant: sum {{"a":1}}\ntool: 2'
    assert given.prompt_chars == 11 + 1  # what tools there are is not counted
    items = [
        user([{"type": "input_text", "text": "hi"}]),
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]
    given = told(RESPONSES, input=items, instructions="Be kind.")
    lines = ["system: Be kind.", "user: hi", "function_call: f {}", "function_call_output: done"]
    assert (given.prompt_text, given.prompt_chars) == ("\n".join(lines), 8 + 2 + 4 + 4)
    result = {"type": "tool_result", "tool_use_id": "1", "content": [*text("42"), image(b"x")]}
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
    said = [{"role": "assistant", "content": [use]}, user([result])]
    given = told("/v1/messages", system=text("Be", "kind."), messages=said)
    start = 'system: Be\nkind.\nassistant: f {"a":1}\nuser: 42\n[image_url '
    assert (given.prompt_text or "").startswith(start)
    assert (given.prompt_chars, given.images, given.messages) == (2 + 5 + 9 + 2, 1, 2)
    # a result is looked into a few levels deep
    for levels, expected in ((7, (4, 0)), (21, (0, 1))):
        part: Any = {"type": "text", "text": "deep"}
        for _ in range(levels):
            part = {"type": "tool_result", "content": [part]}
        given = chat(user([part]))
        assert (given.prompt_chars, given.images) == expected


def test_whatever_is_no_text_is_counted_and_kept_as_a_hash() -> None:
    data = b"\x89PNG" * 50
    given = chat(user([*text("look"), image(data), image(b"other")]))
    assert (given.images, given.messages, given.prompt_chars) == (2, 1, 4)
    assert base64.b64encode(data).decode() not in repr(given)
    assert (given.prompt_text or "").count("[image_url ") == 2
    swapped = chat(user([*text("look"), image(b"other"), image(data)]))
    assert swapped.prompt_key != given.prompt_key
    assert swapped.prompt_text != given.prompt_text
    for part in ({"type": "input_audio"}, {"image_url": "http://x/y.png"}, 7, None, ["x"]):
        assert chat(user([part])).images == 1
    # a text that looks like one is none
    forged = chat(user((given.prompt_text or "").removeprefix("user: ")))
    assert forged.prompt_text == given.prompt_text
    assert forged.prompt_key != given.prompt_key


@pytest.mark.parametrize(
    ("path", "fields", "chars", "tokens"),
    [
        (TEXT, {"prompt": "hello"}, 5, None),
        (TEXT, {"prompt": ["hello", "you"]}, 8, None),
        (TEXT, {"prompt": [[1, 2, 3], [4]]}, None, 4),
        (TEXT, {"prompt": ["a", [1, 2]]}, None, None),
        (TEXT, {"prompt": [7] * 50_000}, None, 50_000),
        ("/rerank", {"query": "q", "documents": ["d1", "d2"]}, 5, None),
        (None, {"inputs": "hi"}, 2, None),
    ],
)
def test_whatever_a_models_weights_read_is_a_prompt(
    path: str | None, fields: dict[str, Any], chars: int | None, tokens: int | None
) -> None:
    given = told(path, **fields)
    assert (given.prompt_chars, given.prompt_tokens) == (chars, tokens)
    assert given.prompt_key is not None
    assert given.problem is None


# Blocks


def chain(salt: bytes, *whole_blocks: bytes) -> bytes:
    """By hand: 8 bytes of BLAKE2b over the hash before and the block."""
    last = blake2b(salt, digest_size=8).digest()
    hashes = []
    for block in whole_blocks:
        last = blake2b(last + block, digest_size=8).digest()
        hashes.append(last)
    return b"".join(hashes)


def test_blocks_are_64_bytes_of_the_rendering_or_16_ids() -> None:
    content = "x" * 100 + "\u00e9" * 20
    rendering = f"user: {content}\n".encode()  # 6 + 100 + 40 + 1 = 147: two whole blocks
    given = chat(user(content), model="m", cache_salt="s")
    salt = b'{"cache_salt":"s","model":"m"}'
    assert given.prompt_blocks == chain(salt, rendering[:64], rendering[64:128])
    assert given.block_tokens == 16
    # whatever else is asked for changes nothing; what keeps caches apart does
    same = chat(user(content), model="m", cache_salt="s", temperature=0.5)
    assert same.prompt_blocks == given.prompt_blocks
    other = chat(user(content), model="m", cache_salt="s", chat_template_kwargs={"a": 1})
    assert other.prompt_blocks[:8] != given.prompt_blocks[:8]
    ids = list(range(40))
    packed = struct.pack("<40q", *ids)
    expected = chain(b"{}", packed[:128], packed[128:256])
    assert told(TEXT, prompt=ids).prompt_blocks == expected
    assert told(TEXT, prompt=[ids, ids]).prompt_blocks.startswith(expected)
    # `user: ` + 57 + line's end = 64; characters of 4 bytes fill a block with 16
    assert len(chat(user("x" * 57)).prompt_blocks) == 8
    assert (chat(user("x" * 56)).prompt_blocks, chat(user("x" * 56)).block_tokens) == (b"", None)
    assert len(told(TEXT, prompt="\U0001f600" * 16).prompt_blocks) == 8


def test_blocks_are_bounded() -> None:
    ids = [7] * (16 * MOST_BLOCKS + 99)
    for prompt in (["x" * 64 * 9000, "y" * 64 * 9000], ids):
        assert len(told(TEXT, prompt=prompt).prompt_blocks) == 8 * MOST_BLOCKS
    assert told(TEXT, prompt=ids).prompt_tokens == len(ids)
