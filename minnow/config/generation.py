"""sampling defaults that a model's generation_config.json asks for"""

from pathlib import Path
from typing import Any

from minnow.config.model import read_object
from minnow.core.errors import ConfigError

_REALS = ("temperature", "top_p", "min_p", "repetition_penalty")
_WHOLES = ("top_k",)


def read(directory: Path, source: str) -> dict[str, Any]:
    """Values for what a request leaves out, by the names of SamplingParams.

    Args:
        directory: of the checkpoint.
        source: "auto" reads its generation_config.json, where there is one; "vllm" takes none, so that
            the neutral values stand (temperature 1, everything else off).

    Raises:
        ConfigError: the file is no JSON object, or a value in it is no number.

    Source: the file's fields as transformers writes them; what is done with them is vLLM's way.
    """
    path = directory / "generation_config.json"
    if source == "vllm" or not path.is_file():
        return {}
    try:
        raw = read_object(path)
    except ConfigError as error:
        raise ConfigError(f"{error}; mend it or take --generation-config vllm") from None
    found = {name: raw[name] for name in (*_REALS, *_WHOLES) if raw.get(name) is not None}
    for name, value in found.items():
        kind = int | float if name in _REALS else int
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"{path}: {name} is {value!r}; a number is needed, or --generation-config vllm")
    return found
