"""minnow kernels: which backend computes each operation here, and why the others do not"""

import argparse

from minnow.config import flags, load

HELP = "show each operation's backend and why the others were not chosen"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    flags.add_some(parser, "device", "kernel_backends")


def run(args: argparse.Namespace) -> int:
    """Print a line an operation, and a line each backend that was not chosen."""
    config = load.load(args).config
    from minnow.engine.build import device_of  # only now: it loads torch
    from minnow.kernels import registry

    target = registry.target_of(device_of(config.kernel.device))
    kernels = registry.bind(target, config.kernel.kernel_backends)
    print(f"device        {target.kind} ({target.name})\n")
    print(f"{'operation':18}{'backend':14}why not the others")
    for choice in kernels.choices:
        reasons = [f"{backend}: {reason}" for backend, reason in choice.refusal_by_backend.items()]
        reasons = ([f"({choice.note})"] if choice.note else []) + (reasons or ["it is the only one"])
        for position, reason in enumerate(reasons):
            operation, backend = (choice.op, choice.backend) if position == 0 else ("", "")
            print(f"{operation:18}{backend:14}{reason}")
    return 0
