"""inputs of verify for a case"""

import math
from collections.abc import Sequence
from typing import Any

import torch


def make(
    device: torch.device,
    drafts: Sequence[int],
    V: int,
    rule: str,
    has_q: bool = True,
    has_bad_rows: bool = False,
) -> dict[str, Any]:
    """Distributions that resemble each other, with tokens that one or the other excludes; drafts drawn from q."""
    generator = torch.Generator().manual_seed(sum(drafts) + V)
    num_rows, num_drafts = sum(drafts) + len(drafts), sum(drafts)

    def distributions(logits: torch.Tensor) -> torch.Tensor:
        is_out = torch.rand(logits.shape, generator=generator) < 0.2
        is_out[:, 0] = False
        return logits.masked_fill(is_out, -math.inf).softmax(-1)

    p = torch.randn(num_rows, V, generator=generator) * 2
    starts = torch.tensor([0, *(n + 1 for n in drafts)]).cumsum(0)
    is_draft = torch.ones(num_rows, dtype=torch.bool)
    is_draft[starts[1:] - 1] = False
    q = distributions(p[is_draft] + torch.randn(num_drafts, V, generator=generator))
    p = distributions(p)
    ids = q.multinomial(1, generator=generator)[:, 0] if num_drafts else torch.zeros(0, dtype=torch.int64)
    if has_bad_rows:
        p[int(starts[1]) + 1, V // 2], p[int(starts[2])] = math.nan, 0.0
        ids[-1] = int(q[-1].argmin())  # not one that q has
    return {
        "p": p.to(device),
        "q": q.to(device) if has_q else None,
        "drafts": ids.to(device),
        "starts": starts.to(device),
        "uniform": torch.rand(num_rows, generator=generator, dtype=torch.float64).to(device),
        "rule": rule,
    }
