"""names, shapes, scale ranges, digests: a report before serving"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from minnow.arch import names
from minnow.arch.names import TensorSpec
from minnow.arch.storage import ITEM_BYTES
from minnow.checkpoint import disk
from minnow.checkpoint.reader import Entry, Reader
from minnow.config.model import ModelConfig
from minnow.core.errors import CheckpointError

DIGESTS_NAME = "digests.json"
_MAX_LISTED = 16
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_CHUNK_VALUES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a checkpoint holds and what is wrong with it; problems name their tensor or file.

    Attributes:
        num_tensors, num_bytes: expected and present ones.
        num_ignored: present tensors that nothing here reads (multi-token prediction).
        missing, extra: tensor names.
        misshapen, mistyped, bad_scales, bad_files: one clause each, with the value seen and the one that is right.
        checked_scales, checked_files: whether scales and digests were looked at.
    """

    num_tensors: int
    num_bytes: int
    num_ignored: int = 0
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    mistyped: tuple[str, ...] = ()
    bad_scales: tuple[str, ...] = ()
    bad_files: tuple[str, ...] = ()
    checked_scales: bool = False
    checked_files: bool = False

    @property
    def num_problems(self) -> int:
        """How many tensors and files are wrong."""
        return sum(len(found) for _, found in self._kinds())

    def problems(self, max_listed: int = _MAX_LISTED) -> tuple[str, ...]:
        """One line for each kind of problem: an exact count and the first ones by name."""
        return tuple(f"{len(found):,} {words}: {listed(found, max_listed)}" for words, found in self._kinds() if found)

    def _kinds(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (
            ("missing", self.missing),
            ("extra", self.extra),
            ("misshapen", self.misshapen),
            ("of the wrong dtype", self.mistyped),
            ("with broken scales", self.bad_scales),
            ("damaged files", self.bad_files),
        )


def listed(found: Sequence[str], max_listed: int = _MAX_LISTED) -> str:
    """Name all of them: names that differ in layer and expert numbers only become one, with ranges.

    "layers.3.w1.weight", "layers.4.w1.weight" -> "layers.{3-4}.w1.weight". Of more than max_listed such groups
    the first ones are named and the rest counted.
    """
    groups = _grouped(found)
    more = len(groups) - max_listed
    return ", ".join(groups[:max_listed]) + (f" and {more:,} more like these" if more > 0 else "")


def _grouped(found: Iterable[str]) -> list[str]:
    numbers_by_form: dict[str, set[tuple[int, ...]]] = {}
    for text in found:
        form = _NUMBER.sub("*", text)
        numbers_by_form.setdefault(form, set()).add(tuple(int(n) for n in _NUMBER.findall(text)))
    return [line for form, numbers in numbers_by_form.items() for line in _ranges(form, numbers)]


def _ranges(form: str, numbers: set[tuple[int, ...]]) -> list[str]:
    """The names form * numbers as few lines: one where the numbers are all combinations, else one a first number."""
    columns = [sorted(set(column)) for column in zip(*numbers, strict=True)]
    if math.prod(len(column) for column in columns) == len(numbers):
        for column in columns:
            form = form.replace("*", _range(column), 1)
        return [form]
    lines = []
    for first in columns[0]:
        rest = {row[1:] for row in numbers if row[0] == first}
        lines += _ranges(form.replace("*", str(first), 1), rest)
    return lines


def _range(column: list[int]) -> str:
    if len(column) == 1:
        return str(column[0])
    is_run = column[-1] - column[0] == len(column) - 1
    return "{" + (f"{column[0]}-{column[-1]}" if is_run else ",".join(map(str, column))) + "}"


def verify(source: Path | Reader, config: ModelConfig, *, scales: bool = False, digests: bool = False) -> Report:
    """Compare a checkpoint with what its configuration asks for. Reads headers only, unless asked for more.

    Args:
        source: a directory or an opened one.
        scales: also read every scale and look for NaN, infinity and global scales that are not positive.
        digests: also read every file that `digests.json` lists and compare SHA-256.

    Raises:
        CheckpointError: the files cannot be read at all.
        FormatError: the configuration quantises a width that its format cannot hold.
    """
    reader = source if isinstance(source, Reader) else Reader(source)
    return compare(reader, names.expected(config), scales=scales, digests=digests)


def compare(reader: Reader, wanted: Mapping[str, TensorSpec], *, scales: bool = False, digests: bool = False) -> Report:
    """As `verify`, for the tensors of a table; see arch/names.py and arch/drafter.py."""
    present = {name: reader.entry(name) for name in reader.names}
    missing = tuple(name for name in wanted if name not in present)
    unknown = [name for name in present if name not in wanted]
    ignored = sum(names.is_ignored(name) for name in unknown)
    both = [(spec, present[name]) for name, spec in wanted.items() if name in present]
    misshapen = tuple(_misshapen(spec, entry) for spec, entry in both if not _fits(spec.shape, entry.shape))
    mistyped = tuple(_mistyped(spec, entry) for spec, entry in both if entry.dtype not in (spec.dtype, *spec.also))
    sound = [s for s, e in both if _fits(s.shape, e.shape) and e.dtype in (s.dtype, *s.also)]
    return Report(
        num_tensors=len(both),
        num_bytes=sum(entry.stop - entry.start for _, entry in both),
        num_ignored=ignored,
        missing=missing,
        extra=tuple(name for name in unknown if not names.is_ignored(name)),
        misshapen=misshapen,
        mistyped=mistyped,
        bad_scales=tuple(_check_scales(reader, sound)) if scales else (),
        bad_files=tuple(_check_files(reader.directory)) if digests else (),
        checked_scales=scales,
        checked_files=digests and (reader.directory / DIGESTS_NAME).is_file(),
    )


def check(source: Path | Reader, config: ModelConfig, *, scales: bool = False, digests: bool = False) -> Report:
    """As `verify`, but anything wrong is one error.

    Raises:
        CheckpointError: every kind of problem with its exact count and the first names.
        FormatError: the configuration quantises a width that its format cannot hold.
    """
    report = verify(source, config, scales=scales, digests=digests)
    refuse(report, source.directory if isinstance(source, Reader) else source)
    return report


def refuse(report: Report, directory: Path) -> None:
    """Raise a CheckpointError where a report has problems."""
    if report.num_problems:
        raise CheckpointError(f"{directory} does not fit its config.json: {'; '.join(report.problems())}")


def num_scale_bytes(config: ModelConfig) -> int:
    """Bytes of all scale tensors that `verify(..., scales=True)` reads."""
    specs = names.expected(config).values()
    return sum(math.prod(s.shape) * ITEM_BYTES[s.dtype] for s in specs if s.part not in ("weight", "codes"))


def write_digests(directory: Path) -> None:
    """Write `digests.json`: the SHA-256 of every other file of a finished checkpoint, by path inside it."""
    file_by_name = {f.relative_to(directory).as_posix(): f for f in directory.rglob("*") if f.is_file()}
    file_by_name.pop(DIGESTS_NAME, None)
    text = json.dumps({name: disk.digest(file) for name, file in sorted(file_by_name.items())}, indent=2)
    (directory / DIGESTS_NAME).write_text(text + "\n", encoding="utf-8")


def _fits(wanted: tuple[int, ...], seen: tuple[int, ...]) -> bool:
    """Equal, or one number with or without a dim."""
    return wanted == seen or {wanted, seen} == {(), (1,)}


def _misshapen(spec: TensorSpec, entry: Entry) -> str:
    return f"{spec.name} is {list(entry.shape)} where {list(spec.shape)} is right"


def _mistyped(spec: TensorSpec, entry: Entry) -> str:
    return f"{spec.name} is {entry.dtype} where {' or '.join((spec.dtype, *spec.also))} is right"


def _check_scales(reader: Reader, specs: Iterable[TensorSpec]) -> Iterable[str]:
    for spec in specs:
        if spec.part in ("weight", "codes"):
            continue
        flat = reader.read(spec.name).reshape(-1)
        for start in range(0, flat.numel(), _CHUNK_VALUES):
            bad = _is_bad(flat[start : start + _CHUNK_VALUES], spec)
            if bad.any():
                index = start + int(bad.int().argmax())
                shape = reader.entry(spec.name).shape or (1,)
                place = [int(i) for i in torch.unravel_index(torch.tensor(index), shape)]
                yield f"{spec.name} at {place} is {_show(flat[index])}"
                break


def _is_bad(values: Tensor, spec: TensorSpec) -> Tensor:
    if spec.dtype == "U8":  # E8M0
        return values == 255
    if spec.dtype == "F8_E4M3":  # a NaN has all seven bits below the sign set; there is no infinity
        return values.view(torch.uint8) & 0x7F == 0x7F
    unfit = ~torch.isfinite(values)
    return unfit | (values <= 0) if spec.part in ("global_scale", "input_scale") else unfit


def _show(value: Tensor) -> str:
    return f"byte 0x{int(value.view(torch.uint8)):02x} (NaN)" if value.element_size() == 1 else f"{value.item()}"


def _check_files(directory: Path) -> Iterable[str]:
    path = directory / DIGESTS_NAME
    if not path.is_file():
        return
    try:
        digest_by_name = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        digest_by_name = None
    if not isinstance(digest_by_name, dict):
        raise CheckpointError(f"{path} is no JSON object of file names and SHA-256 digests")
    for name, digest in digest_by_name.items():
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise CheckpointError(f"{path} names {name!r}, which lies outside the directory; take that line out")
        file = directory / name
        if not file.is_file():
            yield f"{name} is missing"
        elif (seen := disk.digest(file)) != digest:
            yield f"{name} has SHA-256 {seen}, {digest} is right"
