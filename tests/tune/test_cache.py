"""the rounded cache of training equals the format, and training lowers what it costs"""

import json
from pathlib import Path

import pytest
import torch

from minnow.formats import nvfp4
from minnow.tune import attend, cache, target
from minnow.tune.run import Watch, read_log
from minnow.tune.stage import Options
from tests.tiny import write_tiny, write_tiny_tokenizer

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


def test_output_is_what_the_next_stage_reads(tmp_path: Path) -> None:
    options = _options(tmp_path, steps=2)
    cache.train(options, Watch(), _SETTINGS)
    described = json.loads((options.output / "trained.json").read_text())
    assert described["steps"] == 2 and described["seed"] == 0 and described["stage"] == "cache"
    assert described["config"] == {"quantization_config": {"quant_method": "minnow", "kv_cache": "nvfp4"}}
    before = target.load(options.directory, torch.float32, options.parts)
    after = target.load(options.directory, torch.float32, (*options.parts, options.output))
    changed = {n for n in before.weights if not torch.equal(before.weights[n], after.weights[n])}
    assert changed == set(cache.trained_names(before))
    assert {path.name for path in options.output.iterdir()} == {
        "trained.safetensors", "trained.json", "state", "log.jsonl", "loss.svg"
    }  # fmt: skip
