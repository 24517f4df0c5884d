"""The block pool with its prefix cache: who holds what, what is remembered, and what is forgotten first."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from toolkit.sim.engine import BlockPool, block_hashes


def test_a_match_ends_at_the_first_unknown_block():
    pool = BlockPool(4)
    (block,) = pool.take(1)
    pool.remember(block, 200)
    assert pool.match([100, 200]) == []


def test_the_longest_unused_block_is_forgotten_first_and_a_prefix_after_what_followed_it():
    pool = BlockPool(4)
    one, two, three = pool.take(3)
    for block, its_hash in ((one, 100), (two, 200), (three, 300)):
        pool.remember(block, its_hash)
    pool.release([three])
    pool.release([one, two])
    # eviction order: 3, then 2 (released last-first), then 1
    assert pool.take(1) == [three]
    assert pool.match([300]) == []
    assert pool.take(1) == [two]
    assert pool.match([100, 200]) == [one]


def test_room_beside_a_match_leaves_out_the_matched_blocks_that_are_free():
    pool = BlockPool(4)
    blocks = pool.take(2)
    pool.remember(blocks[0], 100)
    # 1 free; the match is held by somebody: it costs nothing
    assert pool.fits([blocks[0]], 1)
    pool.release(blocks)
    # 3 free, one of them is the match
    assert pool.fits([blocks[0]], 2)
    assert not pool.fits([blocks[0]], 3)


def test_a_second_block_with_the_same_content_is_not_remembered():
    pool = BlockPool(3)
    one, two = pool.take(2)
    pool.remember(one, 100)
    pool.remember(two, 100)
    assert pool.match([100]) == [one]
    pool.release([two])
    # taking the twin again must not make the first one unknown
    assert pool.take(1) == [two]
    assert pool.match([100]) == [one]


def test_a_hash_covers_all_that_stands_before_the_block():
    one = block_hashes([1, 2, 3, 4, 5, 6, 7], 2, blocks=3)
    other = block_hashes([9, 2, 3, 4, 5, 6], 2, blocks=3)
    assert not set(one) & set(other)
    assert block_hashes([1, 2, 3, 4, 8, 8], 2, blocks=2) == one[:2]


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(0, 50))
def test_hashes_worked_out_in_two_goes_are_the_same(ids, size, first):
    full = len(ids) // size
    whole = block_hashes(ids, size, blocks=full)
    begun = block_hashes(ids, size, blocks=min(first, full))
    assert block_hashes(ids, size, known=begun, blocks=full) == whole
    assert whole[: len(begun)] == begun


class PoolAgainstBookkeeping(RuleBasedStateMachine):
    """Any order of taking, sharing and giving back keeps the books."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(9)
        self.holders: list[list[int]] = []
        self.next_hash = 1

    @rule(count=st.integers(0, 5))
    def take(self, count):
        free = self.pool.free
        blocks = self.pool.take(count)
        assert (blocks is None) == (count > free)
        if blocks:
            assert not {each for held in self.holders for each in held} & set(blocks)
            self.holders.append(blocks)
            for block in blocks:
                self.pool.remember(block, self.next_hash)
                self.next_hash += 1

    @rule(its_hash=st.integers(1, 60))
    def share_what_is_known(self, its_hash):
        matched = self.pool.match([its_hash])
        if matched and self.pool.fits(matched, 0):
            self.pool.share(matched)
            self.holders.append(matched)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data):
        index = data.draw(st.integers(0, len(self.holders) - 1))
        self.pool.release(self.holders.pop(index))

    @invariant()
    def every_block_is_either_free_or_held(self):
        held = {each for blocks in self.holders for each in blocks}
        assert self.pool.free + len(held) == self.pool.usable == 8


TestPoolAgainstBookkeeping = PoolAgainstBookkeeping.TestCase
TestPoolAgainstBookkeeping.settings = settings(max_examples=40, stateful_step_count=30)
