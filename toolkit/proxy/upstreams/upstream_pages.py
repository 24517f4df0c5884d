"""What an upstream's own pages say: how busy it is, who it is, whether it made a token. No network, no clock.

Pages of a stranger: each reader says None to what it does not understand and raises nothing.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

import orjson

from toolkit.dialects import EngineNumbers, read_numbers
from toolkit.promtext import Page, read_page
from toolkit.proxy.upstreams.identity import Identity, as_text
from toolkit.proxy.upstreams.routing import Look

STEPS = "iteration_tokens_total_count"
"""vLLM's histogram of tokens a step: how many steps its engine made."""
LONGEST_VERSION = 200
PROBE_WORD = "ping"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What of a /metrics page is of use here."""

    numbers: EngineNumbers
    steps_total: float | None = None


def metrics(body: bytes, content_type: str) -> Metrics | None:
    """Read a page; None: it is no known engine's."""
    page = read_page(body.decode("utf-8", "replace"))
    numbers = read_numbers(page, content_type)
    return None if numbers is None else Metrics(numbers=numbers, steps_total=_steps(page))


def look(told: Metrics | None, known: Identity | None) -> Look:
    """What routing wants to know; all None where there is no page, though the server answers."""
    models = None if known is None or known.models is None else known.models
    names = None if models is None else frozenset(model.id for model in models)
    if told is None:
        return Look(models=names)
    numbers = told.numbers
    return Look(
        running=numbers.running,
        waiting=numbers.waiting,
        prompt_tokens_total=numbers.prompt_tokens_total,
        generation_tokens_total=numbers.generation_tokens_total,
        steps_total=told.steps_total,
        kv_cache_usage=numbers.kv_cache_usage,
        models=names,
    )


def version(body: bytes) -> str | None:
    """The word of vLLM's /version."""
    try:
        told = orjson.loads(body)
    except ValueError:
        return None
    word = told.get("version") if isinstance(told, dict) else None
    return word[:LONGEST_VERSION] if isinstance(word, str) and word else None


def probe(path: str, model: str) -> bytes:
    """The body that asks for one token."""
    asked: dict[str, object] = {"model": model, "max_tokens": 1, "temperature": 0}
    if path == CHAT:
        return orjson.dumps(asked | {"messages": [{"role": "user", "content": PROBE_WORD}]})
    return orjson.dumps(asked | {"prompt": PROBE_WORD})


def made_token(status: int, body: bytes) -> bool | None:
    """Whether that was answered; None: it says nothing about the engine, e.g., that too many ask, or no such model."""
    if status in (429, 503) or 300 <= status < 500:
        return None
    try:
        told = orjson.loads(body)
    except ValueError:
        return False
    return status == 200 and isinstance(told, dict) and bool(told.get("choices"))


def fingerprint(
    identities: Iterable[Identity], more: Iterable[str] = (), *, restarts_count: bool
) -> str:
    """One word for a set of servers, equal for equal ones wherever they are; `more` is what else must be equal.

    Without start times any number of equal servers is as one.
    """
    texts = {as_text(_lasting(each, restarts_count=restarts_count)) for each in identities}
    words = json.dumps([sorted(texts), sorted(more)])
    return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()


def _lasting(told: Identity, *, restarts_count: bool) -> Identity:
    return replace(told, tokens_total=None, started_at=told.started_at if restarts_count else None)


def _steps(page: Page) -> float | None:
    name = next((name for name in page.names() if name.endswith(STEPS)), None)
    return None if name is None else page.total(name)
