"""what an engine refuses, and that a request costs only itself"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from minnow.core.errors import ConfigError, RequestError
from minnow.core.request import Adapter, MediaItem, Request, SamplingParams
from minnow.core.step import Control
from minnow.engine import record
from minnow.engine.engine import Engine
from tests import tiny
from tests.engine import running
from tests.engine.running import GREEDY


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.write_tiny(path, dtype="float32", layers=2)
    return path


@pytest.fixture
def engine(directory: Path) -> Engine:
    return running.make(directory)


BAD: dict[str, dict[str, Any]] = {
    "prompt": {"token_ids": (1, 320)},
    "prompt ": {"token_ids": (-1,)},
    "prompt  ": {"token_ids": ()},
    "media": {"media": (MediaItem(content_hash="x", offset=0, num_tokens=1),)},
    "adapter": {"adapter": Adapter(name="a", version=1)},
    "max_tokens": {"sampling": SamplingParams(max_tokens=-1)},
    "temperature": {"sampling": SamplingParams(temperature=float("nan"))},
    "temperature ": {"sampling": SamplingParams(temperature="hot")},  # type: ignore[arg-type]
    "max_tokens ": {"sampling": SamplingParams(max_tokens=2.5)},  # type: ignore[arg-type]
    "top_k": {"sampling": SamplingParams(top_k=True)},
    "top_p": {"sampling": SamplingParams(top_p=0.0)},
    "seed": {"sampling": SamplingParams(seed=2**70)},
    "logit_bias": {"sampling": SamplingParams(logit_bias=((999_999, 5.0),))},
    "stop_token_ids": {"sampling": SamplingParams(stop_token_ids=(-1,))},
    "allowed_token_ids": {"sampling": SamplingParams(allowed_token_ids=())},
    "logprobs": {"sampling": SamplingParams(logprobs=100)},
    "prompt_logprobs": {"sampling": SamplingParams(prompt_logprobs=21)},
}  # fmt: skip


@pytest.mark.parametrize("param", BAD)
def test_a_bad_request_costs_only_itself(engine: Engine, param: str) -> None:
    expected = running.run(engine, [[5, 6, 7]], GREEDY)
    engine.add(Request(request_id="good", token_ids=(5, 6, 7), sampling=GREEDY))
    engine.step()
    with pytest.raises(RequestError) as caught:
        engine.add(Request(request_id="bad", **{"token_ids": (1,), **BAD[param]}))
    assert caught.value.param == param.strip()
    outputs = running.finish(engine)
    assert list(outputs) == ["good"]
    assert running.tokens(outputs["good"]) == expected[0][1:]


def test_a_prompt_beyond_the_context_names_both_numbers(directory: Path) -> None:
    engine = running.make(directory, max_model_len=64)
    for num_tokens in (65, 64):
        with pytest.raises(RequestError, match=rf"{num_tokens}.*64|64.*{num_tokens}") as caught:
            engine.add(Request(request_id="long", token_ids=(1,) * num_tokens, sampling=GREEDY))
        assert caught.value.code == "context_length_exceeded"
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    engine.add(Request(request_id="fits", token_ids=(1,) * 63, sampling=sampling))
    outputs = running.finish(engine)["fits"]
    assert (len(running.tokens(outputs)), outputs[-1].finish_reason) == (1, "length")


def test_a_cache_smaller_than_the_context_cuts_the_context(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = running.make(directory, num_gpu_blocks_override=5)
    assert engine.max_model_len == 4 * 16
    assert "context cut to_tokens=64" in capsys.readouterr().err


def test_a_block_size_that_the_model_cannot_use_is_refused_before_weights(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())  # and no weights at all
    for block_size in (64, 128, 256):
        with pytest.raises(ConfigError, match=rf"--block-size.*{block_size}.*16"):
            running.make(tmp_path, block_size=block_size)


def test_aborted_requests_leave_nothing(engine: Engine) -> None:
    for i in range(60):
        engine.add(Request(request_id=str(i), token_ids=tuple(range(1, 40 + i)), sampling=GREEDY))
    for i in range(60):
        engine.step()
        engine.abort(str(i))
        engine.check()
    assert engine.abort("7") is None
    running.finish(engine)
    stats = engine.stats()
    assert stats.num_free_blocks == stats.num_blocks and stats.num_running == stats.num_waiting == 0


def test_the_prefix_cache_can_be_reset(engine: Engine) -> None:
    prompt = tuple(range(1, 100))
    cached = []
    for i in range(3):
        engine.add(Request(request_id=str(i), token_ids=prompt, sampling=GREEDY))
        cached.append(running.finish(engine)[str(i)][0].num_cached_tokens)
        if i == 1:
            assert engine.control(Control(control_id=1, name="reset_prefix_cache")).error is None
    assert cached == [0, 96, 0]
    assert engine.control(Control(control_id=2, name="dance")).error == "no control is called 'dance'"


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_ends_its_own_request(directory: Path, tmp_path: Path, poison: float) -> None:
    """E07: an embedding that is broken; neighbours are unchanged, and nothing of it stays in the prefix cache."""
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["language_model.model.embed_tokens.weight"][7, 0] = poison
    save_file(tensors, tmp_path / "model.safetensors")
    engine = running.make(tmp_path, kv_cache_dtype="nvfp4")
    good, bad = tuple(range(40, 90)), (*range(40, 56), *[7] * 40)
    expected = running.run(running.make(tmp_path, kv_cache_dtype="nvfp4"), [good], GREEDY)[0]
    for i in range(2):
        sampling = replace(GREEDY, prompt_logprobs=1 if i else None)
        engine.add(Request(request_id=f"bad{i}", token_ids=bad, sampling=sampling))
        engine.add(Request(request_id=f"good{i}", token_ids=good, sampling=GREEDY))
        outputs = running.finish(engine)
        (end,) = outputs[f"bad{i}"]
        assert (end.finish_reason, end.error) == ("error", "the model's logits are not finite")
        assert end.num_cached_tokens <= 16  # at most the good block that both share
        assert running.tokens(outputs[f"good{i}"]) == expected
    assert engine.stats().num_errors == 2


def test_a_request_that_leaves_no_token_fails_alone(engine: Engine) -> None:
    stop = SamplingParams(temperature=0.7, allowed_token_ids=(258,), stop_token_ids=(258,), min_tokens=2, max_tokens=4)
    expected = running.run(engine, [[5, 6, 7]], GREEDY)[0]
    engine.add(Request(request_id="closed", token_ids=(1, 2), sampling=stop))
    engine.add(Request(request_id="tiny", token_ids=(1, 2), sampling=SamplingParams(temperature=1e-39, max_tokens=3)))
    engine.add(Request(request_id="good", token_ids=(5, 6, 7), sampling=GREEDY))
    outputs = running.finish(engine)
    assert outputs["closed"][0].error is not None and "no token may be drawn" in outputs["closed"][0].error
    assert len(running.tokens(outputs["tiny"])) >= 1
    assert running.tokens(outputs["good"]) == expected


def test_the_plan_of_a_step_that_fails_is_recorded(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "steps.jsonl"
    engine = running.make(directory, record=path)
    engine.add(Request(request_id="a", token_ids=(1, 2), sampling=GREEDY))
    engine.step()

    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(engine.runner, "launch", fail)
    with pytest.raises(RuntimeError, match="gone"):
        engine.step()
    engine.close()
    steps = list(record.read(path))
    assert [step.result is None for step in steps] == [False, True]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "bfloat16"}, "activations are bfloat16, and only those of --dtype float32"),
        ({"safetensors_load_strategy": "lazy"}, "--safetensors-load-strategy eager copies them"),
        ({"kernel_backends": "norm=reference"}, "asks for norm=reference"),
    ],
)
def test_activations_are_not_rounded_where_nothing_would_do_it(
    directory: Path, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=f"--activation-quantization int8 cannot be had here: .*{words}"):
        running.make(directory, activation_quantization="int8", **{"dtype": "float32", **settings})


def test_there_must_be_something_to_round_for(directory: Path) -> None:
    with pytest.raises(ConfigError, match="int4 and int8 weights, and this checkpoint has none"):
        running.make(directory, activation_quantization="int16", dtype="float32")


def test_dense_attention_leaves_the_index_heads_alone(tmp_path: Path) -> None:
    """With --dense a sparse model is the one whose config.json names no sparse layer."""
    tiny.write_tiny(tmp_path / "sparse", dtype="float32", sparse_topk_blocks=2)
    shutil.copytree(tmp_path / "sparse", tmp_path / "plain")
    raw = json.loads((tmp_path / "plain" / "config.json").read_text())
    raw["text_config"]["sparse_attention_config"] = None
    (tmp_path / "plain" / "config.json").write_text(json.dumps(raw))
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if ".index_" not in k}, tmp_path / "plain" / "model.safetensors")
    prompts = [[(i * 7) % 300 for i in range(150)]]
    settings = {"kv_cache_dtype": "float32", "dtype": "float32"}
    wanted = running.run(running.make(tmp_path / "plain", **settings), prompts, running.GREEDY)
    dense = running.make(tmp_path / "sparse", dense=True, **settings)
    assert running.run(dense, prompts, running.GREEDY) == wanted
    assert running.run(running.make(tmp_path / "sparse", **settings), prompts, running.GREEDY) != wanted
    assert not any(layer.index is not None for layer in dense.runner._pool.layers)  # type: ignore[attr-defined]


def test_a_rule_without_effect_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_tiny_drafter(tmp_path, tiny.write_tiny(tmp_path, family="llama", dtype="float32"))
    for sampling, times in (("greedy", 1), ("probabilistic", 0)):
        drafts = {"method": "dspark", "draft_sample_method": sampling, "rejection_sample_method": "block"}
        running.make(tmp_path, dtype="float32", speculative_config=drafts)
        assert capsys.readouterr().err.count("no effect key=rejection_sample_method") == times
