"""How long requests are, as plain numbers: told, or read from the JSON of `toolkit workload --json`. It reads no file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import ToolkitError

WRONG_FILE = "Is it the output of `toolkit workload --json`?"
NO_ANSWERS = (
    "Capture with `--full`, or give --prompt-tokens and --output-tokens in place of --workload"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLengths:
    """Lengths in tokens. None: not known."""

    prompt_tokens: float | None = None
    """Of a usual prompt: the mean."""
    output_tokens: float | None = None
    """Of a usual answer."""
    request_tokens: float | None = None
    """Prompt and answer of a usual request: what it holds in memory when it ends."""
    longest: int | None = None
    """Prompt and answer of the longest request; None: as long as the usual one."""
    longest_prompt: int | None = None
    max_model_len: int | None = None
    """As the workload's report recommends it, its room included."""
    told: str = ""
    """Where they come from, if not from the user."""
    notes: tuple[str, ...] = ()


def of_workload(report: Mapping[str, Any]) -> RequestLengths:
    """Read a workload's report. Raises ToolkitError where it tells no lengths."""
    lengths = _part(report, "lengths")
    prompts, answers = _part(lengths, "prompt_tokens"), _part(lengths, "output_tokens")
    prompt = _number(prompts, "mean")
    answer, notes = _answer(answers, _part(lengths, "max_tokens"))
    if prompt is None:
        raise ToolkitError("the workload does not tell how long prompts are", WRONG_FILE)
    if answer is None:
        raise ToolkitError("the workload does not tell how long answers are", NO_ANSWERS)
    return RequestLengths(
        prompt_tokens=prompt,
        output_tokens=answer,
        request_tokens=prompt + answer,
        longest=_longest(report, prompts, answers),
        longest_prompt=_whole(_number(prompts, "max")),
        max_model_len=_whole(_number(report, "recommended_max_model_len")),
        told=_source(report),
        notes=(*notes, *_estimated(lengths)),
    )


def _answer(answers: Mapping[str, Any], asked: Mapping[str, Any]) -> tuple[float | None, list[str]]:
    """As long as they were, else as long as they were allowed to be."""
    seen = _number(answers, "mean")
    if seen is not None:
        return seen, []
    allowed = _number(asked, "mean")
    if allowed is None:
        return None, []
    return allowed, [
        "no answer's length is known: all are counted as long as their max_tokens allow, real ones are shorter"
    ]


def _longest(
    report: Mapping[str, Any], prompts: Mapping[str, Any], answers: Mapping[str, Any]
) -> int | None:
    told = _number(_part(report, "model_length"), "longest")
    if told is not None:
        return _whole(told)
    both = _number(prompts, "max"), _number(answers, "max")
    return None if None in both else _whole(math.fsum(one or 0.0 for one in both))


def _estimated(lengths: Mapping[str, Any]) -> list[str]:
    estimated = _number(lengths, "prompt_tokens_estimated_share")
    if not estimated:
        return []
    return [f"{estimated:.0%} of the prompts' lengths are estimated from their characters"]


def _source(report: Mapping[str, Any]) -> str:
    source = report.get("source")
    return f"workload of {source}" if isinstance(source, str) else "workload"


def _part(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = mapping.get(key)
    return value if isinstance(value, Mapping) else {}


def _number(mapping: Mapping[str, Any], key: str) -> float | None:
    """A finite number above 0; None for anything else."""
    value = mapping.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < math.inf else None


def _whole(value: float | None) -> int | None:
    return None if value is None else math.ceil(value)
