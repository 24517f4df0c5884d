"""How much of all prompts a prefix cache would not compute again: whole blocks that begin as an earlier prompt did.

Counted as vLLM does it: a prompt's leading whole blocks that are in the cache, and never its last token, so that of a prompt wholly
in the cache the block with that token is computed again. Shares are of prompt tokens. The ceiling is a cache without end; with a
capacity, the blocks longest unused go first, and of one prompt its end before its beginning. A prompt is in the cache as soon as it
arrived. It takes no text apart and opens nothing.

Where blocks are made of bytes (64 for vLLM's 16 tokens), a prompt's known tokens are spread evenly over them, and the result
is an estimate. On the Mooncake conversation trace (12,031 requests) the ceiling is 37.34 %, and 39.78 % in its last half. The published
37.4 % and 39.8 % count a shared part of a block, too, at a prompt's end: 37.36 % and 39.81 %.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.protocol.request import BLOCK_BYTES, HASH_BYTES
from toolkit.records import Asked
from toolkit.workload.columns import Codes, Numbers, RequestColumns

BLOCK_TOKENS = 16.0
"""vLLM's usual block; of text BLOCK_BYTES are taken for one."""
TEXT_CHARS = 200
"""Of a shared beginning's text, where texts were kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCell:
    """What a prefix cache of one capacity would save."""

    blocks: int
    tokens: float
    """The same capacity in tokens."""
    share: float | None
    last_half_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A beginning that several requests share and no longer one that all of them do. Longer ones are within shorter ones."""

    prefix: str
    """Hash of its last block, which is of everything before it too: 16 hexadecimal digits."""
    blocks: int
    tokens: float
    requests: int
    saved_tokens: float
    """What all but the first of them need not compute."""
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """What prompts share with earlier ones."""

    share: float | None
    """Of all prompt tokens, in a cache without end; None: no prompt's length is known."""
    last_half_share: float | None
    """Of the second half of all requests, the first half having filled the cache."""
    tokens: float
    """Of all prompts whose length is known or can be estimated."""
    shared_tokens: float
    block_tokens: float | None
    """None: no prompt has a whole block."""
    estimated: bool
    """Blocks are made of bytes, or a prompt's tokens are guessed from its characters."""
    blocks: int
    """Whole blocks of all prompts."""
    unique_blocks: int
    """Of these, what a cache without end would hold."""
    by_capacity: tuple[PrefixCell, ...] = ()
    by_volume: tuple[SharedPrefix, ...] = ()
    """Those that save the most tokens."""
    by_count: tuple[SharedPrefix, ...] = ()
    """Those that the most requests share."""


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The different bodies, in the order of their first arrival, and their blocks one after the other."""

    of: Codes
    """Each request's body, by place in this order."""
    exact: Codes
    """Each body's number in Columns."""
    counts: Codes
    """Whole blocks of each."""
    hashes: NDArray[np.uint64]
    kind: Codes
    """Which of the different blocks each is."""
    first: Codes
    """Where each different block stands first."""

    @property
    def owner(self) -> Codes:
        """Each block's body."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def depth(self) -> Codes:
        """Each block's place in its prompt, 0 for the first."""
        start = np.cumsum(self.counts) - self.counts
        return np.arange(len(self.hashes)) - np.repeat(start, self.counts)


@dataclass(frozen=True, slots=True)
class _PromptLengths:
    """Each request's prompt."""

    tokens: Numbers
    """0 where it is unknown."""
    block: Numbers
    """Tokens that the cache keeps together."""
    per_hash: Numbers
    """Tokens that one of our blocks stands for."""


def shared_prefix(
    columns: RequestColumns, *, capacities: Sequence[int] = (), top: int = 0
) -> Prefixes:
    """The ceiling; for each capacity in blocks what is left of it; and that many of the most shared beginnings."""
    bodies = _bodies(columns)
    sizes = _lengths(columns, bodies)
    leading = bodies.counts[bodies.of]
    leading[_first_arrivals(bodies)] = _seen_before(bodies)
    saved = _saved(sizes, leading)
    known = [one.block_tokens for one in columns.asked if one.block_tokens]
    block = max(set(known), key=known.count) if known else None
    return Prefixes(
        share=_share(saved, sizes.tokens),
        last_half_share=_share(*_last_half(saved, sizes.tokens)),
        tokens=float(sizes.tokens.sum()),
        shared_tokens=float(saved.sum()),
        block_tokens=block,
        estimated=any(_is_text(columns.asked[code]) for code in bodies.exact.tolist()),
        blocks=int(bodies.counts[bodies.of].sum()),
        unique_blocks=len(bodies.first),
        by_capacity=tuple(_cell(bodies, sizes, blocks, block) for blocks in capacities),
        by_volume=_leaders(columns, bodies, top, by_volume=True) if top else (),
        by_count=_leaders(columns, bodies, top, by_volume=False) if top else (),
    )


def _bodies(columns: RequestColumns) -> _Bodies:
    present, first, of = np.unique(columns.exact, return_index=True, return_inverse=True)
    by_arrival = np.argsort(first)
    place = np.empty(len(present), dtype=np.int64)
    place[by_arrival] = np.arange(len(present))
    exact = present[by_arrival]
    chains = [columns.asked[code].prompt_blocks for code in exact.tolist()]
    hashes = np.frombuffer(b"".join(chains), dtype=">u8").astype(np.uint64)
    _, first_block, kind = np.unique(hashes, return_index=True, return_inverse=True)
    return _Bodies(
        of=place[of],
        exact=exact,
        counts=np.array([len(chain) // HASH_BYTES for chain in chains], dtype=np.int64),
        hashes=hashes,
        kind=kind,
        first=first_block,
    )


def _first_arrivals(bodies: _Bodies) -> Codes:
    return np.unique(bodies.of, return_index=True)[1]


def _seen_before(bodies: _Bodies) -> Codes:
    """Leading blocks of each body that an earlier one has, too."""
    owner, depth = bodies.owner, bodies.depth
    is_new = owner[bodies.first][bodies.kind] == owner
    leading = bodies.counts.copy()
    np.minimum.at(leading, owner[is_new], depth[is_new])
    return leading


def _lengths(columns: RequestColumns, bodies: _Bodies) -> _PromptLengths:
    asked = [columns.asked[code] for code in bodies.exact.tolist()]
    block = np.array([one.block_tokens or BLOCK_TOKENS for one in asked], dtype=float)
    of_text = np.array(list(map(_is_text, asked)), dtype=bool)
    chars = np.array([one.prompt_chars or 0 for one in asked], dtype=float)
    # a text ends anywhere in the block after its last whole one: in its middle, for want of better
    spread = np.maximum(bodies.counts + 0.5 * (chars > 0), chars / BLOCK_BYTES)[bodies.of]
    block, of_text = block[bodies.of], of_text[bodies.of]
    tokens = np.where(np.isnan(columns.prompt_tokens), spread * block, columns.prompt_tokens)
    per_hash = block.copy()
    np.divide(tokens, spread, out=per_hash, where=of_text & (spread > 0))
    return _PromptLengths(tokens=tokens, block=block, per_hash=per_hash)


def _is_text(asked: Asked) -> bool:
    """Its blocks are made of bytes; token ids and traces tell their number of tokens and no characters."""
    return asked.prompt_tokens is None or bool(asked.prompt_chars)


def _saved(sizes: _PromptLengths, leading: Codes) -> Numbers:
    """Tokens of each prompt that need not be computed: whole blocks, and never the last token."""
    whole = np.floor(leading * sizes.per_hash / sizes.block)
    most = np.floor(np.maximum(sizes.tokens - 1, 0) / sizes.block)
    saved: Numbers = np.minimum(whole, most) * sizes.block
    return saved


def _share(saved: Numbers, tokens: Numbers) -> float | None:
    total = float(tokens.sum())
    return float(saved.sum()) / total if total else None


def _last_half(saved: Numbers, tokens: Numbers) -> tuple[Numbers, Numbers]:
    return saved[len(saved) // 2 :], tokens[len(tokens) // 2 :]


def _cell(bodies: _Bodies, sizes: _PromptLengths, blocks: int, block: float | None) -> PrefixCell:
    saved = _saved(sizes, _still_held(bodies, blocks))
    return PrefixCell(
        blocks=blocks,
        tokens=blocks * (block or BLOCK_TOKENS),
        share=_share(saved, sizes.tokens),
        last_half_share=_share(*_last_half(saved, sizes.tokens)),
    )


def _still_held(bodies: _Bodies, capacity: int) -> Codes:
    """Leading blocks of each request that a cache of so many blocks holds when it arrives."""
    ends = np.cumsum(bodies.counts)
    chains = [chain.tolist() for chain in np.split(bodies.hashes, ends[:-1])] if len(ends) else []
    held: OrderedDict[int, None] = OrderedDict()
    leading = []
    for body in bodies.of.tolist():
        chain = chains[body]
        found = 0
        for one in chain:
            if one not in held:
                break
            found += 1
        leading.append(found)
        for one in reversed(chain):  # used last, so that it goes last: the beginning
            held[one] = None
            held.move_to_end(one)
        while len(held) > capacity:
            held.popitem(last=False)
    return np.array(leading, dtype=np.int64)


def _leaders(
    columns: RequestColumns, bodies: _Bodies, top: int, *, by_volume: bool
) -> tuple[SharedPrefix, ...]:
    blocks = bodies.depth + 1
    arrivals = np.bincount(bodies.of, minlength=len(bodies.counts))
    requests = np.bincount(
        bodies.kind, weights=arrivals[bodies.owner], minlength=len(bodies.first)
    ).astype(np.int64)
    going_on = _most_of_the_next(bodies, requests)
    chosen = np.flatnonzero((requests > 1) & (requests > going_on))
    length = blocks[bodies.first[chosen]]
    worth = (requests[chosen] - 1) * (length if by_volume else 1)
    order = np.lexsort((bodies.first[chosen], -length, -worth))[:top]
    return tuple(
        _shared(columns, bodies, int(bodies.first[one]), int(requests[one]))
        for one in chosen[order].tolist()
    )


def _most_of_the_next(bodies: _Bodies, requests: Codes) -> Codes:
    """By block: requests of that one of the blocks after it which the most requests have."""
    most = np.zeros(len(requests), dtype=np.int64)
    before = np.flatnonzero(bodies.depth[1:] > 0)  # those that a block of the same prompt follows
    np.maximum.at(most, bodies.kind[before], requests[bodies.kind[before + 1]])
    return most


def _shared(columns: RequestColumns, bodies: _Bodies, at: int, requests: int) -> SharedPrefix:
    asked = columns.asked[int(bodies.exact[bodies.owner[at]])]
    blocks = int(bodies.depth[at]) + 1
    tokens = blocks * (asked.block_tokens or BLOCK_TOKENS)
    return SharedPrefix(
        prefix=f"{int(bodies.hashes[at]):016x}",
        blocks=blocks,
        tokens=tokens,
        requests=requests,
        saved_tokens=tokens * (requests - 1),
        text=_beginning(asked, blocks) if _is_text(asked) else None,
    )


def _beginning(asked: Asked, blocks: int) -> str | None:
    text = asked.prompt_text
    return None if text is None else text[: min(TEXT_CHARS, blocks * BLOCK_BYTES)]
