"""Which hosts are addresses of one engine, e.g., its own and a gateway's: its counters move by the requests to all of them.

Judged by one address's requests alone, those to the others would be foreign traffic. So each address is judged by its own share
of the counters, and its verdict names the other addresses and how much latency it adds. No network, no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median

from toolkit.bench.counters import Account, account, least_tokens
from toolkit.bench.evidence import beside, of, sentence, share
from toolkit.bench.verdicts.replays import replays
from toolkit.metrics.dialects import EngineNumbers
from toolkit.records import START_SLACK_S, Ledger, RequestRecord, Verdict
from toolkit.units import spoken_ms

SAME_COUNT = 0.02
"""Two readings of one counter may differ by this part: they are not of one moment, and others' requests may move it between."""
LEAST_PAIRS = 4
LEAST_MAJORITY = 0.75
"""Of equal prompts must have taken longer at one address: with fewer it may be chance."""


def shared_engines(
    accounts: Mapping[str, Account],
    ledgers: Mapping[str, Ledger],
    pages: Mapping[str, EngineNumbers | None],
) -> dict[str, tuple[str, ...]]:
    """Host -> the other addresses of its engine, for those that have any.

    Their pages show the same settings and start time. As two engines of one fleet may do so, too, their counters must also have
    moved by the same, and by more than either was sent.
    """
    shared: dict[str, list[str]] = {}
    for one, other in combinations(ledgers, 2):
        page, other_page = pages.get(one), pages.get(other)
        if page is None or other_page is None:
            continue
        if page.started_at is None or other_page.started_at is None:
            continue
        a, b = ledgers[one], ledgers[other]
        counts = (
            (a.requests, b.requests),
            (a.prompt_tokens, b.prompt_tokens),
            (a.generation_tokens, b.generation_tokens),
        )
        if (
            (page.engine, page.settings) == (other_page.engine, other_page.settings)
            and abs(page.started_at - other_page.started_at) <= START_SLACK_S
            and all(
                x is not None and y is not None and abs(x - y) <= SAME_COUNT * max(x, y)
                for x, y in counts
            )
            and all((accounts[name].surplus_requests or 0.0) > 0 for name in (one, other))
        ):
            shared.setdefault(one, []).append(other)
            shared.setdefault(other, []).append(one)
    return {name: tuple(others) for name, others in shared.items()}


def own_share(name: str, records: Mapping[str, Sequence[RequestRecord]], ledger: Ledger) -> Ledger:
    """The part of an engine's counter deltas that is one address's: what the requests to the others moved is subtracted.

    `records` are those of all its addresses. An answer that another address replayed never reached the engine, and stays out of it.
    """
    own = account(records[name], ledger)
    requests, tokens = ledger.requests, ledger.generation_tokens
    broken, unsure_tokens = 0.0, 0.0
    for other, theirs in records.items():
        if other == name:
            continue
        # its replayed answers are those that are missing once everybody else's requests are subtracted from the counters
        rest = account((r for each in records if each != other for r in records[each]), ledger)
        left = replace(
            ledger,
            requests=_minus(ledger.requests, rest.answers),
            generation_tokens=_minus(ledger.generation_tokens, rest.tokens),
        )
        sums = account(theirs, left)
        replayed = replays(theirs, sums, ledger.rtt_ms).records
        generated = [record for record in theirs if record.ok and record not in replayed]
        requests = _minus(requests, len(generated))
        tokens = _minus(tokens, sum(map(least_tokens, generated)))
        broken += sums.broken
        unsure_tokens += sums.tokens_most - sums.tokens

    # their broken requests may have reached it: they did, as far as this address's own requests leave a rest to explain
    if requests is not None:
        requests -= min(broken, max(0.0, requests - own.answers - own.broken))
    if tokens is not None:
        tokens -= min(unsure_tokens, max(0.0, tokens - own.tokens_most))
    return replace(ledger, requests=requests, generation_tokens=tokens)


def _minus(counted: float | None, explained: float) -> float | None:
    return None if counted is None else max(0.0, counted - explained)


def same_engine(name: str, records: Mapping[str, Sequence[RequestRecord]]) -> Verdict:
    """Name the other addresses, and how much later equal prompts get their first token here than there."""
    others = [other for other in records if other != name]
    why = "settings and start are the same, and its counters move by the requests to all of these addresses"
    clauses = [f"same engine as {sentence(others)}: {why}"]
    answers = [record for record in records[name] if record.ok]
    for other in others:
        added_ms = [
            record.ttft_ms - other_ms
            for record, equal in beside(answers, records[other])
            if record.ttft_ms is not None and (other_ms := equal[-1].ttft_ms) is not None
        ]
        longer = sum(ms > 0 for ms in added_ms)
        longer_share = share(longer, len(added_ms))
        of_prompts = of(longer, len(added_ms), "equal prompts")
        if len(added_ms) < LEAST_PAIRS:
            clauses.append(f"too few equal prompts tell what it adds to {other}")
        elif longer_share >= LEAST_MAJORITY:
            added = f"it adds {spoken_ms(median(added_ms))} to the first token of {other}"
            clauses.append(f"{added} (median; {of_prompts} took longer)")
        elif longer_share > 1 - LEAST_MAJORITY:  # with less, the other address is the slower one
            noise = f"lost in the noise of {of_prompts} that took longer here"
            clauses.append(f"what it adds to {other} is {noise}")
    return Verdict(code="same_engine", confidence="high", evidence="; ".join(clauses))
