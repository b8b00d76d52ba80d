"""measuring, with honesty built in

What `minnow bench KIND` runs is the module of that name. It has HELP, `add_arguments(parser)`, and
`run(args, say) -> int`, which refuses wrong values before anything runs, hands what it finds to `say` line by line and
gives the exit status. What those checks have in common is here.
"""

import argparse
from collections.abc import Collection

from minnow.core.errors import ConfigError


def names_in(text: str | None, known: Collection[str], flag: str) -> list[str]:
    """The names that a text holds with commas between, each once; ConfigError for one that is not known."""
    names = [] if text is None else list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag}: there is no {name!r}; there are {', '.join(known)}")
    return names


def check_least(args: argparse.Namespace, least: int, *flags: str) -> None:
    """A ConfigError where a flag has too small a number; it may take several, and None was not given."""
    for flag in flags:
        value = getattr(args, flag.removeprefix("--").replace("-", "_"))
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number < least:
                raise ConfigError(f"{flag} is {number}; it must be at least {least}")
