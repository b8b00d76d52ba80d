"""values that number formats meet, and the documented blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DOCUMENT = Path(__file__).parents[2] / "docs" / "concepts" / "formats.md"


def spread(num_rows: int, width: int, *, block: int, decades: tuple[float, float], seed: int) -> Tensor:
    """f32 [num_rows, width]: normal values, each block at a magnitude of its own, a tenth of them rounded to BF16."""
    generator = torch.Generator().manual_seed(seed)
    low, high = decades
    power = torch.rand(num_rows, width // block, 1, generator=generator) * (high - low) + low
    values = torch.randn(num_rows, width // block, block, generator=generator) * 10.0**power
    coarse = torch.rand(num_rows, width // block, 1, generator=generator) < 0.1
    return torch.where(coarse, values.to(torch.bfloat16).to(torch.float32), values).flatten(-2)


def around(points: np.ndarray) -> np.ndarray:
    """Each point of f32 [n], its two neighbours, and all their negatives: f32 [6n]."""
    above = np.nextafter(points, np.float32(np.inf), dtype=np.float32)
    below = np.nextafter(points, np.float32(-np.inf), dtype=np.float32)
    all_points = np.concatenate((points, above, below))
    return np.concatenate((all_points, -all_points)).astype(np.float32)


def special() -> np.ndarray:
    """Zeros of both signs, subnormals, the largest numbers and infinities: f32 [n]."""
    tiny = np.float32(2.0**-149)
    return np.array(
        [0.0, -0.0, tiny, -tiny, 2.0**-126, -(2.0**-127), 3.4e38, -3.4e38, np.inf, -np.inf], dtype=np.float32
    )


def as_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor of one-byte numbers, in order."""
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """One golden block of docs/concepts/formats.md."""

    values: list[float]
    scale: str
    codes: bytes
    decoded: list[float]


def documented(name: str) -> list[Documented]:
    """The golden blocks of that format: fenced blocks whose info string is `golden NAME`."""
    found = re.findall(rf"^```golden {name}\n(.*?)^```", DOCUMENT.read_text(encoding="ascii"), re.DOTALL | re.MULTILINE)
    blocks = []
    for text in found:
        words: dict[str, list[str]] = {}
        key = ""
        for line in text.splitlines():
            key = line[:8].strip() or key
            words.setdefault(key, []).extend(line[8:].split())
        blocks.append(
            Documented(
                values=[float(word) for word in words["values"]],
                scale=" ".join(words["scale"]),
                codes=bytes.fromhex("".join(words["codes"])),
                decoded=[float(word) for word in words["decoded"]],
            )
        )
    return blocks
