"""How much of all prompts a prefix cache would not compute again: whole blocks that begin as an earlier prompt did.

Counted as vLLM does it: a prompt's leading whole blocks that are in the cache, and never its last token, so that of a prompt wholly
in the cache the block with that token is computed again. Shares are of prompt tokens. The ceiling is a cache without end; with a
capacity, the blocks longest unused go first, and of one prompt its end before its beginning. A prompt is in the cache as soon as it
arrived. It takes no text apart and opens nothing.

Where blocks are made of bytes (64 for vLLM's 16 tokens), a prompt's known tokens are spread evenly over them, and the result
is an estimate. On the Mooncake conversation trace (12,031 requests) the ceiling is 37.34 %, and 39.78 % in its last half. The published
37.4 % and 39.8 % count a shared part of a block, too, at a prompt's end: 37.36 % and 39.81 %.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


def shared_prefix(
    columns: RequestColumns, *, capacities: Sequence[int] = (), top: int = 0
) -> Prefixes:
    """The ceiling; for each capacity in blocks what is left of it; and that many of the most shared beginnings."""
    bodies = _Bodies(columns)
    owner, depth = bodies.owner, bodies.depth
    is_new = owner[bodies.first][bodies.kind] == owner
    # leading blocks of each body that an earlier one has, too; a body that came before is known whole
    known_before = bodies.counts.copy()
    np.minimum.at(known_before, owner[is_new], depth[is_new])
    leading = bodies.counts[bodies.of]
    leading[np.unique(bodies.of, return_index=True)[1]] = known_before

    saved = bodies.saved(leading)
    sizes = Counter(one.block_tokens for one in columns.asked if one.block_tokens)
    block = sizes.most_common(1)[0][0] if sizes else None
    held = {blocks: bodies.saved(bodies.still_held(blocks)) for blocks in capacities}
    by_volume, by_count = bodies.most_shared(top) if top else ((), ())
    return Prefixes(
        share=bodies.share(saved),
        last_half_share=bodies.share(saved, len(saved) // 2),
        tokens=float(bodies.tokens.sum()),
        shared_tokens=float(saved.sum()),
        block_tokens=block,
        estimated=any(map(_is_text, bodies.asked)),
        blocks=int(bodies.counts[bodies.of].sum()),
        unique_blocks=len(bodies.first),
        by_capacity=tuple(
            PrefixCell(
                blocks=blocks,
                tokens=blocks * (block or BLOCK_TOKENS),
                share=bodies.share(each),
                last_half_share=bodies.share(each, len(each) // 2),
            )
            for blocks, each in held.items()
        ),
        by_volume=by_volume,
        by_count=by_count,
    )


class _Bodies:
    """The different bodies, in the order of their first arrival, and their blocks one after the other."""

    def __init__(self, columns: RequestColumns) -> None:
        present, first, of = np.unique(columns.exact, return_index=True, return_inverse=True)
        by_arrival = np.argsort(first)
        place = np.empty(len(present), dtype=np.int64)
        place[by_arrival] = np.arange(len(present))
        self.of: Codes = place[of]
        """Each request's body, by place in this order."""
        self.asked = [columns.asked[code] for code in present[by_arrival].tolist()]
        chains = [one.prompt_blocks for one in self.asked]
        self.counts: Codes = np.array([len(c) // HASH_BYTES for c in chains], dtype=np.int64)
        """Whole blocks of each."""
        self.hashes = np.frombuffer(b"".join(chains), dtype=">u8").astype(np.uint64)
        _, self.first, self.kind = np.unique(self.hashes, return_index=True, return_inverse=True)
        """Where each different block stands first; and which of the different blocks each is."""
        self.owner: Codes = np.repeat(np.arange(len(self.counts)), self.counts)
        """Each block's body."""
        start = np.cumsum(self.counts) - self.counts
        self.depth: Codes = np.arange(len(self.hashes)) - np.repeat(start, self.counts)
        """Each block's place in its prompt, 0 for the first."""

        sizes = np.array([one.block_tokens or BLOCK_TOKENS for one in self.asked], dtype=float)
        of_text = np.array([_is_text(one) for one in self.asked], dtype=bool)[self.of]
        chars = np.array([one.prompt_chars or 0 for one in self.asked], dtype=float)
        # a text ends anywhere in the block after its last whole one: in its middle, for want of better
        spread = np.maximum(self.counts + 0.5 * (chars > 0), chars / BLOCK_BYTES)[self.of]
        self.block: Numbers = sizes[self.of]
        """Tokens that the cache keeps together, by request; so with the next two."""
        known = columns.prompt_tokens
        self.tokens: Numbers = np.where(np.isnan(known), spread * self.block, known)
        """0 where it is unknown."""
        self.per_hash: Numbers = self.block.copy()
        """Tokens that one of our blocks stands for."""
        np.divide(self.tokens, spread, out=self.per_hash, where=of_text & (spread > 0))

    def saved(self, leading: Codes) -> Numbers:
        """Tokens of each prompt that need not be computed: whole blocks, and never the last token."""
        whole = np.floor(leading * self.per_hash / self.block)
        most = np.floor(np.maximum(self.tokens - 1, 0) / self.block)
        saved: Numbers = np.minimum(whole, most) * self.block
        return saved

    def share(self, saved: Numbers, since: int = 0) -> float | None:
        """Of all tokens from one request on; None of no tokens."""
        total = float(self.tokens[since:].sum())
        return float(saved[since:].sum()) / total if total else None

    def still_held(self, capacity: int) -> Codes:
        """Leading blocks of each request that a cache of so many blocks holds when it arrives."""
        ends = np.cumsum(self.counts)
        chains = [c.tolist() for c in np.split(self.hashes, ends[:-1])] if len(ends) else []
        held: OrderedDict[int, None] = OrderedDict()
        leading = []
        for body in self.of.tolist():
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

    def most_shared(self, top: int) -> tuple[tuple[SharedPrefix, ...], tuple[SharedPrefix, ...]]:
        """The beginnings that save the most tokens, and those that the most requests share."""
        arrivals = np.bincount(self.of, minlength=len(self.counts))
        weights = arrivals[self.owner]
        requests = np.bincount(self.kind, weights=weights, minlength=len(self.first)).astype(int)
        # by block: requests of that one of the blocks after it which the most requests have
        going_on = np.zeros(len(requests), dtype=np.int64)
        before = np.flatnonzero(self.depth[1:] > 0)  # those that a block of the same prompt follows
        np.maximum.at(going_on, self.kind[before], requests[self.kind[before + 1]])
        chosen = np.flatnonzero((requests > 1) & (requests > going_on))
        first = self.first[chosen]
        length = self.depth[first] + 1
        repeats = requests[chosen] - 1

        def shared(kind: int) -> SharedPrefix:
            at, times = int(self.first[kind]), int(requests[kind])
            asked = self.asked[int(self.owner[at])]
            blocks = int(self.depth[at]) + 1
            tokens = blocks * (asked.block_tokens or BLOCK_TOKENS)
            text = asked.prompt_text if _is_text(asked) else None
            return SharedPrefix(
                prefix=f"{int(self.hashes[at]):016x}",
                blocks=blocks,
                tokens=tokens,
                requests=times,
                saved_tokens=tokens * (times - 1),
                text=None if text is None else text[: min(TEXT_CHARS, blocks * BLOCK_BYTES)],
            )

        by_volume, by_count = (
            tuple(map(shared, chosen[np.lexsort((first, -length, -worth))[:top]].tolist()))
            for worth in (repeats * length, repeats)
        )
        return by_volume, by_count


def _is_text(asked: Asked) -> bool:
    """Its blocks are made of bytes; of token ids and in traces the number of tokens is known, and no characters."""
    return asked.prompt_tokens is None or bool(asked.prompt_chars)
