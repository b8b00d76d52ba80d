"""make NVFP4 a model's native cache: mix keys, retrain the projections against its exact-cache self"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from minnow.core.log import Logger
from minnow.tune import stage
from minnow.tune.attend import Attend, attend_densely, attend_rounded
from minnow.tune.mixing import last_start, measure_mixing, mixed, starts
from minnow.tune.run import Metrics, Plan, Position, Run, Watch
from minnow.tune.stage import Material, Options
from minnow.tune.target import Target

_HELD_OUT_WINDOWS = 4
_VALIDATE_EVERY = 4
_PROBES = 8  # windows of text that queries and keys are measured on


def trained_names(target: Target) -> list[str]:
    """Our names of the weights that learn: query and key projections of every layer."""
    layers = range(target.config.num_hidden_layers)
    return [f"model.layers.{layer}.self_attn.{part}_proj" for layer in layers for part in "qk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one step learns from.

    Attributes:
        sequences, num_tokens: a step's windows.
        num_positions: of each window at which the distributions are compared.
        hidden_weight: of the error of the last hidden state, beside the divergence of the distributions.
        rate: the highest learning rate.
        held_out_tokens: of a window that is measured.
    """

    sequences: int = 1
    num_tokens: int = 2048
    num_positions: int = 192
    hidden_weight: float = 2.0
    rate: float = 1.5e-4
    held_out_tokens: int = 2048


class CacheWork:
    """Student: the model with the new projections and a rounded cache, anywhere in its context. Teacher: itself as it
    came, which is the same everywhere; see run.Work.

    Attributes:
        mixing: of queries and keys, by our names; frozen. Empty where they were mixed before.
    """

    def __init__(
        self, material: Material, parameters: dict[str, Tensor], settings: Settings, mixing: dict[str, Tensor]
    ) -> None:
        self.material, self.parameters, self.settings, self.mixing = material, parameters, settings, mixing
        self.teacher, self.student = material.target, mixed(material.target, mixing).replaced(parameters)
        self._held_out = material.held_out.spaced(_HELD_OUT_WINDOWS, settings.held_out_tokens)
        self._starts = starts(self.teacher, self._held_out)
        self._wanted = [self._states(self.teacher, ids, attend_densely) for ids in self._held_out]

    def learn(self, step: int, generator: torch.Generator) -> Metrics:
        """Divergence of the student's distributions from the teacher's at some positions, and of its last states."""
        count = self.settings.sequences
        found = [self._learn_one(generator) for _ in range(count)]  # one after the other: their activations are large
        return {name: sum(metrics[name] for metrics in found) / count for name in found[0]}

    def _learn_one(self, generator: torch.Generator) -> Metrics:
        settings = self.settings
        ids = self.material.trained.sample(1, settings.num_tokens, generator)
        last = last_start(self.student, settings.num_tokens)
        student = self.student.moved(int(torch.randint(last + 1, (), generator=generator)))
        order = torch.randperm(settings.num_tokens, generator=generator)[: settings.num_positions]
        with torch.no_grad():
            wanted = self.teacher.hidden(self.teacher.forward(ids).last)[0]
            wanted_logits = self.teacher.logits(wanted[order]).log_softmax(-1)
        seen = student.hidden(student.forward(ids, attend=attend_rounded).last)[0]
        logits = student.logits(seen[order]).log_softmax(-1)
        divergence = functional.kl_div(logits, wanted_logits, log_target=True, reduction="batchmean")
        error = (seen.float() - wanted.float()).square().mean() / wanted.float().square().mean()
        loss = divergence + settings.hidden_weight * error
        torch.autograd.backward(loss / settings.sequences)
        return {"loss": loss.item(), "divergence": divergence.item(), "error": error.item()}

    @torch.no_grad()
    def validate(self) -> Metrics:
        """What the rounded cache costs: divergence from the teacher, and perplexity in percent of the teacher's.

        The two need not agree: a student can be nearer to the text than its teacher is, and yet far from its teacher.
        """
        divergence, change = torch.zeros(()), torch.zeros(())
        for ids, start, wanted in zip(self._held_out, self._starts, self._wanted, strict=True):
            seen, labels = self._states(self.student.moved(start), ids, attend_rounded), ids[1::_VALIDATE_EVERY]
            found, aim = (self.teacher.logits(states).log_softmax(-1) for states in (seen, wanted))
            divergence += functional.kl_div(found, aim, log_target=True, reduction="batchmean")
            change += functional.nll_loss(found, labels) - functional.nll_loss(aim, labels)
        count = len(self._held_out)
        return {"divergence": divergence.item() / count, "cost_percent": 100 * math.expm1(change.item() / count)}

    @torch.no_grad()
    def _states(self, target: Target, ids: Tensor, attend: Attend) -> Tensor:
        """Last hidden states of a window at every fourth position whose next token is known."""
        return target.hidden(target.forward(ids[None], attend=attend).last[0, :-1:_VALIDATE_EVERY])

    def export(self, position: Position) -> None:
        """Projections and mixing as BF16; see stage.export."""
        config: dict[str, object] = {"quantization_config": {"quant_method": "minnow", "kv_cache": "nvfp4"}}
        if self.mixing:
            config["text_config"] = {"use_qk_mix": True}
        weights = self.parameters | self.mixing
        stage.export(self.material, "cache", weights, position, asdict(self.settings), config)


def train(options: Options, watch: Watch, settings: Settings | None = None) -> Position:
    """Do a piece of the training: `minnow tune cache`."""
    settings = settings or Settings()
    material = stage.prepare(options)
    exact = material.exact()
    parameters = {name: exact.weights[name].clone().requires_grad_() for name in trained_names(exact)}
    mixing = _mixing(options, exact, material.trained.spaced(_PROBES, settings.num_tokens))
    plan = Plan(steps=options.steps or 500, rate=settings.rate, warmup_steps=20, validate_steps=50, seed=options.seed)
    started = Run(
        options.output, plan, parameters, {**asdict(settings), "parts": [str(part) for part in options.parts]}
    )
    work = CacheWork(material, parameters, settings, mixing)
    return started.go(work, options.hours, watch)


def _mixing(options: Options, exact: Target, windows: Tensor) -> dict[str, Tensor]:
    """Matrices that are measured before the first step, and kept for the next pieces."""
    kept, log = options.output / "state" / "mixing.pt", Logger("tune")
    if kept.is_file():
        found: dict[str, Tensor] = torch.load(kept, weights_only=True)
        return found
    log.info("mixing keys", windows=len(windows), tokens=windows.shape[1])
    found = measure_mixing(exact, windows)
    if not found:
        log.info("keys are mixed already, and stay so")
    kept.parent.mkdir(parents=True, exist_ok=True)
    torch.save(found, kept.with_suffix(".partial"))
    os.replace(kept.with_suffix(".partial"), kept)
    return found
