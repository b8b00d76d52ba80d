"""what is read of files, what is held out, and how windows are cut"""

import gzip
import json
from pathlib import Path

import pytest
import torch

from minnow.core.errors import ConfigError
from minnow.text.tokenizer import Tokenizer
from minnow.tune import text
from minnow.tune.text import Document, Stream
from tests.tiny import write_tiny_tokenizer

_LONG = "A paragraph that is long enough to be told from others, which say other things at about the same length."


def test_html_keeps_what_is_read_and_no_more(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<html><head><title>no</title><style>p {}</style></head><body><div class='sphinxsidebar'><div>menu</div></div>"
        "<h1>Title</h1><p>One   line &amp;\n more.</p><pre>  kept\n    as is</pre><script>no()</script>"
        "<ul><li>first<li>second</ul></body></html>"
    )
    assert text.clean(page) == "Title\n\nOne line & more.\n\n  kept\n    as is\n\nfirst\nsecond"


def test_manual_pages_lose_their_macros(tmp_path: Path) -> None:
    page = tmp_path / "thing.1.gz"
    page.write_bytes(gzip.compress(b'.\\" a comment\n.SH NAME\nthing \\- does \\fBit\\fR\n.PP\nMore.\n'))
    assert text.clean(page) == "NAME\nthing - does it\n\nMore."


def test_files_are_found_and_sources_of_pages_are_not(tmp_path: Path) -> None:
    for name in ("a/one.md", "a/page.html", "a/page.txt", "a/_sources/page.rst", "a/picture.png", "a/b/two.rst"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}: " + "unlike the others. " * 40)
    assert [document.name for document in text.read([tmp_path / "a"])] == ["a/b/two.rst", "a/one.md", "a/page.html"]


def test_long_paragraphs_are_kept_once(tmp_path: Path) -> None:
    paragraphs = [f"{i}: {_LONG}" * 2 for i in range(6)]
    (tmp_path / "a.txt").write_text("\n\n".join(paragraphs))
    (tmp_path / "b.txt").write_text("\n\n".join(["own words " * 60, *paragraphs[:3]]))
    first, second = text.read([tmp_path])
    assert all(paragraph in first.text for paragraph in paragraphs)
    assert "own words" in second.text and not any(paragraph in second.text for paragraph in paragraphs)


def test_one_document_in_twenty_is_held_out_for_good() -> None:
    held_out = [n for n in range(4000) if Document(name=f"docs/{n}.html").is_held_out]
    assert 120 < len(held_out) < 280
    assert held_out[:3] == [12, 14, 16]


def test_streams_keep_documents_apart(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    documents = [Document(name=f"docs/{n}.html", text=chr(97 + n) * 5) for n in range(14)]
    documents.append(Document(name="docs/chat", ids=(256, 257, 258), is_chosen=False))
    trained, held_out = text.streams(documents, Tokenizer.load(tmp_path), 300)
    assert held_out.ids.tolist() == [97 + 12] * 5 + [300]
    assert trained.ids.tolist()[:7] == [97] * 5 + [300, 98]
    # 13 documents of 6 tokens, then the conversation of 4 as often as it takes to be a quarter
    assert trained.ids.tolist()[78:] == [256, 257, 258, 300] * 6


def test_answers_are_read_as_tokens(tmp_path: Path) -> None:
    lines = [{"ids": [1, 2, 3], "is_held_out": True}, {"ids": [4, 5], "is_held_out": False}]
    (tmp_path / "part-0.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    read = text.read([tmp_path / "part-0.jsonl"])
    assert [(document.ids, document.is_held_out) for document in read] == [((1, 2, 3), True), ((4, 5), False)]


def test_windows_come_from_the_generator_or_evenly() -> None:
    stream = Stream(ids=torch.arange(100))
    first = stream.sample(3, 10, torch.Generator().manual_seed(1))
    assert torch.equal(first, stream.sample(3, 10, torch.Generator().manual_seed(1)))
    assert torch.equal(first[:, 1:] - first[:, :-1], torch.ones(3, 9, dtype=torch.int64))
    assert stream.spaced(4, 20)[:, 0].tolist() == [0, 25, 50, 75]
    assert stream.spaced(9, 40)[:, 0].tolist() == [0, 50]


def test_too_little_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fewer than one window of 200"):
        Stream(ids=torch.arange(100)).spaced(1, 200)
    with pytest.raises(ConfigError, match="does not exist"):
        text.read([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="no text in"):
        text.read([tmp_path])


def test_fingerprint_changes_with_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    before = text.fingerprint([tmp_path])
    assert text.fingerprint([tmp_path]) == before
    (tmp_path / "a.txt").write_text("other")
    assert text.fingerprint([tmp_path]) != before
