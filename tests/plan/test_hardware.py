"""every number of a sheet has a unit, a status and a source"""

from pathlib import Path

import pytest

from minnow.core.errors import ConfigError
from minnow.plan import hardware

SHEET = 'title = "A box"\nkind = "gpu"\n\n[memory]\nvalue = "{}"\nstatus = "{}"\nsource = "its manual"\n'


@pytest.mark.parametrize("name", hardware.names())
def test_a_sheet_is_whole(name: str) -> None:
    sheet = hardware.read(name)
    for figure in sheet.figures.values():
        assert figure.status in hardware.STATUSES and figure.source and figure.value > 0
    if sheet.kind == "gpu":
        assert {"memory", "memory_bandwidth", "scale_up", "host_link"} <= sheet.figures.keys()


def test_units_are_kept_apart() -> None:
    assert hardware.read("b300").memory_bytes == 275_040 * 2**20
    assert hardware.read("mi355x").memory_bytes == 288 * 2**30
    assert hardware.read("rubin").memory_bytes == 288 * 10**9
    assert hardware.read("B300").figures["memory"].written == "275040 MiB"
    assert hardware.read("mi355x").figures["memory_bandwidth"].value == 8e12
    assert hardware.read("b300").figures["fp8"].value == 4.5e15


def test_what_nobody_looked_up_says_so() -> None:
    assert hardware.read("h100").figures["memory"].status == "from memory"
    statuses = {f.status for f in hardware.read("rubin").figures.values()}
    assert statuses == {"unofficial"}
    assert not any(f.status == "official" for sheet in hardware.read_all() for f in sheet.figures.values())


def test_a_sheet_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text(SHEET.format("1.5 TiB", "official"))
    sheet = hardware.read(str(path))
    assert (sheet.name, sheet.title, sheet.memory_bytes, sheet.devices_per_node) == ("box", "A box", 3 * 2**39, 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SHEET.format("288", "official"), "write a number and a unit"),
        (SHEET.format("288 G", "official"), "write a number and a unit"),
        (SHEET.format("288 GB", "sure"), "status is 'sure'; it must be one of official"),
        (SHEET.format("288 GB", "official").replace("gpu", "tpu"), "kind is 'tpu'"),
        (SHEET.format("288 GB", "official").replace('source = "its manual"', ""), "memory: source is None"),
        (SHEET.replace("memory", "room").format("288 GB", "official"), r"a gpu needs \[memory\]"),
        ("devices_per_node = 0\n" + SHEET.format("288 GB", "official"), "devices_per_node is 0"),
        ("kind", "is no TOML"),
    ],
)
def test_what_a_sheet_lacks_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "box.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        hardware.read(str(path))


def test_unknown_hardware_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no hardware is called 'b3000'; known are b200, b300, .*here"):
        hardware.read("b3000")


def test_this_machine_has_memory() -> None:
    sheet = hardware.read("here")
    assert sheet.kind == "cpu" and 1 << 28 < sheet.memory_bytes < 1 << 50
