from pathlib import Path

import pytest

from tools import house

BUDGET = "[tool.minnow.budget]\ncore = 100\n"


def problems(root: Path, **text_by_name: str) -> list[str]:
    """Problems of a repository with a sound package and the given files of minnow/core."""
    core = root / "minnow" / "core"
    core.mkdir(parents=True, exist_ok=True)
    (root / "pyproject.toml").write_text(BUDGET)
    (core / "__init__.py").write_text('"""words"""\n')
    (core / "sound.py").write_text('"""fine"""\n\n\ndef shown() -> None:\n    """Nothing."""\n')
    for name, text in text_by_name.items():
        (core / f"{name}.py").write_text(text, encoding="utf-8")
    return house.problems(root)


def test_a_sound_repository_has_no_problems(tmp_path):
    assert problems(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1\n", "its docstring or first comment says nothing"),
        ('"""Upper case"""\n', "its first line starts in lower case"),
        ('"""with a stop."""\n', "its first line ends without a full stop"),
        ('"""fine"""\nx = "\u00e9"\n', "one.py:2: not ASCII"),
        ('"""fine"""\n\n\ndef shown():\n    pass\n', "shown has no docstring"),
        (
            '"""fine"""\n\n\nclass Shown:\n    """A."""\n\n    def inner(self):\n        pass\n',
            "Shown.inner has no docstring",
        ),
        ('"""fine"""\n\n\ndef _long():\n' + "    x = 1\n" * 80, "_long has 81 lines, at most 80"),
        ('"""fine"""\n' + "x = 1\n" * 600, "601 lines, at most 600"),
        ('"""fine"""\n' + "x = 1\n" * 100, "minnow/core: 107 lines, its budget in pyproject.toml is 100"),
    ],
)
def test_what_breaks_a_rule_is_named(tmp_path, text, problem):
    assert [p for p in problems(tmp_path, one=text) if problem in p]


@pytest.mark.parametrize("text", ['"""Request: what"""\n', '"""Request -> output"""\n', '"""MSA: a thing"""\n'])
def test_a_first_line_may_start_with_a_name(tmp_path, text):
    assert problems(tmp_path, one=text) == []


@pytest.mark.parametrize("name", ["utils", "cache_utils", "data", "new_cache", "cache_v2", "tmp", "io_helpers"])
def test_names_that_say_nothing_are_refused(tmp_path, name):
    assert problems(tmp_path, **{name: '"""fine"""\n'}) == [
        f"minnow/core/{name}.py: the name says nothing; name what it is about"
    ]


def test_a_docstring_does_not_count_as_lines_of_its_function(tmp_path):
    text = '"""fine"""\n\n\ndef shown():\n    """' + "A.\n" * 60 + '    """\n' + "    x = 1\n" * 20
    assert problems(tmp_path, one=text) == []


def test_an_empty_package_is_refused(tmp_path):
    (tmp_path / "minnow" / "core" / "empty").mkdir(parents=True)
    (tmp_path / "minnow" / "core" / "empty" / "__init__.py").write_text('"""nothing"""\n')
    assert problems(tmp_path) == ["minnow/core/empty: a package with nothing in it"]


def test_a_package_without_a_budget_is_refused(tmp_path):
    (tmp_path / "minnow" / "extra").mkdir(parents=True)
    (tmp_path / "minnow" / "extra" / "one.py").write_text('"""fine"""\n')
    assert problems(tmp_path) == ["minnow/extra: no line budget in pyproject.toml"]


def test_an_operation_may_not_import_the_model(tmp_path):
    folder = tmp_path / "minnow" / "kernels" / "norm"
    folder.mkdir(parents=True)
    (folder / "cpu.py").write_text(
        '"""fine"""\n\nfrom minnow.formats import spec\nfrom minnow.kernels import native, registry\n'
        "from minnow.kernels.norm import reference\nfrom minnow.model import layers\n"
    )
    found = [p for p in problems(tmp_path) if "budget" not in p]
    assert found == [
        "minnow/kernels/norm/cpu.py:4: an operation does not import minnow.kernels.registry; it gets it as an argument",
        "minnow/kernels/norm/cpu.py:6: an operation does not import minnow.model.layers; it gets it as an argument",
    ]


def test_tests_may_hold_text_in_any_script(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_text.py").write_text('TEXT = "\u00e9"\n', encoding="utf-8")
    assert problems(tmp_path) == []


def test_what_is_built_is_not_looked_at(tmp_path):
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "utils.py").write_text("\u00e9", encoding="utf-8")
    assert problems(tmp_path) == []
