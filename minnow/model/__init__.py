"""architecture name -> file (lazy)"""

from importlib import import_module
from typing import TYPE_CHECKING

from minnow.core.errors import ConfigError

if TYPE_CHECKING:
    from minnow.model.decoder import Decoder

_FILE_BY_ARCHITECTURE = {"MiniMaxM3SparseForConditionalGeneration": "minnow.model.decoder"}


def decoder_class(architecture: str) -> "type[Decoder]":
    """The class that runs an architecture.

    Raises:
        ConfigError: names the architecture and those that are known.
    """
    if architecture not in _FILE_BY_ARCHITECTURE:
        raise ConfigError(f"no model runs {architecture}; known are {', '.join(_FILE_BY_ARCHITECTURE)}")
    found: type[Decoder] = import_module(_FILE_BY_ARCHITECTURE[architecture]).Decoder
    return found
