"""serves MiniMax-M3.1-Flash-class language models, from a laptop CPU to a GPU cluster"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minnow.core.request import SamplingParams
    from minnow.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for, so that `import minnow` stays light."""
    if name == "LLM":
        from minnow.llm import LLM

        return LLM
    if name == "SamplingParams":
        from minnow.core.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'minnow' has no attribute {name!r}")
