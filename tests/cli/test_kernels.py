"""which backend computes what"""

import pytest

from minnow.cli.main import main
from minnow.kernels import registry


def test_every_operation_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("device        cpu (")
    first_words = [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]
    assert first_words == ["device", "operation", *registry.operations()]


def test_a_choice_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--device", "cpu", "--kernel-backends", "*=reference"]) == 0
    norm = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("norm "))
    assert norm.split()[1] == "reference"
    assert "cpu: reference was asked for" in norm


def test_a_choice_that_cannot_be_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "--device", "cpu", "--kernel-backends", "norm=abacus"]) == 2
    assert "norm has no backend 'abacus'" in capsys.readouterr().err
