"""steps written, read back and run again"""

from pathlib import Path

import pytest

from minnow.cache.blocks import BlockPool
from minnow.config.scheduler import SchedulerConfig
from minnow.core.errors import ConfigError
from minnow.core.request import Adapter, MediaItem, Request, SamplingParams
from minnow.core.step import RowResult, RowStart, StepPlan, StepResult, TokenLogprobs
from minnow.engine.record import Difference, RecordedStep, Recorder, read, replay
from minnow.engine.scheduler import Scheduler
from tests.fakes import Collector, FakeRunner


def record(path: Path) -> Collector:
    """A run with preemptions, prefix hits, media and an adapter, on record."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_batched_tokens=12, max_num_seqs=3),
        BlockPool(9, 4),
        max_model_len=30,
        eos_token_ids=(0,),
        seed=1,
        enable_prefix_caching=True,
    )
    collector, runner = Collector(), FakeRunner(4, failing={"4"})
    for i in range(6):
        scheduler.add(
            Request(
                request_id=str(i),
                token_ids=tuple(range(1, 10 + i % 2)),
                sampling=SamplingParams(max_tokens=16, logit_bias=((3, 1.5),), seed=i or None, ignore_eos=i < 4),
                media=(MediaItem(content_hash="a", offset=0, num_tokens=2),) if i == 3 else (),
                adapter=Adapter(name="a", version=2) if i == 2 else None,
            )
        )
    with Recorder(path) as recorder:
        while not scheduler.is_idle:
            plan = scheduler.plan()
            assert plan is not None
            result = runner.launch(plan).result()
            recorder.write(plan, result)
            collector.take(scheduler.commit(plan, result))
    assert scheduler.stats().num_preemptions
    assert any(start.num_computed_tokens for recorded in read(path) for start in recorded.plan.starts)
    return collector


def test_what_is_written_is_read(tmp_path: Path) -> None:
    start = RowStart(
        row=0,
        request_id="\u00e9\n",
        token_ids=(1, 2),
        num_prompt_tokens=2,
        num_computed_tokens=0,
        sampling=SamplingParams(temperature=0.1, logit_bias=((3, -0.3),), stop_token_ids=(4,)),
        stop_token_ids=(4,),
        seed=-(2**63),
    )
    logprobs = TokenLogprobs(logprob=-0.1, rank=1, top=((3, -0.1), (4, -1 / 3)))
    result = StepResult(step=1, rows=(RowResult(row=0, token_ids=(3,), logprobs=(logprobs,)),))
    steps = [
        RecordedStep(plan=StepPlan(step=1, starts=(start,)), result=result),
        RecordedStep(plan=StepPlan(step=2, stops=(0,)), result=None),
    ]
    with Recorder(tmp_path / "steps.jsonl") as recorder:
        for step in steps:
            recorder.write(step.plan, step.result)
    assert list(read(tmp_path / "steps.jsonl")) == steps


def test_a_replay_gives_the_same_results(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    collector = record(path)
    assert {end.finish_reason for end in collector.ends.values()} >= {"length", "error"}
    assert replay(path, FakeRunner(4, failing={"4"})) is None


def test_a_replay_names_the_first_difference(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path)
    lines = path.read_bytes().splitlines(keepends=True)
    steps = list(read(path))
    number, changed = next((i, s) for i, s in enumerate(steps) if i > 4 and s.result and s.result.rows[-1].token_ids)
    assert changed.result is not None
    row = changed.result.rows[-1]
    was = b'"token_ids":[%d]' % row.token_ids[0]
    head, _, tail = lines[number + 1].rpartition(was)
    lines[number + 1] = head + b'"token_ids":[77]' + tail
    path.write_bytes(b"".join(lines))
    difference = replay(path, FakeRunner(4, failing={"4"}))
    assert difference == Difference(
        step=changed.plan.step,
        row=row.row,
        recorded="token_ids (77,)",
        replayed=f"token_ids {row.token_ids}",
    )
    assert str(difference).startswith(f"step {changed.plan.step}, row {row.row}: recorded token_ids (77,), replayed")


def test_a_failed_step_is_run_but_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    record(path)
    steps = list(read(path))
    with Recorder(tmp_path / "failed.jsonl") as recorder:
        for step in steps[:-1]:
            recorder.write(step.plan, step.result)
        recorder.write(steps[-1].plan, None)
    assert replay(tmp_path / "failed.jsonl", FakeRunner(4, failing={"4"})) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"\x7fELF\xff", "line 1"),
        (b'{"format":"minnow-steps-0"}\n', "another version"),
        (b'{"format":"minnow-steps-1"}\n{"plan":{"step":1},"result":nu', "line 2"),
        (b'{"format":"minnow-steps-1"}\n{"plan":{"step":"one"},"result":null}\n', "line 2"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "steps.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        list(read(path))


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        Recorder(tmp_path / "missing" / "steps.jsonl")
