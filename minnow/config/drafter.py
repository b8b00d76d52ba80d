"""DrafterConfig from a drafter's config.json: what a DSpark drafter is made of"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minnow.config.model import ARCHITECTURE, ModelConfig, parse, read_object
from minnow.core.errors import ConfigError

DIRECTORY = "dspark"  # of a bundled drafter, inside the model's

MarkovHead = Literal["vanilla", "gated", "rnn"]
_HEADS: tuple[MarkovHead, ...] = ("vanilla", "gated", "rnn")

# One fact, several spellings: MiniMax's, and those of DeepSpec and vLLM.
_SPELLINGS = {
    "block_size": ("block_size", "dspark_block_size"),
    "target_layer_ids": ("target_layer_ids", "dspark_target_layer_ids", "dflash_config.target_layer_ids"),
    "mask_token_id": ("mask_token_id", "dspark_noise_token_id", "dflash_config.mask_token_id"),
    "markov_rank": ("markov_rank", "dspark_markov_rank"),
    "markov_head_type": ("markov_head_type", "dspark_markov_head_type"),
    "window": ("sliding_window", "dflash_config.swa_window_size"),
    "inner_size": ("dspark_ffn_hidden_size", "dense_intermediate_size", "intermediate_size"),
    "is_causal": ("is_causal", "dflash_config.causal"),
    "draft_topk": ("dspark_draft_topk", "draft_topk"),
}
_BACKBONE_FIELDS = (
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim swiglu_alpha swiglu_limit "
    "swiglu_beta rms_norm_eps rope_theta rotary_dim partial_rotary_factor rope_scaling rope_parameters "
    "max_position_embeddings"
).split()
_OTHER_FIELDS = frozenset(
    """architectures model_type vocab_size hidden_act use_gemma_norm layer_types draft_vocab_size sample_from_anchor
    enable_confidence_head confidence_head_with_markov num_target_layers is_neox_style quantization_config
    speculative_config dflash_config moe_layer_freq sparse_attention_config dspark_use_dense_ffn use_qk_norm
    qk_norm_type dspark_hybrid_context_fusion num_mtp_modules num_local_experts num_experts_per_tok n_shared_experts
    shared_intermediate_size attention_bias attention_dropout attention_output_gate tie_word_embeddings torch_dtype
    dtype transformers_version initializer_range use_cache use_sliding_window max_window_layers bos_token_id
    eos_token_id pad_token_id scoring_func use_routing_bias routed_scaling_factor auto_map text_config
    confidence_temperatures""".split()
)
_INSIDE_DFLASH = ("target_layer_ids mask_token_id causal swa_window_size num_target_layers num_hidden_layers "
                  "layer_types".split())  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """A DSpark drafter.

    Attributes:
        backbone: its layers as a network: dense, with per-head norms; width and vocabulary are the target's.
        block_size: drafts that it was trained to make at once.
        target_layer_ids: layers of the target after which its features are taken; -1 is the embedding.
        mask_token_id: stands in the block for tokens that are to be drafted.
        markov_rank: width of the Markov head's table.
        has_confidence_head: whether there are weights for it.
        confidence_sees_token: whether it looks at the token before, beside the hidden state.
        window: tokens that a draft position sees back, itself included; 0 is all.
        draft_vocab_size: tokens that it can draft; the vocabulary's size where it is not reduced.
        draft_topk: the Markov head chooses among so many of a slot's likeliest tokens; 0 is all.
        confidence_temperatures: that calibrate the confidence head, one a draft; empty: it is taken as it is.
        served: what the drafter proposes to be served with: fields of config/speculative.py.
    """

    backbone: ModelConfig
    block_size: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    markov_rank: int
    markov_head_type: MarkovHead = "vanilla"
    has_confidence_head: bool = False
    confidence_sees_token: bool = True
    window: int = 0
    draft_vocab_size: int
    draft_topk: int = 0
    confidence_temperatures: tuple[float, ...] = ()
    served: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_reduced(self) -> bool:
        """Whether it drafts from a part of the vocabulary."""
        return self.draft_vocab_size < self.backbone.vocab_size


def find(directory: Path) -> Path | None:
    """The drafter that a model's directory bundles, or None."""
    bundled = directory / DIRECTORY
    return bundled if (bundled / "config.json").is_file() else None


def proposes(directory: Path) -> bool:
    """Whether the drafter of a directory says how it is to be served where nobody asks; nothing else is looked at."""
    raw = read_object(directory / "config.json")
    return bool(raw.get("speculative_config") or _object(raw, "text_config").get("speculative_config"))


def read(directory: Path, target: ModelConfig) -> DrafterConfig:
    """Read a drafter's config.json.

    Args:
        target: the model that it drafts for.

    Raises:
        ConfigError: as `parse_drafter`.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; name a directory that holds a DSpark drafter")
    return parse_drafter(read_object(path), target)


def parse_drafter(raw: Mapping[str, Any], target: ModelConfig) -> DrafterConfig:
    """Turn a drafter's config.json into a DrafterConfig.

    Raises:
        ConfigError: an unknown or contradicting field, a kind of drafter that is not run, or one that does not fit the
            target. A silent default here would cost acceptance and nobody would see why.

    Source: the `dspark/` configuration of MiniMax-M3.1 and those of DeepSpec's drafters.
    """
    fields = {**raw, **_object(raw, "text_config")}
    nested = _object(fields, "dflash_config")
    _refuse_unknown(fields, nested)
    fields |= {f"dflash_config.{name}": value for name, value in nested.items()}
    _refuse_other_kinds(fields)
    config = DrafterConfig(
        backbone=_backbone(fields, target),
        block_size=_whole(fields, "block_size", least=1),
        target_layer_ids=_layer_ids(fields, target),
        mask_token_id=_whole(fields, "mask_token_id"),
        markov_rank=_whole(fields, "markov_rank", least=1),
        markov_head_type=_head(fields),
        has_confidence_head=bool(fields.get("enable_confidence_head", False)),
        confidence_sees_token=bool(fields.get("confidence_head_with_markov", True)),
        window=_window(fields),
        draft_vocab_size=target.vocab_size if fields.get("draft_vocab_size") is None else fields["draft_vocab_size"],
        draft_topk=_whole(fields, "draft_topk", 0),
        confidence_temperatures=_temperatures(fields),
        served=_object(fields, "speculative_config"),
    )
    _check(config, fields, target)
    return config


def _backbone(fields: Mapping[str, Any], target: ModelConfig) -> ModelConfig:
    num_layers = _whole(fields, "num_hidden_layers", least=1)
    text = {name: fields[name] for name in _BACKBONE_FIELDS if fields.get(name) is not None}
    text |= {
        "vocab_size": target.vocab_size,
        "dense_intermediate_size": _whole(fields, "inner_size", least=1),
        "moe_layer_freq": [0] * num_layers,
        "hidden_act": fields.get("hidden_act", "silu"),
        "use_gemma_norm": fields.get("use_gemma_norm", False),
        "use_qk_norm": True,
    }
    if "rope_parameters" not in text:
        text.setdefault("rope_theta", target.rope_theta)
        if "partial_rotary_factor" not in text:
            head_dim = fields.get("head_dim")  # only heads like the target's turn as far as the target's
            text.setdefault("rotary_dim", target.rotary_dim if head_dim == target.head_dim else head_dim)
    text.setdefault("max_position_embeddings", target.max_position_embeddings)
    return parse(
        {
            "architectures": [ARCHITECTURE],
            "text_config": text,
            "quantization_config": fields.get("quantization_config"),
            "tie_word_embeddings": True,
        }
    )


def _refuse_unknown(fields: Mapping[str, Any], nested: Mapping[str, Any]) -> None:
    known = {*_BACKBONE_FIELDS, *_OTHER_FIELDS, *(name for names in _SPELLINGS.values() for name in names)}
    unknown = sorted({*fields} - known) + [f"dflash_config.{k}" for k in sorted({*nested} - {*_INSIDE_DFLASH})]
    if unknown:
        raise ConfigError(f"the drafter's config.json has {', '.join(unknown)}; nothing here knows what that means")


def _refuse_other_kinds(fields: Mapping[str, Any]) -> None:
    wanted = (
        ("sample_from_anchor", (None, True), "slot k drafts the token after position k"),
        ("is_neox_style", (None, True), "rotary pairs lie half a head apart"),
        ("dspark_hybrid_context_fusion", (None, False), "context features are fused by one matrix"),
        ("dspark_use_dense_ffn", (None, True), "draft layers are dense"),
        ("attention_bias", (None, False), "projections have no bias"),
        ("attention_output_gate", (None, False), "attention has no gate"),
        ("use_qk_norm", (None, True), "each head of queries and keys has a norm"),
        ("use_gemma_norm", (None, False, True), "norms are Gemma's or plain ones"),
        ("enable_confidence_head", (None, False, True), "there is such a head or there is none"),
        ("confidence_head_with_markov", (None, True, False), "the head sees the token before or it does not"),
    )
    for name, allowed, words in wanted:
        if fields.get(name) not in allowed:
            raise ConfigError(f"the drafter's {name} is {fields[name]!r}; here {words}, so it must be {allowed[1]}")
    # Where nothing is said a DSpark block sees all of itself, whatever the type of its layers.
    if _value(fields, "is_causal", None):
        raise ConfigError("the drafter's block is causal; a DSpark block sees all of itself, so it must be false")
    if any(_list(fields, "moe_layer_freq")):
        raise ConfigError(f"the drafter's moe_layer_freq is {fields['moe_layer_freq']}; its layers are dense here")


def _layer_ids(fields: Mapping[str, Any], target: ModelConfig) -> tuple[int, ...]:
    ids = _value(fields, "target_layer_ids", None)
    last = target.num_hidden_layers - 1
    if not isinstance(ids, list | tuple) or not ids or not all(type(i) is int and -1 <= i <= last for i in ids):
        raise ConfigError(f"the drafter's target_layer_ids is {ids!r}; it lists layers of the target, -1 to {last}")
    if list(ids) != sorted(set(ids)):
        raise ConfigError(f"the drafter's target_layer_ids is {ids!r}; each layer once, in ascending order, is needed")
    return tuple(ids)


def _window(fields: Mapping[str, Any]) -> int:
    types = _list(fields, "layer_types")
    if not all(isinstance(kind, str) for kind in types) or len(types) not in (0, _whole(fields, "num_hidden_layers")):
        raise ConfigError(f"the drafter's layer_types are {types!r}; a word a layer is needed")
    kinds = set(types)
    if len(kinds) > 1 or not kinds <= {"sliding_attention", "full_attention"}:
        raise ConfigError(f"the drafter's layer_types are {sorted(kinds)}; all sliding_attention or all full_attention")
    window = _whole(fields, "window", 0)
    if kinds == {"sliding_attention"} and not window:
        raise ConfigError("the drafter's layers are sliding_attention, but its config.json names no sliding_window")
    return 0 if kinds == {"full_attention"} else window


def _head(fields: Mapping[str, Any]) -> MarkovHead:
    found = next((head for head in _HEADS if head == _value(fields, "markov_head_type", "vanilla")), None)
    if found is None:
        raise ConfigError(
            f"the drafter's markov_head_type is {_value(fields, 'markov_head_type', None)!r}; "
            f"it must be {', '.join(_HEADS)}"
        )
    return found


def _temperatures(fields: Mapping[str, Any]) -> tuple[float, ...]:
    values = _list(fields, "confidence_temperatures")
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values):
        raise ConfigError(
            f"the drafter's confidence_temperatures are {values!r}; numbers above 0 are needed, one a draft"
        )
    return tuple(map(float, values))


def _check(config: DrafterConfig, fields: Mapping[str, Any], target: ModelConfig) -> None:
    vocabulary = target.vocab_size
    facts = (
        ("hidden_size", config.backbone.hidden_size, target.hidden_size),
        ("vocab_size", fields.get("vocab_size", vocabulary), vocabulary),
        ("num_target_layers", fields.get("num_target_layers") or target.num_hidden_layers, target.num_hidden_layers),
    )
    for name, seen, right in facts:
        if seen != right:
            raise ConfigError(f"the drafter's {name} is {seen}, the model's is {right}; it was made for another model")
    if not 0 <= config.mask_token_id < vocabulary:
        raise ConfigError(f"the drafter's mask_token_id is {config.mask_token_id}; ids are 0 to {vocabulary - 1}")
    if type(config.draft_vocab_size) is not int or not 1 <= config.draft_vocab_size <= vocabulary:
        raise ConfigError(
            f"the drafter's draft_vocab_size is {config.draft_vocab_size!r}; it must be 1 to {vocabulary}"
        )
    if len(config.confidence_temperatures) not in (0, config.block_size):
        raise ConfigError(
            f"the drafter has {len(config.confidence_temperatures)} confidence_temperatures; "
            f"{config.block_size} are needed, one a draft"
        )


def _value(fields: Mapping[str, Any], fact: str, default: object) -> Any:
    """The value of a fact, under whichever of its spellings; two that differ are refused."""
    names = [name for name in _SPELLINGS.get(fact, (fact,)) if fields.get(name) is not None]
    if fact != "inner_size" and any(fields[name] != fields[names[0]] for name in names):
        seen = " and ".join(f"{name} {fields[name]!r}" for name in names)
        raise ConfigError(f"the drafter's config.json contradicts itself: {seen}")
    return fields[names[0]] if names else default


def _whole(fields: Mapping[str, Any], fact: str, default: int | None = None, *, least: int = 0) -> int:
    value = _value(fields, fact, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"the drafter's {_SPELLINGS.get(fact, (fact,))[0]} is {value!r}; a whole number from {least} on is needed"
        )
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name) or []
    if not isinstance(value, list | tuple):
        raise ConfigError(f"the drafter's {name} is {value!r}; a list with an entry a layer is needed")
    return list(value)


def _object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"the drafter's {name} is {value!r}; an object is needed")
    return value
