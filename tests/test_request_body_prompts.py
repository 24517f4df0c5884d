"""What a model reads of a body: one key whatever the sampling, its length, its text, and its chain of blocks."""

import base64
import json
import struct
from hashlib import blake2b
from typing import Any

import pytest

from toolkit.records import Asked
from toolkit.request_body import asked
from toolkit.request_prompt import MOST_BLOCKS

CHAT = "/v1/chat/completions"


def told(path: str | None = CHAT, **fields: Any) -> Asked:
    return asked(json.dumps(fields).encode(), path=path, keep_text=True)


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def text(*parts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": part} for part in parts]


def image(data: bytes) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


# --- the key -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.7},
        {"max_tokens": 9},
        {"seed": 1, "n": 3, "stream": True},
        {"model": "another"},
        {"response_format": {"type": "json_object"}},
        {"tools": None},
        {"user": "ann"},
    ],
)
def test_how_to_answer_and_by_whom_leaves_the_prompt_the_same(sampling: dict[str, Any]) -> None:
    assert (
        told(messages=[user("hi")], **sampling).prompt_key == told(messages=[user("hi")]).prompt_key
    )


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [user("hi ")]},
        {"messages": [user("Hi")]},
        {"messages": [{"role": "system", "content": "hi"}]},
        {"messages": [user("hi"), user("hi")]},
        {"messages": [user("hi", name="ann")]},
        {"messages": [user("hi")], "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [user("hi")], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [user("hi")], "add_generation_prompt": False},
        {"messages": [user("hi")], "documents": [{"text": "d"}]},
        {"messages": [user("hi")], "system": "be kind"},
        {"prompt": "hi"},
        {"input": "hi"},
    ],
)
def test_whatever_else_a_model_reads_makes_another_prompt(other: dict[str, Any]) -> None:
    key = told(**other).prompt_key
    assert key is not None
    assert key != told(messages=[user("hi")]).prompt_key


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (text("a"), "a"),
        (text("a", "b"), "a\nb"),
        (["a", "b"], "a\nb"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "a"),
        (text(""), ""),
    ],
)
def test_a_content_of_texts_in_parts_is_their_text_line_by_line(parts: Any, joined: str) -> None:
    in_parts, whole = told(messages=[user(parts)]), told(messages=[user(joined)])
    assert in_parts.prompt_key == whole.prompt_key
    assert in_parts.prompt_blocks == whole.prompt_blocks
    assert in_parts.prompt_text == whole.prompt_text
    assert in_parts.request_key != whole.request_key


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "text", "text": "a", "nobody_knows": 1}],
        [{"type": "refusal", "refusal": "a"}],
        [*text("a"), image(b"x")],
        [{"text": "a"}],
        [],
        None,
    ],
)
def test_a_content_of_anything_more_is_not_folded(parts: Any) -> None:
    assert told(messages=[user(parts)]).prompt_key != told(messages=[user("a")]).prompt_key


def test_a_text_cannot_pass_for_an_image_nor_nothing_for_a_text() -> None:
    shown = told(messages=[user([*text("a"), image(b"x")])])
    assert shown.prompt_text is not None
    forged = told(messages=[user(shown.prompt_text.removeprefix("user: "))])
    assert forged.prompt_text == shown.prompt_text
    assert forged.prompt_key != shown.prompt_key
    assert told(messages=[user([])]).prompt_key != told(messages=[user("")]).prompt_key


def test_a_prompt_key_is_of_the_canonical_form_of_what_is_read() -> None:
    read = b'prompt {"messages":[{"content":"hi","role":"user"}],"tools":"[]"}'
    seen = told(tools=[], messages=[{"role": "user", "content": "hi"}], temperature=1)
    assert seen.prompt_key == blake2b(read, digest_size=16).hexdigest()


def test_half_a_surrogate_pair_changes_nothing_about_the_order_of_keys() -> None:
    one = asked(rb'{"messages":[{"role":"user","content":"\ud800"}]}', path=CHAT)
    other = asked(rb'{"messages":[{"content":"\ud800","role":"user"}]}', path=CHAT)
    assert one.problem == other.problem == "lone surrogate"
    assert one.prompt_key == other.prompt_key is not None


def test_a_tools_result_is_looked_into_a_few_levels_deep() -> None:
    def result(levels: int) -> Any:
        inner = result(levels - 1) if levels else {"type": "text", "text": "deep"}
        return {"type": "tool_result", "content": [inner]}

    shallow, deep = (told(messages=[user([result(levels)])]) for levels in (6, 20))
    assert (shallow.prompt_chars, shallow.images) == (4, 0)
    assert (deep.prompt_chars, deep.images) == (0, 1)


def test_equal_keys_are_the_only_way_to_an_equal_prompt_key() -> None:
    # a rendering could be forged by a text that holds another message
    one = told(messages=[user("a\nassistant: b")])
    two = told(messages=[user("a"), {"role": "assistant", "content": "b"}])
    assert one.prompt_text == two.prompt_text == "user: a\nassistant: b"
    assert one.prompt_key != two.prompt_key


# --- texts and lengths -------------------------------------------------------------------------


def test_a_chat_is_counted_in_characters_and_rendered_line_by_line() -> None:
    seen = told(messages=[{"role": "system", "content": "Be kind."}, user("caf\u00e9 \U0001f600")])
    # 8 + 6: characters, not bytes
    assert seen.prompt_chars == 14
    assert seen.prompt_text == "system: Be kind.\nuser: caf\u00e9 \U0001f600"
    assert (seen.messages, seen.images, seen.prompt_tokens) == (2, 0, None)


def test_no_text_is_kept_unless_it_is_asked_for() -> None:
    body = json.dumps({"messages": [user("secret")]}).encode()
    assert asked(body, path=CHAT).prompt_text is None
    assert "secret" not in repr(asked(body, path=CHAT))


def test_tools_and_their_calls_are_read_by_the_model() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "sum", "arguments": '{"a":1}'}}
    seen = told(
        messages=[
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ],
        tools=[{"type": "function", "function": {"name": "sum"}}],
    )
    assert seen.prompt_text == (
        'tools: [{"type":"function","function":{"name":"sum"}}]\nassistant: sum {"a":1}\ntool: 2'
    )
    # `sum {"a":1}` and `2`; what tools there are is not counted
    assert seen.prompt_chars == 11 + 1
    assert seen.options == ("tools",)


def test_an_image_is_counted_and_kept_as_a_hash_only() -> None:
    data = b"\x89PNG" * 50
    seen = told(messages=[user([*text("look"), image(data), image(b"other")])])
    assert (seen.images, seen.messages, seen.prompt_chars) == (2, 1, 4)
    assert seen.prompt_text is not None
    assert base64.b64encode(data).decode() not in repr(seen)
    hashes = [line for line in seen.prompt_text.split("\n") if line.startswith("[image_url ")]
    assert len(set(hashes)) == 2
    swapped = told(messages=[user([*text("look"), image(b"other"), image(data)])])
    assert swapped.prompt_key != seen.prompt_key


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "http://x/y.mp4"}},
        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        {"image_url": "http://x/y.png"},
        7,
        None,
        ["x"],
    ],
)
def test_whatever_is_no_text_is_counted_as_such(part: Any) -> None:
    assert told(messages=[user([part])]).images == 1


@pytest.mark.parametrize(
    ("prompt", "chars", "tokens"),
    [
        ("hello", 5, None),
        ("", 0, None),
        (["hello", "you"], 8, None),
        ([1, 2, 3], None, 3),
        ([[1, 2, 3], [4]], None, 4),
        (["a", [1, 2]], None, None),
    ],
)
def test_a_completion_is_a_text_texts_token_ids_or_rows_of_them(
    prompt: Any, chars: int | None, tokens: int | None
) -> None:
    seen = told("/v1/completions", prompt=prompt)
    assert (seen.prompt_chars, seen.prompt_tokens) == (chars, tokens)
    assert seen.prompt_key is not None
    assert seen.messages is None
    assert seen.problem is None


@pytest.mark.parametrize("prompt", [None, [], [[]], [None], [True], {}, 5, [[1, "a"]]])
def test_what_is_no_prompt_is_told_as_none(prompt: Any) -> None:
    seen = told("/v1/completions", prompt=prompt)
    assert (seen.problem, seen.prompt_key) == ("no prompt", None)


def test_responses_take_a_text_or_items() -> None:
    plain = told("/v1/responses", input="hi", instructions="Be kind.")
    assert (plain.prompt_text, plain.prompt_chars) == ("system: Be kind.\nhi", 10)
    items = [
        user([{"type": "input_text", "text": "hi"}]),
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]
    seen = told("/v1/responses", input=items, max_output_tokens=5)
    assert seen.prompt_text == "user: hi\nfunction_call: f {}\nfunction_call_output: done"
    assert (seen.messages, seen.prompt_chars, seen.max_tokens) == (3, 2 + 4 + 4, 5)


def test_anthropic_messages_begin_with_their_system() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [*text("42"), image(b"x")]}
    use = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}
    seen = told(
        "/v1/messages",
        system=text("Be", "kind."),
        messages=[{"role": "assistant", "content": [use]}, user([result])],
        max_tokens=10,
    )
    assert seen.prompt_text is not None
    assert seen.prompt_text.startswith(
        'system: Be\nkind.\nassistant: f {"a":1}\nuser: 42\n[image_url '
    )
    # Be, kind., `f {"a":1}`, 42
    assert (seen.prompt_chars, seen.images, seen.messages) == (2 + 5 + 9 + 2, 1, 2)
    assert seen.options == ("system",)


@pytest.mark.parametrize(
    ("path", "fields", "chars"),
    [
        ("/v1/embeddings", {"input": ["ab", "c"]}, 3),
        ("/v1/embeddings", {"input": "ab"}, 2),
        ("/rerank", {"query": "q", "documents": ["d1", "d2"]}, 5),
        ("/score", {"text_1": "a", "text_2": ["b", "c"]}, 3),
        ("/api/chat", {"messages": [user("hi")]}, 2),
        ("/some/gateway", {"messages": [user("hi")]}, 2),
        (None, {"prompt": "hi"}, 2),
        (None, {"inputs": "hi"}, 2),
    ],
)
def test_whatever_a_models_weights_read_is_a_prompt(
    path: str | None, fields: dict[str, Any], chars: int
) -> None:
    seen = told(path, **fields)
    assert seen.prompt_key is not None
    assert seen.prompt_chars == chars


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "hi"}),
        ("/tokenize/", {"messages": [user("hi")]}),
        ("/v1/messages/count_tokens", {"messages": [user("hi")]}),
        ("/v1/load_lora_adapter", {"lora_name": "x"}),
        ("/feedback", {"text": "hi", "input": "x"}),
        ("/health", {}),
    ],
)
def test_what_no_model_reads_is_no_prompt_and_no_fault(path: str, fields: dict[str, Any]) -> None:
    seen = told(path, **fields)
    assert seen.prompt_key is None
    assert seen.problem is None
    assert seen.request_key is not None


def test_a_batch_of_chats_is_all_of_their_messages() -> None:
    seen = told("/v1/chat/completions/batch", messages=[[user("a")], [user("b"), user("c")]])
    assert (seen.messages, seen.prompt_chars) == (3, 3)
    assert seen.prompt_text == "user: a\nuser: b\nuser: c"


# --- blocks ------------------------------------------------------------------------------------


def chain(salt: bytes, whole_blocks: list[bytes]) -> bytes:
    """By hand: 8 bytes of BLAKE2b over the hash before and the block."""
    last = blake2b(salt, digest_size=8).digest()
    hashes = []
    for block in whole_blocks:
        last = blake2b(last + block, digest_size=8).digest()
        hashes.append(last)
    return b"".join(hashes)


def test_blocks_are_64_bytes_of_the_rendering_each_hashed_with_all_before_it() -> None:
    content = "x" * 100 + "\u00e9" * 20
    rendering = f"user: {content}\n".encode()  # 6 + 100 + 40 + 1 = 147: two whole blocks
    seen = told(model="m", messages=[user(content)])
    assert seen.prompt_blocks == chain(b'{"model":"m"}', [rendering[:64], rendering[64:128]])
    assert seen.block_tokens == 16


def test_a_prompt_shorter_than_a_block_has_none() -> None:
    # `user: ` + 57 + line's end = 64
    assert len(told(messages=[user("x" * 57)]).prompt_blocks) == 8
    assert told(messages=[user("x" * 56)]).prompt_blocks == b""
    assert told(messages=[user("x" * 56)]).block_tokens is None


def test_blocks_of_token_ids_are_16_ids() -> None:
    ids = list(range(40))
    seen = told("/v1/completions", prompt=ids)
    packed = struct.pack("<40q", *ids)
    assert seen.prompt_blocks == chain(b"{}", [packed[:128], packed[128:256]])
    assert seen.block_tokens == 16
    assert told("/v1/completions", prompt=[[*ids], ids]).prompt_blocks.startswith(
        seen.prompt_blocks
    )


def shared(one: Asked, other: Asked) -> int:
    """Blocks from the beginning that are equal."""
    pairs = zip(
        struct.iter_unpack("8s", one.prompt_blocks),
        struct.iter_unpack("8s", other.prompt_blocks),
        strict=False,
    )
    equal = [a == b for a, b in pairs]
    return equal.index(False) if False in equal else len(equal)


def test_equal_beginnings_have_equal_blocks_up_to_where_they_part() -> None:
    system = {"role": "system", "content": "s" * 400}  # 8 + 400 + 1 = 409: six blocks and 25 bytes
    one = told(messages=[system, user("a" * 200)])
    other = told(messages=[system, user("b" * 200)])
    assert shared(one, other) == 6
    assert one.prompt_blocks[-8:] != other.prompt_blocks[-8:]
    # the text after the difference is equal, its blocks are not
    tail = told(messages=[user("X" + "s" * 800)])
    assert shared(tail, told(messages=[user("Y" + "s" * 800)])) == 0


@pytest.mark.parametrize(
    "salt",
    [{"model": "b"}, {"cache_salt": "s"}, {"chat_template_kwargs": {"a": 1}}],
)
def test_what_keeps_caches_apart_keeps_blocks_apart(salt: dict[str, Any]) -> None:
    messages = [user("x" * 200)]
    plain = told(messages=messages, model="a")
    assert shared(plain, told(messages=messages, **{"model": "a", **salt})) == 0
    assert shared(plain, told(messages=messages, model="a", temperature=0.5)) == 3


def test_blocks_are_bounded() -> None:
    seen = told(messages=[user("x" * (64 * MOST_BLOCKS + 1000))])
    assert len(seen.prompt_blocks) == 8 * MOST_BLOCKS
    many = told("/v1/completions", prompt=["x" * 64 * 9000, "y" * 64 * 9000])
    assert len(many.prompt_blocks) == 8 * MOST_BLOCKS
    ids = told("/v1/completions", prompt=[7] * (16 * MOST_BLOCKS + 99))
    assert len(ids.prompt_blocks) == 8 * MOST_BLOCKS
    assert ids.prompt_tokens == 16 * MOST_BLOCKS + 99


def test_a_prompt_kept_at_the_server_is_read_before_the_input() -> None:
    kept = told("/v1/responses", input="hi", prompt={"id": "p1", "version": "2"})
    assert kept.prompt_chars == 2
    assert kept.prompt_key != told("/v1/responses", input="hi").prompt_key
    assert kept.prompt_key != told("/v1/responses", input="hi", prompt={"id": "p2"}).prompt_key
