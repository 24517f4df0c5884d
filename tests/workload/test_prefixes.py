"""Shared beginnings: blocks counted as vLLM does, by hand and on a public trace with a published ceiling."""

import itertools
import json
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.records import Asked, Seen
from toolkit.workload import RequestColumns, columns, read, shared_prefix
from toolkit.workload.prefixes import Prefixes

TRACE = Path(__file__).parent.parent / "data" / "traces" / "mooncake_conversation.jsonl.xz"
BLOCK = 512


def asked(
    blocks: str, *, tokens: int | None = None, chars: int | None = None, text: str | None = None
) -> Asked:
    """A prompt of one block a letter; without `chars` its blocks are exact, of 16 tokens."""
    chain = b"".join(
        f"{''.join(letters):>8}".encode()[-8:] for letters in itertools.accumulate(blocks)
    )
    key = f"{blocks} {tokens} {chars}"
    return Asked(
        exact_key=key, request_key=key, prompt_key=key, body_bytes=1, prompt_tokens=tokens,
        prompt_chars=chars, prompt_text=text, prompt_blocks=chain, block_tokens=16.0 if blocks else None,
    )  # fmt: skip


def arrived(*bodies: Asked) -> RequestColumns:
    return columns(Seen(ts=float(at), asked=body) for at, body in enumerate(bodies))


def prefixes(*bodies: Asked, **more: Any) -> Prefixes:
    return shared_prefix(arrived(*bodies), **more)


def test_leading_whole_blocks_that_an_earlier_prompt_had_are_shared_and_no_others() -> None:
    # 40 tokens: a b and 8 tokens; 60: a b c and 12 (shares a b: 32); 50: x b c and 2 (b c do not lead: nothing)
    found = prefixes(asked("ab", tokens=40), asked("abc", tokens=60), asked("xbc", tokens=50))
    assert (found.tokens, found.shared_tokens, found.share) == (150, 32, 32 / 150)
    # second half: the last two requests of three
    assert found.last_half_share == 32 / 110
    assert (found.blocks, found.unique_blocks, found.block_tokens) == (8, 6, 16.0)
    assert not found.estimated


AB150, AB6400 = asked("ab", chars=150), asked("ab", chars=6_400)
LONG = asked("abcdefghij", tokens=42, chars=672)


@pytest.mark.parametrize(
    ("bodies", "tokens", "shared"),
    [
        # of a prompt wholly in the cache the block with the last token is computed again: 48 tokens are three blocks
        ([asked("abc", tokens=48)] * 2, 96, 32),
        ([asked("abc", tokens=49)] * 2, 98, 48),
        # a prompt of one whole block or less shares nothing
        ([asked("a", tokens=16), asked("a", tokens=16), asked("", tokens=15)], 47, 0),
        # 150 characters: two whole blocks and a rest that is taken for half a block: 2.5 * 16 = 40 tokens
        ([AB150] * 2, 80, 32),
        # blocks end after two, as those of a prompt beyond the most that are kept: 6,400 / 64 * 16 = 1,600 tokens
        ([AB6400] * 2, 3_200, 32),
        # ten blocks of bytes, and the engine counted 42 tokens: 42 / 10.5 = 4 a block. The second prompt shares eight:
        # 32 tokens, two whole blocks of the engine's; sharing seven, 28 tokens, is one
        ([LONG, asked("abcdefghxy", tokens=42, chars=672)], 84, 32),
        ([LONG, asked("abcdefgxyz", tokens=42, chars=672)], 84, 16),
    ],
)
def test_what_a_prefix_cache_saves_is_whole_blocks(
    bodies: list[Asked], tokens: float, shared: float
) -> None:
    found = prefixes(*bodies)
    assert (found.tokens, found.shared_tokens) == (tokens, shared)
    assert found.estimated is any(one.prompt_chars for one in bodies)


def test_usage_counts_for_the_prompts_length_and_a_part_of_the_requests_stands_for_itself() -> None:
    body = asked("abc", tokens=60)
    found = shared_prefix(
        columns([Seen(ts=0.0, asked=body, prompt_tokens=50), Seen(ts=1.0, asked=body)])
    )
    assert (found.tokens, found.shared_tokens) == (110, 48)
    laid = arrived(asked("ab", tokens=40), asked("abc", tokens=60), asked("abd", tokens=60))
    # without the first, the second shares nothing and the third shares a b with it
    assert shared_prefix(laid.part(np.array([False, True, True]))).share == 32 / 120
    empty = prefixes(top=3, capacities=(4,))
    assert (empty.share, empty.last_half_share, empty.block_tokens) == (None, None, None)
    assert (empty.by_capacity[0].share, empty.by_count) == (None, ())


def test_with_a_capacity_what_was_longest_unused_is_computed_again() -> None:
    # After a b x and c d x, the latest used first, are held: c d x a b x. Room for 4 holds c d x a, room for 3 c d x.
    one, two = asked("abx", tokens=49), asked("cdx", tokens=49)
    found = prefixes(one, two, one, capacities=(3, 4, 6)).by_capacity
    assert [cell.share for cell in found] == [0.0, 16 / 147, 48 / 147]
    assert [cell.tokens for cell in found] == [48, 64, 96]
    assert found[1].last_half_share == 16 / 98


@pytest.mark.parametrize("seed", range(10))
def test_a_capacity_gives_what_a_plain_list_of_blocks_by_last_use_gives(seed: int) -> None:
    chance = random.Random(seed)
    texts = ["".join(chance.choices("ab", k=chance.randint(1, 6))) for _ in range(80)]
    bodies = [asked(text, tokens=16 * len(text) + 1) for text in texts]
    total = sum(body.prompt_tokens or 0 for body in bodies)
    for capacity in (1, 3, 10, 40):
        held: list[bytes] = []
        shared = 0
        for body in bodies:
            chain = [body.prompt_blocks[at : at + 8] for at in range(0, len(body.prompt_blocks), 8)]
            shared += 16 * len(list(itertools.takewhile(held.__contains__, chain)))
            # newest first; of one prompt its beginning is the newest
            held = [*chain, *(one for one in held if one not in chain)][:capacity]
        (cell,) = prefixes(*bodies, capacities=(capacity,)).by_capacity
        assert cell.share == shared / total
    found = prefixes(*bodies, capacities=(1000,))
    assert found.by_capacity[0].share == found.share


def test_the_most_shared_beginnings_come_by_what_they_save_and_by_how_many_share_them() -> None:
    # s (a system prompt) begins seven requests; two conversations go on for four blocks each: s a b c twice and s x y z three times.
    bodies = [
        *[asked("s", tokens=20)] * 2,
        *[asked("sabc", tokens=70)] * 2,
        *[asked("sxyz", tokens=70), asked("sxyzp", tokens=90), asked("sxyzq", tokens=90)],
        asked("t", tokens=20),
    ]
    found = prefixes(*bodies, top=2)
    # s x y z: 64 tokens for 2 of 3; s: 16 tokens for 6 of 7; s a b c: 64 tokens for 1 of 2
    rows = [[(one.blocks, one.requests, one.saved_tokens) for one in each] for each in (found.by_volume, found.by_count)]  # fmt: skip
    assert rows == [[(4, 3, 128), (1, 7, 96)], [(1, 7, 96), (4, 3, 128)]]
    assert found.by_count[0].prefix == b"       s".hex()
    # of equally frequent ones the longest stands first
    bodies = [asked("ab", tokens=40)] * 2 + [asked("cde", tokens=50)] * 2
    assert [one.blocks for one in prefixes(*bodies, top=2).by_count] == [3, 2]


def test_a_shared_beginnings_text_is_shown_where_it_was_kept_and_no_further_than_it_is_shared() -> (
    None
):
    kept, other = asked("ab", chars=128, text="y" * 64 + "z" * 64), asked("ac", chars=128)
    ids = asked("ab", tokens=40, text="1 2 3")  # token ids have no text to show
    for bodies, text in (((kept, other), "y" * 64), ((other, kept), None), ((ids, ids), None)):
        (shared,) = prefixes(*bodies, top=5).by_volume
        assert shared.text == text


# --- A public trace, counted here by other means: whole numbers, row by row, a set of ids -----------------


@pytest.mark.slow
def test_the_ceiling_is_37_34_percent_in_whole_blocks_and_39_78_in_the_last_half() -> None:
    # published: 37.4 % and 39.8 %, which count a shared part of a block at a prompt's end, too
    known: set[int] = set()
    shared = []
    with lzma.open(TRACE) as file:
        lines = file.readlines()
    for row in map(json.loads, lines):
        whole = row["hash_ids"][: row["input_length"] // BLOCK]
        leading = sum(1 for _ in itertools.takewhile(known.__contains__, whole))
        shared.append(min(leading, (row["input_length"] - 1) // BLOCK) * BLOCK)
        known.update(whole)
    assert (sum(shared), sum(shared[6015:])) == (54_063_104, 27_016_192)
    found = shared_prefix(columns(read(lines, "trace", client=str).seen), top=1)
    assert (found.shared_tokens, found.tokens) == (54_063_104, 144_793_823)
    assert found.share == 54_063_104 / 144_793_823
    # the last 6,016 of 12,031 requests, after the first 6,015 have filled the cache
    assert found.last_half_share == 27_016_192 / 67_915_607
    assert (found.block_tokens, found.estimated, found.blocks) == (512.0, False, 276_491)
    # the most shared beginning is the one that the publication names
    for leader in (found.by_volume[0], found.by_count[0]):
        assert (leader.tokens, leader.requests) == (512, 12_031)
