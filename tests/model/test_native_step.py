"""the native call against the decoder on the references, step by step over one cache each"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minnow.cache.layout import layout_of
from minnow.cache.pool import Pool
from minnow.checkpoint.load import fill, open_weights
from minnow.formats.quantized import decode
from minnow.kernels import native, registry
from minnow.kernels.decoder_step.cpu import _shared_kind
from minnow.model.decoder import Decoder
from minnow.model.native_step import NativeStep, refusal
from minnow.model.step import StepInputs, StepOutput
from tests.tiny import layer_formats, m3_text, write_tiny

_CPU = torch.device("cpu")


class Pair:
    """A decoder on the references and the native step of the same weights, each with a cache of its own."""

    def __init__(
        self, directory: Path, activations: torch.dtype, cache_format: str, *, is_resident: bool = False, **tiny
    ) -> None:
        self.config = write_tiny(directory, **tiny)
        reference = registry.bind(registry.target_of(_CPU), "*=reference")
        self.decoder = Decoder(self.config, reference, activations, _CPU)
        fill(self.decoder, open_weights(directory, self.config))
        layout = layout_of(self.config, cache_format, cache_format)
        self.block_size = layout.block_size
        self.pools = Pool(layout, 40, _CPU), Pool(layout, 40, _CPU)
        self.native = NativeStep(self.decoder, self.pools[1].layers, is_resident=is_resident)
        self.generator = torch.Generator().manual_seed(5)

    def inputs(self, sequences: list[tuple[int, int]]) -> StepInputs:
        """Of each sequence (tokens before, tokens now); sequence s has pool blocks 1 + 10 s and up, shuffled."""
        counts = [now for _, now in sequences]
        positions = torch.cat([torch.arange(before, before + now) for before, now in sequences]).int()
        owner = torch.repeat_interleave(torch.arange(len(sequences)), torch.tensor(counts))
        table = torch.stack(
            [torch.randperm(10, generator=torch.Generator().manual_seed(s)) + 1 + 10 * s for s in range(3)]
        )
        place = positions.long() // self.block_size
        return StepInputs(
            ids=torch.randint(0, 250, (sum(counts),), generator=self.generator, dtype=torch.int32),
            positions=positions,
            slots=table[owner, place] * self.block_size + positions.long() % self.block_size,
            query_start=torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32),
            block_table=table[: len(sequences)].int(),
            logits_rows=torch.tensor(counts).cumsum(0) - 1,
            tap_layers=(0, 2),
        )

    def run(self, inputs: StepInputs) -> tuple[StepOutput, StepOutput]:
        """What the decoder says, and the native step."""
        return self.decoder(inputs, self.pools[0].layers), self.native(inputs, self.pools[1].layers)


def _close(seen: StepOutput, expected: StepOutput, share: float) -> None:
    """No further apart than a share of the largest value."""
    for a, b in zip(
        (seen.logits, seen.hidden, *seen.taps), (expected.logits, expected.hidden, *expected.taps), strict=True
    ):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert (a.float() - b.float()).abs().max() <= share * b.float().abs().max()


@pytest.mark.parametrize("use_qk_mix", [False, True])
@pytest.mark.parametrize("family", ["m3", "llama"])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_native_step_is_the_decoder(tmp_path, family, num_threads, use_qk_mix):
    """FP32 all through: prefill, decode, a verify step, several sequences, and one that only just begins."""
    before = native.num_threads()
    native.set_threads(num_threads)
    try:
        tiny = {"family": family, "dtype": "float32", "use_qk_mix": use_qk_mix}
        pair = Pair(tmp_path, torch.float32, "f32", **tiny)
        steps = [[(0, 37)], [(37, 1)], [(38, 5), (0, 17)], [(43, 1), (17, 1), (0, 16)], [(44, 1), (18, 20)]]
        for step in steps:
            expected, seen = pair.run(pair.inputs(step))
            _close(seen, expected, 1e-5)
    finally:
        native.set_threads(before)


@pytest.mark.parametrize("family", ["m3", "llama"])
def test_mixing_queries_and_keys_changes_no_answer(tmp_path, family):
    """Products of queries and keys stay."""
    pair = Pair(tmp_path, torch.float32, "f32", family=family, dtype="float32", use_qk_mix=True)
    plain = replace(pair.config, use_qk_mix=False)
    decoder = Decoder(plain, registry.bind(registry.target_of(_CPU), "*=reference"), torch.float32, _CPU)
    for one, other in zip(decoder.modules(), pair.decoder.modules(), strict=True):
        if hasattr(one, "weights"):
            one.weights = other.weights[: len(one.weight_names)]  # what mixes comes last
    keys = [pair.pools[i].layers[1].k for i in range(2)]
    for step in ([(0, 37)], [(37, 1)], [(38, 5), (0, 17)]):
        inputs = pair.inputs(step)
        mixed = pair.decoder(inputs, pair.pools[0].layers)
        _close(mixed, decoder(inputs, pair.pools[1].layers), 1e-5)
    assert (keys[0] - keys[1]).abs().max() > 0.1  # and yet the caches hold other numbers


@pytest.mark.parametrize("is_resident", [False, True])
def test_matrices_that_mix_may_be_bf16(tmp_path, is_resident):
    """As parts bring them; the native step reads a copy in FP32, which lives as long as it does."""
    pair = Pair(tmp_path, torch.float32, "f32", is_resident=is_resident, family="llama", use_qk_mix=True)
    assert pair.decoder.layers[0].attention.turn_k.parts[1].dtype == torch.bfloat16
    for step in ([(0, 21)], [(21, 1)], [(22, 3), (0, 1)]):
        expected, seen = pair.run(pair.inputs(step))
        _close(seen, expected, 1e-5)


@pytest.mark.parametrize(("experts", "projections"), [("nvfp4", "int4"), ("int4", "int8")])
@pytest.mark.parametrize("is_resident", [False, True])
def test_every_instruction_set_computes_the_same_step(tmp_path, isa, experts, projections, is_resident):
    """From weights where they are, and from copies in tiles."""
    formats = layer_formats("m3", experts, projections)
    pair = Pair(tmp_path, torch.float32, "f32", is_resident=is_resident, formats=formats, dtype="float32")
    for step in ([(0, 21)], [(21, 1)], [(22, 3), (0, 1)]):
        expected, seen = pair.run(pair.inputs(step))
        _close(seen, expected, 1e-5)


def sparse(index_dim: int) -> dict[str, Any]:
    """A Llama-like model that keeps 4 blocks of 16 in every layer."""
    flags = {"sparse_attention_freq": [1, 1, 1], "sparse_disable_index_value": [1, 1, 1]}
    config = m3_text(3)["sparse_attention_config"] | {"sparse_index_dim": index_dim, **flags}
    return {"family": "llama", "layers": 3, "dtype": "float32", "head_dim": 64, "sparse_attention_config": config}


@pytest.mark.parametrize("cache", ["fp8", "bf16"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_generated_tokens_are_the_same_one_by_one_and_computed_anew(tmp_path, isa, cache, is_sparse):
    """To the bit, as after a preemption: the step that a token is in does not change how it is computed."""
    kind = sparse(64) if is_sparse else {"family": "llama", "dtype": "float32", "head_dim": 64}
    pair = Pair(tmp_path, torch.float32, cache, **kind)
    whole = replace(pair.inputs([(0, 80)]), prompt_end=torch.tensor([37], dtype=torch.int32), tap_layers=(1,))
    anew = pair.native(whole, pair.pools[1].layers)
    for step in ([(0, 20)], [(20, 17)], *([(at, 1)] for at in range(37, 75)), [(75, 5)]):
        (first, count) = step[0]
        inputs = replace(
            pair.inputs(step),
            ids=whole.ids[first : first + count].clone(),
            prompt_end=whole.prompt_end,
            tap_layers=(1,),
        )
        seen = pair.native(inputs, pair.pools[1].layers)
        assert torch.equal(seen.taps[0], anew.taps[0][first : first + count])
    assert torch.equal(seen.logits, anew.logits)
    as_prompt = pair.native(replace(whole, prompt_end=None), pair.pools[1].layers)
    is_same = torch.equal(as_prompt.taps[0][37:], anew.taps[0][37:])
    assert torch.equal(as_prompt.taps[0][:37], anew.taps[0][:37]) and is_same == (isa != "amx")
    expected = pair.decoder(whole, pair.pools[0].layers)
    _close(anew, expected, 2**-4)  # keys and values that round otherwise


@pytest.mark.parametrize("index_dim", [32, 64, 128])
def test_blocks_are_chosen_where_there_are_more_than_are_kept(tmp_path, isa, index_dim):
    """Before, during and after the step in which a sequence grows past them, with one beside it that has not."""
    pair = Pair(tmp_path, torch.float32, "f32", **sparse(index_dim))
    ends = torch.tensor([37, 10], dtype=torch.int32)
    steps = [
        [(0, 50)],
        [(50, 13)],
        [(63, 1)],
        [(64, 1), (0, 17)],
        [(65, 40)],
        [(105, 4), (17, 2)],
        [(109, 30), (19, 1)],
    ]
    for step in steps:
        expected, seen = pair.run(replace(pair.inputs(step), prompt_end=ends[: len(step)]))
        _close(seen, expected, 1e-5)


@pytest.mark.parametrize("cache", ["fp8", "bf16", "nvfp4"])
@pytest.mark.parametrize("is_generated", [False, True])
def test_a_row_is_the_same_beside_one_that_has_to_choose(tmp_path, isa, cache, is_generated):
    """To the bit: what is left out where nothing is to be chosen changes nothing."""
    pair = Pair(tmp_path, torch.float32, cache, **sparse(128))
    ends = torch.tensor([20, 5 if is_generated else 40], dtype=torch.int32)
    pair.native(replace(pair.inputs([(0, 90), (0, 30)]), prompt_end=ends), pair.pools[1].layers)
    both = replace(pair.inputs([(90, 3), (30, 4)]), prompt_end=ends, tap_layers=(2,))
    beside = pair.native(both, pair.pools[1].layers)
    alone = pair.native(
        replace(
            both,
            ids=both.ids[3:].clone(),
            positions=both.positions[3:].clone(),
            slots=both.slots[3:].clone(),
            query_start=torch.tensor([0, 4], dtype=torch.int32),
            block_table=both.block_table[1:].clone(),
            logits_rows=torch.tensor([3]),
            prompt_end=ends[1:].clone(),
        ),
        pair.pools[1].layers,
    )
    assert torch.equal(alone.taps[0], beside.taps[0][3:]) and torch.equal(alone.logits, beside.logits[1:])


@pytest.mark.parametrize("routed", ["nvfp4", "int4"])
def test_a_shared_expert_like_the_others_is_computed_with_them(tmp_path, isa, routed):
    names = [f"model.layers.*.block_sparse_moe.experts.*.{name}" for name in ("w1", "w2", "w3")]
    names += [f"model.layers.*.block_sparse_moe.shared_experts.{name}_proj" for name in ("gate", "up", "down")]
    formats = dict.fromkeys(names, routed)
    pair = Pair(
        tmp_path, torch.float32, "f32", is_resident=True, formats=formats, dtype="float32", shared_intermediate_size=32
    )
    layers = pair.native._model.parts.layers
    assert [_shared_kind(layer) for layer in layers] == [1] + [2] * (len(layers) - 1)  # the first is dense
    for step in ([(0, 21)], [(21, 1)], [(22, 3), (0, 1)]):
        expected, seen = pair.run(pair.inputs(step))
        _close(seen, expected, 1e-5)


@pytest.mark.parametrize("family", ["m3", "llama"])
def test_bf16_activations_meet_tiles(tmp_path, isa, family):
    """Dense and routed experts, few rows and many; all experts are chosen, so that no rounding chooses others."""
    formats, every = layer_formats(family, "int4", "int8"), {"num_experts_per_tok": 8} if family == "m3" else {}
    pair = Pair(tmp_path, torch.bfloat16, "bf16", is_resident=True, family=family, formats=formats, **every)
    for step in ([(0, 70)], [(70, 1)], [(71, 12), (0, 1)]):
        expected, seen = pair.run(pair.inputs(step))
        _close(seen, expected, 2**-6)


@pytest.mark.parametrize("cache", ["bf16", "fp8", "nvfp4"])
def test_bf16_activations_and_quantised_caches_differ_by_roundings_alone(tmp_path, cache):
    """A sum in another order may round to the neighbour, in an activation or in the cache; no more than that."""
    pair = Pair(tmp_path, torch.bfloat16, cache, format="m3.1")
    for step in ([(0, 33)], [(33, 1)], [(34, 2), (0, 16)]):
        expected, seen = pair.run(pair.inputs(step))
        _close(seen, expected, 2**-6)  # two steps of a BF16 number
    first, second = (pool.layers[0] for pool in pair.pools)
    assert (decode(first.k) != decode(second.k)).float().mean() < 0.01  # before any sum of other sums


def test_embeddings_stand_in_for_ids(tmp_path):
    pair = Pair(tmp_path, torch.float32, "f32", dtype="float32")
    inputs = pair.inputs([(0, 9)])
    embeddings = torch.randn(2, pair.config.hidden_size, generator=pair.generator)
    inputs = replace(inputs, embeddings=embeddings, embedding_rows=torch.tensor([1, 6]))
    expected, seen = pair.run(inputs)
    _close(seen, expected, 1e-5)


def test_a_step_that_samples_nothing_has_no_logits(tmp_path):
    pair = Pair(tmp_path, torch.float32, "f32", dtype="float32")
    _, seen = pair.run(replace(pair.inputs([(0, 9)]), logits_rows=torch.tensor([], dtype=torch.int64)))
    assert seen.logits.shape == (0, pair.config.vocab_size)


def test_it_stands_aside_where_another_backend_is_asked_for():
    target = registry.target_of(_CPU)
    assert refusal(registry.bind(target)) is None
    assert refusal(registry.bind(target, "experts=reference")) == "--kernel-backends asks for experts=reference"
