"""one trace on the engine and in the simulator"""

import math
from pathlib import Path

import pytest

from minnow.bench import record, roofline, simulate
from minnow.bench.limits import Limits
from minnow.bench.simulate import METRICS, Result
from minnow.config import flags, load
from minnow.engine import build
from minnow.plan.workload import Piece, Session, Turn
from tests import tiny

LIMITS = Limits(
    num_threads=2, instruction_set="x", operations_s={"f32": 3e11, "bf16": 2e12},
    _bytes_s={n << 20: 5e10 for n in (1, 8, 64, 512)},
)  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.write_tiny(path, dtype="float32", layers=2)
    return path


def result(*values: float) -> Result:
    return Result(values=dict(zip(METRICS, values, strict=True)))


@pytest.mark.parametrize(
    ("engine", "simulated", "verdict", "is_met"),
    [
        ([(100, 1.0, 2.0)] * 3, (114, 0.9, 2.2), "met", True),
        ([(100, 1.0, 2.0)] * 3, (116, 1.0, 2.0), "MISSED", False),
        ([(100, 1.0, 2.0)] * 3, (100, 1.0, 1.6), "MISSED", False),
        ([(100, 1.0, 2.0), (100, 1.0, 3.0), (100, 1.0, 4.0)], (100, 5.0, 2.0), "noisy: not judged", True),
    ],
)
def test_every_metric_is_held_to_the_bar_on_a_quiet_run(
    engine: list[tuple[float, ...]], simulated: tuple[float, ...], verdict: str, is_met: bool
) -> None:
    lines, found = simulate.report(3.0, [result(*values) for values in engine], result(*simulated))
    assert found is is_met and lines[-1].endswith(f"bar 15%: {verdict}") and lines[0] == "3 requests a second:"


def session(start_s: float, num_input: int, num_output: int, number: int) -> Session:
    turn = Turn(pieces=(Piece(number, num_input),), num_output_tokens=num_output)
    return Session(turns=(turn,), start_s=start_s)


def test_the_engine_gets_each_request_when_it_is_due_and_yields_all_its_tokens(directory: Path) -> None:
    config = load.from_values({"model": str(directory), "num_threads": 1}, {}).config
    engine = build.build(config, directory)
    sessions = [session(0.3 * i, 20, 3 + i, 2 + i) for i in range(3)]
    played = simulate.play(engine, sessions, "x")
    before = engine.stats()
    assert before.generation_tokens == 3 + 4 + 5 and before.prompt_tokens == 60
    assert 0 < played.values["TTFT p50"] < 0.3  # of when it was due, not of the start
    assert 12 / 2.0 < played.values["output tokens/s"] < 12 / 0.6
    engine.close()


def test_the_trace_is_the_same_each_time_and_lengths_lie_within_their_ratio(directory: Path) -> None:
    parser = flags.new_parser("minnow bench simulate", simulate.HELP)
    simulate.add_arguments(parser)
    args = flags.parse(parser, [str(directory), "--num-prompts", "30", "--random-input-len", "100"])
    one, other = (simulate.sessions_of(args, 2.0, 7) for _ in range(2))
    assert one == other != simulate.sessions_of(args, 2.0, 8)
    assert all(50 <= s.turns[0].num_input_tokens <= 150 and 16 <= s.turns[0].num_output_tokens <= 48 for s in one)
    assert {s.start_s for s in simulate.sessions_of(args, math.inf, 7)} == {0.0}


def test_it_plays_and_simulates_a_model(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "measure_limits", lambda: LIMITS)
    parser = flags.new_parser("minnow bench simulate", simulate.HELP)
    simulate.add_arguments(parser)
    words = (directory, "--num-prompts", 6, "--num-repeats", 2, "--random-input-len", 24, "--random-output-len", 6,
             "--request-rate", 50, "inf", "--num-threads", 1, "--record", tmp_path / "r.jsonl")  # fmt: skip
    said: list[str] = []
    simulate.run(flags.parse(parser, [str(word) for word in words]), said.append)
    assert [line for line in said if not line.startswith((" ", "turn"))] == ["50 requests a second:", "all at once:"]
    found = record.read(tmp_path / "r.jsonl")[0]["results"]
    for rate in ("50", "inf"):
        assert len(found[rate]["engine"]) == 2
        assert all(value > 0 for value in found[rate]["simulator"].values())
