import pytest
import torch

from minnow.bench import limits as bench_limits
from minnow.bench.limits import Limits, measure_limits
from minnow.kernels import native
from minnow.kernels.limits import cpu


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_bytes", [0, 256, 65536, 5 * 65536 + 768])
def test_every_byte_is_read_once(isa: str, num_threads: int, num_bytes: int) -> None:
    native.set_threads(num_threads)
    data = torch.randint(256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(num_bytes))
    assert cpu.read_bytes(data) == sum(data.view(torch.int64).tolist()) % (1 << 64)
    native.set_threads(1)


def test_multiplications_are_counted_for_every_thread(isa: str) -> None:
    native.set_threads(1)
    alone = {kind: cpu.multiply(kind, 50) for kind in cpu.KINDS}
    assert alone["f32"] > 0
    assert (alone["bf16"] > 0) == (alone["int8"] > 0) == (isa in ("avx512", "amx"))
    native.set_threads(2)
    assert {kind: cpu.multiply(kind, 50) for kind in cpu.KINDS} == {kind: 2 * count for kind, count in alone.items()}
    native.set_threads(1)


def test_limits_are_measured_for_the_team_that_there_is() -> None:
    limits = measure_limits(1)
    assert (limits.num_threads, limits.instruction_set) == (1, native.instruction_set())
    assert all(rate > 0 for rate in limits.operations_s.values())
    assert limits.bytes_s(3 << 20) > 0


def test_a_working_set_is_measured_at_its_own_size_and_near_ones_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def least_s(num_bytes: int) -> float:
        sizes.append(num_bytes)
        return 1.0

    monkeypatch.setattr(bench_limits, "_least_s", least_s)
    limits = Limits(num_threads=1, instruction_set="x", operations_s={"f32": 1.0})
    assert limits.bytes_s(121_200_000.5) == sizes[0] == 121_200_000 // 256 * 256
    assert limits.bytes_s(118e6) == limits.bytes_s(124e6) == sizes[0]
    assert limits.bytes_s(168.4e6) == sizes[1] == 168.4e6 // 256 * 256
    assert limits.bytes_s(125e6) == sizes[2] == 125e6 // 256 * 256
    assert limits.bytes_s(0) == 1 << 20 and limits.bytes_s(5e9) == 1 << 30
    assert len(sizes) == 5


def test_work_takes_as_long_as_the_slower_of_its_bytes_and_its_arithmetic() -> None:
    rates = {1 << 20: 100.0, 3 << 20: 50.0, 1 << 30: 10.0}
    limits = Limits(num_threads=1, instruction_set="x", operations_s={"f32": 1e3, "int8": 1e9}, _bytes_s=rates)
    assert limits.least_s(0, 1 << 20) == (1 << 20) / 100
    assert limits.least_s(0, (3 << 20) + 1) == ((3 << 20) + 1) / 50
    assert limits.least_s(0, 1 << 40) == (1 << 40) / 10
    assert limits.least_s(1e9, 100) == 1e6  # exact values: int8 does not count
