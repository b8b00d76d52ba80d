"""find operations, say why a backend refuses, bind once"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch

from minnow.core import env, folder
from minnow.core.errors import ConfigError
from minnow.kernels import native
from minnow.kernels.check import check_call
from minnow.kernels.contract import Op, Target

_PACKAGE = "minnow.kernels"
_ORDER = ("triton_sm100", "triton", "cpu", "composed", "reference")  # best first


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which backend an operation got, and why the others did not get it."""

    op: str
    backend: str
    refusal_by_backend: dict[str, str]
    note: str = ""  # what the backend leaves to the reference, where it does


class Kernels:
    """One plain function an operation, as attributes: `kernels.norm(x, w, eps, offset)`."""

    def __init__(self, functions: dict[str, Callable[..., Any]], choices: tuple[Choice, ...], target: Target) -> None:
        self.__dict__.update(functions)
        self.choices = choices
        self.target = target

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no operation is called {name!r}")


@cache
def operations() -> dict[str, Op]:
    """Every operation's contract, by name: the folders of this package that hold an `OP`."""
    found = {}
    for name in folder.names(_PACKAGE):
        module = folder.load(_PACKAGE, name)
        if hasattr(module, "OP"):
            found[name] = module.OP
    return found


def backends(op: str) -> list[str]:
    """Backends of an operation, best first."""
    present = set(folder.names(f"{_PACKAGE}.{op}"))
    return [name for name in _ORDER if name in present]


def target_of(device: torch.device) -> Target:
    """Describe a torch device."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return Target(
            kind="cuda", name=torch.cuda.get_device_name(device), capability=major * 10 + minor, is_asynchronous=True
        )
    return Target(kind="cpu", name=native.instruction_set())


def bind(target: Target, kernel_backends: str = "*=auto") -> Kernels:
    """Choose a backend for every operation, once.

    Args:
        kernel_backends: "*=auto,experts=reference": operation (or "*") = backend (or "auto").

    Raises:
        ConfigError: an unknown operation or backend, or an explicit choice that refuses, with its reason.
    """
    wanted = _parse(kernel_backends)
    choices = tuple(
        _choose(name, wanted.get(name, wanted.get("*", "auto")), target, is_explicit=name in wanted)
        for name in operations()
    )
    kernels = Kernels({}, choices, target)
    for choice in sorted(choices, key=lambda choice: choice.backend == "composed"):  # these build on the others
        function = implementation(choice.op, choice.backend, kernels)
        is_checked = env.read("MINNOW_CHECK") == "1"
        setattr(kernels, choice.op, _checked(operations()[choice.op], function) if is_checked else function)
    return kernels


def implementation(op: str, backend: str, kernels: Kernels) -> Callable[..., Any]:
    """The function of a backend; a composed one is built on the operations of `kernels`."""
    module = folder.load(f"{_PACKAGE}.{op}", backend)
    function: Callable[..., Any] = module.compose(kernels) if backend == "composed" else getattr(module, op)
    return function


def _parse(text: str) -> dict[str, str]:
    wanted = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, separator, backend = part.partition("=")
        if not separator or (name != "*" and name not in operations()):
            raise ConfigError(
                f"--kernel-backends: {part!r} is not operation=backend; operations are * {' '.join(operations())}"
            )
        wanted[name] = backend
    return wanted


def _choose(name: str, wanted: str, target: Target, *, is_explicit: bool) -> Choice:
    present = backends(name)
    refusals = {backend: reason for backend, reason in _refusals(name, present, target) if reason is not None}
    if wanted == "auto":
        backend = next(b for b in present if b not in refusals)
    elif wanted not in present:
        if is_explicit or wanted not in _ORDER:
            raise ConfigError(f"--kernel-backends: {name} has no backend {wanted!r}; it has {' '.join(present)}")
        backend = next(b for b in present if b not in refusals)  # "*=triton" means: where there is one
    elif wanted in refusals:
        raise ConfigError(f"--kernel-backends: {name}={wanted} cannot run here: {refusals[wanted]}")
    else:
        backend = wanted
    for other in present:
        if other != backend:
            refusals.setdefault(other, f"{backend} was asked for" if wanted == backend else f"{backend} comes first")
    note: str = getattr(folder.load(f"{_PACKAGE}.{name}", backend), "NOTE", "")
    return Choice(op=name, backend=backend, refusal_by_backend=refusals, note=note)


def _refusals(name: str, present: list[str], target: Target) -> Iterator[tuple[str, str | None]]:
    for backend in present:
        refusal: Callable[[Target], str | None] = folder.load(f"{_PACKAGE}.{name}", backend).refusal
        yield backend, refusal(target)


def _checked(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        check_call(op, bound.arguments)
        return function(*args, **named)

    return call
