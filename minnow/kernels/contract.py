"""Op: axes, dtypes, tolerances, cost, cases, as data (no torch)"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Cost = tuple[float, float]  # arithmetic operations, bytes moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What an operation computes, as data.

    Attributes:
        inputs: name -> "dtype|dtype [axes]" for tensors, "weight [axes]" and "cache [axes]" for a
            tensor or a Quantized, "weights [axes]" for a sequence of weights that share their
            last axes, "scalar" for a Python number, word or None. A "?" behind the name's type allows
            None. The order is that of the arguments.
        outputs: name -> the same; a tensor that is written in place appears here with its input's name.
        cost: named dims -> (operations, bytes) of one call.
        cases: small dims for parity tests, in the interpreter too.
        device_cases: dims as large as a real model's, for a GPU.
        cosine, rtol, atol: how far a backend may stray from the reference.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    cost: Callable[..., Cost]
    cases: tuple[Mapping[str, object], ...]
    device_cases: tuple[Mapping[str, object], ...] = ()
    cosine: float = 1e-4
    rtol: float = 1e-2
    atol: float = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device that operations are bound for.

    Attributes:
        kind: torch's device type.
        name: for people, for example "NVIDIA H200" or "avx512".
        capability: CUDA compute capability as major * 10 + minor; 0 on a CPU.
        is_asynchronous: whether a launch returns before the work is done.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    capability: int = 0
    is_asynchronous: bool = False


class Bound(Protocol):
    """Operations by name, as a composed one gets them: `kernels.linear(...)`."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """One operation as a plain function."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One parsed entry of `Op.inputs`."""

    kind: Literal["tensor", "weight", "cache", "weights", "scalar"]
    dtypes: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    is_optional: bool = False


def parse(text: str) -> Argument:
    """Read an entry such as "bf16|f32 [T D]", "weight [O D]", "cache? [B G L H]" or "scalar"."""
    match = re.fullmatch(r"([a-z0-9|]+)(\?)?(?: \[([A-Z0-9a-z* ]*)\])?", text)
    if match is None:
        raise ValueError(f"contract entry {text!r} is not understood")
    word, optional, axes = match[1], match[2] is not None, tuple((match[3] or "").split())
    if word in ("weight", "cache", "weights", "scalar"):
        return Argument(kind=word, axes=axes, is_optional=optional)  # type: ignore[arg-type]
    return Argument(kind="tensor", dtypes=tuple(word.split("|")), axes=axes, is_optional=optional)
