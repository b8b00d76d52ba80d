"""streamed conversion between formats, bounded memory"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from minnow.arch import names
from minnow.arch.storage import STORAGE_BY_NAME, storage_of
from minnow.checkpoint import disk, verify
from minnow.checkpoint.gguf_source import GgufSource
from minnow.checkpoint.parts import split
from minnow.checkpoint.source import LlamaSource, M3Source, Source, read_json, read_rows
from minnow.checkpoint.trained import pattern_of
from minnow.checkpoint.writer import Writer
from minnow.config.model import ARCHITECTURE, ModelConfig, parse
from minnow.core.errors import CheckpointError, ConfigError
from minnow.formats import nvfp4
from minnow.formats.quantized import Quantized, Weight, decode, encode

Format = Literal["bf16", "int8", "int4", "mxfp8", "nvfp4"]
Progress = Callable[[int, int, str], None]  # values done, values in all, the weight at hand

_CHUNK_VALUES = 2**20  # converted at once: 4 MiB of f32
_LINEAR_KINDS = ("attention", "dense ffn", "shared expert", "routed expert")
_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_NVFP4_EXPERTS = {"moe_quant_algo": "NVFP4", "moe_quant_format": "nvfp4-pack-quantized", "group_size": 16}
_UNQUANTISED = (
    "language_model.model.embed_tokens", "language_model.lm_head", "block_sparse_moe.gate",
    "vision_tower", "multi_modal_projector", "patch_merge_mlp",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What was written: number of tensors, and bytes of their data."""

    directory: Path
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The config.json to write, and the format of every weight (a storage, or a float type)."""

    raw_config: dict[str, Any]
    config: ModelConfig
    format_by_module: dict[str, str]


def convert(
    source_path: Path,
    target: Path,
    *,
    format: Format | None = None,
    kv_cache: Literal["bfloat16", "fp8", "nvfp4"] | None = None,
    overwrite: bool = False,
    companions: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Write a checkpoint anew in the M3 layout, a weight at a time.

    The target appears when it is complete; until then it is a hidden directory beside it, and a run that is broken
    off leaves nothing that could be taken for a model.

    Args:
        source_path: a GGUF file, or a directory with a Llama-family or an M3 checkpoint in safetensors.
        target: a directory that does not exist or is empty, or any model directory with overwrite.
        format: of the linears. None keeps what the source has where it can be kept exactly, and BF16 otherwise.
            An M3 checkpoint becomes mxfp8 throughout, or nvfp4 in its routed experts and mxfp8 in the other linears.
        kv_cache: what keys and values are good for, said to the engine; None says what the source says.
        overwrite: replace a model directory.
        companions: more text files to write, by name.
        progress: called before each weight, and at the end.

    Raises:
        CheckpointError: the source is damaged, or of a kind that cannot be converted.
        ConfigError: the target is taken or being written by another process, it and the source lie one in the other,
            or the source has no such form.
        FormatError: a weight's width does not fill the format's blocks, or a value is beyond it.
        OSError: the target's disk is full, or refuses; names the file.
    """
    target = target.resolve()
    source = open_source(source_path)
    check_target(target, source_path, overwrite)
    plan = _plan(source, format, kv_cache)
    partial = disk.partial_of(target)
    with disk.alone(disk.lock_of(target), busy=f"{target} is being written by another process; wait until it is done"):
        check_target(target, source_path, overwrite)  # again: another process may have finished meanwhile
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            _write_weights(source, plan, partial, progress or (lambda done, total, module: None))
            texts = {"config.json": json.dumps(plan.raw_config, indent=2) + "\n", **(companions or {})}
            source.write_companions(partial)
            for name, text in texts.items():
                (partial / name).write_text(text, encoding="utf-8")
            report = verify.check(partial, plan.config)
            verify.write_digests(partial)
            disk.put_in_place(partial, target)
        except OSError as error:  # a full disk names no file
            raise OSError(error.errno, error.strerror or str(error), error.filename or str(target)) from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Conversion(directory=target, num_tensors=report.num_tensors, num_bytes=report.num_bytes)


def open_source(path: Path) -> Source:
    """Find out what a path holds.

    Raises:
        ConfigError: it holds nothing that can be converted.
        CheckpointError: it does, but is damaged or of another kind of model.
    """
    if path.is_file():
        return GgufSource(path)
    if not path.is_dir():
        raise ConfigError(f"{path} does not exist; name a GGUF file or a directory with safetensors")
    if not (path / "config.json").is_file():
        found = ", ".join(sorted(file.name for file in path.glob("*.gguf")))
        hint = f"name one of its GGUF files ({found})" if found else "name a GGUF file or a checkpoint's directory"
        raise ConfigError(f"{path} holds no config.json; {hint}")
    architectures = read_json(path / "config.json").get("architectures") or []
    return M3Source(path) if ARCHITECTURE in architectures else LlamaSource(path)


def check_target(target: Path, source: Path, overwrite: bool) -> None:
    """Refuse a target, resolved, that is no place for a model, or that holds what is read.

    Raises:
        ConfigError: says which.
    """
    inside = list(source.iterdir()) if source.is_dir() else []
    read = [path.resolve() for path in (source, *inside)]  # the files of a directory may be links to elsewhere
    for written in (target, disk.partial_of(target), disk.old_of(target), disk.lock_of(target)):
        if any(path.is_relative_to(written) for path in read):
            raise ConfigError(f"{target} is, or would replace, the source {source}; choose another target")
    if source.is_dir() and target.is_relative_to(read[0]):
        raise ConfigError(f"{target} lies inside the source {source}; choose a target outside it")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / "config.json").is_file():
        raise ConfigError(f"{target} exists and is no model directory; choose another target")
    if not overwrite:
        raise ConfigError(f"{target} holds a model already; choose another target, or replace it with --overwrite")


def _plan(source: Source, form: Format | None, kv_cache: str | None) -> _Plan:
    own = dict(source.raw_config.get("quantization_config") or {})
    if isinstance(source, M3Source) and own.get("quant_method") != "minnow":
        if kv_cache is not None:
            raise ConfigError(
                f"the config.json of a published M3 format has no field for --kv-cache-dtype {kv_cache}; leave it out "
                "here and give it to minnow serve"
            )
        plan = _published_plan(source, form)
    else:
        plan = _named_plan(source, form, kv_cache or own.get("kv_cache"))
    names.expected(plan.config)  # every width fits its format, or none is written
    return plan


def _published_plan(source: Source, form: Format | None) -> _Plan:
    if form is None:
        raise ConfigError("--format is needed: mxfp8 or nvfp4")
    if form not in ("mxfp8", "nvfp4"):
        raise ConfigError(f"an M3 checkpoint converts to mxfp8 or nvfp4, not {form}; choose one with --format")
    own = parse(source.raw_config).quantization
    quantization = dict(source.raw_config.get("quantization_config") or {})
    if own.scheme not in ("mxfp8", "mxfp8-nvfp4"):
        ignored = list(own.ignored or _UNQUANTISED)
        quantization = {"activation_scheme": "dynamic", "weight_block_size": [1, 32], "ignored_layers": ignored}
    quantization = {key: value for key, value in quantization.items() if key not in _NVFP4_EXPERTS}
    quantization |= {"quant_method": "mxfp8"} | (_NVFP4_EXPERTS if form == "nvfp4" else {})
    raw = {**source.raw_config, "quantization_config": quantization}
    config = parse(raw)
    format_by_module = {}
    for name, module in _checked_modules(source, config).items():
        storage = storage_of(name, module.checkpoint_name, module.kind, config.quantization)
        format_by_module[name] = source.held[name].format if storage == "plain" else storage
    return _Plan(raw_config=raw, config=config, format_by_module=format_by_module)


def _named_plan(source: Source, form: Format | None, kv_cache: str | None) -> _Plan:
    modules = _checked_modules(source, parse({**source.raw_config, "quantization_config": None}))
    format_by_module = {}
    for name, module in modules.items():
        kept = source.held[name].format
        kept = kept if kept in _FLOATS or kept in STORAGE_BY_NAME else "bf16"
        if kept == "f16" and len(module.shape) == 1:
            kept = "f32"  # norm weights come as BF16 or F32; F32 holds every F16
        format_by_module[name] = form if form is not None and module.kind in _LINEAR_KINDS else kept
    formats = _patterns({name: f for name, f in format_by_module.items() if f not in _FLOATS}, set(modules))
    quantization = {"quant_method": "minnow", "formats": formats} | ({"kv_cache": kv_cache} if kv_cache else {})
    raw = {**source.raw_config, "quantization_config": quantization}
    return _Plan(raw_config=raw, config=parse(raw), format_by_module=format_by_module)


def _patterns(format_by_module: Mapping[str, str], modules: set[str]) -> dict[str, str]:
    """One entry for weights that differ in their numbers only, where all of them have the same format."""
    formats_by_pattern: dict[str, set[str | None]] = {}
    for name in modules:
        formats_by_pattern.setdefault(pattern_of(name), set()).add(format_by_module.get(name))
    is_even = {entry for entry, formats in formats_by_pattern.items() if len(formats) == 1}
    return {pattern_of(name) if pattern_of(name) in is_even else name: form for name, form in format_by_module.items()}


def _checked_modules(source: Source, config: ModelConfig) -> dict[str, names.Module]:
    modules = names.modules(config)
    missing = [name for name in modules if name not in source.held]
    extra = [name for name in source.held if name not in modules]
    both = [(name, list(source.held[name].shape), list(modules[name].shape)) for name in modules if name in source.held]
    wrong = [f"lacks {verify.listed(missing)}"] if missing else []
    wrong += [f"has {verify.listed(extra)}, for which this decoder has no place"] if extra else []
    wrong += [f"has {name} as {seen} where {right} is right" for name, seen, right in both if seen != right][:3]
    if wrong:
        raise CheckpointError(f"the checkpoint cannot be converted: it {'; it '.join(wrong)}")
    return modules


def _write_weights(source: Source, plan: _Plan, directory: Path, progress: Progress) -> None:
    modules = names.modules(plan.config)
    total = sum(_num_values(module) for module in modules.values())
    done = 0
    amax_by_pair: dict[str, Tensor] = {}
    with Writer(directory) as writer:
        for name, module in modules.items():
            progress(done, total, name)
            _write_weight(source, plan, module, writer, amax_by_pair)
            done += _num_values(module)
        if isinstance(source, M3Source):
            for name, entry in source.ignored().items():
                writer.add(name, read_rows(entry))
    progress(done, total, "")


def _write_weight(
    source: Source, plan: _Plan, module: names.Module, writer: Writer, amax_by_pair: dict[str, Tensor]
) -> None:
    form = plan.format_by_module[module.name]
    specs = names.tensors(module, plan.config)
    stored = source.stored(module.name) if form == source.held[module.name].format else None
    if stored is not None:
        tensors = {spec.name: stored[spec.part] for spec in specs}
    else:
        amax = _amax(source, module, amax_by_pair) if form == "nvfp4" else None
        tensors = split(_convert(source, module, form, amax), specs, "plain" if form in _FLOATS else form)
    for name, tensor in tensors.items():
        writer.add(name, tensor)


def _convert(source: Source, module: names.Module, form: str, amax: Tensor | None) -> Weight:
    """One weight in its new format, made in chunks of rows."""
    whole: Weight | None = None
    for start, stop in _chunks(module):
        chunk = _recode(source.read(module.name, start, stop), form, amax, module.name)
        if whole is None:
            whole = _apply(chunk, lambda part: part.new_empty((module.shape[0], *part.shape[1:])))
        for room, part in zip(_tensors(whole), _tensors(chunk), strict=True):
            room[start:stop] = part
    assert whole is not None, "a weight without rows"
    return whole


def _recode(rows: Weight, form: str, amax: Tensor | None, module: str) -> Weight:
    if isinstance(rows, Quantized) and form in STORAGE_BY_NAME and STORAGE_BY_NAME[form].format == rows.spec.name:
        return rows
    if isinstance(rows, Tensor) and _FLOATS.get(form) == rows.dtype:
        return rows
    values = decode(rows)
    if not values.isfinite().all():
        raise CheckpointError(f"{module} holds NaN or infinity; the source is damaged, or no weights for serving")
    return encode(form, values) if form != "nvfp4" else nvfp4.encode_weight(values, amax)


def _amax(source: Source, module: names.Module, amax_by_pair: dict[str, Tensor]) -> Tensor:
    """The largest magnitude that sets an NVFP4 weight's global scale; w1 and w3 of an expert share it."""
    pair = (module.name[:-1] + "1", module.name[:-1] + "3")
    if module.kind != "routed expert" or module.name not in pair:
        return _largest(source, module, module.name)
    if pair[0] not in amax_by_pair:
        amax_by_pair.clear()
        amax_by_pair[pair[0]] = torch.maximum(*(_largest(source, module, name) for name in pair))
    return amax_by_pair[pair[0]]


def _largest(source: Source, module: names.Module, name: str) -> Tensor:
    tops = [decode(source.read(name, start, stop)).abs().amax() for start, stop in _chunks(module)]
    return torch.stack(tops).amax()


def _chunks(module: names.Module) -> list[tuple[int, int]]:
    num_rows = module.shape[0]
    step = num_rows if len(module.shape) == 1 else max(1, _CHUNK_VALUES * num_rows // _num_values(module))
    return [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def _num_values(module: names.Module) -> int:
    return torch.Size(module.shape).numel()


def _apply(weight: Weight, change: Callable[[Tensor], Tensor]) -> Weight:
    return weight.map(change) if isinstance(weight, Quantized) else change(weight)


def _tensors(weight: Weight) -> list[Tensor]:
    parts = [weight] if isinstance(weight, Tensor) else [weight.codes, weight.scales, weight.minimums]
    return [part for part in parts if part is not None]
