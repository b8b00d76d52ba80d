"""minnow tune: what is refused before torch loads, and a piece of each stage from the command line"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minnow.cli.main import main
from tests.tiny import write_tiny, write_tiny_tokenizer


def test_mistakes_are_said_before_torch_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys; from minnow.cli.main import main;"
        f"status = main(['tune', 'cache', '--output', '{tmp_path}/out', '--text', '{tmp_path}/nowhere']);"
        "sys.exit(10 * ('torch' in sys.modules) + status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "nowhere does not exist" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cache", "--output", "o"], "--text"),
        (["cache", "--text", "t"], "--output"),
        (["cache", "--output", "o", "--text", ".", "--hours", "0"], "--hours is 0"),
        (["cache", "--output", "o", "--text", ".", "--steps", "0"], "--steps is 0"),
        (["index", "--output", "o", "--text", ".", "--parts", "."], "holds no trained.json"),
        (["cache", "--output", "o", "--text", ".", "--sped", "1"], "unknown flag --sped"),
        (["index_heads"], "index_heads"),
    ],
)
def test_wrong_words_are_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_piece_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "model", family="llama", dtype="float32", layers=1)
    write_tiny_tokenizer(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    words = torch.randint(97, 123, (150, 1500), generator=torch.Generator().manual_seed(0))
    for i, row in enumerate(words.tolist()):
        (tmp_path / "texts" / f"{i}.txt").write_text(bytes(row).decode())
    model, output, texts = str(tmp_path / "model"), str(tmp_path / "out"), str(tmp_path / "texts")
    flags = ["tune", "cache", "--model", model, "--output", output, "--text", texts, "--steps", "3", "--seed", "1"]
    assert main([*flags, "--hours", "1e-9"]) == 0
    shown = capsys.readouterr().out
    assert "holds step 0 of 3" in shown and "the same command goes on from here" in shown
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "holds step 3 of 3" in shown and "goes on" not in shown
    assert main([*flags[:-1], "2"]) == 2
    assert "seed 1, not 2" in capsys.readouterr().err
