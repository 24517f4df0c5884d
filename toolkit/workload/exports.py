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
from typing import Literal

import numpy as np

from toolkit.protocol.request import HASH_BYTES
from toolkit.records import Asked
from toolkit.workload.columns import Numbers, RequestColumns
from toolkit.workload.lengths import prompt_tokens
from toolkit.workload.readers import MOONCAKE_BLOCK

HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
MODEL = "GPT-4"
LOG = "API log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A trace, line by line."""

    lines: Iterator[str]
    """Each with its line's end; to be read once."""
    notes: tuple[str, ...]
    """What of it is not as it was captured."""


def export(columns: RequestColumns, form: Literal["mooncake", "burstgpt"]) -> Export:
    """The requests as a trace. An answer of unknown length is left out of Mooncake's; in BurstGPT's it is a failure: 0 tokens."""
    prompts, outputs, notes = _lengths(columns)
    rows = np.flatnonzero(~np.isnan(prompts)).tolist()

    def lines() -> Iterator[str]:
        if form == "burstgpt":
            yield HEAD + "\n"
        numbers: dict[Hashable, int] = {}
        for row in rows:
            prompt, output = int(prompts[row]), outputs[row]
            answer = 0 if isnan(output) else int(output)
            at_s = float(columns.ts[row]) - float(columns.ts[rows[0]])
            if form == "burstgpt":
                at = f"{at_s:.3f}".rstrip("0").rstrip(".")
                yield f"{at},{MODEL},{prompt},{answer},{prompt + answer},{LOG}\n"
                continue
            asked = columns.asked[columns.exact[row]]
            blocks = _blocks(asked, int(columns.prompt[row]), prompt)
            ids = [numbers.setdefault(block, len(numbers)) for block in blocks]
            line = {"timestamp": round(at_s * 1e3), "input_length": prompt}
            if not isnan(output):
                line["output_length"] = answer
            yield json.dumps({**line, "hash_ids": ids}) + "\n"

    return Export(lines=lines(), notes=notes)


def _blocks(asked: Asked, prompt: int, tokens: int) -> Iterator[Hashable]:
    """What distinguishes each begun 512 tokens of a prompt, with all before them, from others.

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


def _lengths(columns: RequestColumns) -> tuple[Numbers, Numbers, tuple[str, ...]]:
    """Tokens of prompts and of answers, as counted by servers, else as near as it is known (NaN: nobody knows); and notes."""
    prompts = prompt_tokens(columns)
    tokens = np.maximum(1.0, np.round(prompts.tokens))  # no prompt is of no token; NaN stays
    limits = columns.per_request("max_tokens")
    unknown = np.isnan(columns.output_tokens)
    outputs = np.where(unknown, limits, columns.output_tokens)
    counted = {
        "prompt lengths are estimates from characters": prompts.estimated & ~np.isnan(tokens),
        "left out: how long their prompts are is not known": np.isnan(tokens),
        "answers of unknown length: their `max_tokens` in its place": unknown & ~np.isnan(limits),
        "answers of unknown length, and no `max_tokens`": np.isnan(outputs),
    }
    notes = [
        f"{int(which.sum()):,} of {len(columns):,} requests: {what}"
        for what, which in counted.items()
        if which.any()
    ]
    if columns.refused:
        notes.append(f"{sum(columns.refused.values()):,} refused requests are left out")
    if not columns.arrivals:
        notes.append("When requests came is not known: one a second")
    return tokens, outputs, tuple(notes)
