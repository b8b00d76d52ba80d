from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minnow.arch import size
from minnow.bench import record, step
from minnow.bench.limits import Limits
from minnow.cache.layout import layout_of
from minnow.config import flags
from minnow.config import model as model_config
from minnow.core.errors import ConfigError
from minnow.engine import build, inputs, sampler, scheduler
from minnow.kernels import native
from tests import tiny
from tests.engine import drafting

LIMITS = Limits(
    num_threads=1, instruction_set="x", operations_s={"f32": 1.0}, _bytes_s={1 << n: 1e9 for n in range(20, 31)}
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.write_tiny(path, dtype="float32", layers=2)
    return path


def _run(monkeypatch: pytest.MonkeyPatch, directory: Path, *words: object) -> list[str]:
    monkeypatch.setattr(step, "measure_limits", lambda: LIMITS)
    parser = flags.new_parser("minnow bench step", step.HELP)
    step.add_arguments(parser)
    said: list[str] = []
    fixed = ("--num-threads", 1, "--num-gpu-blocks-override", 60, "--block-size", 16, "--max-num-batched-tokens", 32)
    args = flags.parse(parser, [str(word) for word in (directory, *fixed, *words)])
    assert step.run(args, said.append) == 0
    return said


def test_every_stage_of_prefill_and_decode_has_its_time(
    monkeypatch: pytest.MonkeyPatch, directory: Path, tmp_path: Path
) -> None:
    words = ("--context", 20, 40, "--batch", 3, "--num-steps", 4, "--prefill", 50, "--num-repeats", 2)
    said = _run(monkeypatch, directory, *words, "--record", tmp_path / "r.jsonl")
    assert [line.split(":")[0] for line in said if not line.startswith(" ")] == [
        "prefill, 50 tokens", "decode, 3 x 20 tokens of context", "decode, 3 x 40 tokens of context",
    ]  # fmt: skip
    assert [line.split()[0] for line in said[1:8]] == [*step.STAGES, "Python's"]
    kept = record.read(tmp_path / "r.jsonl")
    assert [entry["settings"] for entry in kept] == [
        {"model": str(directory), "prefill": 50},
        {"model": str(directory), "context": 20, "batch": 3},
        {"model": str(directory), "context": 40, "batch": 3},
    ]
    for entry, num, tokens in zip(kept, (2, 4, 4), (50, 3, 3), strict=True):
        results = entry["results"]
        assert results["num"] == num and results["tokens_s"] == pytest.approx(tokens / results["step_s"])
        assert 0 < results["python_share"] <= 1
        assert all(0 <= results[f"{stage}_s"] <= results["step_high_s"] for stage in step.STAGES)
        assert results["model_s"] > 0 and results["plan_s"] > 0
    last = kept[-1]["results"]
    assert last["share_of_limit"] == pytest.approx((last["weight_bytes"] + last["cache_bytes"]) / 1e9 / last["step_s"])
    assert last["cache_bytes"] > kept[1]["results"]["cache_bytes"]


def test_all_requests_decode_in_every_step_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, directory: Path, tmp_path: Path
) -> None:
    num_tokens: list[int] = []
    commit = scheduler.Scheduler.commit

    def counted(self: Any, *args: Any) -> Any:
        outputs = commit(self, *args)
        num_tokens.append(sum(len(output.token_ids) for output in outputs))
        return outputs

    monkeypatch.setattr(scheduler.Scheduler, "commit", counted)
    _run(monkeypatch, directory, "--prefill", "--context", 150, "--batch", 4, "--num-steps", 10)  # 6 steps a prompt
    first = num_tokens.index(4)
    assert first > 4 * 4 and num_tokens[first : first + 13] == [4] * 13


def test_nothing_stays_timed_afterwards(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    before = (native.function, inputs.build, sampler.sample)
    _run(monkeypatch, directory, "--num-steps", 1, "--prefill")
    assert (native.function, inputs.build, sampler.sample) == before
    with pytest.raises(ValueError), step.watching():
        raise ValueError
    assert (native.function, inputs.build, sampler.sample) == before


def test_native_code_and_the_rest_of_a_step_are_told_apart() -> None:
    now = [0.0]

    def passing(seconds: float) -> None:
        now[0] += seconds

    watch = step.Watch(clock=lambda: now[0])
    native_code, model = watch.wrap(passing, "native"), watch.wrap(lambda: (native_code(3.0), passing(1.0)), "model")

    def whole() -> None:
        model()
        passing(2.0)

    watch.wrap(whole, "step")()
    sample = watch.take()
    assert (sample["step"], sample["model"], sample["native"], sample["rest"]) == (6.0, 4.0, 3.0, 2.0)
    said: list[str] = []
    results = step._report("decode", [sample], 2, said.append)
    assert (results["tokens_s"], results["python_share"]) == (2 / 6, 0.5)
    assert said[-1] == "  Python's share 50.0% of the step is outside native code (1 native calls)"
    assert watch.take()["step"] == 0.0


def test_weights_are_those_of_the_experts_that_a_step_meets() -> None:
    model = model_config.known("MiniMaxAI/MiniMax-M3.1-Flash")
    assert model is not None
    num_bytes: Counter[str] = Counter()
    for share in size.measure(model).shares:
        num_bytes[share.kind] += share.num_bytes
    fixed = num_bytes.total() - num_bytes["vision"] - num_bytes["embedding"] - num_bytes["routed expert"]
    routed = num_bytes["routed expert"] * model.num_experts_per_tok / model.num_local_experts
    assert step.weight_bytes(model, 1) == pytest.approx(fixed + routed)
    assert fixed + 7 * routed < step.weight_bytes(model, 8) < fixed + 8 * routed  # some meet twice


def test_the_embedding_is_read_where_it_is_the_head() -> None:
    model = model_config.parse(tiny.config_json(family="llama"))
    assert model.tie_word_embeddings
    assert step.weight_bytes(model, 1) == size.measure(model).num_bytes


def test_sparse_layers_read_their_index_and_sixteen_blocks() -> None:
    model = model_config.known("MiniMaxAI/MiniMax-M3.1-Flash")
    assert model is not None
    layout, context = layout_of(model, "nvfp4", "nvfp4"), 1 << 20
    num_sparse = sum(model.sparse.is_sparse)
    num_dense = model.num_hidden_layers - num_sparse
    # 576 bytes of keys and values and 72 of index keys a token and layer
    expected = num_sparse * (2048 * 576 + context * 72) + num_dense * context * 576
    assert step.cache_bytes(model, layout, context) == expected
    assert step.cache_bytes(model, layout, 1000) == 1000 * layout.token_bytes


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--num-steps 0", "--num-steps is 0; it must be at least 1"),
        ("--num-repeats 0", "--num-repeats is 0; it must be at least 1"),
        ("--batch 0", "--batch is 0; it must be at least 1"),
        ("--context 16 -1", "--context is -1; it must be at least 1"),
        ("--prefill 0", "--prefill is 0; it must be at least 1"),
        ("--batch 3 --max-num-seqs 2", "--batch is 3, but --max-num-seqs 2; raise that one"),
        ("--batch 33", "--batch is 33, but --max-num-batched-tokens 32; raise that one"),
        (
            "--context 900",
            "--context is 900, with 68 more for --num-steps 64 and warming up, but a request holds 944 tokens; ",
        ),
        (
            "--prefill 16 944",
            "--prefill is 944, with the one it yields, but a request holds 944 tokens; give at most 943",
        ),
        (
            "--num-steps 2000",
            "2004 more for --num-steps 2000 and warming up, but a request holds 944 tokens; give fewer --num",
        ),
        (
            "--max-model-len 100 --context 90 --prefill 9",
            "a request holds 100 tokens; give at most 32",
        ),
        (
            "--batch 4 --context 300",
            "--batch 4 with --context 300 needs a cache of 1664 tokens, and there is one of 944;",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, directory: Path, words: str, sentence: str
) -> None:
    monkeypatch.setattr(build, "build", None)
    with pytest.raises(ConfigError, match=sentence):
        _run(monkeypatch, directory, *words.split())


def test_a_step_needs_a_model() -> None:
    parser = flags.new_parser("minnow bench step", step.HELP)
    step.add_arguments(parser)
    with pytest.raises(ConfigError, match="minnow bench step needs a model"):
        step.run(flags.parse(parser, []), print)


def test_drafts_are_counted_as_tokens_and_room_is_kept_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drafting.write_bigram(tmp_path, noise=0.3)
    drafts = '{"method": "dspark", "num_speculative_tokens": 4}'
    words = ("--context", 20, "--batch", 2, "--num-steps", 6, "--prefill", 30, "--speculative-config", drafts)
    said = _run(monkeypatch, tmp_path, *words, "--record", tmp_path / "r.jsonl")
    results = record.read(tmp_path / "r.jsonl")[-1]["results"]
    assert 1 < results["acceptance_length"] <= 5
    assert results["tokens_s"] == pytest.approx(2 * results["acceptance_length"] / results["step_s"])
    assert f"drafts         {results['acceptance_length']:.2f} tokens" in "\n".join(said)
    with pytest.raises(ConfigError, match="--context is 900, with 196 more"):
        _run(monkeypatch, tmp_path, "--context", 900, *words[2:])
    always = '{"method": "dspark", "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0}'
    _run(monkeypatch, tmp_path, *words[:-1], always, "--record", tmp_path / "s.jsonl")
    assert record.read(tmp_path / "s.jsonl")[-1]["results"]["acceptance_length"] == pytest.approx(3, abs=1)
