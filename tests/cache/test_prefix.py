"""which prefixes are equal"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minnow.cache.blocks import BlockPool
from minnow.cache.prefix import HashChain, PrefixCache, PrefixKey
from minnow.core.request import Adapter, MediaItem, Request

BLOCK_SIZE = 4
TOKENS = tuple(range(16))
PLAIN = PrefixKey()


def hashes(key: PrefixKey = PLAIN, tokens: tuple[int, ...] = TOKENS) -> list[bytes]:
    """The chain of all full blocks."""
    return HashChain(key, BLOCK_SIZE).first(len(tokens) // BLOCK_SIZE, tokens)


def num_equal(first: list[bytes], second: list[bytes]) -> int:
    """Leading blocks that would be shared; behind the first difference nothing is equal."""
    flags = [a == b for a, b in zip(first, second, strict=True)]
    assert flags == sorted(flags, reverse=True)
    return sum(flags)


def test_a_token_changes_its_block_and_all_later_ones() -> None:
    for position in range(16):
        changed = (*TOKENS[:position], 99, *TOKENS[position + 1 :])
        assert num_equal(hashes(), hashes(tokens=changed)) == position // BLOCK_SIZE


def test_growing_a_chain_equals_making_it_at_once() -> None:
    chain = HashChain(PrefixKey(), BLOCK_SIZE)
    tokens: list[int] = []
    for token_id in TOKENS:
        tokens.append(token_id)
        chain.first(len(tokens) // BLOCK_SIZE, tokens)
    assert chain.first(4, tokens) == hashes()


def test_hashes_are_the_same_in_every_process() -> None:
    assert hashes()[0].hex().startswith("e46e6021b19997f8")


@pytest.mark.parametrize(
    "key",
    [
        PrefixKey(salt="a"),
        PrefixKey(salt=""),
        PrefixKey(salt="\ud800"),
        PrefixKey(weight_version=1),
        PrefixKey(adapter=Adapter(name="a", version=1)),
        PrefixKey(adapter=Adapter(name="a", version=2)),
        PrefixKey(adapter=Adapter(name="b", version=1)),
        PrefixKey(adapter=Adapter(name="a", version=1), salt="a"),
    ],
)
def test_salt_adapter_and_weights_reach_every_block(key: PrefixKey) -> None:
    assert num_equal(hashes(), hashes(key)) == 0
    assert hashes(key) == hashes(replace(key))


def test_images_with_equal_endings_of_their_hashes_are_different() -> None:
    """Case C07: only the whole content hash tells images apart, from the block on that an image touches."""
    first = MediaItem(content_hash="1111aaaa00ffbeef", offset=6, num_tokens=5)
    second = replace(first, content_hash="2222bbbb11eebeef")
    chains = [hashes(PrefixKey(media=media)) for media in ((), (first,), (second,))]
    assert num_equal(chains[1], chains[2]) == 1
    assert num_equal(chains[0], chains[1]) == 1
    assert chains[1] == hashes(PrefixKey(media=(first,)))


def test_an_image_counts_by_its_place_in_the_block() -> None:
    image = MediaItem(content_hash="a", offset=5, num_tokens=2)
    moved = replace(image, offset=6)
    assert num_equal(hashes(PrefixKey(media=(image,))), hashes(PrefixKey(media=(moved,)))) == 1
    ends_before = MediaItem(content_hash="a", offset=0, num_tokens=4)
    assert hashes(PrefixKey(media=(ends_before,)))[1] != hashes()[1]  # through the chain
    later = MediaItem(content_hash="a", offset=16, num_tokens=4)
    assert hashes(PrefixKey(media=(later,))) == hashes()


KEYS = st.builds(
    PrefixKey,
    adapter=st.none() | st.builds(Adapter, name=st.text("ab", max_size=2), version=st.integers(0, 1)),
    weight_version=st.integers(0, 1),
    salt=st.none() | st.text("ab", max_size=2),
    media=st.lists(
        st.builds(MediaItem, content_hash=st.text("ab", max_size=2), offset=st.integers(0, 3), num_tokens=st.just(1)),
        max_size=2,
    ).map(tuple),
)
CONTENTS = st.lists(st.integers(0, 1), min_size=4, max_size=4).map(tuple)


@given(KEYS, KEYS, CONTENTS, CONTENTS)
def test_hashes_are_equal_exactly_when_everything_is(
    first: PrefixKey, second: PrefixKey, tokens: tuple[int, ...], other_tokens: tuple[int, ...]
) -> None:
    is_equal = (first, tokens) == (second, other_tokens)
    assert (hashes(first, tokens) == hashes(second, other_tokens)) == is_equal


def test_match_leaves_the_last_token_to_compute() -> None:
    pool = BlockPool(9, BLOCK_SIZE)
    cache = PrefixCache(pool)
    request = Request(request_id="a", token_ids=TOKENS)
    chain = cache.chain(request)
    block_ids = pool.allocate(4)
    cache.publish(chain, TOKENS, block_ids, start=0, stop=2)
    cache.publish(chain, TOKENS, block_ids, start=2, stop=4)
    for num_tokens, num_blocks in ((0, 0), (1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (16, 3)):
        tokens = TOKENS[:num_tokens]
        assert cache.match(cache.chain(replace(request, token_ids=tokens)), tokens) == block_ids[:num_blocks]
    longer = (*TOKENS, 7)
    assert cache.match(cache.chain(request), longer) == block_ids
    assert cache.match(cache.chain(replace(request, cache_salt="b")), longer) == []


def test_match_ends_at_the_first_missing_block() -> None:
    pool = BlockPool(9, BLOCK_SIZE)
    cache = PrefixCache(pool)
    chain = cache.chain(Request(request_id="a", token_ids=TOKENS))
    block_ids = pool.allocate(4)
    cache.publish(chain, TOKENS, block_ids, start=0, stop=4)
    pool.forget(block_ids[1:2])
    assert cache.match(chain, (*TOKENS, 7)) == block_ids[:1]
    cache.reset()
    assert cache.match(chain, (*TOKENS, 7)) == []


def test_new_weights_find_no_old_blocks() -> None:
    pool = BlockPool(9, BLOCK_SIZE)
    cache = PrefixCache(pool)
    request = Request(request_id="a", token_ids=TOKENS)
    cache.publish(cache.chain(request), TOKENS, pool.allocate(4), start=0, stop=4)
    cache.weight_version += 1
    assert cache.match(cache.chain(request), (*TOKENS, 7)) == []


def test_forgetting_a_chain_reaches_blocks_that_have_been_given_back() -> None:
    """A preempted sequence whose rows turn out broken: what it published is found no more, by nobody."""
    pool = BlockPool(8, block_size=4)
    cache = PrefixCache(pool)
    asked = Request(request_id="a", token_ids=TOKENS)
    chain = cache.chain(asked)
    blocks = pool.allocate(2)
    cache.publish(chain, TOKENS, blocks, start=0, stop=2)
    pool.free(blocks)
    assert cache.match(cache.chain(asked), TOKENS) != []
    cache.forget(chain)
    assert cache.match(cache.chain(asked), TOKENS) == []


def test_a_fork_goes_its_own_way_from_the_blocks_it_shares() -> None:
    chain = HashChain(PLAIN, BLOCK_SIZE)
    chain.first(4, TOKENS)
    others = (*TOKENS[:8], *range(50, 62))
    for num_shared in (0, 1, 2):
        assert chain.fork(num_shared).first(5, others) == hashes(tokens=others)
    assert chain.fork(9).known() == chain.known() == hashes()
    fresh = HashChain(PLAIN, BLOCK_SIZE)
    assert fresh.fork(2).first(4, TOKENS) == hashes()  # nothing had been worked out
