"""what `make sanitize` looks for is found, and the team of threads is no false alarm"""

import subprocess
import sys
from pathlib import Path

import pytest

from minnow.core import env
from tools import sanitize

NATIVE = sanitize.ROOT / "minnow" / "kernels" / "native"
PLANTED = """
#include <stdlib.h>
#define MINNOW_ISA planted
#include "threads.h"
using namespace MINNOW_ISA;

static int64_t total, parts[64];

extern "C" __attribute__((visibility("default"))) void sound(int64_t n) {
    run(false, [&](Team& team) {
        Scratch shared = team.shared();
        int64_t* sums = shared.take<int64_t>(n);
        team.for_each(n, [&](int64_t item) { sums[item] = item; });
        team.for_each(n, [&](int64_t item) { parts[item] = sums[n - 1 - item]; });
    });
}
extern "C" __attribute__((visibility("default"))) void race(int64_t n) {
    run(false, [&](Team& team) { team.for_each(n, [&](int64_t item) { total += item; }); });
}
extern "C" __attribute__((visibility("default"))) void heap(int64_t n) {
    int64_t* place = static_cast<int64_t*>(malloc(n * sizeof(int64_t)));
    for (int64_t i = 0; i <= n; ++i) place[i] = i;
    free(place);
}
extern "C" __attribute__((visibility("default"))) void scratch(int64_t n) {
    run(false, [&](Team& team) {
        Scratch own = team.scratch();
        int64_t* place = own.take<int64_t>(n);
        int64_t* next = own.take<int64_t>(n);
        for (int64_t i = 0; i <= n; ++i) place[i] = next[0] = i;
    });
}
extern "C" __attribute__((visibility("default"))) void shift(int64_t n) { total = 1 << n; }
"""
CALL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.minnow_set_threads(ctypes.c_int64(3), None)
for _ in range(100):
    library[sys.argv[2]](ctypes.c_int64(50))
"""


@pytest.fixture(scope="module")
def path_by_sanitizer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A library of mistakes, built for each sanitizer."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cpp").write_text(PLANTED)
    found = {}
    for name, sanitizer in sanitize.SANITIZER_BY_NAME.items():
        sources, found[name] = [folder / "planted.cpp", NATIVE / "threads.cpp"], folder / f"{name}.so"
        command = ["c++", "-std=c++17", "-O2", "-g", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-w"]
        command += [*sanitizer.flags, f"-I{NATIVE}", "-lpthread"]
        subprocess.run([*command, *sources, "-o", found[name]], check=True)
    return found


def _reported(path: Path, name: str) -> str:
    """What is reported when a function is called; the process fails if and only if there is something."""
    log = path.parent / f"{path.stem}-{name}"
    done = subprocess.run(
        [sys.executable, "-c", CALL, path, name],
        env=sanitize.environment(sanitize.SANITIZER_BY_NAME[path.stem], log),
        capture_output=True,
        check=False,
    )
    text = sanitize.reports(log) + done.stderr.decode()
    assert (done.returncode != 0) == bool(text), (done.returncode, text)
    return text


@pytest.mark.parametrize("sanitizer", list(sanitize.SANITIZER_BY_NAME))
def test_a_sound_library_is_no_alarm(path_by_sanitizer: dict[str, Path], sanitizer: str) -> None:
    assert _reported(path_by_sanitizer[sanitizer], "sound") == ""


@pytest.mark.parametrize(
    ("sanitizer", "name", "words"),
    [
        ("thread", "race", "data race"),
        ("address", "heap", "heap-buffer-overflow"),
        ("address", "scratch", "use-after-poison"),
        ("address", "shift", "shift exponent 50 is too large"),
    ],
)
def test_a_planted_mistake_is_found(path_by_sanitizer: dict[str, Path], sanitizer: str, name: str, words: str) -> None:
    text = _reported(path_by_sanitizer[sanitizer], name)
    assert words in text
    assert "planted.cpp" in text


TESTS = """
import pytest
from minnow.kernels import native

@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_first(isa):
    assert isa == "portable" and native.instruction_set() == isa
    native.set_threads(1)

def test_second():
    assert native.num_threads() == 3

def test_third(objects):
    pass
"""


def test_every_test_has_a_team_and_those_of_other_instruction_sets_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tools.sanitize", "-p", "no:cacheprovider", str(tmp_path)]
    variables = env.read_prefixed("") | {"MINNOW_ISA": "portable"}
    done = subprocess.run(command, cwd=sanitize.ROOT, env=variables, capture_output=True, text=True, check=False)
    assert "2 passed, 2 deselected" in done.stdout, done.stdout
