"""a finding beside its bar, and the tables of findings: for people, and as a page"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

_HEAD = """# What the learned parts are worth

Written by `make eval` from `benchmarks/eval.jsonl`, where it keeps what it measured. Of each machine and model the
latest run is shown, a full one rather than a quick one. Behind a plus and minus stands the standard error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table.

    Attributes:
        value: in `unit`; None where there is none, for the `reason`.
        bar: what it must be at least, or at most; None where it is only reported.
        stretch: a bar that would be better still.
        noise: standard error of the value; None where it is not known.
        is_within_noise: twice the noise is allowed for.
        absence: what a missing value means.
        details: what else there is to say, a line each.
    """

    name: str
    value: float | None = None
    unit: str = ""
    bar: float | None = None
    stretch: float | None = None
    is_least: bool = True
    noise: float | None = None
    is_within_noise: bool = False
    reason: str = ""
    absence: Literal["missed", "not measurable", "not measured"] = "missed"
    details: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.value is None:
            return "not measured" if self.bar is None else self.absence
        if self.bar is None:
            return "reported"
        if self.stretch is not None and self._reaches(self.stretch):
            return "met, stretch too"
        allowed = 2 * (self.noise or 0.0) if self.is_within_noise else 0.0
        return "met" if self._reaches(self.bar - allowed if self.is_least else self.bar + allowed) else "missed"

    @property
    def shown_value(self) -> str:
        """The value with its noise and unit, or why there is none."""
        if self.value is None:
            return self.reason
        noise = "" if self.noise is None else f" +- {self.noise:.2g}"
        return f"{self.value:.4g}{noise} {self.unit}".rstrip()

    @property
    def shown_bar(self) -> str:
        """The bar in words, or nothing."""
        if self.bar is None:
            return ""
        sign, stretch = ">=" if self.is_least else "<=", "" if self.stretch is None else f", stretch {self.stretch:g}"
        return f"{sign} {self.bar:g} {self.unit}".rstrip() + stretch + (" within noise" if self.is_within_noise else "")

    def lines(self) -> list[str]:
        """For people: the row, then its details."""
        row = f"{self.name:61} {self.shown_value:30} {self.shown_bar:22} {self.verdict}"
        return [row.rstrip(), *(f"    {detail}" for detail in self.details)]

    def _reaches(self, bar: float) -> bool:
        assert self.value is not None
        return self.value >= bar if self.is_least else self.value <= bar


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """The page in Markdown: of each machine and model the latest run, whole and full ones before others."""
    shown: dict[str, Mapping[str, Any]] = {}
    for found in records:
        if found["what"] == "eval":
            name = f"{found['settings']['model']} on {found['machine']['processor']}, {found['machine']['cores']} cores"
            if _worth(found) >= _worth(shown.get(name, found)):
                shown[name] = found
    return "\n".join([_HEAD, *(part for name, found in shown.items() for part in _parts(name, found))])


def _worth(found: Mapping[str, Any]) -> tuple[bool, bool]:
    return found["settings"]["only"] is None, not found["settings"]["quick"]


def _parts(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    settings = found["settings"]
    findings = [Finding(**{**row, "details": tuple(row["details"])}) for row in found["results"]["findings"]]
    kind = "a quick run" if settings["quick"] else "a full run"
    part = f", only {', '.join(settings['only'])}" if settings["only"] else ""
    origin = f"Minnow {found['version']} ({found['commit']}), {found['time']}, {kind}{part}"
    yield f"## {name}\n\n{origin}, {found['results']['taken_s'] / 60:.0f} min.\n"
    lines = ["| measure | value | bar | |", "| --- | --- | --- | --- |"]
    for one in findings:
        verdict = "**missed**" if one.verdict == "missed" else one.verdict
        lines.append(f"| {one.name} | {one.shown_value} | {one.shown_bar} | {verdict} |")
    yield "\n".join(lines) + "\n"
    details = [f"- {one.name}\n" + "\n".join(f"  - {d}" for d in one.details) for one in findings if one.details]
    yield "### Details\n\n" + "\n".join(details) + "\n" if details else ""
