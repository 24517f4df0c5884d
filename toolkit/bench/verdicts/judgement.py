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
from toolkit.bench.verdicts.response_cache import Replays, replays, response_cache, why_not_told
from toolkit.bench.verdicts.saturated import saturated
from toolkit.bench.verdicts.truncated_output import are_short_and_alone, truncated_output
from toolkit.records import MOST_ERRORS, Host, Ledger, ServedModel, Shot, Verdict
from toolkit.units import whole

NO_PEERS: Mapping[str, Sequence[Shot]] = {}
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
class _HostCase:
    """One host in one run, and what several rules need of it."""

    shots: Sequence[Shot]
    ledger: Ledger
    host: Host
    peers: Mapping[str, Sequence[Shot]]
    rivals: Mapping[str, Sequence[ServedModel]]
    levels: Sequence[LevelFigures]
    is_shared: bool
    account: Account
    replays: Replays
    replayed: frozenset[Shot]
    answers: Sequence[Shot]
    """What was answered and not replayed: the engine's own work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What all rules say of one host."""

    accusations: tuple[Verdict, ...]
    gaps: tuple[Gap, ...]
    """What could not be judged; never a code that is accused."""
    account: Account


def judgement(
    shots: Sequence[Shot],
    ledger: Ledger,
    *,
    host: Host,
    peers: Mapping[str, Sequence[Shot]] = NO_PEERS,
    rivals: Mapping[str, Sequence[ServedModel]] = NO_RIVALS,
    levels: Sequence[LevelFigures] = (),
    is_shared: bool = False,
) -> Judgement:
    """Try all rules on one host in one run.

    `shots` are all of its own, `peers` the other hosts' of the same run, `rivals` what these serve. `is_shared`: the counters
    are also moved by requests of ours that went to another address, and `ledger` holds this one's share.
    """
    books = account(shots, ledger)
    found = replays(shots, books, ledger.rtt_ms)
    replayed = found.shots
    case = _HostCase(
        shots=shots,
        ledger=ledger,
        host=host,
        peers=peers,
        rivals=rivals,
        levels=levels,
        is_shared=is_shared,
        account=books,
        replays=found,
        replayed=replayed,
        answers=[shot for shot in shots if shot.ok and shot not in replayed],
    )
    accusations = (*_of_answers(case), *_of_host(case))
    accused = {verdict.code for verdict in accusations}
    gaps = (*_without_counters(case), *_without_answers(case))
    return Judgement(
        accusations=accusations,
        gaps=tuple(gap for gap in gaps if gap[0] not in accused),
        account=books,
    )


def verdicts(
    shots: Sequence[Shot],
    ledger: Ledger,
    *,
    host: Host,
    peers: Mapping[str, Sequence[Shot]] = NO_PEERS,
    rivals: Mapping[str, Sequence[ServedModel]] = NO_RIVALS,
    levels: Sequence[LevelFigures] = (),
    is_shared: bool = False,
) -> tuple[Verdict, ...]:
    """Judge one host in one run, see `judgement`.

    Accusations, else `clean` where enough was judged and most requests were answered, else `not_judged`. That also stands beside an accusation; it is sure
    where nobody could be acquitted so, and a hint where only a start or a queue could not be judged.
    """
    found = judgement(
        shots, ledger, host=host, peers=peers, rivals=rivals, levels=levels, is_shared=is_shared
    )
    told = list(found.accusations)
    measured = [shot for shot in shots if shot.kind != "warmup"]
    fails = sum(not shot.ok for shot in measured) > MOST_ERRORS * len(measured)
    if not found.account.answers:
        evidence = "most codes: nothing was answered"
        told.append(Verdict(code="not_judged", confidence="high", evidence=evidence))
    elif any(code in ACQUITTING for code, _ in found.gaps):
        told.append(not_judged(found.gaps))
    elif not told and not fails:
        told.append(_clean(found))
    elif found.gaps:
        told.append(replace(not_judged(found.gaps), confidence="low"))
    return tuple(told)


def not_judged(gaps: Sequence[Gap]) -> Verdict:
    """Codes by the reason why nobody can tell, in one sentence."""
    by_reason: dict[str, list[str]] = {}
    for code, reason in gaps:
        by_reason.setdefault(reason, []).append(code)
    evidence = "; ".join(f"{sentence(codes)}: {reason}" for reason, codes in by_reason.items())
    return Verdict(code="not_judged", confidence="high", evidence=evidence)


def _of_answers(case: _HostCase) -> Iterator[Verdict]:
    """What the answers and the counters say against each other."""
    books, found = case.account, case.replays
    cache = response_cache(found)
    truncated = truncated_output(case.answers, case.ledger, books, case.peers)
    inflated = inflated_usage(
        case.answers, books, found, case.peers, truncated=truncated is not None
    )
    hidden = hidden_backend(
        case.answers, books, found, explained=truncated is not None or inflated is not None
    )
    # what another address cut short, the engine that both share made whole
    is_cut = truncated is not None or case.is_shared
    foreign = foreign_traffic(case.ledger, books, found, truncated=is_cut)
    yield from (each for each in (cache, truncated, inflated, hidden, foreign) if each)


def _of_host(case: _HostCase) -> Iterator[Verdict]:
    """What the host says of itself, and its times."""
    failures = fast_failures(case.shots, case.replayed)
    answers = [shot for shot in case.shots if shot.ok]
    mismatch = model_mismatch(case.host, case.ledger, answers, case.rivals)
    start = cold(case.shots, case.replayed)
    full = saturated(
        case.shots, case.ledger, case.levels, case.replayed, was_cold=start is not None
    )
    yield from (each for each in (failures, mismatch, start, full) if each)


def _clean(found: Judgement) -> Verdict:
    """Exact books are a proof; where they are not even, only nothing was found."""
    books = found.account
    is_exact = books.generation_tokens == books.tokens == books.tokens_most and books.agrees
    evidence = f"nothing speaks against its {whole(books.answers)} answers"
    if is_exact:
        counted = f"the server counted the {whole(books.tokens)} tokens that they hold"
        evidence = f"{whole(books.answers)} requests were answered and {counted}"
    if found.gaps:
        evidence += f" (not judged: {not_judged(found.gaps).evidence})"
    return Verdict(code="clean", confidence="high" if is_exact else "medium", evidence=evidence)


# --- what could not be judged ---------------------------------------------------------------------------


def _without_counters(case: _HostCase) -> Iterator[Gap]:
    ledger, why = case.ledger, _no_counters(case.ledger)
    if ledger.generation_tokens is None:
        yield "hidden_backend", why
        if ledger.requests is None:
            yield "foreign_traffic", why
    open_loop = any(shot.concurrency is None for shot in case.shots)
    if ledger.queue_mean_ms is None and not open_loop and len(case.levels) < 2:
        yield "saturated", why
    if are_short_and_alone(case.answers, ledger, case.peers):
        yield "truncated_output", "answers of one token, and nobody to compare them with"


def _no_counters(ledger: Ledger) -> str:
    if ledger.restarted:
        return "the server started anew during the run"
    return ledger.error or "the server does not count it"


def _without_answers(case: _HostCase) -> Iterator[Gap]:
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
    elif is_opaque(case.host, case.ledger, case.rivals):
        yield "model_mismatch", "the names that it serves do not say which model they mean"
