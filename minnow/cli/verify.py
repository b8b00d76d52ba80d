"""minnow verify: does a checkpoint hold what its config.json asks for"""

import argparse
from pathlib import Path

from minnow.arch import size
from minnow.arch.size import ModelSize
from minnow.config import model
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.core.units import show_bytes

HELP = "check a checkpoint's names, shapes, dtypes and digests"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", nargs="?", help="a checkpoint's directory, or the name of a pulled model")
    parser.add_argument("--expect", metavar="NAME", help="instead, print what a published model's checkpoint must hold")
    parser.add_argument("--scales", action="store_true", help="also read every scale (the whole file may be large)")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 where something is wrong."""
    if args.expect is not None:
        return _expect(args.expect)
    if args.directory is None:
        raise ConfigError("minnow verify needs a directory, or --expect with a model's name")
    return _verify(args.directory, args.scales)


def _expect(name: str) -> int:
    config = model.known(name)
    if config is None:
        raise ConfigError(f"no published model is called {name!r}; known are {', '.join(model.known_names())}")
    total = size.measure(config)
    print(f"model         {name}: {_describe(config)}")
    print(f"tensors       {total.num_tensors:,} tensors (drafter and multi-token prediction left out)")
    print(f"bytes         {_show_total(total.num_bytes)}")
    _print_parameters(total)
    _print_shares(total)
    return 0


def _verify(named: str, scales: bool) -> int:
    from minnow.checkpoint import demo, verify
    from minnow.checkpoint.reader import Reader

    directory: Path = demo.resolve(named)
    config = model.read(directory)
    with Reader(directory) as reader:
        report = verify.verify(reader, config, scales=scales, digests=True)
        total = size.measure(config, {name: reader.entry(name).dtype for name in reader.names})
    ignored = f"; {report.num_ignored:,} others ignored" if report.num_ignored else ""
    print(f"checkpoint    {directory}: {_describe(config)}")
    print(f"tensors       {report.num_tensors:,} of {total.num_tensors:,} tensors{ignored}")
    print(f"bytes         {_show_total(report.num_bytes)}")
    _print_parameters(total)
    print(f"scales        {'read' if scales else 'not read (--scales reads them)'}")
    print(f"digests       {'compared' if report.checked_files else 'none recorded'}")
    if config.unknown_fields:
        print(f"config.json   fields that Minnow does not know: {', '.join(config.unknown_fields)}")
    _print_shares(total)
    if not report.num_problems:
        print("\nproblems      none")
        return 0
    print(f"\nproblems      {report.num_problems:,}")
    for line in report.problems():
        print(f"  {line}")
    return 1


def _describe(config: ModelConfig) -> str:
    words = [f"{config.num_hidden_layers} layers of width {config.hidden_size}"]
    words.append(f"sparse attention in {sum(config.sparse.is_sparse)}")
    if any(config.is_moe):
        words.append(f"{config.num_experts_per_tok} of {config.num_local_experts} experts in {sum(config.is_moe)}")
    if config.vision is not None:
        words.append("vision tower")
    return ", ".join(words)


def _show_total(num_bytes: int) -> str:
    decimal = f"{num_bytes / 1e9:.1f} GB, " if num_bytes >= 10**9 else ""
    return decimal + show_bytes(num_bytes)


def _print_parameters(total: ModelSize) -> None:
    print(f"parameters    {_count(total.num_parameters)}, active a token {_count(total.num_active_parameters)}")


def _print_shares(total: ModelSize) -> None:
    print(f"\n{'weights':14}{'format':8}{'tensors':>9}{'parameters':>12}{'bytes':>11}")
    for share in total.shares:
        figures = f"{share.num_tensors:9,}{_count(share.num_parameters):>12}{show_bytes(share.num_bytes):>11}"
        print(f"{share.kind:14}{share.format:8}{figures}")


def _count(number: int) -> str:
    for power, letter in ((9, "B"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.4g}{letter}"
    return str(number)
