"""recipes: the stated ones word for word, the others marked, and what cannot be refused with its reason"""

import json
import re
import shlex
from pathlib import Path

import pytest

from minnow.core.errors import ConfigError
from minnow.plan import recipe, recipe_build, recipe_rules, recipe_table, recipe_text
from minnow.plan.prefill import SEQUENCE_PARALLEL_TOKENS
from minnow.plan.recipe_build import Process, Recipe
from tests.plan import serving_recipe
from tests.plan.serving_recipe import SIDE_CHANNEL

HOSTS = ("prefill_host=10.0.0.1", "decode_host=10.0.0.2")
ASKED = "features=reasoning,spec_decoding"
CHOICES = {
    "b300": (("hardware=b300",), "serve"),
    "mi355x": (("hardware=mi355x", ASKED), "serve"),
    "mi355x-dbo-sp": (("hardware=mi355x", f"{ASKED},prefill_dbo_sp"), "serve"),
    "gb200": (("hardware=gb200", ASKED), "serve"),
    "hopper": (("hardware=h100",), "serve"),
    "mi355x-prefill": (("hardware=mi355x", "strategy=pd_cluster", ASKED, *HOSTS), "prefill"),
    "mi355x-decode": (("hardware=mi355x", "strategy=pd_cluster", ASKED, *HOSTS), "decode"),
    "gb-prefill": (("hardware=gb300", "strategy=pd_cluster", ASKED, *HOSTS), "prefill"),
    "gb-decode": (("hardware=gb200", "strategy=pd_cluster", ASKED, *HOSTS), "decode"),
}
SAME = ("prefill_host=10.0.0.1", "decode_host=10.0.0.1")  # as the golden file fills the gap
GOLDEN = {
    "b300-tp8": CHOICES["b300"],
    "b300-docker": CHOICES["b300"],
    "mi355x-tp4": CHOICES["mi355x"],
    "mi355x-tp4-dbo-sp": CHOICES["mi355x-dbo-sp"],
    "gb200-tp4": CHOICES["gb200"],
    "hopper-tp8": CHOICES["hopper"],
    **{
        f"{hardware}-{role}": ((f"hardware={hardware}", "strategy=pd_cluster", ASKED, *SAME), role)
        for hardware in ("mi355x", "gb300")
        for role in ("prefill", "decode")
    },
}
EVERY = [
    (hardware, strategy)
    for hardware, platform in recipe_table.read().platform_by_hardware.items()
    for strategy in recipe_table.read().platforms[platform].strategies or recipe_table.read().strategies
]


def build(*words: str) -> Recipe:
    return recipe_build.build(recipe.choose(words))


def process(found: Recipe, role: str) -> Process:
    return next(p for p in found.processes if p.role == role)


def value(of: Process, flag: str) -> str | None:
    return next(word.value for word in of.words if word.name == flag)


def typed(shell: str) -> list[str]:
    """The words that a shell makes of it: lines that end in a backslash go on."""
    return shlex.split(shell.replace("\\\n", " "))


def flat(of: Process) -> list[str]:
    return [text for word in of.words for text in (word.name, word.value) if text is not None]


@pytest.mark.parametrize("name", CHOICES)
def test_stated_configurations_are_equal_word_for_word(name: str) -> None:
    stated = serving_recipe.read()[name]
    words, role = CHOICES[name]
    found = build(*words)
    assert found.status == "stated"
    made = process(found, role)
    assert flat(made) == stated.words
    environ = {word.name: word.value for word in made.environment}
    assert list(environ) == list(stated.environ)
    assert environ == {k: v or environ[k] for k, v in stated.environ.items()}
    assert [k for k, v in stated.environ.items() if not v] == ([SIDE_CHANNEL] if role != "serve" else [])


def test_the_golden_commands_are_equal_word_for_word() -> None:
    """The same where the page is not here."""
    text = (Path(__file__).parents[1] / "golden" / "recipes.txt").read_text(encoding="utf-8")
    golden = dict(re.findall(r"^\[(.+?)\]\n(.*?)(?=\n\n|\Z)", text, re.M | re.S))
    assert len(golden) == 10
    for name, (words, role) in GOLDEN.items():
        made = next(c for c in recipe_text.commands(build(*words), "vllm") if c.title == role)
        expected = [re.sub(r"(?<=[\[,]) (?=\{)", "", word) for word in shlex.split(golden[name])]
        assert typed(made.shell) == expected, name


def test_the_shell_reads_the_same_words() -> None:
    stated = serving_recipe.read()["b300"]
    command = recipe_text.commands(build("hardware=b300"), "vllm")[0]
    environ = [f"{k}={v}" for k, v in stated.environ.items()]
    assert typed(command.shell) == [*environ, "vllm", "serve", recipe_table.read().model, *stated.words]
    assert typed(command.docker) == serving_recipe.docker()


def test_host_memory_of_the_prefill_node_as_stated() -> None:
    found = build("hardware=gb300", "strategy=pd_cluster", ASKED, "host_memory=180GiB")
    assert found.status == "stated"
    assert value(process(found, "prefill"), "--kv-transfer-config") == serving_recipe.host_offload()
    assert json.loads(value(process(found, "decode"), "--kv-transfer-config") or "")["kv_role"] == "kv_consumer"


@pytest.mark.parametrize(("hardware", "strategy"), EVERY)
def test_every_choice_gives_commands_with_a_rule_for_each_word(hardware: str, strategy: str) -> None:
    is_spread = strategy.startswith("multi")
    nodes = ["nodes=2", "head_host=10.0.0.9"] if is_spread else HOSTS if strategy == "pd_cluster" else []
    for variant in recipe_table.read().platforms[recipe_table.read().platform_by_hardware[hardware]].variants:
        found = build(f"hardware={hardware}", f"strategy={strategy}", f"variant={variant}", *nodes)
        for made in found.processes:
            assert all(word.rule for word in (*made.environment, *made.words))
            assert value(made, "--block-size") == "128"
            assert "--disable-hybrid-kv-cache-manager" in flat(made)
        stated = (strategy, variant) == ("single_node_tp", "default") and hardware == "b300"
        assert found.status == ("stated" if stated or hardware in ("h100", "h200") else "inferred")
        assert ("why each word is there" in "\n".join(recipe_text.show(found, "vllm"))) == (found.status == "inferred")


@pytest.mark.parametrize("hardware", ["b200", "gb200", "b300", "gb300", "mi355x"])
@pytest.mark.parametrize("variant", ["default", "mxfp4", "fp8"])
def test_the_two_nodes_of_a_pair_fit_each_other(hardware: str, variant: str) -> None:
    found = build(f"hardware={hardware}", f"variant={variant}", "strategy=pd_cluster", *HOSTS)
    prefill, decode = found.processes
    layouts = [{w.value for w in p.environment if w.name == "VLLM_KV_CACHE_LAYOUT"} for p in (prefill, decode)]
    assert layouts[0] == layouts[1]
    assert value(prefill, "--kv-cache-dtype") == value(decode, "--kv-cache-dtype")
    assert "--no-enable-prefix-caching" not in flat(prefill) and "--enable-prefix-caching" not in flat(decode)
    assert "indexer_decode_cp" not in (value(prefill, "--attention-config") or "")
    sides = [json.loads(value(p, "--kv-transfer-config") or "") for p in (prefill, decode)]
    if hardware != "mi355x":  # which states none
        assert [side["kv_connector_extra_config"]["engine_ttl"] for side in sides] == [0, 0]
        assert value(decode, "--watermark") == "0.05"
    addresses = [{w.value for w in p.environment if w.name == SIDE_CHANNEL} for p in (prefill, decode)]
    assert addresses == [{"10.0.0.1"}, {"10.0.0.2"}]


def test_two_halves_need_the_runner_that_takes_drafts() -> None:
    made = process(build("hardware=mi355x", f"{ASKED},prefill_dbo_sp"), "serve")
    environ = {word.name: word.value for word in made.environment}
    assert environ["VLLM_USE_V2_MODEL_RUNNER"] == environ["VLLM_ROCM_MINIMAX_M3_SP_PREFILL"] == "1"
    assert int(value(made, "--dbo-prefill-token-threshold") or 0) >= 2 * SEQUENCE_PARALLEL_TOKENS


def test_a_page_address_will_do() -> None:
    assert recipe.choose(["hardware=gb300&strategy=single_node_tp&preset=gb300_agentx_agg"]).devices == 4
    assert recipe.choose(["preset=b300_agentx_tp2"]).devices == 2


def test_presets_name_their_hardware_and_are_inferred() -> None:
    for name, preset in recipe_table.read().presets.items():
        if name == recipe.DEFAULT_PRESET:
            continue
        found = build(f"preset={name}")
        assert (found.choice.hardware, found.choice.strategy) == (preset.hardware, preset.strategy)
        assert found.status == "inferred" and any("by name only" in note for note in found.notes)
    two = process(build("preset=b300_agentx_tp2"), "serve")
    assert value(two, "--tensor-parallel-size") == "2"
    transfer = json.loads(value(two, "--kv-transfer-config") or "")
    assert transfer["kv_connector_extra_config"]["cpu_bytes_to_use_per_rank"] == 180 << 30


def test_nodes_are_told_of_each_other() -> None:
    head, follower = build("hardware=b300", "strategy=multi_node_tep", "nodes=2", "head_host=a").processes
    assert value(head, "--tensor-parallel-size") == value(follower, "--tensor-parallel-size") == "16"
    assert [value(p, "--node-rank") for p in (head, follower)] == ["0", "1"]
    assert "--headless" not in flat(head) and "--headless" in flat(follower)
    head, follower = build("hardware=gb200", "strategy=multi_node_dep", "nodes=2", "head_host=a").processes
    assert (value(head, "--data-parallel-size"), value(head, "--data-parallel-size-local")) == ("8", "4")
    assert value(follower, "--data-parallel-start-rank") == "4" and value(follower, "--data-parallel-address") == "a"


def test_graphs_cover_every_sequence_and_its_drafts() -> None:
    decode = process(build("hardware=gb300", "strategy=pd_cluster"), "decode")
    assert json.loads(value(decode, "--compilation-config") or "")["max_cudagraph_capture_size"] == 28 * (1 + 7)
    decode = process(build("hardware=gb300", "strategy=pd_cluster", "features=reasoning"), "decode")
    assert json.loads(value(decode, "--compilation-config") or "")["max_cudagraph_capture_size"] == 28


def test_huge_pages_are_ranks_times_memory() -> None:
    found = build("hardware=mi355x", "strategy=pd_cluster", ASKED, *HOSTS)
    assert [p.num_huge_pages for p in found.processes] == [2240, 0]
    before = recipe_text.commands(found, "vllm")[0].before
    assert before == ("echo 2240 | sudo tee /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",)


def test_minnow_leaves_out_what_has_no_effect_and_says_what_is_not_launched_yet() -> None:
    command = recipe_text.commands(build("hardware=gb300", "strategy=pd_cluster", *HOSTS), "minnow")[1]
    words = typed(command.shell)
    words = words[words.index("minnow") :]
    assert words[:3] == ["minnow", "serve", recipe_table.read().model] and not command.docker
    assert command.left_out.keys() >= {"--moe-backend", "--compilation-config", "VLLM_USE_V2_MODEL_RUNNER"}
    assert not command.left_out.keys() & {*words}
    assert command.not_yet.keys() == {
        "--tool-call-parser", "--enable-auto-tool-choice", "--reasoning-parser", "--kv-transfer-config",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hardware=b300", "devices=3"], "3 devices do not divide the 64 attention heads; take a divisor"),
        (["hardware=b300", "devices=0"], "devices is '0'; a whole number from 1 on is needed: devices=4"),
        (["hardware=b300", "devices=16"], "single_node_tp takes 16 devices, but a node of b300 has 8"),
        (
            ["hardware=gb300", "strategy=pd_cluster", "devices=4"],
            "the roles of pd_cluster have their own; leave it out",
        ),
        (["hardware=b300", "strategy=multi_node_tp", "nodes=3"], "makes 24 devices, which do not divide the 64 atten"),
        (["hardware=gb200", "strategy=multi_node_dep", "nodes=3"], "makes 12 devices, which do not divide the 128 exp"),
        ([], "a recipe needs its hardware: hardware=b300; known are b200, gb200, b300"),
        (["hardware=b400"], "no hardware is called 'b400'; it must be one of b200, gb200"),
        (["hardware"], "'hardware' is no key=value"),
        (["hardwar=b300"], "a recipe has no 'hardwar'; did you mean hardware?"),
        (["hardware=b300", "hardware=b200"], "hardware is given twice, as b300 and as b200"),
        (["hardware=b300", "strategy=tp8"], "no strategy is called 'tp8'; it must be one of single_node_tp, single"),
        (["hardware=b300", "variant=int4"], "no variant is called 'int4'; it must be one of default, mxfp4, fp8"),
        (["hardware=b300", "features=vision"], "no feature is called 'vision'; it must be one of tool_calling"),
        (["hardware=b300", "preset=fast"], "no preset is called 'fast'; it must be one of baseline, gb300_agentx_agg"),
        (["hardware=b300", "preset=gb300_agentx_pd"], "preset gb300_agentx_pd is for hardware gb300, not b300"),
        (["hardware=b300", "head_host=a"], "head_host is given, but single_node_tp has no such node; leave it out"),
        (["hardware=b300", "nodes=2"], "nodes is 2, but single_node_tp has one node an engine; leave it out"),
        (["hardware=b300", "strategy=multi_node_tp"], "nodes is ''; multi_node_tp needs the number of machines"),
        (["hardware=h100", "variant=default"], "variant default has caches in NVFP4, but h100 has no FP4 units"),
        (["hardware=h200", "features=spec_decoding"], "feature spec_decoding is not for h200: DSpark is not served on"),
        (["hardware=h200", "strategy=pd_cluster"], "strategy pd_cluster is not for h200; it takes single_node_tp"),
        (["hardware=b300", "features=prefill_dbo_sp"], "both switches are of the MI355X engine"),
        (["hardware=mi355x", "strategy=single_node_dep", "features=prefill_dbo_sp"], "prefill_dbo_sp is for single"),
        (["hardware=mi355x", "strategy=pd_cluster", "host_memory=1GB"], "no whole number of 1 GiB pages; set 1GiB"),
    ],
)
def test_what_cannot_be_is_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(*words)
    assert sentence in str(error.value)


def test_addresses_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="pd_cluster needs prefill_host=ADDRESS and decode_host=ADDRESS"):
        recipe_rules.check_addresses(recipe.choose(["hardware=mi355x", "strategy=pd_cluster"]))
    with pytest.raises(ConfigError, match="multi_node_tp needs head_host=ADDRESS: an address"):
        recipe_rules.check_addresses(recipe.choose(["hardware=b300", "strategy=multi_node_tp", "nodes=2"]))


def test_fewer_devices_than_the_recipe_has_are_inferred() -> None:
    whole, fewer = build("hardware=b300", "devices=8"), build("hardware=b300", "devices=4")
    assert (whole.status, fewer.status) == ("stated", "inferred")
    assert value(process(fewer, "serve"), "--tensor-parallel-size") == "4"
    spread = build("hardware=b300", "strategy=multi_node_dep", "nodes=2", "devices=4", "head_host=h")
    assert value(process(spread, "serve"), "--data-parallel-size") == "8"
