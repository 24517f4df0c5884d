"""Why a request is no hit: what became of it when it was last seen, or where it first differs from the newest one like it.

It remembers canonical forms within a limit of bytes, the newest of each tenant, and compares with no other tenant's. A difference
is shown by its path and kind, its values only where they are asked for. It reads no clock and no cache: what is stored, its caller says.
"""

import json
import re
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any

import orjson

MIB = 2**20
FORM_SHARE = 16
"""No form takes more than one part in so many of the limit; of a longer one only what became of it is remembered."""
ENTRY_BYTES = 380
"""Memory of one request beside its form: 257 to 302 for its key and its place in a table, as full as Python's tables happen to be
(tracemalloc, CPython 3.11, 5,000 to 90,000 requests), and room for its model's name and what became of it."""
MAX_CHARS = 200
"""Of a value that is shown."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(slots=True, eq=False)
class SeenRequest:
    """A request that was no hit."""

    endpoint: str
    form: bytes
    """Canonical; empty: too long to keep."""
    model: str | None
    """As asked for."""
    version: str
    """The model's part of the key: name and version."""
    at: float
    became: str | float | None = None
    """Why its answer was not stored, or until when it was; None: its answer is under way."""


class MissHistory:
    """The requests last seen that were no hits. All times are seconds of the caller's one clock."""

    def __init__(self, max_bytes: int = 16 * MIB) -> None:
        self._max_bytes = max_bytes
        self.bytes_held = 0
        """All forms, with what each takes beside; never more than the limit."""
        self._tenants: dict[str, OrderedDict[bytes, SeenRequest]] = defaultdict(OrderedDict)
        """Each one's own, the oldest first; a plain dict would look for its oldest past all that were forgotten."""
        self._bytes: dict[str, int] = defaultdict(int)

    def note(self, tenant: str, key: bytes, seen: SeenRequest) -> None:
        """Remember a request that was no hit; its answer is under way from now on."""
        own = self._tenants[tenant]
        if key in own:
            self._forget(tenant, key)
        own[key] = seen
        fits = len(seen.form) * FORM_SHARE <= self._max_bytes
        # a copy: what orjson wrote keeps the room it was written in, 4 KiB at least (3.13.0, by tracemalloc and resident)
        seen.form = bytes(memoryview(seen.form)) if fits else b""
        size = len(seen.form) + ENTRY_BYTES
        self._bytes[tenant] += size
        self.bytes_held += size
        while self.bytes_held > self._max_bytes:
            # the tenant that holds the most makes room: one tenant's flood leaves the others' as they are
            fullest = max(self._bytes, key=self._bytes.__getitem__)
            self._forget(fullest, next(iter(self._tenants[fullest])))

    def _forget(self, tenant: str, key: bytes) -> None:
        size = len(self._tenants[tenant].pop(key).form) + ENTRY_BYTES
        self._bytes[tenant] -= size
        self.bytes_held -= size

    def became(self, tenant: str, key: bytes, what: str | float) -> None:
        """Its answer was stored until then, for ever if infinite; or was not stored: a status, a cut, its size."""
        seen = self._tenants[tenant].get(key)
        if seen is not None:
            seen.became = what

    def explain(
        self,
        tenant: str,
        key: bytes,
        request: SeenRequest,
        *,
        is_stored: bool,
        bypass: str | None = None,
        values: bool = False,
    ) -> dict[str, Any]:
        """Why a request is no hit, as JSON. `is_stored`: the cache has its answer; `bypass`: why policy forbids it.

        `differences` holds the first one, from the newest request of the same tenant, endpoint and model, with what stands there if
        `values` are wanted, for who may see the tenant's requests; `nearest_age_s` is how long ago that one was seen, or this one
        before.
        """
        reason, detail, difference = "never seen", None, None
        own = self._tenants[tenant]
        nearest = None if is_stored or bypass is not None else own.get(key)
        if bypass is not None:
            reason, detail = "policy", bypass
        elif is_stored:
            reason = "hit"
        elif nearest is None:
            of = request.endpoint, request.model
            for seen in reversed(own.values()):
                is_equal = (seen.endpoint, seen.form) == (request.endpoint, request.form)
                if is_equal and seen.version != request.version:
                    nearest, reason = seen, "other epoch"
                    detail = f"seen for {seen.version}, now {request.version}"
                    break
                if nearest is None and seen.form and (seen.endpoint, seen.model) == of:
                    nearest = seen
            if nearest is not None and detail is None:
                here, there = map(orjson.loads, (request.form, nearest.form))
                difference = first_difference(here, there, values=values)
        elif nearest.became is None:
            reason = "under way"
        elif isinstance(nearest.became, str):
            reason, detail = "not stored", nearest.became
        else:
            reason = "expired" if nearest.became <= request.at else "evicted"
        return {
            "reason": reason,
            "detail": detail,
            "differences": () if difference is None else (difference,),
            "nearest_age_s": None if nearest is None else request.at - nearest.at,
        }


def first_difference(
    here: Any, there: Any, path: str = "", *, values: bool
) -> dict[str, Any] | None:
    """The first place where two JSON values differ, in the order of the canonical form; `values`: with what stands there.

    `kind` is `missing` here, `extra` here, `type`, `value`, or `length` of a list whose beginning is equal; `at` the first character
    that differs in two texts. No form is nested deeper than 64.
    """
    kind, at = None, None
    if type(here) is dict and type(there) is dict:
        for name in sorted(here.keys() | there.keys()):
            step = f"[{json.dumps(name[:64])}]"
            if _PLAIN.fullmatch(name):
                step = f".{name}" if path else name
            if name in here and name in there:
                inside = first_difference(here[name], there[name], path + step, values=values)
                if inside is not None:
                    return inside
            else:
                path, kind = path + step, "extra" if name in here else "missing"
                here, there = here.get(name), there.get(name)
                break
    elif type(here) is list and type(there) is list:
        for place, pair in enumerate(zip(here, there, strict=False)):
            inside = first_difference(*pair, f"{path}[{place}]", values=values)
            if inside is not None:
                return inside
        kind = None if len(here) == len(there) else "length"
    elif type(here) is not type(there) and {type(here), type(there)} != {int, float}:
        kind = "type"
    elif here != there:
        kind = "value"
        if type(here) is str:
            pairs = enumerate(zip(here, there, strict=False))
            shorter = min(len(here), len(there))
            at = next((place for place, (one, other) in pairs if one != other), shorter)
    if kind is None:
        return None
    shown = [
        text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
        for text in map(json.dumps, (here, there))
    ]
    return {
        "path": path,
        "kind": kind,
        "at": at,
        "here": shown[0] if values and kind != "missing" else None,
        "there": shown[1] if values and kind != "extra" else None,
    }
