"""Was the measuring machine the limit? Pure: figures in, a judgement out."""

from dataclasses import dataclass

MOST_LOOP_LAG_MS = 20.0
MOST_SEND_LAG_MS = 50.0
MOST_CPU_SHARE = 0.85
"""Past any of these the client's own delay is in every figure (other tools warn at 85 to 90 % CPU and at
lags of 10 to 500 ms; ours are the strict ones that still let a busy laptop pass)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """How late this machine was and what it cost; `ok` False: its figures describe itself."""

    loop_lag_p99_ms: float | None
    """How late the event loop ran what was due, p99."""
    send_lag_p99_ms: float | None
    """Actual send - planned send, p99."""
    cpu_share: float | None
    """CPU time / wall time of this process: 1 is a whole core."""
    ok: bool
    why: str | None
    """What was past its limit, in one sentence."""


def fitness(
    *, loop_lag_p99_ms: float | None, send_lag_p99_ms: float | None, cpu_share: float | None
) -> Fitness:
    """Judge the client by its own lateness and load; what is unknown accuses nobody."""
    faults = []
    if loop_lag_p99_ms is not None and loop_lag_p99_ms > MOST_LOOP_LAG_MS:
        faults.append(f"its event loop was {loop_lag_p99_ms:.0f} ms late (p99)")
    if send_lag_p99_ms is not None and send_lag_p99_ms > MOST_SEND_LAG_MS:
        faults.append(f"requests left {send_lag_p99_ms:.0f} ms late (p99)")
    if cpu_share is not None and cpu_share > MOST_CPU_SHARE:
        faults.append(f"it used {cpu_share:.0%} of a core")
    return Fitness(
        loop_lag_p99_ms=loop_lag_p99_ms,
        send_lag_p99_ms=send_lag_p99_ms,
        cpu_share=cpu_share,
        ok=not faults,
        why=", ".join(faults) or None,
    )
