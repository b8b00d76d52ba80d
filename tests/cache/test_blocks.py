"""who owns which block"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minnow.cache.blocks import BlockPool
from minnow.core.errors import CapacityError


def test_the_null_block_is_never_handed_out() -> None:
    pool = BlockPool(8)
    assert sorted(pool.allocate(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.num_free_blocks == 0
    with pytest.raises(CapacityError, match="1 blocks"):
        BlockPool(1)


def test_tails_are_evicted_before_heads_and_nameless_blocks_before_both() -> None:
    pool = BlockPool(6)
    chain = pool.allocate(3)
    for block_id, block_hash in zip(chain, (b"a", b"b", b"c"), strict=True):
        pool.publish(block_id, block_hash)
    partial = pool.allocate(1)
    pool.free([*chain, *partial])
    assert pool.allocate(1) == partial  # freed last, of no use to anyone
    assert pool.allocate(1) == [5]  # never used
    assert pool.allocate(1) == [chain[2]]
    assert pool.find(b"c") is None and pool.find(b"b") == chain[1]
    assert pool.num_evictions == 1


def test_a_free_block_with_a_hash_is_revived() -> None:
    pool = BlockPool(3)
    (block_id,) = pool.allocate(1)
    pool.publish(block_id, b"a")
    pool.free([block_id])
    assert pool.is_free(block_id) and pool.find(b"a") == block_id
    pool.share([block_id])
    assert not pool.is_free(block_id)
    assert pool.allocate(1) != [block_id]
    pool.check([[block_id], [3 - block_id]])


def test_use_makes_a_block_the_last_to_be_evicted() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.publish(first, b"a")
    pool.publish(second, b"b")
    pool.free([second])
    pool.free([first])
    pool.share([second])
    pool.free([second])
    assert pool.allocate(2) == [first, second]


def test_equal_contents_stay_known_by_one_block() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(2)
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    assert pool.find(b"a") == first and pool.num_cached_blocks == 1
    pool.forget([second])
    assert pool.find(b"a") == first
    pool.forget([first])
    assert pool.find(b"a") is None


def test_mistakes_are_caught() -> None:
    pool = BlockPool(4)
    (block_id,) = pool.allocate(1)
    with pytest.raises(AssertionError, match="3 blocks wanted, 2 are free"):
        pool.allocate(3)
    with pytest.raises(AssertionError, match="users"):
        pool.check([])
    with pytest.raises(AssertionError, match="users"):
        pool.check([[block_id], [block_id]])
    pool.free([block_id])
    with pytest.raises(AssertionError, match="more often"):
        pool.free([block_id])
    with pytest.raises(AssertionError, match="without a user"):
        pool.publish(block_id, b"a")


class PoolMachine(RuleBasedStateMachine):
    """Random use of a pool beside a model of it: tables, and what each known hash was published for."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.tables: list[list[int]] = []
        self.num_hashes = 0

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count <= self.pool.num_free_blocks:
            taken = self.pool.allocate(count)
            assert len(set(taken)) == count
            self.tables.append(taken)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        for block_id in table:
            block_hash = b"%d" % self.num_hashes
            self.pool.forget([block_id])
            self.pool.publish(block_id, block_hash)
            assert self.pool.find(block_hash) == block_id
            self.num_hashes += 1

    @rule(number=st.integers(0, 40))
    def revive(self, number: int) -> None:
        block_id = self.pool.find(b"%d" % number)
        if block_id is not None:
            self.pool.share([block_id])
            self.tables.append([block_id])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables.remove(table)
        self.pool.free(table)

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        assert self.pool.num_cached_blocks == 0

    @invariant()
    def every_block_is_owned_once(self) -> None:
        self.pool.check(self.tables)
        used = {block_id for table in self.tables for block_id in table}
        assert self.pool.num_free_blocks == self.pool.num_usable_blocks - len(used)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
