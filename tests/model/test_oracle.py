"""the decoder against transformers' MiniMax-M3, and the ways of running it against each other"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from minnow.checkpoint.load import fill, open_weights
from minnow.config import model as model_config
from minnow.config.model import ModelConfig
from minnow.model.decoder import Decoder
from tests.drive import CPU, Driver, even_chunks, make_kernels
from tests.model import oracle

BAR = 1e-4  # largest difference of a logit, f32

# layers, block size, blocks kept, tokens: contexts of 40 blocks and more, so that selection matters
SHAPES = {
    "m3-small-blocks": ([False, True, True], [False, True, True], 16, 4, 41 * 16 + 5, {}),
    "m31-small-blocks": ([True] * 2, [True] * 2, 16, 16, 640, {"num_attention_heads": 8, "num_key_value_heads": 4}),
    "m31-one-group": ([True, True], [False, True], 16, 3, 43 * 16 + 15, {"num_key_value_heads": 1}),
    "dense": ([False, False], [False, True], 16, 4, 300, {"num_attention_heads": 6, "num_key_value_heads": 3}),
    "m31-true-blocks": ([True, True], [False, True], 128, 16, 40 * 128 + 77, {"head_dim": 64, "index_head_dim": 64}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One shape: the reference's answers and our decoder on the exported checkpoint."""

    config: ModelConfig
    decoder: Decoder
    ids: Tensor
    logits: Tensor
    chosen: dict[int, Tensor]
    recorded: list[Tensor]

    def driver(self, num_sequences: int = 1, seed: int = 0) -> Driver:
        num_blocks = num_sequences * -(-len(self.ids) // self.config.sparse.block_size) + 1
        return Driver(self.decoder, self.config, num_blocks=num_blocks, seed=seed)


@pytest.fixture(scope="module", params=SHAPES)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    sparse, moe, block_size, num_blocks, num_tokens, sizes = SHAPES[request.param]
    directory: Path = tmp_path_factory.mktemp(request.param)
    reference = oracle.make(7, sparse=sparse, moe=moe, block_size=block_size, num_blocks=num_blocks, **sizes)
    oracle.export(reference, directory)
    ids = torch.randint(0, 128, (num_tokens,), generator=torch.Generator().manual_seed(1))
    logits, chosen = oracle.forward(reference, ids)
    config = model_config.read(directory)
    kernels = make_kernels()
    recorded: list[Tensor] = []
    choose = kernels.block_topk

    def record(*args: Any) -> Tensor:
        recorded.append(choose(*args))
        return recorded[-1]

    kernels.block_topk = record  # type: ignore[method-assign]
    decoder = Decoder(config, kernels, torch.float32, CPU)
    fill(decoder, open_weights(directory, config))
    yield Setup(config=config, decoder=decoder, ids=ids, logits=logits, chosen=chosen, recorded=recorded)


def test_one_pass_equals_the_reference(setup: Setup) -> None:
    """A14, A15: the same logits, and the same blocks for each query, layer and key/value head."""
    setup.recorded.clear()
    logits = setup.driver().run(setup.ids, [len(setup.ids)])
    assert float((logits - setup.logits).abs().max()) <= BAR
    assert float(setup.logits.std()) > 0.5  # the bar means something
    for blocks, layer in zip(setup.recorded, sorted(setup.chosen), strict=True):
        _check_choice(setup, blocks, setup.chosen[layer])


def _check_choice(setup: Setup, blocks_TIK: Tensor, reference_ITK: Tensor) -> None:
    """Block by block: the same sets, the local block in each, ascending, per key/value head."""
    sparse = setup.config.sparse
    local = torch.arange(len(blocks_TIK)) // sparse.block_size
    assert bool((blocks_TIK == local[:, None, None]).any(-1).all())
    reference = reference_ITK.transpose(0, 1)
    width = int(local[-1]) + 1
    assert torch.equal(_sets(blocks_TIK.long(), width), _sets(reference, width))
    assert not torch.equal(blocks_TIK[:, :1], blocks_TIK[:, -1:]) or blocks_TIK.shape[1] == 1
    assert int((blocks_TIK[-1] >= 0).sum(-1).max()) == sparse.num_blocks < width


def _sets(blocks: Tensor, width: int) -> Tensor:
    sets = torch.zeros(*blocks.shape[:2], width + 1, dtype=torch.bool)
    sets.scatter_(-1, blocks.where(blocks >= 0, width), True)
    return sets[..., :width]


@pytest.mark.parametrize("count", [1, 7, 64, 128, 500, 2048])
def test_chunks_equal_the_reference(setup: Setup, count: int) -> None:
    """A15. The longest context is cut small on its last stretch only, behind one large chunk."""
    num_tokens = len(setup.ids)
    num_chunked = num_tokens if num_tokens < 1000 else min(num_tokens, count * 100)
    chunks = [num_tokens - num_chunked] * (num_tokens > num_chunked) + even_chunks(num_chunked, count)
    setup.recorded.clear()
    logits = setup.driver(seed=count).run(setup.ids, chunks)
    assert float((logits - setup.logits).abs().max()) <= BAR
    layers = sorted(setup.chosen)
    for i, layer in enumerate(layers):
        seen = torch.cat([b for b in setup.recorded[i :: len(layers)]])
        _check_choice(setup, seen, setup.chosen[layer])


def test_sequences_in_one_pool_do_not_meet(setup: Setup) -> None:
    """A12: two sequences, decoded in turn and in one step, with shuffled block tables: as if alone."""
    num_tokens = min(len(setup.ids), 3000)
    other = setup.ids[:num_tokens].flip(0)
    alone = setup.driver(seed=3).run(other, [num_tokens])
    driver = setup.driver(2, seed=4)
    tables = driver.table(num_tokens), driver.table(num_tokens)
    split = num_tokens - 40
    seen: list[list[Tensor]] = [[], []]
    both = (setup.ids[:num_tokens], other)
    for s in (0, 1):
        seen[s] += driver.step([(both[s][:split], 0, tables[s])])
    for t in range(split, num_tokens):
        parts = [(both[s][t : t + 1], t, tables[s]) for s in (0, 1)]
        for s, logits in enumerate(driver.step(parts) if t % 2 else driver.step(parts[::-1])[::-1]):
            seen[s].append(logits)
    assert float((torch.cat(seen[0]) - setup.logits[:num_tokens]).abs().max()) <= BAR
    assert float((torch.cat(seen[1]) - alone).abs().max()) <= BAR


def test_rubbish_in_unwritten_slots_changes_nothing(setup: Setup) -> None:
    """A13: NaN or large values where nobody has written; every run is the same, bit by bit."""
    block = setup.config.sparse.block_size
    lengths = [1, block - 1, block, block + 1, 17 * block - 1, 17 * block, 17 * block + 1]
    lengths = lengths if block == 16 else [1, block + 1, 17 * block, 39 * block + 8]
    for num_tokens in (n for n in lengths if n <= len(setup.ids)):
        ids = setup.ids[:num_tokens]
        clean = setup.driver().run(ids, [num_tokens])
        for poison in (torch.nan, 1e4):
            driver = setup.driver()
            driver.pool.rows.view(torch.float32).fill_(poison)
            assert torch.equal(driver.run(ids, [num_tokens]), clean)
