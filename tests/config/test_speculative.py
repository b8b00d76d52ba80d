"""which drafts are made: what is asked for, what a drafter proposes, what is refused"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from minnow.config.load import from_values, resolve_auto, resolve_speculation
from minnow.config.model import read
from minnow.config.speculative import SpeculativeConfig
from minnow.core.errors import ConfigError
from tests import tiny
from tests.engine import drafting

PROPOSED = {"num_speculative_tokens": 3, "draft_sample_method": "probabilistic", "rejection_sample_method": "block"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny.write_tiny_drafter(tmp_path, tiny.write_tiny(tmp_path, family="llama"))
    return tmp_path


def settle(directory: Path, is_bench: bool = False, **values: Any) -> tuple[SpeculativeConfig, bool]:
    model = read(directory)
    config = resolve_auto(from_values(values).config, model)
    config, drafter = resolve_speculation(config, directory, model, is_bench=is_bench)
    return config.speculative_config, drafter is not None


def test_a_drafter_alone_changes_nothing(directory: Path) -> None:
    assert settle(directory) == (SpeculativeConfig(), False)


def test_a_drafter_may_propose_how_it_is_served(directory: Path) -> None:
    drafting.write_served(directory, **PROPOSED)
    config, is_drafting = settle(directory)
    assert is_drafting and (config.method, config.num_speculative_tokens) == ("dspark", 3)
    assert (config.draft_sample_method, config.rejection_sample_method) == ("probabilistic", "block")
    assert settle(directory, speculation=False) == (SpeculativeConfig(), False)
    asked, _ = settle(directory, speculative_config={"method": "dspark", "num_speculative_tokens": 2})
    assert (asked.num_speculative_tokens, asked.draft_sample_method) == (
        2,
        "greedy",
    )  # vLLM's defaults, nothing mixed in


@pytest.mark.parametrize(
    ("cache", "wanted"), [("fp8", "fp8"), ("nvfp4", "fp8"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
def test_the_drafters_cache_follows_the_models(directory: Path, cache: str, wanted: str) -> None:
    config, _ = settle(directory, kv_cache_dtype=cache, speculative_config={"method": "dspark"})
    assert (config.kv_cache_dtype, config.num_speculative_tokens) == (wanted, 5)


def test_the_recipes_own_words(directory: Path) -> None:
    words = '{"method":"dspark","num_speculative_tokens":5,"attention_backend":"FLASHINFER_TS","kv_cache_dtype":"fp8",'
    words += '"draft_sample_method":"probabilistic","rejection_sample_method":"block"}'
    config, is_drafting = settle(directory, speculative_config=words)
    assert is_drafting and config.attention_backend == "FLASHINFER_TS" and config.kv_cache_dtype == "fp8"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_speculative_tokens": 6}, "num_speculative_tokens 6; this drafter was trained to make 5 at once"),
        ({"rejection_sample_method": "synthetic"}, "only minnow bench may, set standard or block"),
        ({"synthetic_acceptance_length": 2.5}, "rejection_sample_method is standard; leave it out"),
        ({"num_tokens": 3}, "no setting is called 'speculative_config.num_tokens'"),
        ({"method": "eagle"}, "'eagle' does not fit speculative_config.method"),
        ({"model": "/nowhere"}, "/nowhere/config.json does not exist"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(directory: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        settle(directory, speculative_config={"method": "dspark"} | values)


def test_a_drafter_that_nobody_asks_for_is_not_read(directory: Path) -> None:
    path = directory / "dspark" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dspark_unknown": 1}))
    assert settle(directory) == (SpeculativeConfig(), False)
    with pytest.raises(ConfigError, match=r"dspark: the drafter's config.json has dspark_unknown"):
        settle(directory, speculative_config={"method": "dspark"})


@pytest.mark.parametrize("proposed", [{"model": "/nowhere"}, {"method": "eagle"}])
def test_a_drafter_proposes_neither_a_model_nor_a_method(directory: Path, proposed: dict[str, Any]) -> None:
    drafting.write_served(directory, **PROPOSED, **proposed)
    with pytest.raises(ConfigError, match="a drafter proposes no model, no other method"):
        settle(directory)


def test_a_home_directory_is_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory))
    config, _ = settle(directory, speculative_config={"method": "dspark", "model": "~/dspark"})
    assert config.model == str(directory / "dspark")


def test_no_drafter(tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path, family="llama")
    assert settle(tmp_path) == (SpeculativeConfig(), False)
    with pytest.raises(ConfigError, match="bundles no drafter"):
        settle(tmp_path, speculative_config={"method": "dspark"})


def test_both_ways_at_once(directory: Path) -> None:
    with pytest.raises(ConfigError, match="--no-speculation and --speculative-config are both given"):
        settle(directory, speculation=False, speculative_config={"method": "dspark"})


def test_synthetic_acceptance_is_for_the_bench(directory: Path) -> None:
    asked = {"method": "dspark", "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    config, _ = settle(directory, is_bench=True, speculative_config=asked)
    assert config.synthetic_acceptance_length == 2.5
    with pytest.raises(ConfigError, match="synthetic_acceptance_length 7; it must be 1 to 6"):
        settle(directory, is_bench=True, speculative_config=asked | {"synthetic_acceptance_length": 7})


def test_adaptive_verification_needs_a_confidence_head(tmp_path: Path) -> None:
    asked = {"method": "dspark", "enable_adaptive_verification": True}
    target = tiny.write_tiny(tmp_path, family="llama")
    tiny.write_tiny_drafter(tmp_path, target)
    assert settle(tmp_path, speculative_config=asked)[0].enable_adaptive_verification
    with pytest.raises(ConfigError, match="drafts are kept whatever they are"):
        more = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
        settle(tmp_path, is_bench=True, speculative_config=asked | more)
    shutil.rmtree(tmp_path / "dspark")
    tiny.write_tiny_drafter(tmp_path, target, enable_confidence_head=False)
    with pytest.raises(ConfigError, match="this drafter has no confidence head"):
        settle(tmp_path, speculative_config=asked)


def test_a_proposal_that_is_wrong(directory: Path) -> None:
    drafting.write_served(directory, num_speculative_tokens=3, draft_sample_method="best")
    with pytest.raises(ConfigError, match=r"dspark/config.json: 'best' does not fit"):
        settle(directory)


def test_a_proposal_that_cannot_be_is_the_drafters_fault(directory: Path) -> None:
    drafting.write_served(directory, num_speculative_tokens=9)
    with pytest.raises(ConfigError, match=r"^\S*dspark/config.json has num_speculative_tokens 9; this drafter"):
        settle(directory)
