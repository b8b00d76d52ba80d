"""the rounded cache of training equals the format, and training lowers what it costs"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minnow.formats import nvfp4
from minnow.tune import attend, cache, mixing, target
from minnow.tune.run import Watch, read_log
from minnow.tune.stage import Options
from tests.tiny import write_tiny, write_tiny_tokenizer

_FIRST_MIX = "model.layers.0.self_attn.k_mix"
_SETTINGS = cache.Settings(sequences=2, num_tokens=128, num_positions=64, held_out_tokens=256)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_straight_through_rounds_as_the_format(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.exp(4 * torch.randn(500, 1, generator=generator))
    x = (torch.randn(500, 64, generator=generator) * spread).to(dtype).requires_grad_()
    y = attend.straight_through(x)
    assert y.dtype == dtype
    assert torch.equal(y.float(), nvfp4.decode(nvfp4.encode(x.detach())))
    slope = torch.randn(500, 64, generator=generator).to(dtype)
    torch.autograd.backward(y, slope)
    assert x.grad is not None and torch.equal(x.grad, slope)


def _options(directory: Path, **changes: int) -> Options:
    """A tiny model whose attention is sharp and whose keys have a channel that dwarfs its neighbours, and some text."""
    write_tiny(directory / "model", family="llama", dtype="float32")
    write_tiny_tokenizer(directory / "model")
    loaded = target.load(directory / "model", torch.float32)
    changed = {name: 1.5 * loaded.weights[name] for name in cache.trained_names(loaded)}
    for name in changed:
        if "k_proj" in name:
            changed[name][3] *= 4
    target.write_parts(directory / "sharp", changed)
    (directory / "sharp" / "trained.json").write_text('{"config": {}}')
    texts = directory / "texts"
    texts.mkdir()
    for i in range(150):  # short paragraphs that come again and again, so that a student can learn them
        (texts / f"{i}.txt").write_text(f"{i}\n\n" + "the cat sat on\n\n" * 32)
    parts, output = (directory / "sharp",), directory / "out"
    return Options(directory=directory / "model", output=output, text=(texts,), parts=parts, **changes)


def test_training_brings_the_student_to_its_teacher(tmp_path: Path) -> None:
    options = _options(tmp_path, steps=60)
    assert cache.train(options, Watch(), _SETTINGS).is_done
    log = read_log(options.output / "log.jsonl")
    first, last = (sum(line["loss"] for line in part) / 10 for part in (log[1:11], log[-10:]))
    assert last < 0.85 * first


def _stretched(directory: Path) -> tuple[target.Target, torch.Tensor]:
    """A model whose keys have a dim that dwarfs the others, and queries which hardly use it; windows of tokens."""
    loaded = target.load(_options(directory).directory, torch.float32)
    changed = {n: w.clone() for n, w in loaded.weights.items() if n in cache.trained_names(loaded)}
    for name, weight in changed.items():
        weight[5] *= 12 if "k_proj" in name else 0.1
    windows = torch.randint(0, 250, (3, 96), generator=torch.Generator().manual_seed(3))
    return loaded.replaced(changed), windows


def test_mixed_attention_is_the_same_and_no_dim_of_its_keys_stands_out(tmp_path: Path) -> None:
    loaded, windows = _stretched(tmp_path)
    found = mixing.measure_mixing(loaded, windows[:2])
    shipped = mixing.mixed(loaded, dict(found))
    for name in [n for n in found if n.endswith("q_mix")]:  # as it is but for BF16
        exact = torch.linalg.inv(found[name.replace("q_mix", "k_mix")].double()).transpose(1, 2)
        assert (found[name] - exact).abs().max() <= 2**-8 * exact.abs().max()
        found[name] = exact.float()
    mixed = mixing.mixed(loaded, found)
    peaks: list[float] = []  # largest dim of the first head over what dims have on average

    def look(layer: int, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        sizes = k[0, 0].square().mean(0).sqrt()
        peaks.append(float(sizes.max() / sizes.mean()))
        return attend.attend_densely(layer, x, q, k, v)

    exact, again = (of.forward(windows[2:], attend=look).last for of in (loaded, mixed))
    assert (again - exact).abs().max() < 1e-3 * exact.abs().max()
    rounded = shipped.forward(windows[2:]).last
    assert 0 < (rounded - exact).abs().max() < 0.02 * exact.abs().max()
    half = len(peaks) // 2
    assert min(peaks[:half]) > 4 and max(peaks[half:]) < 2, peaks
    assert mixing.measure_mixing(mixed, windows[:2]) == {}


def test_rounded_keys_move_scores_less_when_mixed(tmp_path: Path) -> None:
    loaded, windows = _stretched(tmp_path)
    errors: list[torch.Tensor] = []

    def look(layer: int, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        missed = (attend.straight_through(k) - k).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        errors.append((q @ missed.transpose(-1, -2)).square().mean())
        return attend.attend_densely(layer, x, q, k, v)

    for model in (loaded, mixing.mixed(loaded, mixing.measure_mixing(loaded, windows[:2]))):
        model.forward(windows[2:], attend=look)
    half = len(errors) // 2
    assert torch.stack(errors[half:]).sum() < 0.5 * torch.stack(errors[:half]).sum(), errors


def test_balanced_moments_are_the_same_and_alike_in_all_dims() -> None:
    generator = torch.Generator().manual_seed(0)
    of_queries, of_keys = (
        x.T @ x for x in torch.randn(2, 200, 24, generator=generator) * (0.1 + torch.rand(24, generator=generator))
    )
    mix = mixing.balance(of_queries, of_keys).double()
    undone = torch.linalg.inv(mix)
    keys, queries = mix.T @ of_keys.double() @ mix, undone @ of_queries.double() @ undone.T
    assert torch.allclose(keys, queries, rtol=1e-3, atol=1e-3 * float(keys.diagonal().max()))
    assert keys.diagonal().max() < 2.1 * keys.diagonal().mean()  # a Hartley matrix has entries of up to sqrt(2 / H)
    plain = of_keys.diagonal().sum() * of_queries.diagonal().sum()
    assert keys.diagonal().sum() * queries.diagonal().sum() < plain


def test_queries_count_by_what_errors_of_their_scores_do() -> None:
    """Against drawn errors: the mean square of the output's change, by query, is what the weights say."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(heads, 12, 8, generator=generator) for heads in (4, 2, 2))
    q[:, 5] *= 8  # looks at one key alone: errors of its scores change nothing
    found = mixing.queries_that_matter(q, k, v)
    for group in range(2):
        own = q[2 * group : 2 * group + 2]
        scores = (own @ k[group].T * 8**-0.5).masked_fill(torch.ones(12, 12).triu(1) > 0, -torch.inf)
        errors = 1e-3 * torch.randn(10_000, 2, 12, 12, generator=generator)
        moved = (scores + errors).softmax(-1) @ v[group] - scores.softmax(-1) @ v[group]
        weights = moved.square().sum(-1).mean(0)[..., None]
        expected = torch.einsum("nth,ntg->hg", own * weights, own) / weights.sum()
        assert torch.allclose(found[group], expected, rtol=0.05, atol=0.02)


def test_dims_that_are_hardly_used_are_not_stretched_without_end() -> None:
    of_keys = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.0]))
    mix = mixing.balance(torch.eye(4), of_keys).double()
    assert mix.isfinite().all() and torch.linalg.cond(mix) < 1e4


def test_windows_of_training_and_of_validation_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    moved = target.Target.moved

    def remember(self: target.Target, start: int) -> target.Target:
        places.append(start)
        return moved(self, start)

    options = _options(tmp_path, steps=4)
    monkeypatch.setattr(target.Target, "moved", remember)
    cache.train(options, Watch(), _SETTINGS)
    assert len(set(places)) > 8


def test_pieces_go_on_with_the_matrices_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(tmp_path, steps=4)
    cache.train(replace(options, steps=2), Watch(), _SETTINGS)
    before = target.read_parts(options.output, torch.bfloat16)
    monkeypatch.setattr(cache, "measure_mixing", lambda *_: pytest.fail("measured again"))
    cache.train(options, Watch(), _SETTINGS)
    after = target.read_parts(options.output, torch.bfloat16)
    mixes = [name for name in before if name.endswith("_mix")]
    assert mixes and all(torch.equal(before[name], after[name]) for name in mixes)


def test_a_mixed_model_is_trained_mixed(tmp_path: Path) -> None:
    options = _options(tmp_path, steps=1)
    cache.train(options, Watch(), _SETTINGS)
    parts = (*options.parts, options.output)
    again = replace(options, parts=parts, output=tmp_path / "again")
    cache.train(again, Watch(), _SETTINGS)
    loaded = target.load(options.directory, torch.float32, (*parts, again.output))
    assert loaded.config.use_qk_mix
    work = cache.CacheWork(cache.stage.prepare(again), {}, _SETTINGS, {})
    assert work.student.config.use_qk_mix
    assert not any(name.endswith("_mix") for name in target.read_parts(again.output, torch.float32))


def test_windows_lie_all_over_the_context_and_attention_is_the_same_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, windows = _stretched(tmp_path)
    length = loaded.config.max_position_embeddings
    assert mixing.starts(loaded, windows) == [0, (length - 96) // 2, length - 96]
    assert mixing.starts(loaded, windows[:1]) == [0]
    here, there = (of.forward(windows).last for of in (loaded, loaded.moved(length - 96)))
    assert (there - here).abs().max() < 1e-3 * here.abs().max()
    spread = mixing.measure_mixing(loaded, windows)
    monkeypatch.setattr(mixing, "starts", lambda target, windows: [0] * len(windows))
    assert not torch.equal(spread[_FIRST_MIX], mixing.measure_mixing(loaded, windows)[_FIRST_MIX])


def test_output_is_what_the_next_stage_reads(tmp_path: Path) -> None:
    options = _options(tmp_path, steps=2)
    cache.train(options, Watch(), _SETTINGS)
    described = json.loads((options.output / "trained.json").read_text())
    assert described["steps"] == 2 and described["seed"] == 0 and described["stage"] == "cache"
    assert described["config"] == {
        "quantization_config": {"quant_method": "minnow", "kv_cache": "nvfp4"},
        "text_config": {"use_qk_mix": True},
    }
    before = target.load(options.directory, torch.float32, options.parts)
    after = target.load(options.directory, torch.float32, (*options.parts, options.output))
    changed = {n for n in before.weights if not torch.equal(before.weights[n], after.weights[n])}
    assert changed == set(cache.trained_names(before))
    layers = range(before.config.num_hidden_layers)
    assert after.weights.keys() - before.weights.keys() == {
        f"model.layers.{i}.self_attn.{name}" for i in layers for name in ("q_mix", "k_mix")
    }
    assert {path.name for path in options.output.iterdir()} == {
        "trained.safetensors", "trained.json", "state", "log.jsonl", "loss.svg"
    }  # fmt: skip
