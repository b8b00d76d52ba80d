"""the commands of the public serving recipe, read out of it where it lies beside the project"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "shared" / "sources" / "S4.txt"
SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_HOST"  # the page has lost its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """One serving command as the page has it: its environment, its words after `vllm serve MODEL`, and the shell."""

    environ: dict[str, str]
    words: list[str]
    text: str


# The order of the page.
NAMES = (
    "b300", "mi355x", "mi355x-dbo-sp", "gb200", "hopper", "mi355x-prefill", "mi355x-decode", "gb-prefill", "gb-decode",
)  # fmt: skip


def read() -> dict[str, Stated]:
    """By name; skips the test where the page is not here."""
    if not PAGE.is_file():
        pytest.skip(f"{PAGE} is not here: the specification lies beside the project on its own machines only")
    text = PAGE.read_text(encoding="utf-8").replace("\\ ", " ")
    found = [_command(block) for block in re.findall(r"```bash (.*?) ```", text) if "vllm serve" in block]
    return dict(zip(NAMES, found, strict=True))


def docker() -> list[str]:
    """The words of the one Docker command."""
    read()
    text = PAGE.read_text(encoding="utf-8").replace("\\ ", " ")
    return _words(next(block for block in re.findall(r"```bash (.*?) ```", text) if block.startswith("docker run")))


def host_offload() -> str:
    """The value of the prefill node's alternative connector."""
    read()
    found = re.search(r"180 GiB per rank: `--kv-transfer-config '(.*?)'`", PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def _words(text: str) -> list[str]:
    # The page's own line breaks have become blanks: between the objects of one list they are no part of the value.
    return [re.sub(r"(?<=[\[,]) (?=\{)", "", word) for word in shlex.split(text)]


def _command(block: str) -> Stated:
    words = _words(block)
    start = words.index("vllm")
    assert words[start : start + 3] == ["vllm", "serve", "MiniMaxAI/MiniMax-M3.1-Flash"]
    environ = dict(word.split("=", 1) for word in words[:start] if word != "export")
    return Stated(environ=environ, words=words[start + 3 :], text=block)
