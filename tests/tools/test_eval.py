"""the measurements of tools/eval on tiny models, where their answers are known"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minnow.bench import record
from minnow.bench.sides import SideError
from minnow.cache.layout import layout_of
from minnow.checkpoint import demo
from minnow.core.request import SamplingParams
from minnow.text.tokenizer import Tokenizer
from tests import tiny
from tests.engine import drafting
from tools.eval import __main__ as whole
from tools.eval import attention, drafts, quality, speed
from tools.eval.finding import Finding, page
from tools.eval.models import Models, caches, score

SPARSE = {
    "use_sparse_attention": True,
    "sparse_index_dim": 16,
    "sparse_num_index_heads": 2,
    "sparse_topk_blocks": 4,
    "sparse_block_size": 16,
    "sparse_init_block": 0,
    "sparse_local_block": 1,
    "sparse_attention_freq": [1, 1, 1],
    "sparse_disable_index_value": [1, 1, 1],
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = [[5, 9, 200, 7], list(range(40, 90)), [3] * 17, [250, 1, 8, 90, 3, 44]]


def sparse_models(directory: Path, kept: int) -> Models:
    tiny.write_tiny(
        directory, family="llama", dtype="float32", sparse_attention_config=SPARSE | {"sparse_topk_blocks": kept}
    )
    tiny.write_tiny_tokenizer(directory)
    return Models(model=directory, base=directory, is_quick=True)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Four blocks of 16 tokens are kept."""
    return sparse_models(tmp_path_factory.mktemp("few"), 4)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Nothing is learned."""
    place = tmp_path_factory.mktemp("plain")
    tiny.write_tiny(place, family="llama", dtype="float32")
    tiny.write_tiny_tokenizer(place)
    return Models(model=place, base=place, is_quick=True)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A drafter that is right about every second time."""
    place = tmp_path_factory.mktemp("drafted")
    drafting.write_bigram(place, noise=0.5)
    tiny.write_tiny_tokenizer(place)
    return Models(model=place, base=place, is_quick=True)


def test_verdicts() -> None:
    assert Finding(name="cost", value=1.0, bar=1.5, is_least=False).verdict == "met"
    assert Finding(name="cost", value=1.6, bar=1.5, is_least=False).verdict == "missed"
    length = Finding(name="length", value=1.9, bar=1.8, stretch=2.0)
    assert [replace(length, value=v).verdict for v in (1.7, 1.9, 2.0)] == ["missed", "met", "met, stretch too"]
    less = Finding(name="less", value=-0.03, bar=0.0, noise=0.02)
    assert less.verdict == "missed" and replace(less, is_within_noise=True).verdict == "met"
    assert replace(less, is_within_noise=True, value=-0.05).verdict == "missed"
    absent = Finding(name="length", bar=1.8, reason="the model has no drafter")
    assert absent.verdict == "missed" and "no drafter" in absent.lines()[0]
    assert replace(absent, absence="not measurable").verdict == "not measurable"
    assert Finding(name="perplexity", value=9.0).verdict == "reported"


def test_the_page_shows_the_latest_whole_run_and_a_full_one_rather_than_a_quick_one() -> None:
    def run(name: str, **settings: Any) -> Any:
        rows = [asdict(Finding(name=name, value=1.0, unit="x", bar=2.0, details=("so it is",)))]
        known = {"model": "demo", "quick": False, "only": None, **settings}
        return json.loads(json.dumps(record.new("eval", known, {"findings": rows, "taken_s": 90.0})))

    runs = [run("old"), run("new"), run("hasty", quick=True), run("part", only=["mass"]), record.new("step", {}, {})]
    text = page(runs)
    assert "| new | 1 x | >= 2 x | **missed** |" in text and "  - so it is" in text
    assert not any(word in text for word in ("old", "hasty", "| part"))
    assert "| hasty |" in page(runs[2:]) and "a quick run" in page(runs[2:])
    assert "only mass" in page(runs[3:])


def test_a_score_is_the_engines_own_law(plain: Models) -> None:
    llm = plain.plain()
    ids = [5, 9, 200, 7, 80]
    ids.append(llm.generate([ids], replace(GREEDY, max_tokens=1))[0].outputs[0].token_ids[0])
    scored = score(llm, ids)
    assert len(scored) == len(ids) - 1 and scored[-1].rank == 1
    assert math.exp(scored[-1].logprob) > 1 / 320


def test_a_cost_is_of_perplexities_and_its_noise_that_of_windows() -> None:
    against = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.float64)
    value, noise = quality.cost(against + torch.tensor([[0.01], [0.03]]), against)
    assert value == pytest.approx(100 * (math.exp(0.02) - 1))
    assert noise == pytest.approx(100 * math.exp(0.02) * 0.01, rel=1e-3)
    assert quality.cost(against[:1], against[:1]) == (0.0, None)


def test_sparse_attention_costs_what_is_left_out(tmp_path: Path, few: Models) -> None:
    windows = torch.randint(256, (2, 200), generator=torch.Generator().manual_seed(0))
    all_kept = sparse_models(tmp_path, 16)
    for models, cost_is_zero in ((all_kept, True), (few, False)):
        value = {finding.name: finding.value for finding in quality.perplexity(models, windows)}
        msa = value["perplexity, MSA above dense, 200 tokens of context"]
        assert msa is not None and (abs(msa) < 1e-2) is cost_is_zero
        assert value["the same weights, dense, BF16 cache, above the base"] == pytest.approx(0, abs=1e-6)
        rounded = value["perplexity, MSA, all caches NVFP4, above the base"]
        assert rounded is not None and abs(rounded) > 1e-2


def test_needles_are_asked_for_and_answered(plain: Models) -> None:
    tokenizer = Tokenizer.load(plain.model)
    needles = quality.make_needles(tokenizer, [ord("x")] * 2000, 1500, 3)
    assert 1300 < len(needles.ids) <= 1500 and sorted(needles.depths) == list(range(10))
    text = tokenizer.decode(list(needles.ids))
    for (start, stop), depth in zip(needles.answers, needles.depths, strict=True):
        answer = tokenizer.decode(list(needles.ids[start:stop]))
        asked = tokenizer.decode(list(needles.ids[:start])).rsplit("\n\n", 1)[1]
        first, second = text.index(asked), text.rindex(asked)
        assert text[first:].startswith(asked + answer + "\n\n") and first < second == start - len(asked)
        assert depth * 120 < first < (depth + 1) * 140


def test_a_needle_is_found_where_the_likeliest_tokens_spell_it(plain: Models) -> None:
    llm = plain.plain()
    ids = torch.randint(256, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    ids[41:43] = llm.generate([ids[:41]], replace(GREEDY, max_tokens=2))[0].outputs[0].token_ids
    ids[50] = (llm.generate([ids[:50]], replace(GREEDY, max_tokens=1))[0].outputs[0].token_ids[0] + 1) % 256
    needles = quality.Needles(ids=tuple(ids), answers=((41, 43), (50, 51)), depths=(0, 1))
    assert quality.found_needles(llm, needles) == [True, False]


def test_needles_are_a_share_of_what_dense_finds_or_not_measurable() -> None:
    row = Finding(name="facts", unit="%", bar=95.0)
    cases = [quality.Needles(ids=(), answers=(), depths=(0,) * 30 + (9,) * 20)]
    dense, own = [True] * 40 + [False] * 10, [True] * 30 + [False] * 15 + [True] * 5
    found = quality.judged(row, cases, [dense], [own])
    assert found.value == pytest.approx(87.5) and found.verdict == "missed"
    assert "dense answers 40, the model 35, both 30" in found.details[1]
    assert found.details[2].endswith("30/30 0/0 0/0 0/0 0/0 0/0 0/0 0/0 0/0 10/5")
    assert quality.judged(row, cases, [[*dense[1:], False]], [own]).verdict == "not measurable"


def test_mass_is_larger_the_more_blocks_are_kept(tmp_path: Path, few: Models) -> None:
    windows = torch.randint(256, (2, 300), generator=torch.Generator().manual_seed(0))
    found = quality.mass(few, windows)
    assert found.value is not None and 0.2 < found.value < 0.95
    assert len(found.details[0].split(": ")[1].split()) == 3
    most = quality.mass(sparse_models(tmp_path, 18), windows)
    assert most.value == pytest.approx(18 / 19, abs=0.01)  # of nineteen blocks one is left out, and all are alike


def test_a_model_without_learned_parts_misses_every_bar_and_says_why(plain: Models) -> None:
    windows = torch.randint(256, (1, 100), generator=torch.Generator().manual_seed(0))
    tokenizer = Tokenizer.load(plain.model)
    rows = [*quality.perplexity(plain, windows), quality.needles(plain, tokenizer, []), quality.mass(plain, windows)]
    rows += [*drafts.acceptance(plain), drafts.sameness(plain, []), *speed.speed(plain), *attention.attention(plain)]
    assert [row.verdict for row in rows] == ["reported", *["missed"] * (len(rows) - 2), "not measured"]
    assert {row.reason for row in rows[1:]} == {quality.NO_INDEX, drafts.NO_DRAFTER}


def test_acceptance_is_what_the_engine_counts(drafted: Models) -> None:
    llm = drafted.drafting(3)
    found = drafts.answer(llm, PROMPTS, GREEDY)
    stats = llm.engine.stats()
    assert found.length == pytest.approx(1 + stats.num_accepted_tokens / stats.num_drafts) and found.length > 1.3
    assert found.accepted_per_position == stats.accepted_per_position and found.noise > 0
    gained = sum(one.num_gained for one in found.each) / sum(one.num_rounds for one in found.each)
    assert gained == pytest.approx(found.length, rel=0.15)  # the last round of an answer is cut off
    again = drafts.answer(llm, PROMPTS, GREEDY)
    assert again.num_drafts == found.num_drafts and again.each == found.each
    assert drafts.answer(drafted.plain(), PROMPTS, GREEDY).length == 1


def test_acceptance_rows_of_a_good_drafter(drafted: Models) -> None:
    greedy, block, more = drafts.acceptance(drafted)
    assert greedy.value is not None and block.value is not None and more.value is not None
    assert greedy.value > 1.3 and block.value > 1.3 and abs(more.value) < 0.5
    assert [line.split()[0] for line in greedy.details[1:]] == ["3", "5"]  # few, and as many as the drafter makes


def test_changed_answers_are_counted_but_for_ties(drafted: Models) -> None:
    plain = drafts.answer(drafted.plain(), PROMPTS, replace(GREEDY, logprobs=2))
    same = drafts.answer(drafted.drafting(4), PROMPTS, GREEDY)
    assert drafts.gaps(plain, same) == []
    first, *others = same.each
    changed = replace(first, token_ids=(*first.token_ids[:5], (first.token_ids[5] + 1) % 256, *first.token_ids[6:]))
    (gap,) = drafts.gaps(plain, replace(same, each=(changed, *others)))
    top = plain.each[0].logprobs[5].top
    assert gap == pytest.approx(top[0][1] - top[1][1]) and gap > 0
    longer = replace(first, token_ids=(*first.token_ids, 1))
    assert drafts.gaps(plain, replace(same, each=(longer, *others))) == [math.inf]


def test_greedy_answers_are_the_same_with_drafts(drafted: Models) -> None:
    found = drafts.sameness(drafted, list(range(256)) * 40)
    assert (
        found.verdict == "met" and found.value == 0 and found.name.startswith("greedy answers changed by drafts, of 40")
    )


def test_rates_are_taken_in_turns_and_a_peer_that_fails_is_left_out() -> None:
    order: list[str] = []

    def rate(name: str) -> Callable[[int], float]:
        def call(number: int) -> float:
            order.append(name)
            if name == "peer" and number == 2:
                raise SideError("it died")
            return 0.0 if name == "own" and number == 3 else float(number)

        return call

    seen = speed.take_turns({name: rate(name) for name in ("own", "other", "peer")}, {"peer"}, 5)
    assert order[:6] == ["own", "other", "peer", "other", "peer", "own"]
    assert seen.samples == {"own": (1.0, 2.0, 4.0), "other": (1.0, 2.0, 4.0), "peer": (1.0,)}
    with pytest.raises(SideError):
        speed.take_turns({"own": rate("peer")}, set(), 5)


def test_decoding_is_timed_behind_the_first_token(drafted: Models) -> None:
    assert speed.decode(drafted.plain(), PROMPTS[0], 40) > 0
    assert speed.decode(drafted.plain(), PROMPTS[0], 10) == 0


@pytest.mark.parametrize("kept", [4, 8])
def test_the_timed_attention_is_attention(tmp_path: Path, kept: int) -> None:
    models = sparse_models(tmp_path, kept)
    parts = attention.Parts(models.config, layout_of(models.config, "nvfp4", "nvfp4", block_size=16), 100)
    calls, done = parts.calls(), {}
    for name in ("MSA", "dense"):
        parts.out.fill_(torch.nan)
        calls[name]()
        done[name] = parts.out.clone()
    assert done["dense"].isfinite().all()
    assert torch.allclose(done["MSA"], done["dense"], atol=1e-5) is (kept == 8)  # seven blocks are visible


def test_whole_steps_are_measured_beside_their_bytes(few: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CONTEXT", 500)
    row, step = attention.attention(few)
    assert row.value is not None and row.value > 0 and row.bar == 1.6
    assert step.verdict == "reported" and "by bytes" in step.details[-1]


def test_caches_and_bases(few: Models) -> None:
    assert caches("nvfp4")["attention_config"] == {"indexer_kv_dtype": "nvfp4"}
    assert demo.untrained(str(few.model)) == few.model


def test_the_command_keeps_a_record_and_fails_on_a_miss(
    drafted: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "eval.jsonl"
    words = ["eval", "--model", str(drafted.model), "--quick", "--record", str(kept), "--only"]
    monkeypatch.setattr(whole, "_TOY", f"{__file__}::test_verdicts")
    monkeypatch.setattr("sys.argv", [*words, "toy"])
    assert whole.main() == 0 and "0 of 1 bars missed" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [*words, "mass"])
    assert whole.main() == 1 and quality.NO_INDEX in capsys.readouterr().out
    assert "| **missed** |" in page(record.read(kept))
    monkeypatch.setattr(whole, "_TOY", f"{__file__}::test_that_is_gone")
    monkeypatch.setattr("sys.argv", [*words, "toy"])
    assert whole.main() == 1
    monkeypatch.setattr("sys.argv", [*words, "speeed"])
    with pytest.raises(SystemExit):
        whole.main()
