"""Which bottleneck is it? Evidence and the decision table -> findings, and what cannot be known. No store, no clock.

A rule holds where all that it needs is known and seen. Where all that is known of it is seen and something else is
unknown, it is left open: that fact is told, with what would tell it. A rule that anything speaks against is closed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolkit.records import Confidence
from toolkit.tuning.bottlenecks import Bottleneck, BottleneckTable, Condition, Fact
from toolkit.tuning.evidence import Evidence
from toolkit.units import digits, milliseconds, share, span

SURE: dict[Confidence, int] = {"high": 0, "medium": 1, "low": 2}
LOOKED_AT = {
    "running_mean": ("running", "count"),
    "waiting_mean": ("waiting", "count"),
    "kv_cache_usage_max": ("KV cache at most", "share"),
    "preemptions_per_request": ("preemptions a request", "count"),
    "ttft_p50_ms": ("TTFT p50", "ms"),
    "ttft_p95_ms": ("TTFT p95", "ms"),
    "queue_mean_ms": ("queue", "ms"),
    "tpot_p50_ms": ("TPOT", "ms"),
    "prefix_hit_ratio": ("prefix hits", "share"),
    "api_cpu_cores": ("API process's cores", "count"),
    "output_tokens_per_s": ("output tokens/s", "count"),
    "client_ttft_p50_ms": ("client's TTFT p50", "ms"),
    "client_e2e_p50_ms": ("client's E2E p50", "ms"),
    "error_share": ("errors", "share"),
    "repeat_share": ("repeated requests", "share"),
    "shared_prefix_share": ("shared beginnings", "share"),
    "gpu_busy_share": ("GPU busy", "share"),
}
"""Told, where they are known, when nothing was found: fact -> its words and unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBottleneck:
    """One bottleneck; the fields are the keys of `toolkit diagnose --json`."""

    code: str
    confidence: Confidence
    evidence: str
    lever: str
    risk: str
    watch: str
    what: str
    """The same as the code, in words."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A fact that would decide whether something is a bottleneck."""

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
    """Tell which rules hold, and which are open."""
    found, missing = [], dict[str, list[str]]()
    for rule in table.bottlenecks:
        if any(_holds(each, evidence) for each in rule.unless):
            continue
        known = [_holds(each, evidence) for each in rule.needs]
        if all(known):
            found.append(_found(rule, evidence, table))
        elif False not in known:
            for each, held in zip(rule.needs, known, strict=True):
                if held is None:
                    missing.setdefault(each.fact, []).append(rule.code)
    return Diagnosis(
        found=tuple(sorted(found, key=lambda each: SURE[each.confidence])),
        looked_at=looked_at(evidence),
        unknown=tuple(_unknown(table.facts[name], codes) for name, codes in missing.items()),
        is_short=evidence.short_load_s is not None,
    )


def _holds(condition: Condition, evidence: Evidence) -> bool | None:
    """Whether a fact is as it must be; None: it is unknown."""
    value = getattr(evidence, condition.fact)
    if value is None:
        return None
    if condition.is_ is not None:
        return bool(value) == condition.is_
    if condition.least is not None:
        return bool(value >= condition.least)
    return bool(value <= (condition.most or 0.0))


def _found(rule: Bottleneck, evidence: Evidence, table: BottleneckTable) -> FoundBottleneck:
    more = [each for each in rule.also if _holds(each, evidence)]
    clauses = [_said(each, evidence, table) for each in (*rule.needs, *more)]
    return FoundBottleneck(
        code=rule.code,
        confidence="high" if more else rule.base,
        evidence="; ".join(clauses),
        lever=rule.lever,
        risk=rule.risk,
        watch=rule.watch,
        what=rule.name,
        source=rule.source,
    )


def _said(condition: Condition, evidence: Evidence, table: BottleneckTable) -> str:
    unit = table.facts[condition.fact].unit
    return condition.says.replace("{}", amount(getattr(evidence, condition.fact), unit))


def amount(value: float, unit: str) -> str:
    """A fact's value as people read it."""
    if unit == "ms":
        return milliseconds(value)
    if unit == "share":
        return share(value)
    return span(value) if unit == "s" else digits(value).removesuffix(".00")


def _unknown(fact: Fact, codes: Iterable[str]) -> Unknown:
    return Unknown(fact=fact.name, what=fact.what, tells=fact.tells, codes=tuple(codes))


def looked_at(evidence: Evidence) -> str:
    """What was seen, in one sentence: all that is known of the usual indicators."""
    known: Sequence[str] = [
        f"{words} {amount(value, unit)}"
        for name, (words, unit) in LOOKED_AT.items()
        if (value := getattr(evidence, name)) is not None
    ]
    if not known:
        return "nothing could be looked at"
    interval = f"over {span(evidence.interval_s)}: " if evidence.interval_s else ""
    if evidence.interval_s and evidence.watched_s:
        interval = f"under load for {span(evidence.interval_s)} of {span(evidence.watched_s)}: "
    elif evidence.interval_s and evidence.short_load_s is not None:
        interval = (
            f"over {span(evidence.interval_s)}, of which the load was there for {span(evidence.short_load_s)}, too short to judge"
            " by: "
        )
    return interval + ", ".join(known)
