"""what is asked for becomes a deployment: a model by its name, settings, and words beside them"""

import dataclasses
from pathlib import Path

from minnow.checkpoint import demo
from minnow.config import flags, load
from minnow.config import model as model_config
from minnow.config.load import Loaded
from minnow.config.model import ModelConfig
from minnow.core.errors import ConfigError
from minnow.plan import command, deployment
from minnow.plan.deployment import Deployment
from minnow.plan.hardware import Sheet


def find(name: str) -> tuple[str, ModelConfig, Path, bool]:
    """A model's name, configuration and directory, and whether only its published configuration is here."""
    directory = Path(name).expanduser()
    published_config = None if (directory / "config.json").is_file() else model_config.known(name)
    if published_config is not None:
        directory = model_config.known_directory(name)
        return directory.name, published_config, directory, True
    try:
        directory = demo.resolve(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; published models are {', '.join(model_config.known_names())}") from None
    return name, model_config.read(directory), directory, False


def settle(
    loaded: Loaded,
    device: Sheet,
    strategy: str = "",
    *,
    context_tokens: int = 0,
    num_nodes: int = 0,
    reserve: str = "",
    experts_format: str = "",
    has_sequence_parallel: bool = False,
    has_hybrid_manager: bool = False,
    is_drafting: bool = True,
) -> Deployment:
    """A deployment from settings, vLLM's words among them, and what is asked for beside them.

    Args:
        strategy: in a word, instead of the settings'.
        is_drafting: a published model drafts without being asked to.

    Raises:
        ConfigError: no model is named, or as `deployment.settle`.
    """
    config, foreign = loaded.config, loaded.foreign
    if not config.model:
        raise ConfigError("minnow plan needs a model: a directory, or a published name such as minimax-m3.1-flash")
    name, model, directory, is_published = find(config.model)
    if strategy:
        config = dataclasses.replace(config, parallel=deployment.parallel_of(strategy))
    if device.kind == "gpu":
        config = deployment.with_gpu_defaults(config, loaded.origin_by_field)
    return deployment.settle(
        name, model, directory, config, device, context_tokens=context_tokens,
        num_nodes=num_nodes or command.num_nodes(foreign), reserve=reserve,
        experts_format=experts_format or command.experts_format(foreign),
        has_sequence_parallel=has_sequence_parallel or command.has_sequence_parallel(foreign),
        has_hybrid_manager=has_hybrid_manager, has_index_cp=command.has_index_cp(foreign),
        dual_batch_tokens=command.dual_batch_tokens(foreign), is_drafting=is_drafting and is_published,
    )  # fmt: skip


def whole(text: str, flag: str) -> int:
    """A whole number as settings have it (256K is 262144); 0 where nothing is given.

    Raises:
        ConfigError: it is none.
    """
    if not text:
        return 0
    value = load.convert(dataclasses.replace(flags.settings()["max_model_len"], name=flag), text, flag)
    assert isinstance(value, int)
    return value


def real(text: str, flag: str) -> float:
    """A number with a point in it, or none.

    Raises:
        ConfigError: it is none.
    """
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{flag} is {text!r}; a number is needed") from None
