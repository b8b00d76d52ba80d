"""the kernels for AMX with plain C++ in the place of its instructions, on processors that have AVX-512 but no AMX

Where there is AMX the other tests run the real ones.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minnow.kernels import native

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("test_attention.py", "test_gemm.py", "test_tiles.py", "test_parity.py")


@pytest.mark.skipif("amx" in native.usable_instruction_sets(), reason="the real instructions are tested")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake to build it with")
@pytest.mark.skipif("avx512" not in native.usable_instruction_sets(), reason="AVX-512 is not emulated")
def test_kernels_over_emulated_tiles(tmp_path: Path) -> None:
    build, library = tmp_path / "build", tmp_path / "_native"
    flags = ("-DMINNOW_ISAS=avx512", "-DMINNOW_FLAGS=-DMINNOW_AMX_EMULATED -O1")
    subprocess.run(["cmake", "-S", ROOT, "-B", build, *flags], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "-j2"], check=True, stdout=subprocess.DEVNULL)
    library.mkdir()
    (build / "libminnow.so").rename(library / "libminnow.so")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not slow and not gpu",
            *(Path(__file__).parent / t for t in TESTS),
        ],
        cwd=ROOT,
        env={**os.environ, "MINNOW_NATIVE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]
