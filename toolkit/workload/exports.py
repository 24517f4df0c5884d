"""A workload in the forms of public traces, for tools that replay these: Mooncake's JSON lines, BurstGPT's columns.

    mooncake    {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}
    burstgpt    Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type

AIPerf and GuideLLM read the first, one id for each begun 512 tokens of a prompt; AIPerf and `vllm bench serve` the
second, the latter only rows of `GPT-4` with an answer, and not their times: so every row here says `GPT-4`. Ids are
numbered anew in the order of their first use and times count from the first request: of the captured hashes, names and
moments nothing is left. It opens nothing.
"""

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import ceil, isnan

import numpy as np

from toolkit.protocol.request import HASH_BYTES
from toolkit.records import Asked
from toolkit.workload.columns import Numbers, RequestColumns
from toolkit.workload.lengths import prompt_tokens
from toolkit.workload.traces import BURSTGPT_HEAD, MOONCAKE_BLOCK

MODEL = "GPT-4"
LOG = "API log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A trace, line by line."""

    lines: Iterator[str]
    """Each with its line's end; to be read once."""
    rows: int
    notes: tuple[str, ...]
    """What of it is not as it was captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TokenLengths:
    """Tokens by request; NaN: nobody knows."""

    prompts: Numbers
    outputs: Numbers
    notes: tuple[str, ...]


def mooncake(columns: RequestColumns, *, arrivals: bool = True) -> Export:
    """The requests as a Mooncake trace. `arrivals`: whether it is known when they came."""
    found = _lengths(columns, arrivals=arrivals)
    rows = np.flatnonzero(~np.isnan(found.prompts))
    return Export(lines=_mooncake(columns, found, rows.tolist()), rows=len(rows), notes=found.notes)


def burstgpt(columns: RequestColumns, *, arrivals: bool = True) -> Export:
    """The requests as a BurstGPT trace, in which an answer of unknown length is a failure: 0 tokens."""
    found = _lengths(columns, arrivals=arrivals)
    rows = np.flatnonzero(~np.isnan(found.prompts))
    return Export(lines=_burstgpt(columns, found, rows.tolist()), rows=len(rows), notes=found.notes)


def _lengths(columns: RequestColumns, *, arrivals: bool) -> _TokenLengths:
    """All lengths: as counted by servers, else as near as it is known."""
    prompts = prompt_tokens(columns)
    tokens = np.maximum(1.0, np.round(prompts.tokens))  # no prompt is of no token; NaN stays
    limits = columns.per_request("max_tokens")
    unknown = np.isnan(columns.output_tokens)
    outputs = np.where(unknown, limits, columns.output_tokens)
    counted = {
        "prompt lengths are estimates from characters": int(
            (prompts.estimated & ~np.isnan(tokens)).sum()
        ),
        "left out: how long their prompts are is not known": int(np.isnan(tokens).sum()),
        "answers of unknown length: their `max_tokens` in its place": int(
            (unknown & ~np.isnan(limits)).sum()
        ),
        "answers of unknown length, and no `max_tokens`": int(np.isnan(outputs).sum()),
    }
    notes = [
        f"{times:,} of {len(columns):,} requests: {what}"
        for what, times in counted.items()
        if times
    ]
    if columns.refused:
        notes.append(f"{sum(columns.refused.values()):,} refused requests are left out")
    if not arrivals:
        notes.append("When requests came is not known: one a second")
    return _TokenLengths(prompts=tokens, outputs=outputs, notes=tuple(notes))


def _mooncake(columns: RequestColumns, found: _TokenLengths, rows: list[int]) -> Iterator[str]:
    numbers: dict[Hashable, int] = {}
    start = float(columns.ts[rows[0]]) if rows else 0.0
    for row in rows:
        tokens = int(found.prompts[row])
        asked = columns.asked[columns.exact[row]]
        ids = [
            numbers.setdefault(block, len(numbers))
            for block in _blocks(asked, int(columns.prompt[row]), tokens)
        ]
        told = {"timestamp": round((float(columns.ts[row]) - start) * 1e3), "input_length": tokens}
        if not isnan(found.outputs[row]):
            told["output_length"] = int(found.outputs[row])
        yield json.dumps({**told, "hash_ids": ids}) + "\n"


def _blocks(asked: Asked, prompt: int, tokens: int) -> Iterator[Hashable]:
    """What tells each begun 512 tokens of a prompt, with all before them, from others.

    Where a captured block ends there or behind it, its hash does; else, as for what is left over, the prompt itself.
    """
    each = asked.block_tokens or 0.0
    for place in range(ceil(tokens / MOONCAKE_BLOCK)):
        end = (place + 1) * MOONCAKE_BLOCK
        last = ceil(end / each) * HASH_BYTES if each else 0
        if end <= tokens and 0 < last <= len(asked.prompt_blocks):
            yield asked.prompt_blocks[last - HASH_BYTES : last]
        else:
            yield prompt, place, tokens


def _burstgpt(columns: RequestColumns, found: _TokenLengths, rows: list[int]) -> Iterator[str]:
    yield BURSTGPT_HEAD + "\n"
    start = float(columns.ts[rows[0]]) if rows else 0.0
    for row in rows:
        prompt, output = int(found.prompts[row]), found.outputs[row]
        answer = 0 if isnan(output) else int(output)
        at = f"{float(columns.ts[row]) - start:.3f}".rstrip("0").rstrip(".")
        yield f"{at},{MODEL},{prompt},{answer},{prompt + answer},{LOG}\n"
