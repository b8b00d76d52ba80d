"""give a dense-attention checkpoint MSA index heads, distilled from its own attention"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minnow.config.model import ModelConfig, SparseConfig
from minnow.tune import stage
from minnow.tune.attend import attend_densely, block_mass, block_scores, choose, straight_through
from minnow.tune.run import Metrics, Plan, Position, Run, Watch
from minnow.tune.stage import Material, Options
from minnow.tune.target import Target

_CHUNK = 128
_NUM_NEAR = 2  # blocks before a query's own that count as near


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is learned from.

    Attributes:
        num_windows, num_tokens: texts that the model is run over once.
        num_echoes, echo_tokens: passages of each text that come again later in it: only there do the heads that copy
            look far back, and documentation seldom says the same thing twice.
        num_places: positions of each window whose attention is kept, behind the first that has to choose blocks.
        num_queries: of them that one step compares.
        rate: the highest learning rate.
        num_blocks, block_size: how many blocks a query keeps, and their tokens, as in M3.
    """

    num_windows: int = 20
    num_tokens: int = 8192
    num_echoes: int = 6
    echo_tokens: int = 256
    num_places: int = 384
    num_queries: int = 128
    rate: float = 5e-4
    num_blocks: int = 16
    block_size: int = 128


@torch.no_grad()
def first_guess(target: Target, layer: int, x_TD: Tensor) -> dict[str, Tensor]:
    """Index weights made of a layer's own projections, so that index scores come near the attention's.

    Two dims that rotate together are one complex number, and multiplying it by a constant commutes with the
    rotation. So, for each such pair, the one index key is the principal component of the G keys (weighted by how
    large the queries are that meet them), and the index query of a group is its mean query, turned to match. What
    the other components say goes into dims that do not rotate, of the slowest pairs first: a head that looks for
    something said long ago looks there.

    Args:
        x_TD: some normed inputs of the layer.

    Returns:
        f32, by our names.
    """
    at, config = f"model.layers.{layer}.self_attn.", target.config
    num_groups = config.num_key_value_heads
    q_GPD, k_GPD = (_as_complex(target, f"{at}{part}_proj") for part in "qk")
    q_GPD = torch.unflatten(q_GPD, 0, (num_groups, -1)).mean(1)
    q_TGP, k_TGP = (torch.einsum("td,gpd->tgp", x_TD.to(w.dtype), w) for w in (q_GPD, k_GPD))
    weight_GP = q_TGP.abs().square().mean(0).sqrt()
    seen_TGP = k_TGP * weight_GP
    component_PGC = torch.linalg.eigh(torch.einsum("tgp,thp->pgh", seen_TGP, seen_TGP.conj())).eigenvectors.flip(-1)
    turn_CGP, middle_P = component_PGC.permute(2, 1, 0).conj(), weight_GP.square().mean(0).sqrt()
    index_k_CPD = ((turn_CGP * weight_GP / middle_P)[..., None] * k_GPD).sum(1)
    index_q_CGPD = (turn_CGP * middle_P / weight_GP)[..., None] * q_GPD
    rows_q, rows_k = _as_rows(target, index_q_CGPD[0]), _as_rows(target, index_k_CPD[:1])
    if num_groups > 1:
        component, pair = _still(num_groups, q_GPD.shape[1])
        rest_q, rest_k = index_q_CGPD[component, :, pair].transpose(0, 1), index_k_CPD[component, pair][None]
        rows_q, rows_k = torch.cat((rows_q, _flat(rest_q)), dim=1), torch.cat((rows_k, _flat(rest_k)), dim=1)
        rows_q = rows_q * 2**0.5  # twice as wide, and scaled down accordingly
    found = {f"{at}index_q_proj": rows_q.flatten(0, 1), f"{at}index_k_proj": rows_k.flatten(0, 1)}
    if config.use_qk_norm:
        spread = rows_k.shape[1] // config.head_dim
        found |= {f"{at}index_{p}_norm": target.weights[f"{at}{p}_norm"].float().repeat(spread) for p in "qk"}
    return found


def _still(num_groups: int, num_pairs: int) -> tuple[Tensor, Tensor]:
    """Which components (from 1) of which pairs do not rotate: as many as there are pairs, of the slowest ones."""
    num_slow = -(-num_pairs // (num_groups - 1))
    pair = torch.arange(num_pairs - 1, num_pairs - 1 - num_slow, -1).repeat_interleave(num_groups - 1)
    return torch.arange(1, num_groups).repeat(num_slow)[:num_pairs], pair[:num_pairs]


def _flat(weights: Tensor) -> Tensor:
    """Complex [heads H/2 D] as rows that do not rotate: [heads H D]."""
    return torch.cat((weights.real, weights.imag), dim=1)


def _as_complex(target: Target, name: str) -> Tensor:
    """A projection [heads*H D], the dims that rotate together as one: complex [heads H/2 D]."""
    rows = torch.unflatten(target.weights[name].float(), 0, (-1, target.config.head_dim))
    first, second = _pairs(target.config)
    return torch.complex(rows[:, first], rows[:, second])


def _as_rows(target: Target, weights: Tensor) -> Tensor:
    """The reverse of _as_complex: [heads H D]."""
    first, second = _pairs(target.config)
    rows = torch.empty(weights.shape[0], target.config.head_dim, weights.shape[-1])
    rows[:, first], rows[:, second] = weights.real, weights.imag
    return rows


def _pairs(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """The dims of a head in pairs: those that rotate together, then the rest as it comes."""
    half, rest = config.rotary_dim // 2, (config.head_dim - config.rotary_dim) // 2
    first = [*range(half), *range(2 * half, 2 * half + rest)]
    second = [*range(half, 2 * half), *range(2 * half + rest, 2 * half + 2 * rest)]
    return torch.tensor(first), torch.tensor(second)


def sparse_config(config: ModelConfig, settings: Settings) -> SparseConfig:
    """MSA for every layer of a dense model: an index head for each key/value head.

    Where several share the one index key it is twice as wide as a head's. Pairs at the end of a head are the slow ones.
    """
    return SparseConfig(
        is_sparse=(True,) * config.num_hidden_layers,
        index_dim=config.head_dim * (1 if config.num_key_value_heads == 1 else 2),
        num_index_heads=config.num_key_value_heads,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
    )


def config_fields(sparse: SparseConfig) -> dict[str, Any]:
    """What config.json says of a model with these heads."""
    flags = [int(flag) for flag in sparse.is_sparse]
    fields = {
        "use_sparse_attention": True,
        "sparse_index_dim": sparse.index_dim,
        "sparse_num_index_heads": sparse.num_index_heads,
        "sparse_topk_blocks": sparse.num_blocks,
        "sparse_block_size": sparse.block_size,
        "sparse_init_block": sparse.num_init_blocks,
        "sparse_local_block": sparse.num_local_blocks,
        "sparse_attention_freq": flags,
        "sparse_disable_index_value": flags,
    }
    return {"text_config": {"sparse_attention_config": fields}}


class IndexWork:
    """The model is frozen; each layer's index heads learn from its own attention, apart from the others."""

    def __init__(self, material: Material, parameters: dict[str, Tensor], settings: Settings) -> None:
        self.material, self.parameters, self.settings = material, parameters, settings
        self.sparse = sparse_config(material.target.config, settings)
        self.student = with_heads(material.target, self.sparse, parameters)
        self._held_out = record(self.student, material.held_out.spaced(1, settings.num_tokens), settings.num_places, 0)

    def learn(self, step: int, generator: torch.Generator) -> Metrics:
        """Divergence of the scores' distribution over blocks from the attention's, summed over the layers."""
        window = int(torch.randint(self.settings.num_windows, (), generator=generator))
        kept = torch.load(self._recorded(window), mmap=True, weights_only=True)
        chosen = torch.randperm(len(kept["places"]), generator=generator)[: self.settings.num_queries].sort().values
        places, total = kept["places"][chosen], 0.0
        for layer in range(self.student.config.num_hidden_layers):
            scores = scores_at(self.student, layer, kept["inputs"][layer], places)
            loss = divergence(kept["mass"][layer][:, :, chosen], scores, places, self.sparse)
            torch.autograd.backward(loss)
            total += loss.item()
        return {"loss": total / self.student.config.num_hidden_layers}

    def validate(self) -> Metrics:
        """The share of the attention inside the chosen blocks: mean over layers, and of the worst layer."""
        mass = kept_mass(self.student, self._held_out)
        return {"mass": mass.mean().item(), "least_mass": mass.min().item()}

    def export(self, position: Position) -> None:
        """Index projections as BF16; see stage.export."""
        stage.export(
            self.material, "index", self.parameters, position, asdict(self.settings), config_fields(self.sparse)
        )

    def _recorded(self, window: int) -> Path:
        """The file with what the model does in one window; made when it is first asked for, then kept."""
        path = self.material.options.output / "state" / "windows" / f"{window}.pt"
        if not path.is_file():
            generator = torch.Generator().manual_seed(self.material.options.seed * 1000 + window)
            ids = self.material.trained.sample(1, self.settings.num_tokens, generator)
            ids = echoed(ids, self.settings, generator)
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(record(self.student, ids, self.settings.num_places, window), path.with_suffix(".partial"))
            path.with_suffix(".partial").rename(path)
        return path


def with_heads(target: Target, sparse: SparseConfig, weights: Mapping[str, Tensor]) -> Target:
    """The model as a sparse one, with index weights by our names."""
    return Target(replace(target.config, sparse=sparse), {**target.weights, **weights}, target.dtype)


@torch.no_grad()
def record(target: Target, ids: Tensor, num_places: int, seed: int) -> dict[str, Any]:
    """What a model does when it attends to everything, for index heads to learn from.

    Args:
        target: a sparse model; keys and values are rounded where its cache is NVFP4.
        ids: i64 [1 T].
        num_places: positions that are looked at, of those with more blocks before them than they may keep.
        seed: of their choice.

    Returns:
        "places" i64 [num_places] or fewer, ascending; by layer "inputs" [1 T D] and "mass" f32 [1 G places B].
    """
    sparse, is_rounded = target.config.sparse, target.config.quantization.kv_cache == "nvfp4"
    first = sparse.num_blocks * sparse.block_size
    order = torch.randperm(ids.shape[1] - first, generator=torch.Generator().manual_seed(seed))
    places = first + order[:num_places].sort().values
    inputs: list[Tensor] = []
    mass: list[Tensor] = []

    def attend(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (straight_through(k), straight_through(v)) if is_rounded else (k, v)
        inputs.append(x)
        parts = [block_mass(q[:, :, some], k, some, sparse.block_size) for some in torch.split(places, _CHUNK)]
        mass.append(torch.cat(parts, dim=2))
        return attend_densely(layer, x, q, k, v)

    target.forward(ids, attend=attend)
    return {"places": places, "inputs": inputs, "mass": mass}


def scores_at(target: Target, layer: int, x_STD: Tensor, places: Tensor) -> Tensor:
    """Block scores of queries at some positions, index keys through an NVFP4 cache: f32 [S G places B]."""
    index_q, index_k = target.index(layer, x_STD)
    return block_scores(index_q[:, :, places], straight_through(index_k), places, target.config.sparse.block_size)


@torch.no_grad()
def kept_mass(target: Target, recorded: Mapping[str, Any]) -> Tensor:
    """The share of the attention that lies inside the blocks which the index heads choose: f32 [layers]."""
    found, places, sparse = [], recorded["places"], target.config.sparse
    for layer, (x, mass) in enumerate(zip(recorded["inputs"], recorded["mass"], strict=True)):
        found.append((mass * choose(scores_at(target, layer, x, places), places, sparse)).sum(-1).mean())
    return torch.stack(found)


def divergence(mass: Tensor, scores: Tensor, places: Tensor, sparse: SparseConfig) -> Tensor:
    """How far the softmax of scaled scores is from the attention's mass, over the blocks that a query chooses from.

    The query's own block is always kept, so it is left out of both. Most of the mass lies in the first block and in the
    newest, which every head finds; so the divergence over the blocks between is added, each query weighing as much as
    it looks there.

    Args:
        mass, scores: f32 [S G Q B].
        places: [Q].

    Returns:
        Mean Kullback-Leibler divergences, a scalar.
    """
    block, own = torch.arange(mass.shape[-1]), (places // sparse.block_size)[:, None]
    logits = scores * sparse.index_dim**-0.5
    is_far = (block > 0) & (block < own - _NUM_NEAR)
    far = mass.masked_fill(~is_far, 0.0).sum(-1)
    weight = far / far.mean(-1, keepdim=True).clamp(min=1e-9)
    return _divergence(mass, logits, block < own).mean() + (weight * _divergence(mass, logits, is_far)).mean()


def _divergence(mass: Tensor, logits: Tensor, is_open: Tensor) -> Tensor:
    """Over the blocks that are open, [Q B], at least one for each query: f32 [S G Q]."""
    wanted = mass.masked_fill(~is_open, 0.0)
    wanted = wanted / wanted.sum(-1, keepdim=True).clamp(min=1e-9)
    guessed = logits.masked_fill(~is_open, -torch.inf).log_softmax(-1).masked_fill(~is_open, 0.0)
    return functional.kl_div(guessed, wanted, reduction="none").sum(-1)


def echoed(ids: Tensor, settings: Settings, generator: torch.Generator) -> Tensor:
    """A window i64 [1 T] in whose part behind the first blocks some passages of before come again, far from them."""
    ids, length = ids.clone(), settings.echo_tokens
    least = settings.num_blocks * settings.block_size  # that far back a block has to be chosen
    for _ in range(settings.num_echoes if ids.shape[1] > least + length else 0):
        to = int(torch.randint(least, ids.shape[1] - length + 1, (), generator=generator))
        source = int(torch.randint(to - least + 1, (), generator=generator))
        ids[:, to : to + length] = ids[:, source : source + length].clone()
    return ids


def train(options: Options, watch: Watch, settings: Settings | None = None) -> Position:
    """Do a piece of the training: `minnow tune index`."""
    settings = settings or Settings()
    material = stage.prepare(options)
    config = material.target.config
    exact = material.exact()
    inputs = _inputs(material.target, material.trained.spaced(1, settings.num_tokens // 4))
    guesses = [first_guess(exact, layer, inputs[layer]) for layer in range(config.num_hidden_layers)]
    parameters = {name: value.requires_grad_() for guess in guesses for name, value in guess.items()}
    plan = Plan(steps=options.steps or 300, rate=settings.rate, warmup_steps=20, validate_steps=25, seed=options.seed)
    started = Run(
        options.output, plan, parameters, {**asdict(settings), "parts": [str(part) for part in options.parts]}
    )
    return started.go(IndexWork(material, parameters, settings), options.hours, watch)


@torch.no_grad()
def _inputs(target: Target, ids: Tensor) -> list[Tensor]:
    """The normed input of each layer's attention for a window i64 [1 T]: [T D]."""
    found: list[Tensor] = []

    def attend(layer: int, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found.append(x[0])
        return attend_densely(layer, x, q, k, v)

    target.forward(ids, attend=attend)
    return found
