"""the reader against the safetensors package, and against broken files"""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from minnow.checkpoint.reader import INDEX_NAME, Reader, read_header
from minnow.core.errors import CheckpointError

TENSORS = {
    "a": torch.arange(24, dtype=torch.float32).view(4, 3, 2),
    "b": torch.arange(5, dtype=torch.bfloat16),
    "c": torch.tensor([[1.0, -448.0]]).to(torch.float8_e4m3fn),
    "d": torch.arange(6, dtype=torch.uint8).view(2, 3),
    "empty": torch.empty((0, 4), dtype=torch.float16),
    "one": torch.tensor(7.0),
}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    raw = [t.reshape(-1).view(torch.uint8) for t in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(raw[0], raw[1])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def split(directory: Path) -> None:
    """Two shards and an index."""
    (directory / "model.safetensors").unlink(missing_ok=True)
    shards = {"one.safetensors": ["a", "b"], "two.safetensors": ["c", "d", "empty", "one"]}
    for file, names in shards.items():
        save_file({n: TENSORS[n] for n in names}, directory / file)
    weight_map = {n: file for file, names in shards.items() for n in names}
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def with_header(path: Path, header: object, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def test_reads_what_safetensors_wrote(directory: Path) -> None:
    with Reader(directory) as reader:
        assert set(reader.names) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert same(reader.read(name), tensor), name
        entry = reader.entry("a")
        assert (entry.dtype, entry.shape, entry.stop - entry.start) == ("F32", (4, 3, 2), 96)
        assert "a" in reader and "z" not in reader


def test_reads_shards_by_index_and_without(directory: Path) -> None:
    split(directory)
    for _ in range(2):
        reader = Reader(directory)
        assert all(same(reader.read(name), tensor) for name, tensor in TENSORS.items())
        (directory / INDEX_NAME).unlink(missing_ok=True)


def test_rows(directory: Path) -> None:
    reader = Reader(directory)
    assert torch.equal(reader.read_rows("a", 1, 3), TENSORS["a"][1:3])
    assert reader.read_rows("a", 2, 2).shape == (0, 3, 2)
    for name, start, stop in (("a", 0, 5), ("a", 3, 2), ("one", 0, 1)):
        with pytest.raises(CheckpointError, match=f"^{name} has shape"):
            reader.read_rows(name, start, stop)


def test_shares_the_file_and_never_changes_it(directory: Path) -> None:
    before = (directory / "model.safetensors").read_bytes()
    reader = Reader(directory)
    first, second = reader.read("a"), reader.read("a")
    assert first.data_ptr() == second.data_ptr()
    reader.close()
    first.zero_()
    assert (directory / "model.safetensors").read_bytes() == before


def test_misaligned_tensors_are_read_right(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.0])
    header = {
        "x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "y": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    with_header(tmp_path / "m.safetensors", header, b"\x07" + values.numpy().tobytes())
    found = Reader(tmp_path).read("y")
    assert torch.equal(found, values)
    assert found.data_ptr() % 4 == 0  # kernels rely on it


def test_unknown_tensor(directory: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no tensor z"):
        Reader(directory).read("z")


@pytest.mark.parametrize("kept", [0, 5, 8, 40, -1, -3])
def test_truncated_files_are_named(directory: Path, kept: int) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*truncated"):
        Reader(directory)


def test_surplus_bytes_are_named(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: holds"):
        Reader(directory)


def _one(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{not json", "broken header"),
        ([1, 2], "broken header"),
        ({"x": {"dtype": "U8"}}, "broken header"),
        (_one(dtype="F4"), "dtype 'F4', which is unknown"),
        (_one(shape=(-4,)), "has shape"),
        (_one(shape=(5,)), "5 bytes, but has 4"),
        (_one(offsets=(0, 2**40), shape=(2**40,)), "truncated"),
        ({**_one(), "y": _one()["x"]}, "begins at byte"),
    ],
)
def test_broken_headers_are_named(tmp_path: Path, header: object, words: str) -> None:
    file = with_header(tmp_path / "m.safetensors", header, b"abcd")
    with pytest.raises(CheckpointError, match=rf"m\.safetensors: .*{words}"):
        read_header(file)


def test_header_longer_than_allowed(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(CheckpointError, match=f"header of {2**62} bytes"):
        Reader(tmp_path)


def test_index_that_the_shards_contradict(directory: Path) -> None:
    split(directory)
    path = directory / INDEX_NAME
    index = json.loads(path.read_text())
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], "z": "one.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"places z in one\.safetensors"):
        Reader(directory)
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], "z": "three.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"names three\.safetensors, which is not in"):
        Reader(directory)
    path.write_text(json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    with pytest.raises(CheckpointError, match="plain file name"):
        Reader(directory)
    for broken in ("[]", "{}", "{", '{"weight_map": [1]}'):
        path.write_text(broken)
        with pytest.raises(CheckpointError, match="no safetensors index"):
            Reader(directory)


def test_no_weights_and_twice_the_same(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \*\.safetensors"):
        Reader(tmp_path)
    for name in ("a", "b"):
        save_file({"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match=r"x is in a\.safetensors and in b\.safetensors"):
        Reader(tmp_path)
