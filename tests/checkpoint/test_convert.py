"""conversions keep what they can keep exactly, stay small in memory, and leave nothing half done"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor

from minnow.arch import names
from minnow.checkpoint import convert, gguf, verify
from minnow.checkpoint.convert import Format
from minnow.checkpoint.load import open_weights
from minnow.checkpoint.reader import Reader
from minnow.config import model
from minnow.core.errors import CheckpointError, ConfigError, FormatError
from minnow.formats import nvfp4
from minnow.formats.quantized import Quantized, Weight, decode, encode
from tests import tiny
from tests.checkpoint import llama_files

LINEAR = "_proj"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few rows, which cut heads of q and k."""
    monkeypatch.setattr(convert, "_CHUNK_VALUES", 128 * 20)


@pytest.fixture(scope="module")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    directory = tmp_path_factory.mktemp("llama")
    return directory, llama_files.write_llama(directory)


def converted(directory: Path) -> dict[str, Weight]:
    config = model.read(directory)
    assert config.unknown_fields == ()
    verify.check(directory, config, scales=True, digests=True)
    source = open_weights(directory, config)
    return {name: source.take(name) for name in names.modules(config)}


def same(one: Weight, two: Weight) -> bool:
    if isinstance(one, Tensor) or isinstance(two, Tensor):
        return isinstance(one, Tensor) and isinstance(two, Tensor) and one.dtype == two.dtype and torch.equal(one, two)
    parts = zip((one.codes, one.scales, one.minimums), (two.codes, two.scales, two.minimums), strict=True)
    return one.spec == two.spec and all(
        a is b if a is None or b is None else torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in parts
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("tied", [True, False])
def test_llama_weights_come_over_as_they_are(tmp_path: Path, dtype: torch.dtype, tied: bool) -> None:
    right = llama_files.write_llama(tmp_path / "hf", dtype, tie_word_embeddings=tied)
    done = convert.convert(tmp_path / "hf", tmp_path / "m3")
    seen = converted(tmp_path / "m3")
    assert seen.keys() == right.keys() and done.num_tensors == len(right)
    for name, weight in right.items():
        is_norm = dtype == torch.float16 and weight.ndim == 1
        assert same(seen[name], weight.float() if is_norm else weight), name
    assert json.loads((tmp_path / "m3/generation_config.json").read_text())["bos_token_id"] == 256


@pytest.mark.parametrize("form", ["bf16", "int8", "int4", "mxfp8", "nvfp4"])
def test_linears_take_the_format_and_nothing_else_does(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]], form: Format
) -> None:
    directory, right = llama_model
    convert.convert(directory, tmp_path / "m3", format=form)
    for name, weight in converted(tmp_path / "m3").items():
        whole = nvfp4.encode_weight(right[name]) if form == "nvfp4" else encode(form, right[name])
        assert same(weight, whole if name.endswith(LINEAR) else right[name]), name
        if form == "nvfp4" and isinstance(weight, Quantized) and isinstance(whole, Quantized):
            assert torch.allclose(weight.global_scale, whole.global_scale, rtol=1e-6)  # type: ignore[arg-type]
    formats = json.loads((tmp_path / "m3/config.json").read_text())["quantization_config"]["formats"]
    assert formats == {} if form == "bf16" else formats["model.layers.*.mlp.up_proj"] == form


EXACT = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
SPEC = {Kind.Q8_0: "int8", Kind.Q4_0: "int4", Kind.Q4_1: "int4"}


@pytest.mark.parametrize("kind", [*EXACT, *SPEC, Kind.Q5_0, Kind.Q5_1])
def test_gguf_values_are_kept(tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]], kind: Kind) -> None:
    words = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens")
    right = llama_files.write_gguf(tmp_path / "m.gguf", llama_model[1], dict.fromkeys(words, kind))
    convert.convert(tmp_path / "m.gguf", tmp_path / "m3")
    seen = converted(tmp_path / "m3")
    assert seen.keys() == right.keys()
    for name, values in right.items():
        weight = seen[name]
        if isinstance(weight, Quantized):
            assert weight.spec.name == SPEC[kind]
            assert torch.equal(decode(weight), values), name  # 0.0 equals -0.0
        elif "norm" in name:
            assert same(weight, values)
        else:
            dtype = EXACT.get(kind, torch.bfloat16)
            assert same(weight, values.to(dtype)), name
            assert kind not in EXACT or torch.equal(weight.float(), values)


def test_gguf_of_larger_blocks_becomes_bf16(tmp_path: Path) -> None:
    weights = llama_files.write_llama(tmp_path / "hf", hidden_size=256, head_dim=64, tie_word_embeddings=False)
    changed = {"llama__embedding_length": 256, "llama__rope__dimension_count": 64}
    kinds = {"gate_proj": Kind.Q4_K, "q_proj": Kind.Q6_K, "lm_head": Kind.Q6_K}
    right = llama_files.write_gguf(tmp_path / "m.gguf", weights, kinds, **changed)
    convert.convert(tmp_path / "m.gguf", tmp_path / "m3")
    seen = converted(tmp_path / "m3")
    for name, values in right.items():
        is_block = name.rsplit(".", 1)[-1] in kinds
        assert same(seen[name], values.to(torch.bfloat16) if is_block else values), name


def test_gguf_linears_may_take_another_format(tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]) -> None:
    kinds = {"q_proj": Kind.Q4_1, "up_proj": Kind.Q8_0, "embed_tokens": Kind.Q8_0}
    right = llama_files.write_gguf(tmp_path / "m.gguf", llama_model[1], kinds)
    convert.convert(tmp_path / "m.gguf", tmp_path / "m3", format="mxfp8", kv_cache="fp8")
    seen = converted(tmp_path / "m3")
    for name, values in right.items():
        if name.endswith(LINEAR):
            assert same(seen[name], encode("mxfp8", values)), name
    assert isinstance(seen["model.embed_tokens"], Quantized) and seen["model.embed_tokens"].spec.name == "int8"
    config = model.read(tmp_path / "m3")
    assert config.quantization.kv_cache == "fp8" and config.dtype == "float32"
    assert (tmp_path / "m3/tokenizer.json").is_file()
    assert (tmp_path / "m3/chat_template.jinja").read_text() == "{{ messages[0].content }}"


def test_layers_may_differ_in_format(tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]) -> None:
    config = llama_model[1]
    llama_files.write_gguf(tmp_path / "m.gguf", config, {"v_proj": Kind.Q4_0, "up_proj": Kind.Q8_0})
    convert.convert(tmp_path / "m.gguf", tmp_path / "m3")
    raw = json.loads((tmp_path / "m3/config.json").read_text())
    assert raw["quantization_config"]["formats"] == {
        "model.layers.*.self_attn.v_proj": "int4", "model.layers.*.mlp.up_proj": "int8",
    }  # fmt: skip
    uneven = {"model.layers.0.x": "int4", "model.layers.1.x": "int8", "model.layers.0.y": "int4"}
    modules = {*uneven, "model.layers.1.y"}
    assert convert._patterns(uneven, modules) == uneven


def test_a_conversion_of_our_own_can_be_converted_again(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]
) -> None:
    convert.convert(llama_model[0], tmp_path / "one", format="int8", kv_cache="fp8")
    (tmp_path / "one/README.md").write_text("card")
    convert.convert(tmp_path / "one", tmp_path / "two", format="mxfp8")
    one, two = converted(tmp_path / "one"), converted(tmp_path / "two")
    for name, weight in two.items():
        assert same(weight, encode("mxfp8", decode(one[name])) if name.endswith(LINEAR) else one[name]), name
    assert model.read(tmp_path / "two").quantization.kv_cache == "fp8"
    assert (tmp_path / "two/README.md").read_text() == "card"
    convert.convert(tmp_path / "two", tmp_path / "three")
    three = load_file(tmp_path / "three/model.safetensors")
    assert {k: t.view(torch.uint8).tolist() for k, t in three.items() if t.ndim} == {
        k: t.view(torch.uint8).tolist() for k, t in load_file(tmp_path / "two/model.safetensors").items() if t.ndim
    }


def raw_tensors(directory: Path) -> dict[str, bytes]:
    with Reader(directory) as reader:
        return {name: reader.read(name).reshape(-1).view(torch.uint8).numpy().tobytes() for name in reader.names}


@pytest.mark.parametrize("source", ["plain", "mxfp8", "m3.1", "modelopt-nvfp4", "modelopt-mxfp4"])
@pytest.mark.parametrize("form", ["mxfp8", "nvfp4"])
def test_m3_checkpoints_change_only_what_they_must(tmp_path: Path, source: str, form: Format) -> None:
    config = tiny.write_tiny(tmp_path / "a", format=source, vision=True, max_shard_bytes=100_000)
    (tmp_path / "a/dspark").mkdir()
    (tmp_path / "a/dspark/config.json").write_text("{}")
    (tmp_path / "a/vocab.json").write_text("[]")
    convert.convert(tmp_path / "a", tmp_path / "b", format=form)
    after = model.read(tmp_path / "b")
    assert after.quantization.scheme == ("mxfp8" if form == "mxfp8" else "mxfp8-nvfp4")
    assert (tmp_path / "b/dspark/config.json").is_file() and (tmp_path / "b/vocab.json").is_file()
    before, now = raw_tensors(tmp_path / "a"), raw_tensors(tmp_path / "b")
    one, two = open_weights(tmp_path / "a", config), open_weights(tmp_path / "b", after)
    num_coded = 0
    for name, module in names.modules(after).items():
        specs = names.tensors(module, after)
        if specs == names.tensors(module, config):
            assert all(before[spec.name] == now[spec.name] for spec in specs), name
            continue
        num_coded += 1
        values, seen = decode(one.take(name)), two.take(name)
        if form == "mxfp8" or module.kind != "routed expert":
            assert same(seen, encode("mxfp8", values)), name
        elif source == "modelopt-nvfp4":
            assert same(seen, one.take(name)), name
        else:
            other = {"1": "3", "3": "1", "2": "2"}[name[-1]]
            amax = torch.maximum(values.abs().amax(), decode(one.take(name[:-1] + other)).abs().amax())
            assert same(seen, nvfp4.encode_weight(values, amax)), name
    assert (num_coded == 0) == ((source, form) in {("mxfp8", "mxfp8"), ("m3.1", "nvfp4")})


def test_w1_and_w3_share_a_global_scale(tmp_path: Path) -> None:
    config = tiny.write_tiny(tmp_path / "a")
    convert.convert(tmp_path / "a", tmp_path / "b", format="nvfp4")
    with Reader(tmp_path / "b") as reader:
        stem = "language_model.model.layers.1.block_sparse_moe.experts.3."
        scales = [reader.read(f"{stem}{w}.weight_global_scale").item() for w in ("w1", "w2", "w3")]
    assert scales[0] == scales[2] != scales[1]
    assert not any(config.sparse.is_sparse[:1])


def test_tensors_for_others_use_go_along(tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path / "a")
    file = tmp_path / "a/model.safetensors"
    drafter = torch.arange(6.0).reshape(2, 3)
    save_file({name: t.clone() for name, t in load_file(file).items()} | {"model.mtp.0.fc.weight": drafter}, file)
    convert.convert(tmp_path / "a", tmp_path / "b", format="mxfp8")
    with Reader(tmp_path / "b") as reader:
        assert torch.equal(reader.read("model.mtp.0.fc.weight"), drafter)


def test_what_cannot_be_converted_is_said_before_anything_is_written(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]
) -> None:
    tiny.write_tiny(tmp_path / "m3")
    (tmp_path / "empty").mkdir()
    weights = dict(llama_model[1])
    llama_files.write_gguf(tmp_path / "bias.gguf", weights, {}, more={"blk.0.attn_q.bias": np.zeros(128, np.float32)})
    lost = {name: w for name, w in weights.items() if name != "model.layers.1.mlp.up_proj"}
    llama_files.write_gguf(tmp_path / "lost.gguf", lost, {})
    llama_files.write_gguf(tmp_path / "wide.gguf", weights, {}, llama__feed_forward_length=64)
    llama_files.write_gguf(tmp_path / "words.gguf", weights, {}, tokenizer__ggml__pre="tekken")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "wide.gguf").read_bytes()[:90_000])
    cases: list[tuple[str, str | None, type[Exception], str]] = [
        ("gone", None, ConfigError, "does not exist; name a GGUF file"),
        ("empty", None, ConfigError, "holds no config.json"),
        (".", None, ConfigError, r"name one of its GGUF files \(bias.gguf, cut.gguf"),
        ("m3", None, ConfigError, "--format is needed: mxfp8 or nvfp4"),
        ("m3", "int8", ConfigError, "converts to mxfp8 or nvfp4, not int8"),
        ("bias.gguf", None, CheckpointError, "it has blk.0.attn_q.bias, for which this decoder has no place"),
        ("lost.gguf", None, CheckpointError, r"it lacks model.layers.1.mlp.up_proj"),
        ("wide.gguf", None, CheckpointError, r"gate_proj as \[96, 128\] where \[64, 128\] is right"),
        ("words.gguf", None, CheckpointError, "tokenizer.ggml.pre is 'tekken'"),
        ("cut.gguf", None, CheckpointError, "is truncated"),
    ]
    for name, form, error, words in cases:
        with pytest.raises(error, match=words):
            convert.convert(tmp_path / name, tmp_path / "out", format=form)  # type: ignore[arg-type]
        assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*")), name


def test_widths_that_do_not_fill_blocks_are_refused(tmp_path: Path) -> None:
    llama_files.write_llama(tmp_path / "hf", intermediate_size=72)
    with pytest.raises(FormatError, match=r"down_proj.*width of 72"):
        convert.convert(tmp_path / "hf", tmp_path / "out", format="mxfp8")
    assert not list(tmp_path.glob("*out*"))


def test_damaged_values_are_refused_and_leave_nothing(
    tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]
) -> None:
    llama_files.write_gguf(tmp_path / "m.gguf", llama_model[1], {"down_proj": Kind.Q8_0})
    raw = bytearray((tmp_path / "m.gguf").read_bytes())
    start = gguf.read(tmp_path / "m.gguf").tensors["blk.1.ffn_down.weight"].start
    raw[start : start + 2] = b"\x00\x7c"  # an F16 infinity
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"is damaged: blk.1.ffn_down.weight has a scale that is not finite"):
        convert.convert(tmp_path / "m.gguf", tmp_path / "out")
    weights = llama_files.write_llama(tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    broken = {f"{name}.weight": w.clone() for name, w in weights.items()}
    broken["model.layers.0.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(broken, file)
    with pytest.raises(CheckpointError, match="up_proj holds NaN or infinity"):
        convert.convert(tmp_path / "hf", tmp_path / "out", format="mxfp8")
    assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*"))


def test_published_formats_have_no_field_for_the_cache(tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path / "a")
    with pytest.raises(ConfigError, match="has no field for --kv-cache-dtype fp8; leave it out"):
        convert.convert(tmp_path / "a", tmp_path / "b", format="mxfp8", kv_cache="fp8")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_other_checkpoints_beside_the_weights_stay_behind(tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path / "a")
    tiny.write_tiny(tmp_path / "a/dspark")
    tiny.write_tiny(tmp_path / "a/older")
    (tmp_path / "a/pictures").mkdir()
    convert.convert(tmp_path / "a", tmp_path / "b", format="mxfp8")
    assert {path.name for path in (tmp_path / "b").iterdir() if path.is_dir()} == {"dspark", "pictures"}
    assert (tmp_path / "b/dspark/model.safetensors").is_file()


def test_progress_counts_values(tmp_path: Path, llama_model: tuple[Path, dict[str, Tensor]]) -> None:
    seen: list[tuple[int, int, str]] = []
    convert.convert(llama_model[0], tmp_path / "out", progress=lambda *step: seen.append(step))
    total = sum(w.numel() for w in llama_model[1].values())
    assert seen[0] == (0, total, "model.embed_tokens") and seen[-1] == (total, total, "")
    assert [step[0] for step in seen] == sorted({step[0] for step in seen})


_MEASURED = """
import re, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from minnow.checkpoint.convert import convert
from minnow.formats import int4, int8, mxfp8, nvfp4
def in_memory(word):
    return int(re.search(word + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
torch.ones(64, 64) @ torch.ones(64, 64)
start = in_memory("VmRSS")
convert(Path(sys.argv[1]), Path(sys.argv[2]), format=sys.argv[3] if len(sys.argv) > 3 else None)
print(in_memory("VmHWM") - start)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose largest weight is 32 MiB in F32, and 160 MiB in all: keeping what was read would show."""
    directory = tmp_path_factory.mktemp("large")
    shape: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 4096, "num_hidden_layers": 1, "head_dim": 512}
    weights = llama_files.write_llama(directory / "hf", torch.float32, **shape)
    assert max(weight.numel() for weight in weights.values()) * 4 == 2**25
    changed = {"llama__embedding_length": 2048, "llama__feed_forward_length": 4096, "llama__block_count": 1}
    changed |= {"llama__rope__dimension_count": 512}
    llama_files.write_gguf(directory / "m.gguf", weights, {"up_proj": Kind.Q8_0, "q_proj": Kind.F16}, **changed)
    llama_files.write_gguf(directory / "k.gguf", weights, {"up_proj": Kind.Q6_K, "down_proj": Kind.Q4_K}, **changed)
    tiny.write_tiny(directory / "m3", layers=2, hidden_size=2048, dense_intermediate_size=4096, intermediate_size=64)
    return directory


@pytest.mark.parametrize(
    ("name", "form"), [("hf", None), ("hf", "nvfp4"), ("m.gguf", None), ("k.gguf", None), ("m3", "mxfp8")]
)
def test_memory_stays_below_three_times_the_largest_tensor(
    tmp_path: Path, large: Path, name: str, form: str | None
) -> None:
    command = [sys.executable, "-c", _MEASURED, str(large / name), str(tmp_path / "out"), *([form] if form else [])]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    print(f"peak over the start: {peak / 2**25:.2f} of the largest tensor in F32")
    assert peak <= 3 * 2**25
