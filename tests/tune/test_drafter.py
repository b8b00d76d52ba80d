"""a drafter learns from nothing on a toy; its blocks, its start and its files"""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from minnow.checkpoint.load import fill, open_drafter
from minnow.config import drafter as drafter_config
from minnow.core.errors import ConfigError
from minnow.model.dspark import Drafter
from minnow.tune import acceptance, bigram, blocks, draft_loss, drafter, drafter_start
from minnow.tune import answers as answer_files
from minnow.tune.acceptance import Text
from minnow.tune.blocks import Part
from minnow.tune.drafter_start import Shape
from minnow.tune.drafter_work import DrafterWork, Settings
from minnow.tune.features import FeatureStore
from minnow.tune.run import Plan, Run, Watch, read_log
from minnow.tune.stage import Options
from minnow.tune.target import Target
from tests import tiny
from tests.drive import CPU, make_kernels
from tests.tune import toy

SHAPE = Shape(block_size=4, num_layers=1, markov_rank=8, window=32, draft_vocab_size=48)
SETTINGS = Settings(shape=SHAPE, num_first_steps=60, num_anchors=16, num_held_out=8, held_out_stride=3)


@pytest.fixture(scope="module")
def target() -> Target:
    """A toy that knows its grammar."""
    return toy.target()


@pytest.fixture(scope="module")
def answers(target: Target) -> list[Any]:
    """What it says."""
    return toy.answers(target, 96, 73, seed=1)


def prepare(target: Target, answers: list[Any], output: Path) -> DrafterWork:
    begin = output / "dspark" if (output / "dspark").is_dir() else None
    return drafter.prepare(target, answers, SETTINGS, output, begin=begin, seed=0, card={"model": "toy"})


def run(work: DrafterWork, output: Path, steps: int) -> None:
    plan = Plan(steps=steps, rate=4e-3, warmup_steps=10, validate_steps=1000)
    Run(output, plan, work.begun.weights, asdict(SHAPE), slow=work.begun.slow).go(work, 1.0, Watch())


def part(work: DrafterWork, store: FeatureStore, anchors: list[int]) -> Part:
    text = work.texts.drawn[0]
    return Part(features=store.take(text.index, text.ids), ids=text.ids, anchors=torch.tensor(anchors))


def shake(work: DrafterWork) -> None:
    """Take the start's preferences away: any row looks at whatever it sees."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in work.begun.weights.items():
            if "_proj" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)


def test_acceptance_rises_above_untrained_and_above_the_markov_head_alone(
    target: Target, answers: list[Any], tmp_path: Path
) -> None:
    work = prepare(target, answers, tmp_path)
    run(work, tmp_path, 200)
    first, last = (line for line in read_log(tmp_path / "log.jsonl") if "held_out_greedy_length" in line)
    for kind in ("greedy", "drawn"):
        trained, untrained = last[f"held_out_{kind}_length"], first[f"held_out_{kind}_length"]
        assert trained > untrained + 0.5
        assert trained > last[f"held_out_markov_{kind}_length"] + 0.5
    card = json.loads((tmp_path / "trained.json").read_text())
    assert card["steps"] == 200
    lengths = card["held_out"]["drafter"]["greedy_lengths"]
    assert lengths == sorted(lengths)
    assert lengths[-1] == last["held_out_greedy_length"]


def test_what_is_written_is_what_was_trained(target: Target, answers: list[Any], tmp_path: Path) -> None:
    work = prepare(target, answers, tmp_path)
    run(work, tmp_path, 3)
    config = drafter_config.read(tmp_path / "dspark", target.config)
    served = Drafter(config, make_kernels("*=reference"), torch.float32, CPU)
    fill(served, open_drafter(tmp_path / "dspark", config))
    served.share(target.weights["model.embed_tokens"], target.weights["model.embed_tokens"])
    store = FeatureStore(target, config.target_layer_ids, None)
    here = part(work, store, [12, 30])
    wanted, seen = blocks.run(work.drafter, [here]), blocks.run(served, [here])
    assert torch.allclose(seen.hidden, wanted.hidden, rtol=0.05, atol=0.05)  # weights of BF16
    assert not torch.equal(seen.hidden, torch.zeros_like(seen.hidden))
    assert torch.equal(served.vocabulary.target_ids, work.begun.draft_ids)  # type: ignore[arg-type]


def test_a_run_in_pieces_is_a_run_in_one_piece(
    target: Target, answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a piece ends among blocks of one slot, and the next goes on to whole blocks."""
    monkeypatch.setattr("tests.tune.test_drafter.SETTINGS", replace(SETTINGS, num_first_steps=3))

    def learned(name: str, pieces: list[int]) -> dict[str, Tensor]:
        for stop in pieces:
            work = prepare(target, answers, tmp_path / name)
            plan = Plan(steps=6, rate=4e-3, warmup_steps=2, validate_steps=1000)
            again = Run(tmp_path / name, plan, work.begun.weights, asdict(SHAPE), slow=work.begun.slow)
            again.go(work, 1.0, Watch(is_stopped=lambda again=again, stop=stop: again.step >= stop))
        return dict(work.begun.weights)

    whole, pieces = learned("whole", [6]), learned("pieces", [2, 4, 6])
    assert all(torch.equal(whole[name], pieces[name]) for name in whole)


def test_rows_see_their_block_and_the_context_before_it(target: Target, answers: list[Any]) -> None:
    work = drafter.prepare(target, answers, SETTINGS, Path(), seed=0, card={}, keeps_features=False)
    shake(work)
    store = FeatureStore(target, work.begun.config.target_layer_ids, None)
    here = part(work, store, [50])
    before = blocks.run(work.drafter, [here]).hidden

    def changed(place: int) -> bool:
        taps = tuple(tap.clone() for tap in here.features.taps)
        for tap in taps:
            tap[place] += 1.0
        features = here.features.__class__(taps=taps, hidden=here.features.hidden, normaliser=here.features.normaliser)
        after = blocks.run(work.drafter, [Part(features=features, ids=here.ids, anchors=here.anchors)]).hidden
        return not torch.equal(before, after)

    assert changed(49)
    assert not changed(50)  # the anchor enters as an embedding alone
    assert not changed(60)
    assert changed(50 - SHAPE.window + 1)  # the first slot's window reaches so far
    assert not changed(50 - SHAPE.window)
    others = blocks.run(work.drafter, [part(work, store, [20, 50, 60]), here])
    assert torch.allclose(others.hidden[4:8], before, atol=1e-5)
    assert torch.allclose(others.hidden[-4:], before, atol=1e-5)


def test_the_first_slot_begins_with_what_the_target_knew_last(
    target: Target, answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = drafter.prepare(target, answers, SETTINGS, Path(), seed=0, card={}, keeps_features=False)
    anchors = list(range(20, 60))
    here = part(work, FeatureStore(target, work.begun.config.target_layer_ids, None), anchors)
    seen: list[tuple[Tensor, ...]] = []
    plainly = blocks._attend

    def attend(*rows: Tensor) -> Tensor:
        seen.append(rows)
        return plainly(*rows)

    monkeypatch.setattr(blocks, "_attend", attend)
    blocks.run(work.drafter, [here])
    q, k, _, bias = seen[0]
    assert k.shape[1] == q.shape[1]  # a key head for each query head
    weights = (torch.einsum("rnh,knh->nrk", q, k) * q.shape[-1] ** -0.5 + bias).softmax(-1)
    first = weights[:, :: SHAPE.block_size]
    newest = first[:, torch.arange(len(anchors)), torch.tensor(anchors) - 1]
    assert newest.min() > 0.6 and newest.mean() > 0.8


def test_the_block_is_not_causal(target: Target, answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    work = drafter.prepare(target, answers, SETTINGS, Path(), seed=0, card={}, keeps_features=False)
    shake(work)
    here = part(work, FeatureStore(target, work.begun.config.target_layer_ids, None), [50])
    before = blocks.run(work.drafter, [here]).hidden
    block = work.drafter.block

    def last_is_another(ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        return block(torch.cat((ids[:-1], torch.tensor([9]))), positions, attend)

    monkeypatch.setattr(work.drafter, "block", last_is_another)
    assert not torch.equal(blocks.run(work.drafter, [here]).hidden[0], before[0])


def plain_losses(
    target: Target, work: DrafterWork, text: Text, made: blocks.Blocks, places: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Divergence, distance and share of drafts kept, f32 [R] each, of plain distributions over the whole vocabulary."""
    table, heads = (work.begun.weights[f"dspark.markov_head.markov_w{i}"] for i in (1, 2))
    head = target.weights["model.embed_tokens"][work.begun.draft_ids].float()
    log_q = (made.hidden @ head.T + table[text.ids[places]] @ heads.T).log_softmax(-1)
    q = torch.zeros(len(places), toy.NUM_TOKENS).index_copy(1, work.begun.draft_ids, log_q.exp())
    with torch.no_grad():
        p = target.logits(target.hidden(target.forward(text.ids[None]).last))[0, places].softmax(-1)
    divergence = -(p[:, work.begun.draft_ids] * log_q).sum(-1)
    return divergence, (q - p).abs().sum(-1), torch.minimum(p, q).sum(-1)


def test_worth_is_what_its_words_say(target: Target, answers: list[Any]) -> None:
    work = drafter.prepare(target, answers, SETTINGS, Path(), seed=0, card={}, keeps_features=False)
    here = part(work, FeatureStore(target, work.begun.config.target_layer_ids, None), [20])
    made = blocks.run(work.drafter, [here])
    worth = blocks.weigh(work.drafter, made)
    _, _, kept = plain_losses(target, work, work.texts.drawn[0], made, [20, 21, 22, 23])
    assert torch.allclose(worth.accepted, kept, atol=0.01)  # features are kept in BF16
    assert torch.allclose(worth.predicted, torch.full((4,), 0.5))


def test_gradients_are_those_of_the_plain_losses(
    target: Target, answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in parts of three; a block that the text ends in; weights that have learned a little."""
    monkeypatch.setattr(draft_loss, "_ROWS", 3)
    work = prepare(target, answers, tmp_path)
    run(work, tmp_path, 12)
    text = work.texts.drawn[0]
    anchors = [20, 41, len(text.ids) - 3]
    places = [min(anchor + slot, len(text.ids) - 1) for anchor in anchors for slot in range(4)]
    here = part(work, FeatureStore(target, work.begun.config.target_layer_ids, None), anchors)
    weights = dict(work.begun.weights)

    def gradients() -> dict[str, Tensor]:
        found = {name: torch.zeros_like(w) if w.grad is None else w.grad.clone() for name, w in weights.items()}
        for weight in weights.values():
            weight.grad = None
        return found

    gradients()
    losses = draft_loss.learn(work.drafter, blocks.run(work.drafter, [here]))
    found = gradients()
    made = blocks.run(work.drafter, [here])
    divergence, distance, kept = plain_losses(target, work, text, made, places)
    slots = torch.arange(4)
    is_valid = torch.tensor([[True] * 4, [True] * 4, [True, True, False, False]])
    weight = (is_valid * torch.exp(-slots / 4)).flatten()
    weight = weight / weight.sum()
    code = work.drafter.markov.look_up(text.ids[places])
    assert work.drafter.confidence is not None
    seen = work.drafter.confidence(made.hidden, code)
    missed = functional.binary_cross_entropy_with_logits(seen, kept.detach(), reduction="none")
    torch.autograd.backward((weight * (0.3 * divergence + 0.9 * distance + missed)).sum())
    wanted = gradients()
    assert losses.divergence == pytest.approx((weight * divergence).sum().item(), rel=0.01)
    assert losses.distance == pytest.approx((weight * distance).sum().item(), rel=0.01)
    assert losses.confidence == pytest.approx((weight * missed).sum().item(), rel=0.01)
    for name, gradient in wanted.items():
        error = (found[name] - gradient).norm() / gradient.norm().clamp(min=1e-6)
        assert error < 0.05, name


def test_greedy_drafts_follow_the_markov_head(target: Target, answers: list[Any]) -> None:
    work = drafter.prepare(target, answers, SETTINGS, Path(), seed=0, card={}, keeps_features=False)
    ids, rank = work.begun.draft_ids, SHAPE.markov_rank
    with torch.no_grad():  # token t of the drafter brings token t + 1, by two one-hot tables as far as the rank goes
        table, heads = (work.begun.weights[f"dspark.markov_head.markov_w{i}"] for i in (1, 2))
        table.zero_()
        table[ids[:rank]] = 10 * torch.eye(rank)
        heads.zero_()
        heads[1 : rank + 1] = 10 * torch.eye(rank)
    text = Text(index=0, ids=torch.tensor([*ids[2:6], *[int(ids[0])] * 4]), start=0)
    store = FeatureStore(target, work.begun.config.target_layer_ids, None)
    here = Part(features=store.take(0, text.ids), ids=text.ids, anchors=torch.tensor([0, 2]))
    drafts = blocks.greedy(work.drafter, blocks.run(work.drafter, [here], is_markov_only=True))
    assert drafts.tolist() == [ids[3:7].tolist(), ids[5:9].tolist()]


def test_lengths_by_hand() -> None:
    accepted = torch.tensor([[0.5, 0.5, 1.0], [1.0, 0.0, 1.0]])
    assert acceptance.expected_length(accepted, 3).tolist() == [2.0, 2.0]
    assert acceptance.expected_length(accepted, 1).tolist() == [1.5, 2.0]
    kept = [2, 0, 3, 1, 0, 0, 0]
    assert acceptance.walk(kept, 7) == 4  # places 0, 3, 5, 6
    assert acceptance.walk(kept, 1) == 5  # places 0, 2, 4, 5, 6
    assert acceptance.walk([0] * 5, 7) == 5


def test_layers_and_vocabulary_that_a_drafter_begins_with() -> None:
    assert drafter_start.tap_layers(30, 5) == (1, 8, 15, 22, 28)
    assert drafter_start.tap_layers(2, 5) == (1,)
    assert drafter_start.tap_layers(4, 5) == (1, 2)
    assert drafter_start.tap_layers(1, 5) == (0,)
    said = [(5, 5, 5, 7), (7, 9, 9), (30,)]
    assert drafter_start.vocabulary(said, [2], 3).tolist() == [2, 5, 7]
    assert drafter_start.vocabulary(said, [2], 100).tolist() == [2, 5, 7, 9, 30]


def test_the_mask_token_is_one_that_nobody_uses(target: Target) -> None:
    config = target.config
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert drafter_start.unused_id([(0, 4, 5)], config) == 3
    with pytest.raises(ConfigError, match="use every token"):
        drafter_start.unused_id([tuple(range(toy.NUM_TOKENS))], config)


@pytest.mark.parametrize("change", [{"markov_head_type": "rnn"}, {"draft_topk": 5}, {"enable_confidence_head": False}])
def test_drafters_that_the_loss_does_not_cover_are_refused(
    target: Target, answers: list[Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    work = prepare(target, answers, tmp_path)
    run(work, tmp_path, 1)
    file = tmp_path / "dspark" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match=f"has {next(iter(change))} .*; minnow tune draft trains those with"):
        prepare(target, answers, tmp_path)


def test_too_few_answers_are_refused(target: Target, answers: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="held out 0 drawn at temperature 1 and 0 at 0"):
        prepare(target, [answer for answer in answers if not answer.is_held_out], tmp_path)


def test_features_are_computed_once(
    target: Target, answers: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.tensor(answers[0].ids)
    first = FeatureStore(target, (-1, 1), tmp_path).take(3, ids)
    monkeypatch.setattr(Target, "forward", None)
    again = FeatureStore(target, (-1, 1), tmp_path).take(3, ids)
    assert torch.equal(first.taps[1], again.taps[1])
    assert torch.equal(first.taps[0], target.weights["model.embed_tokens"][ids].bfloat16().float())
    logits = again.hidden @ target.weights["model.embed_tokens"].T
    assert torch.allclose(again.normaliser, logits.logsumexp(-1), atol=1e-4)


def test_the_command_writes_answers_then_trains_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, output, text = tmp_path / "model", tmp_path / "output", tmp_path / "text.txt"
    tiny.write_tiny(model, family="llama", dtype="float32")
    tiny.write_tiny_tokenizer(model)
    text.write_text("A document of one paragraph that can be asked about. " * 10)
    monkeypatch.setattr(drafter, "_NUM_ANSWERS", 100)
    monkeypatch.setattr(drafter, "_MAX_TOKENS", 256)
    monkeypatch.setattr(answer_files, "is_loop", lambda ids: False)  # a random model does little else
    before = torch.get_float32_matmul_precision()
    options = Options(directory=model, output=output, text=(text,), steps=2)
    try:
        assert drafter.train(options, Watch(is_stopped=lambda: True)).step == 0
        assert not (output / "dspark").exists()  # what can be drafted is settled when all answers are there
        assert drafter.train(options, Watch()).is_done
        monkeypatch.setattr(answer_files, "EngineAuthor", None)  # what is there is not written again
        done = drafter.train(replace(options, steps=3), Watch())
        assert (done.step, done.is_done) == (3, True)
        second = tmp_path / "second"
        shutil.copytree(output / "answers", second / "answers")
        drafter.train(replace(options, output=second, parts=(output,)), Watch(is_stopped=lambda: True))
    finally:
        torch.set_float32_matmul_precision(before)
    trained = [(place / "dspark" / "model.safetensors").read_bytes() for place in (output, second)]
    assert trained[0] == trained[1]  # the second begins as the first ended
    card = json.loads((output / "trained.json").read_text())
    assert (card["stage"], card["model"], card["steps"]) == ("draft", "model", 3)


def test_the_markov_head_begins_with_what_follows_a_token(target: Target, answers: list[Any]) -> None:
    work = drafter.prepare(target, answers, SETTINGS, Path(), seed=0, card={}, keeps_features=False)
    ids, store = work.begun.draft_ids, FeatureStore(target, work.begun.config.target_layer_ids, None)
    first, second = bigram.tables(store, work.texts.trained, ids, rank=len(ids), seed=0)
    seen = torch.cat([text.ids[text.start : -1] for text in work.texts.trained])
    logits = [target.logits(target.hidden(target.forward(text.ids[None]).last))[0] for text in work.texts.trained]
    parts = [rows[text.start : -1] for rows, text in zip(logits, work.texts.trained, strict=True)]
    expected = torch.cat(parts).softmax(-1)[:, ids]
    for token in (4, 6, int(ids[10])):  # "x", "." and one that names a kind
        here = expected[seen == token]
        mean = (here.sum(0) + expected.mean(0)) / (len(here) + 1)  # any other token counts as seen once
        assert torch.allclose((first[token] @ second.T).softmax(-1), mean / mean.sum(), atol=0.01)
    unseen = next(token for token in range(toy.NUM_TOKENS) if token not in seen)
    assert torch.allclose((first[unseen] @ second.T), (first[7] @ second.T))
    _, narrow = bigram.tables(store, work.texts.trained, ids, rank=3, seed=0)
    assert narrow.shape == (len(ids), 3)
