"""shards, index, metadata"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

import torch
from torch import Tensor

from minnow.checkpoint.reader import INDEX_NAME, NAME_BY_DTYPE
from minnow.core.errors import CheckpointError

_ALIGNMENT_BYTES = 8
_MAX_HELD_BYTES = 64 * 1024  # a tensor that would upset the alignment waits for the end of its shard if it is small


@dataclass(slots=True, kw_only=True)
class _Shard:
    """A shard being written: tensor data is on disk behind room for the header, which comes last."""

    path: Path
    file: BinaryIO
    room_bytes: int
    data_bytes: int = 0
    header_bytes: int = 64  # metadata, braces
    entries: dict[str, dict[str, object]] = field(default_factory=dict)
    held: list[tuple[int, str, Tensor]] = field(default_factory=list)


class Writer:
    """Writes a checkpoint as the tensors come; never holds more than one (and small odd ones).

    Files get their names when all are complete: a broken run leaves none. Room for the header is kept at the
    start of each shard and filled with blanks, which the format allows, so data is written once.
    """

    def __init__(
        self, directory: Path, *, max_shard_bytes: int = 5 * 10**9, header_room_bytes: int = 1024 * 1024
    ) -> None:
        """Prepare to write.

        Args:
            directory: made if needed; must not hold safetensors files.
            max_shard_bytes: tensor data a file; one larger tensor has a file of its own.
            header_room_bytes: kept for a file's header; a file ends when it is full.

        Raises:
            CheckpointError: the directory holds a checkpoint already.
        """
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.glob("*.safetensors")) or (directory / INDEX_NAME).exists():
            raise CheckpointError(f"{directory} holds a checkpoint already; choose an empty directory")
        self._directory = directory
        self._max_shard_bytes = max_shard_bytes
        self._room_bytes = (header_room_bytes + 7) // 8 * 8
        self._shard: _Shard | None = None
        self._done: list[_Shard] = []
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.finish()
        except BaseException:
            self.discard()
            raise

    def add(self, name: str, tensor: Tensor) -> None:
        """Write one tensor.

        Raises:
            CheckpointError: the name was written before, or safetensors has no word for the dtype.
        """
        if name in self._names:
            raise CheckpointError(f"{name} was written already; a checkpoint holds a name once")
        if tensor.dtype not in NAME_BY_DTYPE:
            raise CheckpointError(f"{name} has dtype {tensor.dtype}, which safetensors cannot hold")
        self._names.add(name)
        num_bytes = tensor.numel() * tensor.element_size()
        is_even = num_bytes % _ALIGNMENT_BYTES == 0
        is_held = not is_even and num_bytes <= _MAX_HELD_BYTES
        if not (is_even or is_held):  # whatever followed it would be misaligned: a file of its own
            self._close_shard()
        described = len(json.dumps(name)) + 96 + 16 * tensor.ndim  # more than its line in the header takes
        shard = self._shard_for(num_bytes, described)
        shard.header_bytes += described
        shard.data_bytes += num_bytes
        if is_held:
            shard.held.append((tensor.element_size(), name, tensor.detach().to("cpu", copy=True)))
            return
        _write(shard, name, tensor)
        if not is_even:
            self._close_shard()

    def finish(self) -> None:
        """Complete the files and give them their names; the index comes last."""
        self._close_shard()
        num_shards = len(self._done)
        names = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
        if num_shards == 1:
            names = ["model.safetensors"]
        for shard, name in zip(self._done, names, strict=True):
            shard.path.rename(self._directory / name)
        if num_shards > 1:
            weight_map = {t: name for shard, name in zip(self._done, names, strict=True) for t in shard.entries}
            total_bytes = sum(shard.data_bytes for shard in self._done)
            index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            partial = self._directory / f".{INDEX_NAME}.partial"
            partial.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
            partial.rename(self._directory / INDEX_NAME)

    def discard(self) -> None:
        """Delete what was written."""
        for shard in (*self._done, *([self._shard] if self._shard else [])):
            shard.file.close()
            shard.path.unlink(missing_ok=True)
        self._shard = None
        self._done = []

    def _shard_for(self, num_bytes: int, described_bytes: int) -> _Shard:
        shard = self._shard
        if shard is None:
            return self._next_shard()
        is_full = shard.entries or shard.held
        too_many = shard.header_bytes + described_bytes > shard.room_bytes
        if is_full and (too_many or shard.data_bytes + num_bytes > self._max_shard_bytes):
            return self._next_shard()
        return shard

    def _next_shard(self) -> _Shard:
        self._close_shard()
        path = self._directory / f".model-{len(self._done) + 1:05}.safetensors.partial"
        file = path.open("wb")
        file.seek(8 + self._room_bytes)
        self._shard = _Shard(path=path, file=file, room_bytes=self._room_bytes)
        return self._shard

    def _close_shard(self) -> None:
        shard, self._shard = self._shard, None
        if shard is None:
            return
        for _, name, tensor in sorted(shard.held, key=lambda item: -item[0]):
            _write(shard, name, tensor)
        shard.held.clear()
        header = json.dumps({"__metadata__": {"format": "pt"}, **shard.entries}, separators=(",", ":")).encode()
        assert len(header) <= shard.room_bytes, "the room for a header was reckoned too small"
        shard.file.seek(0)
        shard.file.write(shard.room_bytes.to_bytes(8, "little") + header.ljust(shard.room_bytes))
        shard.file.close()
        self._done.append(shard)


def _write(shard: _Shard, name: str, tensor: Tensor) -> None:
    start = shard.file.tell() - 8 - shard.room_bytes
    raw = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    shard.file.write(raw.numpy().data)
    shard.entries[name] = {
        "dtype": NAME_BY_DTYPE[tensor.dtype],
        "shape": list(tensor.shape),
        "data_offsets": [start, start + raw.numel()],
    }
