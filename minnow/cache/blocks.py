"""allocate, share, free; reference counts (no torch)"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

from minnow.core.errors import CapacityError

NULL_BLOCK = 0


class BlockPool:
    """Who uses which block, and which free blocks still hold known contents.

    Block 0 is the null block: unused table entries point at it, and it is never handed out. Every other block has a
    number of users; with none it is in the free list, least recently used first. A free block keeps its hash until
    it is handed out again, so an equal prefix can revive it. Blocks without a hash are of no use to anyone and are
    handed out before those with one. Every operation costs O(1) a block.
    """

    def __init__(
        self, num_blocks: int, block_size: int = 128, *, on_eviction: Callable[[int, bytes], None] | None = None
    ) -> None:
        """Make a pool whose blocks are all free.

        Args:
            num_blocks: rows of the pool, the null block among them.
            block_size: tokens in a block.
            on_eviction: called with a block that is handed out again and the hash of what it holds until then.

        Raises:
            CapacityError: not even one block beside the null block.
        """
        if num_blocks < 2:
            raise CapacityError(f"the cache has {num_blocks} blocks; it needs at least 2, as block 0 is never used")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_evictions = 0
        self._num_users = [0] * num_blocks
        self._on_eviction = on_eviction
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._hash_by_block: dict[int, bytes] = {}
        self._block_by_hash: dict[bytes, int] = {}

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can be handed out at all."""
        return self.num_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a user."""
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks, used or free, that an equal prefix could share."""
        return len(self._block_by_hash)

    def num_blocks_of(self, num_tokens: int) -> int:
        """Blocks that hold num_tokens tokens."""
        return -(-num_tokens // self.block_size)

    def is_free(self, block_id: int) -> bool:
        """Whether the block has no user."""
        return block_id in self._free

    def allocate(self, count: int) -> list[int]:
        """Hand out the least recently used free blocks; each gets one user and loses its hash."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} are free"
        block_ids = []
        for _ in range(count):
            block_id, _ = self._free.popitem(last=False)
            self._num_users[block_id] = 1
            evicted = self._forget(block_id)
            if evicted is not None:
                self.num_evictions += 1
                if self._on_eviction is not None:
                    self._on_eviction(block_id, evicted)
            block_ids.append(block_id)
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a user to each block; a free one is revived with what it holds."""
        for block_id in block_ids:
            assert self._num_users[block_id] or block_id in self._free, f"block {block_id} is not ours to share"
            self._free.pop(block_id, None)
            self._num_users[block_id] += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Take a user off each block of a sequence, given in the sequence's order.

        The last block is freed first: of a chain the tail must be evicted before its head, because a head serves
        more prefixes and a tail without its head serves none.
        """
        for block_id in reversed(block_ids):
            assert self._num_users[block_id] > 0, f"block {block_id} is freed more often than used"
            self._num_users[block_id] -= 1
            if not self._num_users[block_id]:
                self._free[block_id] = None
                if block_id not in self._hash_by_block:
                    self._free.move_to_end(block_id, last=False)

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds these contents, or None."""
        return self._block_by_hash.get(block_hash)

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Say what a used block holds. Where another block holds the same, that one stays the known one."""
        assert self._num_users[block_id] > 0, f"block {block_id} is published without a user"
        assert block_id not in self._hash_by_block, f"block {block_id} is published twice"
        if block_hash not in self._block_by_hash:
            self._block_by_hash[block_hash] = block_id
            self._hash_by_block[block_id] = block_hash

    def forget(self, block_ids: Iterable[int]) -> None:
        """Drop what is known of these blocks; their users keep them."""
        for block_id in block_ids:
            self._forget(block_id)

    def forget_all(self) -> None:
        """Drop all hashes; users keep their blocks."""
        self._hash_by_block.clear()
        self._block_by_hash.clear()

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Prove that every block is owned exactly once: by the null, the free list, or the users that tables name.

        Args:
            tables: the block ids of every sequence that holds any.
        """
        users = Counter(block_id for table in tables for block_id in table)
        assert NULL_BLOCK not in users and NULL_BLOCK not in self._free, "the null block was handed out"
        for block_id in range(1, self.num_blocks):
            counted, known = users[block_id], self._num_users[block_id]
            assert counted == known, f"block {block_id} has {counted} users, {known} are counted"
            assert (known == 0) == (block_id in self._free), f"block {block_id}: {known} users and the free list differ"
        assert len(self._free) == sum(n == 0 for n in self._num_users[1:]), "the free list holds strangers"
        inverse = {block_hash: block_id for block_id, block_hash in self._hash_by_block.items()}
        assert inverse == self._block_by_hash, "hashes and blocks disagree"

    def _forget(self, block_id: int) -> bytes | None:
        block_hash = self._hash_by_block.pop(block_id, None)
        if block_hash is not None:
            del self._block_by_hash[block_hash]
        return block_hash
