"""verify, in plain torch: the definition"""

import torch
from torch import Tensor

from minnow.kernels.contract import Target
from minnow.kernels.verify import NONE_OPEN, NOT_FINITE


def refusal(target: Target) -> str | None:
    """Runs anywhere."""
    return None


def verify(
    p: Tensor, q: Tensor | None, drafts: Tensor, starts: Tensor, uniform: Tensor, rule: str
) -> tuple[Tensor, Tensor]:
    """Keep the first drafts of each sequence so that what comes out has the law of p.

    Sequence s has n = starts[s + 1] - starts[s] - 1 drafts, and one row of p more: row i is the distribution after i of
    them. "standard" keeps draft i + 1 with probability min(1, p/q) and stops at the first that fails; "block" weighs
    prefixes as a whole and keeps the longest that passes, which is never fewer on average.

    Args:
        p: f32 [R V], probabilities that the model and the sampling parameters give; R = D + S.
        q: f32 [D V], the distribution that each draft was drawn from; None: each was the only one possible.
        drafts: i64 [D].
        starts: i64 [S + 1], where the rows of p of each sequence begin; those of q begin s earlier.
        uniform: f64 [R] in [0, 1), independent of each other and of what the drafts were drawn with: one for each
            draft, and the sequence's last for the token after them.
        rule: "standard" or "block".

    Returns:
        i64 [S], drafts that are kept; i64 [S], the token after them, or NOT_FINITE or NONE_OPEN.

    Source: Sun et al., Block Verification Accelerates Speculative Decoding, ICLR 2025 (arXiv 2403.10444), for "block".
    """
    found = []
    for s, (first, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        n = end - first - 1
        own = drafts[first - s : first - s + n]
        rows = p[first:end].double()
        if q is None:
            proposed = torch.zeros(n, p.shape[1], dtype=torch.float64, device=p.device).scatter_(1, own[:, None], 1.0)
        else:
            proposed = q[first - s : first - s + n].double()
        found.append(_verify_one(rows, proposed, own, uniform[first:end], rule))
    both = torch.tensor(found, dtype=torch.int64).view(-1, 2)
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def _verify_one(p: Tensor, q: Tensor, ids: Tensor, uniform: Tensor, rule: str) -> tuple[int, int]:
    """p [n + 1, V], q [n, V], ids [n], uniform [n + 1]: drafts kept, and the token after them."""
    n = len(ids)
    if not bool(p.isfinite().all()):
        return 0, NOT_FINITE
    if bool((p.sum(1) <= 0).any()):
        return 0, NONE_OPEN
    p = p / p.sum(1, keepdim=True)
    draft_p, draft_q = (rows[: len(ids)].gather(1, ids[:, None])[:, 0] for rows in (p, q))
    ratio = torch.where(draft_q > 0, draft_p / draft_q, 0.0)  # a draft that q excludes was not drawn from it
    weight = [1.0]
    for i in range(n):
        weight.append(min(1.0, weight[-1] * float(ratio[i])) if rule == "block" else 1.0)
    rest = (torch.tensor(weight[:n], dtype=p.dtype, device=p.device)[:, None] * p[:n] - q).clamp(min=0)
    mass = rest.sum(1)
    if rule == "block":
        limits = [_limit(float(mass[i]), weight[i]) for i in range(1, n)] + weight[n:] * (n > 0)
    else:
        limits = ratio.clamp(max=1.0).tolist()
    passed = [float(u) < limit for u, limit in zip(uniform, limits, strict=False)]
    if rule == "block":
        num = max((i + 1 for i in range(n) if passed[i]), default=0)
    else:
        num = next((i for i in range(n) if not passed[i]), n)
    row = rest[num] if num < n and float(mass[num]) > 0 else p[num]  # without mass: of rounding alone
    total = row.cumsum(0)
    token = int(torch.searchsorted(total, uniform[n] * total[-1], right=True))
    return num, min(token, int(row.nonzero()[-1]))


def _limit(mass: float, weight: float) -> float:
    """What a prefix passes with, if a longer one has not; 1 where p and q agree."""
    return mass / (mass + 1.0 - weight) if mass + 1.0 - weight > 0 else 1.0
