"""safetensors index; slices read lazily, never a whole file"""

import json
import math
import mmap
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from minnow.arch.storage import ITEM_BYTES
from minnow.core.errors import CheckpointError
from minnow.core.units import show_bytes

INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000

DTYPE_BY_NAME: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
NAME_BY_DTYPE = {dtype: name for name, dtype in DTYPE_BY_NAME.items()}

# The private mapping is writable only because torch wants a writable buffer; without this flag Linux would
# count it against the machine's memory. Python names the flag from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where one tensor lies: bytes [start, stop) of a file.

    Attributes:
        dtype: safetensors' word, such as "BF16".
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int


class Reader:
    """The tensors of a checkpoint directory. Opening reads headers only; tensors are mapped when asked for."""

    def __init__(self, directory: Path, rename: Callable[[str], str] = lambda name: name) -> None:
        """Open a directory.

        Args:
            directory: holds an index and its shards, or `*.safetensors` without an index.
            rename: a tensor's name in the files -> the one that it is asked for by.

        Raises:
            CheckpointError: no weights, a missing or broken shard, an index that the shards contradict.
        """
        self.directory = directory
        found = _read_entries(directory)
        self._entries = {rename(name): entry for name, entry in found.items()}
        if len(self._entries) < len(found):
            raise CheckpointError(f"{directory} holds a tensor under two spellings of its name; keep one of them")
        self._maps: dict[Path, mmap.mmap] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the mappings; tensors that still live keep theirs."""
        self._maps.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """All tensor names, in the order of files and headers."""
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """Where a tensor lies, its dtype and shape.

        Raises:
            CheckpointError: there is no such tensor.
        """
        found = self._entries.get(name)
        if found is None:
            raise CheckpointError(f"{self.directory} holds no tensor {name}")
        return found

    def read(self, name: str) -> Tensor:
        """A tensor in its own dtype and shape, on the CPU, sharing the file's memory. Never write to it.

        Raises:
            CheckpointError: there is no such tensor.
        """
        found = self.entry(name)
        return self._view(found, found.start, found.shape)

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor's first dim, as `read` gives them; other rows are not touched.

        Raises:
            CheckpointError: there is no such tensor, or it has no such rows.
        """
        found = self.entry(name)
        if not found.shape or not 0 <= start <= stop <= found.shape[0]:
            raise CheckpointError(f"{name} has shape {list(found.shape)}; rows {start} to {stop} are not in it")
        row_bytes = (found.stop - found.start) // found.shape[0] if found.shape[0] else 0
        return self._view(found, found.start + start * row_bytes, (stop - start, *found.shape[1:]))

    def _view(self, found: Entry, start: int, shape: tuple[int, ...]) -> Tensor:
        dtype, count = DTYPE_BY_NAME[found.dtype], math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        mapped = self._map(found.file)
        item_bytes = ITEM_BYTES[found.dtype]
        if start % item_bytes:  # kernels want natural alignment, which other writers do not promise
            raw = torch.frombuffer(mapped, dtype=torch.uint8, count=count * item_bytes, offset=start)
            return raw.clone().view(dtype).view(shape)
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=start).view(shape)

    def _map(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with file.open("rb") as opened:
                self._maps[file] = mmap.mmap(
                    opened.fileno(),
                    0,
                    flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                    prot=mmap.PROT_READ | mmap.PROT_WRITE,
                )
        return self._maps[file]


def _read_entries(directory: Path) -> dict[str, Entry]:
    index = directory / INDEX_NAME
    if index.is_file():
        return _read_indexed(directory, index)
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{directory} holds no *.safetensors file; name a directory that holds a checkpoint")
    entries: dict[str, Entry] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if name in entries:
                raise CheckpointError(f"{name} is in {entries[name].file.name} and in {file.name}; keep one of them")
            entries[name] = entry
    return entries


def _read_indexed(directory: Path, index: Path) -> dict[str, Entry]:
    try:
        file_by_name = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(file_by_name.values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{index} is no safetensors index: no weight_map of tensor names to files") from None
    entries: dict[str, Entry] = {}
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index} names the shard {name!r}; a plain file name is needed")
        file = directory / name
        if not file.is_file():
            raise CheckpointError(f"{index.name} names {name}, which is not in {directory}; download it again")
        # a tensor that the index places elsewhere is a stale copy; one it does not know is shown as extra
        entries |= {k: v for k, v in read_header(file).items() if file_by_name.get(k, name) == name}
    lost = [name for name in file_by_name if name not in entries]
    if lost:
        first = lost[0]
        raise CheckpointError(
            f"{index.name} places {first} in {file_by_name[first]}, which does not hold it"
            + (f" ({len(lost) - 1} more like it)" if len(lost) > 1 else "")
        )
    return entries


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of one safetensors file, without touching their data.

    Raises:
        CheckpointError: names the file and what is wrong with it.

    Source: the safetensors file format (u64 header length, JSON header, tensor data without gaps).
    """
    file_bytes = file.stat().st_size
    with file.open("rb") as opened:
        header_bytes = int.from_bytes(opened.read(8), "little")
        if file_bytes < 8 or not 2 <= header_bytes <= min(MAX_HEADER_BYTES, file_bytes - 8):
            raise CheckpointError(
                f"{file}: header of {header_bytes} bytes in a file of {file_bytes} bytes "
                f"(at most {MAX_HEADER_BYTES}); it is truncated or no safetensors file"
            )
        raw = opened.read(header_bytes)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        found = [_entry(file, 8 + header_bytes, name, value) for name, value in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file}: broken header: {error}") from None
    end = 8 + header_bytes
    for entry in sorted(found, key=lambda e: (e.start, e.stop)):
        if entry.start != end:
            raise CheckpointError(f"{file}: {entry.name} begins at byte {entry.start}, the one before ends at {end}")
        end = entry.stop
    if end != file_bytes:
        raise CheckpointError(
            f"{file}: holds {show_bytes(file_bytes)} ({file_bytes} bytes), its header describes {end} bytes; "
            "it is truncated or damaged, download it again"
        )
    return {entry.name: entry for entry in found}


def _entry(file: Path, base: int, name: str, value: dict[str, Any]) -> Entry:
    dtype, shape, (start, stop) = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{name} has dtype {dtype!r}, which is unknown")
    if not all(type(n) is int and n >= 0 for n in (*shape, start, stop)):
        raise ValueError(f"{name} has shape {shape} and offsets {start} to {stop}")
    needed = math.prod(shape) * ITEM_BYTES[dtype]
    if stop - start != needed:
        raise ValueError(f"{name} is {dtype} {shape}, {needed} bytes, but has {stop - start} bytes")
    return Entry(name=name, dtype=dtype, shape=tuple(shape), file=file, start=base + start, stop=base + stop)
