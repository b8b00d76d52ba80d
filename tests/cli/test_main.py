"""the command line as a whole"""

import subprocess
import sys

import pytest

import minnow
from minnow.cli import main as command_line
from minnow.core import folder
from minnow.core.errors import CheckpointError, MinnowError, RequestError


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = command_line.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_overview_names_every_command(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    status, out, err = _run(capsys, *words)
    assert (status, err) == (0, "")
    for name in command_line.commands():
        assert f"  {name} " in out


def test_overview_says_what_each_command_says_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = _run(capsys)
    for name in command_line.commands():
        assert folder.load("minnow.cli", name).HELP in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys, "--version") == (0, f"minnow {minnow.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["exploin"], "minnow: no command is called 'exploin'; did you mean explain?"),
        (["zzz"], "minnow: no command is called 'zzz'; minnow --help lists them"),
        (["explain", "--blok-size", "3"], "minnow: unknown flag --blok-size; did you mean --block-size?"),
        (["generate", "m"], "minnow: minnow generate needs --prompt TEXT or --prompt-file FILE"),
        (["generate", "--temperature", "hot"], "minnow: --temperature: invalid float value: 'hot'"),
        (["replay"], "minnow: the following arguments are required: FILE"),
    ],
)
def test_a_wrong_line_is_one_sentence(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert _run(capsys, *words) == (2, "", line + "\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [(RequestError("too long"), 2), (CheckpointError("torn"), 1), (MinnowError("step"), 1), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(folder.load("minnow.cli", "kernels"), "run", fail)
    found, out, err = _run(capsys, "kernels")
    assert (found, out) == (status, "")
    assert err == ("" if status == 130 else f"minnow: {error}\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "/x/y"), "minnow: /x/y: Permission denied"),
        (OSError(28, "No space left on device"), "minnow: No space left on device"),
        (OSError("no device"), "minnow: no device"),
    ],
)
def test_what_the_system_refuses_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: OSError, line: str
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(folder.load("minnow.cli", "kernels"), "run", fail)
    assert _run(capsys, "kernels") == (1, "", line + "\n")


def test_every_command_answers_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in command_line.commands():
        with pytest.raises(SystemExit) as stop:
            command_line.main([name, "--help"])
        assert stop.value.code == 0
        assert f"usage: minnow {name}" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--help", "explain --help", "generate --help", "chat --help", "kernels --help"])
def test_help_loads_no_torch(words: str) -> None:
    program = (
        "import sys; from minnow.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules, 'torch was loaded'"
    )
    result = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
