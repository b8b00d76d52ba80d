"""bytes of one block for a format: K, V, index keys, scales (no torch)

A block is one contiguous row of bytes over all layers. The published documents leave the order inside it open;
everything Minnow decides about it is decided in this file, and `layout_id` names the decision in handshakes:

- Pages of the target come by layer; the index page of a layer follows its K/V page at once. Pages of the drafter
  come last.
- A page holds one slot a head and kind: slot 2h is K of head h, slot 2h + 1 is V of head h. A page of index keys
  has one slot a head.
- A slot holds the codes of all its tokens [tokens, width], then the scales of all its tokens [tokens, scales].
  Scales lie in plain token order, not swizzled.
- Nothing is padded. For 128 values a head every page is a multiple of 512 bytes as it is.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.formats.spec import SPEC_BY_NAME, FormatSpec

GroupName = Literal["kv", "index", "draft"]

CACHE_FORMATS = ("f32", "bf16", "fp8", "nvfp4")
_NAME_BY_SETTING = {"bfloat16": "bf16", "float32": "f32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGroup:
    """Pages of one kind: the same heads and format on several layers.

    Attributes:
        layers: layer ids that have such a page; the drafter counts its own layers from 0.
        num_heads: key/value heads on this rank, or index key heads.
        head_dim: values of one head and token.
        format: codes and, where the format has them, block scales.
        has_values: K and V; False is keys alone.
    """

    name: GroupName
    layers: tuple[int, ...]
    num_heads: int
    head_dim: int
    format: FormatSpec
    has_values: bool

    @property
    def num_layers(self) -> int:
        """Layers with such a page."""
        return len(self.layers)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token on one layer."""
        return self.num_heads * (2 if self.has_values else 1) * self.format.num_bytes(self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Where equal things of a page lie in the row: u8 [num_heads, num_tokens, width_bytes] with strides.

    Attributes:
        offset_bytes: of head 0, token 0, from the start of the row.
        width_bytes: contiguous bytes of one head and token.
    """

    offset_bytes: int
    num_heads: int
    num_tokens: int
    width_bytes: int
    head_stride_bytes: int
    token_stride_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One layer's share of a block: up to four planes.

    Attributes:
        key_scales, value_scales: None where the format has no block scales.
        values: None for index keys.
    """

    group: PageGroup
    layer: int
    offset_bytes: int
    num_bytes: int
    keys: Plane
    key_scales: Plane | None
    values: Plane | None
    value_scales: Plane | None

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes that exist; together they cover the page, each byte once."""
        every = (self.keys, self.key_scales, self.values, self.value_scales)
        return tuple(plane for plane in every if plane is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """How one block lies in memory.

    Attributes:
        groups: at most one group of a name.
        block_size: tokens in a block.
    """

    groups: tuple[PageGroup, ...]
    block_size: int

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        assert len(set(names)) == len(names), f"two page groups of one name: {names}"
        # Planes of wide elements are viewed in their own dtype, so each must begin on a whole element.
        element_bytes = max((group.format.bits + 7) // 8 for group in self.groups)
        for group in self.groups:
            if self.block_size * group.token_bytes % element_bytes:
                raise ConfigError(
                    f"a page of {self.block_size} tokens of {group.name} in {group.format.name} has "
                    f"{self.block_size * group.token_bytes} bytes, no multiple of {element_bytes}; "
                    "take a block_size that is a multiple of 16"
                )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers."""
        return sum(group.token_bytes * group.num_layers for group in self.groups)

    @property
    def row_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return self.token_bytes * self.block_size

    @property
    def num_pages(self) -> int:
        """Pages in a row."""
        return sum(group.num_layers for group in self.groups)

    @property
    def layout_id(self) -> str:
        """16 hex digits, equal where two engines may exchange rows byte by byte."""
        words = [f"minnow-row-1 tokens={self.block_size}"]
        words += [
            f"{g.name} layers={g.layers} heads={g.num_heads} dim={g.head_dim} {g.format.name} values={g.has_values}"
            for g in self.groups
        ]
        return sha256("\n".join(words).encode()).hexdigest()[:16]

    def group(self, name: GroupName) -> PageGroup | None:
        """The group of that name, or None where the row has no such pages."""
        return next((group for group in self.groups if group.name == name), None)

    def pages(self) -> tuple[Page, ...]:
        """All pages in the order in which they lie in the row."""
        main = [group for group in self.groups if group.name != "draft"]
        order = [
            (layer, group)
            for layer in sorted({layer for group in main for layer in group.layers})
            for group in sorted(main, key=lambda group: group.name, reverse=True)  # kv, then index
            if layer in group.layers
        ]
        order += [(layer, group) for group in self.groups if group.name == "draft" for layer in group.layers]
        pages = []
        offset_bytes = 0
        for layer, group in order:
            pages.append(_page(group, layer, offset_bytes, self.block_size))
            offset_bytes += pages[-1].num_bytes
        return tuple(pages)

    def page(self, name: GroupName, layer: int) -> Page:
        """One page; a layer without such a page is our own mistake."""
        return next(page for page in self.pages() if page.group.name == name and page.layer == layer)


def layout_of(
    config: ModelConfig,
    kv_format: str,
    index_format: str,
    *,
    num_kv_heads: int | None = None,
    block_size: int | None = None,
    drafter: PageGroup | None = None,
) -> BlockLayout:
    """The row of a model on one rank.

    Args:
        config: the network.
        kv_format: of K and V: "bf16" (or "bfloat16"), "fp8", "nvfp4", "f32".
        index_format: of the index keys, the same words. Layers without sparse attention have none.
        num_kv_heads: heads on this rank; None takes all. Index keys are whole on every rank.
        block_size: tokens in a block; None takes the model's. Sparse attention allows only its own.
        drafter: pages of a drafter, named "draft".

    Raises:
        ConfigError: an unknown format, or a block size that the sparse attention cannot use.
        FormatError: a head width that does not fill whole blocks of the format.
    """
    sparse = config.sparse
    sparse_layers = tuple(i for i, is_sparse in enumerate(sparse.is_sparse) if is_sparse)
    num_tokens = block_size or sparse.block_size
    if sparse_layers and num_tokens != sparse.block_size:
        raise ConfigError(
            f"block_size is {num_tokens}; this model chooses blocks of {sparse.block_size} tokens, "
            f"so the cache needs --block-size {sparse.block_size}"
        )
    groups = [
        PageGroup(
            name="kv",
            layers=tuple(range(config.num_hidden_layers)),
            num_heads=num_kv_heads or config.num_key_value_heads,
            head_dim=config.head_dim,
            format=_format(kv_format, config.head_dim),
            has_values=True,
        )
    ]
    if sparse_layers:
        groups.append(
            PageGroup(
                name="index",
                layers=sparse_layers,
                num_heads=1,
                head_dim=sparse.index_dim,
                format=_format(index_format, sparse.index_dim),
                has_values=False,
            )
        )
    if drafter is not None:
        groups.append(drafter)
    return BlockLayout(groups=tuple(groups), block_size=num_tokens)


def draft_pages(num_layers: int, num_kv_heads: int, head_dim: int, kv_format: str) -> PageGroup:
    """Pages of a drafter's layers, as `layout_of` takes them.

    Raises:
        ConfigError: an unknown format.
    """
    return PageGroup(
        name="draft",
        layers=tuple(range(num_layers)),
        num_heads=num_kv_heads,
        head_dim=head_dim,
        format=_format(kv_format, head_dim),
        has_values=True,
    )


def _format(word: str, head_dim: int) -> FormatSpec:
    name = _NAME_BY_SETTING.get(word, word)
    if name not in CACHE_FORMATS:
        raise ConfigError(f"no cache format {word!r}; it is one of {', '.join(CACHE_FORMATS)}")
    spec = SPEC_BY_NAME[name]
    spec.check_width(head_dim)
    return spec


def _page(group: PageGroup, layer: int, offset_bytes: int, num_tokens: int) -> Page:
    """Lay the slots of one page out, beginning at offset_bytes of the row."""
    code_bytes = group.format.num_code_bytes(group.head_dim)
    scale_bytes = group.format.num_scale_bytes(group.head_dim)
    slot_bytes = num_tokens * (code_bytes + scale_bytes)
    num_kinds = 2 if group.has_values else 1

    def plane(slot: int, skipped_bytes: int, width_bytes: int) -> Plane:
        return Plane(
            offset_bytes=offset_bytes + slot * slot_bytes + skipped_bytes,
            num_heads=group.num_heads,
            num_tokens=num_tokens,
            width_bytes=width_bytes,
            head_stride_bytes=num_kinds * slot_bytes,
            token_stride_bytes=width_bytes,
        )

    def scales(slot: int) -> Plane | None:
        return plane(slot, num_tokens * code_bytes, scale_bytes) if scale_bytes else None

    return Page(
        group=group,
        layer=layer,
        offset_bytes=offset_bytes,
        num_bytes=group.num_heads * num_kinds * slot_bytes,
        keys=plane(0, 0, code_bytes),
        key_scales=scales(0),
        values=plane(1, 0, code_bytes) if group.has_values else None,
        value_scales=scales(1) if group.has_values else None,
    )
