"""`make eval`: every measure beside its bar, as a table, a record and a page; 1 where a bar is missed

    python -m tools.eval [--model NAME_OR_DIR] [--base DIR] [--parts DIR ...] [--quick] [--only SECTION ...]

--parts are outputs of `minnow tune`; they are put into a copy of the model for the time of the measurement.
"""

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from minnow.bench import record, timing
from minnow.checkpoint import demo, trained
from minnow.text.tokenizer import Tokenizer
from tools import house
from tools.eval import attention, drafts, quality, speed
from tools.eval.finding import Finding, page
from tools.eval.models import Models

RECORD = house.ROOT / "benchmarks" / "eval.jsonl"
PAGE = house.ROOT / "docs" / "reference" / "eval.md"
_TOY = "tests/tune/test_drafter.py::test_acceptance_rises_above_untrained_and_above_the_markov_head_alone"


def sections(models: Models) -> dict[str, Callable[[], Iterator[Finding]]]:
    """What is measured, by name; what is timed comes last."""
    tokenizer = Tokenizer.load(models.model)
    text = quality.held_out(tokenizer)
    num_tokens = min(8192, models.config.max_position_embeddings)
    windows = text.spaced(8, num_tokens)[:: 4 if models.is_quick else 1]
    ids = text.ids.tolist()

    def needles() -> Iterator[Finding]:
        yield quality.needles(models, tokenizer, ids)

    def mass() -> Iterator[Finding]:
        yield quality.mass(models, windows[: 1 if models.is_quick else 4])

    def sameness() -> Iterator[Finding]:
        yield drafts.sameness(models, ids)

    def toy() -> Iterator[Finding]:
        row = Finding(name="toy training rises above untrained and Markov-only, tests passed", bar=1.0)
        yield replace(row, value=float(passes(_TOY)), details=(f"{_TOY}, also a part of `make test`",))

    return {
        "perplexity": lambda: quality.perplexity(models, windows),
        "needles": needles,
        "mass": mass,
        "acceptance": lambda: drafts.acceptance(models),
        "sameness": sameness,
        "toy": toy,
        "speed": lambda: speed.speed(models),
        "attention": lambda: attention.attention(models),
    }


def passes(test: str) -> bool:
    """Whether a test does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return subprocess.run(command, cwd=house.ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0


def measure(models: Models, only: Sequence[str] | None) -> list[Finding]:
    """Measure and print, row by row."""
    found = []
    for name, section in sections(models).items():
        if only is None or name in only:
            started, others_s = time.perf_counter(), timing.others_s()
            for finding in section():
                found.append(finding)
                print("\n".join(finding.lines()), flush=True)
                gc.collect()  # engines that are done with
            taken_s = time.perf_counter() - started
            share = max(0.0, timing.others_s() - others_s) / taken_s / record.machine()["cores"]
            others = f", other work took {share:.0%} of the cores" if share >= 0.05 else ""
            print(f"    [{name}: {taken_s:.0f} s{others}]", flush=True)
    return found


def main() -> int:
    """Measure, print, record; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m tools.eval", description="what the learned parts are worth")
    parser.add_argument("--model", default="smollm2-135m", metavar="NAME_OR_DIR")
    parser.add_argument("--base", metavar="DIR", help="the model before anything was learned; default: the demo's")
    parser.add_argument("--parts", type=Path, nargs="*", default=[], metavar="DIR", help="put into a copy of the model")
    parser.add_argument("--quick", action="store_true", help="smaller samples; under ten minutes on two cores")
    parser.add_argument("--only", nargs="*", metavar="SECTION", help="perplexity needles mass acceptance sameness toy "
                        "speed attention")  # fmt: skip
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON lines; default benchmarks/eval.jsonl, from "
                        "which the page is written, for a model by name")  # fmt: skip
    args = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="minnow-eval-") as place:
        model = demo.untrained(args.model) if args.parts else demo.resolve(args.model)
        base = demo.resolve(args.base) if args.base else demo.untrained(args.model)
        if args.parts:
            trained.combine(model, args.parts, Path(place) / "model")
            model = Path(place) / "model"
        models = Models(model=model, base=base, is_quick=args.quick)
        unknown = {*(args.only or ())} - {*sections(models)}
        if unknown:
            parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
        findings = measure(models, args.only)
    taken_s = time.perf_counter() - started
    is_public = demo.is_known(args.model) and not args.parts
    kept = args.record or (RECORD if is_public else None)
    if kept is not None:
        parts = [str(part) for part in args.parts]
        settings = {"model": args.model, "base": args.base, "parts": parts, "quick": args.quick, "only": args.only}
        record.append(kept, record.new("eval", settings, {"findings": list(map(asdict, findings)), "taken_s": taken_s}))
    if kept == RECORD:
        PAGE.write_text(page(record.read(RECORD)), encoding="utf-8")
    missed = sum(finding.verdict == "missed" for finding in findings)
    bars = sum(finding.bar is not None for finding in findings)
    print(f"{missed} of {bars} bars missed; {taken_s:.0f} s" + (f"; kept in {kept}" if kept else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
