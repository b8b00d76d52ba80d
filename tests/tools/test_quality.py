"""the measurements of tools/quality.py on a tiny model, where their answers are known"""

from pathlib import Path

import pytest
import torch

from minnow.text.tokenizer import Tokenizer
from minnow.tune import attend, index_heads, target
from minnow.tune.text import Stream
from tests.tiny import write_tiny, write_tiny_tokenizer
from tools import quality
from tools.quality import Finding


def test_verdicts() -> None:
    assert Finding(name="cost", value=1.0, bar=1.5).verdict == "met"
    assert Finding(name="cost", value=1.6, bar=1.5).verdict == "missed"
    assert Finding(name="mass", value=0.94, bar=0.93, is_least=True).verdict == "met"
    assert Finding(name="mass", value=0.9, bar=0.93, is_least=True).verdict == "missed"
    assert Finding(name="needles", value=None, bar=95.0).verdict == "not measurable"
    assert Finding(name="perplexity", value=9.0).verdict == ""


def test_needles_are_asked_for_and_answered(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    needles = quality.make_needles(tokenizer, torch.full((1000,), ord("x")), 1000, 3)
    whole = tokenizer.decode(needles.ids.tolist())
    facts, questions = whole[:1000], whole[1000:]
    assert facts.count("The secret word of") == questions.count("The secret word of") == 10
    for start, stop in needles.answers:
        answer = tokenizer.decode(needles.ids[start:stop].tolist())
        asked = tokenizer.decode(needles.ids[:start].tolist()).rsplit("The secret word of ", 1)[1].removesuffix(" is")
        assert f"The secret word of {asked} is{answer}." in facts


@pytest.fixture
def models(tmp_path: Path) -> tuple[target.Target, target.Target, Tokenizer]:
    write_tiny(tmp_path, family="llama", dtype="float32", max_position_embeddings=1024)
    write_tiny_tokenizer(tmp_path)
    model = target.load(tmp_path, torch.float32)
    sparse = index_heads.sparse_config(model.config, index_heads.Settings(num_blocks=16, block_size=16))
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    guesses = [index_heads.first_guess(model, layer, x) for layer in range(3)]
    weights = {name: value for guess in guesses for name, value in guess.items()}
    return model, index_heads.with_heads(model, sparse, weights), Tokenizer.load(tmp_path)


def test_sparse_attention_costs_nothing_while_every_block_is_kept(
    models: tuple[target.Target, target.Target, Tokenizer],
) -> None:
    base, tuned, _ = models
    windows = torch.randint(256, (2, 200), generator=torch.Generator().manual_seed(0))
    value = {finding.name: finding.value for finding in quality.costs(base, tuned, windows)}
    assert value["tuned, dense, BF16 cache: % above"] == 0
    assert value["MSA: % above the tuned model, dense"] == pytest.approx(0, abs=1e-3)
    assert value["MSA, all caches NVFP4: % above"] == pytest.approx(value["untuned, NVFP4 K/V: % above"], abs=1e-3)


def test_needles_found_are_those_that_the_likeliest_tokens_spell(
    models: tuple[target.Target, target.Target, Tokenizer],
) -> None:
    base, _, _ = models
    ids = torch.randint(256, (60,), generator=torch.Generator().manual_seed(1))
    likeliest = base.logits(base.hidden(base.forward(ids[None]).last[0])).argmax(-1)
    ids[41] = likeliest[40]
    ids[50] = (likeliest[49] + 1) % 256
    needles = quality.Needles(ids=ids, answers=((41, 42), (50, 51)))
    assert quality.found_needles(base, needles, attend.attend_densely) == [True, False]


def test_too_few_needles_are_not_measurable(models: tuple[target.Target, target.Target, Tokenizer]) -> None:
    base, tuned, tokenizer = models
    cases = [quality.make_needles(tokenizer, torch.full((900,), 120), 900, 0)]
    counted, share = quality.needle_share(base, tuned, cases)
    assert counted.value == 0 and share.value is None


def test_the_whole_table(models: tuple[target.Target, target.Target, Tokenizer]) -> None:
    base, tuned, tokenizer = models
    held_out = Stream(ids=torch.randint(256, (9000,), generator=torch.Generator().manual_seed(0)))
    findings = quality.measure(base, tuned, tokenizer, held_out, is_quick=True)
    names = [finding.name for finding in findings]
    assert len([name for name in names if name.startswith("mass in chosen blocks, layer")]) == 3
    assert {f.bar for f in findings} == {None, 1.5, 4.0, 0.93, 95.0}
