"""what one decode step costs, as exact numbers: calls of each operation and bytes handed to it"""

import json
from pathlib import Path

import torch

from minnow.checkpoint.load import fill, open_weights
from minnow.kernels.count import CallCount, HostSyncs
from minnow.model.decoder import Decoder
from tests import tiny
from tests.drive import CPU, Driver, make_kernels

GOLDEN = Path(__file__).parents[1] / "golden" / "step_budget.json"


def test_a_decode_step_costs_what_it_did(tmp_path: Path) -> None:
    """Two sequences, 100 and 40 tokens deep, one new token each; a change here is a decision."""
    config = tiny.write_tiny(tmp_path, format="m3.1", layers=3)
    count = CallCount()
    decoder = Decoder(config, count.wrap(make_kernels()), torch.bfloat16, CPU)
    fill(decoder, open_weights(tmp_path, config))
    driver = Driver(decoder, config, num_blocks=20, kv_format="nvfp4")
    ids = torch.arange(101) % 300
    tables = driver.table(101), driver.table(41)
    driver.step([(ids[:100], 0, tables[0]), (ids[:40], 0, tables[1])])
    count.calls.clear()
    count.input_bytes.clear()
    with HostSyncs() as syncs:
        driver.step([(ids[100:], 100, tables[0]), (ids[40:41], 40, tables[1])])
    seen = {name: [count.calls[name], count.input_bytes[name]] for name in sorted(count.calls)}
    seen["host syncs"] = [syncs.count, 0]
    assert seen == json.loads(GOLDEN.read_text(encoding="utf-8"))
