import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from minnow.bench import kernel, record
from minnow.bench.limits import Limits
from minnow.config import flags
from minnow.core import folder
from minnow.core.errors import ConfigError
from minnow.kernels import registry

LIMITS = Limits(
    num_threads=1, instruction_set="x", operations_s={"f32": 1e10}, _bytes_s={1 << n: 1e10 for n in range(20, 31)}
)


def _args(*words: object) -> argparse.Namespace:
    parser = flags.new_parser("minnow bench kernel", kernel.HELP)
    kernel.add_arguments(parser)
    return flags.parse(parser, [str(word) for word in words])


def _run(monkeypatch: pytest.MonkeyPatch, *words: object) -> list[str]:
    monkeypatch.setattr(kernel, "measure_limits", lambda: LIMITS)
    said: list[str] = []
    assert kernel.run(_args("--num-threads", 1, *words), said.append) == 0
    return said


def _cost(name: str, **case: Any) -> tuple[float, float]:
    inputs = folder.load(f"minnow.kernels.{name}", "inputs").make(torch.device("cpu"), **case)
    return kernel.cost_of(registry.operations()[name], case, inputs)


def _computing(name: str) -> list[dict[str, object]]:
    """The tests' cases of an operation, without those of no rows."""
    return [dict(case) for case in registry.operations()[name].cases if case["T"]]


def test_costs_count_what_the_inputs_hold() -> None:
    # 4 x 64 times 64 x 21 in NVFP4 (9 bytes for 16 values), BF16 rows in and out
    assert _cost("linear", T=4, D=64, rows=(16, 5), format="nvfp4") == (
        2 * 4 * 64 * 21,
        64 * 21 * 9 // 16 + 4 * (64 + 21) * 2,
    )
    # one query a sequence over 50 and 17 tokens: each reads its own keys and values, FP8
    assert _cost("dense_attention", N=4, G=2, H=32, L=16, contexts=(50, 17), queries=(1, 1), format="fp8") == (
        4 * 4 * 32 * 67,
        2 * 2 * 67 * 32,
    )
    # a sequence without queries costs nothing
    once = _cost("dense_attention", N=4, G=2, H=32, L=16, contexts=(50,), queries=(3,), format="bf16")
    assert _cost("dense_attention", N=4, G=2, H=32, L=16, contexts=(50, 17), queries=(3, 0), format="bf16") == once
    # three blocks of 16 tokens, however long the context
    assert _cost("sparse_attention", N=4, G=2, H=32, L=16, K=3, contexts=(90,), queries=(1,), format="bf16") == (
        4 * 4 * 32 * 48,
        2 * 2 * 48 * 32 * 2,
    )


def test_experts_are_counted_once_each() -> None:
    case = {"T": 7, "D": 64, "F": 32, "E": 2, "A": 2, "format": "nvfp4", "act": "silu"}
    operations, num_bytes = _cost("experts", **case)
    assert operations == 6 * 7 * 2 * 64 * 32
    assert num_bytes == 2 * (3 * 64 * 32 * 9 // 16) + 2 * 7 * 64 * 2  # both experts, not fourteen


@pytest.mark.parametrize("name", [*registry.operations()])
def test_every_case_of_every_contract_has_a_cost(name: str) -> None:
    for case in registry.operations()[name].cases:
        operations, num_bytes = _cost(name, **case)
        assert operations >= 0 and num_bytes >= 0


def test_arguments_take_the_place_of_the_cases_own() -> None:
    def cases(*words: object) -> list[dict[str, object]]:
        kernels = registry.bind(registry.target_of(torch.device("cpu")))
        return [dict(case) for _, _, case in kernel._cases(_args(*words), kernels)]

    assert cases("--ops", "norm", "--shapes", "small") == _computing("norm")
    changed = cases("--ops", "linear", "--formats", "nvfp4,mxfp8", "--rows", "1,8")
    assert [(case["format"], case["T"]) for case in changed] == [
        ("nvfp4", 1), ("nvfp4", 8), ("mxfp8", 1), ("mxfp8", 8),
    ]  # fmt: skip
    scans = cases("--ops", "index_score", "--formats", "mxfp8,fp8", "--contexts", "256,512", "--rows", "2")
    assert [(case["format"], case["contexts"], case["queries"]) for case in scans] == [
        ("fp8", (256,), (2,)), ("fp8", (512,), (2,)),
    ]  # fmt: skip
    small = cases("--ops", "dense_attention", "--shapes", "small", "--rows", "60")  # of those with one sequence
    assert [(case["contexts"], case["queries"]) for case in small] == [((n,), (60,)) for n in (600, 70, 90)]
    assert [case["B"] for case in cases("--ops", "kv_write", "--rows", "8,8192,9000")] == [64, 64, 71]


def test_a_line_a_case_with_its_share_of_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ("--ops", "norm,kv_write", "--shapes", "small", "--backends", "reference", "--record", tmp_path / "r.jsonl")
    monkeypatch.setattr(kernel, "measure", lambda call, **_: folder.load("minnow.bench", "timing").spread([1e-6]))
    said = _run(monkeypatch, *words)
    lines = [line.split() for line in said if "reference" in line]
    assert len(lines) == len(_computing("norm")) + len(_computing("kv_write"))
    assert not any("T=0" in line for line in said)
    # 2 x 4 x 576 + 576 values of BF16 in a microsecond, of 10 GB/s
    num_bytes = (2 * 4 * 576 + 576) * 2
    line = next(line for line in lines if "D=576" in line)
    assert line[:4] == ["norm", "reference", "0.001", "ms"] and line[5] == f"{num_bytes / 1e3:.2f}"
    assert line[7:9] == [f"{num_bytes / 1e4:.0%}", "bytes"]
    kept = record.read(tmp_path / "r.jsonl")
    assert len(kept) == len(lines) and kept[0]["settings"]["backend"] == "reference"
    assert kept[0]["results"]["bound"] == "bytes"


def test_by_default_the_backend_that_the_engine_takes_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = registry.bind(registry.target_of(torch.device("cpu")))
    chosen = {choice.op: choice.backend for choice in kernels.choices}
    said = _run(monkeypatch, "--ops", "route", "--shapes", "small")
    lines = [line.split()[:2] for line in said if line.startswith("route")]
    assert lines == [["route", chosen["route"]]] * len(_computing("route"))


def test_a_width_that_a_format_cannot_hold_is_skipped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = registry.operations()["embed"].cases
    monkeypatch.setitem(cases[0], "D", 33)  # type: ignore[arg-type]
    said = _run(monkeypatch, "--ops", "embed", "--shapes", "small", "--formats", "mxfp8", "--backends", "reference")
    is_skipped = ["skipped: mxfp8 covers 32 values" in line for line in said if line.startswith("embed")]
    assert is_skipped == [int(str(case["D"])) % 32 != 0 for case in _computing("embed")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ops", "norm,nrom"), "--ops: there is no 'nrom'; there are block_topk"),
        (("--formats", "int3"), "--formats: there is no 'int3'; there are f32"),
        (("--backends", "cpu,nosuch"), "--backends: there is no 'nosuch'; there are cpu, "),
        (("--rows", "1,many"), "--rows is '1,many'; write whole numbers above 0: 1,8,512"),
        (("--rows", "-5"), "--rows is '-5'; write whole numbers above 0"),
        (("--contexts", "0"), "--contexts is '0'; write whole numbers above 0"),
        (("--num-threads", "-3"), "flag --num-threads: num_threads is -3; it must be "),
        (
            ("--ops", "sparse_attention", "--contexts", "10", "--rows", "300"),
            "--contexts 10 is less than the 300 rows of sparse_attention, which are its last tokens; give longer ones",
        ),
        (
            ("--ops", "dense_attention", "--contexts", "10"),
            "--contexts 10 is less than the 512 rows of dense_attention",
        ),
        (
            ("--ops", "linear,dense_attention", "--formats", "int4"),
            "there is no case with --formats int4 of dense_attention: caches are bf16, fp8, nvfp4",
        ),
        (
            ("--ops", "norm", "--backends", "composed"),
            "there is no case with --backends composed of norm: minnow kernels says which there are, and which",
        ),
        (
            ("--ops", "dense_attention", "--rows", "9000"),
            "there is no case with --rows 9000 of dense_attention: rows go with cases that have a T, or",
        ),
    ],
)
def test_a_wrong_word_is_one_sentence_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setattr(kernel.processors, "settle", None)
    with pytest.raises(ConfigError, match=sentence):
        kernel.run(_args(*words), print)
