"""the device tensors of all blocks; the view a layer gets"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from minnow.cache.layout import BlockLayout, Page, Plane
from minnow.formats.quantized import Quantized, Weight
from minnow.formats.spec import FormatSpec

_CODE_DTYPE = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "nvfp4": torch.uint8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """One layer's caches: strided views into the rows of all blocks.

    Attributes:
        k, v: [B G L H], a tensor or a Quantized.
        index: [B 1 L J] index keys, or None on a layer without sparse attention.
    """

    k: Weight
    v: Weight
    index: Weight | None


class Pool:
    """All cache blocks of a rank: one u8 tensor [num_blocks, row_bytes], a contiguous row a block.

    Attributes:
        rows: the bytes; moving a block is copying a row.
        layers: the views that the model writes and reads.
        draft_layers: those of a drafter, in the same rows.
    """

    def __init__(self, layout: BlockLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self.rows = _zeros(num_blocks, layout.row_bytes, device)
        pages = {(page.group.name, page.layer): page for page in layout.pages()}
        layers = sorted({layer for name, layer in pages if name == "kv"})
        self.layers = tuple(self._layer(pages["kv", layer], pages.get(("index", layer))) for layer in layers)
        drafts = [page for (name, _), page in pages.items() if name == "draft"]
        self.draft_layers = tuple(self._layer(page, None) for page in drafts)

    def _layer(self, kv: Page, index: Page | None) -> LayerCache:
        spec = kv.group.format
        assert kv.values is not None
        return LayerCache(
            k=self._view(spec, kv.keys, kv.key_scales),
            v=self._view(spec, kv.values, kv.value_scales),
            index=None if index is None else self._view(index.group.format, index.keys, index.key_scales),
        )

    def _view(self, spec: FormatSpec, codes: Plane, scales: Plane | None) -> Weight:
        code_view = self._plane(codes, _CODE_DTYPE[spec.name])
        if spec.name in ("f32", "bf16"):
            return code_view
        return Quantized(
            spec=spec,
            codes=code_view,
            scales=None if scales is None else self._plane(scales, torch.float8_e4m3fn),
        )

    def _plane(self, plane: Plane, dtype: torch.dtype) -> Tensor:
        width = dtype.itemsize
        typed = self.rows.view(dtype)
        shape = (len(self.rows), plane.num_heads, plane.num_tokens, plane.width_bytes // width)
        strides = (
            self.layout.row_bytes // width, plane.head_stride_bytes // width, plane.token_stride_bytes // width, 1,
        )  # fmt: skip
        return typed.as_strided(shape, strides, plane.offset_bytes // width)


def _zeros(num_blocks: int, row_bytes: int, device: torch.device) -> Tensor:
    """Zeroed rows; on a CPU they come from the system untouched, so that memory is taken as blocks are used."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros((num_blocks, row_bytes), dtype=np.uint8))
    return torch.zeros(num_blocks, row_bytes, dtype=torch.uint8, device=device)
