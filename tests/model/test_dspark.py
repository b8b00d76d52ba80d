"""the drafter against one written anew in plain torch, by the specification's formulas, from the tensors on disk"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from minnow.arch import drafter as drafter_names
from minnow.checkpoint.load import fill, open_drafter, open_weights
from minnow.config.drafter import DrafterConfig
from minnow.formats import mxfp8
from minnow.formats.quantized import Quantized, decode
from minnow.formats.spec import SPEC_BY_NAME
from minnow.model.dspark import Drafter
from tests import tiny
from tests.drive import CPU, make_kernels

CONTEXT, ANCHOR_AT = 60, 60
KINDS: dict[str, dict[str, Any]] = {
    "deepspec": {},
    "m3.1": {"is_m3": True},
    "m3.1 in mxfp8": {
        "is_m3": True,
        "quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
        "dspark_ffn_hidden_size": 64,
    },
    "gated": {"markov_head_type": "gated"},
    "rnn": {"markov_head_type": "rnn", "confidence_head_with_markov": False},
    "reduced": {"draft_vocab_size": 100, "layer_types": ["sliding_attention"] * 2, "sliding_window": 7},
    "top 3": {"dspark_draft_topk": 3, "layers": 1},
}


class Plain:
    """One sequence's drafts, from the specification alone: no operation of ours, no cache."""

    def __init__(self, directory: Path, embedding: Tensor, head: Tensor) -> None:
        raw = json.loads((directory / "config.json").read_text())
        self.fields = raw.get("text_config", raw)
        self.weights = {drafter_names.canonical(k): v for k, v in load_file(directory / "model.safetensors").items()}
        self.embedding, self.head = embedding, head
        self.is_m3 = "text_config" in raw
        if "d2t" in self.weights:
            self.head = head[self.weights["d2t"] + torch.arange(len(self.weights["d2t"]))]

    def w(self, name: str) -> Tensor:
        value = self.weights[f"{name}.weight"]
        scales = self.weights.get(f"{name}.weight_scale_inv")
        return (
            value.float()
            if scales is None
            else value.float() * torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
        )

    def norm(self, name: str, x: Tensor) -> Tensor:
        y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.fields.get("rms_norm_eps", 1e-6))
        return y * (self.w(name) + (1.0 if self.is_m3 else 0.0))

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        width = self.fields.get("rotary_dim", self.fields["head_dim"])
        angle = positions[:, None] / self.fields["rope_theta"] ** (torch.arange(0, width, 2) / width)
        turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        half = width // 2
        turned = torch.complex(x[..., :half], x[..., half:width]) * turn
        return torch.cat((turned.real, turned.imag, x[..., width:]), -1)

    def heads(self, layer: int, name: str, x: Tensor, positions: Tensor) -> Tensor:
        at = f"layers.{layer}.self_attn."
        y = (x @ self.w(f"{at}{name}_proj").T).unflatten(1, (-1, self.fields["head_dim"]))
        return y if name == "v" else self.rope(self.norm(f"{at}{name}_norm", y), positions)

    def feed_forward(self, layer: int, x: Tensor) -> Tensor:
        gate, up = (x @ self.w(f"layers.{layer}.mlp.{name}_proj").T for name in ("gate", "up"))
        if self.fields.get("hidden_act") == "swigluoai":
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
            inner = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        else:
            inner = functional.silu(gate) * up
        return inner @ self.w(f"layers.{layer}.mlp.down_proj").T

    def hidden(self, taps: Tensor, anchor: int, start: int, count: int) -> Tensor:
        """[count D]; the context is positions [0, start)."""
        mask_id = self.fields.get("mask_token_id", self.fields.get("dspark_noise_token_id"))
        past, own = torch.arange(start), torch.arange(start, start + count)
        c = self.norm("hidden_norm", taps @ self.w("fc").T)
        x = self.embedding[torch.tensor([anchor] + [mask_id] * (count - 1))]
        is_sliding = "sliding_attention" in self.fields.get("layer_types", [])
        first = own - self.fields["sliding_window"] + 1 if is_sliding else torch.zeros(count)
        sees = torch.cat((past >= first[:, None], torch.ones(count, count, dtype=torch.bool)), 1)
        for layer in range(self.fields["num_hidden_layers"]):
            at = f"layers.{layer}."
            y = self.norm(f"{at}input_layernorm", x)
            q = self.heads(layer, "q", y, own)
            k = torch.cat((self.heads(layer, "k", c, past), self.heads(layer, "k", y, own)))
            v = torch.cat((self.heads(layer, "v", c, past), self.heads(layer, "v", y, own)))
            k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
            scores = torch.einsum("tnh,cnh->ntc", q, k) / self.fields["head_dim"] ** 0.5
            weights = scores.masked_fill(~sees, -torch.inf).softmax(-1)
            x = x + torch.einsum("ntc,cnh->tnh", weights, v).flatten(1) @ self.w(f"{at}self_attn.o_proj").T
            x = x + self.feed_forward(layer, self.norm(f"{at}post_attention_layernorm", x))
        return self.norm("norm", x)

    def logits(self, hidden: Tensor, before: list[int]) -> Tensor:
        """[count W], each slot after the token before it."""
        kind = self.fields.get("markov_head_type", self.fields.get("dspark_markov_head_type"))
        rank = self.fields.get("markov_rank", self.fields.get("dspark_markov_rank"))
        base, rows, state = hidden @ self.head.T, [], torch.zeros(rank)
        for h, token in zip(hidden, before, strict=True):
            e = self.w("markov_head.markov_w1")[token]
            if kind == "gated":
                gate = self.w("markov_head.gate_proj") @ torch.cat((h, e)) + self.weights["markov_head.gate_proj.bias"]
                e = torch.sigmoid(gate) * e
            if kind == "rnn":
                z = self.w("markov_head.joint_proj") @ torch.cat((state, e, h))
                gate, candidate, out = (z + self.weights["markov_head.joint_proj.bias"]).chunk(3)
                state = torch.sigmoid(gate) * state + (1 - torch.sigmoid(gate)) * torch.tanh(candidate)
                e = torch.tanh(out)
            rows.append(self.w("markov_head.markov_w2") @ e)
        found = base + torch.stack(rows)
        top = self.fields.get("dspark_draft_topk")
        return found if top is None else found.masked_fill(base < base.topk(top, 1).values[:, -1:], -torch.inf)

    def confidence(self, hidden: Tensor, before: list[int]) -> Tensor:
        e = self.w("markov_head.markov_w1")[torch.tensor(before)]
        x = torch.cat((hidden, e), 1) if self.fields.get("confidence_head_with_markov", True) else hidden
        return (x @ self.w("confidence_head.proj").T + self.weights["confidence_head.proj.bias"].float())[:, 0]


def over(context: list[tuple[Tensor, Tensor]], start: int, window: int) -> Callable[..., Tensor]:
    """An `attend` for one block: softmax over the context and itself."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (torch.cat(both).transpose(0, 1) for both in zip(context[layer], (k, v), strict=True))
        own = torch.arange(start, start + len(q))
        first = own - window + 1 if window else torch.zeros(len(q))
        sees = torch.cat((torch.arange(start) >= first[:, None], torch.ones(len(q), len(q), dtype=torch.bool)), 1)
        out = functional.scaled_dot_product_attention(q.transpose(0, 1), keys, values, sees, enable_gqa=True)
        return out.transpose(0, 1)

    return attend


def make(directory: Path, **kind: Any) -> tuple[DrafterConfig, Drafter, Plain]:
    target = tiny.write_tiny(directory, family="llama", dtype="float32")
    config = tiny.write_tiny_drafter(directory, target, **kind)
    drafter = Drafter(config, make_kernels(), torch.float32, CPU)
    fill(drafter, open_drafter(directory / "dspark", config))
    table = open_weights(directory, target).take("model.embed_tokens")
    assert isinstance(table, Tensor)
    drafter.share(table, table)
    return config, drafter, Plain(directory / "dspark", table.float(), table.float())


@pytest.mark.parametrize("kind", KINDS)
def test_it_drafts_what_the_specification_says(tmp_path: Path, kind: str) -> None:
    config, drafter, plain = make(tmp_path, **KINDS[kind])
    generator = torch.Generator().manual_seed(3)
    taps = torch.randn(CONTEXT, 2 * 64, generator=generator)
    count, before = config.block_size, [17, 4, 250, 319, 0]
    ids = torch.tensor([before[0]] + [config.mask_token_id] * (count - 1), dtype=torch.int32)
    context = drafter.context(taps.split(64, 1), torch.arange(CONTEXT, dtype=torch.int32))
    positions = torch.arange(ANCHOR_AT, ANCHOR_AT + count, dtype=torch.int32)
    hidden = drafter.block(ids, positions, over(context, ANCHOR_AT, config.window))
    wanted = plain.hidden(taps, before[0], ANCHOR_AT, count)
    torch.testing.assert_close(hidden, wanted, rtol=1e-4, atol=1e-4)
    assert float(wanted.std()) > 0.3
    base, state, rows = drafter.base(hidden), None, []
    for k, token in enumerate(before):
        row, state = drafter.logits(base[k : k + 1], hidden[k : k + 1], torch.tensor([token]), state)
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows), plain.logits(wanted, before), rtol=1e-4, atol=1e-3)
    assert drafter.confidence is not None
    found = drafter.confidence(hidden, drafter.markov.look_up(torch.tensor(before)))
    torch.testing.assert_close(found, plain.confidence(wanted, before), rtol=1e-4, atol=1e-4)


def test_a_block_sees_all_of_itself(tmp_path: Path) -> None:
    config, drafter, _ = make(tmp_path)
    positions = torch.arange(2, 7, dtype=torch.int32)
    context = drafter.context(torch.randn(2, 128).split(64, 1), torch.arange(2, dtype=torch.int32))
    ids = torch.tensor([5, *[config.mask_token_id] * 4], dtype=torch.int32)
    other = torch.tensor([5, *[config.mask_token_id] * 3, 9], dtype=torch.int32)
    first, second = (drafter.block(i, positions, over(context, 2, 0))[0] for i in (ids, other))
    assert float((first - second).abs().max()) > 1e-3, "the last slot does not reach the first one"


def test_the_target_ids_of_a_reduced_vocabulary(tmp_path: Path) -> None:
    config, drafter, _ = make(tmp_path, draft_vocab_size=100)
    ids = drafter.vocabulary.target_ids
    assert ids is not None and len(ids) == 100 and len(set(ids.tolist())) == 100
    assert drafter.head.weights[0].shape == (100, 64)
    assert config.is_reduced


def test_mxfp8_matrices_are_what_their_codes_say() -> None:
    values = torch.randn(4, 64)
    encoded = mxfp8.encode(values)
    assert isinstance(encoded, Quantized) and encoded.spec is SPEC_BY_NAME["mxfp8"] and encoded.scales is not None
    by_hand = encoded.codes.float() * torch.exp2(encoded.scales.float() - 127).repeat_interleave(32, 1)
    assert torch.equal(decode(encoded), by_hand)
