"""what is served how, and what cannot be"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from minnow.config import load
from minnow.core.errors import ConfigError
from minnow.plan import deployment, hardware, published
from minnow.plan.deployment import Deployment
from tests import tiny


def deploy(strategy: str = "dep4", device: str = "b300", **settings: Any) -> Deployment:
    return published.deploy("m3.1-flash", device, strategy, **settings)


@pytest.mark.parametrize(
    ("word", "axes", "shown"),
    [
        ("tp4", (4, 1, 1), "TP4"),
        ("TEP8", (8, 1, 8), "TEP8"),
        ("dep2", (1, 2, 2), "DEP2"),
        ("dp2", (1, 2, 1), "DP2"),
    ],
)
def test_a_strategy_in_a_word(word: str, axes: tuple[int, int, int], shown: str) -> None:
    of = deploy(word)
    assert tuple(of.mesh.ranks_of(axis) for axis in ("tp", "dp", "ep")) == axes  # type: ignore[arg-type]
    assert of.strategy == shown and of.num_ranks == axes[0] * axes[1]


def test_both_axes_at_once() -> None:
    parallel = dataclasses.replace(deployment.parallel_of("tp2"), data_parallel_size=4, enable_expert_parallel=True)
    of = deploy()
    both = dataclasses.replace(of, config=dataclasses.replace(of.config, parallel=parallel))
    assert both.strategy == "TP2 x DEP4" and both.num_ranks == 8 and both.mesh.ranks_of("ep") == 8


@pytest.mark.parametrize("word", ["", "tp", "tp0", "pp2", "4", "dep-4"])
def test_no_other_words(word: str) -> None:
    with pytest.raises(ConfigError, match="no strategy is called"):
        deployment.parallel_of(word)


def test_as_few_nodes_as_hold_the_devices() -> None:
    assert (deploy("tp8").num_nodes, deploy("dep8", "gb300").num_nodes, deploy("tep16").num_nodes) == (1, 2, 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"context_tokens": 2**21}, "--context is 2097152, but --max-model-len is 1048576; set at most that"),
        ({"max_model_len": 1000, "context_tokens": 1001}, "--max-model-len is 1000"),
        ({"experts_format": "fp3"}, "--experts-format is 'fp3'; it must be one of f32"),
        ({"reserve": "2GB"}, r"--reserve is 2 GB, but the drafter's weights alone take 2\.302 GB; .*--no-speculation"),
        ({"reserve": "some"}, "'some' is no number of bytes"),
        ({"block_size": 64}, "--block-size is 64"),
        ({"has_hybrid_manager": True, "speculation": False}, "no drafter with a window is served; leave it out"),
        ({"has_sequence_parallel": True}, "needs tensor parallelism, DEP4 has none"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        deploy(**settings)


def test_ranks_must_divide_heads_and_nodes() -> None:
    with pytest.raises(ConfigError, match="3 ranks do not divide the 64 attention heads"):
        deploy("tp3")
    model, own = deploy().model, deployment.settle
    config = load.from_values({"tensor_parallel_size": 16}, {}).config
    for nodes, words in ((1, "--nodes is 1; 16 devices need 2, a node has 8"), (3, "does not divide the 16 devices")):
        with pytest.raises(ConfigError, match=words):
            own("m", model, None, config, hardware.read("b300"), num_nodes=nodes)
    with pytest.raises(ConfigError, match="--hardware is nic-400g, a link"):
        deploy(device="nic-400g")


def test_the_published_drafter_is_there_unless_it_is_left_out() -> None:
    of = deploy()
    assert of.drafter is not None and of.num_drafts == 7
    assert of.config.speculative_config.kv_cache_dtype == "fp8"
    assert (of.reserve.num_bytes, of.reserve.status) == (9 * 10**9, "fitted")
    assert [deploy(s, d).reserve.status for s, d in (("tp4", "b300"), ("dep4", "h200"), ("dep2", "gb300"))] == [
        "extrapolated", "extrapolated", "extrapolated",
    ]  # fmt: skip
    assert deploy(device="gb300").reserve.status == published.m3().reserve.status == "fitted"
    bare = deploy(speculation=False, reserve="1 GB")
    assert bare.drafter is None and bare.num_drafts == 0
    assert (bare.reserve.num_bytes, bare.reserve.status) == (10**9, "given")
    assert published.m3().drafter is None


def test_nothing_was_fitted_on_a_sheet_or_a_model_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "b300.toml"
    text = (hardware.SHEETS / "b300.toml").read_text(encoding="utf-8")
    own.write_text(text.replace("275040 MiB", "200000 MiB"), encoding="utf-8")
    assert deploy(device=str(own)).reserve.status == "extrapolated"
    assert published.deploy("m3", "b300", "dep4").reserve.status == "extrapolated"
    assert published.deploy("m3-mxfp8", "gb300", "dep4").reserve.status == "extrapolated"


def test_a_local_checkpoint_drafts_as_its_engine_would(tmp_path: Path) -> None:
    model = tiny.write_tiny(tmp_path, family="llama")
    tiny.write_tiny_drafter(tmp_path, model)
    here = hardware.read("here")
    asked = load.from_values({"speculative_config": {"method": "dspark"}}, {}).config
    of = deployment.settle("tiny", model, tmp_path, asked, here)
    assert of.drafter is not None and of.reserve.status == "forward"
    silent = deployment.settle("tiny", model, tmp_path, load.from_values({}, {}).config, here)
    assert silent.drafter is None
    with pytest.raises(ConfigError, match="--experts-format is mxfp8, but this model has no experts"):
        deployment.settle("tiny", model, tmp_path, asked, here, experts_format="mxfp8")
    assert of.reserve.num_bytes > silent.reserve.num_bytes + of.drafter_bytes  # and room for drafts
    assert silent.context_tokens == model.max_position_embeddings
