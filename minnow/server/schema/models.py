"""wire types of /v1/models"""

import msgspec


class ModelCard(msgspec.Struct, kw_only=True):
    """One model that is served; max_model_len is in tokens, as in vLLM."""

    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "minnow"
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    """All models that are served."""

    data: list[ModelCard]
    object: str = "list"
