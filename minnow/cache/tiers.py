"""host memory and other places beyond the pool: what goes down, what comes back (no torch)"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from minnow.core.request import Request


class Source(Protocol):
    """Where keys and values of a prompt's next tokens come from when the pool has not got them."""

    def num_tokens_after(self, request: Request, num_tokens: int, hashes: Sequence[bytes]) -> int:
        """How many tokens after the first num_tokens can be had; the last token of the prompt never is.

        Args:
            num_tokens: that the pool has, in whole blocks.
            hashes: of the prompt's full blocks; empty without a prefix cache.
        """

    def load(self, request: Request, num_tokens: int, count: int, hashes: Sequence[bytes]) -> None:
        """Bring the count tokens that `num_tokens_after` promised, before the step; blocks for them are taken next."""


class HostTier:
    """Which evicted blocks host memory still holds; the least recently used one goes when another comes.

    A block that is loaded stays, so that it need not be copied again when the pool evicts it once more. Pass `keep` to
    the pool as on_eviction, and the tier to the scheduler as its source. Every operation costs O(1) a block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Make an empty tier.

        Args:
            num_blocks: that it holds; 0 holds none.
            block_size: tokens in a block.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_saved_blocks = 0  # copied down so far
        self.num_loaded_blocks = 0  # copied up so far
        self.num_dropped_blocks = 0
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, block_id: int, block_hash: bytes) -> None:
        """Take what a block of the pool holds before it is overwritten."""
        if block_hash in self._held:
            self._held.move_to_end(block_hash)
            return
        if not self.num_blocks:
            return
        if len(self._held) >= self.num_blocks:
            self._held.popitem(last=False)
            self.num_dropped_blocks += 1
        self._held[block_hash] = None
        self.num_saved_blocks += 1

    def num_tokens_after(self, request: Request, num_tokens: int, hashes: Sequence[bytes]) -> int:
        """As `Source`: tokens of the blocks that follow without a gap."""
        first = num_tokens // self.block_size
        last = first
        while last < len(hashes) and hashes[last] in self._held:
            last += 1
        return (last - first) * self.block_size

    def load(self, request: Request, num_tokens: int, count: int, hashes: Sequence[bytes]) -> None:
        """As `Source`."""
        first, num_blocks = num_tokens // self.block_size, count // self.block_size
        self.num_loaded_blocks += num_blocks
        # Backwards, so that of a chain the tail is dropped before its head.
        for block_hash in reversed(hashes[first : first + num_blocks]):
            self._held.move_to_end(block_hash)
