"""Whether a host fails sooner than it answers, which a mean over all requests would reward."""

from toolkit.bench.evidence import middle, of, share
from toolkit.bench.verdicts.case import Case, Found
from toolkit.units import spoken_ms

LEAST_FAILURES = 2
LEAST_FAILED = 0.05
"""Two failures, and one request in twenty: less than that moves no median."""
SOONER = 0.5
"""A failure in half the time of an answer."""


def fast_failures(case: Case) -> Found | None:
    """Accuse a host that fails sooner than it answers; one that answers nothing is dead, not fast."""
    measured = [
        record for record in case.records if record.kind != "warmup" and record.sent_at is not None
    ]
    usual = middle(record.took_ms for record in case.generated if record.kind != "warmup")
    if usual is None:
        usual = middle(record.took_ms for record in measured if record.ok)
    if usual is None:
        return None
    fast = [
        record
        for record in measured
        if not record.ok and record.took_ms is not None and record.took_ms <= SOONER * usual
    ]
    if len(fast) < LEAST_FAILURES or share(len(fast), len(measured)) < LEAST_FAILED:
        return None
    failed = middle(record.took_ms for record in fast) or 0.0
    kinds = ", ".join(f"`{kind}`" for kind in sorted({record.error_kind or "?" for record in fast}))
    clause = (
        f"{of(len(fast), len(measured), 'requests')} failed ({kinds}) after {spoken_ms(failed)}"
        f" where answers take {spoken_ms(usual)} (medians)"
    )
    return "high", [clause]
