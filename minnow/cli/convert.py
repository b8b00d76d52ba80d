"""minnow convert: write a checkpoint or GGUF file anew in the M3 layout"""

import argparse
import sys
from pathlib import Path

from minnow.core.errors import ConfigError

HELP = "turn a GGUF file or a checkpoint into another format"
_FORMATS = ("bf16", "int8", "int4", "mxfp8", "nvfp4")


class Line:
    """One line of a terminal that says how far a conversion is; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._percent = -1

    def say(self, words: str) -> None:
        """A line that stays."""
        print(words, file=sys.stderr, flush=True)

    def show(self, done: int, total: int, module: str) -> None:
        """Write over the line before."""
        percent = 100 * done // total
        if not self._is_terminal or percent == self._percent:
            return
        self._percent = percent
        filled = percent * 30 // 100
        bar = "#" * filled + "." * (30 - filled)
        print(f"\r\x1b[K[{bar}] {percent:3} % {module}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Source, target, format."""
    parser.add_argument("source", metavar="SRC", type=Path, help="GGUF file, or directory of a Llama or M3 checkpoint")
    parser.add_argument("target", metavar="DST", type=Path, help="directory to write")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        help="of the linears; default keeps what the source has, where that can be exact. An M3 checkpoint takes "
        "mxfp8, or nvfp4 (routed experts NVFP4, other linears MXFP8)",
    )
    parser.add_argument(
        "--kv-cache-dtype",
        choices=("bfloat16", "fp8", "nvfp4"),
        help="cache format that the model is to say it is good for (default: what the source says)",
    )
    parser.add_argument("--parts", metavar="DIR", type=Path, nargs="+",
                        help="copy SRC, a directory or a name, with these outputs of minnow tune in it")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace a model directory")


def run(args: argparse.Namespace) -> int:
    """Convert, and print what was written."""
    if args.parts:
        return _combine(args)
    from minnow.checkpoint.convert import convert
    from minnow.core.units import show_bytes

    done = convert(
        args.source,
        args.target,
        format=args.format,
        kv_cache=args.kv_cache_dtype,
        overwrite=args.overwrite,
        progress=Line().show,
    )
    print(f"{done.num_tensors:,} tensors, {show_bytes(done.num_bytes)}, in {done.directory}")
    return 0


def _combine(args: argparse.Namespace) -> int:
    from minnow.checkpoint import demo, disk, trained
    from minnow.checkpoint.convert import check_target

    given = [name for name in ("format", "kv_cache_dtype") if getattr(args, name)]
    if given:
        flag = "--" + given[0].replace("_", "-")
        raise ConfigError(f"{flag} says how to convert, and --parts copies what is there; leave one of them out")
    for part in args.parts:
        if not (part / trained.DESCRIPTION_NAME).is_file():
            raise ConfigError(f"--parts {part} holds no {trained.DESCRIPTION_NAME}; name an --output of minnow tune")
    source, target = demo.untrained(str(args.source)), args.target.resolve()
    with disk.alone(disk.lock_of(target), busy=f"{target} is being written by another process; wait until it is done"):
        for read in (source, *args.parts):
            check_target(target, read, args.overwrite)
        trained.combine(source, args.parts, target)
    print(f"{args.source} with {', '.join(map(str, args.parts))}, in {args.target}")
    return 0
