"""references against hand-computed values and second formulations"""

import dataclasses
import math

import pytest
import torch

from minnow.formats.quantized import decode, encode
from minnow.kernels.block_topk.reference import block_topk
from minnow.kernels.dense_attention.reference import dense_attention
from minnow.kernels.experts.activation import Activation
from minnow.kernels.experts.reference import activate, experts
from minnow.kernels.index_score.reference import index_score
from minnow.kernels.kv_write.reference import kv_write
from minnow.kernels.norm.reference import norm
from minnow.kernels.paged import make_tables
from minnow.kernels.qk_norm_rope.reference import qk_norm_rope
from minnow.kernels.route.reference import route
from minnow.kernels.sample.reference import sample
from minnow.kernels.sparse_attention.reference import sparse_attention


def test_zero_gemma_weight_is_the_identity_scale() -> None:
    x = torch.randn(3, 16)
    plain = x / x.square().mean(-1, keepdim=True).sqrt()
    assert torch.allclose(norm(x, torch.zeros(16), 0.0, 1.0), plain, atol=1e-6)


@pytest.mark.parametrize(
    ("gate", "up", "out"), [(0, 0, 0), (1, 1, 1.691592), (2, -0.5, 0.967829), (10, -9, -41.999719), (-3, 8, -0.144570)]
)
def test_swiglu_oai(gate: float, up: float, out: float) -> None:
    seen = activate(torch.tensor(float(gate)), torch.tensor(float(up)), Activation(kind="swigluoai"))
    assert float(seen) == pytest.approx(out, abs=2e-6)


def test_router_golden() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.5, -1.0, 1.5, 0.0]])
    bias = torch.tensor([0.0, 0.3, 0.0, 0.9, -0.5, 0.1])
    ids, weights = route(logits, torch.eye(6), bias, 4, 2.0)
    assert ids.tolist() == [[3, 1, 0, 2]]
    assert weights[0].tolist() == pytest.approx([0.214873, 0.584086, 0.703721, 0.497320], abs=1e-6)


def test_router_ties_go_to_the_lower_expert() -> None:
    ids, _ = route(torch.ones(1, 2), torch.zeros(5, 2), None, 3, 1.0)
    assert ids.tolist() == [[0, 1, 2]]


_KEYS = [
    [(0.1, 0.2), (0.9, 0), (-1, 0.4), (0.3, 0.3)],
    [(0.5, 0.5), (0.2, 0.1), (0, 0), (0.4, -0.2)],
    [(0.2, 0.2), (0.1, 0.1), (-0.3, 1), (0.75, 0.3)],
    [(0.8, 0.2), (0, 0.1), (0.3, 0.2), (0.2, 0)],
    [(-0.5, 0.1), (-0.9, -0.9), (9, 9), (9, 9)],
]


def test_block_choice_golden() -> None:
    # ten times the published keys, rounded to tenths: exact in binary, so that equal scores are equal
    cache = (torch.tensor(_KEYS) * 100).round()[:, None] / 10
    table = torch.arange(5, dtype=torch.int32)[None]
    for position, maxima, chosen in ((17, [9, 7.5, 9, 9, -4.5], [0, 2, 4]), (5, None, [0, 1, -1])):
        positions = torch.tensor([position], dtype=torch.int32)
        scores = index_score(
            torch.tensor([[[1.0, 0.5]]]), cache, table, torch.tensor([0, 1], dtype=torch.int32), positions
        )
        if maxima is not None:
            assert scores[0, 0].tolist() == maxima
        assert block_topk(scores, positions, 3, 4, 1, 0)[0, 0].tolist() == chosen


def test_the_newest_block_is_kept_though_it_scores_worst() -> None:
    """40 blocks, the newest the worst: it is chosen and exactly 15 others; at most 2,048 keys are read."""
    scores = torch.randn(1, 4, 40)
    scores[..., 39] = -1e9
    for filled in (1, 77, 128):
        positions = torch.tensor([39 * 128 + filled - 1], dtype=torch.int32)
        blocks = block_topk(scores, positions, 16, 128, 1, 0)
        for head in range(4):
            chosen = blocks[0, head].tolist()
            assert chosen == sorted(chosen) and chosen[-1] == 39
            others = set(scores[0, head, :39].topk(15).indices.tolist())
            assert set(chosen[:-1]) == others
            num_keys = sum(min(128, int(positions[0]) + 1 - b * 128) for b in chosen)
            assert num_keys == 15 * 128 + filled <= 2048


def test_equal_scores_go_to_the_lower_block() -> None:
    blocks = block_topk(torch.zeros(1, 1, 40), torch.tensor([40 * 128 - 1], dtype=torch.int32), 16, 128, 1, 0)
    assert blocks[0, 0].tolist() == [*range(15), 39]


def test_first_blocks_are_kept_when_asked() -> None:
    scores = torch.arange(10.0)[None, None]
    blocks = block_topk(scores, torch.tensor([10 * 16 - 1], dtype=torch.int32), 4, 16, 1, 2)
    assert blocks[0, 0].tolist() == [0, 1, 8, 9]


def test_a_block_that_begins_after_the_query_is_never_chosen() -> None:
    positions = torch.arange(80, dtype=torch.int32)
    blocks = block_topk(torch.randn(80, 2, 5), positions, 4, 16, 1, 0)
    assert bool((blocks.long() * 16 <= positions[:, None, None]).all())
    counts = (blocks >= 0).sum(-1)
    assert bool((counts == (positions // 16 + 1).clamp(max=4)[:, None]).all())


def _attention_inputs(contexts: tuple[int, ...], queries: tuple[int, ...]) -> dict[str, torch.Tensor]:
    tables, num_blocks = make_tables(torch.device("cpu"), 16, contexts, queries)
    caches = {name: torch.randn(num_blocks, 2, 16, 32) for name in ("k_cache", "v_cache")}
    return {"q": torch.randn(sum(queries), 4, 32), **caches, **tables}


def _plain(inputs: dict[str, torch.Tensor], s: int, t: int, keys: torch.Tensor) -> torch.Tensor:
    """Attention of token t over key positions, one head at a time."""
    blocks = inputs["block_table"][s][keys // 16].long()
    out = []
    for n in range(4):
        k = inputs["k_cache"][blocks, n // 2, keys % 16].double()
        v = inputs["v_cache"][blocks, n // 2, keys % 16].double()
        p = (k @ inputs["q"][t, n].double() / math.sqrt(32)).softmax(0)
        out.append(p @ v)
    return torch.stack(out).float()


def test_dense_attention_is_causal_softmax() -> None:
    inputs = _attention_inputs((37, 16), (5, 16))
    out = dense_attention(**inputs, scale=32**-0.5)
    for t in range(21):
        s = 0 if t < 5 else 1
        keys = torch.arange(int(inputs["positions"][t]) + 1)
        assert torch.allclose(out[t], _plain(inputs, s, t, keys), atol=1e-5)


def test_sparse_attention_reads_the_chosen_blocks_alone() -> None:
    inputs = _attention_inputs((75,), (3,))
    blocks = torch.tensor([[0, 2, 4], [1, 4, -1]], dtype=torch.int32).expand(3, 2, 3).contiguous()
    out = sparse_attention(**inputs, blocks=blocks, scale=32**-0.5)
    for t in range(3):
        position = int(inputs["positions"][t])
        for g, chosen in enumerate(((0, 2, 4), (1, 4))):
            keys = torch.tensor([p for b in chosen for p in range(b * 16, b * 16 + 16) if p <= position])
            expected = _plain(inputs, 0, t, keys)
            assert torch.allclose(out[t, 2 * g : 2 * g + 2], expected[2 * g : 2 * g + 2], atol=1e-5)


def test_all_blocks_make_sparse_attention_dense() -> None:
    inputs = _attention_inputs((60, 17), (60, 17))
    blocks = torch.arange(4, dtype=torch.int32).expand(77, 2, 4).contiguous()
    blocks = blocks.where(blocks * 16 <= inputs["positions"][:, None, None], -1)
    sparse = sparse_attention(**inputs, blocks=blocks, scale=32**-0.5)
    assert torch.allclose(sparse, dense_attention(**inputs, scale=32**-0.5), atol=1e-5)


@pytest.mark.parametrize("poison", [math.nan, 1e4, math.inf])
def test_unwritten_slots_are_never_read(poison: float) -> None:
    for context in (1, 15, 16, 17, 47, 48, 49):
        inputs = _attention_inputs((context,), (1,))
        blocks = torch.arange(4, dtype=torch.int32).expand(1, 2, 4).contiguous()
        blocks = blocks.where(blocks * 16 < context, -1)
        index = {name: inputs[name] for name in ("block_table", "query_start", "positions")}
        clean = (
            dense_attention(**inputs, scale=0.2),
            sparse_attention(**inputs, blocks=blocks, scale=0.2),
            index_score(inputs["q"], inputs["k_cache"][:, :1], **index),
        )
        last = int(inputs["block_table"][0, (context - 1) // 16])
        for cache in ("k_cache", "v_cache"):
            inputs[cache][last, :, (context - 1) % 16 + 1 :] = poison
            inputs[cache][0] = poison
        seen = (
            dense_attention(**inputs, scale=0.2),
            sparse_attention(**inputs, blocks=blocks, scale=0.2),
            index_score(inputs["q"], inputs["k_cache"][:, :1], **index),
        )
        for a, b in zip(seen, clean, strict=True):
            assert torch.equal(a, b)


def test_rope_rotates_pairs_half_a_rotary_width_apart() -> None:
    x = torch.randn(1, 1, 8)
    inv_freq = torch.tensor([1.0, 0.1])
    y = qk_norm_rope(x, None, torch.tensor([3], dtype=torch.int32), inv_freq, 1e-6, 1.0)
    for j, angle in enumerate((3.0, 0.3)):
        turned = complex(x[0, 0, j], x[0, 0, j + 2]) * complex(math.cos(angle), math.sin(angle))
        assert float(y[0, 0, j]) == pytest.approx(turned.real, abs=1e-6)
        assert float(y[0, 0, j + 2]) == pytest.approx(turned.imag, abs=1e-6)
    assert torch.equal(y[..., 4:], x[..., 4:])


@pytest.mark.parametrize("name", ["bf16", "fp8", "nvfp4"])
def test_kv_write_touches_its_slots_alone(name: str) -> None:
    cache = encode(name, torch.zeros(3, 2, 16, 32))
    values = torch.randn(2, 2, 32)
    kv_write(values, cache, torch.tensor([17, -1]))
    seen = decode(cache)
    expected = torch.zeros(3, 2, 16, 32)
    expected[1, :, 1] = decode(encode(name, values[0])) if name != "fp8" else values[0].to(torch.float8_e4m3fn).float()
    assert torch.equal(seen, expected)


@pytest.mark.parametrize("name", ["fp8", "nvfp4"])
def test_kv_write_heeds_the_outer_scale(name: str) -> None:
    """E06: an outer scale of 0.25 changes the stored bytes, and the values that are read stay the same."""
    values = torch.tensor([0.5, 1.0, -2.0, 3.0] * 8).expand(1, 1, 32)
    plain, scaled = (encode(name, torch.zeros(2, 1, 16, 32)) for _ in range(2))
    plain, scaled = (dataclasses.replace(c, global_scale=s) for c, s in ((plain, None), (scaled, torch.tensor(0.25))))
    for cache in (plain, scaled):
        kv_write(values, cache, torch.tensor([16]))
        assert torch.equal(decode(cache)[1, :, 0], values[0])
    changed = "scales" if name == "nvfp4" else "codes"
    stored = [getattr(c, changed).view(torch.uint8)[1, 0, 0] for c in (plain, scaled)]
    assert not torch.equal(*stored)


def test_experts_equal_a_token_by_token_sum() -> None:
    table = [(torch.randn(6, 8), torch.randn(6, 8), torch.randn(8, 6)) for _ in range(4)]
    x, ids, weights = torch.randn(5, 8), torch.stack([torch.randperm(4)[:2] for _ in range(5)]), torch.rand(5, 2)
    act = Activation(kind="silu")
    seen = experts(x, ids, weights, table, act)
    for t in range(5):
        expected = torch.zeros(8)
        for e, w in zip(ids[t].tolist(), weights[t], strict=True):
            gate, up, down = table[e]
            expected += w * (down @ (torch.nn.functional.silu(gate @ x[t]) * (up @ x[t])))
        assert torch.allclose(seen[t], expected, atol=1e-4)


def _draws(num: int, **settings: float) -> torch.Tensor:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0]).expand(num, 5)
    named = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
    columns = {k: torch.full((num,), v, dtype=torch.int64 if k == "top_k" else torch.float32) for k, v in named.items()}
    uniform = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    return sample(logits, **columns, uniform=uniform)


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0], dtype=torch.float64)
    for heat in (0.5, 1.0, 2.0):
        share = torch.bincount(_draws(20_000, temperature=heat), minlength=5) / 20_000
        assert torch.allclose(share.double(), (logits / heat).softmax(0), atol=2e-4)


def test_sampling_limits() -> None:
    p = torch.tensor([2.0, 1.0, 0.0, -1.0, -5.0]).softmax(0)
    assert set(_draws(999, top_k=2).tolist()) == {0, 1}
    assert set(_draws(999, top_p=float(p[0]) - 1e-3).tolist()) == {0}
    assert set(_draws(999, top_p=float(p[0]) + 1e-3).tolist()) == {0, 1}
    assert set(_draws(999, min_p=0.2).tolist()) == {0, 1}
    assert set(_draws(999, temperature=0.0).tolist()) == {0}
    share = torch.bincount(_draws(20_000, top_k=2), minlength=5)[:2] / 20_000
    assert torch.allclose(share, p[:2] / p[:2].sum(), atol=2e-4)
