"""weight formats -> the tensors that hold them, as a table; which weight has which"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from minnow.config.model import QuantizationConfig
from minnow.core.errors import ConfigError, FormatError
from minnow.formats.spec import SPEC_BY_NAME

Part = Literal["weight", "codes", "scales", "minimums", "global_scale", "input_scale"]

FLOATS = ("BF16", "F32", "F16")
ITEM_BYTES: dict[str, int] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpec:
    """One tensor of a quantised weight.

    Attributes:
        values: logical values along the last dim that one element stands for; 0 is one number for all.
    """

    part: Part
    suffix: str
    dtype: str
    values: int

    def shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape for a weight of that logical shape."""
        return (*logical[:-1], logical[-1] // self.values) if self.values else (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a quantised weight lies in a checkpoint.

    Attributes:
        format: the number format.
        is_encode_side: the stored global scales divide (compressed-tensors) instead of multiplying (ModelOpt).
    """

    format: str
    parts: tuple[PartSpec, ...]
    is_encode_side: bool = False


def _part(part: Part, suffix: str, dtype: str, values: int) -> PartSpec:
    return PartSpec(part=part, suffix=suffix, dtype=dtype, values=values)


STORAGE_BY_NAME: dict[str, Storage] = {
    "mxfp8": Storage(
        format="mxfp8",
        parts=(_part("codes", ".weight", "F8_E4M3", 1), _part("scales", ".weight_scale_inv", "U8", 32)),
    ),
    "nvfp4": Storage(
        format="nvfp4",
        is_encode_side=True,
        parts=(
            _part("codes", ".weight_packed", "U8", 2),
            _part("scales", ".weight_scale", "F8_E4M3", 16),
            _part("global_scale", ".weight_global_scale", "F32", 0),
            _part("input_scale", ".input_global_scale", "F32", 0),
        ),
    ),
    "modelopt-nvfp4": Storage(
        format="nvfp4",
        parts=(
            _part("codes", ".weight", "U8", 2),
            _part("scales", ".weight_scale", "F8_E4M3", 16),
            _part("global_scale", ".weight_scale_2", "F32", 0),
            _part("input_scale", ".input_scale", "F32", 0),
        ),
    ),
    "mxfp4": Storage(
        format="mxfp4",
        parts=(_part("codes", ".weight", "U8", 2), _part("scales", ".weight_scale", "U8", 32)),
    ),
    "fp8": Storage(
        format="fp8",
        parts=(_part("codes", ".weight", "F8_E4M3", 1), _part("global_scale", ".weight_scale", "F32", 0)),
    ),
    "int8": Storage(
        format="int8",
        parts=(_part("codes", ".weight", "I8", 1), _part("scales", ".weight_scale", "F16", 32)),
    ),
    "int4": Storage(
        format="int4",
        parts=(
            _part("codes", ".weight_packed", "U8", 2),
            _part("scales", ".weight_scale", "F16", 32),
            _part("minimums", ".weight_min", "F16", 32),
        ),
    ),
}

_LINEAR_KINDS = ("attention", "dense ffn", "shared expert", "routed expert")
_NAMED_KINDS = (*_LINEAR_KINDS, "embedding", "head", "drafter")  # what our own conversions may quantise
_STORAGE_BY_SCHEME = {  # (routed experts, other linears)
    "mxfp8": ("mxfp8", "mxfp8"),
    "mxfp8-nvfp4": ("nvfp4", "mxfp8"),
    "modelopt-nvfp4": ("modelopt-nvfp4", "modelopt-nvfp4"),
    "modelopt-mxfp4": ("mxfp4", "mxfp4"),
}
_Match = Callable[[str], object]


def storage_of(name: str, checkpoint_name: str, kind: str, quantization: QuantizationConfig) -> str:
    """Which storage a weight has: a key of STORAGE_BY_NAME, or "plain" for one tensor of floats.

    Args:
        name: our name of the weight.
        checkpoint_name: its name in the checkpoint; the ignored list may use either.
        kind: its kind (arch/names.py).
        quantization: the checkpoint's.

    Raises:
        ConfigError: the configuration names a format that no storage has.
    """
    if quantization.scheme == "none" or kind not in _NAMED_KINDS:
        return "plain"
    if quantization.scheme == "minnow":
        return _named_format(name, quantization)
    if kind not in _LINEAR_KINDS or _is_ignored(checkpoint_name, quantization):
        return "plain"
    routed, other = _STORAGE_BY_SCHEME[quantization.scheme]
    return routed if kind == "routed expert" else other


def parts_of(storage: str, name: str, shape: tuple[int, ...]) -> tuple[PartSpec, ...]:
    """The tensors of a quantised weight.

    Args:
        storage: a key of STORAGE_BY_NAME.
        name: of the weight, for the error.
        shape: its logical shape.

    Raises:
        FormatError: the width does not fill whole blocks.
    """
    found = STORAGE_BY_NAME[storage]
    try:
        SPEC_BY_NAME[found.format].check_width(shape[-1])
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from None
    return found.parts


def _named_format(name: str, quantization: QuantizationConfig) -> str:
    for match, storage in _patterns(quantization):
        if match(name):
            return storage
    return "plain"


@functools.lru_cache(maxsize=8)
def _patterns(quantization: QuantizationConfig) -> tuple[tuple[_Match, str], ...]:
    compiled = []
    for pattern, form in quantization.format_by_module:
        storage = "plain" if form in ("bf16", "f16", "f32") else form
        if storage != "plain" and storage not in STORAGE_BY_NAME:
            known = ", ".join((*STORAGE_BY_NAME, "bf16", "f16", "f32"))
            raise ConfigError(f"quantization_config: format {form!r} of {pattern} is unknown; known are {known}")
        expression = re.escape(pattern).replace(r"\*", r"\d+")
        compiled.append((re.compile(expression).fullmatch, storage))
    return tuple(compiled)


def _is_ignored(name: str, quantization: QuantizationConfig) -> bool:
    """Whether the ignored list covers a name: an entry is a run of its dotted words, a glob, or "re:..."."""
    words, matches = _ignored(quantization)
    if any(match(name) for match in matches):
        return True
    parts = name.split(".")
    ends = range(1, len(parts) + 1)
    return any(".".join(parts[start:end]) in words for end in ends for start in range(end))


@functools.lru_cache(maxsize=8)
def _ignored(quantization: QuantizationConfig) -> tuple[frozenset[str], tuple[_Match, ...]]:
    words, matches = set(), []
    for entry in quantization.ignored:
        entry = entry.removesuffix(".weight")
        if entry.startswith("re:"):
            matches.append(re.compile(entry[3:]).match)
        elif "*" in entry:
            glob = re.escape(entry).replace(r"\*", ".*")
            matches.append(re.compile(rf"(?:.*\.)?{glob}(?:\..*)?").fullmatch)
        else:
            words.add(entry)
    return frozenset(words), tuple(matches)
