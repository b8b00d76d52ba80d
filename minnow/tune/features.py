"""what the frozen target makes of a sequence: tapped residuals and last hidden states, computed once"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from minnow.tune.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Of one sequence.

    Attributes:
        taps: f32 [T D] each: the residual after each tapped layer, -1 being the embedding.
        hidden: f32 [T D] after the last norm; row i says what the target expects at i + 1.
        normaliser: f32 [T], the logarithm of the sum of exp(logit) over the whole vocabulary; with it, probabilities of
            some tokens need the logits of these alone.
    """

    taps: tuple[Tensor, ...]
    hidden: Tensor
    normaliser: Tensor


class FeatureStore:
    """Features by the number of a sequence; each is computed when it is first asked for, and kept in BF16 on disk.

    Args:
        directory: of the files, 2 (taps + 1) D bytes a token; None computes them each time.
    """

    def __init__(self, target: Target, layer_ids: Sequence[int], directory: Path | None) -> None:
        self.target, self._layer_ids, self._directory = target, tuple(layer_ids), directory
        name = "model.embed_tokens" if target.config.tie_word_embeddings else "lm_head"
        self.head = target.weights[name].float()  # f32 [V D]
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def take(self, index: int, ids: Tensor) -> Features:
        """The features of sequence `index`, whose token ids, i64 [T], never change."""
        if self._directory is None:
            found = self._compute(ids)
        else:
            file = self._directory / f"{index:06d}.safetensors"
            if not file.is_file():
                partial = file.with_suffix(".partial")
                save_file(self._compute(ids), partial)
                os.replace(partial, file)
            found = load_file(file)
        *taps, hidden = found["rows"].float().unbind()
        return Features(taps=tuple(taps), hidden=hidden, normaliser=found["normaliser"])

    @torch.no_grad()
    def _compute(self, ids: Tensor) -> dict[str, Tensor]:
        """rows: bf16 [taps + 1, T, D]; normaliser: f32 [T]."""
        left = self.target.forward(ids[None], taps=[layer for layer in self._layer_ids if layer >= 0])
        embedded = functional.embedding(ids[None], self.target.weights["model.embed_tokens"]).float()
        tapped = iter(left.taps)
        taps = [next(tapped) if layer >= 0 else embedded for layer in self._layer_ids]
        rows = torch.cat([*taps, self.target.hidden(left.last).float()]).bfloat16()
        return {"rows": rows, "normaliser": functional.linear(rows[-1].float(), self.head).logsumexp(-1)}
