"""recorded plans of the tiny model and their tokens: a refactor leaves them untouched, bit for bit

To record anew, on purpose: delete the file and run this test once; it fails, and writes the new record.
"""

from pathlib import Path

import pytest

from minnow.core.request import Request, SamplingParams
from minnow.engine import record
from tests import tiny
from tests.engine import running

SETTINGS = {"max_num_batched_tokens": 48, "num_gpu_blocks_override": 16, "max_num_seqs": 4, "kv_cache_dtype": "float32"}
FAMILIES = ("m3", "llama")


def _record(directory: Path, path: Path) -> None:
    """Chunked prefills, a shared prefix, a preemption, greedy and seeded rows."""
    engine = running.make(directory, record=path, **SETTINGS)
    shared = tuple(range(40, 80))
    for i, length in enumerate((3, 60, 90, 17)):
        sampling = SamplingParams(temperature=0.0 if i % 2 else 0.8, seed=i, max_tokens=16, ignore_eos=True)
        engine.add(Request(request_id=str(i), token_ids=(*shared, *range(100, 100 + length)), sampling=sampling))
    running.finish(engine)
    assert engine.stats().num_preemptions > 0 and engine.stats().prefix_hits_tokens > 0
    engine.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_tokens_come_again(family: str, tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path, family=family, layers=2, dtype="float32")
    path = Path(__file__).with_name(f"{family}.jsonl")
    if not path.exists():
        _record(tmp_path, path)
        pytest.fail(f"{path} was missing and has been recorded anew; look at it and commit it")
    fresh = running.make(tmp_path, **SETTINGS)
    assert record.replay(path, fresh.runner) is None
