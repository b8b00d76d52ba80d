"""one drafter that learns: a step of its loss, its validation, its files"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.arch import drafter as names
from minnow.arch.drafter import AT
from minnow.checkpoint.writer import Writer
from minnow.config.drafter import DIRECTORY, DrafterConfig
from minnow.core.errors import ConfigError
from minnow.tune import acceptance, blocks, draft_loss, drafter_start
from minnow.tune.acceptance import Acceptance, Text
from minnow.tune.answers import Answer
from minnow.tune.blocks import Blocks, Part
from minnow.tune.drafter_start import Shape
from minnow.tune.features import FeatureStore
from minnow.tune.run import Metrics, Position

PARTS_NAME, CARD_NAME = "model.safetensors", "trained.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to train.

    Attributes:
        batch_sequences: in a step of the optimizer.
        num_first_steps: whose blocks are one slot at every place of their sequences: what the first slot learns is what
            the others need first, and a row of it costs as much as a row of theirs.
        num_anchors: blocks in each sequence of a step after those.
        num_held_out: sequences that a validation looks at, of each kind.
        held_out_stride: tokens between two of their places where drafts are drawn.
    """

    shape: Shape = field(default_factory=Shape)
    batch_sequences: int = 6
    num_first_steps: int = 0
    num_anchors: int = 64
    num_held_out: int = 32
    held_out_stride: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Answers by what they are for: training; measuring at temperature 1, and at temperature 0."""

    trained: Sequence[Text]
    drawn: Sequence[Text]
    greedy: Sequence[Text]

    @classmethod
    def of(cls, answers: Sequence[Answer], num_held_out: int) -> Texts:
        """Sort answers; of the held-out ones, the first of each kind.

        Raises:
            ConfigError: a kind is missing.
        """
        kinds: dict[str, list[Text]] = {"trained": [], "drawn": [], "greedy": []}
        kind_by_sampling = {(1.0, 1.0): "drawn", (0.0, 1.0): "greedy"}
        for index, answer in enumerate(answers):
            text = Text(index=index, ids=torch.tensor(answer.ids), start=answer.num_prompt_tokens)
            kind = kind_by_sampling.get((answer.temperature, answer.top_p)) if answer.is_held_out else "trained"
            if kind is not None and text.num_anchors:
                kinds[kind].append(text)
        if not all(kinds.values()):
            raise ConfigError(
                f"there are {len(kinds['trained'])} answers to train on, and held out {len(kinds['drawn'])} drawn at "
                f"temperature 1 and {len(kinds['greedy'])} at 0; one of each is needed: let more be written"
            )
        return cls(trained=kinds["trained"], drawn=kinds["drawn"][:num_held_out], greedy=kinds["greedy"][:num_held_out])


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A drafter that learns.

    Attributes:
        raw: its config.json.
        weights: f32 by our names; leaves that require grad.
        draft_ids: i64 [W], what can be drafted.
    """

    config: DrafterConfig
    raw: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    draft_ids: Tensor

    @property
    def slow(self) -> list[str]:
        """Weights whose products are added to a residual stream that begins as small as embeddings are."""
        return [name for name in self.weights if name.endswith(drafter_start.ADDING)]


class DrafterWork:
    """What a run does; see minnow.tune.run.Work.

    Args:
        store: gives the features of a text by its index.
        output: gets the drafter and its card.
        card: facts about the data, for the card.
    """

    def __init__(
        self,
        begun: Begun,
        store: FeatureStore,
        texts: Texts,
        settings: Settings,
        output: Path,
        card: Mapping[str, Any],
    ) -> None:
        self.begun, self.settings = begun, settings
        self.drafter = drafter_start.assemble(begun.config, begun.weights, begun.draft_ids, store)
        self._store, self.texts, self._output, self._card = store, texts, output, card
        self._measured: dict[str, Acceptance] = {}

    def learn(self, step: int, generator: torch.Generator) -> Metrics:
        """Add the gradients of one step; prompts teach as well as answers: what counts is what the target expects."""
        texts, settings = self.texts.trained, self.settings
        is_first = step < settings.num_first_steps
        num_slots = 1 if is_first else self.begun.config.block_size
        picks = torch.randint(len(texts), (settings.batch_sequences,), generator=generator).tolist()
        parts = []
        for text in (texts[i] for i in picks):
            places = 1 + torch.randperm(len(text.ids) - 2, generator=generator)
            parts.append(self._part(text, places if is_first else places[: settings.num_anchors]))
        made = blocks.run(self.drafter, parts, num_slots=num_slots)
        losses = draft_loss.learn(self.drafter, made)
        found = {"divergence": losses.divergence, "distance": losses.distance, "confidence": losses.confidence}
        return {"loss": losses.total, **found} | _rates(losses.accepted, made, num_slots)

    def validate(self) -> Metrics:
        """Acceptance lengths on held-out answers with all drafts of a block, also of the Markov head alone."""
        self._measured = {
            name: acceptance.measure(
                self.drafter,
                self._store,
                self.texts.drawn,
                self.texts.greedy,
                stride=self.settings.held_out_stride,
                is_markov_only=name == "markov_only",
            )
            for name in ("drafter", "markov_only")
        }
        found, markov = self._measured["drafter"], self._measured["markov_only"]
        return {
            "drawn_length": found.drawn_lengths[-1],
            "greedy_length": found.greedy_lengths[-1],
            "markov_drawn_length": markov.drawn_lengths[-1],
            "markov_greedy_length": markov.greedy_lengths[-1],
        }

    def export(self, position: Position) -> None:
        """Write the drafter, in BF16, and its card."""
        if not self._measured:  # this piece was too short for a validation
            self.validate()
        directory, partial = self._output / DIRECTORY, self._output / f".{DIRECTORY}.partial"
        (partial / PARTS_NAME).unlink(missing_ok=True)
        begun = self.begun
        table = {**begun.weights, f"{AT}d2t": begun.draft_ids - torch.arange(len(begun.draft_ids))}
        with Writer(partial) as writer:
            for module in names.modules(begun.config).values():
                value = table[module.name].detach()
                name = module.checkpoint_name + module.suffix
                writer.add(name, value if module.kind == "offsets" else value.bfloat16())
        directory.mkdir(parents=True, exist_ok=True)
        os.replace(partial / PARTS_NAME, directory / PARTS_NAME)
        partial.rmdir()
        temperatures = self._measured["drafter"].confidence_temperatures
        _write_json(directory / "config.json", {**begun.raw, "confidence_temperatures": temperatures})
        held_out = {"drawn_sequences": len(self.texts.drawn), "greedy_sequences": len(self.texts.greedy)}
        card = {
            "stage": "draft",
            **self._card,
            "trained_sequences": len(self.texts.trained),
            "steps": position.step,
            "of_steps": position.steps,
            "hours": round(position.seconds / 3600, 3),
            "threads": torch.get_num_threads(),
            "settings": asdict(self.settings),
            "held_out": {**held_out, **{name: asdict(measured) for name, measured in self._measured.items()}},
        }
        _write_json(self._output / CARD_NAME, card)

    def _part(self, text: Text, anchors: Tensor) -> Part:
        return Part(features=self._store.take(text.index, text.ids), ids=text.ids, anchors=anchors)


def _rates(accepted_R: Tensor, made: Blocks, num_slots: int) -> Metrics:
    """Mean acceptance of each slot, and the expected length of a round."""
    accepted = torch.where(made.is_valid, accepted_R, 0.0).view(-1, num_slots)
    count = made.is_valid.view(-1, num_slots).sum(0).clamp(min=1)
    rates = {f"accept_{k + 1}": float(value) for k, value in enumerate(accepted.sum(0) / count)}
    return {**rates, "tau": float(acceptance.expected_length(accepted, num_slots).mean())}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
