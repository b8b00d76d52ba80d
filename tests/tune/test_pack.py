"""packed parts are the stages' weights in the format that was asked for, and a model takes them"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from minnow.checkpoint.load import open_drafter, open_weights
from minnow.checkpoint.trained import combine
from minnow.cli.main import main
from minnow.config import drafter, model
from minnow.core.errors import CheckpointError, ConfigError
from minnow.formats.quantized import Quantized, decode, encode
from minnow.tune.pack import pack
from tests import tiny
from tests.checkpoint.test_trained import AT, SPARSE, write_base, write_part

INDEX = {"text_config": {"sparse_attention_config": SPARSE}}


def heads(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"index_q_proj": (64, 64), "index_k_proj": (32, 64)}
    return {
        f"{AT}.{i}.self_attn.{name}.weight": torch.randn(shape, generator=generator).bfloat16()
        for i in range(2)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("format", ["int8", "mxfp8", "bf16"])
def test_a_model_takes_packed_parts(tmp_path: Path, format: str) -> None:
    base = write_base(tmp_path / "base")
    index, drafts = write_part(tmp_path / "index", heads(), INDEX), write_part(tmp_path / "draft", {}, {})
    tiny.write_tiny_drafter(drafts, base)
    pack([index, drafts], tmp_path / "packed", format, {"num_speculative_tokens": 2})
    combine(tmp_path / "base", [tmp_path / "packed"], tmp_path / "whole")
    config = model.read(tmp_path / "whole")
    source = open_weights(tmp_path / "whole", config)
    for name, value in heads().items():
        seen = source.take(name.removeprefix("language_model.").removesuffix(".weight"))
        assert isinstance(seen, Quantized) == (format != "bf16")
        assert torch.equal(decode(seen), decode(encode(format, value.float())))
    served = drafter.read(tmp_path / "whole" / "dspark", config)
    assert served.served == {"num_speculative_tokens": 2}
    before, after = (
        open_drafter(drafts / "dspark", drafter.read(drafts / "dspark", base)),
        open_drafter(tmp_path / "whole" / "dspark", served),
    )
    kinds = {"norm": "bf16", "markov_w1": "bf16", "confidence": "bf16", "d2t": ""}
    for name in before.names:
        kind = next((kind for word, kind in kinds.items() if word in name), format)
        wanted, seen = decode(before.take(name)), decode(after.take(name))
        block = 32 if kind in ("int8", "mxfp8") else 1
        is_rounded = kind and wanted.ndim == 2 and wanted.shape[1] % block == 0
        assert torch.equal(seen, decode(encode(kind, wanted)) if is_rounded else wanted), name


def test_later_parts_win_and_the_description_names_all(tmp_path: Path) -> None:
    old, new = write_part(tmp_path / "old", heads(0), INDEX), write_part(tmp_path / "new", heads(1), INDEX)
    pack([old, new], tmp_path / "packed", "bf16", {})
    with safe_open(tmp_path / "packed" / "model.safetensors", "pt") as file:
        assert all(torch.equal(file.get_tensor(name), value) for name, value in heads(1).items())
    said = json.loads((tmp_path / "packed" / "trained.json").read_text())
    assert [stage["config"] for stage in said["stages"]] == [INDEX, INDEX]


def test_what_is_quantised_is_not_rounded_again(tmp_path: Path) -> None:
    part = write_part(tmp_path / "index", heads(), INDEX)
    pack([part], tmp_path / "once", "int8", {})
    with pytest.raises(CheckpointError, match="quantised already"):
        pack([tmp_path / "once"], tmp_path / "twice", "int8", {})
    assert not (tmp_path / "twice").exists()


def test_the_commands_pack_and_combine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_base(tmp_path / "base")
    part = write_part(tmp_path / "index", heads(), INDEX)
    packed, whole = tmp_path / "packed", tmp_path / "whole"
    assert main(["tune", "pack", "--parts", str(part), "--output", str(packed)]) == 0
    assert main(["convert", str(tmp_path / "base"), str(whole), "--parts", str(packed)]) == 0
    assert model.read(whole).sparse.is_sparse == (True, True)
    words, other = "--speculative-config", tmp_path / "other"
    other.mkdir()
    (other / "chapter1.txt").write_text("mine")
    assert json.loads((whole / "trained.json").read_text()) == json.loads((packed / "trained.json").read_text())
    wrong = [
        (["tune", "pack", "--parts", str(part), "--output", str(packed), words, "[1]"], "is no JSON object"),
        (["tune", "pack", "--parts", str(part), "--output", str(packed), words, '{"a": 1}'], "holds a drafter"),
        (["tune", "pack", "--parts", str(part), "--output", str(part)], "is one of the parts"),
        (["tune", "pack", "--parts", str(part), "--output", str(whole)], "holds a model"),
        (["tune", "pack", "--parts", str(part), "--output", str(other)], "holds other files"),
        (["convert", str(tmp_path / "base"), str(whole), "--parts", str(packed)], "holds a model already"),
        (["convert", str(tmp_path / "base"), str(other), "--parts", str(packed), "--overwrite"], "no model directory"),
        (["convert", str(tmp_path / "base"), str(packed), "--parts", str(packed), "--overwrite"], "no model directory"),
        (["convert", "base", str(tmp_path / "n"), "--parts", str(tmp_path / "base")], "holds no trained.json"),
        (["convert", "base", str(tmp_path / "n"), "--format", "int8", "--parts", str(packed)], "leave one of them out"),
    ]
    capsys.readouterr()
    for command, expected in wrong:
        assert main(command) != 0
        assert expected in capsys.readouterr().err
    assert (other / "chapter1.txt").is_file() and (part / "trained.safetensors").is_file()
    assert main(["convert", str(tmp_path / "base"), str(whole), "--parts", str(packed), "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ({"num_speculativ_tokens": 2}, "num_speculativ_tokens"),
        ({"method": "eagle"}, "no other method"),
        ({"num_speculative_tokens": 99}, "at most that"),
        ({"enable_adaptive_verification": True}, "no confidence head"),
    ],
)
def test_settings_that_no_engine_would_take_are_refused(tmp_path: Path, served: dict[str, Any], said: str) -> None:
    part = write_part(tmp_path / "draft", {}, {})
    tiny.write_tiny_drafter(part, write_base(tmp_path / "base"), enable_confidence_head=False)
    with pytest.raises(ConfigError, match=said):
        pack([part], tmp_path / "packed", "int8", served)
    assert not (tmp_path / "packed").exists()


def test_what_a_pack_before_held_goes(tmp_path: Path) -> None:
    index, drafts = write_part(tmp_path / "index", heads(), INDEX), write_part(tmp_path / "draft", {}, {})
    tiny.write_tiny_drafter(drafts, write_base(tmp_path / "base"))
    packed = tmp_path / "packed"
    pack([index, drafts], packed, "bf16", {})
    (packed / "README.md").write_text("# mine")
    pack([drafts], packed, "bf16", {})
    assert not list(packed.glob("*.safetensors")) and (packed / "dspark").is_dir()
    pack([index], packed, "bf16", {})
    assert not (packed / "dspark").exists() and (packed / "README.md").is_file()
    empty = write_part(tmp_path / "empty", {}, {})
    with pytest.raises(ConfigError, match="hold no weights"):
        pack([empty], packed, "bf16", {})
