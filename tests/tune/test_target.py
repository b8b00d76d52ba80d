"""the torch forward of training equals the decoder that serves"""

from pathlib import Path

import pytest
import torch

from minnow.checkpoint.load import fill, open_weights
from minnow.core.errors import CheckpointError, ConfigError
from minnow.model.decoder import Decoder
from minnow.tune import target
from minnow.tune.attend import attend_densely
from tests.drive import CPU, Driver, make_kernels
from tests.tiny import write_tiny

_DENSE_M3 = {"moe_layer_freq": [0, 0, 0], "sparse_attention_config": None, "layers": 3}


@pytest.mark.parametrize("use_qk_mix", [False, True])
@pytest.mark.parametrize("family", ["llama", "m3"])
def test_logits_equal_the_decoder(tmp_path: Path, family: str, use_qk_mix: bool) -> None:
    shape = _DENSE_M3 if family == "m3" else {}
    config = write_tiny(tmp_path, family=family, dtype="float32", use_qk_mix=use_qk_mix, **shape)
    decoder = Decoder(config, make_kernels("*=reference"), torch.float32, CPU)
    fill(decoder, open_weights(tmp_path, config))
    ids = torch.randint(256, (150,), generator=torch.Generator().manual_seed(0))
    wanted = Driver(decoder, config, num_blocks=12).run(ids, [100, 50])
    model = target.load(tmp_path, torch.float32)
    seen = model.logits(model.hidden(model.forward(ids[None]).last))[0]
    assert (seen - wanted).abs().max() < 1e-4


def test_sequences_of_a_batch_do_not_see_each_other(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="llama", dtype="float32")
    model = target.load(tmp_path, torch.float32)
    ids = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(0))
    together, alone = model.forward(ids).last, model.forward(ids[1:]).last
    assert torch.allclose(together[1:], alone, atol=1e-5)


def test_taps_are_residuals_after_layers(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="llama", dtype="float32")
    model = target.load(tmp_path, torch.float32)
    passed = model.forward(torch.arange(20)[None], taps=(2, 0))
    assert torch.equal(passed.taps[0], passed.last)
    again = model.layer(2, model.layer(1, passed.taps[1], attend_densely), attend_densely)
    assert torch.equal(again, passed.last)


def test_replaced_weights_get_gradients(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="llama", dtype="float32")
    model, name = target.load(tmp_path, torch.float32), "model.layers.0.self_attn.k_proj"
    learning = (model.weights[name] * 2).requires_grad_()
    loss = model.replaced({name: learning}).forward(torch.arange(20)[None]).last.square().mean()
    loss.backward()
    assert learning.grad is not None and learning.grad.abs().sum() > 0
    assert not model.weights[name].requires_grad


def test_experts_are_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    with pytest.raises(ConfigError, match="moe_layer_freq"):
        target.load(tmp_path, torch.float32)


def test_parts_of_a_stage_replace_weights(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family="llama", dtype="float32")
    name = "model.layers.1.self_attn.q_proj"
    before = target.load(tmp_path / "model", torch.float32)
    target.write_parts(tmp_path / "parts", {name: before.weights[name] * 2})
    (tmp_path / "parts" / "trained.json").write_text('{"config": {"text_config": {"rope_theta": 5000.0}}}')
    after = target.load(tmp_path / "model", torch.float32, (tmp_path / "parts",))
    assert (before.config.rope_theta, after.config.rope_theta) == (10000.0, 5000.0)
    assert torch.equal(after.weights[name], (before.weights[name] * 2).bfloat16().float())
    same = {other for other in before.weights if torch.equal(before.weights[other], after.weights[other])}
    assert set(before.weights) - same == {name}


def test_parts_with_foreign_names_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"dspark.fc.weight": torch.zeros(2, 2)}, tmp_path / target.PARTS_NAME)
    with pytest.raises(CheckpointError, match=r"dspark\.fc\.weight"):
        target.read_parts(tmp_path, torch.float32)
