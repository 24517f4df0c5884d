"""How long requests are, from wherever the command line tells it: numbers, a workload's report, or a run."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit.cli.plan.measured import MeasuredRuns
from toolkit.cli.plan.options import PlanOptions
from toolkit.errors import ToolkitError
from toolkit.plan.capacity import RequestLengths, of_workload

LONGEST_REPORT = 64 * 2**20
"""Bytes; a report has some kilobytes."""
HOW = "Make it with `toolkit workload --json > workload.json`"


def load_of(options: PlanOptions, runs: MeasuredRuns) -> RequestLengths:
    """The load; an empty one where nobody told anything. Raises ToolkitError."""
    found = _told(options, runs)
    return replace(found, longest=options.longest) if options.longest is not None else found


def _told(options: PlanOptions, runs: MeasuredRuns) -> RequestLengths:
    if options.tokens is not None:
        return RequestLengths(request_tokens=options.tokens)
    if options.prompt_tokens is not None and options.output_tokens is not None:
        return _split(options.prompt_tokens, options.output_tokens, "")
    if options.workload is not None:
        return of_workload(_report(options.workload))
    if runs.report is not None:
        return of_workload(runs.report)
    if runs.prompt_tokens is not None and runs.output_tokens is not None:
        return _split(runs.prompt_tokens, runs.output_tokens, "")
    return RequestLengths()


def _split(prompt: float, output: float, told: str) -> RequestLengths:
    return RequestLengths(
        prompt_tokens=prompt, output_tokens=output, request_tokens=prompt + output, told=told
    )


def _report(word: str) -> Mapping[str, Any]:
    name = "standard input" if word == "-" else word
    try:
        report = json.loads(_text(word))
    except OSError as error:
        reason = (error.strerror or "no reason given").lower()
        raise ToolkitError(f"`{name}` cannot be read: {reason}", HOW) from error
    except (ValueError, RecursionError) as error:
        raise ToolkitError(f"`{name}` is not one JSON object", HOW) from error
    if not isinstance(report, dict):
        raise ToolkitError(f"`{name}` is not one JSON object", HOW)
    return report


def _text(word: str) -> bytes:
    if word == "-":
        if sys.stdin is None:
            raise ToolkitError("standard input is closed", "Name a file, or pipe one in")
        return sys.stdin.buffer.read(LONGEST_REPORT)
    with Path(word).open("rb") as file:
        return file.read(LONGEST_REPORT)
