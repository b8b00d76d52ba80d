"""fill a module from a reader, a name table and a shard plan"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from minnow.arch import drafter, names
from minnow.arch.storage import storage_of
from minnow.checkpoint import verify
from minnow.checkpoint.parts import assemble
from minnow.checkpoint.reader import Reader
from minnow.checkpoint.resident import ResidentWeights
from minnow.config.drafter import DrafterConfig
from minnow.config.model import ModelConfig
from minnow.core.errors import CheckpointError
from minnow.core.log import Logger
from minnow.formats.quantized import Weight

CHECKED_SCALE_BYTES = 2**30


class WeightSource:
    """The weights of an opened checkpoint, by our names."""

    def __init__(
        self,
        reader: Reader,
        modules: Mapping[str, names.Module],
        config: ModelConfig,
        device: torch.device,
        resident: ResidentWeights | None = None,
    ) -> None:
        """Use open_weights or open_drafter, which verify first.

        Args:
            modules: every weight, by our name.
            config: says how they are stored.
        """
        self.modules = modules
        self._config = config
        self._reader = reader
        self._device = device
        self._resident = resident

    @property
    def names(self) -> tuple[str, ...]:
        """Our names of all weights."""
        return tuple(self.modules)

    def take(self, module: str) -> Weight:
        """One weight; on the CPU its codes and scales share the file's memory unless it was opened to be eager.

        Never write to them.

        Args:
            module: our name, such as "model.layers.3.self_attn.q_proj".

        Returns:
            A tensor with the dtype of the file, or a Quantized with a decode-side global scale.

        Raises:
            CheckpointError: this configuration has no such weight, or its global scale is unusable.
        """
        found = self.modules.get(module)
        if found is None:
            raise CheckpointError(f"this configuration has no weight {module}")
        storage = storage_of(found.name, found.checkpoint_name, found.kind, self._config.quantization)
        specs = [spec for spec in names.tensors(found, self._config) if spec.part != "input_scale"]
        tensors = {spec.part: self._reader.read(spec.name) for spec in specs}
        weight = assemble(storage, tensors, module)
        if self._device.type != "cpu":
            return _move(weight, self._device)
        return weight if self._resident is None else self._resident.copy(weight)


def open_weights(
    directory: Path, config: ModelConfig, device: torch.device | str = "cpu", *, is_eager: bool = False
) -> WeightSource:
    """Verify a checkpoint against its configuration, then hand out its weights lazily.

    Args:
        is_eager: copy each weight that is taken into memory of huge pages (on a CPU).

    Names, shapes and dtypes are always checked. Scales are checked when all of them are at most 1 GiB; a larger
    checkpoint's would have to be read from disk whole, which `minnow verify --scales` does.

    Raises:
        CheckpointError: names everything that is wrong.
    """
    reader = Reader(directory)
    has_few = verify.num_scale_bytes(config) <= CHECKED_SCALE_BYTES
    verify.check(reader, config, scales=has_few)
    if not has_few:
        Logger("checkpoint").info("scales not checked", directory=directory, way="minnow verify --scales")
    resident = None
    if is_eager and torch.device(device).type == "cpu":
        entries = [reader.entry(name) for name in reader.names]
        resident = ResidentWeights(sum(entry.stop - entry.start for entry in entries), len(entries))
    return WeightSource(reader, names.modules(config), config, torch.device(device), resident)


def open_drafter(directory: Path, config: DrafterConfig, device: torch.device | str = "cpu") -> WeightSource:
    """Verify a drafter's checkpoint against its configuration, then hand out its weights lazily.

    Embedding and head are the target's: copies that the checkpoint may hold are not read.

    Raises:
        CheckpointError: names everything that is wrong.
    """
    reader = Reader(directory, drafter.canonical)
    wanted = drafter.expected(config)
    found = verify.compare(reader, wanted, scales=True)
    verify.refuse(replace(found, extra=tuple(n for n in found.extra if n not in drafter.SHARED)), directory)
    if config.is_reduced:
        _check_offsets(reader.read("d2t"), config.backbone.vocab_size, directory)
    return WeightSource(reader, drafter.modules(config), config.backbone, torch.device(device))


def _check_offsets(offsets: Tensor, vocab_size: int, directory: Path) -> None:
    ids = (offsets.long() + torch.arange(len(offsets))).tolist()
    if min(ids) < 0 or max(ids) >= vocab_size or len(set(ids)) < len(ids):
        seen = f"ids {min(ids)} to {max(ids)}, {len(set(ids)):,} of {len(ids):,} distinct"
        raise CheckpointError(
            f"{directory}: d2t gives {seen}; a draft stands for one token of 0 to {vocab_size - 1}, no two for the same"
        )


def fill(
    model: nn.Module,
    source: WeightSource,
    *,
    progress: Callable[[float], None] = lambda share: None,
    is_unused: Callable[[str], bool] = lambda name: False,
) -> None:
    """Give every submodule that lists `weight_names` its `weights`, in the same order.

    Args:
        progress: told the share of the weights that are there, from 0 to 1; at each percent.
        is_unused: by our name, which weights may be left.

    Raises:
        CheckpointError: a module names a weight that this configuration lacks, or a weight is left over that no
            module named (vision weights are not served and may be).
    """
    taken: dict[str, Weight] = {}  # a tied weight has two names in the model, and one place in memory
    left = {name for name, module in source.modules.items() if module.kind != "vision" and not is_unused(name)}
    num_weights, percent = len(left), 0
    for module in model.modules():
        wanted: tuple[str, ...] | None = getattr(module, "weight_names", None)
        if wanted is not None:
            taken.update({name: source.take(name) for name in wanted if name not in taken})
            module.weights = tuple(taken[name] for name in wanted)  # type: ignore[assignment]
            left.difference_update(wanted)
            if 100 * len(taken) // num_weights > percent:
                percent = 100 * len(taken) // num_weights
                progress(percent / 100)
    if left:
        raise CheckpointError(f"the model takes no notice of {verify.listed(sorted(left))}")


def _move(weight: Weight, device: torch.device) -> Weight:
    if isinstance(weight, Tensor):
        return weight.to(device)
    factor = weight.global_scale
    moved = weight.map(lambda part: part.to(device))
    return replace(moved, global_scale=None if factor is None else factor.to(device))
