"""Traces made of workloads, as other tools want them, and read back by the readers of public traces."""

import json
import lzma
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolkit.records import Asked, Seen
from toolkit.workload import RequestColumns, columns, export, read

CONVERSATIONS = Path(__file__).parent.parent / "data/traces/mooncake_conversation.jsonl.xz"
T = 1_750_000_000.5


def asked(name: str, **more: object) -> Asked:
    digits = name.encode().hex()
    return Asked(**{"exact_key": digits, "prompt_key": digits, "body_bytes": 9, **more})


def laid(*rows: tuple[float, Asked, int | None]) -> RequestColumns:
    return columns(
        Seen(ts=T + at, asked=one, output_tokens=output, client="10.0.0.9", server="host")
        for at, one, output in rows
    )


def blocks(*names: int) -> bytes:
    return b"".join(name.to_bytes(8) for name in names)


def back(lines: Iterable[str]) -> RequestColumns:
    return columns(read((line.encode() for line in lines), "trace", client=str).seen)


def mooncake(found: RequestColumns) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export(found, "mooncake").lines]


TRACE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 5, "input_length": 1024, "output_length": 26, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 1100, "output_length": 9, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 1101, "output_length": 1, "hash_ids": [0, 1, 3]}
{"timestamp": 99000, "input_length": 3, "output_length": 1, "hash_ids": [4]}
"""


def test_a_mooncake_trace_comes_out_as_it_went_in() -> None:
    # its ids are numbered in the order of their first use, as Mooncake's own are
    exported = export(back(TRACE.splitlines(keepends=True)), "mooncake")
    assert ("".join(exported.lines), exported.notes) == (TRACE, ())


@pytest.mark.slow
def test_the_published_conversation_trace_comes_out_row_for_row() -> None:
    with lzma.open(CONVERSATIONS) as file:
        lines = file.read().splitlines()
    exported = mooncake(columns(read(lines, "trace", client=str).seen))
    assert exported == [json.loads(line) for line in lines]


def test_captured_blocks_become_larger_ones_and_equal_prompts_are_equal_to_their_end() -> None:
    # blocks of 16 tokens: 32 of them are 512
    chain = blocks(*range(70))
    first = asked("a", prompt_tokens=1100, prompt_blocks=chain, block_tokens=16.0)
    # the same up to the first 40 blocks: one whole 512, then another
    other = asked(
        "b", prompt_tokens=1100, prompt_blocks=chain[: 40 * 8] + blocks(*range(900, 930)), block_tokens=16.0
    )  # fmt: skip
    short = asked("c", prompt_tokens=500, prompt_blocks=chain[: 31 * 8], block_tokens=16.0)
    bare = asked("d", prompt_tokens=600)  # without blocks, alike only where it is equal
    rows = mooncake(
        laid(*((n, one, 1) for n, one in enumerate((first, other, first, short, bare, bare))))
    )
    assert [row["hash_ids"] for row in rows] == [
        *([0, 1, 2], [0, 3, 4], [0, 1, 2], [5], [6, 7], [6, 7]),
    ]
    assert [row["timestamp"] for row in rows] == [0, 1000, 2000, 3000, 4000, 5000]


@pytest.mark.parametrize("tokens", [1, 511, 512, 513, 1024, 1025, 5000])
@pytest.mark.parametrize("known", [0, 1, 31, 32, 64, 400])
def test_every_prompt_has_one_id_for_each_begun_512_tokens(tokens: int, known: int) -> None:
    """AIPerf refuses a line whose ids do not go with its length."""
    one = asked("a", prompt_tokens=tokens, prompt_blocks=blocks(*range(known)), block_tokens=16.0)
    [row] = mooncake(laid((0.0, one, 1)))
    # rounded up: -(-a // b)
    assert len(row["hash_ids"]) == len(set(row["hash_ids"])) == -(-tokens // 512)


def test_nothing_that_was_captured_can_be_read_from_an_export() -> None:
    secret = asked(
        "a", prompt_tokens=600, prompt_blocks=blocks(2**63, 7), block_tokens=512.0, model="secret"
    )
    found = laid((0.0, secret, 5), (0.25, secret, 5))
    text = "".join((*export(found, "mooncake").lines, *export(found, "burstgpt").lines))
    for word in ("secret", "host", "10.0.0.9", str(2**63), secret.exact_key, str(int(T))):
        assert word not in text


def test_burstgpts_columns_are_those_that_vllm_and_aiperf_read() -> None:
    one = asked("a", prompt_tokens=472, model="m")
    found = laid((0.0, one, 18), (0.0625, one, 3), (123456.789, one, 1))
    assert "".join(export(found, "burstgpt").lines) == (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,GPT-4,472,18,490,API log\n"
        "0.062,GPT-4,472,3,475,API log\n"
        "123456.789,GPT-4,472,1,473,API log\n"
    )


@pytest.mark.parametrize("form", ["mooncake", "burstgpt"])
def test_what_is_read_back_has_the_same_lengths_and_moments(form: Any) -> None:
    found = laid(*((n / 8, asked(str(n % 7), prompt_tokens=100 + n % 7), n + 1) for n in range(50)))
    again = back(export(found, form).lines)
    assert again.prompt_tokens.tolist() == found.per_request("prompt_tokens").tolist()
    assert again.output_tokens.tolist() == found.output_tokens.tolist()
    assert (again.ts - again.ts[0]).tolist() == pytest.approx((found.ts - T).tolist(), abs=0.001)
    if form == "mooncake":
        # which prompts are alike, and in which order they came first
        assert again.prompt.tolist() == found.prompt.tolist()


def test_what_is_not_as_it_was_captured_is_said() -> None:
    found = laid(
        (0, asked("chars", prompt_chars=400), 7),
        (1, asked("nothing"), 7),
        (2, asked("limit", prompt_tokens=5, max_tokens=64), None),
        (3, asked("open", prompt_tokens=5), None),
    )
    # 400 characters at 4 a token
    rows = mooncake(found)
    assert [(row["input_length"], row.get("output_length")) for row in rows] == [
        *((100, 7), (5, 64), (5, None)),
    ]
    assert export(replace(found, arrivals=False), "mooncake").notes == (
        "1 of 4 requests: prompt lengths are estimates from characters",
        "1 of 4 requests: left out: how long their prompts are is not known",
        "1 of 4 requests: answers of unknown length: their `max_tokens` in its place",
        "1 of 4 requests: answers of unknown length, and no `max_tokens`",
        "When requests came is not known: one a second",
    )
    # an answer of 0 tokens is a failure there
    lines = list(export(found, "burstgpt").lines)
    assert [line.split(",")[3] for line in lines[1:]] == ["7", "64", "0"]
    empty = columns([])
    assert [len(list(export(empty, form).lines)) for form in ("mooncake", "burstgpt")] == [0, 1]
