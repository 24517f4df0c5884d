"""What one request body asks for: any bytes -> Asked. It never raises; what it cannot tell is None, and it says why.

A body asks a model when a prompt is found in it and its path does not say otherwise: generation, and embeddings, scores
and reranks, which a model's weights read, too. `/tokenize` and its kin read text without a model and have no prompt.

Two requests have one prompt when a model reads the same, whatever the sampling. No chat template is rendered: the prompt to
read has the order and the texts of one, not its markers.
"""

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import isfinite
from typing import Any

import orjson

from toolkit.protocol.request_key import (
    KEY_BYTES,
    Canonical,
    Fields,
    Refused,
    body_key,
    canonical,
    request_key,
)
from toolkit.records import Asked

ASKING = {
    # the end of a path: one name for all paths that ask the same, whatever stands before it
    **{name: name for name in "chat/completions completions responses messages".split()},
    **{name: name for name in "completion infill invocations api/chat api/generate".split()},
    **{name: name for name in "embeddings embed pooling classify score rerank".split()},
    # TGI: a stream by its path is the same answer, viewed otherwise
    "generate": "generate",
    "generate_stream": "generate",
    "chat/completions/batch": "chat/completions/batch",
}
NOT_ASKING = frozenset(
    "tokenize detokenize count_tokens apply-template load_lora_adapter unload_lora_adapter render".split()
)
LIMITS = "max_completion_tokens max_tokens max_output_tokens max_new_tokens num_predict".split()
"""Names of one limit: OpenAI's newer and older one, Responses, TGI and SGLang, Ollama. The first that is given counts."""
INNER = ("parameters", "sampling_params", "options")
"""Where TGI, SGLang and Ollama keep what OpenAI keeps at the top."""
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

CALLING = frozenset(("tool_calls", "function_call", "type"))
"""A message without any of these calls no tool."""
RARE = frozenset((*TOOLS, *BESIDE, *BEFORE))
SALTED = frozenset((*SALTS, *BESIDE))

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
REMEMBERED_PATHS = 256
HASH_BYTES = 8
MOST_HASHED = 4096
"""Parts that are no text, of which each is told from the others."""
MAX_NESTED_PARTS = 8
"""Levels of parts in a tool's result; what is deeper counts as one that is not text."""

OWN = frozenset({*"model stream temperature top_p n seed".split(), *LIMITS, *INNER, *PROMPTS})
"""Fields that have a place of their own in Asked."""
MAX_INTEGER = 2**63 - 1
"""A database column and vLLM's own check end here."""
MOST_OPTIONS = 64
NAME_CHARS = 256
"""What a client may fill a name with; longer ones are cut."""


def asked(
    body: bytes,
    *,
    path: str | None = None,
    keep_text: bool = False,
    blocks: bool = True,
    read: Canonical | Refused | None = None,
) -> Asked:
    """Read a body that was sent to a path; None: it is not known. `keep_text`: keep the prompt to read. `blocks`: hash its blocks.

    `read`: what `canonical` made of it, where that was asked before.
    """
    exact = body_key(body)
    if read is None:
        read = canonical(body)
    problem = read.reason if isinstance(read, Refused) else None
    fields = read.fields
    if fields is None:
        return Asked(exact_key=exact, problem=problem, body_bytes=len(body))
    if path is None:
        # what its fields look like
        looks = ("messages", "chat/completions"), ("prompt", "completions"), ("input", "responses")
        where = next((name for field, name in looks if field in fields), "generate")
    else:
        where = endpoint(path)
    key = request_key(read.form, endpoint=where) if isinstance(read, Canonical) else None
    told: dict[str, Any] = {}
    is_asking = where in ASKING
    if is_asking or where.rstrip("/").rpartition("/")[2] not in NOT_ASKING:
        try:
            found = _Prompt(fields, anywhere=is_asking)
            if found.texts or found.ids or found.images:
                ids_count = sum(map(len, found.ids))
                if found.ids_text is not None:
                    ids_count = found.ids_text.count(b",") + 1
                hashes = found.blocks(fields) if blocks else b""
                told = {
                    "prompt_key": blake2b(
                        b"prompt " + _json(found.read), digest_size=KEY_BYTES
                    ).hexdigest(),
                    "messages": found.messages,
                    "images": found.images,
                    "prompt_chars": None if found.ids else found.chars,
                    "prompt_tokens": ids_count if found.ids and not found.texts else None,
                    "prompt_text": found.text() if keep_text else None,
                    "prompt_blocks": hashes,
                    "block_tokens": float(BLOCK_IDS) if hashes else None,
                }
        except RecursionError:
            problem = problem or "nested too deep"
    if is_asking and not told:
        problem = problem or "no prompt"
    every = fields
    if not fields.keys().isdisjoint(INNER):
        inner: Fields = next((fields[name] for name in INNER if type(fields.get(name)) is dict), {})
        every = {**inner, **fields}
    model, stream = every.get("model"), every.get("stream")
    if path is not None and path.endswith("generate_stream"):
        stream = True
    limits = [
        limit for name in LIMITS if name in every and (limit := _integer(every[name])) is not None
    ]
    options = [_clean(name[:NAME_CHARS]) for name in every.keys() - OWN if every[name] is not None]
    return Asked(
        exact_key=exact,
        request_key=key,
        problem=problem,
        body_bytes=len(body),
        model=_clean(model[:NAME_CHARS]) if type(model) is str else None,
        stream=stream if type(stream) is bool else None,
        max_tokens=limits[0] if limits else None,
        temperature=_number(every.get("temperature")),
        top_p=_number(every.get("top_p")),
        n=_integer(every.get("n")),
        seed=_integer(every.get("seed")),
        options=tuple(sorted(options)[:MOST_OPTIONS]),
        **told,
    )


@lru_cache(REMEMBERED_PATHS)
def endpoint(path: str) -> str:
    """What a path asks, by one name whatever stands before it; the path itself where that is not known."""
    parts = path.rstrip("/").rsplit("/", 3)
    names = ("/".join(parts[-count:]) for count in (3, 2, 1))
    return next((ASKING[name] for name in names if name in ASKING), path)


@lru_cache(REMEMBERED)
def _chain(salt: bytes, size: int, rows: tuple[bytes, ...]) -> bytes:
    """Hashes of the rows' whole blocks of `size` bytes, each with the one before it, the first with the salt's."""
    last = blake2b(salt, digest_size=HASH_BYTES).digest()
    hashes: list[bytes] = []
    for row in rows:
        for start in range(0, len(row) - size + 1, size):
            if len(hashes) == MOST_BLOCKS:
                break
            last = blake2b(last + row[start : start + size], digest_size=HASH_BYTES).digest()
            hashes.append(last)
    return b"".join(hashes)


# --- the prompt ------------------------------------------------------------------------------------


class _Prompt:
    """What a model reads of a body, found where its prompt stands and taken in piece by piece."""

    def __init__(self, fields: Fields, *, anywhere: bool) -> None:
        """Not `anywhere`: only where nothing else stands under that name, `messages` and `prompt`."""
        self.read: Fields = {}
        """Everything that it reads: its canonical JSON is equal exactly when that is equal."""
        self.texts: list[str] = []
        """`role: text` lines of a chat, tools first; the prompts of a completion as they are."""
        self.ids: list[list[int]] = []
        """Prompts that came as token ids; of very many, the first that blocks are made of."""
        self.ids_text: bytes | None = None
        """All of them, as compact JSON, where they are very many."""
        self.chars = 0
        """Of all texts: contents, tool calls; not of roles, nor of what tools there are."""
        self.messages: int | None = None
        self.images = 0
        """Parts that are not text."""
        # most bodies have none of these 30 names: one look for all of them, 2 us less than one for each
        if not RARE.isdisjoint(fields):
            for name in (*TOOLS, *BESIDE):
                if fields.get(name) is not None:
                    # templates get these as they were written: the order of a tool's keys is read, too
                    self.read[name] = _json(fields[name], sort=False).decode()
            self.texts += [f"{name}: {self.read[name]}" for name in TOOLS if fields.get(name)]
            for name in BEFORE:
                if fields.get(name) is not None:
                    self.read[name] = self.take_content("system", fields[name])
        if type(fields.get("prompt")) is dict:
            # Responses: one that is kept at the server, by its name
            self.read["prompt"] = fields["prompt"]
        for name in PROMPTS if anywhere else PROMPTS[:2]:
            value = fields.get(name)
            if value is None:
                continue
            kinds = set(map(type, value)) if type(value) is list else set()
            if dict in kinds or (name == "messages" and not kinds.isdisjoint(READABLE)):
                self.read[name] = self.take_chat(value, is_batch=list in kinds)
                break
            if self.take_prompts(value):
                self.read[name] = value
                break
        else:
            for name in PAIRS if anywhere else ():
                if self.take_prompts(fields.get(name)):
                    self.read[name] = fields[name]
        if "prompt_embeds" in self.read:
            self.images += 1

    def text(self) -> str:
        """All of it to read."""
        rows = "\n".join(" ".join(map(str, row)) for row in self.ids)
        if self.ids_text is not None:
            rows = self.ids_text.strip(b"[]").replace(b"],[", b"\n").replace(b",", b" ").decode()
        return _clean("\n".join((*self.texts, *([rows] if self.ids else ()))))

    def blocks(self, fields: Fields) -> bytes:
        """Chain hashes of its whole blocks: each is of its block and of all before it.

        Several prompts in one request are one chain, block by block, so that a later one is only shared with all before it.
        """
        salt = _json({n: fields[n] for n in SALTED.intersection(fields) if fields[n] is not None})
        rows = []
        if self.ids:
            size = 8 * BLOCK_IDS
            for row in self.ids:
                ids = row[: BLOCK_IDS * MOST_BLOCKS]
                try:
                    rows.append(struct.pack(f"<{len(ids)}q", *ids))
                except struct.error:
                    # no ids are so large
                    rows.append(b"")
        else:
            size = BLOCK_BYTES
            is_chat = self.messages is not None
            texts = ["\n".join([*self.texts, ""])] if is_chat else self.texts
            # a character has 4 bytes at most; the rest is too short for a block
            rows = [
                text[: BLOCK_BYTES * MOST_BLOCKS].encode("utf-8", "replace")
                for text in texts
                if len(text) >= BLOCK_BYTES // 4
            ]
        chain = _chain if sum(map(len, rows)) <= REMEMBERED_BYTES else _chain.__wrapped__
        return chain(salt, size, tuple(rows))

    def take_prompts(self, value: Any) -> bool:
        """A completion's prompt: a text, several, token ids, or several rows of them; return whether it is any."""
        if type(value) is orjson.Fragment:
            text = self.ids_text = orjson.dumps(value)
            first = text[: BLOCK_IDS * MOST_BLOCKS * ID_BYTES]
            if len(first) < len(text):
                end = b"]]" if text.startswith(b"[[") else b"]"
                first = first[: first.rindex(b",")].rstrip(b"]") + end
            value = orjson.loads(first)
        rows: list[Any] = value if type(value) is list else [value] if type(value) is str else []
        if set(map(type, rows)) == {int}:
            rows = [rows]
        before = len(self.texts), len(self.ids)
        for row in rows:
            if type(row) is str:
                self.texts.append(row)
                self.chars += len(row)
            elif type(row) is list and set(map(type, row)) == {int}:
                self.ids.append(row)
        return before != (len(self.texts), len(self.ids))

    def take_chat(self, value: list[Any], *, is_batch: bool) -> list[Any]:
        """Take the messages of a chat, or of vLLM's `/v1/chat/completions/batch`; return them as the model reads them."""
        if is_batch:
            chats = [
                self.take_chat(one if type(one) is list else [one], is_batch=False) for one in value
            ]
            self.messages = sum(map(len, chats))
            return chats
        self.messages = len(value)
        told: list[Any] = []
        for one in value:
            if type(one) is dict:
                role = one.get("role") or one.get("type")
                role = role if type(role) is str else "?"
                # Responses: what a tool gave stands in `output`
                where = "content" if one.get("content") is not None else "output"
                content = one.get(where)
                calls = () if CALLING.isdisjoint(one) else _calls(one)
                if calls or not (content is None or type(content) is str):
                    folded = self.take_content(role, content, calls)
                    told.append(one if folded is content else {**one, where: folded})
                    continue
                self.texts.append(f"{role}: {content or ''}")
                self.chars += len(content or "")
            elif type(one) is list:
                told.append(self.take_content("user", one))
                continue
            elif type(one) is str:
                self.texts.append(f"user: {one}")
                self.chars += len(one)
            else:
                self.images += 1
            told.append(one)
        return told

    def take_content(self, role: str, content: Any, calls: Sequence[str] = ()) -> Any:
        """Take a message's content; return it as the model reads it: texts in parts are texts joined by a line's end.

        So vLLM (0.32, renderers/chat_utils.py) hands them to a template that wants a text.
        """
        pieces: list[str] = []
        parts = content if type(content) is list else [] if content is None else [content]
        is_plain = type(content) is list and bool(content)
        for part in parts:
            is_plain = self._part(part, pieces, 0) and is_plain
        self.chars += sum(map(len, calls))
        self.texts.append(f"{role}: " + "\n".join((*pieces, *calls)))
        return "\n".join(pieces) if is_plain else content

    def _part(self, part: Any, pieces: list[str], level: int) -> bool:
        """Take one part of a content; return whether it is nothing but a text."""
        if type(part) is str:
            self.chars += len(part)
            pieces.append(part)
            return True
        if type(part) is dict:
            kind = part.get("type")
            text = part.get(kind if kind in ("refusal", "thinking") else "text")
            is_text = kind is None or (type(kind) is str and kind in TEXT_PARTS)
            if type(text) is str and is_text:
                self.chars += len(text)
                pieces.append(text)
                return kind is not None and part.keys() <= PLAIN_PART
            if kind == "tool_result" and level < MAX_NESTED_PARTS:
                inner = part.get("content")
                for one in inner if type(inner) is list else [] if inner is None else [inner]:
                    self._part(one, pieces, level + 1)
                return False
            if kind == "tool_use":
                call = _call(part.get("name"), part.get("input"))
                self.chars += len(call)
                pieces.append(call)
                return False
        self.images += 1
        if self.images > MOST_HASHED:
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


# --- values --------------------------------------------------------------------------------------


def _json(value: Any, *, sort: bool = True) -> bytes:
    """Compact JSON of anything that either reader read, keys sorted or as they came."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort else 0)
    except TypeError:
        # half a surrogate pair, a number that is none, or 255 levels
        return json.dumps(value, separators=(",", ":"), sort_keys=sort).encode()


def _integer(value: Any) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) <= MAX_INTEGER else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and isfinite(value) else None


def _clean(text: str) -> str:
    """Text that can be written: half a surrogate pair, which JSON may hold, cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
