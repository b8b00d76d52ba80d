"""files of documentation -> clean text -> token streams, with some documents held out"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import torch
from torch import Tensor

from minnow.core.errors import ConfigError
from minnow.text.tokenizer import Tokenizer

_PLAIN = {".txt", ".rst", ".md", ".text", ".pod", ".adoc"}
_HTML = {".html", ".htm", ".xhtml"}
_MAN = re.compile(r"\.[1-8](perl|type|const|pm|ssl|posix)?$")
# Sphinx ships the sources of its pages beside the pages: the same text twice
_SKIPPED_DIRECTORIES = {"_sources", "_static", "_images"}
_SKIPPED_CLASSES = {"sphinxsidebar", "related", "footer", "navheader", "navfooter"}
_HELD_OUT_ONE_IN = 20
_LEAST_CHARACTERS = 400
_DUPLICATE_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file's text, or a conversation that is in tokens already.

    Attributes:
        name: the path below the directory that was named, with that directory's name; it decides what is held out.
        ids: of a conversation; None where there is text.
        is_chosen: whether a conversation is held out, where its file says so.
    """

    name: str
    text: str = ""
    ids: tuple[int, ...] | None = None
    is_chosen: bool | None = None

    @property
    def is_held_out(self) -> bool:
        """Whether training must not see it: one document in 20, by a hash of its name."""
        if self.is_chosen is not None:
            return self.is_chosen
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big") % _HELD_OUT_ONE_IN == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Documents one after the other as tokens: i64 [tokens], an end mark behind each."""

    ids: Tensor

    def sample(self, count: int, num_tokens: int, generator: torch.Generator) -> Tensor:
        """Windows from anywhere: i64 [count num_tokens].

        Raises:
            ConfigError: there are not so many tokens.
        """
        self._check(num_tokens)
        starts = torch.randint(len(self.ids) - num_tokens + 1, (count,), generator=generator)
        return torch.stack([self.ids[start : start + num_tokens] for start in starts.tolist()])

    def spaced(self, count: int, num_tokens: int) -> Tensor:
        """The same windows each time, spread evenly: i64 [count num_tokens]; fewer where they would overlap.

        Raises:
            ConfigError: there are not so many tokens.
        """
        self._check(num_tokens)
        count = min(count, len(self.ids) // num_tokens)
        stride = len(self.ids) // count
        return torch.stack([self.ids[i * stride : i * stride + num_tokens] for i in range(count)])

    def _check(self, num_tokens: int) -> None:
        if len(self.ids) < num_tokens:
            raise ConfigError(
                f"a part of the text (to train on, or held out) has {len(self.ids):,} tokens, fewer than one window of "
                f"{num_tokens:,}; add more"
            )


def read(paths: Sequence[Path]) -> list[Document]:
    """Read files and directories; same text and same long paragraphs are kept once, the first time.

    Raises:
        ConfigError: a path does not exist, or there is no text at all.
    """
    seen: set[bytes] = set()
    documents: list[Document] = []
    for name, path in _files(paths):
        if path.suffix == ".jsonl":
            documents += _conversations(name, path)
            continue
        text = _without_seen(clean(path), seen)
        if len(text) >= _LEAST_CHARACTERS:
            documents.append(Document(name=name, text=text))
    if not documents:
        raise ConfigError(
            f"no text in {', '.join(map(str, paths))}; txt, md, rst, pod, html, man and gz files are read"
        )
    return documents


def fingerprint(paths: Sequence[Path]) -> str:
    """Changes when a file comes, goes or changes (by name, bytes and time of change)."""
    marks = [(name, path.stat().st_size, path.stat().st_mtime_ns) for name, path in _files(paths)]
    return hashlib.sha256(repr(marks).encode()).hexdigest()


def streams(documents: Iterable[Document], tokenizer: Tokenizer, end_id: int) -> tuple[Stream, Stream]:
    """(to train on, held out).

    Conversations to train on come again until they are about a quarter of it: they are what a chat model is for, and
    few beside whole manuals.

    Args:
        end_id: the token put behind each document.
    """
    trained: list[int] = []
    held_out: list[int] = []
    spoken: list[int] = []
    for document in documents:
        ids = tokenizer.encode(document.text, parse_special_tokens=False) if document.ids is None else document.ids
        part = held_out if document.is_held_out else trained if document.ids is None else spoken
        part += [*ids, end_id]
    trained += spoken * max(1, len(trained) // (3 * len(spoken))) if spoken else []
    return Stream(ids=torch.tensor(trained)), Stream(ids=torch.tensor(held_out))


def clean(path: Path) -> str:
    """The plain text of one file, by what its name says it is; "" for what is no text."""
    suffix, name = path.suffix.lower(), path.name
    raw = path.read_bytes()
    if suffix == ".gz":
        raw, name = gzip.decompress(raw), path.stem
        suffix = Path(name).suffix.lower()
    text = raw.decode("utf-8", errors="ignore").replace("\r\n", "\n").replace("\0", "")
    if suffix in _HTML:
        reader = _Reader()
        reader.feed(text)
        reader.close()
        text = "".join(reader.parts)
    elif _MAN.search(name):
        text = _man_text(text)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _files(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for root in paths:
        if root.is_file():
            yield root.name, root
        elif root.is_dir():
            for path in sorted(path for path in root.rglob("*") if _is_text(path)):
                inner = path.relative_to(root)
                if not _SKIPPED_DIRECTORIES.intersection(inner.parts):
                    yield f"{root.resolve().name}/{inner}", path
        else:
            raise ConfigError(f"--text {root} does not exist; name files or directories with text")


def _is_text(path: Path) -> bool:
    name = path.name.removesuffix(".gz")
    suffix = Path(name).suffix.lower()
    is_known = suffix in _PLAIN | _HTML | {".jsonl"} or bool(_MAN.search(name))
    # Git ships the source of each page beside it under the same name
    is_source = suffix in _PLAIN and path.with_name(Path(name).stem + ".html").is_file()
    return is_known and not is_source and path.is_file() and not path.is_symlink()


def _conversations(name: str, path: Path) -> Iterator[Document]:
    """Lines with "ids" and "is_held_out", as minnow.tune.answers writes them."""
    for line in path.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        yield Document(name=name, ids=tuple(value["ids"]), is_chosen=value["is_held_out"])


def _without_seen(text: str, seen: set[bytes]) -> str:
    kept = []
    for paragraph in text.split("\n\n"):
        if len(paragraph) >= _DUPLICATE_CHARACTERS:
            key = hashlib.sha256(" ".join(paragraph.split()).encode()).digest()[:12]
            if key in seen:
                continue
            seen.add(key)
        kept.append(paragraph)
    return "\n\n".join(kept)


class _Reader(HTMLParser):
    """Collects the visible text; blanks are folded but for preformatted parts, and what leads elsewhere is left out."""

    _HIDDEN = frozenset({"script", "style", "nav", "head", "svg", "footer"})
    _LINES = frozenset({"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "table", "ul", "ol", "dl", "section"})
    _BREAKS = frozenset({"br", "li", "tr", "dt", "dd"})

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden: list[str] = []  # the hidden element that is open, and those of its kind inside it
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if self._hidden:
            self._hidden += [tag] * (tag == self._hidden[0])
        elif tag in self._HIDDEN or (tag == "div" and not _SKIPPED_CLASSES.isdisjoint(classes)):
            self._hidden.append(tag)
        self._preformatted += tag == "pre"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and tag == self._hidden[0]:
            self._hidden.pop()
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data if self._preformatted else re.sub(r"\s+", " ", data))

    def _break(self, tag: str) -> None:
        if not self._hidden and (tag in self._LINES or tag in self._BREAKS):
            self.parts.append("\n\n" if tag in self._LINES else "\n")


def _man_text(text: str) -> str:
    """A manual page without its macros: good enough to learn from, not to print."""
    lines = []
    for line in text.split("\n"):
        if line.startswith(('.\\"', "'\\\"", ".de", ".ie", ".el", ".if", ".ds", ".nr", ".so")):
            continue
        if line.startswith("."):
            macro, _, rest = line[1:].partition(" ")
            line = {"SH": "\n" + rest, "SS": "\n" + rest, "PP": "", "P": "", "LP": "", "TH": rest}.get(macro, rest)
        lines.append(line.replace('"', "") if line.isupper() else line)
    plain = "\n".join(lines)
    plain = re.sub(r"\\f(\[\w*\]|\(..|.)", "", plain)
    for mark, sign in ((r"\-", "-"), (r"\(aq", "'"), (r"\(dq", '"'), (r"\(bu", "*"), (r"\&", ""), (r"\e", "\\")):
        plain = plain.replace(mark, sign)
    return re.sub(r"\\(\*\S|\(..|\||/|,)", "", plain)
