"""put trained parts into a checkpoint: retrained weights, index heads, a drafter"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minnow.arch import names
from minnow.checkpoint import disk
from minnow.config.drafter import DIRECTORY
from minnow.config.model import parse, read_object
from minnow.core.errors import CheckpointError

if TYPE_CHECKING:
    from minnow.checkpoint.reader import Reader

# This file is read where models are found by name, without torch: what needs it is imported when it is used.
DESCRIPTION_NAME = "trained.json"  # what was trained on what, and under "config" the fields that it implies
_OWN = ("config.json", "model.safetensors.index.json", "digests.json", DESCRIPTION_NAME)  # written anew
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def merged(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """One object of the fields of two, those inside objects, too; the second one wins."""
    both = dict(raw)
    for name, value in changes.items():
        is_inner = isinstance(value, Mapping) and isinstance(raw.get(name), Mapping)
        both[name] = merged(raw[name], value) if is_inner else value
    return both


def pattern_of(module: str) -> str:
    """What stands for a module and its likes in `formats` of a configuration: its numbers as stars."""
    return _NUMBER.sub("*", module)


def combine(base: Path, parts: Sequence[Path], target: Path) -> None:
    """Write a checkpoint of ours anew, with the weights of some parts in the place of its own or beside them.

    Nothing is rounded: tensors are copied as they are stored. The target appears when it is complete.

    Args:
        base: a checkpoint that names the format of each module (`minnow convert` makes them).
        parts: directories with trained.json, and tensors in safetensors, `dspark/`, or both; later ones win.
        target: a directory that does not exist, or a model's, which is replaced.

    Raises:
        CheckpointError: parts and base do not make a whole checkpoint; names what is wrong.
    """
    from minnow.checkpoint import verify
    from minnow.checkpoint.reader import Reader
    from minnow.checkpoint.writer import Writer

    raw = read_object(base / "config.json")
    readers = [Reader(base)]
    for part in parts:
        raw = merged(raw, read_object(part / DESCRIPTION_NAME).get("config", {}))
        if any(part.glob("*.safetensors")):
            readers.insert(0, Reader(part))
            raw = merged(raw, {"quantization_config": {"formats": _formats(raw, readers[0])}})
    config = parse(raw)
    partial = disk.partial_of(target)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with Writer(partial) as writer:
            for name in names.expected(config):
                holder = next((reader for reader in readers if name in reader), None)
                if holder is None:
                    raise CheckpointError(f"neither {base} nor its parts hold {name}, which the parts ask for")
                writer.add(name, holder.read(name))
        _copy_companions(base, partial)
        for part in parts:
            if (part / DIRECTORY).is_dir():
                shutil.copytree(part / DIRECTORY, partial / DIRECTORY, dirs_exist_ok=True)
        (partial / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        (partial / DESCRIPTION_NAME).write_bytes(_description(parts))
        verify.check(partial, config)
        verify.write_digests(partial)
        disk.put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _description(parts: Sequence[Path]) -> bytes:
    """What was trained: the parts' own words."""
    if len(parts) == 1:
        return (parts[0] / DESCRIPTION_NAME).read_bytes()
    stages = [read_object(part / DESCRIPTION_NAME) for part in parts]
    return json.dumps({"stages": stages}, indent=2).encode() + b"\n"


def _formats(raw: Mapping[str, Any], part: Reader) -> dict[str, str]:
    """Formats of plain tensors that a part brings, where its description does not say: module pattern -> "bf16"."""
    said = raw.get("quantization_config", {}).get("formats", {})
    found = {}
    for name in part.names:
        module = name.removeprefix("language_model.").removesuffix(".weight")
        pattern = pattern_of(module)
        is_matrix = name.endswith(".weight") and len(part.entry(name).shape) == 2
        is_quantised = f"{name}_scale_inv" in part or f"{name}_scale" in part
        if is_matrix and not is_quantised and said.get(pattern) != "bf16":
            found[pattern] = "bf16"
    return found


def _copy_companions(base: Path, target: Path) -> None:
    """Tokenizer, templates, cards: whatever lies beside the weights."""
    for file in base.iterdir():
        is_own = file.suffix == ".safetensors" or file.name in _OWN
        if file.is_file() and not is_own:
            shutil.copyfile(file, target / file.name)
