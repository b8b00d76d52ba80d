"""minnow tune: give a model an NVFP4 cache, index heads, a drafter"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from minnow.core import folder
from minnow.core.errors import ConfigError

if TYPE_CHECKING:
    from minnow.tune.run import Position

HELP = "train what a checkpoint lacks: an NVFP4 cache, index heads, a drafter"

_MODULE_BY_STAGE = {"cache": "cache", "index": "index_heads", "draft": "drafter"}
_HELP_BY_STAGE = {
    "cache": "retrain query and key projections until an NVFP4 cache costs little",
    "index": "train the index heads that choose blocks of sparse attention",
    "draft": "let the model answer prompts, and train a DSpark drafter on the answers",
    "pack": "put outputs of stages into one directory of parts, in fewer bits",
}
_LINE_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One parser a stage; all that train take the same words."""
    stages = parser.add_subparsers(dest="stage", required=True, metavar="STAGE")
    for stage, about in _HELP_BY_STAGE.items():
        inner = stages.add_parser(stage, help=about, description=about, allow_abbrev=False)
        inner.error = parser.error  # type: ignore[method-assign]
        (_add_to_pack if stage == "pack" else _add_to)(inner)


def _add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="smollm2-135m", help="directory, or name: without what was trained (default: %(default)s)"
    )
    parser.add_argument(
        "--output", metavar="DIR", type=Path, required=True, help="results, and the state to go on from"
    )
    parser.add_argument("--text", metavar="PATH", type=Path, nargs="+", required=True,
                        help="files or directories with text: txt, md, rst, pod, html, man pages, or .gz")  # fmt: skip
    parser.add_argument("--parts", metavar="DIR", type=Path, nargs="*", default=[],
                        help="outputs of stages that were trained before, to build on")  # fmt: skip
    parser.add_argument("--hours", metavar="H", type=float, default=2.0,
                        help="stop after so long, to go on another time (default: %(default)g h)")  # fmt: skip
    parser.add_argument("--steps", metavar="N", type=int, help="steps in all (default: the stage's own number)")
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of every random choice (default: %(default)s)"
    )


def _add_to_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", metavar="DIR", type=Path, nargs="+", required=True, help="outputs of stages")
    parser.add_argument(
        "--output", metavar="DIR", type=Path, required=True, help="gets the parts and their description"
    )
    parser.add_argument(
        "--format", choices=("int8", "mxfp8", "bf16"), default="int8", help="of matrices (default: %(default)s)"
    )
    parser.add_argument("--speculative-config", metavar="JSON", help="how the drafter is served where nobody says")


def run(args: argparse.Namespace) -> int:
    """Train a piece, and say how to go on; or pack."""
    _check(args)
    if args.stage == "pack":
        return _pack(args)
    from minnow.checkpoint import demo
    from minnow.tune.run import Watch
    from minnow.tune.stage import Options

    options = Options(
        directory=demo.untrained(args.model),
        output=args.output,
        text=tuple(args.text),
        parts=tuple(args.parts),
        hours=args.hours,
        seed=args.seed,
        steps=args.steps,
    )
    stop = _Stop()
    stage = folder.load("minnow.tune", _MODULE_BY_STAGE[args.stage])
    done: Position = stage.train(options, Watch(is_stopped=lambda: stop.is_asked, show=_Progress(args.hours).show))
    print(f"{args.output} holds step {done.step:,} of {done.steps:,}, after {done.seconds / 3600:.2f} h of training")
    if not done.is_done:
        print("the same command goes on from here")
    return 0


def _pack(args: argparse.Namespace) -> int:
    from minnow.tune.pack import pack

    try:
        served = json.loads(args.speculative_config or "{}")
    except ValueError:
        served = None
    if not isinstance(served, dict):
        raise ConfigError(f"--speculative-config {args.speculative_config} is no JSON object")
    pack(args.parts, args.output, args.format, served)
    print(f"{args.output} holds them; minnow convert MODEL NEW --parts {args.output} puts them into a model")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Say what cannot be before torch is loaded."""
    for part in args.parts:
        if not (part / "trained.json").is_file():
            raise ConfigError(f"--parts {part} holds no trained.json; name the --output of another stage")
    if args.output.exists() and not args.output.is_dir():
        raise ConfigError(f"--output {args.output} is no directory")
    if args.stage == "pack":
        return
    if args.hours <= 0:
        raise ConfigError(f"--hours is {args.hours:g}; give a number above 0")
    if args.steps is not None and args.steps < 1:
        raise ConfigError(f"--steps is {args.steps}; give at least 1")
    if args.seed < 0:
        raise ConfigError(f"--seed is {args.seed}; give 0 or more")
    for path in args.text:
        if not path.exists():
            raise ConfigError(f"--text {path} does not exist; name files or directories with text")


class _Stop:
    """Turns the first interrupt into a wish to stop after the step; a second one ends at once."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        print("\nstopping after this step", file=sys.stderr, flush=True)


class _Progress:
    """A bar on a terminal, else a line a minute."""

    def __init__(self, hours: float) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._start_s = self._last_s = time.monotonic()
        self._hours = hours

    def show(self, position: Position) -> None:
        """Take note of one more step."""
        now_s = time.monotonic()
        is_due = self._is_terminal or now_s - self._last_s >= _LINE_S or position.is_done
        if not is_due:
            return
        self._last_s = now_s
        left_min = max(0.0, self._hours * 60 - (now_s - self._start_s) / 60)
        loss = position.metrics.get("loss", float("nan"))
        words = f"step {position.step:,} of {position.steps:,}, loss {loss:.4g}, at most {left_min:.0f} min to go"
        if self._is_terminal:
            filled = 30 * position.step // max(1, position.steps)
            print(f"\r\x1b[K[{'#' * filled}{'.' * (30 - filled)}] {words}", end="", file=sys.stderr, flush=True)
            if position.is_done:
                print(file=sys.stderr)
        else:
            print(words, file=sys.stderr, flush=True)
