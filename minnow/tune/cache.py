"""make NVFP4 a model's native cache: mix keys, retrain the projections against its exact-cache self"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from minnow.tune import stage
from minnow.tune.attend import Attend, attend_densely, attend_rounded
from minnow.tune.run import Metrics, Plan, Position, Run, Watch
from minnow.tune.stage import Material, Options
from minnow.tune.target import Target

_HELD_OUT_WINDOWS = 4
_VALIDATE_EVERY = 4
_PROBES = 8  # windows of text that queries and keys are measured on
_LEAST = 1e-5  # of the largest moment: dims that are used less are not stretched further


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
        mixing: of queries and keys, by our names; frozen. None where they were mixed before.
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
        last = max(self.student.config.max_position_embeddings - settings.num_tokens, 0)
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
    mixing = measure_mixing(exact, material.trained.spaced(_PROBES, settings.num_tokens))
    plan = Plan(steps=options.steps or 500, rate=settings.rate, warmup_steps=20, validate_steps=50, seed=options.seed)
    started = Run(
        options.output, plan, parameters, {**asdict(settings), "parts": [str(part) for part in options.parts]}
    )
    work = CacheWork(material, parameters, settings, mixing)
    return started.go(work, options.hours, watch)


def mixed(target: Target, mixing: dict[str, Tensor]) -> Target:
    """The same model, its keys mixed and its queries mixed the inverse way, so that their products stay what they are.

    docs/experiments/2026-11-30-what-training-needs.md has what that is worth.
    """
    return Target(replace(target.config, use_qk_mix=bool(mixing)), {**target.weights, **mixing}, target.dtype)


@torch.no_grad()
def measure_mixing(target: Target, windows: Tensor) -> dict[str, Tensor]:
    """What keys need least bits after, over windows i64 [count T]: by our names, none where heads are mixed already.

    `k_mix` bf16 [G H H] is what `balance` finds, `q_mix` what undoes it in products. The windows lie all over the
    context: dims that turn slowly hardly change in the first of them, and matrices that were measured there would
    stretch them until they dwarf all others in the last.
    """
    sums = dict[int, tuple[Tensor, Tensor]]()
    if target.config.use_qk_mix:
        return {}

    def look(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        before = sums.get(layer, (torch.zeros(()), torch.zeros(())))
        sums[layer] = before[0] + queries_that_matter(q[0], k[0], v[0]), before[1] + _moments(k[0].float())
        return attend_densely(layer, x, q, k, v)

    for ids, start in zip(windows, starts(target, windows), strict=True):
        target.moved(start).forward(ids[None], attend=look)
    mixing: dict[str, Tensor] = {}
    for layer, moments in sums.items():
        k_mix = torch.stack([balance(*pair) for pair in zip(*moments, strict=True)]).bfloat16()
        q_mix = torch.linalg.inv(k_mix.double()).transpose(1, 2).bfloat16()
        at = f"model.layers.{layer}.self_attn."
        mixing |= {at + "q_mix": q_mix, at + "k_mix": k_mix}
    return mixing


def starts(target: Target, windows: Tensor) -> list[int]:
    """Where windows i64 [count T] begin, so that they are spread over all positions of the model."""
    last = max(target.config.max_position_embeddings - windows.shape[1], 0)
    return [last * i // max(len(windows) - 1, 1) for i in range(len(windows))]


def balance(of_queries: Tensor, of_keys: Tensor) -> Tensor:
    """The matrix M of mixed keys k M under which rounding them moves a head's scores least.

    With errors of one size in all dims of k M, a score's error is as tr(M^T K M) tr(M^-1 Q M^-T); that is least where
    both second moments, K of keys and Q of queries, become the same. Turned so that they are diagonal, and then mixed
    by a Hartley matrix: no dim stands out among the sixteen that share a scale.

    Args:
        of_queries, of_keys: second moments f32 [H H].

    Returns:
        f32 [H H].
    """
    root, inverse = _power(of_keys, 0.5), _power(of_keys, -0.5)
    values, vectors = torch.linalg.eigh(inverse @ _power(root @ of_queries.double() @ root, 0.5) @ inverse)
    balanced = values.clamp(min=values.max() * _LEAST).sqrt()[:, None] * vectors.T
    _, axes = torch.linalg.eigh(balanced @ of_keys.double() @ balanced.T)
    width = len(axes)
    turns = 2 * math.pi / width * torch.outer(*2 * [torch.arange(width, dtype=torch.float64)])
    mix: Tensor = balanced.T @ axes @ (turns.cos() + turns.sin()) / math.sqrt(width)
    return mix.float()


def queries_that_matter(q_NTH: Tensor, k_GTH: Tensor, v_GTH: Tensor) -> Tensor:
    """Second moments of queries, each weighed by what errors of its scores do to what it attends to: f32 [G H H].

    Errors e of the scores, one size and independent, move the output o by the sum of p e (v - o); its square is the sum
    of p^2 |v - o|^2.
    """
    found = []
    groups = torch.split(q_NTH.float(), len(q_NTH) // len(k_GTH))
    for of_group, k, v in zip(groups, k_GTH.float(), v_GTH.float(), strict=True):
        moments, total = torch.zeros(()), torch.zeros(())
        for q in of_group:
            scores = (q @ k.T * k.shape[-1] ** -0.5).masked_fill(torch.ones(len(q), len(k)).triu(1) > 0, -torch.inf)
            shares = scores.softmax(-1)
            out = shares @ v
            apart = v.square().sum(-1) - 2 * out @ v.T + out.square().sum(-1, keepdim=True)
            weights = (shares.square() * apart).sum(-1)
            moments, total = moments + (q * weights[:, None]).T @ q, total + weights.sum()
        found.append(moments / total)
    return torch.stack(found)


def _moments(x: Tensor) -> Tensor:
    """[G T H] -> f32 [G H H], the mean of x x^T."""
    return x.transpose(1, 2) @ x / x.shape[1]


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """A power of a symmetric positive matrix: f64."""
    values, vectors = torch.linalg.eigh(matrix.double())
    powers: Tensor = vectors * values.clamp(min=values.max() * _LEAST) ** exponent @ vectors.T
    return powers
