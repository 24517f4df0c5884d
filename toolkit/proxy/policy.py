"""May a request's answer come from the cache, and may it be stored: settings, the team's policy, the body, the client's wishes.

A stored answer is a valid sample of what the model may say, not a promise to say it again: vLLM states no reproducibility, even at
temperature 0. The policies are how much of that is wanted: `all`, whatever was asked; `declared`, only what says that one answer is
as good as another; `off`. A client can only be stricter. It counts nothing and reads no clock.
"""

from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from toolkit.proxy.headers import Fwd, Wishes
from toolkit.proxy.settings import CacheSetting, TeamSetting
from toolkit.request_key import Fields

Bypass = Literal[
    "off",
    "sampled",
    "endpoint",
    "query",
    "messages",
    "conversation",
    "transfer",
    "server-tools",
    "wish",
]
"""Why the cache was not asked; a metric's label.

off: by policy. sampled: `declared` wants temperature 0 or a seed. endpoint: its answers are not known well enough. query: the key does
not hold it. messages: no list of objects, and so no request that any server knows. conversation: about what the server holds. transfer: bound to one server's memory. server-tools: the server would act.
wish: the client's own.
"""

SAMPLES = frozenset({"chat/completions", "completions", "responses", "messages"})
"""A model writes, and may write something else each time."""
TALKS = frozenset({"chat/completions", "messages"})
"""A list of messages is asked."""
COMPUTES = frozenset({"embeddings", "embed", "pooling", "classify", "score", "rerank"})
"""One input has one output: always as good as declared."""
HELD = ("previous_response_id", "conversation", "container")
"""Names of what the server keeps between requests (OpenAI, Anthropic)."""
REFERENCE = frozenset({"id", "type"})
"""All that an item holds which only names another one."""
TRANSFERS = ("kv_transfer_params", "ec_transfer_params")
"""vLLM: the answer names blocks in one server's memory, gone soon after."""
SEARCHES = ("mcp_servers", "web_search_options")
"""Fields that have the server look elsewhere (Anthropic, OpenAI)."""
OWN_TOOLS = frozenset({None, "function", "custom"})
"""Kinds of tools that the client runs; any other may act in the world when the answer is made, e.g., `mcp`, `web_search`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What is allowed for one request."""

    read: bool
    """A stored answer may be used, or a call under way joined."""
    write: bool
    """The answer may be stored."""
    ttl_s: float | None
    """For so long; None: without end."""
    reason: Bypass | None = None
    """Why it is not read; None: it is, or only the client's `no-cache` forbids that."""
    only_if_cached: bool = False
    """Without a stored answer: 504, and nothing is asked upstream."""
    max_age_s: float = inf
    """No stored answer that is older."""
    min_fresh_s: float = 0.0
    """No stored answer that ends sooner."""

    @property
    def fwd(self) -> Fwd:
        """Why it is asked upstream, in RFC 9211's words, where no stored answer was found out of time."""
        if self.reason is None:
            return "miss" if self.read else "request"
        return "request" if self.reason == "wish" else "bypass"

    def takes(self, *, age_s: float, left_s: float | None) -> bool:
        """Whether a stored answer of an age, with so long to live, will do; None: without end."""
        return age_s <= self.max_age_s and (left_s is None or left_s >= self.min_fresh_s)


def policy(
    setting: CacheSetting,
    team: TeamSetting | None,
    fields: Fields,
    endpoint: str,
    wishes: Wishes,
    *,
    query: str = "",
) -> Ruling:
    """The ruling for one request; `endpoint` as of its route, `fields` its body."""
    wanted = setting.policy if team is None or team.policy is None else team.policy
    why = "off" if wanted == "off" else _forbidden(fields, endpoint, query)
    if why is None and wanted == "declared" and not is_declared(fields, endpoint):
        why = "sampled"
    if why is None and (wishes.off or (wishes.no_cache and wishes.no_store)):
        why = "wish"
    if why is not None:
        return Ruling(
            read=False, write=False, ttl_s=0.0, reason=why, only_if_cached=wishes.only_if_cached
        )
    ttl_s = _shorter(setting.ttl_s, wishes.ttl_s)
    return Ruling(
        read=not wishes.no_cache,
        write=not wishes.no_store and ttl_s != 0.0,
        ttl_s=ttl_s,
        only_if_cached=wishes.only_if_cached,
        max_age_s=min(_or(wishes.max_age_s, inf), _or(wishes.ttl_s, inf)),
        min_fresh_s=_or(wishes.min_fresh_s, 0.0),
    )


def is_declared(fields: Fields, endpoint: str) -> bool:
    """Whether a request says that one answer is as good as another: temperature 0, or a seed.

    A temperature left out is not 0: vLLM takes it from the model's own defaults. Its seed of -1 means none.
    """
    if endpoint in COMPUTES:
        return True
    temperature, seed = fields.get("temperature"), fields.get("seed")
    if type(temperature) in (int, float) and temperature == 0:
        return True
    return type(seed) is int and seed != -1


def _forbidden(fields: Fields, endpoint: str, query: str) -> Bypass | None:
    """Why no policy may store an answer."""
    if endpoint not in SAMPLES and endpoint not in COMPUTES:
        return "endpoint"
    if query:
        return "query"
    if endpoint in TALKS:
        messages = fields.get("messages")
        if type(messages) is not list or set(map(type, messages)) != {dict}:
            return "messages"
    if _is_held(fields, endpoint):
        return "conversation"
    if any(fields.get(name) is not None for name in TRANSFERS):
        return "transfer"
    return "server-tools" if _acts(fields) else None


def _is_held(fields: Fields, endpoint: str) -> bool:
    """Whether an answer is about, or becomes, something that the server keeps.

    `store` of the Responses API is true where it is left out, yet no common client leaves it out because it means to come back, and
    vLLM keeps nothing unless it was started to: left out counts as not wanted, said as wanted. Whoever comes back to a stored id
    is sent upstream.
    """
    if any(fields.get(name) is not None for name in HELD):
        return True
    if fields.get("store") not in (None, False) or fields.get("background") not in (None, False):
        return True
    if endpoint != "responses":
        return False
    return fields.get("prompt") is not None or _refers(fields.get("input"))


def _refers(items: Any) -> bool:
    """Whether an input names an item that the server keeps instead of holding it; its type may be left out."""
    return type(items) is list and any(
        type(item) is dict
        and (item.get("type") == "item_reference" or ("id" in item and item.keys() <= REFERENCE))
        for item in items
    )


def _acts(fields: Fields) -> bool:
    """Whether the server would do more than write."""
    if any(fields.get(name) is not None for name in SEARCHES):
        return True
    tools = fields.get("tools")
    return type(tools) is list and any(
        type(tool) is dict and not _is_clients(tool.get("type")) for tool in tools
    )


def _is_clients(kind: Any) -> bool:
    return kind is None or (type(kind) is str and kind in OWN_TOOLS)


def _shorter(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
