"""digests, a lock for one writer at a time, and a finished directory that takes its name whole"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from minnow.core.errors import ConfigError


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@contextlib.contextmanager
def alone(lock: Path, *, busy: str = "") -> Iterator[None]:
    """Hold a lock file, which is gone afterwards.

    Args:
        lock: the file; its directory is made if needed.
        busy: what to say where another process holds it; empty waits for it instead.

    Raises:
        ConfigError: another process holds it, and there are words for that.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    opened = _locked(lock, busy)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # while it is held, so that whoever waited can see that it is no longer the file
        opened.close()


def put_in_place(partial: Path, target: Path) -> None:
    """Give a finished directory its name; all of it is on the disk before, and what had the name is gone after.

    Raises:
        OSError: it could not be; what had the name has it still.
    """
    for path in (*partial.rglob("*"), partial):
        _sync(path)
    old = old_of(target)
    is_replaced = target.exists()
    if is_replaced:
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        if is_replaced:
            old.rename(target)
        raise
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def partial_of(target: Path) -> Path:
    """Where a directory is written before it takes its name."""
    return target.parent / f".{target.name}.partial"


def old_of(target: Path) -> Path:
    """Where a directory lies while another takes its name."""
    return target.parent / f".{target.name}.old"


def lock_of(target: Path) -> Path:
    """The file whose lock the writer of a directory holds."""
    return target.parent / f".{target.name}.lock"


def _locked(lock: Path, busy: str) -> TextIO:
    while True:
        opened = lock.open("a")
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            if _is_still(opened, lock):
                return opened
        except BlockingIOError:
            opened.close()
            raise ConfigError(busy) from None
        except BaseException:
            opened.close()
            raise
        opened.close()  # its holder has deleted it meanwhile


def _is_still(opened: TextIO, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(opened.fileno()), lock.stat())
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, would survive a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
