"""minnow pull: says where the model is"""

from pathlib import Path

import pytest

from minnow.checkpoint import demo
from minnow.cli.main import main


def test_a_model_that_is_there_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "PARTS", tmp_path / "none")
    directory = demo.directory_of("smollm2-135m")
    directory.mkdir(parents=True)
    (directory / "digests.json").write_text("{}")
    assert main(["pull"]) == 0
    assert capsys.readouterr().out == f"smollm2-135m is there already, in {directory}\n"


def test_a_fetched_model_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "pull", lambda name, say, progress: say(f"getting {name}") or Path("there"))
    assert main(["pull", "smollm2-135m"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("smollm2-135m is ready, in there\n", "getting smollm2-135m\n")


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "nope"]) == 2
    assert "'nope'; minnow pull knows smollm2-135m" in capsys.readouterr().err


def test_a_home_that_cannot_be_made_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINNOW_HOME", str(tmp_path / "file"))
    assert main(["pull", "smollm2-135m"]) == 1
    assert capsys.readouterr().err == f"minnow: {tmp_path / 'file/models'}: Not a directory\n"
