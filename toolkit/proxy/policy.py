"""May a request's answer come from the cache, and may it be stored: settings, the team's policy, the body, the client's cache control.

A stored answer is a valid sample of what the model may say, not a promise to say it again: vLLM states no reproducibility, even at
temperature 0. The policies are how much of that is wanted: `all`, whatever was asked; `declared`, only what says that one answer is
as good as another; `off`. A client can only be stricter. It counts nothing and reads no clock.
"""

from math import inf
from typing import Literal, NamedTuple

from toolkit.protocol.request_key import Fields
from toolkit.proxy.config import CacheSetting, TeamSetting
from toolkit.proxy.headers import CacheControl

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
not hold it. messages: no list of objects, and so no request that any server knows. conversation: about what the server holds.
transfer: bound to one server's memory. server-tools: the server would act. wish: the client's own.
"""

SAMPLES = frozenset({"chat/completions", "completions", "responses", "messages"})
"""A model writes, and may write something else each time."""
TALKS = frozenset({"chat/completions", "messages"})
"""A list of messages is asked."""
COMPUTES = frozenset({"embeddings", "embed", "pooling", "classify", "score", "rerank"})
"""One input has one output: always as good as declared."""
HELD = frozenset({"previous_response_id", "conversation", "container"})
"""Names of what the server keeps between requests (OpenAI, Anthropic)."""
KEEPS = frozenset({"store", "background"})
"""The answer becomes such a thing. `store` of the Responses API is true where it is left out, yet no common client leaves it out
because it means to come back, and vLLM keeps nothing unless it was started to: left out counts as not wanted, any value but false as
wanted. Whoever comes back to a stored id is sent upstream."""
REFERENCE = frozenset({"id", "type"})
"""All that an item holds which only names another one."""
TRANSFERS = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""vLLM: the answer names blocks in one server's memory, gone soon after."""
SEARCHES = frozenset({"mcp_servers", "web_search_options"})
"""Fields that have the server look elsewhere (Anthropic, OpenAI)."""
MATTERS = HELD | KEEPS | TRANSFERS | SEARCHES | {"prompt", "input", "tools"}
OWN_TOOLS = frozenset({"function", "custom"})
"""Kinds of tools that the client runs; any other may act in the world when the answer is made, e.g., `mcp`, `web_search`."""


class CacheDecision(NamedTuple):
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

    def takes(self, *, age_s: float, left_s: float | None) -> bool:
        """Whether a stored answer of an age, with so long to live, will do; None: without end."""
        return age_s <= self.max_age_s and (left_s is None or left_s >= self.min_fresh_s)


def policy(
    setting: CacheSetting,
    team: TeamSetting,
    fields: Fields,
    endpoint: str,
    wanted: CacheControl,
    *,
    query: str = "",
) -> CacheDecision:
    """The decision for one request; `endpoint` as of its route, `fields` its body, `wanted` what the client asks of the cache."""
    name = setting.policy if team.policy is None else team.policy
    why: Bypass | None = "off" if name == "off" else _forbidden(fields, endpoint, query)
    if why is None and name == "declared" and endpoint not in COMPUTES:
        # a temperature left out is not 0: vLLM takes it from the model's own defaults. Its seed of -1 means none.
        temperature, seed = fields.get("temperature"), fields.get("seed")
        is_greedy = type(temperature) in (int, float) and temperature == 0
        if not is_greedy and (type(seed) is not int or seed == -1):
            why = "sampled"
    if why is None and wanted.no_cache and wanted.no_store:
        why = "wish"
    if why is not None:
        return CacheDecision(False, False, 0.0, why, wanted.only_if_cached)
    ttl_s = min(inf if setting.ttl_s is None else setting.ttl_s, wanted.ttl_s)
    return CacheDecision(
        read=not wanted.no_cache,
        write=not wanted.no_store and ttl_s != 0.0,
        ttl_s=None if ttl_s == inf else ttl_s,
        only_if_cached=wanted.only_if_cached,
        max_age_s=min(wanted.max_age_s, wanted.ttl_s),
        min_fresh_s=wanted.min_fresh_s,
    )


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
    if MATTERS.isdisjoint(fields):
        return None
    given = {name for name in fields.keys() & MATTERS if fields[name] is not None}
    if given & HELD or any(fields[name] not in (None, False) for name in given & KEEPS):
        return "conversation"
    if endpoint == "responses":
        items = fields.get("input")
        # what names an item that the server keeps instead of holding it; its type may be left out
        if "prompt" in given or any(
            type(item) is dict
            and (
                item.get("type") == "item_reference" or ("id" in item and item.keys() <= REFERENCE)
            )
            for item in (items if type(items) is list else ())
        ):
            return "conversation"
    if given & TRANSFERS:
        return "transfer"
    tools = fields.get("tools")
    kinds = [t.get("type") for t in tools if type(t) is dict] if type(tools) is list else []
    is_ours = any(each is not None and str(each) not in OWN_TOOLS for each in kinds)
    return "server-tools" if given & SEARCHES or is_ours else None
