"""Door: what every route is given"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minnow.config.server import ServerConfig
from minnow.engine.client import EngineClient
from minnow.server.limits import Threads
from minnow.server.metrics import Metrics
from minnow.text.template import ChatTemplate
from minnow.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The served model and the means to ask it.

    Attributes:
        model_name: what the API calls the model.
        sampling_defaults: what a request leaves out, by the names of SamplingParams.
        created: Unix time of the start, in seconds.
        max_body_bytes: largest request body.
        metrics: told what happens.
        threads: for work that would hold up the event loop.
    """

    client: EngineClient
    tokenizer: Tokenizer
    template: ChatTemplate
    config: ServerConfig
    model_name: str
    sampling_defaults: Mapping[str, Any]
    created: int
    max_body_bytes: int
    metrics: Metrics
    threads: Threads
