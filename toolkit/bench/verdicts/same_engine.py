"""Which addresses lead to one engine, e.g., the engine's own and a gateway's: its counters move by the requests to all of them.

Held against one address alone, those of the others would be somebody else's traffic. So each address gets the share of
the counters that the others' requests leave, and is told whose engine it shares and what it adds. No network, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from toolkit.bench.counters import Account, account, least_tokens
from toolkit.bench.evidence import beside, middle, of, sentence, share
from toolkit.bench.verdicts.replays import replays
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import START_SLACK_S, Ledger, RequestRecord, Verdict
from toolkit.units import spoken_ms

ALIKE = 0.02
"""Two readings of one counter that still moves for others' requests are not of one moment."""
LEAST_PAIRS = 4
MOSTLY = 0.75
"""Of equal prompts must have taken longer at one address: else chance decides."""


def is_same_engine(one: EngineNumbers | None, other: EngineNumbers | None) -> bool:
    """Whether two pages may be one engine's: the same settings, and one start."""
    if one is None or other is None or None in (one.started_at, other.started_at):
        return False
    return (one.engine, one.settings) == (other.engine, other.settings) and abs(
        (one.started_at or 0.0) - (other.started_at or 0.0)
    ) <= START_SLACK_S


def shared_engines(
    accounts: Mapping[str, Account],
    ledgers: Mapping[str, Ledger],
    pages: Mapping[str, EngineNumbers | None],
) -> dict[str, tuple[str, ...]]:
    """Host -> the other addresses of its engine, for those that have any.

    Two engines of one fleet may be set and started alike. So their counters must also have moved alike, and by more than
    either was asked.
    """
    shared: dict[str, list[str]] = {}
    for one, other in combinations(ledgers, 2):
        a, b = ledgers[one], ledgers[other]
        moved = (
            (a.requests, b.requests),
            (a.prompt_tokens, b.prompt_tokens),
            (a.generation_tokens, b.generation_tokens),
        )
        if (
            is_same_engine(pages.get(one), pages.get(other))
            and all(
                x is not None and y is not None and abs(x - y) <= ALIKE * max(x, y)
                for x, y in moved
            )
            and all((accounts[name].surplus_requests or 0.0) > 0 for name in (one, other))
        ):
            shared.setdefault(one, []).append(other)
            shared.setdefault(other, []).append(one)
    return {name: tuple(others) for name, others in shared.items()}


def own_share(name: str, records: Mapping[str, Sequence[RequestRecord]], ledger: Ledger) -> Ledger:
    """What the engine's counters moved by for one address; `records` are those of all its addresses.

    Another address's replayed answers never reached the engine. Its broken requests may have: as far as they explain what
    is left, they do.
    """
    requests, tokens = ledger.requests, ledger.generation_tokens
    own = account(records[name], ledger)
    broken, lost_tokens = 0.0, 0.0
    for other, theirs in records.items():
        if other == name:
            continue
        everybody_elses = (s for each, those in records.items() if each != other for s in those)
        rest = account(everybody_elses, ledger)
        left = _with(
            ledger,
            None if ledger.requests is None else ledger.requests - rest.answers,
            None if ledger.generation_tokens is None else ledger.generation_tokens - rest.tokens,
        )
        counted = account(theirs, left)
        found = replays(theirs, counted, ledger.rtt_ms)
        made = [record for record in theirs if record.ok and record not in found.records]
        requests = None if requests is None else requests - len(made)
        tokens = None if tokens is None else tokens - sum(map(least_tokens, made))
        broken += counted.broken
        lost_tokens += counted.tokens_most - counted.tokens
    if requests is not None:
        requests -= min(broken, max(0.0, requests - own.answers - own.broken))
    if tokens is not None:
        tokens -= min(lost_tokens, max(0.0, tokens - own.tokens_most))
    return _with(ledger, requests, tokens)


def _with(ledger: Ledger, requests: float | None, tokens: float | None) -> Ledger:
    return replace(
        ledger,
        requests=None if requests is None else max(0.0, requests),
        generation_tokens=None if tokens is None else max(0.0, tokens),
    )


def same_engine(name: str, records: Mapping[str, Sequence[RequestRecord]]) -> Verdict:
    """Name the other addresses, and what this one adds to them."""
    others = [other for other in records if other != name]
    adds = [clause for other in others if (clause := _adds(records[name], records[other], other))]
    return Verdict(
        code="same_engine",
        confidence="high",
        evidence=f"same engine as {sentence(others)}: settings and start are the same, and its counters move"
        " by the requests to all of these addresses" + "".join(f"; {clause}" for clause in adds),
    )


def _adds(mine: Sequence[RequestRecord], theirs: Sequence[RequestRecord], other: str) -> str | None:
    """How much later equal prompts got their first token here than there; None where the other one has that to tell."""
    later = [
        record.ttft_ms - known
        for record, others in beside((one for one in mine if one.ok), theirs)
        if record.ttft_ms is not None and (known := others[-1].ttft_ms) is not None
    ]
    longer = [each for each in later if each > 0]
    if len(later) < LEAST_PAIRS:
        return f"too few equal prompts tell what it adds to {other}"
    if share(len(longer), len(later)) <= 1 - MOSTLY:
        return None
    if share(len(longer), len(later)) < MOSTLY:
        return f"what it adds to {other} is lost in the noise of {of(len(longer), len(later), 'equal prompts')} that took longer here"
    return (
        f"it adds {spoken_ms(middle(later) or 0.0)} to the first token of {other}"
        f" (median; {of(len(longer), len(later), 'equal prompts')} took longer)"
    )
