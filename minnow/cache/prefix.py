"""hash chain of full blocks: match, publish, evict (no torch)"""

import struct
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import sha256

from minnow.cache.blocks import BlockPool
from minnow.core.request import Adapter, MediaItem, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKey:
    """What keys and values depend on beside the token ids.

    Attributes:
        adapter: LoRA adapter by name and version of its weights.
        weight_version: counts updates of the model's own weights.
        salt: of the client; sequences share blocks only where it is equal.
        media: images and videos by the hash of their contents; their placeholder tokens are all alike.
    """

    adapter: Adapter | None = None
    weight_version: int = 0
    salt: str | None = None
    media: tuple[MediaItem, ...] = ()

    @staticmethod
    def of(request: Request, weight_version: int) -> "PrefixKey":
        """The key of a request under the weights of that version."""
        return PrefixKey(
            adapter=request.adapter, weight_version=weight_version, salt=request.cache_salt, media=request.media
        )


class HashChain:
    """Hashes of a sequence's full blocks; each covers all tokens up to its block's end.

    hash(n) = SHA-256 over hash(n - 1), the block's token ids and the media that overlap it. Before the first block
    stands a root: SHA-256 over block size, weight version, adapter and salt, which so reach every block of the chain.
    Every field is written as tag, length in bytes, bytes, so that no two different inputs are written alike.
    """

    def __init__(self, key: PrefixKey, block_size: int) -> None:
        self._media = key.media
        self._block_size = block_size
        self._root = self._last = _root(key, block_size)
        self._hashes: list[bytes] = []
        self._tokens = struct.Struct(f"<{block_size}I")
        self._of_tokens = _head(b"t", self._tokens.size)

    def first(self, num_blocks: int, token_ids: Sequence[int]) -> list[bytes]:
        """Hashes of the first num_blocks blocks; token_ids holds at least their tokens and only ever grows."""
        for index in range(len(self._hashes), num_blocks):
            start = index * self._block_size
            tokens = token_ids[start : start + self._block_size]
            assert len(tokens) == self._block_size, f"block {index} is not full"
            self._last = self._block_hash(start, tokens)
            self._hashes.append(self._last)
        return self._hashes[:num_blocks]

    def known(self) -> list[bytes]:
        """The hashes that have been worked out so far."""
        return list(self._hashes)

    def fork(self, num_blocks: int) -> "HashChain":
        """A chain of a sequence that begins with the same num_blocks blocks, their media among it.

        Those that have been worked out so far are not worked out again.
        """
        twin = copy(self)
        twin._hashes = self._hashes[:num_blocks]
        twin._last = twin._hashes[-1] if twin._hashes else self._root
        return twin

    def _block_hash(self, start: int, tokens: Sequence[int]) -> bytes:
        fields = [_OF_LAST, self._last, self._of_tokens, self._tokens.pack(*tokens)]
        for item in self._media:
            if item.offset < start + self._block_size and start < item.offset + item.num_tokens:
                fields.append(_field(b"m", item.content_hash.encode()))
                fields.append(_field(b"o", struct.pack("<q", item.offset - start)))
        return sha256(b"".join(fields)).digest()


class PrefixCache:
    """Finds the blocks that equal prefixes left in the pool.

    Attributes:
        weight_version: part of every new key; whoever changes the weights counts it up.
    """

    def __init__(self, blocks: BlockPool) -> None:
        self.weight_version = 0
        self._blocks = blocks

    def chain(self, request: Request) -> HashChain:
        """A chain for one sequence, empty so far."""
        return HashChain(PrefixKey.of(request, self.weight_version), self._blocks.block_size)

    def match(self, chain: HashChain, token_ids: Sequence[int]) -> list[int]:
        """Blocks of the longest cached prefix, in order; nobody is counted as their user yet.

        At least the last token is left out, because its logits are wanted: of a prompt that is cached whole, the
        last block is computed again.
        """
        num_blocks = max(len(token_ids) - 1, 0) // self._blocks.block_size
        found: list[int] = []
        for block_hash in chain.first(num_blocks, token_ids):
            block_id = self._blocks.find(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def publish(
        self, chain: HashChain, token_ids: Sequence[int], block_ids: Sequence[int], *, start: int, stop: int
    ) -> None:
        """Offer the blocks [start, stop) of a sequence to others.

        Their keys and values are computed and their tokens final: no draft that might be rejected, no partial block.
        """
        hashes = chain.first(stop, token_ids)
        for index in range(start, stop):
            self._blocks.publish(block_ids[index], hashes[index])

    def forget(self, chain: HashChain) -> None:
        """Drop what is known of a sequence's blocks, whoever holds them now."""
        found = (self._blocks.find(block_hash) for block_hash in chain.known())
        self._blocks.forget([block_id for block_id in found if block_id is not None])

    def reset(self) -> None:
        """Forget all prefixes; sequences that run keep their blocks."""
        self._blocks.forget_all()


def _root(key: PrefixKey, block_size: int) -> bytes:
    fields = [_field(b"v", b"minnow-prefix-1"), _field(b"b", struct.pack("<q", block_size))]
    fields.append(_field(b"w", struct.pack("<q", key.weight_version)))
    if key.adapter is not None:
        fields.append(_field(b"a", key.adapter.name.encode("utf-8", "surrogatepass")))
        fields.append(_field(b"n", struct.pack("<q", key.adapter.version)))
    if key.salt is not None:
        fields.append(_field(b"s", key.salt.encode("utf-8", "surrogatepass")))
    return sha256(b"".join(fields)).digest()


def _field(tag: bytes, payload: bytes) -> bytes:
    return _head(tag, len(payload)) + payload


def _head(tag: bytes, num_bytes: int) -> bytes:
    return tag + struct.pack("<Q", num_bytes)


_OF_LAST = _head(b"p", sha256().digest_size)
