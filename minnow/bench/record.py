"""JSON lines: what, where, commit, settings"""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import minnow
from minnow.core.errors import ConfigError

Record = dict[str, Any]

_INSTRUCTION_SETS = "avx2 fma f16c avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8 asimd".split()


def machine() -> Record:
    """This machine: processor, cores that may be used, what of its instruction sets matters, memory."""
    text = _read("/proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    present = flags[1].split() if flags else []
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "processor": name[1] if name else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [word for word in _INSTRUCTION_SETS if word in present],
        "memory_bytes": int(memory[1]) * 1024 if memory else None,
    }


def commit() -> str | None:
    """The commit that runs, with "+" where files differ from it; None outside a repository."""
    ask = ("git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
    own = ("git", "ls-files", "--error-unmatch", Path(__file__).name)  # not that of a repository around an installation
    try:
        for words in (own, ask):
            answer = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.strip()


def new(what: str, settings: Mapping[str, Any], results: Mapping[str, Any]) -> Record:
    """A record of a measurement made just now on this machine.

    Args:
        what: was measured, for example "step" or "serve".
        settings: what it depends on: flags, model, threads, versions of what it is compared with.
        results: numbers, with units at the end of their names.
    """
    return {
        "what": what,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": minnow.__version__,
        "commit": commit(),
        "machine": machine(),
        "settings": dict(settings),
        "results": dict(results),
    }


def append(path: Path, record: Record) -> None:
    """Add a record as one line; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def read(path: Path) -> list[Record]:
    """All records of a file, oldest first; none where there is no file.

    Raises:
        ConfigError: a line is no record.
    """
    records: list[Record] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), 1):
        try:
            records.append({"what": None, **json.loads(line)})
        except (ValueError, TypeError):
            raise ConfigError(f"{path}:{number} is no record of a measurement; mend or delete the line") from None
    return records


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
