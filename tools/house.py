"""sizes, docstrings, names, budgets: what keeps the house in order"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_SKIPPED = {".git", ".venv", "build", "dist", "_native", "__pycache__"}
CODE = {".py", ".cpp", ".h"}
_TEXT = CODE | {".md", ".toml", ".txt", ".yaml", ".sh", ".css", ".js"}
_NOTED_LINES, _MOST_LINES = 400, 600
_MOST_FUNCTION_LINES, _MOST_TRITON_LINES = 80, 150
_BANNED_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base", "handler", "data", "tmp"}
_PROPER_NAMES = {"Google", "MiniMax", "Prometheus", "Python"}
# What an operation's folder may import, besides itself.
_OPERATION_MAY_IMPORT = (
    "minnow.core",
    "minnow.formats",
    "minnow.kernels.contract",
    "minnow.kernels.native",
    "minnow.kernels.paged",
    "minnow.kernels.words",
)


def files(root: Path, suffixes: set[str]) -> Iterator[Path]:
    """Files of the repository with one of the suffixes, in order; what is built or hidden is left out."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.suffix in suffixes and not any(p in _SKIPPED or p.endswith("_cache") for p in parts) and path.is_file():
            yield path


def problems(root: Path) -> list[str]:
    """Everything that breaks a rule, one line each."""
    found = [*_packages_without_content(root), *_over_budget(root)]
    for path in files(root, _TEXT):
        where, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
        if not text.isascii() and not where.startswith("tests/"):  # tests hold text in any script
            line = next(n for n, line in enumerate(text.splitlines(), 1) if not line.isascii())
            found.append(f"{where}:{line}: not ASCII")
        if path.suffix in CODE:
            found += _bad_name(path, where)
            if path.is_relative_to(root / "minnow") or path.is_relative_to(root / "tools"):
                found += _bad_first_line(path, where)
            lines = len(text.splitlines())
            if lines > _MOST_LINES:
                found.append(f"{where}: {lines} lines, at most {_MOST_LINES}")
        if path.suffix == ".py":
            found += _python_problems(path.relative_to(root), ast.parse(text))
    return found


def notes(root: Path) -> list[str]:
    """What is allowed but worth a look."""
    counted = [(path.relative_to(root), count_lines(path)) for path in files(root, CODE)]
    return [f"{path}: {lines} lines, aim at 200" for path, lines in counted if lines > _NOTED_LINES]


def _bad_name(path: Path, where: str) -> list[str]:
    words = path.stem.lower().split("_")
    bad = path.stem in _BANNED_WORDS or words[-1] in _BANNED_WORDS - {"data"} or words[0] == "new"
    return [f"{where}: the name says nothing; name what it is about"] if bad or re.fullmatch(r"v\d+", words[-1]) else []


def _packages_without_content(root: Path) -> list[str]:
    packages = [path.parent for path in files(root / "minnow", {".py"}) if path.name == "__init__.py"]
    return [
        f"{package.relative_to(root)}: a package with nothing in it"
        for package in packages
        if sum(1 for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc") == 1
    ]


def _python_problems(path: Path, tree: ast.Module) -> list[str]:
    found = []
    is_product = path.parts[0] == "minnow"
    if is_product:
        found += [f"{path}:{node.lineno}: {name} has no docstring" for node, name in _undocumented(tree)]
        found += _operation_imports(path, tree)
    limit = _MOST_TRITON_LINES if path.stem.startswith("triton") else _MOST_FUNCTION_LINES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = _code_lines(node)
            if lines > limit:
                found.append(f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {limit}")
    return found


def _bad_first_line(path: Path, where: str) -> list[str]:
    first = first_line(path)
    if not first:
        return [f"{where}: its docstring or first comment says nothing; docs/reference/tree.md shows its first line"]
    word = re.match(r"([A-Z][a-z]+) [a-z]", first)
    if word and word[1] not in _PROPER_NAMES:
        return [f"{where}: its first line starts in lower case: {first!r}"]
    return [f"{where}: its first line ends without a full stop: {first!r}"] if first.endswith(".") else []


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body
    signature = node.body[0].lineno - node.lineno
    return signature + (node.end_lineno or node.lineno) - body[0].lineno + 1


def _undocumented(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if ast.get_docstring(node) is None:
                yield node, node.name
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if (
                        isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                        and not inner.name.startswith("_")
                        and ast.get_docstring(inner) is None
                    ):
                        yield inner, f"{node.name}.{inner.name}"


def _operation_imports(path: Path, tree: ast.Module) -> list[str]:
    if path.parts[:2] != ("minnow", "kernels") or len(path.parts) < 4:
        return []
    own = ".".join(path.parts[:3])
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("minnow.") and not name.startswith((own, *_OPERATION_MAY_IMPORT)):
                found.append(f"{path}:{node.lineno}: an operation does not import {name}; it gets it as an argument")
    return found


def first_line(path: Path) -> str:
    """What a file is about: the first line of its docstring or, in C++, of its first comment; or ""."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return (ast.get_docstring(ast.parse(text)) or "").split("\n")[0].strip()
    first = text.split("\n")[0]
    return first.removeprefix("//").strip() if first.startswith("//") else ""


def count_lines(path: Path) -> int:
    """Lines of a file, blank ones too."""
    return len(path.read_text(encoding="utf-8").splitlines())


def lines_by_package(root: Path) -> dict[str, int]:
    """Lines of code of each package directly below minnow/; "minnow" has the files beside them."""
    totals: dict[str, int] = {}
    for path in files(root / "minnow", CODE):
        parts = path.relative_to(root / "minnow").parts
        package = parts[0] if len(parts) > 1 else "minnow"
        totals[package] = totals.get(package, 0) + count_lines(path)
    return totals


def budgets(root: Path) -> dict[str, int]:
    """Lines that each package may have, from pyproject.toml."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, int] = settings["tool"]["minnow"]["budget"]
    return found


def _over_budget(root: Path) -> list[str]:
    allowed, found = budgets(root), []
    for package, lines in lines_by_package(root).items():
        if package != "minnow" and package not in allowed:
            found.append(f"minnow/{package}: no line budget in pyproject.toml")
        elif lines > allowed.get(package, lines):
            found.append(f"minnow/{package}: {lines} lines, its budget in pyproject.toml is {allowed[package]}")
    return found


def main() -> int:
    """Print the lines by package, the notes and the problems; fail if there are problems."""
    allowed = budgets(ROOT)
    for package, lines in lines_by_package(ROOT).items():
        print(f"{package:12} {lines:6} of {allowed.get(package, lines):6} lines")
    for note in notes(ROOT):
        print(f"note: {note}")
    found = problems(ROOT)
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"house: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
