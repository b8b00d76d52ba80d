"""a feature switched on never changes the tokens of a request: one table"""

from pathlib import Path
from typing import Any

import pytest
import torch

from minnow.core.request import Request, SamplingParams
from minnow.engine.engine import Engine
from tests import tiny
from tests.engine import running
from tests.engine.running import GREEDY

_INTEGERS = {"model.layers.*.mlp.up_proj": "int4", "model.layers.*.mlp.down_proj": "int8"}
FAMILIES = {
    "m3": {"family": "m3", "layers": 3},
    "m31-nvfp4": {"family": "m3", "layers": 2, "format": "m3.1", "dtype": "bfloat16"},
    "llama-int": {"family": "llama", "layers": 2, "formats": _INTEGERS},
}


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny.write_tiny(path, **{"dtype": "float32", **FAMILIES[request.param]})
    return path


def _prompts(count: int, longest: int = 150) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = [1, 15, 16, 17, longest] + [int(n) for n in torch.randint(1, 60, (count,), generator=generator)]
    return [torch.randint(0, 300, (n,), generator=generator).tolist() for n in lengths[:count]]


WAYS: dict[str, dict[str, Any]] = {
    "side by side": {},
    "small chunks": {"max_num_batched_tokens": 7},
    "long prompts held back": {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 16},
    "few rows": {"max_num_seqs": 2},
    "preempted": {"num_gpu_blocks_override": 14, "max_num_seqs": 5},
    "reference kernels": {"kernel_backends": "*=reference"},
    "by priority": {"scheduling_policy": "priority"},
    "weights in place": {"safetensors_load_strategy": "lazy"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sampling", [GREEDY, running.seeded(3)], ids=["greedy", "seeded"])
def test_tokens_are_those_of_a_plain_run(directory: Path, way: str, sampling: SamplingParams) -> None:
    prompts = _prompts(8)
    settings = {"dtype": "float32", "kv_cache_dtype": "float32", **WAYS[way]}
    engine = running.make(directory, **settings)
    plain = running.make(directory, dtype="float32", kv_cache_dtype="float32", enable_prefix_caching=False)
    expected = [running.run(plain, [p], sampling)[0] for p in prompts]
    assert running.run(engine, prompts, sampling) == expected
    assert (engine.stats().num_preemptions > 0) == (way == "preempted")
    assert engine.stats().num_free_blocks == engine.stats().num_blocks


@pytest.mark.parametrize("rounding", ["int16", "int8"])
def test_rounded_activations_depend_on_no_neighbour(tmp_path: Path, rounding: str) -> None:
    tiny.write_tiny(tmp_path, dtype="float32", **FAMILIES["llama-int"])
    settings = {"dtype": "float32", "kv_cache_dtype": "fp8", "activation_quantization": rounding}
    prompts = _prompts(8)
    alone = running.make(tmp_path, enable_prefix_caching=False, **settings)
    expected = [running.run(alone, [p], GREEDY)[0] for p in prompts]
    assert running.run(running.make(tmp_path, max_num_batched_tokens=40, **settings), prompts, GREEDY) == expected


@pytest.mark.parametrize("cache", ["float32", "nvfp4"])
@pytest.mark.parametrize("num_tokens", [127, 128, 129, 256, 2_040])
def test_a_cached_prefix_changes_nothing(directory: Path, num_tokens: int, cache: str) -> None:
    """C06: the same prompt three times; the last block of a full hit is computed again."""
    prompt = torch.randint(0, 300, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens)).tolist()
    engine = running.make(directory, dtype="float32", kv_cache_dtype=cache)
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=5)
    seen = []
    for i in range(3):
        engine.add(Request(request_id=str(i), token_ids=tuple(prompt), sampling=sampling))
        outputs = running.finish(engine)[str(i)]
        top = [dict(lp.top) for o in outputs for lp in o.logprobs]
        seen.append((running.tokens(outputs), top))
        cached = outputs[0].num_cached_tokens
        assert cached == (0 if i == 0 else (num_tokens - 1) // 16 * 16)
    for ids, logprobs in seen[1:]:
        assert ids == seen[0][0]
        for now, then in zip(logprobs, seen[0][1], strict=True):
            assert now.keys() == then.keys()
            assert max(abs(now[token] - then[token]) for token in then) <= 1e-4


def test_salts_keep_prefixes_apart(directory: Path) -> None:
    engine = running.make(directory)
    prompt = tuple(range(1, 100))
    cached = []
    for i, salt in enumerate(("a", "b", "a", None)):
        engine.add(Request(request_id=str(i), token_ids=prompt, sampling=GREEDY, cache_salt=salt))
        cached.append(running.finish(engine)[str(i)][0].num_cached_tokens)
    assert cached == [0, 0, 96, 0]


@pytest.mark.parametrize("cache", ["bfloat16", "fp8", "nvfp4"])
def test_every_cache_format_runs_and_repeats(directory: Path, cache: str) -> None:
    settings = {"kv_cache_dtype": cache}
    prompts = _prompts(6)
    first = running.run(running.make(directory, **settings), prompts, GREEDY)
    assert running.run(running.make(directory, **settings), prompts, GREEDY) == first
    assert [len(tokens) for tokens in first] == [12] * 6


def first_gap(engine: Engine, prompt: list[int]) -> float:
    """Between the two likeliest tokens that follow a prompt, in log-probability."""
    changed = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=2)
    engine.add(Request(request_id="gap", token_ids=tuple(prompt), sampling=changed))
    (first, second) = running.finish(engine)["gap"][0].logprobs[0].top
    return first[1] - second[1]


@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_alone_and_in_a_batch_of_32(directory: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal, except where the two likeliest tokens are closer than 1e-3; exceptions are counted."""
    prompts = _prompts(32, longest=90)
    each = [GREEDY if kind == "greedy" else running.seeded(i) for i in range(32)]
    together = running.run(running.make(directory), prompts, each)
    engine = running.make(directory)
    num_exceptions = 0
    for prompt, sampling, batched in zip(prompts, each, together, strict=True):
        alone = running.run(engine, [prompt], sampling)[0]
        if alone != batched:
            place = next(i for i, (a, b) in enumerate(zip(alone, batched, strict=True)) if a != b)
            assert kind == "greedy" and first_gap(engine, prompt + alone[:place]) < 1e-3
            num_exceptions += 1
    with capsys.disabled():
        print(f" [{kind}: {num_exceptions} of 32 differ at a gap below 1e-3]", end="")


def test_recorded_plans_replay_alike(directory: Path, tmp_path: Path) -> None:
    from minnow.engine import record

    path = tmp_path / "steps.jsonl"
    engine = running.make(directory, record=path)
    running.run(engine, _prompts(6), running.seeded(1, logprobs=2))
    engine.close()
    fresh = running.make(directory)
    assert record.replay(path, fresh.runner) is None
