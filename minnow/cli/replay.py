"""minnow replay: run recorded steps again and compare their results"""

import argparse
from dataclasses import replace
from pathlib import Path

from minnow.config import flags, load
from minnow.config.engine import EngineConfig
from minnow.core.errors import ConfigError

HELP = "run the steps of a record again and say whether the results are equal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="what minnow generate --record wrote")
    flags.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Say that all results are equal, or where they first differ (and return 1)."""
    config = load.load(args).config
    if not config.model:
        raise ConfigError("minnow replay needs the model of the record: minnow replay FILE --model DIR")
    from minnow.checkpoint import demo  # only now: they load torch
    from minnow.engine import build, record

    path = Path(args.file)
    num_steps, num_rows, num_blocks = _needs(path)
    engine = build.build(_widen(config, num_rows, num_blocks), demo.resolve(config.model))
    difference = record.replay(path, engine.runner)
    if difference is not None:
        print(f"not equal: {difference}")
        return 1
    print(f"equal: {num_steps} steps")
    return 0


def _needs(path: Path) -> tuple[int, int, int]:
    """Steps, rows and blocks (the null block among them) that a record uses."""
    from minnow.engine import record

    num_steps, last_row, last_block = 0, 0, 0
    for step in record.read(path):
        num_steps += 1
        last_row = max([last_row, *(start.row for start in step.plan.starts)])
        last_block = max([last_block, *(i for part in step.plan.blocks for i in part.block_ids)])
    if num_steps == 0:
        raise ConfigError(f"{path} holds no step; record it anew")
    return num_steps, last_row + 1, last_block + 1


def _widen(config: EngineConfig, num_rows: int, num_blocks: int) -> EngineConfig:
    """Room for what the record used, on whatever machine it was made."""
    cache, scheduler = config.cache, config.scheduler
    return replace(
        config,
        cache=replace(cache, num_gpu_blocks_override=max(cache.num_gpu_blocks_override, num_blocks)),
        scheduler=replace(scheduler, max_num_seqs=max(scheduler.max_num_seqs, num_rows)),
    )
