"""checks that every path, command and flag in the docs exists"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from minnow.cli import main as cli
from minnow.core import folder
from tools import house

_PAGES = ("README.md", "CONTRIBUTING.md", "STYLE.md", "SECURITY.md", "docs", "models")
_PATH_SUFFIXES = {".py", ".md", ".cpp", ".h", ".toml", ".txt", ".sh"}
_TOP = {".ci", "benchmarks", "docs", "minnow", "models", "tests", "tools"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a document may speak of."""

    root: Path
    targets: frozenset[str]
    flags_by_command: dict[str, frozenset[str]]


def make_targets(makefile: str) -> frozenset[str]:
    """Names of a Makefile's targets."""
    return frozenset(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def _parsers_of(action: argparse.Action) -> list[argparse.ArgumentParser]:
    """The parsers of a command's own commands."""
    return list(action.choices.values()) if isinstance(action.choices, dict) else []


def flags_by_command() -> dict[str, frozenset[str]]:
    """Every flag that each command of `minnow` takes."""
    found = {}
    for name in cli.commands():
        command = folder.load("minnow.cli", name)
        options: set[str] = set()
        for member in (command, *(folder.load("minnow.bench", kind) for kind in getattr(command, "KINDS", ()))):
            parser = argparse.ArgumentParser()
            member.add_arguments(parser)
            parsers = [parser, *(inner for action in parser._actions for inner in _parsers_of(action))]
            options.update(o for one in parsers for action in one._actions for o in action.option_strings)
        found[name] = frozenset(options)
    return found


def code_in(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of every code span and every line of a code block."""
    is_block = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_block = not is_block
        elif is_block:
            yield number, line.strip()
        else:
            for span in re.findall(r"`([^`]+)`", line):
                yield number, span.strip()


def problems_in(page: Path, text: str, known: Known) -> list[str]:
    """What a page names that does not exist, one line each."""
    found = []
    where = page.relative_to(known.root)
    for number, code in code_in(text):
        problem = _path_problem(code, page, known.root) or _make_problem(code, known) or _command_problem(code, known)
        if problem:
            found.append(f"{where}:{number}: {problem}")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        if not (page.parent / link).exists():
            found.append(f"{where}: link to {link}, which does not exist")
    return found


def _path_problem(code: str, page: Path, root: Path) -> str | None:
    if not re.fullmatch(r"[\w./*-]+", code) or "/" not in code or code.startswith(("/", "-", "~")):
        return None
    if any(part.isupper() for part in code.split("/")):  # a placeholder: DIR/config.json
        return None
    is_ours = code.split("/")[0] in _TOP or Path(code).suffix in _PATH_SUFFIXES
    bases = (root, root / "minnow", page.parent)
    if not is_ours or any((base / code).exists() or list(base.glob(code)) for base in bases):
        return None
    return f"{code} does not exist"


def _make_problem(code: str, known: Known) -> str | None:
    match = re.match(r"make ([a-z][a-z-]*)", code)
    if match is None or match[1] in known.targets:
        return None
    return f"`make {match[1]}` is no target of the Makefile"


def _command_problem(code: str, known: Known) -> str | None:
    anywhere = frozenset().union(*known.flags_by_command.values())
    bare = re.match(r"--[a-z][\w.-]*", code)
    if bare is not None:
        return None if _flag(bare[0]) in anywhere else f"no command takes {bare[0]}"
    match = re.match(r"(?:\S*/)?minnow ([a-z]+)\b(.*)", code)
    if match is None:
        return None
    if match[1] not in known.flags_by_command:
        return f"`minnow {match[1]}` is no command"
    for given in re.findall(r"(?<!\S)--[a-z][\w.-]*", match[2]):
        if _flag(given) not in known.flags_by_command[match[1]]:
            return f"`minnow {match[1]}` takes no {given}"
    return None


def _flag(text: str) -> str:
    # inside a JSON setting the key is spelled with underscores
    outer, dot, inner = text.partition(".")
    return outer.replace("_", "-") + dot + inner


def pages(root: Path) -> Iterator[Path]:
    """The documents that are checked.

    Left out are docs/reference, which is generated and names other engines' flags, and the notes in docs/decisions
    and docs/experiments, which speak of what was not done and stay as they were written.
    """
    unchecked = {root / "docs" / name for name in ("reference", "decisions", "experiments")}
    for name in _PAGES:
        for path in [root / name] if name.endswith(".md") else sorted((root / name).rglob("*.md")):
            if path.is_file() and unchecked.isdisjoint(path.parents):
                yield path


def main() -> int:
    """Print the problems of all documents; fail if there are any."""
    known = Known(
        root=house.ROOT,
        targets=make_targets((house.ROOT / "Makefile").read_text(encoding="utf-8")),
        flags_by_command={**flags_by_command(), "help": frozenset(), "version": frozenset()},
    )
    found = [p for page in pages(known.root) for p in problems_in(page, page.read_text(encoding="utf-8"), known)]
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"docs: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
