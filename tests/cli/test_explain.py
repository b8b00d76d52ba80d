"""what a user is told about settings and memory"""

import re
from pathlib import Path

import pytest

from minnow.cli.main import main
from minnow.config import flags
from tests.engine import drafting
from tests.tiny import write_tiny, write_tiny_drafter


def _explain(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str], str]:
    """Status, the lines by their first word, and all of it."""
    status = main(["explain", "--device", "cpu", *words])
    out = capsys.readouterr().out
    lines = re.findall(r"^  (\S+(?: \S+)*?) {2,}(.*)$", out, re.M)
    return status, {name: " ".join(rest.split()) for name, rest in lines}, out


def test_every_setting_has_value_unit_and_origin(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, out = _explain(capsys, "--max-num-seqs", "8", "--api-key", "secret")
    assert status == 0
    assert set(flags.settings()) <= set(lines)
    assert lines["max_num_seqs"] == "8 sequences flag --max-num-seqs"
    assert lines["watermark"] == "0.0 default"
    assert lines["api_key"] == "(set) flag --api-key"
    assert "secret" not in out


def test_published_model_needs_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines, _ = _explain(capsys, "MiniMaxAI/MiniMax-M3.1-Flash", "--num-gpu-blocks-override", "101")
    assert lines["kv_cache_dtype"] == "nvfp4 default (auto), settled by the model"
    assert lines["block_size"] == "128 tokens default (0), settled by the model"
    assert lines["weights"] == "233 GiB 89,632 tensors"
    assert lines["cache of one token"] == "38,880 bytes"
    assert lines["block row"].startswith("4,976,640 bytes 60 pages of kv in nvfp4, 60 pages of index in nvfp4")
    assert lines["cache"].endswith("101 blocks, one of them the null block")
    assert lines["tokens in the cache"] == "12,800"


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, _ = _explain(capsys, "MiniMaxAI/MiniMax-M3.1-Flash", "--kv-cache-memory-bytes", "100TiB")
    assert status == 0
    assert "100 TiB" in lines["does not fit here"]


def test_memory_of_a_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_tiny(tmp_path)
    _, lines, out = _explain(capsys, str(tmp_path), "--kv-cache-memory-bytes", "8MiB", "--max-model-len", "1000")
    row_bytes = int(lines["block row"].split()[0].replace(",", ""))
    num_blocks = 8 * 2**20 // row_bytes
    assert lines["cache"].split()[2] == str(num_blocks)
    assert lines["tokens in the cache"] == f"{(num_blocks - 1) * 16:,}"
    assert lines["concurrency"] == f"{(num_blocks - 1) * 16 // 1000} sequences of 1,000 tokens"
    assert "norm=" in out.splitlines()[-1]


def test_a_directory_goes_before_a_published_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path / "m3")
    monkeypatch.chdir(tmp_path)
    _, lines, _ = _explain(capsys, "m3", "--kv-cache-memory-bytes", "8MiB", "--max-model-len", "1000")
    assert "GiB" not in lines["weights"]  # the published model's are 796 GiB


@pytest.mark.parametrize("block_size", ["16", "64", "256"])
def test_a20_problems_come_before_any_weights(capsys: pytest.CaptureFixture[str], block_size: str) -> None:
    status, _, out = _explain(capsys, "MiniMaxAI/MiniMax-M3.1-Flash", "--block-size", block_size, "-tp", "8")
    assert status == 2
    assert f"problem: --block-size is {block_size}; the sparse attention of this model needs 128" in out
    assert "problem: --tensor-parallel-size is 8" in out


def test_unknown_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "no-such-model"]) == 2
    assert capsys.readouterr().err.startswith("minnow: the model directory no-such-model does not exist")


def test_drafts_are_shown_as_they_are_settled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_tiny_drafter(tmp_path, write_tiny(tmp_path, family="llama"))
    drafting.write_served(tmp_path, num_speculative_tokens=3, draft_sample_method="probabilistic")
    _, lines, _ = _explain(capsys, str(tmp_path), "--kv-cache-memory-bytes", "64MiB")
    at = "speculative_config."
    assert lines[f"{at}num_speculative_tokens"] == "3 tokens default (0), settled by the model"
    assert lines[f"{at}draft_sample_method"] == "probabilistic default (greedy), settled by the model"
    assert lines[f"{at}kv_cache_dtype"] == "bfloat16 default (auto), settled by the model"
    assert lines["drafter"].endswith("3 tokens at once")
    _, lines, _ = _explain(capsys, str(tmp_path), "--kv-cache-memory-bytes", "64MiB", "--no-speculation")
    assert lines[f"{at}num_speculative_tokens"] == "0 tokens default" and "drafter" not in lines
    drafting.write_served(tmp_path, num_speculative_tokens=9)
    status, _, out = _explain(capsys, str(tmp_path))
    assert status == 2 and "dspark/config.json has num_speculative_tokens 9; this drafter was trained" in out
