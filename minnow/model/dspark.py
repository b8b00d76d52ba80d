"""the drafter: block backbone, Markov head, confidence head"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from minnow.arch.drafter import AT
from minnow.config.drafter import DrafterConfig
from minnow.formats.quantized import Weight, decode, take
from minnow.kernels.registry import Kernels
from minnow.model.decoder import DecoderLayer
from minnow.model.layers import Embedding, Linear, Norm
from minnow.model.rope import inverse_frequencies

# (layer, q [T N H], k [T G H], v [T G H]) -> [T N H]: the block's rows among themselves and over their context.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The blocks of a round, one after the other in one row of T.

    Attributes:
        ids, positions: i32 [T].
        slots: i64 [T], where their keys and values go until those of what is accepted take their place.
        query_start: i32 [S + 1]; block_table: i32 [S M].
        last_keys, first_keys: i32 [T], what each token sees.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    query_start: Tensor
    block_table: Tensor
    last_keys: Tensor
    first_keys: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How drafts are drawn from blocks, sequence by sequence.

    Attributes:
        counts: i64 [S], drafts of each, descending.
        anchors: i32 [S], the tokens that the first drafts follow.
        settings: temperature f32, top_k i64, top_p f32 and min_p f32, [S] each; temperature 0 takes the likeliest.
        uniform: f64 [P S], a number a draft.
        is_judged: whether the confidence head is asked, where there is one.
    """

    counts: Tensor
    anchors: Tensor
    settings: tuple[Tensor, Tensor, Tensor, Tensor]
    uniform: Tensor
    is_judged: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a round of drafts came to.

    Attributes:
        ids: i64 [P S], of the target's vocabulary.
        q: f32 [P S W], the distributions that they were drawn from; None where none was drawn.
        confidence: f32 [P S], logits that each is kept if those before it are; None where it was not asked.
    """

    ids: Tensor
    q: Tensor | None
    confidence: Tensor | None


class DraftFunction(Protocol):
    """One way to run a drafter over the caches of its layers."""

    def remember(self, taps: Sequence[Tensor], positions: Tensor, slots: Tensor) -> None:
        """Write what context tokens lend: taps [T D] each, positions i32 [T], slots i64 [T] (-1 writes nothing)."""
        ...

    def draft(self, block: Block, draws: Draws) -> Drawn:
        """Run the blocks and draw from them, one draft after the other."""
        ...


class Drafter(nn.Module):
    """A DSpark drafter. Engine and training run this same module; they differ in the operations bound and in `attend`.

    Source: DSpark (Cheng et al., arXiv 2607.05147); layers and names as in DeepSpec and MiniMax-M3.1's `dspark/`.
    """

    def __init__(self, config: DrafterConfig, kernels: Kernels, dtype: torch.dtype, device: torch.device) -> None:
        """Make a drafter without weights: `checkpoint.load.fill` fills it, `share` lends it the target's.

        Args:
            dtype: of the activations, as the target's.
        """
        super().__init__()
        self.config, self.kernels = config, kernels
        backbone = config.backbone
        eps, offset = backbone.rms_norm_eps, backbone.norm_offset
        self.inv_freq = inverse_frequencies(backbone, device)
        self.embed, self.head = Embedding(kernels, None, dtype), Linear(kernels, dtype=torch.float32)  # see `share`
        self.fuse = Linear(kernels, f"{AT}fc")
        self.context_norm = Norm(kernels, f"{AT}hidden_norm", eps, offset)
        self.layers = nn.ModuleList(
            DecoderLayer(backbone, layer, kernels, self.inv_freq, f"{AT}layers.{layer}.")
            for layer in range(backbone.num_hidden_layers)
        )
        self.norm = Norm(kernels, f"{AT}norm", eps, offset)
        self.markov = MarkovHead(config, kernels)
        self.confidence = ConfidenceHead(config, kernels) if config.has_confidence_head else None
        self.vocabulary = Vocabulary(config)

    def share(self, embedding: Weight, head: Weight) -> None:
        """Lend it the target's embedding and head; a reduced vocabulary takes its rows of the head."""
        self.embed.weights = (embedding,)
        ids = self.vocabulary.target_ids
        self.head.weights = (head if ids is None else take(head, ids),)

    def context(self, taps: Sequence[Tensor], positions_T: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that tokens of the target lend to every block after them.

        Args:
            taps: [T D] each, the target's residuals after `target_layer_ids`.
            positions_T: i32 [T].

        Returns:
            k, v [T G H] of each draft layer.
        """
        c_TD = self.context_norm(self.fuse(torch.cat(tuple(taps), dim=1)))
        return [layer.attention.keys_values(c_TD, positions_T) for layer in self.layers]  # type: ignore[operator, union-attr]

    def block(self, ids_T: Tensor, positions_T: Tensor, attend: Attend) -> Tensor:
        """Hidden states of blocks: each is an anchor and mask tokens.

        Args:
            ids_T: i32 [T], some blocks one after the other; positions_T: i32 [T].

        Returns:
            [T D] after the last norm; slot k of a block is for the token after its position.
        """
        h_TD = self.embed(ids_T)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            q, k, v = layer.attention.project(layer.attention_norm(h_TD), positions_T)
            h_TD = h_TD + layer.attention.project_out(attend(i, q, k, v).flatten(1))
            h_TD = h_TD + layer.feed_forward(layer.feed_forward_norm(h_TD))
        hidden_TD: Tensor = self.norm(h_TD)
        return hidden_TD

    def base(self, hidden_TD: Tensor) -> Tensor:
        """Logits before the Markov head, f32 [T W] over the draft vocabulary."""
        logits_TW: Tensor = self.head(hidden_TD)
        return logits_TW

    def logits(
        self, base_TW: Tensor, hidden_TD: Tensor, before_T: Tensor, state_TR: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What a slot is drafted from, once the token before it is known.

        Args:
            base_TW: of `base`; hidden_TD: of `block`, the same slots.
            before_T: i64 [T], ids of the target's vocabulary: the anchor for the first slot, then the drafts.
            state_TR: of an rnn head, from the slot before; None for the first slot.

        Returns:
            f32 [T W], minus infinity where `draft_topk` leaves a token out; the state for the next slot.
        """
        bias_TW, state_TR = self.markov(before_T, hidden_TD, state_TR)
        found_TW = base_TW + bias_TW
        if 0 < self.config.draft_topk < base_TW.shape[1]:
            best = base_TW.topk(self.config.draft_topk, dim=1).indices
            kept_TW = torch.full_like(base_TW, -torch.inf)
            found_TW = kept_TW.scatter(1, best, found_TW.gather(1, best))
        return found_TW, state_TR


class MarkovHead(nn.Module):
    """A bias on the logits of a slot by the token before it: rank r, "vanilla", "gated" or "rnn"."""

    def __init__(self, config: DrafterConfig, kernels: Kernels) -> None:
        super().__init__()
        self.config, self.kernels = config, kernels
        at = f"{AT}markov_head."
        inner = {"vanilla": (), "gated": ("gate_proj", "gate_proj.bias"), "rnn": ("joint_proj", "joint_proj.bias")}
        self.weight_names = tuple(at + n for n in ("markov_w1", "markov_w2", *inner[config.markov_head_type]))
        self.weights: tuple[Weight, ...] = ()

    def look_up(self, before_T: Tensor) -> Tensor:
        """i64 [T] -> f32 [T r], what it knows of the tokens before."""
        e_TR: Tensor = self.kernels.embed(before_T, self.weights[0], torch.float32)
        return e_TR

    def forward(self, before_T: Tensor, hidden_TD: Tensor, state_TR: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The bias, f32 [T W], and the state of an rnn head; see Drafter.logits."""
        code_TR, state_TR = self.code(before_T, hidden_TD, state_TR)
        bias_TW: Tensor = self.kernels.linear(code_TR, (self.weights[1],), torch.float32)
        return bias_TW, state_TR

    def code(self, before_T: Tensor, hidden_TD: Tensor, state_TR: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the second table makes the bias of, f32 [T r], and the state of an rnn head."""
        e_TR, rank = self.look_up(before_T), self.config.markov_rank
        if self.config.markov_head_type == "gated":
            e_TR = e_TR * torch.sigmoid(self._inner(torch.cat((hidden_TD.float(), e_TR), dim=1)))
        if self.config.markov_head_type == "rnn":
            state_TR = torch.zeros_like(e_TR) if state_TR is None else state_TR
            z = self._inner(torch.cat((state_TR, e_TR, hidden_TD.float()), dim=1))
            gate, candidate, out = torch.split(z, rank, dim=1)
            gate = torch.sigmoid(gate)
            state_TR = gate * state_TR + (1 - gate) * torch.tanh(candidate)
            e_TR = torch.tanh(out)
        return e_TR, state_TR

    def _inner(self, x: Tensor) -> Tensor:
        y: Tensor = self.kernels.linear(x, (self.weights[2],), torch.float32)
        return y + decode(self.weights[3])


class ConfidenceHead(nn.Module):
    """How likely a draft is kept if those before it are; known before the draft is drawn."""

    def __init__(self, config: DrafterConfig, kernels: Kernels) -> None:
        super().__init__()
        self.sees_token, self.kernels = config.confidence_sees_token, kernels
        self.weight_names = tuple(f"{AT}confidence_head.{n}" for n in ("proj", "proj.bias"))
        self.weights: tuple[Weight, ...] = ()

    def forward(self, hidden_TD: Tensor, e_TR: Tensor) -> Tensor:
        """hidden [T D], e of MarkovHead.look_up -> f32 [T], a logit."""
        x = torch.cat((hidden_TD.float(), e_TR), dim=1) if self.sees_token else hidden_TD.float()
        y: Tensor = self.kernels.linear(x, (self.weights[0],), torch.float32)
        return (y + decode(self.weights[1]))[:, 0]


class Vocabulary(nn.Module):
    """Which tokens of the target can be drafted: offsets d2t, so that token j of the drafter is j + d2t[j]."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.weight_names = (f"{AT}d2t",) if config.is_reduced else ()
        self.weights: tuple[Weight, ...] = ()

    @property
    def target_ids(self) -> Tensor | None:
        """i64 [W], or None where the whole vocabulary can be drafted."""
        if not self.weights:
            return None
        offsets = self.weights[0]
        assert isinstance(offsets, Tensor)
        return offsets.long() + torch.arange(len(offsets), device=offsets.device)
