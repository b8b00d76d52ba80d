"""what training thinks MSA is, is what the decoder does; and index heads learn to find the attention"""

import json
from pathlib import Path

import pytest
import torch

from minnow.checkpoint.load import fill, open_weights
from minnow.kernels.block_topk.reference import block_topk
from minnow.kernels.index_score.reference import index_score
from minnow.model.decoder import Decoder
from minnow.tune import attend, index_heads, target
from minnow.tune.run import Watch, read_log
from minnow.tune.stage import Options
from tests.drive import CPU, Driver, make_kernels
from tests.tiny import m3_text, write_tiny, write_tiny_tokenizer

_SETTINGS = index_heads.Settings(
    num_windows=8, num_tokens=256, num_places=128, num_queries=64, rate=1e-2, num_blocks=4, block_size=16
)


def _sparse(layers: int = 3) -> dict[str, object]:
    """A Llama-like model with MSA in every layer."""
    sparse = m3_text(layers)["sparse_attention_config"] | {"sparse_index_dim": 16}
    flags = [1] * layers
    sparse |= {"sparse_attention_freq": flags, "sparse_disable_index_value": flags}
    return {"family": "llama", "dtype": "float32", "sparse_attention_config": sparse}


def test_scores_and_choice_equal_the_kernels() -> None:
    generator = torch.Generator().manual_seed(0)
    index_q, keys = torch.randn(50, 2, 16, generator=generator), torch.randn(50, 16, generator=generator)
    cache = torch.nn.functional.pad(keys, (0, 0, 0, 14)).view(4, 1, 16, 16)
    table, start, place = torch.arange(4)[None].int(), torch.tensor([0, 50]).int(), torch.arange(50)
    wanted = index_score(index_q, cache, table, start, place.int())
    scores = attend.block_scores(index_q.transpose(0, 1)[None], keys[None, None], place, 16)
    assert torch.allclose(scores[0].transpose(0, 1), wanted, atol=1e-5)
    sparse = index_heads.SparseConfig(is_sparse=(True,), num_blocks=2, block_size=16)
    blocks = block_topk(wanted, place.int(), 2, 16, 1, 0)
    chosen = attend.choose(scores, place, sparse)[0].transpose(0, 1)
    for at in range(50):
        for head in range(2):
            assert chosen[at, head].nonzero().flatten().tolist() == [b for b in blocks[at, head].tolist() if b >= 0]


@pytest.mark.parametrize("cache", ["f32", "nvfp4"])
def test_sparse_logits_equal_the_decoder(tmp_path: Path, cache: str) -> None:
    config = write_tiny(tmp_path, **_sparse())  # type: ignore[arg-type]
    decoder = Decoder(config, make_kernels("*=reference"), torch.float32, CPU)
    fill(decoder, open_weights(tmp_path, config))
    ids = torch.randint(256, (200,), generator=torch.Generator().manual_seed(0))
    wanted = Driver(decoder, config, num_blocks=14, kv_format=cache).run(ids, [200])
    model = target.load(tmp_path, torch.float32)
    attends = attend.sparsely(model.index, model.config.sparse, is_rounded=cache == "nvfp4")
    seen = model.logits(model.hidden(model.forward(ids[None], attend=attends).last))[0]
    dense = model.logits(model.hidden(model.forward(ids[None]).last))[0]
    assert (seen - wanted).abs().max() < 1e-3 < (dense - wanted).abs().max()


def test_block_mass_is_the_attention_summed() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 4, 40, 8, generator=generator), torch.randn(1, 2, 40, 8, generator=generator)
    place = torch.tensor([3, 20, 39])
    mass = attend.block_mass(q[:, :, place], k, place, 16)
    assert mass.shape == (1, 2, 3, 3)
    assert torch.allclose(mass.sum(-1), torch.ones(1, 2, 3))
    for head in range(2):
        alone = [(q[0, 2 * head + i, 20] @ k[0, head, :21].T / 8**0.5).softmax(-1) for i in range(2)]
        assert torch.allclose(mass[0, head, 1, 0], (alone[0][:16].sum() + alone[1][:16].sum()) / 2)


def test_training_raises_the_mass_in_chosen_blocks(tmp_path: Path) -> None:
    options = _options(tmp_path, steps=60)
    assert index_heads.train(options, Watch(), _SETTINGS).is_done
    log = read_log(options.output / "log.jsonl")
    assert log[-1]["held_out_mass"] > log[0]["held_out_mass"] + 0.02
    assert log[-1]["loss"] < log[1]["loss"]


def test_output_makes_the_model_sparse(tmp_path: Path) -> None:
    options = _options(tmp_path, steps=1)
    index_heads.train(options, Watch(), _SETTINGS)
    model = target.load(options.directory, torch.float32, (*options.parts, options.output))
    assert all(model.config.sparse.is_sparse) and model.config.sparse.num_index_heads == 2
    assert (model.config.sparse.num_blocks, model.config.sparse.block_size) == (4, 16)
    mass = index_heads.kept_mass(model, index_heads.record(model, torch.arange(256)[None], 32, 0))
    assert mass.shape == (3,) and bool(((mass > 0) & (mass <= 1)).all())
    described = json.loads((options.output / "trained.json").read_text())
    assert described["parts"] == [str(part) for part in options.parts]


def _options(directory: Path, steps: int) -> Options:
    """A tiny model whose attention is sharp, and random text."""
    write_tiny(directory / "model", family="llama", dtype="float32")
    write_tiny_tokenizer(directory / "model")
    loaded = target.load(directory / "model", torch.float32)
    sharp = {name: 2 * w for name, w in loaded.weights.items() if "q_proj" in name or "k_proj" in name}
    target.write_parts(directory / "sharp", sharp)
    (directory / "sharp" / "trained.json").write_text('{"config": {}}')
    texts = directory / "texts"
    texts.mkdir()
    words = torch.randint(97, 123, (150, 500), generator=torch.Generator().manual_seed(0))
    for i, row in enumerate(words.tolist()):
        (texts / f"{i}.txt").write_text(bytes(row).decode())
    parts, output = (directory / "sharp",), directory / "out"
    return Options(directory=directory / "model", output=output, text=(texts,), parts=parts, steps=steps)


def test_the_first_guess_is_exact_where_there_is_one_key_head(tmp_path: Path) -> None:
    write_tiny(tmp_path, family="llama", dtype="float32", layers=1, num_key_value_heads=1, rotary_dim=12)
    model, settings = target.load(tmp_path, torch.float32), index_heads.Settings()
    x = torch.randn(1, 60, 64, generator=torch.Generator().manual_seed(0))
    guess = index_heads.first_guess(model, 0, x[0])
    sparse = index_heads.with_heads(model, index_heads.sparse_config(model.config, settings), guess)
    index_q, index_k = sparse.index(0, x)
    q, k, _ = model.qkv(0, x)
    assert torch.allclose(index_q @ index_k.mT, q.mean(1, keepdim=True) @ k.mT, atol=1e-3)


def test_without_rotation_the_wide_key_of_two_heads_is_exact(tmp_path: Path) -> None:
    """What the first component leaves over stands in the second half of the key, which does not rotate."""
    write_tiny(tmp_path, family="llama", dtype="float32", layers=1, num_key_value_heads=2)
    model, settings = target.load(tmp_path, torch.float32), index_heads.Settings()
    model.inverse_frequencies.zero_()
    x = torch.randn(1, 60, 64, generator=torch.Generator().manual_seed(0))
    guess = index_heads.first_guess(model, 0, x[0])
    sparse = index_heads.with_heads(model, index_heads.sparse_config(model.config, settings), guess)
    sparse.inverse_frequencies.zero_()
    index_q, index_k = sparse.index(0, x)
    assert index_k.shape[-1] == 2 * model.config.head_dim
    q, k, _ = model.qkv(0, x)
    wanted = torch.unflatten(q, 1, (2, -1)).mean(2) @ k.mT * model.config.head_dim**-0.5
    assert torch.allclose(index_q @ index_k.mT * sparse.config.sparse.index_dim**-0.5, wanted, atol=1e-3)


def test_what_does_not_rotate_is_of_the_slowest_pairs() -> None:
    component, pair = index_heads._still(3, 8)
    assert list(zip(component.tolist(), pair.tolist(), strict=True)) == [
        (1, 7), (2, 7), (1, 6), (2, 6), (1, 5), (2, 5), (1, 4), (2, 4)
    ]  # fmt: skip
    component, pair = index_heads._still(4, 4)
    assert list(zip(component.tolist(), pair.tolist(), strict=True)) == [(1, 3), (2, 3), (3, 3), (1, 2)]


def test_passages_come_again_far_behind() -> None:
    settings = index_heads.Settings(num_tokens=400, num_echoes=3, echo_tokens=20, num_blocks=4, block_size=16)
    ids = torch.arange(400)[None]
    echoed = index_heads.echoed(ids, settings, torch.Generator().manual_seed(1))
    distance = (ids - echoed)[0]
    assert (ids == torch.arange(400)).all() and 20 <= (distance != 0).sum() <= 60
    assert ((distance == 0) | (distance >= 64)).all() and not distance[:64].any()
    few = index_heads.Settings(num_tokens=80, num_echoes=3, echo_tokens=20, num_blocks=4, block_size=16)
    assert torch.equal(index_heads.echoed(ids[:, :80], few, torch.Generator()), ids[:, :80])


def test_divergence_is_zero_for_the_attention_itself_and_counts_far_blocks_by_their_mass() -> None:
    sparse = index_heads.SparseConfig(is_sparse=(True,), num_blocks=2, block_size=4, index_dim=16)
    places = torch.tensor([38, 39])  # in the tenth block; far ones are 1 to 6
    mass = torch.rand(1, 1, 2, 10, generator=torch.Generator().manual_seed(0)) + 0.1
    mass[..., 0, 1:7] *= 0.01  # the first query hardly looks there
    mass /= mass.sum(-1, keepdim=True)
    scores = mass.log() * 4
    assert index_heads.divergence(mass, scores, places, sparse).abs() < 1e-5
    changes = []
    for query in range(2):
        wrong = scores.clone()
        wrong[0, 0, query, 3] -= 4
        changes.append(index_heads.divergence(mass, wrong, places, sparse))
    assert changes[1] > 10 * changes[0] > 0
