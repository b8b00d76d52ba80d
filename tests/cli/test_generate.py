"""prompts on the command line, and a recorded run replayed"""

import io
import json
import sys
from pathlib import Path

import pytest

from minnow.cli.main import main
from tests.tiny import write_tiny, write_tiny_tokenizer

SMALL = ("--device", "cpu", "--kv-cache-memory-bytes", "4MiB", "--max-model-len", "128", "--num-threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    write_tiny(directory, vocab_size=261)
    write_tiny_tokenizer(directory)
    return str(directory)


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


def test_equal_commands_print_equal_text(capsys: pytest.CaptureFixture[str], model: str) -> None:
    words = ("generate", model, *SMALL, "--prompt", "Once upon", "--max-tokens", "8", "--ignore-eos")
    first = _run(capsys, *words)
    assert first[0] == 0
    assert len(first[1]) > 1
    assert _run(capsys, *words)[1] == first[1]


def test_seed_decides_the_draws(capsys: pytest.CaptureFixture[str], model: str) -> None:
    words = ("generate", model, *SMALL, "--prompt", "x", "--max-tokens", "24", "--ignore-eos", "--temperature", "2")
    one, same, other = (_run(capsys, *words, "--seed", seed)[1] for seed in ("1", "1", "2"))
    assert one == same
    assert one != other


def test_several_prompts_in_their_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("from a file")
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    words = ("--prompt", "a", "--prompt", "b", "--prompt-file", str(tmp_path / "prompt.txt"), "--prompt-file", "-")
    status, out, _ = _run(capsys, "generate", model, *SMALL, *words, "--max-tokens", "3")
    assert status == 0
    headings = [line for line in out.splitlines() if line.startswith("--- ")]
    assert headings == [f"--- prompt {i} of 4" for i in (1, 2, 3, 4)]


def test_chat_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n/exit\nnever\n"))
    words = ("--temperature", "0", "--max-tokens", "4", "--ignore-eos")
    status, out, _ = _run(capsys, "chat", model, *SMALL, *words)
    assert status == 0
    asked = _run(capsys, "generate", model, *SMALL, *words, "--chat", "--prompt", "hello")
    assert out == asked[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prompt", "x", "--max-tokens", "-1"), "max_tokens is -1; it must be 0 or more"),
        (("--prompt", "x", "--temperature", "nan"), "temperature is nan; it must be 0 (greedy) to 100"),
        (("--prompt", "x", "--stop", ""), "stop holds an empty string; leave it out"),
        (("--prompt", "x" * 200), "128"),
        (("--prompt", ""), "the prompt is empty; send at least one token"),
        (("--prompt-file", "no-such-file"), "--prompt-file: no-such-file cannot be read: No such file or directory"),
        (("--prompt", "x", "--block-size", "64"), "--block-size is 64; the sparse attention of this model needs 16"),
    ],
)
def test_wrong_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    words: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.setenv("MINNOW_LOG", "error")
    status, out, err = _run(capsys, "generate", model, *SMALL, *words)
    assert (status, out) == (2, "")
    assert err.startswith("minnow: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_record_replays_and_a_changed_one_does_not(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    record = tmp_path / "steps.jsonl"
    words = ("--prompt", "Once", "--prompt", "upon", "--max-tokens", "6", "--ignore-eos", "--temperature", "1")
    assert _run(capsys, "generate", model, *SMALL, *words, "--record", str(record))[0] == 0
    replay = ("replay", str(record), "--model", model, *SMALL[:2], *SMALL[4:])
    status, out, _ = _run(capsys, *replay)
    num_steps = len(record.read_text().splitlines()) - 1
    assert (status, out) == (0, f"equal: {num_steps} steps\n")

    lines = record.read_text().splitlines()
    step = json.loads(lines[3])
    ids = step["result"]["rows"][0]["token_ids"]
    step["result"]["rows"][0]["token_ids"] = [(ids[0] + 1) % 261]
    record.write_text("\n".join([*lines[:3], json.dumps(step), *lines[4:]]) + "\n")
    status, out, _ = _run(capsys, *replay)
    assert status == 1
    assert out.startswith(f"not equal: step {step['plan']['step']}, row ")


def test_replay_without_record_or_model(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    assert "needs the model of the record" in _run(capsys, "replay", "steps.jsonl")[2]
    assert "cannot be read" in _run(capsys, "replay", str(tmp_path / "none"), "--model", model)[2]
    (tmp_path / "empty").write_text('{"format":"minnow-steps-1"}\n')
    assert "holds no step" in _run(capsys, "replay", str(tmp_path / "empty"), "--model", model)[2]
