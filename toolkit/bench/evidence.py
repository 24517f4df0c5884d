"""What a single record says that several verdicts need, and how figures are spelled in their sentences.

It accuses nobody: no threshold stands here.
"""

from collections.abc import Iterable, Sequence
from statistics import median

from toolkit.records import RequestRecord
from toolkit.safe_text import printable

LONGEST_QUOTE = 80
"""Characters. A host may call its model what it likes, and a sentence must stay one."""

LEAST_LATER = 3
"""Answers after the first wave, to compare that with."""

NOT_TWINS = frozenset({"unique", "repeat"})
"""Kinds of measured requests whose slot names the same prompt at every host; which one a twin repeats differs."""


def middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known; None of nothing."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def share(part: float, whole: float) -> float:
    """A part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0


def started_at(record: RequestRecord) -> float:
    """When its latency began: the planned send in an open loop, the actual one in a closed loop."""
    closed = record.concurrency is not None
    return record.sent_at if closed and record.sent_at is not None else record.planned_at


def ended_at(record: RequestRecord) -> float | None:
    """When the answer or the error was there, wall clock of this machine; None where nobody noted that."""
    return None if record.took_ms is None else over_at(record)


def over_at(record: RequestRecord) -> float:
    """When it was answered, failed or was given up; its own start where nobody noted that."""
    return started_at(record) + (record.took_ms or 0.0) / 1000


def first_wave(records: Sequence[RequestRecord]) -> frozenset[RequestRecord]:
    """What was sent before anything came back; a timeout is an answer's time, too, an error is none."""
    timed = [record for record in records if record.ok or record.error_kind == "timeout"]
    ends = [ended for record in timed if (ended := ended_at(record)) is not None]
    first_end = min(ends, default=0.0)
    return frozenset(s for s in timed if s.sent_at is not None and s.sent_at < first_end)


def served_ms(record: RequestRecord, rtt_ms: float | None) -> float | None:
    """The host's part of an answer's latency: without the round trip and without our own waiting to send."""
    if record.e2e_ms is None:
        return None
    waited_ms = (record.send_lag_ms or 0.0) if record.concurrency is None else 0.0
    return max(0.0, record.e2e_ms - waited_ms - (rtt_ms or 0.0))


def decode_ms_per_token(record: RequestRecord) -> float | None:
    """Time a token after the first, also where one chunk brings them all; None without streaming."""
    tokens = record.output_tokens
    if (
        not record.stream
        or record.ttft_ms is None
        or record.e2e_ms is None
        or not tokens
        or tokens < 2
    ):
        return None
    return max(0.0, record.e2e_ms - record.ttft_ms) / (tokens - 1)


def beside(
    answers: Iterable[RequestRecord], others: Iterable[RequestRecord]
) -> list[tuple[RequestRecord, list[RequestRecord]]]:
    """Each answer with those of `others` to the same prompt, where there are any."""
    theirs: dict[tuple[int, str], list[RequestRecord]] = {}
    for record in others:
        if record.ok and record.kind in NOT_TWINS:
            theirs.setdefault((record.slot, record.prompt), []).append(record)
    return [
        (record, those)
        for record in answers
        if record.kind in NOT_TWINS and (those := theirs.get((record.slot, record.prompt)))
    ]


def usage(record: RequestRecord) -> int | None:
    """Output tokens as the server claims them; an estimate from chunks is no claim."""
    return None if record.output_tokens_estimated else record.output_tokens


def of(part: float, whole: float, things: str) -> str:
    """A share in words: `7 of 8 answers`."""
    return f"{part:,.0f} of {whole:,.0f} {things}"


def quoted(text: str) -> str:
    """What a host said, between backticks: short, and without what would act on a terminal."""
    return f"`{printable(text[:LONGEST_QUOTE])}{'…' if len(text) > LONGEST_QUOTE else ''}`"


def sentence(clauses: Iterable[str]) -> str:
    """Join clauses: `a`, `a and b`, `a, b, and c`."""
    known = list(clauses)
    if len(known) < 3:
        return " and ".join(known)
    return f"{', '.join(known[:-1])}, and {known[-1]}"
