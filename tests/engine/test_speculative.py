"""drafts never change what a request says: greedy tokens, and the law of sampled ones"""

import math
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from minnow.config.load import from_values
from minnow.core.errors import CheckpointError, ConfigError
from minnow.core.request import Request, SamplingParams
from minnow.core.step import StepPlan, TokenOutput
from minnow.engine import pace, speculative
from minnow.engine.build import build
from minnow.engine.engine import Engine
from minnow.engine.pace import StepCosts
from minnow.engine.sampler import random_uniform
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
    target = tiny.write_tiny(tmp_path, family="llama", dtype="float32", tie_word_embeddings=False)
    tiny.write_tiny_drafter(tmp_path, target, **kind)
    plain = running.run(make(tmp_path), PROMPTS, running.GREEDY)
    drafts = []
    for backends in ("*=auto", "*=auto,norm=reference", "*=reference"):
        engine = make(tmp_path, speculative_config=DRAFTS, kernel_backends=backends)
        seen = rounds_of(engine)
        assert running.run(engine, PROMPTS, running.GREEDY) == plain
        drafts.append(seen)
    assert drafts[0] == drafts[1] == drafts[2] and len(drafts[0]) > 10


@pytest.mark.parametrize("more", [{}, {"draft_vocab_size": 90}])
def test_the_native_calls_and_plain_operations_draw_alike(tmp_path: Path, more: dict[str, Any]) -> None:
    drafting.write_bigram(tmp_path, noise=0.4, **{f"draft_{k}": v for k, v in more.items()})
    params = [
        running.seeded(1),
        running.seeded(2, temperature=0.6, top_k=7),
        replace(running.seeded(3), top_p=0.5),
        running.GREEDY,
    ]
    found = []
    for backends in ("*=auto", "*=auto,norm=reference"):
        engine = make(tmp_path, speculative_config=BLOCK, kernel_backends=backends)
        seen = rounds_of(engine)
        found.append((running.run(engine, PROMPTS, params), seen))
    assert found[0] == found[1]


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
    "min-p": (4, {"temperature": 1.2, "min_p": 0.4}, 2),
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
        return make(tmp_path, enable_prefix_caching=False, kernel_backends="*=auto,norm=reference", **settings)

    wanted = drafting.law_of(engine, [1, 0], sampling)
    found = drafting.law_of(
        lambda: engine(speculative_config=config | {"num_speculative_tokens": count}), [1, 0], sampling
    )
    assert math.isclose(sum(found.values()), 1.0, abs_tol=1e-6) and len(wanted) > 4
    for ids in {*wanted, *found}:
        assert math.isclose(wanted.get(ids, 0.0), found.get(ids, 0.0), abs_tol=2e-6), ids


ADAPTIVE = {"enable_adaptive_verification": True}


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("config", [DRAWN, BLOCK], ids=["standard", "block"])
def test_drafts_that_are_not_worth_their_time_change_no_law(
    tmp_path: Path, config: dict[str, Any], pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which drafts are looked at depends on the drafter's confidence: as exact as looking at all of them.

    And whether any are made, on what was kept before.
    """
    for name, value in {"_LEAST_ROUNDS": 1 if pauses else 9, "_PAUSE": 3, "_TRIAL": 1}.items():
        monkeypatch.setattr(pace, name, value)
    drafting.write_bigram(tmp_path, noise=0.8, heat=1.5, vocab_size=2, bos_token_id=None, eos_token_id=None)
    sampling, counts, slots = SamplingParams(temperature=1.0, max_tokens=4), set[int](), set[int]()

    def engine(**settings: Any) -> Engine:
        made = make(tmp_path, enable_prefix_caching=False, kernel_backends="*=auto,norm=reference", **settings)
        scheduler: Any = made._scheduler
        if scheduler._step_costs:
            scheduler._step_costs = StepCosts(drafting=(1.0, 1.35, 1.55), plain=(1.0,))
            launch = made.runner.launch

            def note(plan: StepPlan) -> Any:
                counts.update(step.num_drafts for step in plan.rows)
                slots.update(step.num_lookahead_slots for step in plan.rows if (step.start, step.num_drafts) == (3, 0))
                return launch(plan)

            made.runner.launch = note  # type: ignore[method-assign]
        return made

    wanted = drafting.law_of(engine, [1, 0], sampling)
    found = drafting.law_of(
        lambda: engine(speculative_config=config | ADAPTIVE | {"num_speculative_tokens": 2}), [1, 0], sampling
    )
    assert counts == {0, 1, 2}, "all lengths are to be seen"
    assert (0 in slots) is pauses, "there is room for a draft unless it pauses"
    for ids in {*wanted, *found}:
        assert math.isclose(wanted.get(ids, 0.0), found.get(ids, 0.0), abs_tol=2e-6), ids


def test_a_seed_keeps_its_answer_where_the_clock_decides_about_drafts(certain: Path) -> None:
    """Such a request is not drafted for, so it gets what it would get without drafts; others are."""
    requests = [SamplingParams(temperature=0.8, max_tokens=30, seed=7), SamplingParams(temperature=0.8, max_tokens=30)]
    plain, drafting_engine = make(certain), make(certain, speculative_config=DRAFTS | ADAPTIVE)
    scheduler: Any = drafting_engine._scheduler
    scheduler._step_costs = StepCosts(drafting=(1.0,) * 64, plain=(1.0,) * 64)
    for sampling, is_drafted in zip(requests, (False, True), strict=True):
        wanted, found = (running.run(engine, PROMPTS[:1], sampling) for engine in (plain, drafting_engine))
        assert (drafting_engine.stats().num_drafts > 0) is is_drafted
        assert is_drafted or wanted == found


def test_confidences_are_the_same_by_either_way(tmp_path: Path) -> None:
    target = tiny.write_tiny(tmp_path, family="llama", dtype="float32", tie_word_embeddings=False)
    for sees_token in (True, False):
        tiny.write_tiny_drafter(tmp_path, target, confidence_head_with_markov=sees_token)
        found = []
        for backends in ("*=auto", "*=auto,norm=reference"):
            engine = make(tmp_path, speculative_config=DRAFTS | ADAPTIVE, kernel_backends=backends)
            scheduler: Any = engine._scheduler
            drafting_s, plain_s = scheduler._step_costs.drafting, scheduler._step_costs.plain
            assert len(drafting_s) == 32 and list(drafting_s) == sorted(drafting_s)
            assert len(plain_s) > 1 and list(plain_s) == sorted(plain_s)
            scheduler._step_costs = StepCosts(drafting=(1.0,) * 64, plain=(2.0,))
            seen: list[tuple[float, ...]] = []
            launch = engine.runner.launch

            def note(plan: StepPlan, launch: Any = launch, seen: Any = seen) -> Any:
                pending = launch(plan)
                seen += [row.confidences for row in pending.result().rows]
                return pending

            engine.runner.launch = note  # type: ignore[method-assign]
            found.append((running.run(engine, PROMPTS[:1], running.GREEDY), seen))
        assert found[0][0] == found[1][0] and len(found[0][1]) == len(found[1][1]) > 5
        for one, two in zip(found[0][1], found[1][1], strict=True):
            assert len(one) == len(two) and all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(one, two, strict=True))
        assert len({round(c, 3) for own in found[0][1] for c in own}) > 10
        shutil.rmtree(tmp_path / "dspark")


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that is always right."""
    place = tmp_path_factory.mktemp("certain")
    drafting.write_bigram(place)
    return place


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter whose every part matters: its context, its window, its block."""
    place = tmp_path_factory.mktemp("whole")
    target = tiny.write_tiny(place, family="llama", dtype="float32", tie_word_embeddings=False)
    tiny.write_tiny_drafter(place, target, sliding_window=24, layer_types=["sliding_attention"] * 2)
    return place


def outputs_of(engine: Engine, prompt: list[int], sampling: SamplingParams) -> list[TokenOutput]:
    engine.add(Request(request_id="a", token_ids=tuple(prompt), sampling=sampling))
    return running.finish(engine)["a"]


@pytest.mark.parametrize("place", range(1, 8))
def test_an_answer_ends_at_its_stop_token_inside_a_block(certain: Path, place: int) -> None:
    """Case B04: nothing after it, in the answer, the counts or the prefix cache."""
    prompt = list(range(30))
    plain, engine = make(certain), make(certain, speculative_config=BLOCK)
    stop = running.run(plain, [prompt], running.GREEDY)[0][place]
    sampling = replace(running.GREEDY, stop_token_ids=(stop,))
    wanted, found = outputs_of(plain, prompt, sampling), outputs_of(engine, prompt, sampling)
    ids = running.tokens(found)
    assert ids == running.tokens(wanted) and ids[-1] == stop and stop not in ids[:-1]
    assert (found[-1].finish_reason, found[-1].stop_token_id) == ("stop", stop)
    assert engine.stats().generation_tokens == len(ids)
    again = prompt + ids + [7, 8, 9] * 6
    assert running.run(engine, [again], running.GREEDY) == running.run(plain, [again], running.GREEDY)


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_an_answer_has_as_many_tokens_as_it_may(certain: Path, max_tokens: int) -> None:
    engine = make(certain, speculative_config=DRAFTS)
    sampling = replace(running.GREEDY, max_tokens=max_tokens)
    assert running.run(engine, PROMPTS, sampling) == running.run(make(certain), PROMPTS, sampling)


@pytest.mark.parametrize("num_prompt_tokens", [1, 57, 63])
def test_an_answer_may_fill_the_context(whole: Path, num_prompt_tokens: int) -> None:
    """No position past the limit is ever asked for, with as many drafts as there are."""
    sampling = replace(running.GREEDY, max_tokens=None)
    prompt = PROMPTS[1][:1] * num_prompt_tokens
    settings = {"max_model_len": 64, "num_gpu_blocks_override": 5}
    engine = make(whole, speculative_config=DRAFTS | {"num_speculative_tokens": 5}, **settings)
    assert running.run(engine, [prompt], sampling) == running.run(make(whole, **settings), [prompt], sampling)


GREEDY_OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"frequency_penalty": 0.9, "presence_penalty": 0.3},
    {"logit_bias": ((7, 3.0), (200, 3.0))},
    {"allowed_token_ids": tuple(range(20))},
    {"min_tokens": 6, "stop_token_ids": tuple(range(0, 320, 2))},
    {"logprobs": 3},
    {"prompt_logprobs": 1},
]


@pytest.mark.parametrize("options", GREEDY_OPTIONS, ids=lambda options: next(iter(options)))
def test_options_do_the_same_with_drafts(bigram: Path, options: dict[str, Any]) -> None:
    """Case B08: what an option looks at advances with every draft."""
    sampling = replace(running.GREEDY, max_tokens=20, **options)
    engine = make(bigram, speculative_config=BLOCK)
    assert running.run(engine, PROMPTS, sampling) == running.run(make(bigram), PROMPTS, sampling)
    assert engine.stats().num_draft_tokens > 10


def test_log_probabilities_are_those_of_plain_decoding(bigram: Path) -> None:
    sampling = replace(running.GREEDY, logprobs=2)
    plain, drafted = (
        [entry for output in outputs_of(make(bigram, **more), PROMPTS[1], sampling) for entry in output.logprobs]
        for more in ({}, {"speculative_config": BLOCK})
    )
    assert len(plain) == len(drafted) == 12
    for one, two in zip(plain, drafted, strict=True):
        assert one.rank == two.rank and math.isclose(one.logprob, two.logprob, abs_tol=1e-4)
        assert [i for i, _ in one.top] == [i for i, _ in two.top]


def test_requests_of_all_kinds_beside_each_other(bigram: Path) -> None:
    """Greedy ones are never judged by the rule for sampled ones, whoever is beside them."""
    params = [running.GREEDY, running.seeded(3), replace(running.GREEDY, repetition_penalty=1.3), running.seeded(9)]
    engine = make(bigram, speculative_config=BLOCK)
    together = running.run(engine, PROMPTS, params)
    alone = [
        running.run(make(bigram, speculative_config=BLOCK), [prompt], sampling)[0]
        for prompt, sampling in zip(PROMPTS, params, strict=True)
    ]
    assert together == alone
    plain = running.run(make(bigram), PROMPTS, params)
    assert (together[0], together[2]) == (plain[0], plain[2])


def rounds_of(engine: Engine) -> list[tuple[list[int], list[int]]]:
    """Filled as an engine runs: the tokens of a row, and the drafts that were made after them."""
    speculator: Any = engine.runner._speculator  # type: ignore[attr-defined]
    seen: list[tuple[list[int], list[int]]] = []
    advance = speculator.advance

    def note(*args: Any) -> Any:
        results = advance(*args)
        rows = args[-1].rows.values()
        seen.extend((list(row.token_ids), list(row.drafts.ids)) for row in rows if row.drafts is not None)
        return results

    speculator.advance = note
    return seen


LONG = [(i * 37 + i // 5) % 300 for i in range(150)]


def test_drafts_are_the_same_whatever_the_chunks_and_the_cache(whole: Path) -> None:
    """Case B09: after a prefix hit the drafter has all of its context back."""
    found = []
    for budget in (2048, 64, 7):
        engine = make(whole, speculative_config=DRAFTS, max_num_batched_tokens=budget)
        seen = rounds_of(engine)
        for turn in range(2):
            seen.clear()
            outputs = outputs_of(engine, LONG, running.GREEDY)
            assert outputs[0].num_cached_tokens == (0 if not turn else 144)
            found.append(list(seen))
    assert all(rounds == found[0] for rounds in found) and len(found[0]) > 4


def test_preempted_sequences_say_what_they_would_have(whole: Path) -> None:
    prompts = [LONG[i : i + 40] for i in range(0, 100, 10)]
    settings = {"num_gpu_blocks_override": 14, "max_model_len": 100, "max_num_batched_tokens": 40}
    sampling = replace(running.GREEDY, max_tokens=30)
    engine = make(whole, speculative_config=DRAFTS, **settings)
    assert running.run(engine, prompts, sampling) == running.run(make(whole), prompts, sampling)
    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("backends", ["*=auto", "*=reference"])
def test_the_engine_drafts_what_the_specification_says_at_any_depth(whole: Path, backends: str) -> None:
    """Case B10, and every fact of a round: anchor, positions, features, window, what was kept of the last one."""
    engine = make(whole, speculative_config=DRAFTS, kernel_backends=backends)
    seen = rounds_of(engine)
    outputs_of(engine, LONG, replace(running.GREEDY, max_tokens=40))
    outputs_of(engine, LONG[:3], replace(running.GREEDY, max_tokens=40))
    plain = drafting.plain_drafter(whole)
    assert {len(tokens) > 100 for tokens, _ in seen} == {True, False} and len(seen) > 30
    for tokens, drafts in seen:
        assert drafts == drafting.plain_drafts(plain, drafting.features(whole, tokens[:-1]), tokens, len(drafts))


def test_a_row_that_is_not_finite_fails_alone(bigram: Path) -> None:
    engine = make(bigram, speculative_config=BLOCK)
    runner: Any = engine.runner
    plain, turn = runner._step_function, [0]

    def broken(inputs: Any, caches: Any) -> Any:
        output = plain(inputs, caches)
        turn[0] += 1
        if turn[0] == 3:
            output.logits[1] = math.nan  # of the first row, after its first draft
        return output

    runner._step_function = broken
    for i, prompt in enumerate(PROMPTS[:2]):
        engine.add(Request(request_id=f"r{i}", token_ids=tuple(prompt), sampling=running.GREEDY))
    outputs = running.finish(engine)
    assert (outputs["r0"][-1].finish_reason, outputs["r1"][-1].finish_reason) == ("error", "length")
    assert running.tokens(outputs["r1"]) == running.run(make(bigram), [PROMPTS[1]], running.GREEDY)[0]


@pytest.mark.parametrize("length", [1.0, 2.4, 5.0])
def test_synthetic_acceptance_has_the_length_asked_for(bigram: Path, length: float) -> None:
    """Whatever the drafts are; only minnow bench may ask for it."""
    asked = DRAFTS | {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": length}
    values = {"num_gpu_blocks_override": 400, "num_threads": 1, "dtype": "float32", "speculative_config": asked}
    with pytest.raises(ConfigError, match="only minnow bench"):
        build(from_values(values).config, bigram)
    engine = build(from_values(values).config, bigram, is_bench=True)
    running.run(engine, PROMPTS, [running.seeded(i, max_tokens=200) for i in range(4)])
    stats = engine.stats()
    assert math.isclose(1 + stats.num_accepted_tokens / stats.num_drafts, length, abs_tol=0.1)
    assert all(n > 0.95 * stats.num_drafts for n in stats.accepted_per_position[: int(length) - 1])


def test_no_number_is_used_twice() -> None:
    """Case 7.6: proposals, judgements and the sampler's own draws never share a number, in any round or place."""
    keys = [
        (place, use + speculative._NUM_USES * k)
        for place in range(1, 40)
        for use in (speculative._PROPOSAL, speculative._ACCEPTANCE)
        for k in range(9)
    ]
    keys += [(place, 0) for place in range(1, 40)]  # the sampler's
    numbers = [random_uniform(7, *key) for key in keys]
    assert len(set(keys)) == len(keys) == len(set(numbers))


@pytest.mark.parametrize("config", [DRAWN, BLOCK], ids=["standard", "block"])
def test_the_numbers_that_are_used_give_the_law(tmp_path: Path, config: dict[str, Any]) -> None:
    """With the engine's own random numbers, which the enumeration does not see: a chi-square of three tokens."""
    drafting.write_bigram(tmp_path, noise=0.8, heat=1.5, vocab_size=4, bos_token_id=None, eos_token_id=None)
    sampling, num_answers = SamplingParams(temperature=1.0, max_tokens=3), 4_000
    plain = make(tmp_path, kernel_backends="*=auto,norm=reference", enable_prefix_caching=False)
    wanted = drafting.law_of(lambda: plain, [1, 0], sampling)
    engine = make(tmp_path, speculative_config=config | {"num_speculative_tokens": 3})
    found: Counter[tuple[int, ...]] = Counter()
    for start in range(0, num_answers, 40):
        params = [replace(sampling, seed=start + i) for i in range(40)]
        found.update(map(tuple, running.run(engine, [[1, 0]] * 40, params)))
    excess = sum((found[ids] - num_answers * p) ** 2 / (num_answers * p) for ids, p in wanted.items() if p > 0)
    freedom = sum(p > 0 for p in wanted.values()) - 1
    assert set(found) <= set(wanted) and (excess - freedom) / math.sqrt(2 * freedom) < 4.5


@pytest.mark.parametrize("change", ["twice", "below", "beyond"])
def test_a_vocabulary_that_is_none_is_refused(tmp_path: Path, change: str) -> None:
    drafting.write_bigram(tmp_path, draft_draft_vocab_size=90)
    file = tmp_path / "dspark" / "model.safetensors"
    tensors = load_file(file)
    offsets = tensors["d2t"]
    offsets[3] = {"twice": int(offsets[2]) - 1, "below": -4, "beyond": 320}[change]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"d2t gives ids -?\d+ to \d+, \d+ of 90 distinct"):
        make(tmp_path, speculative_config=DRAFTS)
