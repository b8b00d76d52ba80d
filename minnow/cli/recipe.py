"""minnow recipe: the commands that serve M3.1-Flash on given hardware"""

import argparse
import dataclasses
import json

from minnow.core.errors import ConfigError
from minnow.plan import document, recipe, recipe_build, recipe_rules, recipe_text

HELP = "print the commands that serve M3.1-Flash on given hardware"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    keys = "; ".join(f"{key}: {text}" for key, text in recipe.KEYS.items())
    parser.add_argument("choice", nargs="*", metavar="KEY=VALUE", help=keys)
    parser.add_argument("--for", dest="engine", metavar="ENGINE", default="minnow", help="minnow or vllm")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the commands."""
    if args.engine not in recipe_text.ENGINES:
        raise ConfigError(f"--for is {args.engine!r}; it must be {' or '.join(recipe_text.ENGINES)}")
    choice = recipe.choose(args.choice)
    recipe_rules.check_addresses(choice)
    found = recipe_build.build(choice)
    if args.json:
        text = {"commands": recipe_text.commands(found, args.engine), "proxy": recipe_text.proxy(found, args.engine)}
        whole = dataclasses.asdict(found) | {"engine": args.engine} | text
        print(json.dumps(document.plain(whole), indent=2))
    else:
        print("\n".join(recipe_text.show(found, args.engine)))
    return 0
