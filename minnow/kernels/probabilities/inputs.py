"""inputs of probabilities for a case"""

import math
from typing import Any

import torch


def make(device: torch.device, S: int, V: int, scale: float = 3.0, has_bad_rows: bool = False) -> dict[str, Any]:
    """Random logits with a mix of settings, greedy rows and rows of equal logits among them; bad ones have none."""
    generator = torch.Generator().manual_seed(2 * S + V)
    logits = torch.randn(S, V, generator=generator) * scale
    if S > 2:
        logits[2] = logits[2].round()  # ties, where top-k and top-p end
    if has_bad_rows:
        logits[0, V // 2], logits[1, V - 1], logits[2], logits[3, 1:] = math.nan, math.inf, -math.inf, -math.inf

    def pick(values: list[float]) -> torch.Tensor:
        return torch.tensor([values[i % len(values)] for i in range(S)])

    return {
        "logits": logits.to(device),
        "temperature": pick([0.0, 1.0, 0.7, 2.0, 1e-39]).to(device, torch.float32),
        "top_k": pick([0, 3, 7, -1]).to(device, torch.int64),
        "top_p": pick([1.0, 0.9, 0.3]).to(device, torch.float32),
        "min_p": pick([0.0, 0.05]).to(device, torch.float32),
    }
