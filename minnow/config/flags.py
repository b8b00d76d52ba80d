"""dataclass fields -> argparse; names, help, units, aliases"""

import argparse
import dataclasses
import difflib
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from minnow.config import vllm
from minnow.config.engine import EngineConfig
from minnow.config.field import Field
from minnow.core.errors import ConfigError

DEST = "engine:"  # before the name of a setting in a Namespace, so that a command's own arguments never collide


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value the user may choose, found in the fields of EngineConfig and of the configs it holds.

    Attributes:
        name: the field, or "attention_config.indexer_kv_dtype" inside a config that is given as JSON.
        path: attributes that lead to it from EngineConfig.
        kind: int, float, bool or str.
        choices: the words of a Literal; empty where any value goes.
        group: what the class it sits in is about.
        document: the JSON flag it may also be given in, or "".
    """

    name: str
    path: tuple[str, ...]
    kind: type
    choices: tuple[str, ...]
    field: Field
    default: object
    group: str
    document: str = ""

    @property
    def flag(self) -> str:
        """The long flag: "--block-size"."""
        return "--" + self.name.replace("_", "-") if not self.document else _dotted(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A flag that takes several settings as one JSON object."""

    name: str
    field: Field
    group: str


def _dotted(name: str) -> str:
    outer, inner = name.split(".", 1)
    return f"--{outer.replace('_', '-')}.{inner}"  # the inside is spelled as in the JSON object


@cache
def settings() -> dict[str, Setting]:
    """Every setting by name, in the order of the classes."""
    return {s.name: s for s in _walk(EngineConfig, (), "", "") if isinstance(s, Setting)}


@cache
def documents() -> dict[str, Document]:
    """Every flag that takes a JSON object, by name."""
    return {d.name: d for d in _walk(EngineConfig, (), "", "") if isinstance(d, Document)}


def _walk(cls: type, path: tuple[str, ...], prefix: str, document: str) -> Iterable[Setting | Document]:
    hints = typing.get_type_hints(cls, include_extras=True)
    group = (cls.__doc__ or "").splitlines()[0]
    for entry in dataclasses.fields(cls):
        hint = hints[entry.name]
        kind, note = (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, None)
        here = (*path, entry.name)
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            if note is None:
                yield from _walk(kind, here, "", "")
            else:
                yield Document(name=entry.name, field=note, group=group)
                yield from _walk(kind, here, f"{entry.name}.", entry.name)
            continue
        assert isinstance(note, Field), f"{cls.__name__}.{entry.name} has no Field"
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        yield Setting(
            name=prefix + entry.name, path=here, kind=str if choices else kind, choices=choices,
            field=note, default=entry.default, group=group, document=document,
        )  # fmt: skip


def add_some(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add a few settings to a command that takes no others; `config/load.py` reads them all the same."""
    for name in names:
        _add_setting(parser, settings()[name])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, `--config`, every setting and the vLLM flags of `config/vllm.py` to a command.

    A flag that is not given leaves nothing in the Namespace, so `config/load.py` can tell it from a default.
    """
    parser.add_argument(
        DEST + "model tag", metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help=settings()["model"].field.help
    )
    parser.add_argument("--config", metavar="FILE", dest=DEST + "config", default=argparse.SUPPRESS,
                        help="settings from a JSON or TOML file, by name")  # fmt: skip
    groups: dict[str, Any] = {}
    items: list[Setting | Document] = [*settings().values(), *documents().values()]
    for item in items:
        if item.group not in groups:
            groups[item.group] = parser.add_argument_group(item.group.rstrip("."))
        if isinstance(item, Document):
            groups[item.group].add_argument("--" + item.name.replace("_", "-"), metavar="JSON", dest=DEST + item.name,
                                            default=argparse.SUPPRESS, help=_escape(item.field.help))  # fmt: skip
        else:
            _add_setting(groups[item.group], item)
    for row in vllm.FLAGS:
        if row.verdict not in ("same", "other meaning"):
            _add_foreign(parser, row)


def _add_setting(group: Any, item: Setting) -> None:
    dashed = [item.flag.replace("_", "-")] if item.document else []
    names = [item.flag, *dashed, *item.field.aliases]
    text = _escape(f"{item.field.help} (default: {show_default(item)})")
    if item.kind is bool and not item.document:
        group.add_argument(
            *names, dest=DEST + item.name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text
        )
        return
    if item.choices:
        metavar = "{" + ",".join(item.choices) + "}"
    else:
        metavar = item.field.unit.upper() or {int: "N", float: "X", bool: "BOOL"}.get(item.kind, "TEXT")
    group.add_argument(*names, dest=DEST + item.name, metavar=metavar, nargs="+" if item.field.takes_many else None,
                       default=argparse.SUPPRESS, help=text)  # fmt: skip


def _add_foreign(parser: argparse.ArgumentParser, row: vllm.Row) -> None:
    names, dest = [row.flag, *row.aliases], vllm.DEST + row.flag
    if row.takes_value:
        parser.add_argument(*names, dest=dest, nargs="+" if row.takes_many else None, default=argparse.SUPPRESS,
                            help=argparse.SUPPRESS)  # fmt: skip
    else:
        parser.add_argument(
            *names, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def show_default(item: Setting) -> str:
    """A setting's default as a person reads it."""
    if isinstance(item.default, bool):
        return "on" if item.default else "off"
    return "empty" if item.default == "" else str(item.default)


def _escape(text: str) -> str:
    return text.replace("%", "%%")


def new_parser(command: str, about: str) -> argparse.ArgumentParser:
    """A parser for one command; whatever it dislikes is a ConfigError of one sentence."""
    parser = argparse.ArgumentParser(prog=command, description=about, allow_abbrev=False)
    parser.error = _refuse  # type: ignore[method-assign]  # else it prints its usage and exits
    return parser


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message.removeprefix("argument "))


def parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse a command's arguments.

    Flags may be written with underscores, as in vLLM.

    Raises:
        ConfigError: an unknown flag (with the nearest known one), a missing value, or a word too many.
    """
    found, rest = parser.parse_known_args([_with_dashes(word) for word in words])
    unknown = next((word.split("=")[0] for word in rest if word.startswith("-") and word != "-"), None)
    if unknown is not None:
        raise ConfigError(_unknown_flag(parser, unknown))
    if rest:
        raise ConfigError(f"{rest[0]!r} is one argument too many; see {parser.prog} --help")
    return found


def _with_dashes(word: str) -> str:
    match = re.match(r"--[a-zA-Z][a-zA-Z0-9_-]*", word)
    return word if match is None else match[0].replace("_", "-") + word[match.end() :]


def _unknown_flag(parser: argparse.ArgumentParser, flag: str) -> str:
    row = vllm.find(flag.split(".")[0])
    if row is not None and row.reason:
        is_lacking = row.verdict in ("not yet", "refused")
        return f"{flag} is refused: {row.reason}" if is_lacking else f"leave {flag} out: {row.reason}"
    # argparse has no public list of what it knows
    shown = [s for action in parser._actions if action.help != argparse.SUPPRESS for s in action.option_strings]
    near = difflib.get_close_matches(flag, shown, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"see {parser.prog} --help"
    return f"unknown flag {flag}; {hint}"
