"""minnow convert: the result on stdout, errors in one line"""

from pathlib import Path

import pytest

from minnow.cli import convert as command
from minnow.cli.main import main
from tests import tiny


def test_the_result_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_tiny(tmp_path / "a", layers=2)
    words = ["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "mxfp8"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith(f"in {tmp_path / 'b'}\n") and shown.out.count("\n") == 1
    assert "tensors" in shown.out and shown.err == ""
    assert main(words) == 2
    assert "holds a model already" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert main(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "b")]) == 1
    assert capsys.readouterr().err.startswith(f"minnow: {tmp_path / 'a.gguf'} is truncated")
    assert main(["convert", str(tmp_path / "gone"), str(tmp_path / "b")]) == 2


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_tiny(tmp_path / "a", layers=2)
    (tmp_path / "file").write_text("")
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "file/b"), "--format", "mxfp8"]) == 1
    assert capsys.readouterr().err == f"minnow: {tmp_path / 'file'}: File exists\n"


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    line = command.Line()
    for done in (0, 1, 50, 100):
        line.show(done, 100, "x" if done < 100 else "")
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert shown[1] == f"[{'.' * 30}]   0 % x" and shown[-1] == f"[{'#' * 30}] 100 % \n"
