"""a drafter's checkpoint names -> our names, as a table"""

from collections.abc import Iterator

from minnow.arch.names import Module, TensorSpec, attention, feed_forward, tensors
from minnow.config.drafter import DrafterConfig

AT = "dspark."  # before our names
_PREFIXES = ("language_model.model.dspark.", "model.dspark.", "dspark.")
_RENAMED = ((".decoder_layer.", "."), (".block_sparse_moe.", ".mlp."), ("final_norm.", "norm."))
SHARED = ("embed_tokens.weight", "lm_head.weight", "t2d")  # the target's, or what d2t says already


def modules(config: DrafterConfig) -> dict[str, Module]:
    """Every weight of a drafter by our name; embedding and head are the target's.

    Source: names and shapes of DeepSpec's drafters, and of MiniMax-M3.1's `dspark/`.
    """
    return {module.name: module for module in _modules(config)}


def expected(config: DrafterConfig) -> dict[str, TensorSpec]:
    """Every tensor that a drafter's checkpoint holds, by canonical name (`canonical`)."""
    return {spec.name: spec for module in _modules(config) for spec in tensors(module, config.backbone)}


def canonical(name: str) -> str:
    """DeepSpec's name for a tensor of any known spelling."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in _RENAMED:
        name = name.replace(old, new)
    return name


def _modules(config: DrafterConfig) -> Iterator[Module]:
    backbone, rank = config.backbone, config.markov_rank
    width, taps = backbone.hidden_size, len(config.target_layer_ids)
    yield _module("fc", width, taps * width)
    yield _norm(f"{AT}hidden_norm", width)
    for layer in range(backbone.num_hidden_layers):
        at = f"{AT}layers.{layer}"
        yield _norm(f"{at}.input_layernorm", width)
        yield from map(_bare, attention(backbone, f"{at}.self_attn", False))
        yield _norm(f"{at}.post_attention_layernorm", width)
        yield from map(_bare, feed_forward(f"{at}.mlp", "dense ffn", backbone.dense_intermediate_size, width))
    yield _norm(f"{AT}norm", width)
    yield _module("markov_head.markov_w1", backbone.vocab_size, rank)
    yield _module("markov_head.markov_w2", config.draft_vocab_size, rank)
    if config.markov_head_type == "gated":
        yield from _with_bias("markov_head.gate_proj", rank, width + rank)
    if config.markov_head_type == "rnn":
        yield from _with_bias("markov_head.joint_proj", 3 * rank, 2 * rank + width)
    if config.has_confidence_head:
        yield from _with_bias("confidence_head.proj", 1, width + rank * config.confidence_sees_token)
    if config.is_reduced:
        yield Module(
            name=f"{AT}d2t", checkpoint_name="d2t", kind="offsets", shape=(config.draft_vocab_size,), suffix=""
        )


def _bare(module: Module) -> Module:
    """The same under the drafter's own checkpoint name."""
    return Module(name=module.name, checkpoint_name=module.name.removeprefix(AT), kind=module.kind, shape=module.shape)


def _norm(name: str, width: int) -> Module:
    return Module(name=name, checkpoint_name=name.removeprefix(AT), kind="norm", shape=(width,))


def _module(name: str, *shape: int, suffix: str = ".weight") -> Module:
    return Module(name=AT + name, checkpoint_name=name, kind="drafter", shape=shape, suffix=suffix)


def _with_bias(name: str, *shape: int) -> Iterator[Module]:
    yield _module(name, *shape)
    yield _module(f"{name}.bias", shape[0], suffix="")
