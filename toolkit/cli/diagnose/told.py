"""What somebody tells `toolkit diagnose` beside what it sees: the server's startup log, or which model runs on which GPU."""

from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.serving.startup_log import Startup
from toolkit.tuning.evidence import Evidence, merged

MOST_LOG_BYTES = 16 * 2**20
"""A start is told in its first kilobytes; what follows are requests."""


def evidence_told(log: Path | None, model: str | None, gpu: str | None) -> Evidence:
    """All of it; what the server itself wrote goes before what was reckoned. Raises ToolkitError."""
    reckoned = evidence_of_model(model, gpu) if model and gpu else Evidence()
    return merged((evidence_of_log(log) if log else Evidence(), reckoned))


def evidence_of_log(path: Path) -> Evidence:
    """What vLLM says of itself while it starts. Each worker speaks of its own GPU. Raises ToolkitError."""
    facts = _started(path).facts
    share = None
    if facts.weights_gib is not None and facts.gpu_total_gib:
        share = facts.weights_gib / facts.gpu_total_gib
    found = Evidence(
        weights_share=share,
        gpu_memory_utilization=facts.utilization,
        max_model_len=facts.max_model_len,
        kv_cache_tokens=facts.kv_tokens,
    )
    if found == Evidence():
        raise ToolkitError(
            f"`{path}` tells nothing of a start of vLLM",
            "Name the log from its first line on; `toolkit serve` keeps one for each engine in its folder",
        )
    return found


def _started(path: Path) -> Startup:
    startup = Startup()
    try:
        with path.open("rb") as file:
            text = file.read(MOST_LOG_BYTES).decode(errors="replace")
    except OSError as error:
        reason = (error.strerror or "no reason given").lower()
        raise ToolkitError(f"`{path}` cannot be read: {reason}", "Name vLLM's log") from error
    for line in text.splitlines():
        startup.feed(line)
    return startup


def evidence_of_model(model: str, gpu: str) -> Evidence:
    """How much of one GPU the weights take, as `toolkit plan` reckons them. Raises ToolkitError for what it does not know."""
    from toolkit.plan.catalog import gpu_of, model_of
    from toolkit.plan.weights import weights_bytes

    known = model_of(model)
    weights = weights_bytes(known.shape, None, on_disk=known.on_disk)
    return Evidence(weights_share=weights / gpu_of(gpu).memory_bytes)
