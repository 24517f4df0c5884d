"""The decision table of `toolkit diagnose`, read from the catalog's data into records. It decides nothing.

Raises ToolkitError for a table that asks for what no Evidence holds: a rule that can never hold would never be missed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from toolkit.errors import ToolkitError
from toolkit.records import Confidence
from toolkit.tuning.evidence import NAMES

Unit = Literal["s", "ms", "share", "count", "times", "yes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What one fact must be."""

    fact: str
    least: float | None = None
    most: float | None = None
    is_: bool | None = None
    says: str = ""
    """A few words for when it holds; `{}` is the fact's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What a fact is, for a person."""

    name: str
    unit: Unit
    what: str
    tells: str
    """What would tell it where it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """One row of the table."""

    code: str
    name: str
    needs: tuple[Condition, ...]
    also: tuple[Condition, ...]
    """One of these makes it sure."""
    unless: tuple[Condition, ...]
    base: Confidence
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
    facts: Mapping[str, Fact]


def read_table(told: Mapping[str, Any]) -> BottleneckTable:
    """Read the catalog's table."""
    facts = {name: _fact(name, each) for name, each in told["facts"].items()}
    rows = tuple(_bottleneck(each, told["sources"]) for each in told["bottlenecks"])
    for row in rows:
        for condition in (*row.needs, *row.also, *row.unless):
            if condition.fact not in facts:
                raise ToolkitError(
                    f"`{row.code}` asks for `{condition.fact}`, which is explained nowhere"
                )
    return BottleneckTable(bottlenecks=rows, facts=facts)


def _fact(name: str, told: Mapping[str, str]) -> Fact:
    unit: Any = told["unit"]
    if name not in NAMES or unit not in get_args(Unit):
        raise ToolkitError(f"`{name}` in `{unit}` is no fact of the evidence")
    return Fact(name=name, unit=unit, what=told["what"], tells=told["tells"])


def _bottleneck(told: Mapping[str, Any], sources: Mapping[str, str]) -> Bottleneck:
    words = {key: str(told[key]) for key in ("code", "name", "lever", "risk", "watch", "source")}
    base: Confidence = told.get("base", "medium")
    if base not in get_args(Confidence) or not told["needs"]:
        raise ToolkitError(f"`{words['code']}` needs nothing, or has no confidence")
    words["source"] = _source(words["source"], sources)
    return Bottleneck(
        **words,
        needs=_conditions(told["needs"]),
        also=_conditions(told.get("also", ())),
        unless=_conditions(told.get("unless", ())),
        base=base,
    )


def _source(short: str, sources: Mapping[str, str]) -> str:
    """`gauntlet, lesson 9; week 11: queues` with each text's full name, and the place in brackets."""
    parts = []
    for part in short.split("; "):
        name, _, place = part.replace(":", ",", 1).partition(",")
        if name not in sources or not place.strip():
            raise ToolkitError(f"`{part}` is no source and its place")
        parts.append(f"{sources[name]} ({part.removeprefix(name).lstrip(',: ')})")
    return "; ".join(parts)


def _conditions(told: Iterable[Mapping[str, Any]]) -> tuple[Condition, ...]:
    return tuple(_condition(each) for each in told)


def _condition(told: Mapping[str, Any]) -> Condition:
    bounds = [told.get(key) for key in ("least", "most", "is")]
    if sum(bound is not None for bound in bounds) != 1:
        raise ToolkitError(f"`{told['fact']}` must have exactly one of least, most and is")
    least, most, is_ = bounds
    return Condition(fact=told["fact"], least=least, most=most, is_=is_, says=told.get("says", ""))
