"""What explains a host's speed: all rules over one host's facts, their accusations, and what could not be judged.

No rule's finding is another's: what a replayed answer explains is not held against the host as a hidden backend, an
answer cut short is no foreign traffic, and a broken request may have cost anything. Where two causes hide each other,
e.g., others' load that fills the gap a response cache leaves in the counters, the rules say what still shows, with less
confidence. No network, no clock.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolkit.bench.counters import Account, account
from toolkit.bench.evidence import count, sentence, usage
from toolkit.bench.identity import is_opaque, model_mismatch
from toolkit.bench.integrity import foreign_traffic, hidden_backend, inflated_usage
from toolkit.bench.ladder import Rung
from toolkit.bench.replays import (
    LEAST_REPLAYS,
    Replays,
    replays,
    response_cache,
    why_not_told,
)
from toolkit.bench.speed import cold, fast_failures, has_later, may_be_cold, saturated
from toolkit.bench.truncation import are_short_and_alone, truncated_output
from toolkit.records import Host, Ledger, Shot, Verdict

NO_PEERS: Mapping[str, Sequence[Shot]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One host in one run, and what several rules need of it."""

    shots: Sequence[Shot]
    ledger: Ledger
    host: Host
    peers: Mapping[str, Sequence[Shot]]
    rungs: Sequence[Rung]
    account: Account
    replays: Replays
    replayed: frozenset[Shot]
    answers: Sequence[Shot]
    """What was answered and not replayed: the engine's own work."""


def verdicts(
    shots: Sequence[Shot],
    ledger: Ledger,
    *,
    host: Host,
    peers: Mapping[str, Sequence[Shot]] = NO_PEERS,
    rungs: Sequence[Rung] = (),
) -> tuple[Verdict, ...]:
    """Judge one host in one run: `shots` are all of its own, `peers` the other hosts' of the same run.

    Accusations, else `clean` when anything was answered; beside either, `not_judged` when it must be said.
    """
    books = account(shots, ledger)
    found = replays(shots, books, ledger.rtt_ms)
    replayed = found.shots
    case = _Case(
        shots=shots,
        ledger=ledger,
        host=host,
        peers=peers,
        rungs=rungs,
        account=books,
        replays=found,
        replayed=replayed,
        answers=[shot for shot in shots if shot.ok and shot not in replayed],
    )
    told = [*_of_answers(case), *_of_host(case)]
    accused = {verdict.code for verdict in told}
    if not told and books.answers:
        told.append(_clean(books))
    if gaps := _not_judged(case, accused):
        told.append(Verdict(code="not_judged", confidence="high", evidence=gaps))
    return tuple(told)


def would_show(shots: Sequence[Shot], ledger: Ledger, peers: Mapping[str, Sequence[Shot]]) -> bool:
    """Whether twins and peers are enough to see a response cache and a first-token trick without any counters."""
    answers = [shot for shot in shots if shot.ok]
    twins = sum(shot.kind == "twin" for shot in answers)
    return twins >= LEAST_REPLAYS and not are_short_and_alone(answers, ledger, peers)


def _of_answers(case: _Case) -> Iterator[Verdict]:
    """What the answers and the counters say against each other."""
    books, found = case.account, case.replays
    cache = response_cache(found)
    truncated = truncated_output(case.answers, case.ledger, books, case.peers)
    inflated = None
    if truncated is None:  # else the text is short of the claim because it was cut
        inflated = inflated_usage(case.answers, books, found, case.peers)
    hidden = hidden_backend(
        case.answers, books, found, explained=truncated is not None or inflated is not None
    )
    foreign = foreign_traffic(case.ledger, books, found, truncated=truncated is not None)
    yield from (each for each in (cache, truncated, inflated, hidden, foreign) if each)


def _of_host(case: _Case) -> Iterator[Verdict]:
    """What the host says of itself, and its times."""
    failures = fast_failures(case.shots, case.replayed)
    mismatch = model_mismatch(case.host, case.ledger, [shot for shot in case.shots if shot.ok])
    start = cold(case.shots, case.replayed)
    full = saturated(case.shots, case.ledger, case.rungs, case.replayed, was_cold=start is not None)
    yield from (each for each in (failures, mismatch, start, full) if each)


def _clean(books: Account) -> Verdict:
    """Exact books are a proof; without them only nothing was found."""
    if books.generation_tokens == books.tokens == books.tokens_most and books.agrees:
        counted = f"the server counted the {count(books.tokens)} tokens that they hold"
        evidence = f"{count(books.answers)} requests were answered and {counted}"
        return Verdict(code="clean", confidence="high", evidence=evidence)
    evidence = f"nothing speaks against its {count(books.answers)} answers"
    return Verdict(code="clean", confidence="medium", evidence=evidence)


# --- what could not be judged ---------------------------------------------------------------------------


def _not_judged(case: _Case, accused: set[str]) -> str:
    """Codes by the reason why nobody can tell, in one sentence; empty when all were judged."""
    if not case.account.answers:
        return "most codes: nothing was answered"
    by_reason: dict[str, list[str]] = {}
    for code, reason in (*_without_counters(case), *_without_answers(case)):
        if code not in accused:
            by_reason.setdefault(reason, []).append(code)
    return "; ".join(f"{sentence(codes)}: {reason}" for reason, codes in by_reason.items())


def _without_counters(case: _Case) -> Iterator[tuple[str, str]]:
    ledger, why = case.ledger, _no_counters(case.ledger)
    if ledger.generation_tokens is None:
        yield "hidden_backend", why
        if ledger.requests is None:
            yield "foreign_traffic", why
    open_loop = any(shot.concurrency is None for shot in case.shots)
    if ledger.queue_mean_ms is None and not open_loop and len(case.rungs) < 2:
        yield "saturated", why
    if are_short_and_alone(case.answers, ledger, case.peers):
        yield "truncated_output", "answers of one token, and nobody to compare them with"


def _no_counters(ledger: Ledger) -> str:
    if ledger.restarted:
        return "the server started anew during the run"
    return ledger.error or "the server does not count it"


def _without_answers(case: _Case) -> Iterator[tuple[str, str]]:
    if reason := why_not_told(case.replays, case.account):
        yield "response_cache", reason
    if all(usage(shot) is None for shot in case.answers):
        yield "inflated_usage", "no answer tells its usage"
    elif case.ledger.generation_tokens is None and not any(s.token_chunks for s in case.answers):
        yield "inflated_usage", "without counters and streams nothing confirms a claim"
    if not has_later(case.shots):
        yield "cold", "no new request followed the first answers"
    elif may_be_cold(case.shots, case.replayed):
        yield (
            "cold",
            "the first answers stood still, and too few later ones show that this has an end",
        )
    if not case.ledger.models_before and not case.ledger.models_after:
        yield "model_mismatch", "no list of models"
    elif is_opaque(case.host, case.ledger):
        yield "model_mismatch", "the names that it serves do not say which model they mean"
