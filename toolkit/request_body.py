"""What one request body asks for: any bytes -> Asked. It never raises; what it cannot tell is None, and it says why.

A body asks a model when a prompt is found in it and its path does not say otherwise: generation, and embeddings, scores
and reranks, which a model's weights read, too. `/tokenize` and its kin read text without a model and have no prompt.
"""

from hashlib import blake2b
from math import isfinite
from typing import Any

from toolkit import request_prompt
from toolkit.records import Asked
from toolkit.request_key import (
    KEY_BYTES,
    Canonical,
    Fields,
    Refused,
    body_key,
    canonical,
    request_key,
)

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
_INNER = frozenset(INNER)
OWN = frozenset(
    {*"model stream temperature top_p n seed".split(), *LIMITS, *INNER, *request_prompt.PROMPTS}
)
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
    read: Canonical | Refused | None = None,
) -> Asked:
    """Read a body that was sent to a path; None: it is not known. `keep_text`: keep the prompt to read.

    `read`: what `canonical` made of it, where that was asked before.
    """
    exact = body_key(body)
    if read is None:
        read = canonical(body)
    problem = read.reason if isinstance(read, Refused) else None
    if read.fields is None:
        return Asked(exact_key=exact, problem=problem, body_bytes=len(body))
    fields = read.fields
    where = endpoint(path, fields)
    key = request_key(read.form, endpoint=where) if isinstance(read, Canonical) else None
    try:
        told = _prompt(fields, where, path, keep_text=keep_text)
    except RecursionError:
        told = {}
        problem = problem or "nested too deep"
    if where in ASKING and not told:
        problem = problem or "no prompt"
    return Asked(
        exact_key=exact,
        request_key=key,
        problem=problem,
        body_bytes=len(body),
        **_settings(fields, path),
        **told,
    )


def endpoint(path: str | None, fields: Fields) -> str:
    """What a path asks, by one name whatever stands before it; of a body without a path, what its fields look like."""
    if path is None:
        looks = ("messages", "chat/completions"), ("prompt", "completions"), ("input", "responses")
        return next((name for field, name in looks if field in fields), "generate")
    parts = path.rstrip("/").rsplit("/", 3)
    for count in (3, 2, 1):
        name = ASKING.get("/".join(parts[-count:]))
        if name is not None:
            return name
    return path


def _prompt(fields: Fields, where: str, path: str | None, *, keep_text: bool) -> dict[str, Any]:
    """The fields of Asked that tell the prompt; none of them where there is none."""
    if path is not None and path.rstrip("/").rpartition("/")[2] in NOT_ASKING:
        return {}
    found = request_prompt.prompt(fields, anywhere=path is None or where in ASKING)
    if found is None:
        return {}
    hashes = request_prompt.blocks(found, fields)
    ids = found.ids
    return {
        "prompt_key": blake2b(b"prompt " + found.read, digest_size=KEY_BYTES).hexdigest(),
        "messages": found.messages,
        "images": found.images,
        "prompt_chars": None if ids else found.chars,
        "prompt_tokens": found.id_count if ids and not found.texts else None,
        "prompt_text": _clean(found.rendered()) if keep_text else None,
        "prompt_blocks": hashes,
        "block_tokens": float(request_prompt.BLOCK_IDS) if hashes else None,
    }


def _settings(fields: Fields, path: str | None) -> dict[str, Any]:
    """The fields of Asked that tell how to answer."""
    every = fields if _INNER.isdisjoint(fields) else _with_inner(fields)
    stream = every.get("stream")
    if path is not None and path.endswith("generate_stream"):
        stream = True
    model = every.get("model")
    names = (
        _clean(name[:NAME_CHARS]) for name in every if name not in OWN and every[name] is not None
    )
    return {
        "model": _clean(model[:NAME_CHARS]) if type(model) is str else None,
        "stream": stream if type(stream) is bool else None,
        "max_tokens": _limit(every),
        "temperature": _number(every.get("temperature")),
        "top_p": _number(every.get("top_p")),
        "n": _integer(every.get("n")),
        "seed": _integer(every.get("seed")),
        "options": tuple(sorted(names)[:MOST_OPTIONS]),
    }


def _with_inner(fields: Fields) -> Fields:
    """The fields with those that stand one level below."""
    inner: Fields = next((fields[name] for name in INNER if type(fields.get(name)) is dict), {})
    return {**inner, **fields}


def _limit(fields: Fields) -> int | None:
    """The first limit that is an integer, whatever it is called."""
    for name in LIMITS:
        if name in fields and (limit := _integer(fields[name])) is not None:
            return limit
    return None


def _integer(value: Any) -> int | None:
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) <= MAX_INTEGER else None


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and isfinite(value) else None


def _clean(text: str) -> str:
    """Text that can be written: half a surrogate pair, which JSON may hold, cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
