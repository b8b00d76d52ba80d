"""drafts never change what a request says: greedy tokens, and the law of sampled ones"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minnow.core.request import SamplingParams
from minnow.engine.engine import Engine
from tests import tiny
from tests.engine import drafting, running

PROMPTS = [[5, 9, 200, 7], list(range(40, 90)), [3] * 17, [250, 1, 8, 90, 3, 44, 5, 6, 7, 8, 90, 3, 44]]
DRAFTS = {"method": "dspark", "num_speculative_tokens": 4}
DRAWN = DRAFTS | {"draft_sample_method": "probabilistic"}
BLOCK = DRAWN | {"rejection_sample_method": "block"}


def make(directory: Path, **settings: Any) -> Engine:
    return running.make(directory, dtype="float32", kv_cache_dtype="float32", **settings)


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drafts that are right about every second time."""
    place = tmp_path_factory.mktemp("bigram")
    drafting.write_bigram(place, noise=0.5)
    return place


@pytest.mark.parametrize("kind", [{}, {"draft_vocab_size": 90}, {"sliding_window": 6}, {"markov_head_type": "rnn"}])
def test_the_native_step_and_plain_layers_draft_alike(tmp_path: Path, kind: dict[str, Any]) -> None:
    target = tiny.write_tiny(tmp_path, family="llama", dtype="float32")
    tiny.write_tiny_drafter(tmp_path, target, **kind)
    plain = running.run(make(tmp_path), PROMPTS, running.GREEDY)
    drafts = []
    for backends in ("*=auto", "*=auto,norm=reference", "*=reference"):
        engine = make(tmp_path, speculative_config=DRAFTS, kernel_backends=backends)
        speculator: Any = engine.runner._speculator  # type: ignore[attr-defined]
        seen: list[list[int]] = []
        advance = speculator.advance

        def note(*args: Any, advance: Any = advance, seen: Any = seen) -> Any:
            results = advance(*args)
            seen.extend(row.drafts.ids for row in args[-1].rows.values() if row.drafts is not None)
            return results

        speculator.advance = note
        assert running.run(engine, PROMPTS, running.GREEDY) == plain
        drafts.append(seen)
    assert drafts[0] == drafts[1] == drafts[2] and len(drafts[0]) > 10


@pytest.mark.parametrize("config", [DRAFTS, DRAWN, BLOCK])
def test_greedy_tokens_are_those_of_plain_decoding(bigram: Path, config: dict[str, Any]) -> None:
    plain = running.run(make(bigram), PROMPTS, running.GREEDY)
    engine = make(bigram, speculative_config=config)
    assert running.run(engine, PROMPTS, running.GREEDY) == plain
    stats = engine.stats()
    assert 0.3 < stats.num_accepted_tokens / stats.num_draft_tokens < 0.95
    assert stats.num_accepted_tokens == sum(stats.accepted_per_position)


@pytest.mark.parametrize("config", [DRAWN, BLOCK])
def test_a_drafter_that_is_the_target_is_always_right(tmp_path: Path, config: dict[str, Any]) -> None:
    """Case B02: with q = p every draft is kept, at any temperature, top-k and top-p."""
    drafting.write_bigram(tmp_path, heat=1.5)
    engine = make(tmp_path, speculative_config=config)
    params = [
        running.seeded(1, temperature=1.0),
        running.seeded(2, temperature=0.5, top_k=20),
        running.seeded(3, temperature=2.0, min_p=0.01),
        replace(running.seeded(4), top_p=0.7),
    ]
    running.run(engine, PROMPTS, [replace(p, max_tokens=40) for p in params])
    stats = engine.stats()
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 100


LAWS = {
    "two tokens": (2, {"temperature": 1.0}, 2),
    "three tokens, hot": (3, {"temperature": 1.7}, 1),
    "top-k of four": (4, {"temperature": 0.8, "top_k": 2}, 2),
    "penalties": (2, {"temperature": 1.0, "repetition_penalty": 1.5, "frequency_penalty": 0.4}, 2),
    "top-p and bias": (3, {"temperature": 1.0, "top_p": 0.8, "logit_bias": ((1, 1.0),)}, 2),
}


@pytest.mark.parametrize("config", [DRAFTS, DRAWN, BLOCK], ids=["greedy drafts", "standard", "block"])
@pytest.mark.parametrize("name", LAWS)
def test_four_tokens_have_the_law_of_sampling(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    """Every draw that the engine can make, with and without drafts: the same law, exactly (cases B01, B03, B08)."""
    num_ids, changes, count = LAWS[name]
    drafting.write_bigram(tmp_path, noise=0.8, heat=1.5, vocab_size=num_ids, bos_token_id=None, eos_token_id=None)
    sampling = SamplingParams(**changes, max_tokens=4)

    def engine(**settings: Any) -> Engine:
        return make(tmp_path, enable_prefix_caching=False, **settings)

    wanted = drafting.law_of(engine, [1, 0], sampling)
    found = drafting.law_of(
        lambda: engine(speculative_config=config | {"num_speculative_tokens": count}), [1, 0], sampling
    )
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-6) and len(wanted) > 4
    for ids in {*wanted, *found}:
        assert math.isclose(wanted.get(ids, 0.0), found.get(ids, 0.0), abs_tol=2e-6), ids
