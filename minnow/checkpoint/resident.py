"""weights copied once into memory of huge pages, which read faster than a mapped file's small ones"""

import contextlib
import mmap
from dataclasses import replace

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized, Weight
from minnow.kernels.tiles import Tiled

_ALIGN_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20


def huge_pages(num_bytes: int) -> Tensor:
    """u8 [num_bytes] of zeros, in pages of 2 MiB where the system gives them; memory is taken as it is touched."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has small pages
    with contextlib.suppress(OSError, AttributeError):  # a system that knows no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)  # keeps the mapping alive


class ResidentWeights:
    """One stretch of memory that weights are copied into, one after the other.

    Each page of 4 KiB, few rows of a small matrix, costs a walk through the page tables; what the system does not give
    in huge pages is small ones, and no mistake.
    """

    def __init__(self, num_bytes: int, num_tensors: int) -> None:
        """Reserve room for num_bytes in num_tensors that begin on cache lines each; it is taken as it is filled."""
        self._bytes = huge_pages(num_bytes + num_tensors * _ALIGN_BYTES + 2 * _HUGE_PAGE_BYTES)
        self._next = -self._bytes.data_ptr() % _HUGE_PAGE_BYTES

    def copy(self, weight: Weight) -> Weight:
        """The same weight, in this memory; its global scale stays where it is."""
        return weight.map(self._copy) if isinstance(weight, Quantized) else self._copy(weight)

    def copy_tiled(self, weight: Tiled) -> Tiled:
        """The same tiles, in this memory."""
        return replace(weight, data=self._copy(weight.data))

    def _copy(self, tensor: Tensor) -> Tensor:
        source = tensor.contiguous().flatten().view(torch.uint8)
        place = self._bytes[self._next : self._next + source.numel()]
        place.copy_(source)
        self._next += -(-source.numel() // _ALIGN_BYTES) * _ALIGN_BYTES
        return place.view(tensor.dtype).view(tensor.shape)
