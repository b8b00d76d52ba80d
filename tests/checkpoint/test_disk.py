"""one writer at a time, and a name that is always a whole directory's"""

import os
import threading
from pathlib import Path

import pytest

from minnow.checkpoint import disk
from minnow.core.errors import ConfigError


def write(directory: Path, text: str) -> Path:
    directory.mkdir()
    (directory / "inner").mkdir()
    (directory / "config.json").write_text(text)
    (directory / "inner/x").write_text(text)
    return directory


def test_a_second_writer_is_refused_or_waits(tmp_path: Path) -> None:
    lock, order = tmp_path / "a/.lock", list[str]()

    def wait() -> None:
        with disk.alone(lock):
            order.append("second")

    with disk.alone(lock, busy="taken"):
        with pytest.raises(ConfigError, match=r"^taken$"), disk.alone(lock, busy="taken"):
            pass
        second = threading.Thread(target=wait)
        second.start()
        second.join(0.1)
        order.append("first")
    second.join()
    assert order == ["first", "second"] and list(lock.parent.iterdir()) == []


def test_what_had_the_name_comes_back_when_the_new_one_cannot_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, target = write(tmp_path / "partial", "new"), write(tmp_path / "target", "old")
    rename = Path.rename

    def fail(self: Path, to: Path) -> Path:
        if self == partial:
            raise OSError(5, "Input/output error", str(self))
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        disk.put_in_place(partial, target)
    assert (target / "config.json").read_text() == "old" and not disk.old_of(target).exists()


def test_everything_is_on_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial, target = write(tmp_path / "partial", "new"), write(tmp_path / "target", "old")
    done: list[tuple[Path, str]] = []

    def fsync(number: int) -> None:
        done.append((Path(os.readlink(f"/proc/self/fd/{number}")), (target / "config.json").read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    disk.put_in_place(partial, target)
    before = {path for path, text in done if text == "old"}
    assert before == {partial, partial / "inner", partial / "inner/x", partial / "config.json"}
    assert done[-1] == (tmp_path, "new") and [path.name for path in tmp_path.iterdir()] == ["target"]
