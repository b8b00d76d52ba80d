"""weights copied once into memory of huge pages, which read faster than a mapped file's small ones"""

import contextlib
import mmap

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight

_ALIGN_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20


class ResidentWeights:
    """One stretch of memory that weights are copied into, one after the other.

    A page of 4 KiB holds few rows of a small matrix, and each costs a walk through the page tables; pages of 2 MiB do
    not. What the system does not give in huge pages is small ones, and no mistake.
    """

    def __init__(self, num_bytes: int, num_tensors: int) -> None:
        """Reserve room; memory is taken as it is filled.

        Args:
            num_bytes: of all tensors; num_tensors: how many, as each begins on a cache line.
        """
        room = num_bytes + num_tensors * _ALIGN_BYTES + 2 * _HUGE_PAGE_BYTES
        memory = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a system that knows no huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)  # keeps the mapping alive
        self._next = -self._bytes.data_ptr() % _HUGE_PAGE_BYTES

    def copy(self, weight: Weight) -> Weight:
        """The same weight, in this memory; its global scale stays where it is."""
        return weight.map(self._copy) if isinstance(weight, Quantized) else self._copy(weight)

    def _copy(self, tensor: Tensor) -> Tensor:
        source = tensor.contiguous().flatten().view(torch.uint8)
        place = self._bytes[self._next : self._next + source.numel()]
        place.copy_(source)
        self._next += -(-source.numel() // _ALIGN_BYTES) * _ALIGN_BYTES
        return place.view(tensor.dtype).view(tensor.shape)
