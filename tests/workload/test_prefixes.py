"""Shared beginnings: blocks counted as vLLM does, by hand, with and without a capacity."""

import itertools
import random

import numpy as np
import pytest

from toolkit.records import Asked, Seen
from toolkit.workload import RequestColumns, columns
from toolkit.workload.prefixes import Prefixes, shared_prefix


def asked(
    blocks: str, *, tokens: int | None = None, chars: int | None = None, text: str | None = None
) -> Asked:
    """A prompt of one block a letter; without `chars` its blocks are exact, of 16 tokens."""
    chain = b"".join(
        f"{''.join(letters):>8}".encode()[-8:] for letters in itertools.accumulate(blocks)
    )
    key = f"{blocks} {tokens} {chars}"
    return Asked(
        exact_key=key,
        request_key=key,
        prompt_key=key,
        body_bytes=1,
        prompt_tokens=tokens,
        prompt_chars=chars,
        prompt_text=text,
        prompt_blocks=chain,
        block_tokens=16.0 if blocks else None,
    )


def arrived(*bodies: Asked) -> RequestColumns:
    return columns(Seen(ts=float(at), asked=body) for at, body in enumerate(bodies))


def prefixes(*bodies: Asked, **more) -> Prefixes:
    return shared_prefix(arrived(*bodies), **more)


def test_leading_whole_blocks_that_an_earlier_prompt_had_are_shared_and_no_others() -> None:
    # 40 tokens: a b and 8 tokens; 60: a b c and 12 (shares a b: 32); 50: x b c and 2 (b c do not lead: nothing)
    told = prefixes(asked("ab", tokens=40), asked("abc", tokens=60), asked("xbc", tokens=50))
    assert (told.tokens, told.shared_tokens, told.share) == (150, 32, 32 / 150)
    # second half: the last two requests of three
    assert told.last_half_share == 32 / 110
    assert (told.blocks, told.unique_blocks, told.block_tokens) == (8, 6, 16.0)
    assert not told.estimated


def test_of_a_prompt_wholly_in_the_cache_the_block_with_the_last_token_is_computed_again() -> None:
    # 48 tokens are three blocks: the repeat computes the third again. 49: all three are shared, one token is left.
    assert prefixes(asked("abc", tokens=48), asked("abc", tokens=48)).shared_tokens == 32
    assert prefixes(asked("abc", tokens=49), asked("abc", tokens=49)).shared_tokens == 48


def test_a_prompt_of_one_whole_block_or_less_shares_nothing() -> None:
    told = prefixes(asked("a", tokens=16), asked("a", tokens=16), asked("", tokens=15))
    assert (told.share, told.tokens) == (0.0, 47)


def test_without_any_prompt_nothing_is_told() -> None:
    told = prefixes(top=3, capacities=(4,))
    assert (told.share, told.last_half_share, told.block_tokens) == (None, None, None)
    assert (told.by_capacity[0].share, told.by_count) == (None, ())


def test_blocks_of_bytes_are_an_estimate_of_16_tokens_for_64_bytes() -> None:
    # 150 characters: two whole blocks and a rest that is taken for half a block: 2.5 * 16 = 40 tokens, of which the repeat shares 32
    told = prefixes(asked("ab", chars=150), asked("ab", chars=150))
    assert (told.tokens, told.shared_tokens, told.estimated) == (80, 32, True)


def test_a_prompt_longer_than_its_blocks_tell_is_as_long_as_its_characters() -> None:
    # blocks end after two, as those of a prompt beyond the most that are kept: 6,400 / 64 * 16 = 1,600 tokens, and 32 shared
    told = prefixes(asked("ab", chars=6_400), asked("ab", chars=6_400))
    assert (told.tokens, told.shared_tokens) == (3_200, 32)


def test_known_tokens_are_spread_over_blocks_of_bytes() -> None:
    # Ten blocks of bytes, and the engine counted 42 tokens: 42 / 10.5 = 4 a block. The second prompt shares eight: 32 tokens,
    # two whole blocks of the engine's; sharing seven, 28 tokens, is one.
    first = asked("abcdefghij", tokens=42, chars=672)
    assert prefixes(first, asked("abcdefghxy", tokens=42, chars=672)).shared_tokens == 32
    assert prefixes(first, asked("abcdefgxyz", tokens=42, chars=672)).shared_tokens == 16


def test_usage_told_by_the_answer_counts_for_the_prompts_length() -> None:
    body = asked("abc", tokens=60)
    told = shared_prefix(
        columns([Seen(ts=0.0, asked=body, prompt_tokens=50), Seen(ts=1.0, asked=body)])
    )
    assert (told.tokens, told.shared_tokens) == (110, 48)


def test_a_part_of_the_requests_stands_for_itself() -> None:
    laid = arrived(asked("ab", tokens=40), asked("abc", tokens=60), asked("abd", tokens=60))
    rest = {
        name: getattr(laid, name)[1:]
        for name in RequestColumns.__dataclass_fields__
        if isinstance(getattr(laid, name), np.ndarray)
    }
    kept = {
        name: getattr(laid, name)
        for name in RequestColumns.__dataclass_fields__
        if not isinstance(getattr(laid, name), np.ndarray)
    }
    # without the first, the second shares nothing and the third shares a b with it
    assert shared_prefix(RequestColumns(**rest, **kept)).share == 32 / 120


def test_with_a_capacity_what_was_longest_unused_is_computed_again() -> None:
    # After a b x and c d x, the latest used first, are held: c d x a b x. Room for 4 holds c d x a, room for 3 c d x.
    one, two = asked("abx", tokens=49), asked("cdx", tokens=49)
    told = prefixes(one, two, one, capacities=(3, 4, 6))
    assert [cell.share for cell in told.by_capacity] == [0.0, 16 / 147, 48 / 147]
    assert [cell.tokens for cell in told.by_capacity] == [48, 64, 96]
    assert told.by_capacity[1].last_half_share == 16 / 98


@pytest.mark.parametrize("seed", range(20))
def test_a_capacity_gives_what_a_plain_list_of_blocks_by_last_use_gives(seed: int) -> None:
    chance = random.Random(seed)
    bodies = [
        asked(
            text := "".join(chance.choices("ab", k=chance.randint(1, 6))), tokens=16 * len(text) + 1
        )
        for _ in range(80)
    ]
    for capacity in (1, 3, 10, 40):
        held: list[bytes] = []
        shared = 0
        for body in bodies:
            chain = [body.prompt_blocks[at : at + 8] for at in range(0, len(body.prompt_blocks), 8)]
            shared += 16 * len(list(itertools.takewhile(held.__contains__, chain)))
            # newest first; of one prompt its beginning is the newest
            held = [*chain, *(one for one in held if one not in chain)][:capacity]
        total = sum(body.prompt_tokens or 0 for body in bodies)
        (cell,) = prefixes(*bodies, capacities=(capacity,)).by_capacity
        assert cell.share == shared / total


def test_a_capacity_that_holds_all_is_the_ceiling() -> None:
    bodies = [
        asked("abcdefgh"[: 1 + number % 8], tokens=16 * (1 + number % 8)) for number in range(50)
    ]
    told = prefixes(*bodies, capacities=(8, 1000))
    assert [cell.share for cell in told.by_capacity] == [told.share, told.share]


def test_the_most_shared_beginnings_are_told_by_what_they_save_and_by_how_many_share_them() -> None:
    # s (a system prompt) begins seven requests; two conversations go on for four blocks each: s a b c twice and s x y z three times.
    bodies = [
        *[asked("s", tokens=20)] * 2,
        *[asked("sabc", tokens=70)] * 2,
        asked("sxyz", tokens=70),
        asked("sxyzp", tokens=90),
        asked("sxyzq", tokens=90),
        asked("t", tokens=20),
    ]
    told = prefixes(*bodies, top=2)
    # s x y z: 64 tokens for 2 of 3; s: 16 tokens for 6 of 7; s a b c: 64 tokens for 1 of 2
    assert [(one.blocks, one.requests, one.saved_tokens) for one in told.by_volume] == [
        (4, 3, 128),
        (1, 7, 96),
    ]
    assert [(one.blocks, one.requests, one.saved_tokens) for one in told.by_count] == [
        (1, 7, 96),
        (4, 3, 128),
    ]
    assert told.by_count[0].prefix == b"       s".hex()
    assert prefixes(*bodies).by_count == ()


def test_of_equally_frequent_beginnings_the_longest_stands_first() -> None:
    bodies = [asked("ab", tokens=40)] * 2 + [asked("cde", tokens=50)] * 2
    assert [one.blocks for one in prefixes(*bodies, top=2).by_count] == [3, 2]


def test_a_shared_beginnings_text_is_told_where_it_was_kept_and_no_further_than_it_is_shared() -> (
    None
):
    text = "y" * 64 + "z" * 64
    kept = asked("ab", chars=128, text=text)
    other = asked("ac", chars=128)
    (shared,) = prefixes(kept, other, top=5).by_volume
    assert shared.text == "y" * 64
    (shared,) = prefixes(other, kept, top=5).by_volume
    assert shared.text is None


def test_token_ids_have_no_text_to_show() -> None:
    body = asked("ab", tokens=40, text="1 2 3")
    (shared,) = prefixes(body, body, top=5).by_volume
    assert shared.text is None
