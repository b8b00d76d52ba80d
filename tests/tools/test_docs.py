from pathlib import Path

import pytest

from tools import docs


@pytest.fixture
def known(tmp_path: Path) -> docs.Known:
    (tmp_path / "minnow" / "core").mkdir(parents=True)
    (tmp_path / "minnow" / "core" / "step.py").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").touch()
    return docs.Known(
        root=tmp_path,
        targets=docs.make_targets("test: setup\n\tpytest\nPYTHON := x\n.PHONY: test\n"),
        flags_by_command={"serve": frozenset({"--port", "--attention-config.kv_dtype"}), "chat": frozenset({"--seed"})},
    )


@pytest.mark.parametrize(
    "text",
    [
        "`minnow/core/step.py`, `core/step.py` and `minnow/core/`",
        "`minnow/*/step.py`, `DIR/config.py`, `/etc/other.py`, `org/model`",
        "`make test`, and make sense",
        "`minnow serve MODEL --port 1`",
        "`--port`, `--attention-config.kv_dtype`",
        "```\n.venv/bin/minnow chat x --seed 1\nmake test  # comment\n```",
        "[page](page.md#part), [elsewhere](https://example.org/x.md)",
    ],
)
def test_what_exists_passes(known, text):
    assert docs.problems_in(known.root / "docs" / "page.md", text, known) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("`minnow/core/gone.py`", "minnow/core/gone.py does not exist"),
        ("`core/gone.py`", "core/gone.py does not exist"),
        ("`docs/gone`", "docs/gone does not exist"),
        ("`make tea`", "`make tea` is no target of the Makefile"),
        ("```\nmake tea\n```", "`make tea` is no target of the Makefile"),
        ("`minnow fly`", "`minnow fly` is no command"),
        ("`minnow chat --port 1`", "`minnow chat` takes no --port"),
        ("`--gone`", "no command takes --gone"),
    ],
)
def test_what_does_not_exist_is_named_with_its_line(known, text, problem):
    page = known.root / "docs" / "page.md"
    line = 3 if text.startswith("```") else 2
    assert docs.problems_in(page, "# Title\n" + text, known) == [f"docs/page.md:{line}: {problem}"]


def test_a_broken_link_is_named(known):
    page = known.root / "docs" / "page.md"
    assert docs.problems_in(page, "[x](gone.md)", known) == ["docs/page.md: link to gone.md, which does not exist"]


def test_generated_pages_and_records_are_not_checked(known):
    for folder in ("reference", "decisions", "experiments"):
        (known.root / "docs" / folder).mkdir()
        (known.root / "docs" / folder / "one.md").touch()
    (known.root / "README.md").touch()
    assert list(docs.pages(known.root)) == [known.root / "README.md", known.root / "docs" / "page.md"]
