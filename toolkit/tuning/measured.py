"""Timed requests, the seconds of a blast, and what was asked -> Evidence, as the client sees it. No store, no clock."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from toolkit.profiles import Profile
from toolkit.records import Ledger, Shot, Tally
from toolkit.stats import Sketch
from toolkit.tuning.cells import Cell, summed
from toolkit.tuning.evidence import LEAST_FIRST, Evidence, beginning, first_rank, merged

REFUSED = frozenset({"connect"})
"""Kinds of errors at a door that was not open."""
FIRST_SHARE = 0.1
"""Of a blast's seconds, that count as its beginning; the last half is what they are compared with."""
BLOCK_CHARS = 64
"""Of text, taken for a KV block of 16 tokens."""


def evidence_of_shots(shots: Iterable[Shot]) -> Evidence:
    """What a bench's requests at one host say."""
    measured = [shot for shot in shots if shot.kind != "warmup"]
    answers = [shot for shot in measured if shot.ok]
    if not measured:
        return Evidence()
    gaps = Sketch()
    for shot in answers:
        if shot.itl is not None:
            gaps.merge(Sketch.from_bytes(shot.itl))
    ttft = _sketch(shot.ttft_ms for shot in answers)
    tokens = [shot.prompt_tokens for shot in answers if shot.prompt_tokens is not None]
    longest = [
        shot.prompt_tokens + shot.max_tokens for shot in answers if shot.prompt_tokens is not None
    ]
    found = Evidence(
        requests=len(measured),
        client_ttft_p50_ms=ttft.quantile(0.5),
        client_ttft_p95_ms=ttft.quantile(0.95),
        client_e2e_p50_ms=_sketch(shot.e2e_ms for shot in answers).quantile(0.5),
        tpot_p50_ms=_sketch(shot.tpot_ms for shot in answers).quantile(0.5),
        gap_p50_ms=gaps.quantile(0.5),
        error_share=1 - len(answers) / len(measured),
        refused_share=sum(shot.error_kind in REFUSED for shot in measured) / len(measured),
        prompt_tokens_mean=sum(tokens) / len(tokens) if tokens else None,
        prompt_tokens_p95=_sketch(tokens).quantile(0.95),
        longest_request_tokens=max(longest, default=None),
    )
    return merged((found, _beginning_of_shots(answers)))


def _beginning_of_shots(answers: Sequence[Shot]) -> Evidence:
    """The first wave against the last half."""
    streams = sorted(
        (shot for shot in answers if shot.ttft_ms is not None and shot.sent_at is not None),
        key=lambda shot: shot.sent_at or 0.0,
    )
    wave = max(LEAST_FIRST, streams[0].concurrency or LEAST_FIRST) if streams else 0
    late = streams[max(wave, len(streams) // 2) :]
    if len(late) < LEAST_FIRST:
        return Evidence()
    first = sorted(shot.ttft_ms or 0.0 for shot in streams[:wave])
    return beginning(
        first[LEAST_FIRST - 1], median(shot.ttft_ms or 0.0 for shot in late), len(first)
    )


def evidence_of_seconds(cells: Sequence[Cell], tallies: Iterable[Tally] = ()) -> Evidence:
    """What a blast's seconds at one host say; only tallies know in which way requests failed."""
    whole = summed(cells)
    asked = whole.ok + whole.errors
    if not asked:
        return Evidence()
    found = Evidence(
        interval_s=whole.elapsed_s,
        requests=asked,
        requests_per_s=whole.ok / whole.elapsed_s if whole.elapsed_s else None,
        output_tokens_per_s=whole.output_tokens / whole.elapsed_s if whole.elapsed_s else None,
        client_ttft_p50_ms=whole.ttft.quantile(0.5),
        client_ttft_p95_ms=whole.ttft.quantile(0.95),
        client_e2e_p50_ms=whole.e2e.quantile(0.5),
        tpot_p50_ms=whole.tpot.quantile(0.5),
        error_share=whole.errors / asked,
        refused_share=_refused_share(tallies),
    )
    return merged((found, _beginning_of_seconds(cells)))


def _refused_share(tallies: Iterable[Tally]) -> float | None:
    asked = refused = 0
    for tally in tallies:
        asked += tally.ok + tally.errors
        refused += sum(error.count for error in tally.error_kinds if error.kind in REFUSED)
    return refused / asked if asked else None


def _beginning_of_seconds(cells: Sequence[Cell]) -> Evidence:
    """Streams where there are any, else whole answers."""
    streams = any(cell.ttft.count for cell in cells)
    told = [each for cell in cells if (each := cell.ttft if streams else cell.e2e).count]
    first, later = told[: math.ceil(len(told) * FIRST_SHARE)], told[len(told) // 2 :]
    answers = _together(first)
    if answers.count < LEAST_FIRST or len(first) < LEAST_FIRST or len(later) < LEAST_FIRST:
        return Evidence()
    at_once = _at_once(cells)
    before = answers.quantile(min(1.0, first_rank(at_once, answers.count) / answers.count))
    after = median(each.quantile(0.5) or 0.0 for each in later)
    return beginning(before or 0.0, after, at_once)


def _at_once(cells: Sequence[Cell]) -> int:
    """Requests under way at once, on average (Little's law): by the median answer, as the mean is not kept."""
    whole = summed(cells)
    if not whole.elapsed_s:
        return 0
    return round(whole.ok / whole.elapsed_s * (whole.e2e.quantile(0.5) or 0.0) / 1000)


def _together(sketches: Iterable[Sketch]) -> Sketch:
    whole = Sketch()
    for each in sketches:
        whole.merge(each)
    return whole


def evidence_of_ledger(ledger: Ledger) -> Evidence:
    """What a host's own counters moved by during a bench."""
    requests, queries = ledger.requests, ledger.prefix_queries
    preemptions, hits = ledger.preemptions, ledger.prefix_hits
    return Evidence(
        preemptions_per_request=preemptions / requests
        if preemptions is not None and requests
        else None,
        prefix_hit_ratio=hits / queries if hits is not None and queries else None,
        queue_mean_ms=ledger.queue_mean_ms,
    )


def evidence_of_verdicts(codes: Iterable[str], *, client_ok: bool | None) -> Evidence:
    """What a run's verdicts on a host say; with none at all nobody judged it."""
    told = set(codes)
    judged = bool(told - {"not_judged"})
    return Evidence(
        truncated="truncated_output" in told if judged else None,
        response_cache="response_cache" in told if judged else None,
        client_limited=None if client_ok is None else not client_ok,
    )


def evidence_of_profile(profile: Profile, requests: float) -> Evidence:
    """What a blast's profile says of so many requests at one host.

    By characters, 64 to a block: how much of a prompt's text an earlier one began with, whole blocks only.
    """
    if requests < 1:
        return Evidence()
    repeats = max(0.0, 1 - len(profile.prompts) / requests) * (1 - profile.unique_share)
    texts = [
        "\n".join(str(each.get("content")) for each in one.messages) for one in profile.prompts
    ]
    new = sum(_new_chars(text, texts[:place]) for place, text in enumerate(texts))
    length = sum(map(len, texts))
    again = sum(len(text) // BLOCK_CHARS * BLOCK_CHARS for text in texts) / length if length else 0
    shared = 1 - new / length if length else 0.0
    return Evidence(
        repeat_share=repeats,
        shared_prefix_share=repeats * again + (1 - repeats) * shared,
        chained=any(prompt.then for prompt in profile.prompts),
    )


def _new_chars(text: str, earlier: Iterable[str]) -> int:
    known = max((_common(text, other) for other in earlier), default=0)
    return len(text) - known // BLOCK_CHARS * BLOCK_CHARS


def _common(text: str, other: str) -> int:
    pairs = zip(text, other, strict=False)
    return next(
        (place for place, (one, two) in enumerate(pairs) if one != two), min(len(text), len(other))
    )


def _sketch(values: Iterable[float | None]) -> Sketch:
    sketch = Sketch()
    for value in values:
        if value is not None and math.isfinite(value):
            sketch.add(max(0.0, value))
    return sketch
