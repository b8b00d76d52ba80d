"""give a checkpoint a DSpark drafter"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minnow.config import load
from minnow.config.drafter import DIRECTORY, DrafterConfig, parse_drafter
from minnow.config.engine import EngineConfig
from minnow.config.model import read_object
from minnow.core.errors import ConfigError
from minnow.core.log import Logger
from minnow.tune import answers, bigram, drafter_start, prompts, target, text
from minnow.tune.answers import Answer
from minnow.tune.drafter_start import Shape
from minnow.tune.drafter_work import PARTS_NAME, Begun, DrafterWork, Settings, Texts
from minnow.tune.features import FeatureStore
from minnow.tune.run import Plan, Position, Run, Watch
from minnow.tune.stage import Options
from minnow.tune.target import Target

_NUM_ANSWERS, _MAX_TOKENS, _BATCH = 4_000, 512, 32  # as the engine writes them; tokens of prompt and answer
_STEPS, _RATE = 10_000, 1e-3
_FIRST_SHARE = 0.6  # of the steps of a new drafter, for its first slot alone
_BIGRAM_TEXTS = 512


def train(options: Options, watch: Watch) -> Position:
    """`minnow tune draft`: let the model write answers, then train on them; each part goes on where it stopped.

    Of `options`, `text` gives passages to ask about. `parts` change the model that is drafted for (the answers are
    those of the model without them), or hold a drafter to begin with; without one, the model's own is begun with where
    it has one. `steps` is of the optimizer, 10,000 where it is None.

    Raises:
        ConfigError, CheckpointError: the model, the parts or the answers are not what they should be.
    """
    start_s, end_s = watch.clock(), watch.clock() + 3600 * options.hours
    directory, steps = options.output / "answers", options.steps or _STEPS
    if not _write_answers(options, directory, is_over=lambda: watch.is_stopped() or watch.clock() >= end_s):
        return Position(step=0, steps=steps, seconds=0.0, metrics={})
    torch.set_float32_matmul_precision("medium")  # products of BF16 parts, summed in f32: AMX where there is one
    trained = [place / DIRECTORY for place in (*options.parts, options.directory)]
    begin = next((place for place in (options.output / DIRECTORY, *trained) if (place / PARTS_NAME).is_file()), None)
    parts = [part for part in options.parts if not (part / DIRECTORY).is_dir()]
    loaded = target.load(options.directory, torch.bfloat16, parts)
    is_new = not any((place / PARTS_NAME).is_file() for place in trained)
    settings = Settings(num_first_steps=int(_FIRST_SHARE * steps) if is_new else 0)
    origin = {"model": options.directory.name, "parts": [str(part) for part in options.parts], "seed": options.seed}
    card = {**origin, "text": [str(path) for path in options.text]}
    work = prepare(loaded, answers.read(directory), settings, options.output, begin=begin, seed=options.seed, card=card)
    plan = Plan(steps=steps, rate=_RATE, warmup_steps=100, validate_steps=250, seed=options.seed)
    run = Run(options.output, plan, work.begun.weights, {**origin, **_flat(asdict(settings))}, slow=work.begun.slow)
    return run.go(work, max(options.hours - (watch.clock() - start_s) / 3600, 0.0), watch)


def _write_answers(options: Options, directory: Path, is_over: Callable[[], bool]) -> bool:
    """Let the model answer prompts; whether all answers are there now."""
    if answers.count(directory) >= _NUM_ANSWERS:
        return True
    log = Logger("tune")
    passages = answers.passages(document.text for document in text.read(options.text))
    log.info("prompts", passages=len(passages))
    done = answers.write(
        answers.EngineAuthor(_engine_config(options.directory)),
        prompts.prompts(options.seed, passages),
        directory,
        num_sequences=_NUM_ANSWERS,
        max_tokens=_MAX_TOKENS,
        seed=options.seed,
        is_over=is_over,
        report=lambda done, dropped: log.info("answers", written=done, of=_NUM_ANSWERS, dropped_loops=dropped),
    )
    return done >= _NUM_ANSWERS


def prepare(
    target: Target,
    written: Sequence[Answer],
    settings: Settings,
    output: Path,
    *,
    seed: int,
    card: Mapping[str, Any],
    begin: Path | None = None,
    keeps_features: bool = True,
) -> DrafterWork:
    """Begin a drafter; the weights of a run that goes on are loaded by the Run afterwards.

    Args:
        begin: directory of a drafter whose vocabulary, configuration and weights are begun with, or None.
        written: the answers, in the order of their files; more may have come at the end since the run began.
        keeps_features: on disk, in `output`/features.

    Raises:
        ConfigError: there are too few answers, or the drafter to begin with is of a kind that is not trained.
    """
    texts = Texts.of(written, settings.num_held_out)
    features = output / "features" if keeps_features else None
    if begin is None:
        draft_ids, raw = _new(target, written, settings.shape)
        config = parse_drafter(raw, target.config)
        store = FeatureStore(target, config.target_layer_ids, features)
        markov = bigram.tables(store, texts.trained[:_BIGRAM_TEXTS], draft_ids, config.markov_rank, seed)
        weights = drafter_start.weights(config, store, texts.trained, markov, seed)
    else:
        raw = read_object(begin / "config.json")
        config = parse_drafter(raw, target.config)
        _refuse_untrainable(begin, config)
        store = FeatureStore(target, config.target_layer_ids, features)
        draft_ids, weights = drafter_start.read(begin, config)
    for value in weights.values():
        value.requires_grad_(True)
    begun = Begun(config=config, raw=raw, weights=weights, draft_ids=draft_ids)
    return DrafterWork(begun, store, texts, settings, output, card)


def _refuse_untrainable(directory: Path, config: DrafterConfig) -> None:
    """Name what the loss does not cover: it looks at each slot alone, at whole vocabularies, and at the confidence."""
    wanted = (
        ("markov_head_type", config.markov_head_type, config.markov_head_type != "rnn", "vanilla or gated"),
        ("draft_topk", config.draft_topk, not config.draft_topk, "0"),
        ("enable_confidence_head", config.has_confidence_head, config.has_confidence_head, "true"),
    )
    for name, seen, is_trainable, words in wanted:
        if not is_trainable:
            raise ConfigError(
                f"the drafter of {directory} has {name} {seen}; minnow tune draft trains those with {words}"
            )


def _new(target: Target, written: Sequence[Answer], shape: Shape) -> tuple[Tensor, dict[str, Any]]:
    """The vocabulary and the configuration of a drafter that begins."""
    model = target.config
    always = [i for i in (*model.eos_token_ids, model.bos_token_id) if i is not None]
    said = (answer.ids[answer.num_prompt_tokens :] for answer in written if not answer.is_held_out)
    draft_ids = drafter_start.vocabulary(said, always, shape.draft_vocab_size)
    mask_token_id = drafter_start.unused_id((answer.ids for answer in written), model)
    return draft_ids, drafter_start.config_json(shape, model, len(draft_ids), mask_token_id)


def _engine_config(directory: Path) -> EngineConfig:
    """An engine that writes _BATCH answers at once, with no more cache than they need."""
    blocks_each = -(-_MAX_TOKENS // 128)
    values = {"model": str(directory), "max_model_len": _MAX_TOKENS, "max_num_seqs": _BATCH}
    return load.from_values({**values, "num_gpu_blocks_override": _BATCH * blocks_each + 1}).config


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as plain values, those of the shape among the others; without what follows from the number of steps."""
    own = {name: value for name, value in settings.items() if name not in ("shape", "num_first_steps")}
    return own | dict(settings["shape"])
