"""what all stages of training share: their options, their material, their results"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.checkpoint.trained import DESCRIPTION_NAME
from minnow.text.tokenizer import Tokenizer
from minnow.tune import target, text
from minnow.tune.run import Position
from minnow.tune.target import Target
from minnow.tune.text import Stream

_STATE_NAME = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        directory: of the model.
        output: of the stage; made if needed.
        text: files and directories.
        parts: outputs of stages before this one, whose weights are the model's.
        steps: of the optimizer; None is the stage's own number.
    """

    directory: Path
    output: Path
    text: tuple[Path, ...]
    parts: tuple[Path, ...] = ()
    hours: float = 2.0
    seed: int = 0
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What a stage works on.

    Attributes:
        target: the model with the parts, BF16.
        trained, held_out: text, apart by document.
    """

    options: Options
    target: Target
    trained: Stream
    held_out: Stream

    def exact(self) -> Target:
        """The target once more, in f32, to begin parameters from."""
        return target.load(self.options.directory, torch.float32, self.options.parts)


def prepare(options: Options) -> Material:
    """Load the model and the text; the tokens are kept in the output's state for the next piece.

    Raises:
        ConfigError, CheckpointError: the model, the parts or the text are not what they should be.
    """
    loaded = target.load(options.directory, torch.bfloat16, options.parts)
    tokenizer = Tokenizer.load(options.directory)
    trained, held_out = _streams(options, tokenizer, loaded)
    return Material(options=options, target=loaded, trained=trained, held_out=held_out)


def export(
    material: Material,
    stage: str,
    weights: Mapping[str, Tensor],
    position: Position,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
) -> None:
    """Write `trained.safetensors` and `trained.json`.

    Args:
        weights: by our names.
        settings: plain values that shaped the training.
        config: fields of config.json that the weights imply, nested as there.
    """
    options = material.options
    target.write_parts(options.output, weights)
    description = {
        "stage": stage,
        "model": options.directory.name,
        "parts": [str(part) for part in options.parts],
        "text": [str(path) for path in options.text],
        "text_tokens": len(material.trained.ids),
        "held_out_tokens": len(material.held_out.ids),
        "seed": options.seed,
        "steps": position.step,
        "of_steps": position.steps,
        "hours": round(position.seconds / 3600, 3),
        "threads": torch.get_num_threads(),
        "settings": dict(settings),
        "metrics": position.metrics,
        "config": dict(config),
    }
    partial = options.output / f".{DESCRIPTION_NAME}.partial"
    partial.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    partial.rename(options.output / DESCRIPTION_NAME)


def _streams(options: Options, tokenizer: Tokenizer, loaded: Target) -> tuple[Stream, Stream]:
    kept = options.output / _STATE_NAME / "text.pt"
    vocabulary = (options.directory / "tokenizer.json").read_bytes()
    key = hashlib.sha256(vocabulary + text.fingerprint(options.text).encode()).hexdigest()
    if kept.is_file():
        found = torch.load(kept, weights_only=True)
        if found["key"] == key:
            return Stream(ids=found["trained"].long()), Stream(ids=found["held_out"].long())
    end_id = tokenizer.id_of("<|endoftext|>")
    end_ids = loaded.config.eos_token_ids
    end_id = (end_ids[0] if end_ids else 0) if end_id is None else end_id
    trained, held_out = text.streams(text.read(options.text), tokenizer, end_id)
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"key": key, "trained": trained.ids.int(), "held_out": held_out.ids.int()}, kept)
    return trained, held_out
