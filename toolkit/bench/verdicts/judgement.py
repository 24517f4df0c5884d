"""What explains a host's speed: every rule tried on one host's requests and counters, and what could not be judged.

`clean` needs evidence, too: a host is only called so if duplicates, counters, lengths and the model could all be checked.
What could not be checked is a gap, with its reason. Nothing about a start or a queue explains a lead over other hosts, so
a gap there is named and changes nothing.

One cause is reported once: tokens that a replayed answer explains are no hidden backend, those of an answer cut short are
no foreign traffic, and a failed request may have cost anything up to its `max_tokens`. Two causes can also hide each
other, e.g., others' load fills the gap that a response cache leaves in the counters: the rules then report what still
shows, with less confidence. No network, no clock.
"""

from collections.abc import Mapping, Sequence
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
from toolkit.bench.verdicts.response_cache import replays, response_cache, why_unknown
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
NEEDED_FOR_CLEAN = DUPLICATES | COUNTERS | LENGTHS | MODEL
"""Codes that must have been judged before a host is called clean."""

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
            evidence = f"nothing speaks against its {whole(ours.answers)} answers"
        if self.gaps:
            evidence += f" (not judged: {not_judged(self.gaps).evidence})"
        confidence: Confidence = "high" if is_exact else "medium"
        return (Verdict(code="clean", confidence=confidence, evidence=evidence),)


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

    `records` are all requests to this host, `peers` those to the other hosts of the run, `rivals` the models that these
    serve. `is_shared`: requests of ours to another address move this host's counters, too; `ledger` is then its share.
    """
    ours = account(records, ledger)
    replayed = replays(records, ours, ledger.rtt_ms)
    answered = [record for record in records if record.ok]
    generated = [record for record in answered if record not in replayed.records]

    # do the answers and the counters contradict each other?
    truncated = truncated_output(generated, ledger, ours, peers)
    inflated = inflated_usage(generated, ours, replayed, peers, truncated=truncated is not None)
    is_explained = truncated is not None or inflated is not None
    hidden = hidden_backend(generated, ours, replayed, explained=is_explained)
    # on a shared engine the other address may have cut answers short that the engine wrote whole
    is_cut = truncated is not None or is_shared
    foreign = foreign_traffic(ledger, ours, replayed, truncated=is_cut)

    # what do its failures, its list of models and its times say?
    failures = fast_failures(records, replayed.records)
    mismatch = model_mismatch(host, ledger, answered, rivals)
    cold_start = cold(records, replayed.records)
    was_cold = cold_start is not None
    saturation = saturated(records, ledger, levels, replayed.records, was_cold=was_cold)

    found = (
        response_cache(replayed),
        *(truncated, inflated, hidden, foreign),
        *(failures, mismatch, cold_start, saturation),
    )
    accusations = tuple(verdict for verdict in found if verdict)

    # what could not be judged: for want of counters,
    gaps: list[Gap] = []
    no_counters = ledger.error or "the server does not count it"
    if ledger.restarted:
        no_counters = "the server started anew during the run"
    if ledger.generation_tokens is None:
        gaps.append(("hidden_backend", no_counters))
        if ledger.requests is None:
            gaps.append(("foreign_traffic", no_counters))
    is_open_loop = any(record.concurrency is None for record in records)
    if ledger.queue_mean_ms is None and not is_open_loop and len(levels) < 2:
        gaps.append(("saturated", no_counters))
    if are_short_and_alone(generated, ledger, peers):
        why = "answers of one token, and nobody to compare them with"
        gaps.append(("truncated_output", why))
    # for want of answers,
    if no_duplicates := why_unknown(replayed, ours):
        gaps.append(("response_cache", no_duplicates))
    if all(usage(record) is None for record in generated):
        gaps.append(("inflated_usage", "no answer tells its usage"))
    elif ledger.generation_tokens is None and not any(record.token_chunks for record in generated):
        why = "without counters and streams nothing confirms a claim"
        gaps.append(("inflated_usage", why))
    if not has_later(records):
        gaps.append(("cold", "no new request followed the first answers"))
    elif may_be_cold(records, replayed.records):
        why = "the first answers stood still, and too few later ones show that this has an end"
        gaps.append(("cold", why))
    # and for want of a model's name
    if not ledger.models_before and not ledger.models_after:
        gaps.append(("model_mismatch", "no list of models"))
    elif is_opaque(host, ledger, rivals):
        why = "the names that it serves do not say which model they mean"
        gaps.append(("model_mismatch", why))

    accused = {verdict.code for verdict in accusations}
    measured = [record for record in records if record.kind != "warmup"]
    return Judgement(
        accusations=accusations,
        gaps=tuple(gap for gap in gaps if gap[0] not in accused),
        account=ours,
        mostly_fails=sum(not record.ok for record in measured) > MOST_ERRORS * len(measured),
    )


def not_judged(gaps: Sequence[Gap]) -> Verdict:
    """One verdict for all gaps: its evidence lists the codes by their reason."""
    by_reason: dict[str, list[str]] = {}
    for code, reason in gaps:
        by_reason.setdefault(reason, []).append(code)
    evidence = "; ".join(f"{sentence(codes)}: {reason}" for reason, codes in by_reason.items())
    return Verdict(code="not_judged", confidence="high", evidence=evidence)
