"""the browser of the tests: found, installed, or left out with a reason"""

import os
import shutil
import subprocess
from typing import Any

import pytest

from tools import browser


def machine(monkeypatch: pytest.MonkeyPatch, programs: set[str], *, is_root: bool, fails: str = "") -> list[list[str]]:
    """Pretend to be on a machine with some programs; gives the commands that are run."""
    commands: list[list[str]] = []

    def run(command: list[str], **how: Any) -> "subprocess.CompletedProcess[bytes]":
        commands.append(command)
        return subprocess.CompletedProcess(command, int(fails != "" and fails in command))

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in programs else None)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    return commands


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_one_that_is_there_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    commands = machine(monkeypatch, {name, "apt-get"}, is_root=True)
    assert (browser.find(), browser.main(), commands) == (f"/usr/bin/{name}", 0, [])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("is_root", "before"), [(True, []), (False, ["sudo", "--non-interactive"])])
def test_else_debians_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_root: bool, before: list[str]
) -> None:
    commands = machine(monkeypatch, {"apt-get", "sudo"}, is_root=is_root)
    assert browser.main() == 0
    install = [*before, "apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
    assert commands == [[*before, "apt-get", "update"], install]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("programs", "is_root", "fails", "reason"),
    [
        (set(), True, "", "there is no apt-get here"),
        ({"apt-get"}, False, "", "installing it takes root's rights"),
        ({"apt-get", "sudo"}, False, "sudo", "`sudo --non-interactive apt-get update` failed"),
        ({"apt-get"}, True, "install", "`apt-get install --yes --no-install-recommends chromium` failed"),
    ],
)
def test_where_neither_can_be_the_tests_are_left_out_in_words(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    programs: set[str],
    is_root: bool,
    fails: str,
    reason: str,
) -> None:
    machine(monkeypatch, programs, is_root=is_root, fails=fails)
    assert browser.main() == 0
    said = capsys.readouterr()
    assert said.out == " and not browser\n"
    assert said.err == f"no chromium, and {reason}: the browser tests are left out\n"
