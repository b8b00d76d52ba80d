"""the commands beside a plan on the page: the same plan typed, and the recipes that start it"""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from minnow.config import model as model_config
from minnow.core.errors import ConfigError, MinnowError
from minnow.plan import asked, capacity, command, recipe, recipe_build, recipe_table, recipe_text
from minnow.plan.capacity import Capacity
from minnow.plan.deployment import Deployment
from minnow.plan.page_query import Query, inputs
from minnow.plan.page_table import KINDS
from minnow.plan.recipe_build import Process, Recipe, Word

# What a plan may ask for otherwise than the recipe, as a flag of a serving command.
_FLAGS = {
    one.name: one.flag for one in inputs({}) if one.name in ("kv", "utilization", "max_seqs", "longest", "watermark")
}
_FLAGS |= {"experts": "--quantization-config.moe"}
_RULE = "asked for in this plan"
_LATER = "the load is not in it: minnow simulate takes prompts, answers and how often they come"
_HOSTS = {"prefill": "PREFILL_ADDRESS", "decode": "DECODE_ADDRESS", "head": "HEAD_ADDRESS"}  # to be filled in


def of(query: Query, found: Capacity) -> dict[str, Any]:
    """The commands of a plan: "plan", and "serving" with "lacking" where there is no recipe."""
    notes = [_LATER] if query.output_tokens or query.num_sequences else []
    if query.loaded.config.model != query.name:
        notes.append(f"{query.name} is what the model is called here; on the command line, name its directory")
    plan = {"title": "This plan", "text": typed(query), "status": "", "notes": notes}
    try:
        recipes = list(_serving(query, found))
    except ConfigError as error:
        return {"plan": plan, "serving": [], "lacking": f"No recipe: {error}"}
    return {"plan": plan, "serving": recipes, "lacking": ""}


def typed(query: Query) -> str:
    """The command line that prints the same plan."""
    flags = {one.name: one.flag for one in inputs({}) if one.flag}
    config = query.loaded.config
    words = ["minnow plan", shlex.quote(query.name), "--hardware", query.device.name, "--strategy", query.strategy]
    if query.prefill:
        words += ["--prefill", query.prefill]
    for name, flag in flags.items():
        if name in query.given and name not in ("hardware", "strategy", "prefill"):
            words += [flag, shlex.quote(query.given[name])]
    return " ".join([*words, *(["--no-speculation"] if not config.speculation else [])])


def _serving(query: Query, found: Capacity) -> Iterator[dict[str, Any]]:
    """A recipe's commands for each engine, with what is to be known of them."""
    built = _asked_for(recipe_build.build(_choose(query)), query)
    comes_to = {
        process.role: tuple(_comes_to(built, process, query, found)) for process in built.processes if not process.node
    }
    for engine, name in (("minnow", "Minnow"), ("vllm", "vLLM")):
        for process, one in zip(built.processes, recipe_text.commands(built, engine), strict=True):  # type: ignore[arg-type]
            notes = [*comes_to[process.role], *(built.notes if engine == "vllm" else ())]
            notes += [f"before the start: {line}" for line in one.before]
            notes += [f"left out, without effect here: {word}: {why}" for word, why in one.left_out.items()]
            notes += [f"planned with, not launched yet: {word}: {why}" for word, why in one.not_yet.items()]
            reasons = [*one.environment, *one.words] if built.status == "inferred" else []
            yield {
                "title": f"{name}, {one.title}", "text": one.shell, "status": built.status, "notes": notes,
                "reasons": [[recipe_text.pair(word), word.rule] for word in reasons],
            }  # fmt: skip


def _choose(query: Query) -> recipe.Choice:
    """The recipe's choice that is this plan.

    Raises:
        ConfigError: there is none, and why.
    """
    table = recipe_table.read()
    device, per_node = query.device.name, query.device.devices_per_node
    if asked.find(query.loaded.config.model)[1] != model_config.known(table.model):
        raise ConfigError(f"recipes are for {table.model}, not for {query.name}")
    if device not in table.platform_by_hardware:
        raise ConfigError(f"there is none for {device}; there are some for {', '.join(table.platform_by_hardware)}")
    platform = table.platforms[table.platform_by_hardware[device]]
    words = {"hardware": device}
    kind, count = query.strategy.rstrip("0123456789"), int(query.strategy.lstrip("dept"))
    if query.prefill:
        split = table.splits.get(table.platform_by_hardware[device])
        wanted = None if split is None else (f"{split.parallel}{split.prefill}", f"{split.parallel}{split.decode}")
        if wanted != (query.prefill, query.strategy):
            has = f"the one for {device} is {wanted[0]} beside {wanted[1]}" if wanted else f"{device} has none"
            raise ConfigError(f"of prefill and decode apart, {has}")
        words["strategy"] = "pd_cluster"
    else:
        if kind == "dp":
            raise ConfigError("there is none for whole replicas; serve each one for itself, as tp")
        nodes = query.num_nodes or -(-count // per_node)
        words |= {"strategy": f"{'multi' if nodes > 1 else 'single'}_node_{kind}", "devices": str(count // nodes)}
        if nodes > 1:
            words |= {"nodes": str(nodes)}
    choice = recipe.choose(f"{key}={value}" for key, value in words.items())
    # The features of the public command, where there is one; else what its platform has by default.
    stated = [row for row in table.stated if device in row["hardware"] and choice.strategy in row["strategy"]]
    features = tuple(stated[0]["features"]) if stated else platform.defaults
    if not query.loaded.config.speculation:
        features = tuple(feature for feature in features if feature != "spec_decoding")
    hosts = {name: _HOSTS[name] for name in table.strategies[choice.strategy].hosts}
    return dataclasses.replace(choice, features=features, hosts=hosts)


def _asked_for(built: Recipe, query: Query) -> Recipe:
    """The same with the settings that the plan asks for, which nobody has stated."""
    given = {flag: query.given[name] for name, flag in _FLAGS.items() if name in query.given}
    if "longest" in query.given:  # in figures: engines read 200K in more ways than one
        given[_FLAGS["longest"]] = str(query.loaded.config.max_model_len)
    if "index" in query.given:
        given["--attention-config"] = json.dumps({"indexer_kv_dtype": query.given["index"]})
    if not given:
        return built
    processes = tuple(
        dataclasses.replace(process, words=tuple(_laid(process.words, given))) for process in built.processes
    )
    is_same = processes == built.processes
    return built if is_same else dataclasses.replace(built, processes=processes, status="inferred")


def _laid(words: tuple[Word, ...], given: Mapping[str, str]) -> Iterator[Word]:
    left = dict(given)
    for word in words:
        value = left.pop(word.name, None)
        if value is not None and word.name == "--attention-config":
            value = json.dumps({**json.loads(word.value or "{}"), **json.loads(value)})
        yield word if value in (None, word.value) else Word(name=word.name, value=value, rule=_RULE)
    yield from (Word(name=name, value=value, rule=_RULE) for name, value in left.items())


def _comes_to(built: Recipe, process: Process, query: Query, found: Capacity) -> Iterator[str]:
    """How an engine of a recipe differs from the plan, what it holds then, and what is to be mended or known."""
    context = {"context_tokens": found.deployment.context_tokens, "reserve": query.given.get("reserve", "")}
    try:
        loaded = command.read(built, process, {})
        engine = asked.settle(loaded, query.device, is_drafting=False, **context)  # type: ignore[arg-type]
        holds = capacity.measure(engine).allocated
        checked = command.check(loaded, engine)
    except MinnowError as error:
        yield f"planned as it stands: {error}"
        return
    count, tokens = holds.num_sequences_engine, engine.context_tokens
    if process.role == "prefill" or count != found.allocated.num_sequences_engine:
        yield f"planned as it stands, it holds {count:,} sequences of {tokens:,} tokens; {holds.binds} binds"
    of = query.settle(query.prefill) if process.role == "prefill" else found.deployment
    planned, own = _settings(of), _settings(engine)
    for name in (name for name in own if own[name] != planned[name]):
        yield f"planned otherwise: {name} {planned[name]} in the plan, {own[name]} in this command"
    yield from (f"to be mended: {sentence}" for sentence in checked.problems)
    yield from (f"to be known: {sentence}" for sentence in checked.notes)


def _settings(of: Deployment) -> dict[str, str]:
    """What the numbers of a plan depend on, in words that can be compared."""
    cache, scheduler = of.config.cache, of.config.scheduler
    formats: dict[str, str] = {group.name: group.format.name for group in capacity.stored_row(of).groups}
    return {
        "strategy": of.strategy, "machines": str(of.num_nodes), "drafts a round": str(of.num_drafts),
        "max_model_len": f"{of.config.max_model_len:,}", "max_num_seqs": f"{scheduler.max_num_seqs:,}",
        "max_num_batched_tokens": f"{scheduler.max_num_batched_tokens:,}", "watermark": f"{scheduler.watermark:g}",
        "gpu_memory_utilization": f"{cache.gpu_memory_utilization:g}",
        **{f"format of {words}": formats.get(name, "none") for name, words in KINDS.items()},
        "routed experts": of.experts_format or "as stored",
        "sequence-parallel prefill": "on" if of.has_sequence_parallel else "off",
        "index scan": "split over ranks" if of.has_index_cp else "whole on every rank",
        "halves of a step side by side": f"from {of.dual_batch_tokens:,} tokens" if of.dual_batch_tokens else "off",
    }  # fmt: skip
