"""the compatibility promise, and the public recipe's command lines"""

import re
import shlex
from pathlib import Path

import pytest

from minnow.config import flags, load, vllm
from minnow.config.engine import problems
from minnow.config.model import known
from minnow.core.errors import ConfigError

RECIPES = Path(__file__).parents[1] / "golden" / "recipes.txt"
REASONING, EXPERTS, TRANSFER = (
    "--reasoning-parser", "--quantization-config.moe", "--kv-transfer-config",
)  # fmt: skip
TOOLS = ("--tool-call-parser", "--enable-auto-tool-choice")
REFUSED_BY_RECIPE = {
    "b300-tp8": {REASONING, *TOOLS},
    "b300-docker": {REASONING, *TOOLS},
    "mi355x-tp4": {REASONING, EXPERTS},
    "mi355x-tp4-dbo-sp": {REASONING, EXPERTS},
    "gb200-tp4": {REASONING},
    "hopper-tp8": {REASONING, *TOOLS},
    "mi355x-prefill": {REASONING, EXPERTS, TRANSFER},
    "mi355x-decode": {REASONING, EXPERTS, TRANSFER},
    "gb300-prefill": {REASONING, TRANSFER},
    "gb300-decode": {REASONING, TRANSFER},
}


def _recipes() -> dict[str, tuple[dict[str, str], list[str]]]:
    found = {}
    for name, text in re.findall(r"^\[(.+?)\]\n(.*?)(?=\n\n|\Z)", RECIPES.read_text(encoding="utf-8"), re.M | re.S):
        words = shlex.split(text)
        start = words.index("vllm")
        assert words[start : start + 2] == ["vllm", "serve"]
        found[name] = (dict(word.split("=", 1) for word in words[:start]), words[start + 2 :])
    return found


def _load(words: list[str], environ: dict[str, str]) -> load.Loaded:
    parser = flags.new_parser("minnow serve", "about")
    flags.add_arguments(parser)
    return load.load(flags.parse(parser, words), environ)


def _without(words: list[str], refused: set[str]) -> list[str]:
    kept: list[str] = []
    is_dropping = False
    for word in words:
        is_dropping = word in refused if word.startswith("-") else is_dropping
        kept += [] if is_dropping else [word]
    return kept


def test_every_recipe_has_its_expectation() -> None:
    assert list(_recipes()) == list(REFUSED_BY_RECIPE)


@pytest.mark.parametrize("name", REFUSED_BY_RECIPE)
def test_recipe_is_refused_for_what_is_listed_and_nothing_else(name: str) -> None:
    environ, words = _recipes()[name]
    with pytest.raises(ConfigError) as error:
        _load(words, environ)
    sentences = str(error.value).split("; --")
    assert {"--" + s.split()[0].removeprefix("--") for s in sentences} == REFUSED_BY_RECIPE[name]
    assert all(" is refused: " in s for s in sentences)


@pytest.mark.parametrize("name", REFUSED_BY_RECIPE)
def test_recipe_without_the_refused_flags_loads(name: str) -> None:
    environ, words = _recipes()[name]
    config = _load(_without(words, REFUSED_BY_RECIPE[name]), environ).config
    assert config.model == "MiniMaxAI/MiniMax-M3.1-Flash"
    assert config.cache.block_size == 128
    kv_cache_dtype = "fp8" if name == "hopper-tp8" else "nvfp4"
    assert (config.cache.kv_cache_dtype, config.attention_config.indexer_kv_dtype) == (kv_cache_dtype, kv_cache_dtype)


def test_values_of_recipes() -> None:
    environ, words = _recipes()["gb300-decode"]
    config = _load(_without(words, REFUSED_BY_RECIPE["gb300-decode"]), environ).config
    assert (config.parallel.data_parallel_size, config.parallel.enable_expert_parallel) == (4, True)
    assert (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens) == (28, 8192)
    assert (config.cache.gpu_memory_utilization, config.scheduler.watermark) == (0.95, 0.05)
    assert config.cache.enable_prefix_caching is False
    assert config.server.port == 8200
    environ, words = _recipes()["hopper-tp8"]
    config = _load(_without(words, REFUSED_BY_RECIPE["hopper-tp8"]), environ).config
    assert (config.parallel.tensor_parallel_size, config.max_model_len) == (8, 262144)


@pytest.mark.parametrize("name", REFUSED_BY_RECIPE)
def test_then_only_the_number_of_devices_is_in_the_way(name: str) -> None:
    environ, words = _recipes()[name]
    config = _load(_without(words, REFUSED_BY_RECIPE[name]), environ).config
    model = known(config.model)
    assert model is not None
    found = [sentence.split()[0] for sentence in problems(load.resolve_auto(config, model), model)]
    assert found == ["--data-parallel-size" if name.startswith("gb300") else "--tensor-parallel-size"]


def test_flags_without_effect_warn_once_each(capsys: pytest.CaptureFixture[str]) -> None:
    _load(
        ["--enforce-eager", "--enforce-eager", "--moe-backend", "marlin", "-O3"], {"VLLM_USE_V1": "1", "VLLM_ODD": "1"}
    )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    for word in ("--enforce-eager", "--moe-backend", "--optimization-level", "VLLM_USE_V1", "VLLM_ODD"):
        assert sum(f"flag={word} " in line for line in lines) == 1


def test_harmless_values_of_refused_flags() -> None:
    _load(["-pp", "1", "--load-format", "safetensors", "--no-enable-lora"], {"VLLM_KV_CACHE_LAYOUT": "BLHNC"})
    for words in (["-pp", "2"], ["--load-format", "dummy"], ["--enable-lora"], ["--lora-modules", "a=b", "c=d"]):
        with pytest.raises(ConfigError, match="is refused"):
            _load(words, {})


def test_a_plan_takes_what_a_launch_does_not_yet(capsys: pytest.CaptureFixture[str]) -> None:
    parser = flags.new_parser("minnow plan", "about")
    flags.add_arguments(parser)
    for name in REFUSED_BY_RECIPE:
        environ, words = _recipes()[name]
        found = load.load(flags.parse(parser, words), environ, is_planning=True).foreign
        assert {*found.not_yet} == REFUSED_BY_RECIPE[name] and not found.refused
        assert environ.items() <= found.value_by_flag.items()
    assert not capsys.readouterr().err  # the caller shows them
    with pytest.raises(ConfigError, match=r"--load-format is refused"):
        load.load(flags.parse(parser, ["--load-format", "dummy"]), {}, is_planning=True)


def test_a_parser_there_is_not_is_refused_in_a_plan_too() -> None:
    parser = flags.new_parser("minnow plan", "about")
    flags.add_arguments(parser)
    for flag in ("--reasoning-parser", "--tool-call-parser"):
        with pytest.raises(ConfigError, match=f"{flag} is refused: it is 'deepseek_r1'; it must be one of minimax_m3"):
            load.load(flags.parse(parser, [flag, "deepseek_r1"]), {}, is_planning=True)


def test_an_address_that_a_recipe_lost_is_missed() -> None:
    name = "VLLM_NIXL_SIDE_CHANNEL_HOST"
    with pytest.raises(ConfigError, match=f"{name} is refused: it is empty; set this node's own address"):
        _load([], {name: ""})
    assert {*vllm.judge({}, {name: ""}).not_yet} == {name}
    assert {*vllm.judge({}, {name: "10.0.0.1", "VLLM_USE_V1": ""}).ignored} == {name}


def test_a_key_that_would_guard_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"VLLM_API_KEY is refused: .*MINNOW_API_KEY"):
        _load([], {"VLLM_API_KEY": "secret"})
    assert _load([], {"MINNOW_API_KEY": "secret"}).config.server.api_key == "secret"


def test_table_and_flags_agree() -> None:
    ours = {item.flag for item in flags.settings().values()} | {
        "--attention-config",
        "--speculative-config",
        "--config",
    }
    rows = [row.flag for row in (*vllm.FLAGS, *vllm.ENVIRONMENT)]
    assert len(rows) == len(set(rows))
    for row in vllm.FLAGS:
        assert (row.flag in ours) == (row.verdict in ("same", "other meaning")), row.flag
        assert row.reason or row.verdict == "same", row.flag
    assert all(row.verdict in ("no effect", "refused") for row in vllm.ENVIRONMENT)
