"""Read the pages of one look into plain facts about the host. No network, no clock."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from toolkit.metrics.dialects import CacheNumbers, EngineNumbers, read_cache, read_numbers
from toolkit.metrics.names import GATEWAYS
from toolkit.metrics.parser import MetricsPage, read_page
from toolkit.records import Reading
from toolkit.scout import answers as pages
from toolkit.scout.answers import PageAnswer, Scrape

OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""`owned_by` of a model card -> engine."""


LONGEST_TEXT = 4096
"""Characters: as long as a path may be."""
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One entry of /v1/models."""

    id: str
    root: str | None = None
    parent: str | None = None
    owner: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvidence:
    """What one look's pages say, each on its own; None and empty where a page says nothing."""

    look: Scrape
    page: MetricsPage | None
    """The metrics page, when it holds at least one readable sample."""
    numbers: EngineNumbers | None
    readings: tuple[Reading, ...]
    cards: tuple[Card, ...]
    about: Mapping[str, Any]
    """/version, /info, /server_info, /props and /tokenize, merged."""
    cache: CacheNumbers | None = None
    """Of a proxy in front of the engine, where its metrics are on the same page."""

    gateway: str | None = None
    """Which one answers in the engines' place, one of GATEWAYS."""

    @property
    def engine(self) -> str | None:
        """The engine's name, from its metrics, its model cards or its version page."""
        if self.gateway:
            return self.gateway
        if self.numbers:
            return self.numbers.engine
        owners = [OWNERS[card.owner] for card in self.cards if card.owner in OWNERS]
        if owners:
            return owners[0]
        # vLLM alone answers /version with this one key (Rust front end: with one more)
        return "vllm" if set(self.about) - {"rust_frontend_version"} == {"version"} else None

    @property
    def metrics(self) -> PageAnswer:
        """The answer that holds the metrics, or the reason for their absence."""
        other = self.look.answer(pages.TRTLLM_METRICS)
        return other if other.ok else self.look.answer(pages.METRICS)


def examine(look: Scrape) -> HostEvidence:
    """Read all pages of a look; never raises, whatever a host wrote."""
    page, numbers = _metrics(look)
    gateway = pages.gateway(look.answers)
    if numbers is not None and numbers.engine in GATEWAYS:
        gateway = numbers.engine
    if gateway == "vllm-router":
        # it passes these on to an engine, to another one each time: two looks would tell of restarts that were none
        return HostEvidence(
            look=look,
            page=None,
            numbers=None,
            readings=(),
            cards=_cards(look),
            about={},
            gateway=gateway,
        )
    readings = page.readings() if page else ()  # reads every line: only now are the bad ones known
    return HostEvidence(
        look=look,
        page=page,
        numbers=numbers,
        readings=readings,
        cards=_cards(look),
        about=_about(look),
        cache=read_cache(page) if page else None,
        gateway=gateway,
    )


def numbers_only(evidence: HostEvidence) -> HostEvidence:
    """What the next look is compared with, without the pages: a hostile host's take 60 MB."""
    answers = {path: replace(answer, body=b"") for path, answer in evidence.look.answers.items()}
    look = replace(evidence.look, answers=answers)
    return replace(evidence, look=look, page=None, readings=(), cards=(), about={})


def _metrics(look: Scrape) -> tuple[MetricsPage | None, EngineNumbers | None]:
    for path in (pages.TRTLLM_METRICS, pages.METRICS):
        answer = look.answer(path)
        if answer.ok:
            # -sig: a byte order mark would spoil the first line
            page = read_page(answer.body.decode("utf-8-sig", "replace"))
            if page.has_samples:
                return page, read_numbers(page, answer.content_type)
    return None, None


def _cards(look: Scrape) -> tuple[Card, ...]:
    data = _json(look.answer(pages.MODELS)).get("data")
    items = data if isinstance(data, list) else []
    return tuple(_card(item) for item in items if isinstance(item, dict) and text(item.get("id")))


def _card(item: Mapping[str, Any]) -> Card:
    return Card(
        id=text(item["id"]) or "",
        root=text(item.get("root")),
        parent=text(item.get("parent")),
        owner=text(item.get("owned_by")),
        max_model_len=count(item.get("max_model_len")),
    )


def _about(look: Scrape) -> dict[str, Any]:
    about: dict[str, Any] = {}
    for path in (pages.TOKENIZE, *pages.ABOUT.values(), pages.VERSION):
        about |= _json(look.answer(path))
    return about


def _json(answer: PageAnswer) -> dict[str, Any]:
    """Read a JSON object; an empty one for anything else (a host may answer HTML, or nonsense)."""
    if not answer.ok:
        return {}
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def text(value: object) -> str | None:
    """A string from a host as it is, escape sequences and all: whoever shows it cleans it."""
    if not isinstance(value, str) or not value:
        return None
    # half a character of JSON's fits neither the store nor a screen
    return _HALVES.sub("\ufffd", value[:LONGEST_TEXT])


def count(value: object) -> int | None:
    """A positive whole number from a host, small enough for SQLite's 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
        return value
    return None
