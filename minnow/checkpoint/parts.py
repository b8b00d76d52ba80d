"""one weight <-> the tensors that hold it in a checkpoint"""

from collections.abc import Mapping

import torch
from torch import Tensor

from minnow.arch.names import TensorSpec
from minnow.arch.storage import STORAGE_BY_NAME, Part, Storage
from minnow.core.errors import CheckpointError
from minnow.formats.quantized import Quantized, Weight
from minnow.formats.spec import SPEC_BY_NAME


def assemble(storage_name: str, tensor_by_part: Mapping[Part, Tensor], module: str) -> Weight:
    """Make one weight of its tensors, without copying codes and scales.

    Args:
        storage_name: as `arch.storage.storage_of` gives it.
        tensor_by_part: as read; an "input_scale" is left out, since activations are not quantised here.
        module: our name, for the error.

    Raises:
        CheckpointError: a global scale that is no positive finite number.
    """
    if storage_name == "plain":
        return tensor_by_part["weight"]
    storage = STORAGE_BY_NAME[storage_name]
    return Quantized(
        spec=SPEC_BY_NAME[storage.format],
        codes=tensor_by_part["codes"],
        scales=tensor_by_part.get("scales"),
        minimums=tensor_by_part.get("minimums"),
        global_scale=_multiplier(storage, tensor_by_part.get("global_scale"), module),
    )


def split(weight: Weight, specs: tuple[TensorSpec, ...], storage_name: str) -> dict[str, Tensor]:
    """The tensors that hold one weight, by checkpoint name: what `assemble` reads back as the same weight.

    Args:
        weight: quantised in the storage's format, or a plain tensor for "plain".
        specs: `arch.names.tensors(module, config)`.
        storage_name: as `arch.storage.storage_of` gives it.

    Raises:
        CheckpointError: the weight is not in the storage's format.
    """
    if storage_name == "plain":
        if not isinstance(weight, Tensor):
            raise CheckpointError(f"{specs[0].module} is {weight.spec.name}; a plain tensor is to be written")
        return {specs[0].name: weight}
    storage = STORAGE_BY_NAME[storage_name]
    if isinstance(weight, Tensor) or weight.spec.name != storage.format:
        seen = "a plain tensor" if isinstance(weight, Tensor) else weight.spec.name
        raise CheckpointError(f"{specs[0].module} is {seen}; {storage.format} is to be written")
    factor = torch.ones(1) if weight.global_scale is None else weight.global_scale.float().cpu().reshape(1)
    # a factor that is itself a rounded reciprocal, as our encoders make it, survives being inverted twice
    stored = factor.reciprocal() if storage.is_encode_side else factor
    found: dict[Part, Tensor | None] = {
        "codes": weight.codes,
        "scales": weight.scales,
        "minimums": weight.minimums,
        "global_scale": stored,
        "input_scale": torch.ones(1),  # not calibrated: 1 leaves activations as they are
    }
    tensors = {spec.name: found[spec.part] for spec in specs}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _multiplier(storage: Storage, stored: Tensor | None, module: str) -> Tensor | None:
    """The decode-side global scale: f32 scalar, or None for 1. Encode-side values are inverted."""
    if stored is None:
        return None
    value = stored.reshape(()).float()
    if not (torch.isfinite(value) and value > 0):
        raise CheckpointError(f"{module} has the global scale {value.item()}; a positive finite number is needed")
    if value == 1:
        return None
    return value.reciprocal() if storage.is_encode_side else value.clone()
