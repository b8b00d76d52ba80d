"""NaN pattern + elementwise + cosine; reports the worst position"""

from typing import Any

import torch
from torch import Tensor

from minnow.formats.quantized import Quantized
from minnow.kernels.contract import Op


def compare(op: Op, seen: Any, expected: Any, where: str = "") -> list[str]:
    """Compare a backend's outputs with the reference's under the contract's tolerances.

    Integer and byte tensors must be equal; floats must agree in NaN and infinity places, elementwise,
    and in cosine distance.

    Returns:
        One sentence for each output that disagrees, naming the worst position; empty if all agree.
    """
    if isinstance(expected, Quantized):
        pairs = ((seen.codes, expected.codes, "codes"), (seen.scales, expected.scales, "scales"))
        return [m for a, b, part in pairs if b is not None for m in compare(op, a, b, f"{where}.{part}")]
    if isinstance(expected, Tensor):
        message = _compare_tensor(op, seen, expected)
        return [f"{op.name}{where}: {message}"] if message else []
    if isinstance(expected, tuple | list):
        each = enumerate(zip(seen, expected, strict=True))
        return [m for i, (a, b) in each for m in compare(op, a, b, f"{where}[{i}]")]
    return [] if seen == expected else [f"{op.name}{where}: {seen!r}, the reference has {expected!r}"]


def _compare_tensor(op: Op, seen: Tensor, expected: Tensor) -> str | None:
    if seen.shape != expected.shape or seen.dtype != expected.dtype:
        return f"{list(seen.shape)} {seen.dtype}, the reference has {list(expected.shape)} {expected.dtype}"
    if expected.numel() == 0:
        return None
    if not expected.dtype.is_floating_point:
        return _first(seen != expected, seen, expected, "differs")
    a, b = seen.double(), expected.double()
    special = ~torch.isfinite(b)
    if bool((special != ~torch.isfinite(a)).any()):
        return _first(special != ~torch.isfinite(a), a, b, "finite in one only")
    mismatch = special & ~((a == b) | (a.isnan() & b.isnan()))
    if bool(mismatch.any()):
        return _first(mismatch, a, b, "another special value")
    a, b = a.masked_fill(special, 0.0), b.masked_fill(special, 0.0)
    excess = (a - b).abs() - (op.atol + op.rtol * b.abs())
    if bool((excess > 0).any()):
        return _first(excess == excess.max(), a, b, "strays too far")
    norms = float(a.norm() * b.norm())
    cosine = 1.0 - float((a * b).sum()) / norms if norms > 0 else 0.0
    return f"cosine distance {cosine:.2e}, allowed {op.cosine:.0e}" if cosine > op.cosine else None


def _first(mask: Tensor, seen: Tensor, expected: Tensor, what: str) -> str | None:
    places = mask.nonzero()
    if len(places) == 0:
        return None
    place = tuple(int(i) for i in places[0])
    there = f"{seen[place].item()}, the reference has {expected[place].item()}"
    return f"{what} at {list(place)}: {there} ({len(places)} places)"
