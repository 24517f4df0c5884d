"""Requests as they arrived, laid out as columns, for tests of what statistics say about them."""

from collections.abc import Sequence
from typing import Any

from toolkit.records import Asked, Seen
from toolkit.workload import RequestColumns, columns

TOLD = ("status", "ttft_ms", "latency_ms", "output_tokens", "finish_reason", "in_flight", "cache")
"""Fields of Seen that a test may give for each request; all others are Asked's."""


def body(prompt: object, exact: object = None, **fields: Any) -> Asked:
    """A body that asks a prompt; as itself unless `exact` tells it from others with the same prompt."""
    told = {"body_bytes": 100, "request_key": f"r{prompt}", "prompt_key": f"p{prompt}", **fields}
    return Asked(exact_key=f"x{prompt}/{exact}", **told)


def arrived(
    prompts: Sequence[object], ts: Sequence[float] | None = None, **each: Any
) -> RequestColumns:
    """One request a prompt, a second apart unless told; a list among `each` has a value for each request."""
    times = [float(at) for at in range(len(prompts))] if ts is None else list(ts)
    rows = []
    for index, (prompt, at) in enumerate(zip(prompts, times, strict=True)):
        mine = {
            name: value[index] if isinstance(value, list) else value for name, value in each.items()
        }
        seen = {name: mine.pop(name) for name in (*TOLD, "client", "usage") if name in mine}
        seen["prompt_tokens"] = seen.pop("usage", None)
        # bodies with other fields are other bodies
        asked = body(prompt, sorted(mine.items()), **mine)
        rows.append(Seen(ts=at, asked=asked, **seen))
    return columns(rows)
