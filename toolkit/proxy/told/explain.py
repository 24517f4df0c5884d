"""Why a request is no hit: what became of it when it was last seen, or the nearest one that was seen, and where they differ.

It remembers canonical forms within a limit of bytes, the newest of each tenant, and looks at no other tenant's. It tells paths and
kinds of differences, never a value unless it is asked to. It reads no clock and no cache: what is held, its caller says.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from toolkit.request_key import Fields

MIB = 2**20
FORM_PART = 16
"""No form takes more than one part in so many of the room; of a longer one only what became of it is remembered."""
NOTED_BYTES = 380
"""Memory of one request beside its form, of its key and its places in two tables: 306 to 377 by tracemalloc, as full as Python's tables
happen to be (CPython 3.11, 5,000 to 90,000 requests)."""
MOST_LOOKED = 500
MOST_LOOKED_BYTES = MIB
"""Forms compared for one explanation, the newest first."""
MOST_DIFFERENCES = 8
MOST_CHARS = 200
"""Of a value that is shown."""

Reason = Literal["hit", "policy", "under way", "not stored", "expired", "evicted", "other epoch", "never seen"]  # fmt: skip
Kind = Literal["value", "missing", "extra", "type", "length"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
Step = str | int
Found = tuple[tuple[Step, ...], Kind, Any, Any]
"""Path, kind, the value asked about, the value of the nearest one."""


@dataclass(slots=True, kw_only=True, eq=False)
class Noted:
    """A request that was seen and no hit, and what became of its answer."""

    tenant: str | None
    endpoint: str
    form: bytes
    """Canonical; empty: too long to keep."""
    model: str | None
    """Name and epoch, as in the key."""
    at: float
    why_not: str | None = None
    """Why its answer was not stored."""
    is_stored: bool = False
    ends_at: float | None = None
    """Until then; None: without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where a request differs from the nearest one seen."""

    path: str
    """E.g., `messages[1].content`."""
    kind: Kind
    """`missing` here, `extra` here; `length` of a list whose beginning is equal."""
    at: int | None = None
    """Of two texts: the first character that differs."""
    here: str | None = None
    """JSON, cut; None: not asked for, or not there."""
    there: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a request is a hit or none."""

    reason: Reason
    detail: str | None = None
    """Of `policy` and `not stored` why; of `other epoch` which."""
    differences: tuple[Difference, ...] = ()
    """From the nearest request of the same tenant and endpoint, in the order of the canonical form; the first few."""
    nearest_age_s: float | None = None
    """How long ago that was seen; None: there was none."""


class Memory:
    """The requests last seen, of each tenant. All times are seconds of the caller's one clock."""

    __slots__ = ("_all", "_bytes", "_most_bytes", "_tenants", "bytes_held")

    def __init__(self, most_bytes: int = 16 * MIB) -> None:
        self._most_bytes = most_bytes
        self.bytes_held = 0
        """All forms, with what each takes beside; never more than the limit."""
        self._bytes: dict[str | None, int] = {}
        self._tenants: dict[str | None, OrderedDict[bytes, Noted]] = {}
        self._all: dict[bytes, Noted] = {}

    def __len__(self) -> int:
        return len(self._all)

    def note(
        self, key: bytes, form: bytes, *,
        tenant: str | None, endpoint: str, model: str | None, now: float,
    ) -> None:  # fmt: skip
        """Remember a request that was no hit; its answer is under way from now on."""
        if len(form) * FORM_PART > self._most_bytes:
            form = b""
        self._forget(key)
        # a copy: what orjson wrote keeps the room it was written in, 4 KiB at least (3.13.0, by tracemalloc and resident)
        form = bytes(memoryview(form))
        noted = Noted(tenant=tenant, endpoint=endpoint, form=form, model=model, at=now)
        self._all[key] = noted
        if tenant not in self._tenants:
            self._tenants[tenant] = OrderedDict()
            self._bytes[tenant] = 0
        self._tenants[tenant][key] = noted
        self._bytes[tenant] += len(form) + NOTED_BYTES
        self.bytes_held += len(form) + NOTED_BYTES
        while self.bytes_held > self._most_bytes:
            # whoever holds the most makes room: one tenant's flood leaves the others' as they are
            fullest = max(self._bytes, key=self._bytes.__getitem__)
            self._forget(next(iter(self._tenants[fullest])))

    def stored(self, key: bytes, *, ends_at: float | None) -> None:
        """Its answer was stored."""
        noted = self._all.get(key)
        if noted is not None:
            noted.is_stored, noted.ends_at, noted.why_not = True, ends_at, None

    def not_stored(self, key: bytes, why: str) -> None:
        """Its answer was not stored: a status, a cut, its size."""
        noted = self._all.get(key)
        if noted is not None:
            noted.is_stored, noted.why_not = False, why

    def known(self, key: bytes) -> Noted | None:
        """What is remembered of a request."""
        return self._all.get(key)

    def seen(self, tenant: str | None, endpoint: str) -> list[Noted]:
        """A tenant's requests to an endpoint, the newest first."""
        held = self._tenants.get(tenant)
        return [] if held is None else [
            noted for noted in reversed(list(held.values())) if noted.endpoint == endpoint
        ]  # fmt: skip

    def _forget(self, key: bytes) -> None:
        noted = self._all.pop(key, None)
        if noted is not None:
            del self._tenants[noted.tenant][key]
            self._bytes[noted.tenant] -= len(noted.form) + NOTED_BYTES
            self.bytes_held -= len(noted.form) + NOTED_BYTES


def explain(
    memory: Memory,
    key: bytes,
    form: bytes,
    *,
    tenant: str | None,
    endpoint: str,
    model: str | None,
    now: float,
    is_held: bool,
    bypass: str | None = None,
    values: bool = False,
) -> Explanation:
    """Why a request is no hit. `is_held`: the cache has its answer; `bypass`: why policy forbids it; `values`: show them.

    `values` is for who may see the tenant's requests.
    """
    if bypass is not None:
        return Explanation(reason="policy", detail=bypass)
    if is_held:
        return Explanation(reason="hit")
    known = memory.known(key)
    if known is not None:
        return _became(known, now)
    seen = memory.seen(tenant, endpoint)
    twin = next((noted for noted in seen if noted.form == form and noted.model != model), None)
    if twin is not None:
        return Explanation(
            reason="other epoch",
            detail=f"seen for {twin.model}, now {model}",
            nearest_age_s=now - twin.at,
        )
    return _nearest(form, seen, now, values=values)


def _became(noted: Noted, now: float) -> Explanation:
    """What became of a request that was seen before."""
    age_s = now - noted.at
    if noted.why_not is not None:
        return Explanation(reason="not stored", detail=noted.why_not, nearest_age_s=age_s)
    if not noted.is_stored:
        return Explanation(reason="under way", nearest_age_s=age_s)
    over = noted.ends_at is not None and noted.ends_at <= now
    return Explanation(reason="expired" if over else "evicted", nearest_age_s=age_s)


def _nearest(form: bytes, seen: Iterable[Noted], now: float, *, values: bool) -> Explanation:
    """The one with the fewest differences; of several the newest."""
    here = orjson.loads(form)
    best: tuple[Noted, list[Found]] | None = None
    looked_bytes = 0
    for number, noted in enumerate(seen):
        looked_bytes += len(noted.form)
        if number >= MOST_LOOKED or looked_bytes > MOST_LOOKED_BYTES:
            break
        if noted.form:
            found: list[Found] = []
            _compare(here, orjson.loads(noted.form), (), found, len(best[1]) if best else None)
            if best is None or len(found) < len(best[1]):
                best = noted, found
    if best is None:
        return Explanation(reason="never seen")
    return Explanation(
        reason="never seen",
        differences=tuple(_told(one, values=values) for one in best[1][:MOST_DIFFERENCES]),
        nearest_age_s=now - best[0].at,
    )


def _compare(
    here: Any, there: Any, path: tuple[Step, ...], found: list[Found], most: int | None
) -> None:
    """Note all differences, up to `most`: then something nearer is known already."""
    if most is not None and len(found) >= most:
        return
    if type(here) is dict and type(there) is dict:
        _compare_objects(here, there, path, found, most)
    elif type(here) is list and type(there) is list:
        for place, (one, other) in enumerate(zip(here, there, strict=False)):
            _compare(one, other, (*path, place), found, most)
        if len(here) != len(there):
            found.append((path, "length", here, there))
    elif _kind(here) != _kind(there):
        found.append((path, "type", here, there))
    elif here != there:
        found.append((path, "value", here, there))


def _compare_objects(
    here: Fields, there: Fields, path: tuple[Step, ...], found: list[Found], most: int | None
) -> None:
    for name in sorted(here.keys() | there.keys()):
        if name not in there:
            found.append(((*path, name), "extra", here[name], None))
        elif name not in here:
            found.append(((*path, name), "missing", None, there[name]))
        else:
            _compare(here[name], there[name], (*path, name), found, most)


def _kind(value: Any) -> str:
    """JSON's own kinds: `true` is no number, `1` and `1.5` both are."""
    return "float" if type(value) is int else type(value).__name__


def _told(found: Found, *, values: bool) -> Difference:
    path, kind, here, there = found
    both_texts = kind == "value" and type(here) is str
    return Difference(
        path=_path(path),
        kind=kind,
        at=_first_difference(here, there) if both_texts else None,
        here=_shown(here) if values and kind != "missing" else None,
        there=_shown(there) if values and kind != "extra" else None,
    )


def _path(path: tuple[Step, ...]) -> str:
    """`messages[1].content`; a name that is no plain word stands quoted: `metadata["a b"]`."""
    text = ""
    for step in path:
        if type(step) is int:
            text += f"[{step}]"
        elif _PLAIN.fullmatch(str(step)):
            text += f".{step}" if text else str(step)
        else:
            text += f"[{json.dumps(str(step)[:64])}]"
    return text


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
