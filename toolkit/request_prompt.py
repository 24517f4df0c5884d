"""What a model reads of a request: fields of any chat, completion, Responses, Anthropic or TGI body -> its prompt.

Two requests have one prompt when a model reads the same, whatever the sampling. It holds texts; who keeps what is for
its caller to decide. It renders no chat template: `rendered` has the order and the texts of one, not its markers.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import orjson

from toolkit.request_key import Fields

PROMPTS = ("messages", "prompt", "input", "inputs", "text", "input_ids")
"""Where a prompt may stand: OpenAI and Anthropic, completions, Responses and embeddings, TGI, SGLang. The first counts."""
PAIRS = "query queries documents items text_1 text_2 data_1 data_2".split()
"""Where the texts of a score or a rerank stand."""
BEFORE = ("system", "instructions")
"""Texts that stand in front: Anthropic, Responses."""
TOOLS = ("tools", "functions")
BESIDE = (
    "suffix prompt_embeds chat_template chat_template_kwargs documents reasoning_effort add_generation_prompt"
    " continue_final_message add_special_tokens truncate_prompt_tokens truncation_side mm_processor_kwargs media_io_kwargs"
    " reasoning thinking previous_response_id previous_input_messages image_data audio_data"
).split()
"""Whatever else changes what is read (vLLM 0.32, SGLang): names of templates and of what they are given.

vLLM hands `response_format` and `tool_choice` to the template, too; next to none reads them, so they count as sampling.
"""
SALTS = ("model", "cache_salt", "lora_path", "lora_request")
"""Equal beginnings under another one of these share no KV cache."""

_CALLING = frozenset(("tool_calls", "function_call", "type"))
"""A message without any of these calls no tool."""
_READ_BESIDE = (*TOOLS, *BESIDE)
_RARE = frozenset((*_READ_BESIDE, *BEFORE))
_SALTED = frozenset((*SALTS, *BESIDE))

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
READABLE = frozenset({dict, list, str})
PLAIN_PART = frozenset({"type", "text", "cache_control", "annotations", "prompt_cache_breakpoint"})
"""Fields of a part that holds nothing but a text."""

BLOCK_BYTES = 64
"""Taken for 16 tokens, vLLM's usual block; 3.5 to 4.5 bytes of English are one token."""
BLOCK_IDS = 16
MOST_BLOCKS = 16_384
"""Of one prompt: the first MiB of text, or 262,144 token ids."""
ID_BYTES = 8
"""Of very many token ids so many bytes each are read for blocks; an id and its comma take 6."""
REMEMBERED, REMEMBERED_BYTES = 2048, 4096
"""So many of the last short prompts' chains are kept, 8 MB: bodies differ by a seed or a user more often than prompts do."""
HASH_BYTES = 8
MOST_HASHED = 4096
"""Parts that are no text, of which each is told from the others."""
MAX_NESTED_PARTS = 8
"""Levels of parts in a tool's result; what is deeper counts as one that is not text."""


@dataclass(slots=True)
class Prompt:
    """What a model reads."""

    read: bytes = b""
    """Canonical JSON of everything that it reads: equal exactly when that is equal."""
    texts: list[str] = field(default_factory=list)
    """`role: text` lines of a chat, tools first; the prompts of a completion as they are."""
    ids: list[list[int]] = field(default_factory=list)
    """Prompts that came as token ids; of very many, the first that blocks are made of."""
    ids_text: bytes | None = None
    """All of them, as compact JSON, where they are very many."""
    chars: int = 0
    """Of all texts: contents, tool calls; not of roles, nor of what tools there are."""
    messages: int | None = None
    images: int = 0
    """Parts that are not text."""

    def rendered(self) -> str:
        """All of it to read, an image as a hash of its data."""
        if self.ids_text is not None:
            rows = self.ids_text.strip(b"[]").replace(b"],[", b"\n").replace(b",", b" ")
            return "\n".join((*self.texts, rows.decode()))
        return "\n".join((*self.texts, *(" ".join(map(str, row)) for row in self.ids)))

    @property
    def id_count(self) -> int:
        """How many token ids there are."""
        if self.ids_text is not None:
            return self.ids_text.count(b",") + 1
        return sum(map(len, self.ids))


def prompt(fields: Fields, *, anywhere: bool) -> Prompt | None:
    """Find the prompt of a body; None: it has none that can be read.

    Not `anywhere`: only where nothing else stands under that name, `messages` and `prompt`.
    """
    found = Prompt()
    read: Fields = {}
    # most bodies have none of these 30 names: one look for all of them, 2 us less than one for each
    if not _RARE.isdisjoint(fields):
        _take_rare(found, fields, read)
    if type(fields.get("prompt")) is dict:
        # Responses: one that is kept at the server, by its name
        read["prompt"] = fields["prompt"]
    names = PROMPTS if anywhere else PROMPTS[:2]
    if not _take_main(found, fields, read, names) and anywhere:
        _take_pairs(found, fields, read)
    if "prompt_embeds" in read:
        found.images += 1
    if not (found.texts or found.ids or found.images):
        return None
    found.read = _json(read)
    return found


def _take_rare(found: Prompt, fields: Fields, read: Fields) -> None:
    """Take what stands beside and in front of the prompt."""
    # templates get these as they were written: the order of a tool's keys is read, too
    read.update(
        {name: _written(fields[name]) for name in _READ_BESIDE if fields.get(name) is not None}
    )
    for name in TOOLS:
        if fields.get(name):
            found.texts.append(f"{name}: {_written(fields[name])}")
    for name in BEFORE:
        if fields.get(name) is not None:
            read[name] = _content(found, "system", fields[name])


def blocks(found: Prompt, fields: Fields) -> bytes:
    """Chain hashes of a prompt's whole blocks: each is of its block and of all before it.

    Several prompts in one request are one chain, block by block, so that a later one is only shared with all before it.
    """
    names = _SALTED.intersection(fields)
    salt = {name: fields[name] for name in names if fields[name] is not None}
    first = blake2b(_json(salt), digest_size=HASH_BYTES).digest()
    if found.ids:
        size = 8 * BLOCK_IDS
        rows = [_packed(row[: BLOCK_IDS * MOST_BLOCKS]) for row in found.ids]
    else:
        size = BLOCK_BYTES
        is_chat = found.messages is not None
        rows = list(map(_utf8, ["\n".join([*found.texts, ""])] if is_chat else found.texts))
    chain = _chain if sum(map(len, rows)) <= REMEMBERED_BYTES else _chain.__wrapped__
    return chain(first, size, tuple(rows))


@lru_cache(REMEMBERED)
def _chain(first: bytes, size: int, rows: tuple[bytes, ...]) -> bytes:
    """Hashes of the rows' whole blocks of `size` bytes, each with the one before it."""
    last = first
    hashes: list[bytes] = []
    for row in rows:
        for start in range(0, len(row) - size + 1, size):
            if len(hashes) == MOST_BLOCKS:
                break
            last = blake2b(last + row[start : start + size], digest_size=HASH_BYTES).digest()
            hashes.append(last)
    return b"".join(hashes)


def _take_main(found: Prompt, fields: Fields, read: Fields, names: Sequence[str]) -> bool:
    """Take what stands under the first name that holds a prompt; return whether one does."""
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        kinds = set(map(type, value)) if type(value) is list else set()
        if dict in kinds or (name == "messages" and not kinds.isdisjoint(READABLE)):
            read[name] = _chat(found, value, is_batch=list in kinds)
            return True
        if _take_prompts(found, value):
            read[name] = value
            return True
    return False


def _chat(found: Prompt, value: list[Any], *, is_batch: bool) -> list[Any]:
    """Take the messages of a chat, or of vLLM's `/v1/chat/completions/batch`; return them as the model reads them."""
    chats = [one if type(one) is list else [one] for one in value] if is_batch else [value]
    found.messages = sum(map(len, chats))
    told = [[_message(found, one) for one in chat] for chat in chats]
    return told if is_batch else told[0]


def _take_prompts(found: Prompt, value: Any) -> bool:
    """A completion's prompt: a text, several, token ids, or several rows of them; return whether it is any."""
    if type(value) is orjson.Fragment:
        text = found.ids_text = orjson.dumps(value)
        first = text[: BLOCK_IDS * MOST_BLOCKS * ID_BYTES]
        if len(first) < len(text):
            first = first[: first.rindex(b",")].rstrip(b"]") + b"]" * (1 + text.startswith(b"[["))
        value = orjson.loads(first)
    rows: list[Any] = value if type(value) is list else [value] if type(value) is str else []
    if set(map(type, rows)) == {int}:
        rows = [rows]
    before = len(found.texts), len(found.ids)
    for row in rows:
        if type(row) is str:
            found.texts.append(row)
            found.chars += len(row)
        elif type(row) is list and set(map(type, row)) == {int}:
            found.ids.append(row)
    return before != (len(found.texts), len(found.ids))


def _take_pairs(found: Prompt, fields: Fields, read: Fields) -> None:
    """A score's or a rerank's texts."""
    for name in PAIRS:
        if _take_prompts(found, fields.get(name)):
            read[name] = fields[name]


# --- messages ----------------------------------------------------------------------------------


def _message(found: Prompt, one: Any) -> Any:
    """Take one message; return it as the model reads it."""
    if type(one) is str:
        found.texts.append(f"user: {one}")
        found.chars += len(one)
        return one
    if type(one) is not dict:
        if type(one) is list:
            return _content(found, "user", one)
        found.images += 1
        return one
    role = one.get("role") or one.get("type")
    role = role if type(role) is str else "?"
    # Responses: what a tool gave stands in `output`
    where = "content" if one.get("content") is not None else "output"
    content = one.get(where)
    calls = () if _CALLING.isdisjoint(one) else _calls(one)
    if type(content) is str and not calls:
        found.texts.append(f"{role}: {content}")
        found.chars += len(content)
        return one
    folded = _content(found, role, content, calls)
    return one if folded is content else {**one, where: folded}


def _content(found: Prompt, role: str, content: Any, calls: Sequence[str] = ()) -> Any:
    """Take a message's content; return it as the model reads it: texts in parts are texts joined by a line's end.

    So vLLM (0.32, renderers/chat_utils.py) hands them to a template that wants a text.
    """
    pieces: list[str] = []
    parts = content if type(content) is list else [] if content is None else [content]
    plain = [_part(found, part, pieces, 0) for part in parts]
    found.chars += sum(map(len, calls))
    found.texts.append(f"{role}: {chr(10).join((*pieces, *calls))}")
    return "\n".join(pieces) if type(content) is list and plain and all(plain) else content


def _part(found: Prompt, part: Any, pieces: list[str], level: int) -> bool:
    """Take one part of a content; return whether it is nothing but a text."""
    if type(part) is str:
        found.chars += len(part)
        pieces.append(part)
        return True
    if type(part) is dict:
        kind = part.get("type")
        text = part.get(kind if kind in ("refusal", "thinking") else "text")
        is_text = kind is None or (type(kind) is str and kind in TEXT_PARTS)
        if type(text) is str and is_text:
            found.chars += len(text)
            pieces.append(text)
            return kind is not None and part.keys() <= PLAIN_PART
        if kind == "tool_result" and level < MAX_NESTED_PARTS:
            inner = part.get("content")
            for one in inner if type(inner) is list else [] if inner is None else [inner]:
                _part(found, one, pieces, level + 1)
            return False
        if kind == "tool_use":
            call = _call(part.get("name"), part.get("input"))
            found.chars += len(call)
            pieces.append(call)
            return False
    found.images += 1
    if found.images > MOST_HASHED:
        pieces.append("[part]")
        return False
    name = part["type"] if type(part) is dict and type(part.get("type")) is str else "part"
    pieces.append(f"[{name} {blake2b(_json(part), digest_size=HASH_BYTES).hexdigest()}]")
    return False


def _calls(one: Fields) -> list[str]:
    """The calls of tools in a message, or that it is (Responses)."""
    calls = one.get("tool_calls")
    told = [
        call.get("function")
        for call in (calls if type(calls) is list else ())
        if type(call) is dict
    ]
    told.append(one.get("function_call"))
    if one.get("type") == "function_call":
        told.append(one)
    return [_call(call.get("name"), call.get("arguments")) for call in told if type(call) is dict]


def _call(name: Any, arguments: Any) -> str:
    said = arguments if type(arguments) is str else _json(arguments).decode()
    return f"{name if type(name) is str else '?'} {said}"


# --- bytes -------------------------------------------------------------------------------------


def _written(value: Any) -> str:
    """Compact JSON with keys as they came."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, separators=(",", ":"))


def _json(value: Any) -> bytes:
    """Compact JSON with sorted keys, of anything that either reader read."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        # half a surrogate pair, a number that is none, or 255 levels
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _utf8(text: str) -> bytes:
    return text[: BLOCK_BYTES * MOST_BLOCKS].encode("utf-8", "replace")


def _packed(ids: list[int]) -> bytes:
    """8 bytes for each id; nothing for ids that are none."""
    try:
        return struct.pack(f"<{len(ids)}q", *ids)
    except struct.error:
        return b""
