"""A public trace with a published ceiling, counted here by other means: whole numbers, row by row, a set of ids."""

import json
import lzma
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from toolkit.workload import RequestColumns, columns, read, shared_prefix

TRACE = Path(__file__).parent.parent / "data" / "traces" / "mooncake_conversation.jsonl.xz"
BLOCK = 512

pytestmark = pytest.mark.slow


@cache
def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.open(TRACE)]


@cache
def laid_out() -> RequestColumns:
    with lzma.open(TRACE) as lines:
        return columns(read(lines, "trace", client=str).seen)


def leading(ids: Sequence[int], known: set[int] | OrderedDict[int, None]) -> int:
    return next((place for place, one in enumerate(ids) if one not in known), len(ids))


def shared_tokens(*, parts: bool) -> list[tuple[int, int]]:
    """Of each row: tokens shared with earlier rows and tokens in all; `parts`: a last block counts that is not whole."""
    known: set[int] = set()
    told = []
    for row in rows():
        length = row["input_length"]
        ids = row["hash_ids"] if parts else row["hash_ids"][: length // BLOCK]
        found = leading(ids, known)
        told.append(
            (
                min(found * BLOCK, length) if parts else min(found, (length - 1) // BLOCK) * BLOCK,
                length,
            )
        )
        known.update(ids)
    return told


def sums(told: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(shared for shared, _ in told), sum(length for _, length in told)


def test_the_ceiling_is_37_34_percent_in_whole_blocks_and_the_published_37_4_with_parts_of_blocks() -> (
    None
):
    assert sums(shared_tokens(parts=False)) == (54_063_104, 144_793_823)  # 37.338 %
    assert sums(shared_tokens(parts=True)) == (
        54_098_411,
        144_793_823,
    )  # 37.362 %, published as 37.4 %
    told = shared_prefix(laid_out())
    assert (told.shared_tokens, told.tokens) == (54_063_104, 144_793_823)
    assert told.share == 54_063_104 / 144_793_823
    assert (told.block_tokens, told.estimated, told.blocks) == (512.0, False, 276_491)


def test_the_last_half_shares_the_published_39_8_percent_in_both_ways_to_count() -> None:
    # the last 6,016 of 12,031 requests, after the first 6,015 have filled the cache
    assert sums(shared_tokens(parts=False)[6015:]) == (27_016_192, 67_915_607)  # 39.779 %
    assert sums(shared_tokens(parts=True)[6015:]) == (27_038_068, 67_915_607)  # 39.811 %
    assert shared_prefix(laid_out()).last_half_share == 27_016_192 / 67_915_607


@pytest.mark.parametrize("capacity", [2_048, 32_768])
def test_at_a_capacity_the_blocks_longest_unused_are_computed_again(capacity: int) -> None:
    # 1 Mi and 16 Mi tokens
    held: OrderedDict[int, None] = OrderedDict()
    shared = 0
    for row in rows():
        whole = row["hash_ids"][: row["input_length"] // BLOCK]
        shared += min(leading(whole, held), (row["input_length"] - 1) // BLOCK) * BLOCK
        for one in whole[::-1]:
            held.pop(one, None)
            held[one] = None
        while len(held) > capacity:
            held.popitem(last=False)
    (cell,) = shared_prefix(laid_out(), capacities=(capacity,)).by_capacity
    assert cell.share == shared / 144_793_823
    # published, with parts of blocks and used from the beginning on: 5.6 % and 34.2 %
    assert abs(cell.share - {2_048: 0.056, 32_768: 0.342}[capacity]) < 0.005


def test_the_most_shared_beginning_is_the_one_that_the_publication_names() -> None:
    told = shared_prefix(laid_out(), top=1)
    for leader in (told.by_volume[0], told.by_count[0]):
        assert (leader.tokens, leader.requests) == (512, 12_031)
