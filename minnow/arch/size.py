"""parameters, bytes of the model, active parameters a token; of all of it or of one rank"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minnow.arch import drafter, names
from minnow.arch.names import Kind, Module
from minnow.arch.sharding import ALONE, Ranks, shape_on_rank
from minnow.arch.storage import ITEM_BYTES, STORAGE_BY_NAME, storage_of
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig
from minnow.core.errors import FormatError
from minnow.formats.spec import SPEC_BY_NAME

_WORD_BY_DTYPE = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
_NO_CONVERSION: Mapping[Kind, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one kind of weight in one format adds up to.

    Attributes:
        format: a number format's name (formats/spec.py).
        num_tensors: in the checkpoint, scales among them.
        num_bytes: of these tensors.
    """

    kind: Kind
    format: str
    num_tensors: int
    num_parameters: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Weights of a rank that differ in the numbers of their layers and experts only.

    Attributes:
        name: of one of them, with 0 for those numbers.
        shape: of one, on the rank.
        count: how many the rank holds.
        num_bytes: of one.
        num_tensors: of all.
    """

    kind: Kind
    format: str
    name: str
    shape: tuple[int, ...]
    count: int
    num_bytes: int
    num_tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model's weights, drafter and multi-token prediction left out: as its checkpoint holds them, or on a rank.

    Attributes:
        shares: by kind and format, in the order of `arch.names.KINDS`.
        num_active_parameters: that one text token meets in the layers, on whatever rank: its experts only. The head
            comes on top where logits are wanted.
    """

    shares: tuple[Share, ...]
    num_active_parameters: int

    @property
    def num_tensors(self) -> int:
        """Tensors in the checkpoint, or on the rank."""
        return sum(share.num_tensors for share in self.shares)

    @property
    def num_parameters(self) -> int:
        """Weights and biases; scales are not counted."""
        return sum(share.num_parameters for share in self.shares)

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(share.num_bytes for share in self.shares)


def measure(
    config: ModelConfig,
    dtype_by_name: Mapping[str, str] | None = None,
    *,
    ranks: Ranks = ALONE,
    format_by_kind: Mapping[Kind, str] = _NO_CONVERSION,
) -> ModelSize:
    """Add up what a checkpoint of this configuration holds, or what the fullest of some ranks holds of it.

    Args:
        config: the network and how it is stored.
        dtype_by_name: safetensors' dtypes of a checkpoint at hand, where the configuration leaves a choice of
            floats; without it, those of the published checkpoints.
        ranks: that share the weights (arch/sharding.py).
        format_by_kind: formats that kinds of weights are converted to when they are loaded.

    Raises:
        ConfigError: the ranks do not divide a weight.
        FormatError: a weight's width, or a rank's part of it, does not fill whole blocks of its format.
    """
    tensors: Counter[tuple[Kind, str]] = Counter()
    parameters, in_bytes = tensors.copy(), tensors.copy()
    alike = (
        _published(config) if dtype_by_name is None else _alike(names.modules(config).values(), config, dtype_by_name)
    )
    for held in (weights.held(ranks, config, format_by_kind) for weights in alike):
        key = (held.kind, held.format)
        tensors[key] += held.num_tensors
        parameters[key] += held.count * math.prod(held.shape)
        in_bytes[key] += held.count * held.num_bytes
    shares = tuple(
        Share(
            kind=kind,
            format=form,
            num_tensors=tensors[kind, form],
            num_parameters=parameters[kind, form],
            num_bytes=in_bytes[kind, form],
        )
        for kind, form in sorted(tensors, key=lambda key: (names.KINDS.index(key[0]), key[1]))
    )
    return ModelSize(shares=shares, num_active_parameters=_num_active(alike, config))


def weights_on_rank(
    config: ModelConfig, ranks: Ranks = ALONE, format_by_kind: Mapping[Kind, str] = _NO_CONVERSION
) -> tuple[Held, ...]:
    """The weights that `measure` adds up, for whoever wants to know what each of them costs to use."""
    return tuple(weights.held(ranks, config, format_by_kind) for weights in _published(config))


def drafter_on_rank(config: DrafterConfig, ranks: Ranks = ALONE) -> tuple[Held, ...]:
    """A drafter's own weights; embedding and head are the model's.

    Its layers split like the model's; what feeds and reads them is copied.
    """
    return tuple(weights.held(ranks, config.backbone, _NO_CONVERSION) for weights in _bundled(config))


def drafter_bytes(config: DrafterConfig | None, ranks: Ranks = ALONE) -> int:
    """Bytes of a drafter's own weights, on the fullest of some ranks."""
    return 0 if config is None else sum(held.count * held.num_bytes for held in drafter_on_rank(config, ranks))


def bytes_named(config: ModelConfig, ending: str) -> int:
    """Bytes of the whole weights of a model whose names end in some words: "self_attn.o_proj"."""
    found = [weights for weights in _published(config) if weights.name.endswith(ending)]
    return sum(weights.count * weights.num_bytes(weights.format, weights.shape) for weights in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Weights that differ in the numbers of their layers and experts only.

    Attributes:
        name: of one of them.
        tensor_bytes: of what each has beside values and block scales.
        item_bytes: of a value that is no number format's; 0 otherwise.
    """

    kind: Kind
    format: str
    name: str
    shape: tuple[int, ...]
    num_tensors: int
    tensor_bytes: int
    item_bytes: int
    count: int = 0

    def held(self, ranks: Ranks, config: ModelConfig, format_by_kind: Mapping[Kind, str]) -> Held:
        """What a rank holds of them, in the format that their kind is converted to."""
        form, experts = format_by_kind.get(self.kind, self.format), config.num_local_experts
        shape = shape_on_rank(self.name, self.shape, ranks, config.num_key_value_heads)
        is_whole = self.kind != "routed expert" or ranks.ep == 1
        count = self.count if is_whole else self.count * -(-experts // ranks.ep) // experts
        return Held(
            kind=self.kind,
            format=form,
            name=self.name,
            shape=shape,
            count=count,
            num_bytes=self.num_bytes(form, shape),
            num_tensors=count * self.num_tensors,
        )

    def num_bytes(self, form: str, shape: tuple[int, ...]) -> int:
        """Bytes of one of them in a format."""
        if self.item_bytes:
            return math.prod(shape) * self.item_bytes
        try:
            values = math.prod(shape[:-1]) * SPEC_BY_NAME[form].num_bytes(shape[-1])
        except FormatError as error:
            raise FormatError(f"{self.name}: {error}") from None
        return values + (self.tensor_bytes if form == self.format else 0)


@functools.lru_cache(maxsize=8)
def _published(config: ModelConfig) -> tuple[_Alike, ...]:
    return _alike(names.modules(config).values(), config, {})


@functools.lru_cache(maxsize=8)
def _bundled(config: DrafterConfig) -> tuple[_Alike, ...]:
    return _alike(drafter.modules(config).values(), config.backbone, {})


def _alike(modules: Iterable[Module], config: ModelConfig, dtype_by_name: Mapping[str, str]) -> tuple[_Alike, ...]:
    counts: Counter[_Alike] = Counter(_stored(module, config, dtype_by_name) for module in modules)
    return tuple(dataclasses.replace(one, count=count) for one, count in counts.items())


def _stored(module: Module, config: ModelConfig, dtype_by_name: Mapping[str, str]) -> _Alike:
    specs = names.tensors(module, config)
    storage = storage_of(module.name, module.checkpoint_name, module.kind, config.quantization)
    dtype, item_bytes = "", 0
    if storage == "plain":
        dtype = dtype_by_name.get(specs[0].name, specs[0].dtype)
        if module.kind == "offsets":
            item_bytes = ITEM_BYTES[dtype]
        elif dtype not in _WORD_BY_DTYPE:
            dtype = specs[0].dtype
    return _Alike(
        kind=module.kind,
        format=_WORD_BY_DTYPE.get(dtype, dtype) if dtype else STORAGE_BY_NAME[storage].format,
        name=re.sub(r"\.\d+", ".0", module.name),
        shape=module.shape,
        num_tensors=len(specs),
        tensor_bytes=sum(ITEM_BYTES[spec.dtype] for spec in specs if spec.part in ("global_scale", "input_scale")),
        item_bytes=item_bytes,
    )


def _num_active(alike: Iterable[_Alike], config: ModelConfig) -> int:
    routed, total = 0, 0
    for weights in alike:
        num_parameters = weights.count * math.prod(weights.shape)
        if weights.kind == "routed expert":
            routed += num_parameters
        elif weights.kind not in ("embedding", "head", "vision"):
            total += num_parameters
    return total + (routed * config.num_experts_per_tok // config.num_local_experts if routed else 0)
