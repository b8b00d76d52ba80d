"""minnow bench: measure a server, a step, the kernels, or Minnow beside its peers"""

import argparse

from minnow.config import flags
from minnow.core import folder
from minnow.core.errors import ConfigError

HELP = "measure: serve (any OpenAI server), step, kernel, limits, roofline, simulate, compare (with peers)"

_PACKAGE = "minnow.bench"
KINDS = ("serve", "step", "kernel", "limits", "roofline", "simulate", "compare")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the kind; the rest of the line belongs to it."""
    parser.add_argument("kind", metavar="KIND", choices=KINDS, help="what: " + ", ".join(KINDS))
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="its arguments; --help shows them")


def run(args: argparse.Namespace) -> int:
    """Measure, and print what was found as it comes."""
    if args.kind not in folder.names(_PACKAGE):
        raise ConfigError(f"minnow bench {args.kind} is not part of this build")
    module = folder.load(_PACKAGE, args.kind)
    parser = flags.new_parser(f"minnow bench {args.kind}", module.HELP)
    module.add_arguments(parser)
    return int(module.run(flags.parse(parser, args.words), lambda line: print(line, flush=True)))
