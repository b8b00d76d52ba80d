"""loads the one C++ library (ctypes), picks the best instruction set this processor has"""

import ctypes
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import torch

from minnow import __version__
from minnow.core import env
from minnow.core.errors import ConfigError
from minnow.core.log import Logger

_FILE = Path("_native") / "libminnow.so"
_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
_DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}  # as in native/elements.h


def dtype_code(dtype: torch.dtype) -> int:
    """The number that stands for a dtype in the C interface.

    Raises:
        TypeError: the kernels have no such element type.
    """
    if dtype not in _DTYPE_CODES:
        raise TypeError(f"the C++ kernels take {' or '.join(str(d) for d in _DTYPE_CODES)}, not {dtype}")
    return _DTYPE_CODES[dtype]


def choose(wanted: str, built: Sequence[str], supported: Sequence[str]) -> str:
    """Pick an instruction set.

    Args:
        wanted: the name that the user forces; empty takes the best.
        built: those that the library was compiled for, worst first.
        supported: those that this processor and operating system can run.

    Raises:
        ConfigError: the forced one is unknown, or would crash here.
    """
    usable = [isa for isa in built if isa in supported]
    if not wanted:
        return usable[-1]
    if wanted in usable:
        return wanted
    reason = "this processor or system cannot run it" if wanted in built else "the library has no such build"
    raise ConfigError(f"MINNOW_ISA={wanted}: {reason}; it can be {', '.join(usable)}, or empty for the best")


def built_instruction_sets() -> tuple[str, ...]:
    """Names of the instruction sets that the library was compiled for, worst first."""
    return _words(_library().minnow_built_isas)


def usable_instruction_sets() -> tuple[str, ...]:
    """Names of the instruction sets that can be used here, worst first."""
    supported = _words(_library().minnow_supported_isas)
    return tuple(isa for isa in built_instruction_sets() if isa in supported)


@cache
def instruction_set() -> str:
    """The instruction set that kernels use: the best one, or what MINNOW_ISA forces.

    Raises:
        ConfigError: the library is missing, or MINNOW_ISA names what cannot run here.
    """
    isa = choose(env.read("MINNOW_ISA"), built_instruction_sets(), usable_instruction_sets())
    Logger("kernels").info("instruction set chosen", isa=isa)
    return isa


@cache
def function(name: str, signature: str, isa: str | None = None) -> Callable[..., None]:
    """A kernel of the library as a plain function; it runs without the interpreter lock.

    Args:
        name: the exported name without its prefix and instruction set, for example "norm".
        signature: one letter an argument: p pointer, i 64-bit integer, f 32-bit float.
        isa: the instruction set; None takes `instruction_set()`.

    Raises:
        ConfigError: the library is missing, or older than the code that calls it.
    """
    symbol = f"minnow_{name}_{isa or instruction_set()}"
    try:
        found = getattr(_library(), symbol)
    except AttributeError:
        raise ConfigError(f"{library_path()} has no {symbol}: it is out of date; run `make setup`") from None
    found.restype = None
    found.argtypes = [_TYPES[letter] for letter in signature]
    return found  # type: ignore[no-any-return]


def set_threads(count: int, cpus: Sequence[int] | None = None) -> None:
    """Make the library's team of threads; the thread that calls a kernel is one of them.

    A system that starts no more threads is a warning; the team is then as large as it could be.

    Args:
        count: at least 1.
        cpus: the processor that each thread is pinned to, the caller's first (which `pin_caller` pins); None lets them
            float.
    """
    places = None if cpus is None else (ctypes.c_int32 * count)(*cpus)
    call = _library().minnow_set_threads
    call.restype, call.argtypes = None, [ctypes.c_int64, ctypes.c_void_p]
    call(count, places)
    if num_threads() < count:
        Logger("kernels").warning("fewer threads", wanted=count, started=num_threads())


def pin_caller() -> None:
    """Keep the calling thread to the first processor of a team that is pinned: workers have the others.

    For a thread that will call kernels and do nothing else. Those it starts later would inherit it, so torch's are
    started first.
    """
    torch.ones(1 << 20).neg_()  # large enough for all of them
    _library().minnow_pin_caller()


def num_threads() -> int:
    """How large the team is."""
    call = _library().minnow_num_threads
    call.restype = ctypes.c_int64
    return int(call())


def open_library(folders: Iterable[Path]) -> ctypes.CDLL:
    """Load the library from the first folder that has it.

    Raises:
        ConfigError: no folder has it, or it cannot be loaded or is of another version.
    """
    places = [folder / _FILE for folder in folders]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = " or ".join(str(place) for place in places)
        raise ConfigError(f"the C++ library is missing (no {looked}): run `make setup`, or `pip install .`")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ConfigError(f"the C++ library cannot be loaded ({error}): build it here with `make setup`") from error
    version = _words(library.minnow_version)[0] if hasattr(library, "minnow_version") else "an older version"
    if version != __version__:
        raise ConfigError(f"{path} was built for Minnow {version}, this is {__version__}: run `make setup`")
    return library


def library_path() -> Path:
    """The file of the loaded library."""
    return Path(_library()._name)


@cache
def _library() -> ctypes.CDLL:
    if env.read("MINNOW_NATIVE"):  # such as a build that finds mistakes (`make sanitize`)
        return open_library([Path(env.read("MINNOW_NATIVE"))])
    # An installed package has it beside this file; an editable install only where packages are installed.
    installed = Path(sysconfig.get_path("platlib")) / "minnow" / "kernels"
    return open_library(dict.fromkeys((Path(__file__).parent, installed)))


def _words(query: Callable[[], bytes]) -> tuple[str, ...]:
    query.restype = ctypes.c_char_p  # type: ignore[attr-defined]
    return tuple(query().decode("ascii").split())
