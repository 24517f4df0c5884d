"""Which bottleneck is it? Evidence and the catalog's decision table -> findings, and what cannot be known. No store, no clock.

A rule holds where all that it needs is known and seen. Where all that is known of it is seen and something else is
unknown, it is left open: that fact is named, with what would tell it. A rule that anything speaks against is closed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from toolkit.errors import ToolkitError
from toolkit.records import Confidence
from toolkit.tuning.evidence import NAMES, Evidence
from toolkit.units import digits, milliseconds, share, span

UNITS = frozenset({"s", "ms", "share", "count", "times", "yes"})
BOUNDS = ("least", "most", "is")
SURE: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}

Condition = Mapping[str, Any]
"""What one fact must be, as the table has it: `fact`, one of BOUNDS, and in `says` a few words for when it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One row of the table."""

    code: str
    name: str
    needs: tuple[Condition, ...]
    also: tuple[Condition, ...] = ()
    """One of these makes it sure."""
    unless: tuple[Condition, ...] = ()
    base: Confidence = "medium"
    """Without any of `also`."""
    lever: str
    risk: str
    watch: str
    source: str
    """Texts by their full names, each with the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckTable:
    """All rows, and what their facts mean."""

    bottlenecks: tuple[Bottleneck, ...]
    facts: Mapping[str, Mapping[str, str]]
    """Name -> its `unit`, `what` it is, and what `tells` it where it is unknown."""
    indicators: Mapping[str, Mapping[str, str]]
    """Facts that are shown, where they are known, when nothing was found: name -> its `words` and `unit`."""


def read_table(tables: Mapping[str, Any]) -> BottleneckTable:
    """Read the catalog's table.

    Raises ToolkitError for one that asks for what no Evidence holds: a rule that can never hold would never be missed.
    """
    facts, indicators, rows = tables["facts"], tables["indicators"], []
    for name, fact in (*facts.items(), *indicators.items()):
        if name not in NAMES or fact["unit"] not in UNITS:
            raise ToolkitError(f"`{name}` in `{fact['unit']}` is no fact of the evidence")
    for row in tables["bottlenecks"]:
        code = row["code"]
        if row.get("base", "medium") not in get_args(Confidence) or not row["needs"]:
            raise ToolkitError(f"`{code}` needs nothing, or has no confidence")
        conditions = {key: tuple(row.get(key, ())) for key in ("needs", "also", "unless")}
        for condition in (each for group in conditions.values() for each in group):
            name = condition["fact"]
            if sum(bound in condition for bound in BOUNDS) != 1:
                raise ToolkitError(f"`{name}` must have exactly one of least, most and is")
            if name not in facts:
                raise ToolkitError(f"`{code}` asks for `{name}`, which is explained nowhere")
        # `gauntlet, lesson 9; week 11: queues` with each text's full name, and the place in brackets
        sources = []
        for part in row["source"].split("; "):
            name, _, place = part.replace(":", ",", 1).partition(",")
            if name not in tables["sources"] or not place.strip():
                raise ToolkitError(f"`{part}` is no source and its place")
            where = part.removeprefix(name).lstrip(",: ")
            sources.append(f"{tables['sources'][name]} ({where})")
        rows.append(Bottleneck(**{**row, **conditions, "source": "; ".join(sources)}))
    return BottleneckTable(bottlenecks=tuple(rows), facts=facts, indicators=indicators)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBottleneck:
    """A row of the table that holds."""

    rule: Bottleneck
    confidence: Confidence
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A fact that would decide whether something is a bottleneck; the fields are keys of `toolkit diagnose --json`."""

    fact: str
    what: str
    tells: str
    codes: tuple[str, ...]
    """What it would decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that can be said of one host."""

    found: tuple[FoundBottleneck, ...]
    """The surest first."""
    looked_at: str
    """What was seen, in one sentence."""
    unknown: tuple[Unknown, ...]
    is_short: bool = False
    """The load was there for too short to judge by."""


def diagnose(evidence: Evidence, table: BottleneckTable) -> Diagnosis:
    """Which rules hold, and which are open."""
    found, missing = [], dict[str, list[str]]()
    for rule in table.bottlenecks:
        if any(_holds(each, evidence) for each in rule.unless):
            continue
        known = [_holds(each, evidence) for each in rule.needs]
        if all(known):
            more = [each for each in rule.also if _holds(each, evidence)]
            clauses = []
            for each in (*rule.needs, *more):
                seen = amount(getattr(evidence, each["fact"]), table.facts[each["fact"]]["unit"])
                clauses.append(each.get("says", "").replace("{}", seen))
            sure = "high" if more else rule.base
            found.append(FoundBottleneck(rule=rule, confidence=sure, evidence="; ".join(clauses)))
        elif False not in known:
            for each, held in zip(rule.needs, known, strict=True):
                if held is None:
                    missing.setdefault(each["fact"], []).append(rule.code)
    facts = {name: table.facts[name] for name in missing}
    return Diagnosis(
        found=tuple(sorted(found, key=lambda each: SURE[each.confidence])),
        looked_at=looked_at(evidence, table),
        unknown=tuple(
            Unknown(fact=name, what=fact["what"], tells=fact["tells"], codes=tuple(missing[name]))
            for name, fact in facts.items()
        ),
        is_short=evidence.short_load_s is not None,
    )


def _holds(condition: Condition, evidence: Evidence) -> bool | None:
    """Whether a fact is as it must be; None: it is unknown."""
    value = getattr(evidence, condition["fact"])
    if value is None:
        return None
    if "is" in condition:
        return bool(value == condition["is"])
    if "least" in condition:
        return bool(value >= condition["least"])
    return bool(value <= condition["most"])


# --- in words -----------------------------------------------------------------------------------------


def amount(value: float, unit: str) -> str:
    """A fact's value as people read it."""
    if unit == "ms":
        return milliseconds(value)
    if unit == "share":
        return share(value)
    return span(value) if unit == "s" else digits(value).removesuffix(".00")


def looked_at(evidence: Evidence, table: BottleneckTable) -> str:
    """What was seen, in one sentence: all that is known of the usual indicators."""
    known = [
        f"{each['words']} {amount(value, each['unit'])}"
        for name, each in table.indicators.items()
        if (value := getattr(evidence, name)) is not None
    ]
    if not known:
        return "nothing could be looked at"
    interval, length = "", evidence.interval_s
    if length and evidence.watched_s:
        interval = f"under load for {span(length)} of {span(evidence.watched_s)}: "
    elif length and evidence.short_load_s is not None:
        interval = (
            f"over {span(length)}, of which the load was there for {span(evidence.short_load_s)}, too short to judge"
            " by: "
        )
    elif length:
        interval = f"over {span(length)}: "
    return interval + ", ".join(known)
