"""GGUF headers: as the gguf package reads them, and never trusted"""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from minnow.checkpoint import gguf as gguf_file
from minnow.core.errors import CheckpointError
from tests.checkpoint import llama_files


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    weights = llama_files.write_llama(directory)
    path = directory / "model.gguf"
    llama_files.write_gguf(path, weights, {"q_proj": Kind.Q4_1, "embed_tokens": Kind.Q8_0, "up_proj": Kind.F16})
    return path


def test_metadata_and_places_are_those_of_the_gguf_package(file: Path) -> None:
    ours, theirs = gguf_file.read(file), gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        seen = ours.tensors[tensor.name]
        assert (seen.start, seen.stop - seen.start) == (tensor.data_offset, tensor.n_bytes)
        assert (seen.kind, list(seen.shape)) == (tensor.tensor_type, tensor.shape.tolist()[::-1])


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    numbers = {"uint8": 200, "int8": -3, "uint16": 60000, "int16": -300, "uint64": 2**63, "int64": -5}
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(f"x.{kind}", value)
    writer.add_float64("x.float64", 0.1)
    writer.add_bool("x.bool", True)
    writer.add_array("x.floats", [0.5, 2.0])
    writer.add_array("x.texts", ["a", "", "\xe9"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert gguf_file.read(path).metadata == {
        "general.architecture": "llama", "x.uint8": 200, "x.int8": -3, "x.uint16": 60000, "x.int16": -300,
        "x.uint64": 2**63, "x.int64": -5, "x.float64": 0.1, "x.bool": True, "x.floats": [0.5, 2.0],
        "x.texts": ["a", "", "\xe9"],
    }  # fmt: skip


def test_a_file_cut_anywhere_is_one_sentence(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    last = max(tensor.stop for tensor in gguf_file.read(file).tensors.values())
    cut = tmp_path / "cut.gguf"
    for num_bytes in [*range(4, 4000, 61), *random.Random(1).sample(range(4000, last), 60), last - 1]:
        cut.write_bytes(whole[:num_bytes])
        with pytest.raises(CheckpointError, match=r"is truncated: .*; download it again"):
            gguf_file.read(cut)
    for num_bytes in range(4):
        cut.write_bytes(whole[:num_bytes])
        with pytest.raises(CheckpointError):
            gguf_file.read(cut)


def test_changed_bytes_never_do_worse_than_an_error(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    header = min(tensor.start for tensor in gguf_file.read(file).tensors.values())
    chance, broken = random.Random(2), tmp_path / "broken.gguf"
    num_refused = 0
    for _ in range(400):
        raw = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4))):
            raw[chance.randrange(header)] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        broken.write_bytes(raw)
        try:
            gguf_file.read(broken)
        except CheckpointError:
            num_refused += 1
    assert num_refused > 50


def test_huge_counts_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x"
    for value in (struct.pack("<IQ", 8, 2**62), struct.pack("<IIQ", 9, 0, 2**62), struct.pack("<IIQ", 9, 8, 2**62)):
        path.write_bytes(head + value + b"\0" * 64)
        with pytest.raises(CheckpointError, match="truncated"):
            gguf_file.read(path)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"safe" + bytes(40), "no GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"x" + struct.pack("<I", 77), "has type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"x" + struct.pack("<I", 9), "x has 9 dims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 1) + b"\xff" + bytes(40), "no UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, start: bytes, words: str) -> None:
    path = tmp_path / "wrong.gguf"
    path.write_bytes(start)
    with pytest.raises(CheckpointError, match=words):
        gguf_file.read(path)


def test_rows_fill_whole_blocks(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", np.zeros((2, 34), np.uint8), raw_dtype=Kind.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(struct.pack("<IQQ", 2, 32, 2), struct.pack("<IQQ", 2, 31, 2)))
    with pytest.raises(CheckpointError, match="x is Q8_0 with rows of 31 values, no multiple of 32"):
        gguf_file.read(path)
