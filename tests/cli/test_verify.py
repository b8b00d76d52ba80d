"""minnow verify: the report, its exit status, and what a published model's checkpoint must hold"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minnow.cli.main import main
from tests import tiny


@pytest.mark.parametrize("name", ["m3.1-flash", "MiniMaxAI/MiniMax-M3.1-Flash"])
def test_expect(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--expect", name]) == 0
    text = capsys.readouterr().out
    assert "89,632 tensors" in text
    assert "250.1 GB" in text
    assert "routed expert nvfp4 87,552 413.1B" in " ".join(text.split())


def test_expect_of_an_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--expect", "m4"]) == 2
    assert "known are m3, m3-mxfp8, m3.1-flash" in capsys.readouterr().err


def test_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 2
    assert "needs a directory" in capsys.readouterr().err


def test_sound_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_tiny(tmp_path, format="m3.1")
    assert main(["verify", str(tmp_path), "--scales"]) == 0
    text = capsys.readouterr().out
    assert "387 of 387 tensors" in text
    assert "problems      none" in text
    assert len(text.splitlines()) < 25


def test_broken_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_tiny(tmp_path, family="llama")
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["stray"] = torch.ones(2)
    save_file(tensors, file)
    assert main(["verify", str(tmp_path)]) == 1
    assert "  1 extra: stray\n" in capsys.readouterr().out


def test_truncated_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_tiny(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert main(["verify", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"minnow: {file}: holds ")


def test_no_such_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
