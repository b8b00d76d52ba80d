"""a conversion takes its target whole, alone, and never at the cost of its source"""

import errno
import shutil
from pathlib import Path

import pytest
from torch import Tensor

from minnow.checkpoint import convert
from minnow.checkpoint.writer import Writer
from minnow.core.errors import ConfigError
from tests import tiny
from tests.checkpoint import llama_files
from tests.checkpoint.test_convert import converted, raw_tensors


@pytest.fixture(scope="module")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    directory = tmp_path_factory.mktemp("llama")
    return directory, llama_files.write_llama(directory)


def test_a_target_is_replaced_only_when_asked_and_only_a_model(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]
) -> None:
    source, target = llama_model[0], tmp_path / "out"
    target.mkdir()
    convert.convert(source, target)  # an empty directory is free
    (target / "stale").write_text("")
    with pytest.raises(ConfigError, match=r"holds a model already; .* --overwrite"):
        convert.convert(source, target)
    convert.convert(source, target, overwrite=True)
    assert not (target / "stale").exists() and converted(target)
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters").write_text("dear")
    with pytest.raises(ConfigError, match="is no model directory"):
        convert.convert(source, home, overwrite=True)
    assert (home / "letters").read_text() == "dear"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out"]


def test_a_run_that_is_broken_off_leaves_the_old_model(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]
) -> None:
    convert.convert(llama_model[0], tmp_path / "out")
    before = raw_tensors(tmp_path / "out")

    def stop(done: int, total: int, module: str) -> None:
        if module.startswith("model.layers.1"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert.convert(llama_model[0], tmp_path / "out", format="int8", overwrite=True, progress=stop)
    assert raw_tensors(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / ".out.partial").mkdir()  # what a killed process leaves
    (tmp_path / ".out.partial/model.safetensors").write_text("half")
    convert.convert(llama_model[0], tmp_path / "out", format="int8", overwrite=True)
    assert converted(tmp_path / "out") and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_source_is_never_replaced(tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]) -> None:
    tiny.write_tiny(tmp_path / "m3")
    llama_files.write_gguf(tmp_path / "m3/m.gguf", llama_model[1], {})
    shutil.copytree(tmp_path / "m3", tmp_path / "m3/dspark")
    (tmp_path / "links").mkdir()
    for file in (tmp_path / "m3").glob("*.*"):
        (tmp_path / "links" / file.name).symlink_to(file)
    (tmp_path / "link").symlink_to("m3")
    shutil.copytree(llama_model[0], tmp_path / ".out.partial")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    cases = [
        ("m3", "m3", "is, or would replace, the source"), ("m3/m.gguf", "m3", "is, or would replace, the source"),
        ("link", "m3", "is, or would replace, the source"), ("m3", "link", "is, or would replace, the source"),
        ("links", "m3", "is, or would replace, the source"), ("m3/dspark", "m3", "is, or would replace, the source"),
        ("m3", "m3/dspark", "is, or would replace, the source"), ("m3", "link/new", "lies inside the source"),
        (".out.partial", "out", "is, or would replace, the source"),
    ]  # fmt: skip
    for source, target, words in cases:
        with pytest.raises(ConfigError, match=words):
            convert.convert(tmp_path / source, tmp_path / target, format="mxfp8", overwrite=True)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, (source, target)


def test_two_writers_of_one_target_do_not_meet(tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]) -> None:
    refused: list[str] = []

    def second(done: int, total: int, module: str) -> None:
        if not done:
            with pytest.raises(ConfigError) as caught:
                convert.convert(llama_model[0], tmp_path / "out", overwrite=True)
            refused.append(str(caught.value))

    convert.convert(llama_model[0], tmp_path / "out", progress=second)
    assert refused == [f"{tmp_path / 'out'} is being written by another process; wait until it is done"]
    assert converted(tmp_path / "out") and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_names_the_target(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Writer, name: str, tensor: Tensor) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Writer, "add", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        convert.convert(llama_model[0], tmp_path / "out")
    assert caught.value.filename == str(tmp_path / "out") and list(tmp_path.iterdir()) == []
