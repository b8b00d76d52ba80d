"""the serving commands of the public recipe, typed as they are with minnow for vllm: planned, refused, and run"""

import subprocess
import sys
from pathlib import Path

import pytest

from minnow.cli.main import main
from minnow.config import vllm
from minnow.plan import transfer
from minnow.server import listen
from tests import tiny
from tests.plan import serving_recipe

MODEL = "MiniMaxAI/MiniMax-M3.1-Flash"
LOST = f"{serving_recipe.SIDE_CHANNEL}: it is empty; set this node's own address"
SMALL = ("--device", "cpu", "--kv-cache-memory-bytes", "4MiB", "--max-model-len", "1024", "--num-threads", "1",
         "-tp", "1", "-dp", "1", "--no-enable-expert-parallel")  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one in the layout of M3.1, with a drafter of seven tokens, that four ranks can share."""
    directory = tmp_path_factory.mktemp("m3.1")
    sizes = {"dense_intermediate_size": 128, "intermediate_size": 128, "shared_intermediate_size": 128}
    config = tiny.write_tiny(
        directory, format="m3.1", sparse_block_size=128, max_position_embeddings=262_144, **sizes
    )  # fmt: skip
    tiny.write_tiny_drafter(directory, config, is_m3=True, dspark_block_size=7)
    tiny.write_tiny_tokenizer(directory)
    return directory


def _set(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", serving_recipe.NAMES)
def test_a_dry_run_takes_every_word(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = serving_recipe.read()[name]
    _set(monkeypatch, stated.environ)
    monkeypatch.setattr(listen, "bind", lambda host, port: pytest.fail("it would listen"))
    monkeypatch.setattr(transfer, "free_huge_pages", lambda: 0)
    assert main(["serve", MODEL, *stated.words, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert not err and "To be mended" not in out
    ignored, refused = out.split("A launch here is refused:")
    for word in [*stated.environ, *(word for word in stated.words if word.startswith("--"))]:
        row = vllm.find(word)
        if row is not None and row.verdict == "no effect" and stated.environ.get(word) != "":
            assert f"  {word} " in ignored and row.reason in ignored
        if row is not None and row.verdict == "not yet":
            assert f"  {word}: {row.reason}" in refused
    assert out.count(LOST) == ("" in stated.environ.values())
    assert "the weights of m3.1-flash are not here" in refused
    assert ("2,240 pages of 1 GiB are needed for 4 ranks, 0 are free here" in refused) == (name == "mi355x-prefill")


@pytest.mark.parametrize("name", serving_recipe.NAMES)
def test_a_launch_stops_at_the_first_word_it_cannot_do(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    stated = serving_recipe.read()[name]
    _set(monkeypatch, stated.environ)
    assert main(["serve", str(checkpoint), *stated.words, "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("minnow: --") and "is refused: " in err and err.count("\n") == 1
    assert (f"{serving_recipe.SIDE_CHANNEL} is refused: it is empty" in err) == ("" in stated.environ.values())


@pytest.mark.parametrize("name", serving_recipe.NAMES)
def test_without_those_words_one_rank_runs_it(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    """The public command on one rank of a CPU: caches, index keys, drafts and limits as it asks for them."""
    stated = serving_recipe.read()[name]
    _set(monkeypatch, {k: v for k, v in stated.environ.items() if v})
    words: list[str] = []
    for word in stated.words:
        row = vllm.find(word)
        is_left_out = row is not None and row.verdict == "not yet"
        is_value = not word.startswith("-") and words and words[-1] == "..."
        words += ["..."] if is_left_out else [] if is_value else [word]
    words = [word for word in words if word != "..."]
    assert ("--speculative-config" in words) == (name != "hopper")
    run = ("--prompt", "Once upon a time", "--max-tokens", "5", "--ignore-eos")
    assert main(["generate", str(checkpoint), *words, *SMALL, *run]) == 0
    assert len(capsys.readouterr().out) > 1


def test_ranks_are_what_is_then_in_the_way(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--kv-cache-dtype", "nvfp4", "--block-size", "128", "--port", "0")
    assert main(["serve", str(checkpoint), *words, "-tp", "4"]) == 2
    assert "--tensor-parallel-size is 4; an engine runs on one device for now" in capsys.readouterr().err
    assert main(["serve", str(checkpoint), *words, "-tp", "4", "--dry-run"]) == 0
    assert "A launch here is refused:\n  --tensor-parallel-size is 4" in capsys.readouterr().out
    assert main(["serve", str(checkpoint), *words, "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("\nA launch here would start.\n")


def test_a_dry_run_loads_no_torch() -> None:
    code = "import sys; from minnow.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    words = ("serve", MODEL, "-tp", "8", "--dry-run")
    subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, timeout=120)
