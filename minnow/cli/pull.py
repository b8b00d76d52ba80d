"""minnow pull: fetch a model by name"""

import argparse

from minnow.core.errors import ConfigError

HELP = "fetch a model by name and convert it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name."""
    parser.add_argument("name", metavar="NAME", nargs="?", default="smollm2-135m", help="which (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Fetch, convert, and print the directory."""
    from minnow.checkpoint import demo
    from minnow.cli.convert import Line

    if not demo.is_known(args.name):
        raise ConfigError(f"no model is called {args.name!r}; minnow pull knows {', '.join(demo.DEMO_BY_NAME)}")
    if demo.is_pulled(args.name):
        print(f"{args.name} is there already, in {demo.directory_of(args.name)}")
        return 0
    line = Line()
    directory = demo.pull(args.name, say=line.say, progress=line.show)
    print(f"{args.name} is ready, in {directory}")
    return 0
