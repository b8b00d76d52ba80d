"""ServerConfig: the door"""

from dataclasses import dataclass
from typing import Annotated

from minnow.config.field import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the server listens and what it lets in."""

    host: Annotated[str, Field("address to listen on")] = "127.0.0.1"
    port: Annotated[int, Field("port to listen on; 0 takes a free one", at_least=0, at_most=65535)] = 8000
    served_model_name: Annotated[str, Field("name of the model in the API; empty takes the name it was given")] = ""
    api_key: Annotated[str, Field("clients must send it as a bearer token; empty lets everyone in")] = ""
    shutdown_timeout: Annotated[
        int, Field("how long requests may go on after a signal to stop; 0 ends them at once", "s", at_least=0)
    ] = 5
    engine_step_timeout: Annotated[
        int, Field("a step that takes longer counts as stuck: open requests end with an error", "s", at_least=1)
    ] = 300
    max_body_bytes: Annotated[str, Field("largest request body", "bytes")] = "8MiB"
    max_logprobs: Annotated[int, Field("most log-probabilities a token may ask for", "tokens", at_least=0)] = 20
    chat_template: Annotated[str, Field("file of a chat template that replaces the model's")] = ""
