"""the writer against the safetensors package"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from minnow.checkpoint.reader import INDEX_NAME, Reader
from minnow.checkpoint.writer import Writer
from minnow.core.errors import CheckpointError


def various() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {f"w{i}": torch.randn(16, 8, generator=generator).to(torch.bfloat16) for i in range(6)}
    tensors |= {f"s{i}": torch.randn(1, generator=generator) for i in range(3)}  # 4 bytes: held back
    tensors["bytes"] = torch.arange(3, dtype=torch.uint8)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["turned"] = torch.randn(4, 6, generator=generator).t()
    tensors["e4m3"] = torch.ones(2, 8).to(torch.float8_e4m3fn)
    return tensors


def test_one_file_that_safetensors_reads(tmp_path: Path) -> None:
    tensors = various()
    with Writer(tmp_path) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].float(), tensor.float()), name
    with safe_open(tmp_path / "model.safetensors", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_shards_and_index(tmp_path: Path) -> None:
    tensors = various()
    with Writer(tmp_path, max_shard_bytes=600) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    files = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{i + 1:05}-of-{len(files):05}.safetensors" for i in range(len(files))]
    assert len(files) > 2
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in tensors.values())
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(tmp_path / file)[name].float(), tensors[name].float())


def test_data_is_aligned(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        for name, tensor in various().items():
            writer.add(name, tensor)
        writer.add("large and odd", torch.zeros(70_001, dtype=torch.uint8))
        writer.add("after", torch.zeros(2))
    reader = Reader(tmp_path)
    for entry in map(reader.entry, reader.names):
        num_bytes = entry.stop - entry.start
        needed = 8 if num_bytes % 8 == 0 else {"F32": 4, "U8": 1}[entry.dtype]
        assert entry.start % needed == 0, entry


def test_a_full_header_ends_the_file(tmp_path: Path) -> None:
    with Writer(tmp_path, header_room_bytes=1024) as writer:
        for i in range(30):
            writer.add(f"a.rather.long.name.of.a.tensor.{i}", torch.zeros(2))
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert len(Reader(tmp_path).names) == 30


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Writer(tmp_path, max_shard_bytes=64) as writer:
        for i in range(4):
            writer.add(f"x{i}", torch.zeros(32))
        assert not list(tmp_path.glob("*.safetensors"))
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    with Writer(tmp_path) as writer:
        writer.add("x", torch.zeros(2))
        with pytest.raises(CheckpointError, match="x was written already"):
            writer.add("x", torch.zeros(2))
        with pytest.raises(CheckpointError, match=r"y has dtype torch\.complex64"):
            writer.add("y", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(CheckpointError, match="holds a checkpoint already"):
        Writer(tmp_path)
