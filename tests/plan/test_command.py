"""serving commands as they are planned: those of the public recipe, and what is wrong with others"""

import json

import pytest

from minnow.config import flags, load
from minnow.config.load import Loaded
from minnow.core.errors import ConfigError
from minnow.plan import asked, capacity, command, connector, hardware
from minnow.plan.command import Check
from tests.plan import serving_recipe

MODEL = "MiniMaxAI/MiniMax-M3.1-Flash"
DEVICE = {
    "b300": "b300", "mi355x": "mi355x", "mi355x-dbo-sp": "mi355x", "gb200": "gb200", "hopper": "h200",
    "mi355x-prefill": "mi355x", "mi355x-decode": "mi355x", "gb-prefill": "gb300", "gb-decode": "gb300",
}  # fmt: skip
# sequences of 256K that a rank of each holds, every stored byte charged; what is to be known
HELD = {
    "b300": (58, 0), "mi355x": (42, 0), "mi355x-dbo-sp": (41, 0), "gb200": (28, 0), "hopper": (15, 0),
    "mi355x-prefill": (42, 1), "mi355x-decode": (42, 2), "gb-prefill": (10, 0), "gb-decode": (16, 0),
}  # fmt: skip


def loaded(*words: str, environ: dict[str, str] | None = None, model: str = MODEL) -> Loaded:
    parser = flags.new_parser("minnow serve", "about")
    flags.add_arguments(parser)
    return load.load(flags.parse(parser, [model, *words]), environ or {}, is_planning=True)


def check(*words: str, environ: dict[str, str] | None = None, device: str = "mi355x") -> Check:
    found = loaded(*words, environ=environ)
    return command.check(found, asked.settle(found, hardware.read(device), is_drafting=False))


@pytest.mark.parametrize("name", serving_recipe.NAMES)
def test_every_command_of_the_public_recipe_is_planned(name: str) -> None:
    stated = serving_recipe.read()[name]
    found = loaded(*stated.words, environ=stated.environ)
    of = asked.settle(found, hardware.read(DEVICE[name]), is_drafting=False)
    checked = command.check(found, of)
    assert not checked.problems
    held = capacity.hold(of, capacity.EVERYTHING)
    assert (held.num_cached, len(checked.notes)) == HELD[name]
    assert of.experts_format == ("mxfp8" if name.startswith("mi355x") else "")
    assert of.has_sequence_parallel == (name == "mi355x-dbo-sp")
    assert of.num_drafts == (3 if name.startswith("mi355x") else 0 if name == "hopper" else 7)
    pages = checked.host.num_huge_pages if checked.host else 0
    assert pages == (2240 if name == "mi355x-prefill" else 0)
    lost = [word for word, value in stated.environ.items() if not value]
    assert [word for word in checked.not_yet if word.startswith("VLLM_")] == lost


DRAFTS = ("--speculative-config", '{"method":"dspark","num_speculative_tokens":3}')
OVERLAP = ("-tp", "4", "--enable-dbo")
PRODUCER = ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}')


def test_thresholds_of_dual_batches() -> None:
    sharded = {"VLLM_ROCM_MINIMAX_M3_SP_PREFILL": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    small, whole = check(*OVERLAP, "--dbo-prefill-token-threshold", "8190", *DRAFTS, environ=sharded).problems
    assert small.startswith("--dbo-prefill-token-threshold is 8190: halves of 4095 tokens") and "set 8192" in small
    assert whole.startswith("--dbo-decode-token-threshold is 32, but a step may have 256 tokens; set 256 or more")
    right = ("--dbo-prefill-token-threshold", "16384", "--dbo-decode-token-threshold", "32768")
    assert not check(*OVERLAP, *right, *DRAFTS, environ=sharded).problems
    (note,) = check(*OVERLAP, *right, *DRAFTS).notes
    assert "VLLM_USE_V2_MODEL_RUNNER=1 is needed" in note
    assert len(check("-tp", "4", *right).notes) == 2


def test_graphs_smaller_than_a_decode_step() -> None:
    words = ("-dp", "4", "-ep", "--max-num-seqs", "28", *DRAFTS, "--compilation-config")
    (sentence,) = check(*words, '{"max_cudagraph_capture_size": 111}', device="gb300").problems
    assert sentence.endswith("may have 112 tokens (28 sequences of 1 + 3); set 112")
    assert not check(*words, '{"max_cudagraph_capture_size": 112}', device="gb300").problems


def test_a_node_that_only_prefills() -> None:
    index = ("--attention-config", '{"indexer_decode_cp": true}')
    found = check("-tp", "4", *PRODUCER, *index, "--no-enable-prefix-caching")
    assert [sentence.split()[0] for sentence in found.problems] == ["--no-enable-prefix-caching"]
    assert [sentence.split()[0] for sentence in found.notes] == [  # of no harm, so it is no problem
        "--attention-config.indexer_decode_cp", "--kv-transfer-config",
    ]  # fmt: skip
    assert not check("-tp", "4", *index).notes


def test_experts_and_nodes_in_every_spelling() -> None:
    for words in (["--quantization-config.moe", "mxfp4"], ["--quantization-config", '{"moe": "mxfp4"}']):
        assert command.experts_format(loaded(*words).foreign) == "mxfp4"
    with pytest.raises(ConfigError, match=r"--quantization-config.moe is 'fp3'; it must be one of f32"):
        command.experts_format(loaded("--quantization-config.moe", "fp3").foreign)
    assert command.num_nodes(loaded("--nnodes", "2").foreign) == 2 and command.num_nodes(loaded().foreign) == 0


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("{", "'{' is no JSON"),
        ("3", "3 is no JSON object"),
        ('{"kv_connector": "Lmcache"}', "kv_connector is 'Lmcache'; it must be one of NixlConnector, SimpleCPU"),
        ('{"kv_connector": "NixlConnector"}', "kv_role is None; it must be one of kv_producer, kv_consumer, kv_both"),
        ('{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "retry"}', "is 'retry'"),
        ('{"kv_connector": "MultiConnector", "kv_role": "kv_both"}', "a MultiConnector needs a list of connectors"),
        ('{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"engine_ttl": -1}}',
         "engine_ttl is -1; a whole number is needed"),
        ('{"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
         '{"cpu_bytes_to_use_per_rank": 1000, "cpu_hugepage_block_size": "1GB"}}', "no whole number of 1 GiB pages"),
    ],
)  # fmt: skip
def test_connectors_that_cannot_be(value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        connector.read(value)
    assert sentence in str(error.value)


def test_more_blocks_than_the_memory_has() -> None:
    words = ("-dp", "4", "-ep", "--num-gpu-blocks-override")
    (sentence,) = check(*words, "100000000", device="b300").problems
    assert sentence.startswith("--num-gpu-blocks-override is 100000000, a cache of 497.7 TB")
    most = sentence.rpartition("leave it out, or set at most ")[2]
    assert not check(*words, most, device="b300").problems
    assert check(*words, str(int(most) + 1), device="b300").problems


def test_host_memory_in_ordinary_pages() -> None:
    extra = {"cpu_bytes_to_use_per_rank": 10**9, "lazy_offload": True}
    value = {"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}
    host = check("-tp", "4", "--kv-transfer-config", json.dumps(value)).host
    assert host is not None and host.num_huge_pages == 0 and host.total_bytes == 4 * 10**9


@pytest.mark.parametrize("block_size", ["16", "64", "256"])
def test_another_block_size_is_refused_before_anything(block_size: str) -> None:
    with pytest.raises(ConfigError, match=rf"--block-size is {block_size}; the sparse attention .* needs 128"):
        check("-tp", "4", "--block-size", block_size)
    assert asked.settle(loaded("-tp", "4"), hardware.read("b300")).config.cache.block_size == 128
