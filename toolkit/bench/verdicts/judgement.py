"""What explains a host's speed: every rule tried on one host's requests and counters, and what could not be judged.

`clean` needs evidence, too: a host is only called so if duplicates, counters, lengths and the model could all be checked.
What could not be checked is a gap, with its reason. Nothing about a start or a queue explains a lead over other hosts, so
a gap there is named and changes nothing.

One cause is reported once: tokens that a replayed answer explains are no hidden backend, those of an answer cut short are
no foreign traffic, and a failed request may have cost anything up to its `max_tokens`. Two causes can also hide each
other, e.g., others' load fills the gap that a response cache leaves in the counters: the rules then report what still
shows, with less confidence. No network, no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.bench.counters import Account
from toolkit.bench.evidence import sentence
from toolkit.bench.verdicts import (
    cold,
    fast_failures,
    foreign_traffic,
    hidden_backend,
    inflated_usage,
    model_mismatch,
    response_cache,
    saturated,
    truncated_output,
)
from toolkit.bench.verdicts.case import Case, Found
from toolkit.records import MOST_ERRORS, Confidence, Verdict
from toolkit.units import whole

DUPLICATES = frozenset({"response_cache"})
COUNTERS = frozenset({"hidden_backend", "foreign_traffic"})
LENGTHS = frozenset({"truncated_output", "inflated_usage"})
MODEL = frozenset({"model_mismatch"})
NEEDED_FOR_CLEAN = DUPLICATES | COUNTERS | LENGTHS | MODEL
"""Codes that must have been judged before a host is called clean."""

Gap = tuple[str, str]
"""A code that could not be judged, and why."""
Rule = Callable[[Case], Found | None]
WhyUnseen = Callable[[Case], str | None]

RULES: Mapping[str, tuple[Rule, WhyUnseen | None]] = {
    "response_cache": (response_cache.response_cache, response_cache.why_unseen),
    # do the answers and the counters contradict each other?
    "truncated_output": (truncated_output.truncated_output, truncated_output.why_unseen),
    "inflated_usage": (inflated_usage.inflated_usage, inflated_usage.why_unseen),
    "hidden_backend": (hidden_backend.hidden_backend, hidden_backend.why_unseen),
    "foreign_traffic": (foreign_traffic.foreign_traffic, foreign_traffic.why_unseen),
    # what do its failures, its list of models and its times say?
    "fast_failures": (fast_failures.fast_failures, None),
    "model_mismatch": (model_mismatch.model_mismatch, model_mismatch.why_unseen),
    "cold": (cold.cold, cold.why_unseen),
    "saturated": (saturated.saturated, saturated.why_unseen),
}
"""Code -> its rule, and why it may have seen nothing; in the order in which they are tried and told, as some look at what
those before them found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What all rules say of one host."""

    accusations: tuple[Verdict, ...]
    gaps: tuple[Gap, ...]
    """What could not be judged; never a code that is accused."""
    account: Account
    mostly_fails: bool

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Accusations, else `clean` where enough was judged and most requests were answered, else `not_judged`.

        `not_judged` also stands beside accusations: with high confidence where a gap forbids `clean`, with low where only a
        start or a queue could not be judged.
        """
        ours = self.account
        if not ours.answers:
            evidence = "most codes: nothing was answered"
            nothing = Verdict(code="not_judged", confidence="high", evidence=evidence)
            return (*self.accusations, nothing)
        if any(code in NEEDED_FOR_CLEAN for code, _ in self.gaps):
            return (*self.accusations, not_judged(self.gaps))
        if self.accusations or self.mostly_fails:
            if self.gaps:
                return (*self.accusations, replace(not_judged(self.gaps), confidence="low"))
            return self.accusations

        # counters that agree to the token are a proof of `clean`; otherwise it means that nothing was found
        is_exact = ours.generation_tokens == ours.tokens == ours.tokens_most and ours.agrees
        if is_exact:
            evidence = (
                f"{whole(ours.answers)} requests were answered and"
                f" the server counted the {whole(ours.tokens)} tokens that they hold"
            )
        else:
            evidence = f"no anomaly found in its {whole(ours.answers)} answers"
        if self.gaps:
            evidence += f" (not judged: {not_judged(self.gaps).evidence})"
        confidence: Confidence = "high" if is_exact else "medium"
        return (Verdict(code="clean", confidence=confidence, evidence=evidence),)


def judgement(case: Case) -> Judgement:
    """Try all rules on one host in one run."""
    gaps: list[Gap] = []
    for code, (rule, why_unseen) in RULES.items():
        if found := rule(case):
            confidence, clauses = found
            evidence = sentence(clauses)
            case.accused[code] = Verdict(code=code, confidence=confidence, evidence=evidence)
        elif why_unseen and (why := why_unseen(case)):
            gaps.append((code, why))
    measured = [record for record in case.records if record.kind != "warmup"]
    return Judgement(
        accusations=tuple(case.accused.values()),
        gaps=tuple(gaps),
        account=case.account,
        mostly_fails=sum(not record.ok for record in measured) > MOST_ERRORS * len(measured),
    )


def not_judged(gaps: Sequence[Gap]) -> Verdict:
    """One verdict for all gaps: its evidence lists the codes by their reason."""
    by_reason: dict[str, list[str]] = {}
    for code, reason in gaps:
        by_reason.setdefault(reason, []).append(code)
    # what leaves most codes open comes first
    reasons = sorted(by_reason.items(), key=lambda each: -len(each[1]))
    evidence = "; ".join(f"{sentence(codes)}: {reason}" for reason, codes in reasons)
    return Verdict(code="not_judged", confidence="high", evidence=evidence)
