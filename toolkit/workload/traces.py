"""Public traces, row by row: Azure's and BurstGPT's tables, Mooncake's JSON lines. It opens nothing.

    Azure LLM inference 2023, 2024    TIMESTAMP,ContextTokens,GeneratedTokens
    BurstGPT                          Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
    Mooncake                          {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}

No trace holds a text. Of Azure and BurstGPT nobody can tell which prompts were alike, so every row is one of its own;
Mooncake's ids, one per 512 tokens of a prompt, the last for what is left over, say it: equal ids and an equal length
are an equal prompt. Times count from the trace's own start where it has no calendar.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeGuard

from toolkit.errors import ToolkitError
from toolkit.records import Asked, Seen
from toolkit.workload.log_values import count, key_of, moment, number, text

MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's ids stands for."""

BURSTGPT_HEAD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
AZURE = ("timestamp", "contexttokens", "generatedtokens")
BURSTGPT = ("timestamp", "model", "request tokens", "response tokens")
"""Columns that tell a table, in lower case; more may follow."""

AZURE_EXAMPLE = "A row is, e.g., `2023-11-16 18:15:46.6805900,374,44`"
BURSTGPT_EXAMPLE = (
    "A row is, e.g., `5,ChatGPT,472,18,490,Conversation log`, its first column seconds"
)
MOONCAKE_EXAMPLE = (
    'A line is, e.g., `{"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]}`, '
    "its `timestamp` milliseconds, with one of `hash_ids` for each 512 tokens"
)


class TraceTable(NamedTuple):
    """A table's kind, and where its columns stand."""

    kind: Literal["azure", "burstgpt"]
    columns: Mapping[str, int]


def table_of(line: bytes) -> TraceTable | None:
    """Which trace a header line begins; None: none that is known."""
    names = [name.strip().lower() for name in _cells(line)]
    columns = {name: place for place, name in enumerate(names)}
    if set(AZURE) <= columns.keys():
        return TraceTable("azure", columns)
    return TraceTable("burstgpt", columns) if set(BURSTGPT) <= columns.keys() else None


def table_row(line: bytes, table: TraceTable, name: str, where: str) -> Seen:
    """One row of a table. Raises ToolkitError that tells what was expected."""
    cells = _cells(line)
    told = {word: cells[place] for word, place in table.columns.items() if place < len(cells)}
    return (_azure if table.kind == "azure" else _burstgpt)(told, name, where)


def _azure(row: Mapping[str, str], name: str, where: str) -> Seen:
    ts = moment(row.get("timestamp"))
    prompt, output = count(row.get("contexttokens")), count(row.get("generatedtokens"))
    if ts is None or prompt is None or output is None:
        raise ToolkitError(f"{where} is no row of an Azure trace", AZURE_EXAMPLE)
    return _unlike(name, where, ts, prompt, output, None)


def _burstgpt(row: Mapping[str, str], name: str, where: str) -> Seen:
    ts = number(row.get("timestamp"))
    prompt, output = count(row.get("request tokens")), count(row.get("response tokens"))
    if ts is None or ts < 0 or prompt is None or output is None:
        raise ToolkitError(f"{where} is no row of a BurstGPT trace", BURSTGPT_EXAMPLE)
    # its authors count an answer of no tokens as a failure, which says nothing of lengths
    return _unlike(name, where, ts, prompt, output or None, text(row.get("model")))


def _unlike(
    name: str, where: str, ts: float, prompt: int, output: int | None, model: str | None
) -> Seen:
    """A request of which nobody knows whether another was like it."""
    key = key_of(name, where)
    asked = Asked(exact_key=key, prompt_key=key, body_bytes=0, model=model, prompt_tokens=prompt)
    return Seen(ts=ts, asked=asked, output_tokens=output)


def mooncake_row(
    row: Mapping[str, Any], where: str, remembered: Callable[[Asked], Asked] = lambda asked: asked
) -> Seen:
    """One line of a Mooncake trace; `remembered` may give back an equal one in place of what a prompt asks."""
    ms, ids = number(row.get("timestamp")), row.get("hash_ids")
    prompt, output = count(row.get("input_length")), count(row.get("output_length"))
    if ms is None or ms < 0 or prompt is None or not _are_ids(ids, prompt):
        raise ToolkitError(f"{where} is no line of a Mooncake trace", MOONCAKE_EXAMPLE)
    return Seen(ts=ms / 1e3, asked=remembered(_of_ids(ids, prompt, where)), output_tokens=output)


def _are_ids(ids: object, prompt_tokens: int) -> TypeGuard[list[int]]:
    """One for each 512 tokens and one for the rest, which a trace may leave out."""
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**64 for one in ids):
        return False
    whole, rest = divmod(prompt_tokens, MOONCAKE_BLOCK)
    return whole <= len(ids) <= whole + bool(rest)


def _of_ids(ids: Sequence[int], prompt_tokens: int, where: str) -> Asked:
    blocks = b"".join(one.to_bytes(8) for one in ids)
    whole = prompt_tokens // MOONCAKE_BLOCK
    # without an id for the rest of it nobody knows what a prompt ends with
    is_known = len(ids) * MOONCAKE_BLOCK >= prompt_tokens
    key = key_of(blocks.hex(), prompt_tokens, "" if is_known else where)
    return Asked(
        exact_key=key,
        request_key=key,
        prompt_key=key,
        body_bytes=0,
        prompt_tokens=prompt_tokens,
        prompt_blocks=blocks[: 8 * whole],
        block_tokens=float(MOONCAKE_BLOCK),
    )


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", "replace")]), [])
    except csv.Error:  # a field beyond csv's limit of 128 KB, a bare carriage return
        return []
