"""what host memory holds of what the pool gives up"""

from collections.abc import Sequence

from minnow.cache.blocks import BlockPool
from minnow.cache.tiers import HostTier
from minnow.core.request import Request

ASKED = Request(request_id="a", token_ids=(1,) * 40)


def names(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def found(tier: HostTier, hashes: Sequence[bytes], num_tokens: int = 0) -> int:
    return tier.num_tokens_after(ASKED, num_tokens, hashes)


def test_blocks_that_follow_without_a_gap() -> None:
    tier = HostTier(8, 4)
    for name in names("bcdf"):
        tier.keep(1, name)
    assert found(tier, names("abcdef")) == 0
    assert found(tier, names("abcdef"), 4) == 12
    assert found(tier, names("bcx")) == 8
    assert len(tier) == tier.num_saved_blocks == 4


def test_the_least_recently_used_one_goes() -> None:
    tier = HostTier(3, 4)
    for name in names("abc"):
        tier.keep(1, name)
    tier.load(ASKED, 0, 4, names("a"))
    tier.keep(1, b"d")
    assert found(tier, names("b")) == 0 and found(tier, names("a")) == 4
    assert (tier.num_dropped_blocks, tier.num_loaded_blocks) == (1, 1)


def test_a_head_outlives_its_tail() -> None:
    tier = HostTier(3, 4)
    for name in names("cba"):
        tier.keep(1, name)
    tier.load(ASKED, 0, 12, names("abc"))
    tier.keep(1, b"d")
    assert found(tier, names("abc")) == 8


def test_what_it_holds_already_is_not_copied_again() -> None:
    tier = HostTier(2, 4)
    for name in names("aba"):
        tier.keep(1, name)
    tier.keep(1, b"c")
    assert tier.num_saved_blocks == 3 and found(tier, names("a")) == 4


def test_without_room_it_keeps_nothing() -> None:
    tier = HostTier(0, 4)
    tier.keep(1, b"a")
    assert not len(tier) and found(tier, names("a")) == 0


def test_a_pool_tells_of_what_it_evicts() -> None:
    tier = HostTier(8, 4)
    pool = BlockPool(4, 4, on_eviction=tier.keep)
    ids = pool.allocate(3)
    for block_id, name in zip(ids, names("abc"), strict=True):
        pool.publish(block_id, name)
    pool.free(ids)
    assert not len(tier)
    pool.allocate(2)
    assert found(tier, names("c")) == found(tier, names("b")) == 4 and not found(tier, names("a"))
