"""the kernel tests over libraries that watch themselves: AddressSanitizer with UBSan, and ThreadSanitizer

    python -m tools.sanitize [address] [thread] [-- arguments of pytest]

Builds the C++ library anew in build/sanitize with the compiler's own sanitizers and runs the kernel tests over it, for
every instruction set of this processor, with more threads than the tests take by themselves. Python and torch are not
watched: only what the library does counts. Fails when a test fails or a sanitizer says anything.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from minnow.core import env

ROOT = Path(__file__).resolve().parent.parent
NUM_THREADS = 3

# UBSan knows no file for its reports: they go to stderr, which must not be held back when the process ends.
_CAPTURE = "--capture=sys"
_TESTS = (
    "tests/kernels",
    "tests/model/test_native_step.py",
    # Of processes and of limits of their memory, which sanitizers have rules of their own for.
    "--ignore=tests/kernels/test_threads.py",
    "-q",
    "-m",
    "not slow and not gpu",
    _CAPTURE,
    "-p",
    "no:cacheprovider",
    "-p",
    "tools.sanitize",
)
_COMPILING = {"objects", "emulated"}  # fixtures that compile kernels: those would not be watched
# Sanitizers make the optimiser see paths that are not there.
_QUIET = ("-Wno-maybe-uninitialized", "-Wno-stringop-overflow", "-Wno-array-bounds", "-Wno-tsan")
# More than that, and a file of kernels takes many minutes to compile.
_SPEED = ("-O1", "-g1", "--param", "asan-instrumentation-with-call-threshold=0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitizer:
    """One way to watch.

    Attributes:
        flags: of the compiler and of the linker.
        runtime: the library that must be in the process before anything else is.
        options: environment variable -> its words; the file of the reports is added to each (UBSan takes none).
    """

    flags: tuple[str, ...]
    runtime: str
    options: Mapping[str, str]


SANITIZER_BY_NAME = {
    "address": Sanitizer(
        flags=("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"),
        runtime="libasan.so",
        # Python frees little at its end; and torch gives what it takes back to nobody.
        options={"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    ),
    "thread": Sanitizer(
        flags=("-fsanitize=thread",),
        runtime="libtsan.so",
        # Calls from libraries that were not built so, torch's above all, look like races: nobody saw their locks.
        options={"TSAN_OPTIONS": "ignore_noninstrumented_modules=1 exitcode=66 die_after_fork=0"},
    ),
}


def environment(sanitizer: Sanitizer, log: Path) -> dict[str, str]:
    """The variables of a process that a sanitized library is loaded into; reports go to files named `log` and more."""
    path = subprocess.run(
        ["c++", f"-print-file-name={sanitizer.runtime}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"sanitize: the compiler has no {sanitizer.runtime}; install GCC's sanitizer libraries")
    options = {name: f"{words} log_path={log}" for name, words in sanitizer.options.items()}
    return {**env.read_prefixed(""), **options, "LD_PRELOAD": str(Path(path).resolve())}


def build(name: str, folder: Path, isas: Sequence[str]) -> Path:
    """Build the library for some instruction sets, and give the folder that MINNOW_NATIVE takes."""
    if shutil.which("cmake") is None:
        raise SystemExit("sanitize: there is no cmake; install it")
    sanitizer = SANITIZER_BY_NAME[name]
    settings = {
        "CMAKE_BUILD_TYPE": "None",
        "CMAKE_SHARED_LINKER_FLAGS": " ".join(sanitizer.flags),
        "MINNOW_FLAGS": " ".join((*sanitizer.flags, *_QUIET, *_SPEED)),
        "MINNOW_ISAS": ";".join(isas),
        "CMAKE_INSTALL_PREFIX": str(folder / "installed"),
    }
    defined = [f"-D{key}={value}" for key, value in settings.items()]
    for words in (
        ["-S", str(ROOT), "-B", str(folder), *defined],
        ["--build", str(folder), "--parallel", "2", "--target", "install"],
    ):
        if subprocess.run(["cmake", *words], stdout=subprocess.DEVNULL, check=False).returncode:
            raise SystemExit(f"sanitize: the library cannot be built in {folder}")
    return folder / "installed" / "minnow" / "kernels"


def reports(log: Path) -> str:
    """What the sanitizers wrote, for whom a process ended before it could be shown."""
    return "\n".join(path.read_text(errors="replace") for path in sorted(log.parent.glob(log.name + ".*")))


def check(name: str, folder: Path, isas: Sequence[str], arguments: Sequence[str]) -> bool:
    """Run the tests over one library, once an instruction set; whether all is well."""
    native = build(name, folder, isas)
    log = folder / "report"
    for old in folder.glob(log.name + ".*"):
        old.unlink()
    is_well = True
    variables = environment(SANITIZER_BY_NAME[name], log) | {"MINNOW_NATIVE": str(native)}
    for isa in isas:
        print(f"sanitize: {name}, {isa}", flush=True)
        command = [sys.executable, "-m", "pytest", *_TESTS, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=variables | {"MINNOW_ISA": isa}, check=False)
        is_well = is_well and done.returncode == 0
    text = reports(log)
    print(text, end="")
    return is_well and not text


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """As a plugin of the tests: give each a team of threads, so that there is something to watch."""
    from minnow.kernels import native  # only now: it loads torch

    native.set_threads(NUM_THREADS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a plugin of the tests: leave out what compiles kernels or is of another instruction set."""
    isa = env.read("MINNOW_ISA")

    def is_of_this(item: pytest.Item) -> bool:
        spec = getattr(item, "callspec", None)
        chosen = {spec.params[name] for name in ("isa", "_isa") if name in spec.params} if spec else set()
        return chosen <= {isa} and not _COMPILING & {*getattr(item, "fixturenames", ())}

    config.hook.pytest_deselected(items=[item for item in items if not is_of_this(item)])
    items[:] = [item for item in items if is_of_this(item)]


def main() -> int:
    """Run what is named, or everything."""
    parser = argparse.ArgumentParser(prog="python -m tools.sanitize", description="the kernel tests under sanitizers")
    parser.add_argument("names", nargs="*", metavar="NAME", help="address or thread; both when none is named")
    own, _, rest = " ".join(sys.argv[1:]).partition("-- ")
    names = parser.parse_args(own.split()).names or list(SANITIZER_BY_NAME)
    unknown = [name for name in names if name not in SANITIZER_BY_NAME]
    if unknown:
        parser.error(f"there is no sanitizer {unknown[0]}; there are {', '.join(SANITIZER_BY_NAME)}")
    from minnow.kernels import native  # only now: it loads torch

    isas = native.usable_instruction_sets()
    wrong = [name for name in names if not check(name, ROOT / "build" / "sanitize" / name, isas, rest.split())]
    print(f"sanitize: {'found something: ' + ', '.join(wrong) if wrong else 'nothing found'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
