"""the header of a GGUF file: metadata, and where its tensors lie"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from minnow.core.errors import CheckpointError

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMPY_BY_TYPE = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor: bytes [start, stop) of the file.

    Attributes:
        kind: GGUF's number format, such as Q4_1.
        shape: logical, slowest dim first (the file lists them the other way round).
    """

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A GGUF file's header."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read(path: Path) -> GgufFile:
    """Read the header of a GGUF file and check that all its tensors are there.

    Every count and length is checked against the file before it is believed.

    Raises:
        CheckpointError: no GGUF file, or one that is truncated or damaged.

    Source: the GGUF file format, versions 2 and 3, little-endian.
    """
    with path.open("rb") as opened:
        scan = _Scan(path, opened)
        if scan.take(4) != b"GGUF":
            raise CheckpointError(f"{path} is no GGUF file: it does not begin with 'GGUF'")
        version = scan.number("<I")
        if version not in _VERSIONS:
            raise CheckpointError(f"{path} is GGUF version {version}; versions 2 and 3, little-endian, are known")
        num_tensors, num_pairs = scan.number("<Q"), scan.number("<Q")
        metadata = {}
        for _ in range(num_pairs):
            key = scan.string()
            metadata[key] = scan.value(scan.number("<I"))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise scan.damaged(f"general.alignment is {alignment!r}")
        found = [scan.tensor() for _ in range(num_tensors)]
        base = -(-scan.position // alignment) * alignment
    tensors = {name: _place(scan, base, name, kind, shape, offset) for name, kind, shape, offset in found}
    if len(tensors) != num_tensors:
        raise scan.damaged("a tensor name is there twice")
    return GgufFile(path=path, metadata=metadata, tensors=tensors)


def _place(
    scan: _Scan, base: int, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...], offset: int
) -> GgufTensor:
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_values:
        raise scan.damaged(f"{name} is {kind.name} with rows of {shape[-1]} values, no multiple of {block_values}")
    start = base + offset
    stop = start + math.prod(shape) // block_values * block_bytes
    if stop > scan.file_bytes:
        raise CheckpointError(
            f"{scan.path} is truncated: {name} ends at byte {stop}, the file has {scan.file_bytes}; download it again"
        )
    return GgufTensor(name=name, kind=kind, shape=shape, start=start, stop=stop)


class _Scan:
    """Reads forward through a header."""

    def __init__(self, path: Path, opened: BinaryIO) -> None:
        self.path = path
        self.file_bytes = path.stat().st_size
        self.position = 0
        self._opened = opened

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {what}; download it again")

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > self.file_bytes - self.position:
            raise CheckpointError(
                f"{self.path} is truncated: {num_bytes} bytes are wanted at byte {self.position} of its header, "
                f"the file has {self.file_bytes}; download it again"
            )
        self.position += num_bytes
        return self._opened.read(num_bytes)

    def number(self, form: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(value)

    def string(self) -> str:
        raw = self.take(self.number("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.damaged(f"the text before byte {self.position} is no UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, count = self.number("<I"), self.number("<Q")
            return [self.string() for _ in range(count)] if kind == _STRING else self._numbers(kind, count)
        return self._numbers(kind, 1)[0]

    def tensor(self) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
        name, num_dims = self.string(), self.number("<I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self.damaged(f"{name} has {num_dims} dims")
        shape = tuple(reversed([self.number("<Q") for _ in range(num_dims)]))
        kind = self.number("<I")
        if kind not in GGMLQuantizationType.__members__.values() or 0 in shape:
            raise self.damaged(f"{name} has type {kind} and shape {list(shape)}")
        return name, GGMLQuantizationType(kind), shape, self.number("<Q")

    def _numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _NUMPY_BY_TYPE:
            raise self.damaged(f"the value at byte {self.position} has type {kind}")
        dtype = np.dtype(_NUMPY_BY_TYPE[kind])
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values
