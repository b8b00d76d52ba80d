"""parameters, bytes of the model, active parameters a token"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minnow.arch import drafter, names
from minnow.arch.names import Kind, Module
from minnow.arch.storage import ITEM_BYTES, STORAGE_BY_NAME, storage_of
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig
from minnow.formats.spec import SPEC_BY_NAME

_WORD_BY_DTYPE = {"BF16": "bf16", "F16": "f16", "F32": "f32"}


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
class ModelSize:
    """A model's weights as its checkpoint holds them, drafter and multi-token prediction left out.

    Attributes:
        shares: by kind and format, in the order of `arch.names.KINDS`.
        num_active_parameters: that one text token meets in the layers: its experts only. The head comes on top
            where logits are wanted.
    """

    shares: tuple[Share, ...]
    num_active_parameters: int

    @property
    def num_tensors(self) -> int:
        """Tensors in the checkpoint."""
        return sum(share.num_tensors for share in self.shares)

    @property
    def num_parameters(self) -> int:
        """Weights and biases; scales are not counted."""
        return sum(share.num_parameters for share in self.shares)

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data in the checkpoint."""
        return sum(share.num_bytes for share in self.shares)


def measure(config: ModelConfig, dtype_by_name: Mapping[str, str] | None = None) -> ModelSize:
    """Add up what a checkpoint of this configuration holds.

    Args:
        config: the network and how it is stored.
        dtype_by_name: safetensors' dtypes of a checkpoint at hand, where the configuration leaves a choice of
            floats; without it, those of the published checkpoints.

    Raises:
        FormatError: a weight's width does not fill whole blocks of its format.
    """
    tensors: Counter[tuple[Kind, str]] = Counter()
    parameters, in_bytes = tensors.copy(), tensors.copy()
    modules = names.modules(config).values()
    for module in modules:
        form, num_tensors, num_bytes = _stored(module, config, dtype_by_name or {})
        key = (module.kind, form)
        tensors[key] += num_tensors
        parameters[key] += math.prod(module.shape)
        in_bytes[key] += num_bytes
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
    return ModelSize(shares=shares, num_active_parameters=_num_active(modules, config))


def drafter_bytes(config: DrafterConfig | None) -> int:
    """Bytes of a drafter's own weights; embedding and head are the model's."""
    if config is None:
        return 0
    return sum(math.prod(spec.shape) * ITEM_BYTES[spec.dtype] for spec in drafter.expected(config).values())


def _stored(module: Module, config: ModelConfig, dtype_by_name: Mapping[str, str]) -> tuple[str, int, int]:
    """Format, number of tensors and bytes of one weight."""
    specs = names.tensors(module, config)
    storage = storage_of(module.name, module.checkpoint_name, module.kind, config.quantization)
    if storage == "plain":
        dtype = dtype_by_name.get(specs[0].name, specs[0].dtype)
        form = _WORD_BY_DTYPE[dtype if dtype in _WORD_BY_DTYPE else specs[0].dtype]
    else:
        form = STORAGE_BY_NAME[storage].format
    rows, width = math.prod(module.shape[:-1]), module.shape[-1]
    of_tensor = sum(ITEM_BYTES[spec.dtype] for spec in specs if spec.part in ("global_scale", "input_scale"))
    return form, len(specs), rows * SPEC_BY_NAME[form].num_bytes(width) + of_tensor


def _num_active(modules: Iterable[Module], config: ModelConfig) -> int:
    routed, total = 0, 0
    for module in modules:
        if module.kind == "routed expert":
            routed += math.prod(module.shape)
        elif module.kind not in ("embedding", "head", "vision"):
            total += math.prod(module.shape)
    return total + (routed * config.num_experts_per_tok // config.num_local_experts if routed else 0)
