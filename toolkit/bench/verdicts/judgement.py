"""What explains a host's speed: all rules over one host's facts, their accusations, and what could not be judged.

Nobody is called clean for want of evidence: for that the checks of duplicates, counters, lengths and the model must all
have had what they need. What a start or a queue looked like explains no lead, so a gap there is only named.

No rule's finding is another's: what a replayed answer explains is not held against the host as a hidden backend, an
answer cut short is no foreign traffic, and a broken request may have cost anything. Where two causes hide each other,
e.g., others' load that fills the gap a response cache leaves in the counters, the rules say what still shows, with less
confidence. No network, no clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.bench.counters import Account, account
from toolkit.bench.evidence import sentence, usage
from toolkit.bench.levels import LevelFigures
from toolkit.bench.verdicts.cold import cold, has_later, may_be_cold
from toolkit.bench.verdicts.fast_failures import fast_failures
from toolkit.bench.verdicts.foreign_traffic import foreign_traffic
from toolkit.bench.verdicts.hidden_backend import hidden_backend
from toolkit.bench.verdicts.inflated_usage import inflated_usage
from toolkit.bench.verdicts.model_mismatch import is_opaque, model_mismatch
from toolkit.bench.verdicts.response_cache import Replays, replays, response_cache, why_unknown
from toolkit.bench.verdicts.saturated import saturated
from toolkit.bench.verdicts.truncated_output import are_short_and_alone, truncated_output
from toolkit.records import (
    MOST_ERRORS,
    Confidence,
    Host,
    Ledger,
    RequestRecord,
    ServedModel,
    Verdict,
)
from toolkit.units import whole

NO_PEERS: Mapping[str, Sequence[RequestRecord]] = {}
NO_RIVALS: Mapping[str, Sequence[ServedModel]] = {}
DUPLICATES = frozenset({"response_cache"})
COUNTERS = frozenset({"hidden_backend", "foreign_traffic"})
LENGTHS = frozenset({"truncated_output", "inflated_usage"})
MODEL = frozenset({"model_mismatch"})
ACQUITTING = DUPLICATES | COUNTERS | LENGTHS | MODEL
"""What must have been looked for before a host is called clean."""

Gap = tuple[str, str]
"""A code that could not be judged, and why."""


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

        `not_judged` also stands beside an accusation; it is sure where nobody could be acquitted so, and a hint where only a
        start or a queue could not be judged.
        """
        if not self.account.answers:
            evidence = "most codes: nothing was answered"
            nothing = Verdict(code="not_judged", confidence="high", evidence=evidence)
            return (*self.accusations, nothing)
        if any(code in ACQUITTING for code, _ in self.gaps):
            return (*self.accusations, not_judged(self.gaps))
        if not self.accusations and not self.mostly_fails:
            return (self._clean(),)
        if self.gaps:
            return (*self.accusations, replace(not_judged(self.gaps), confidence="low"))
        return self.accusations

    def _clean(self) -> Verdict:
        """Even counters are a proof; where they are not even, only nothing was found."""
        found = self.account
        is_exact = found.generation_tokens == found.tokens == found.tokens_most and found.agrees
        evidence = f"nothing speaks against its {whole(found.answers)} answers"
        if is_exact:
            counted = f"the server counted the {whole(found.tokens)} tokens that they hold"
            evidence = f"{whole(found.answers)} requests were answered and {counted}"
        if self.gaps:
            evidence += f" (not judged: {not_judged(self.gaps).evidence})"
        confidence: Confidence = "high" if is_exact else "medium"
        return Verdict(code="clean", confidence=confidence, evidence=evidence)


def judgement(
    records: Sequence[RequestRecord],
    ledger: Ledger,
    *,
    host: Host,
    peers: Mapping[str, Sequence[RequestRecord]] = NO_PEERS,
    rivals: Mapping[str, Sequence[ServedModel]] = NO_RIVALS,
    levels: Sequence[LevelFigures] = (),
    is_shared: bool = False,
) -> Judgement:
    """Try all rules on one host in one run.

    `records` are all of its own, `peers` the other hosts' of the same run, `rivals` what these serve. `is_shared`: the counters
    are also moved by requests of ours that went to another address, and `ledger` holds this one's share.
    """
    counted = account(records, ledger)
    found = replays(records, counted, ledger.rtt_ms)
    replayed = found.records
    answered = [record for record in records if record.ok]
    answers = [record for record in answered if record not in replayed]  # the engine's own work

    # what the answers and the counters say against each other
    truncated = truncated_output(answers, ledger, counted, peers)
    inflated = inflated_usage(answers, counted, found, peers, truncated=truncated is not None)
    is_explained = truncated is not None or inflated is not None
    hidden = hidden_backend(answers, counted, found, explained=is_explained)
    # what another address cut short, the engine that both share made whole
    is_cut = truncated is not None or is_shared
    foreign = foreign_traffic(ledger, counted, found, truncated=is_cut)

    # what the host says of itself, and its times
    failures = fast_failures(records, replayed)
    mismatch = model_mismatch(host, ledger, answered, rivals)
    start = cold(records, replayed)
    full = saturated(records, ledger, levels, replayed, was_cold=start is not None)

    tried = (response_cache(found), truncated, inflated, hidden, foreign)
    accusations = [each for each in (*tried, failures, mismatch, start, full) if each]
    accused = {verdict.code for verdict in accusations}
    gaps = [
        *_without_counters(records, answers, ledger, peers, levels),
        *_without_answers(records, answers, ledger, found, counted),
    ]
    if not ledger.models_before and not ledger.models_after:
        gaps.append(("model_mismatch", "no list of models"))
    elif is_opaque(host, ledger, rivals):
        why = "the names that it serves do not say which model they mean"
        gaps.append(("model_mismatch", why))
    measured = [record for record in records if record.kind != "warmup"]
    return Judgement(
        accusations=tuple(accusations),
        gaps=tuple(gap for gap in gaps if gap[0] not in accused),
        account=counted,
        mostly_fails=sum(not record.ok for record in measured) > MOST_ERRORS * len(measured),
    )


def not_judged(gaps: Sequence[Gap]) -> Verdict:
    """Codes by the reason why nobody can tell, in one sentence."""
    by_reason: dict[str, list[str]] = {}
    for code, reason in gaps:
        by_reason.setdefault(reason, []).append(code)
    evidence = "; ".join(f"{sentence(codes)}: {reason}" for reason, codes in by_reason.items())
    return Verdict(code="not_judged", confidence="high", evidence=evidence)


# --- what could not be judged ---------------------------------------------------------------------------


def _without_counters(
    records: Sequence[RequestRecord],
    answers: Sequence[RequestRecord],
    ledger: Ledger,
    peers: Mapping[str, Sequence[RequestRecord]],
    levels: Sequence[LevelFigures],
) -> Iterator[Gap]:
    why = ledger.error or "the server does not count it"
    if ledger.restarted:
        why = "the server started anew during the run"
    if ledger.generation_tokens is None:
        yield "hidden_backend", why
        if ledger.requests is None:
            yield "foreign_traffic", why
    open_loop = any(record.concurrency is None for record in records)
    if ledger.queue_mean_ms is None and not open_loop and len(levels) < 2:
        yield "saturated", why
    if are_short_and_alone(answers, ledger, peers):
        yield "truncated_output", "answers of one token, and nobody to compare them with"


def _without_answers(
    records: Sequence[RequestRecord],
    answers: Sequence[RequestRecord],
    ledger: Ledger,
    found: Replays,
    counted: Account,
) -> Iterator[Gap]:
    if reason := why_unknown(found, counted):
        yield "response_cache", reason
    if all(usage(record) is None for record in answers):
        yield "inflated_usage", "no answer tells its usage"
    elif ledger.generation_tokens is None and not any(record.token_chunks for record in answers):
        yield "inflated_usage", "without counters and streams nothing confirms a claim"
    if not has_later(records):
        yield "cold", "no new request followed the first answers"
    elif may_be_cold(records, found.records):
        yield (
            "cold",
            "the first answers stood still, and too few later ones show that this has an end",
        )
