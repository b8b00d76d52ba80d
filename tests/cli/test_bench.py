"""minnow bench: finds what is to be measured"""

import pytest

from minnow.cli.main import main
from minnow.core import folder


@pytest.mark.parametrize("kind", ["serve", "step", "kernel", "compare"])
def test_every_kind_shows_its_arguments(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", kind, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: minnow bench {kind} ")
    assert folder.load("minnow.bench", kind).HELP in " ".join(out.split())


def test_a_wrong_line_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    assert "'speed'" in capsys.readouterr().err
    assert main(["bench"]) == 2
    assert "required: KIND" in capsys.readouterr().err
    assert main(["bench", "serve", "--max-concurency", "3"]) == 2
    assert capsys.readouterr().err == "minnow: unknown flag --max-concurency; did you mean --max-concurrency?\n"


def test_what_is_found_is_printed_and_the_status_comes_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(args: object, say: object) -> int:
        say("42 tokens/s")  # type: ignore[operator]
        return 1

    monkeypatch.setattr(folder.load("minnow.bench", "step"), "run", measure)
    assert main(["bench", "step", "tiny", "--batch", "2"]) == 1
    assert capsys.readouterr().out == "42 tokens/s\n"
