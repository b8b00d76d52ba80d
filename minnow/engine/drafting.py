"""PlainDrafts: a drafter by bound operations, one at a time"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minnow.cache.pool import LayerCache
from minnow.model.dspark import Attend, Block, Drafter, Drawn, Draws


class PlainDrafts:
    """A DraftFunction that any device and any drafter can have; the native one is proven equal to it."""

    def __init__(self, drafter: Drafter, caches: Sequence[LayerCache]) -> None:
        """Take a drafter that is loaded and shares the target's embedding and head, and the caches of its layers."""
        self._drafter, self._caches, self._kernels = drafter, caches, drafter.kernels

    @torch.inference_mode()
    def remember(self, taps: Sequence[Tensor], positions: Tensor, slots: Tensor) -> None:
        """See DraftFunction."""
        for (k, v), cache in zip(self._drafter.context(taps, positions), self._caches, strict=True):
            self._kernels.kv_write(k, cache.k, slots)
            self._kernels.kv_write(v, cache.v, slots)

    @torch.inference_mode()
    def draft(self, block: Block, draws: Draws) -> Drawn:
        """See DraftFunction."""
        hidden = self._drafter.block(block.ids, block.positions, self._attend_over(block))
        base, target_ids = self._drafter.base(hidden), self._drafter.vocabulary.target_ids
        counts = draws.counts.tolist()
        found = torch.zeros(draws.uniform.shape, dtype=torch.int64)
        is_drawn = bool((draws.settings[0] > 0).any())
        q = base.new_zeros(*found.shape, base.shape[1]) if is_drawn else None
        head = self._drafter.confidence if draws.is_judged else None
        confidence = None if head is None else base.new_zeros(found.shape)
        before, state = draws.anchors.long(), None
        for k in range(len(found)):
            num = sum(count > k for count in counts)
            at = block.query_start[:num].long() + k
            if head is not None and confidence is not None:
                confidence[k, :num] = head(hidden[at], self._drafter.markov.look_up(before[:num]))
            logits, state = self._drafter.logits(
                base[at], hidden[at], before[:num], None if state is None else state[:num]
            )
            settings = tuple(setting[:num] for setting in draws.settings)
            rows = self._kernels.probabilities(logits, *settings)
            # Drawn from these numbers themselves: a sequence without drafts is one that verification only draws for.
            nothing = torch.empty(0, dtype=torch.int64)
            starts = torch.arange(num + 1)
            _, ids = self._kernels.verify(rows, None, nothing, starts, draws.uniform[k, :num], "standard")
            ids = ids.clamp(min=0)
            if q is not None:
                q[k, :num] = rows
            before = ids if target_ids is None else target_ids[ids]
            found[k, :num] = before
        return Drawn(ids=found, q=q, confidence=confidence)

    def _attend_over(self, block: Block) -> Attend:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            cache = self._caches[layer]
            self._kernels.kv_write(k, cache.k, block.slots)
            self._kernels.kv_write(v, cache.v, block.slots)
            out: Tensor = self._kernels.dense_attention(
                q, cache.k, cache.v, block.block_table, block.query_start, block.last_keys, q.shape[2] ** -0.5,
                block.first_keys,
            )  # fmt: skip
            return out

        return attend
