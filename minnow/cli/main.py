"""the `minnow` command: finds the one asked for in this folder and imports no other"""

import ast
import difflib
import sys
from pathlib import Path

import minnow
from minnow.config import flags
from minnow.core import env, folder
from minnow.core.errors import ConfigError, MinnowError, RequestError

_PACKAGE = "minnow.cli"


def commands() -> list[str]:
    """Names of the commands: the files of this folder but this one."""
    return [name for name in folder.names(_PACKAGE) if name != "main"]


def main(words: list[str] | None = None) -> int:
    """Run one command line; the entry point of `minnow`.

    Returns:
        0, or what the command returned; 2 for a wrong setting or request, 1 for other errors, 130 when interrupted.
        An error is one line on stderr.
    """
    words = sys.argv[1:] if words is None else words
    # Before torch loads: threads that wait for work sleep. Spinning ones stop a machine that has other work to do.
    env.prefer("OMP_WAIT_POLICY", "passive")
    try:
        return _run(words)
    except MinnowError as error:
        print(f"minnow: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | RequestError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        sys.stderr.close()
        return 1
    except OSError as error:  # a disk that is full, a directory that may not be written
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"minnow: {where}{error.strerror or error}", file=sys.stderr)
        return 1


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] in ("-V", "--version", "version"):
        print(f"minnow {minnow.__version__}")
        return 0
    name = words[0]
    if name not in commands():
        near = difflib.get_close_matches(name, commands(), n=1)
        raise ConfigError(
            f"no command is called {name!r}; " + (f"did you mean {near[0]}?" if near else "minnow --help lists them")
        )
    command = folder.load(_PACKAGE, name)
    parser = flags.new_parser(f"minnow {name}", command.HELP)
    command.add_arguments(parser)
    return int(command.run(flags.parse(parser, words[1:])))


def _overview() -> str:
    lines = [f"minnow {minnow.__version__}: {minnow.__doc__}", "", "usage: minnow COMMAND ...", "", "commands:"]
    lines += [f"  {name:10} {_help_of(name)}" for name in commands()]
    return "\n".join([*lines, "", "minnow COMMAND --help shows a command's arguments"])


def _help_of(name: str) -> str:
    """HELP of a command, read from its source: importing every command would load torch."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "HELP" for t in node.targets):
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"minnow/cli/{name}.py has no HELP")
