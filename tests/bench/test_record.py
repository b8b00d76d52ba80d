import json
from pathlib import Path

import pytest

import minnow
from minnow.bench import record
from minnow.core.errors import ConfigError


def test_records_are_lines_that_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    assert record.read(path) == []
    first, second = record.new("step", {"threads": 2}, {"step_s": 0.004}), record.new("serve", {}, {"failed": 0})
    record.append(path, first)
    record.append(path, second)
    assert len(path.read_text().splitlines()) == 2
    assert record.read(path) == [first, second]


def test_a_record_says_what_ran_where() -> None:
    made = record.new("step", {"threads": 2}, {"step_s": 0.004})
    assert (made["what"], made["settings"], made["results"]) == ("step", {"threads": 2}, {"step_s": 0.004})
    assert made["version"] == minnow.__version__ and made["time"].endswith("+00:00")
    assert made["machine"]["processor"] and made["machine"]["cores"] >= 1
    json.dumps(made)


def test_the_commit_is_that_of_this_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    assert record.commit() is None


@pytest.mark.parametrize("line", ["{", "[1]", "3"])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"what":"step"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=r"results\.jsonl:2 is no record"):
        record.read(path)
