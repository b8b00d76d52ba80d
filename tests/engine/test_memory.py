"""what an engine would spend on this machine"""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from minnow.config.load import from_values
from minnow.config.model import ModelConfig, known, parse
from minnow.core.errors import CapacityError
from minnow.engine import budget, memory
from minnow.engine.build import device_of
from minnow.engine.memory import Settled
from minnow.parallel.mesh import Mesh
from tests import tiny
from tests.engine import machine

CPU = torch.device("cpu")


def _settled(model: ModelConfig, **settings: object) -> Settled:
    return memory.settle(from_values(settings).config, model, None)


def test_a_cpu_cache_is_small_unless_it_is_asked_for() -> None:
    model = parse(tiny.config_json())
    config = _settled(model)
    plan = memory.plan(config, CPU)
    assert plan.cache_bytes <= 4 << 30
    assert plan.cache_bytes > (4 << 30) - plan.row_bytes
    config = _settled(model, kv_cache_memory_bytes="64MiB")
    plan = memory.plan(config, CPU)
    assert plan.num_blocks == (64 << 20) // plan.row_bytes


def test_a_model_that_cannot_fit_is_refused_with_the_numbers() -> None:
    model = known("m3.1-flash")
    assert model is not None
    config = _settled(model)
    with pytest.raises(CapacityError, match=r"weights 233 GiB"):
        memory.plan(config, CPU)


def test_f04_a_cache_beyond_the_containers_limit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """1 GiB may be used and 2 GiB are asked for: limit, weights, workspace and the largest cache that fits are said."""
    files = {"a/memory.max": str(1 << 30), "a/memory.current": "0"}
    root = machine.control_groups_2(tmp_path, "/a/b", files)
    machine.write(root, {"proc/meminfo": "MemTotal:  64000000 kB\nMemAvailable:  32000000 kB"})
    model = parse(tiny.config_json())
    config = _settled(model, kv_cache_memory_bytes="2GiB", gpu_memory_utilization=1.0)
    with pytest.raises(CapacityError) as caught:
        memory.plan(config, CPU, root)
    found = re.fullmatch(
        r"a cache of 2 GiB does not fit: limit 1 GiB \(1 of 1 GiB\), weights \d+ KiB, workspace [\d.]+ MiB; "
        r"the largest cache that fits has [\d.]+ MiB: set --kv-cache-memory-bytes (\d+) or less",
        str(caught.value),
    )
    assert found is not None, caught.value
    config = _settled(model, kv_cache_memory_bytes=found[1], gpu_memory_utilization=1.0)
    assert memory.plan(config, CPU, root).total_bytes <= 1 << 30
    config = _settled(model, gpu_memory_utilization=1.0)  # what nobody asked for follows from the limit
    assert memory.plan(config, CPU, root).total_bytes <= 1 << 30


def test_a_drafter_takes_its_share(tmp_path: Path) -> None:
    model = tiny.write_tiny(tmp_path, family="llama")
    drafter = tiny.write_tiny_drafter(tmp_path, model)
    config = from_values({"speculative_config": {"method": "dspark"}, "kv_cache_dtype": "fp8"}).config
    with_drafts, without = memory.settle(config, model, tmp_path), _settled(model, kv_cache_dtype="fp8")
    # two layers, keys and values of two heads of 16 bytes
    assert with_drafts.layout.token_bytes - without.layout.token_bytes == 2 * 2 * 2 * 16
    own = sum(file.stat().st_size for file in (tmp_path / "dspark").glob("*.safetensors"))
    more = memory.plan(with_drafts, CPU).weights_bytes - memory.plan(without, CPU).weights_bytes
    assert with_drafts.drafter == drafter and own - (160 << 10) < more < own


def test_ranks_share_heads_but_not_index_keys() -> None:
    model = known("m3.1-flash")
    assert model is not None
    four = dataclasses.replace(Mesh.single(), num_ranks=(("tp", 4), ("dp", 1), ("ep", 1), ("cp", 1)))
    assert budget.layout(_settled(model).config, model, four).token_bytes == 34_560 // 4 + 4_320


def test_available_memory_is_that_of_this_machine() -> None:
    assert 1 << 28 < memory.available_bytes(CPU) < 1 << 50


def test_a_missing_gpu_is_said() -> None:
    assert device_of("auto").type in ("cpu", "cuda")
    assert device_of("cpu").type == "cpu"
