"""the only reader of environment variables; one table of them"""

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One environment variable that Minnow reads."""

    name: str
    meaning: str
    default: str = ""


VARIABLES = (
    Variable(name="MINNOW_HOME", meaning="where models are kept", default="~/.cache/minnow"),
    Variable(name="MINNOW_CHECK", meaning="1 checks dtypes and axes of every operation call", default="0"),
    Variable(name="MINNOW_NATIVE", meaning="folder of a _native/libminnow.so; empty takes the installed one"),
    Variable(name="MINNOW_ISA", meaning="instructions of CPU kernels: portable, avx2, avx512, amx; empty is the best"),
    Variable(
        name="PROMETHEUS_MULTIPROC_DIR",
        meaning="must not be set for `minnow serve`: its metrics are of one process, and would mix with others' there",
    ),
    Variable(name="MINNOW_LOG", meaning="least level that is logged: debug, info, warning, error", default="info"),
)  # fmt: skip


def read(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The value of a variable of the table, or its default."""
    variable = next(v for v in VARIABLES if v.name == name)
    return (os.environ if environ is None else environ).get(name, variable.default)


def read_prefixed(prefix: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """All variables whose names begin with a prefix (settings from the environment)."""
    source = os.environ if environ is None else environ
    return {k: v for k, v in sorted(source.items()) if k.startswith(prefix)}


def prefer(name: str, value: str) -> None:
    """Set a variable of this process that other libraries read when they load, unless the user has set it."""
    os.environ.setdefault(name, value)
