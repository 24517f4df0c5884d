"""Which KV blocks are free, held or remembered? vLLM's block pool with its prefix cache; no time, no I/O.

block 0        the null block: never handed out
held           by one request, or by several that share a prefix (`_holders` counts them)
free           in the order of eviction: least recently used first; some still hold a known prefix
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NO_PARENT = 0
"""What the first block of a sequence has for a parent hash."""


def block_hashes(
    ids: Sequence[int], block_size: int, *, known: Sequence[int] = (), upto: int | None = None
) -> list[int]:
    """Hash every full block of `ids` (the first `upto` tokens of it) with all that stands before it.

    `known` are the hashes of its first blocks, if some are worked out already. Python hashes tuples of
    integers alike in every process, whatever PYTHONHASHSEED says; 64 bits are enough for a toy.
    """
    hashes = list(known)
    parent = hashes[-1] if hashes else NO_PARENT
    end = len(ids) if upto is None else upto
    for start in range(len(hashes) * block_size, end - block_size + 1, block_size):
        parent = hash((parent, *ids[start : start + block_size]))
        hashes.append(parent)
    return hashes


class BlockPool:
    """The KV blocks of one engine. Raises ValueError when there is no usable block."""

    def __init__(self, num_gpu_blocks: int) -> None:
        if num_gpu_blocks < 2:
            raise ValueError("`num_gpu_blocks` must be at least 2: one is the null block")
        self.usable = num_gpu_blocks - 1
        # takes from the front, puts to the back and removes from the middle in constant time
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._holders: dict[int, int] = {}
        self._block_of: dict[int, int] = {}
        self._hash_of: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds; those that merely remember a prefix count as free."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Blocks somebody holds; a shared one counts once."""
        return len(self._holders)

    def match(self, hashes: Iterable[int]) -> list[int]:
        """Find the blocks that remember a prefix, up to the first unknown one."""
        found = []
        for each in hashes:
            block = self._block_of.get(each)
            if block is None:
                break
            found.append(block)
        return found

    def fits(self, matched: Sequence[int], new: int) -> bool:
        """Tell whether `new` blocks are free beside the matched ones, of which some may be free too."""
        idle = sum(block not in self._holders for block in matched)
        return new + idle <= len(self._free)

    def share(self, matched: Iterable[int]) -> None:
        """Hold blocks that `match` found."""
        for block in matched:
            self._free.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1

    def take(self, count: int) -> list[int] | None:
        """Hold `count` free blocks, the longest unused ones, and forget what they knew; None if too few."""
        if count > len(self._free):
            return None
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        block, _ = self._free.popitem(last=False)
        known = self._hash_of.pop(block, None)
        if known is not None:
            del self._block_of[known]
        self._holders[block] = 1
        return block

    def remember(self, block: int, its_hash: int) -> None:
        """Let others find a full block. The first block with a content stays the one that is found."""
        if its_hash not in self._block_of:
            self._block_of[its_hash] = block
            self._hash_of[block] = its_hash

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one holder's blocks, the last first: a prefix outlives what followed it."""
        for block in reversed(blocks):
            left = self._holders[block] - 1
            if left:
                self._holders[block] = left
            else:
                del self._holders[block]
                self._free[block] = None
