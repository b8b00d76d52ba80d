"""outputs of several stages as one directory to hand on, its matrices in fewer bits"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from minnow.arch.drafter import AT
from minnow.arch.storage import STORAGE_BY_NAME
from minnow.checkpoint import disk
from minnow.checkpoint.reader import Reader
from minnow.checkpoint.trained import DESCRIPTION_NAME, merged, pattern_of
from minnow.checkpoint.writer import Writer
from minnow.config import load
from minnow.config.drafter import DIRECTORY
from minnow.config.model import read_object
from minnow.core.errors import CheckpointError, ConfigError
from minnow.formats.quantized import Quantized, encode
from minnow.formats.spec import SPEC_BY_NAME

_LOOKED_UP = ("markov_w1", "confidence_head")  # a row at a time, or a single row: nothing to gain


def pack(parts: Sequence[Path], output: Path, format: str, served: Mapping[str, Any]) -> None:
    """Write what `minnow pull` and `minnow convert --parts` can put into a model: one directory of parts.

    Args:
        parts: outputs of stages; weights and drafters of later ones win.
        output: a directory that does not exist or holds a pack, which is replaced; other files there stay.
        format: of the matrices, "bf16" or a quantised one. Rows that do not fill whole blocks stay BF16.
        served: how the drafter is to be served where nobody says (`speculative_config` of its config.json).

    Raises:
        ConfigError: an output that is no place for parts, settings that no drafter here could be served with.
        CheckpointError: a part is not what it should be.
    """
    _check_output(output, parts)
    cards = [read_object(part / DESCRIPTION_NAME) for part in parts]
    drafters = [part / DIRECTORY for part in parts if (part / DIRECTORY).is_dir()]
    if served:
        _check_served(served, drafters)
    partial = disk.partial_of(output)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        config: dict[str, Any] = {}
        for card in cards:
            config = merged(config, card.get("config", {}))
        readers = [Reader(part) for part in reversed(parts) if any(part.glob("*.safetensors"))]
        if not (readers or drafters):
            raise ConfigError(f"{', '.join(map(str, parts))} hold no weights; name outputs of finished stages")
        if readers:
            formats = _write(readers, partial, "", format)
            config = merged(config, {"quantization_config": {"formats": formats}})
        if drafters:
            formats = _write([Reader(drafters[-1])], partial / DIRECTORY, AT, format)
            raw = read_object(drafters[-1] / "config.json") | ({"speculative_config": dict(served)} if served else {})
            raw |= {"quantization_config": {"quant_method": "minnow", "formats": formats}}
            _write_json(partial / DIRECTORY / "config.json", raw)
        _write_json(partial / DESCRIPTION_NAME, {"stages": cards, "config": config})
        output.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(output / DIRECTORY, ignore_errors=True)  # of a pack before
        for file in output.glob("*.safetensors"):
            file.unlink()
        for file in sorted(path for path in partial.rglob("*") if path.is_file()):
            place = output / file.relative_to(partial)
            place.parent.mkdir(exist_ok=True)
            file.replace(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_output(output: Path, parts: Sequence[Path]) -> None:
    if output.resolve() in [part.resolve() for part in parts]:
        raise ConfigError(f"{output} is one of the parts; choose another output")
    if (output / "config.json").is_file():
        raise ConfigError(f"{output} holds a model; choose another output")
    if output.is_dir() and any(output.iterdir()) and not (output / DESCRIPTION_NAME).is_file():
        raise ConfigError(f"{output} holds other files and no {DESCRIPTION_NAME}; choose another output")


def _check_served(served: Mapping[str, Any], drafters: Sequence[Path]) -> None:
    """Refuse what the engine would refuse each time that it starts."""
    if not drafters:
        raise ConfigError("no part holds a drafter to be served; leave --speculative-config out")
    asked, raw = load.proposed(served, "--speculative-config"), read_object(drafters[-1] / "config.json")
    most = raw.get("block_size", asked.num_speculative_tokens)
    if asked.num_speculative_tokens > most:
        raise ConfigError(
            f"--speculative-config has num_speculative_tokens {asked.num_speculative_tokens}; this drafter was trained "
            f"to make {most} at once, set at most that"
        )
    if asked.enable_adaptive_verification and not raw.get("enable_confidence_head"):
        raise ConfigError(
            "--speculative-config has enable_adaptive_verification, but this drafter has no confidence head; leave it "
            "out"
        )


def _write(readers: Sequence[Reader], directory: Path, prefix: str, format: str) -> dict[str, str]:
    """Write the tensors of some readers, the first one that has a name wins: module pattern -> its format.

    Args:
        prefix: before a module's name in the pattern.
    """
    formats: dict[str, str] = {}
    with Writer(directory) as writer:
        for name in dict.fromkeys(name for reader in readers for name in reader.names):
            reader = next(reader for reader in readers if name in reader)
            value = reader.read(name)
            module = name.removeprefix("language_model.").removesuffix(".weight")
            stored, kind = _stored(name, value, format)
            if value.ndim == 2:
                formats[prefix + pattern_of(module)] = kind
            for key, tensor in stored.items():
                writer.add(key, tensor)
    return formats


def _stored(name: str, value: Tensor, format: str) -> tuple[dict[str, Tensor], str]:
    """The tensors that hold one, by name, and the name of their format."""
    if value.element_size() == 1:
        raise CheckpointError(f"{name} is quantised already; pack the parts as minnow tune wrote them")
    is_kept = value.ndim != 2 or format == "bf16" or any(word in name for word in _LOOKED_UP)
    if is_kept or value.shape[-1] % SPEC_BY_NAME[format].block:
        return {name: value}, "bf16"
    weight = encode(format, value.float())
    assert isinstance(weight, Quantized)
    found = {"codes": weight.codes, "scales": weight.scales}
    stem = name.removesuffix(".weight")
    return {
        stem + part.suffix: tensor for part in STORAGE_BY_NAME[format].parts if (tensor := found[part.part]) is not None
    }, format


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
