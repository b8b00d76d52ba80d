"""a serving command as it is planned: what the words in it mean together, what is to be mended, what is to be known"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minnow.config import flags, load
from minnow.config import vllm as vllm_words
from minnow.config.load import Loaded
from minnow.core.errors import ConfigError
from minnow.core.units import show_decimal
from minnow.formats.spec import SPEC_BY_NAME
from minnow.plan import capacity, connector, prefill, transfer
from minnow.plan.capacity import EVERYTHING
from minnow.plan.connector import Connector
from minnow.plan.deployment import Deployment
from minnow.plan.recipe_build import Process, Recipe
from minnow.plan.transfer import Offload

# Where a command leaves them out: the defaults of vLLM's ParallelConfig.
_DBO_PREFILL_TOKENS, _DBO_DECODE_TOKENS = 512, 32

_INDEX_CP = "--attention-config.indexer_decode_cp"
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_SEQUENCE_PARALLEL = "VLLM_ROCM_MINIMAX_M3_SP_PREFILL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a command comes to beside its capacity.

    Attributes:
        host: what host memory keeps, where a connector asks for some.
        ignored: vLLM's words without effect here -> why.
        not_yet: those that a launch does not take yet -> why.
        problems: to be mended, one sentence each.
        notes: to be known, one sentence each.
    """

    host: Offload | None
    ignored: Mapping[str, str]
    not_yet: Mapping[str, str]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def own_settings(args: argparse.Namespace) -> Mapping[str, object]:
    """The settings that a command line gives itself, as they lie in a Namespace."""
    return {name: value for name, value in vars(args).items() if name.startswith((flags.DEST, vllm_words.DEST))}


def read(recipe: Recipe, process: Process, own: Mapping[str, object]) -> Loaded:
    """The settings of a recipe's process, its own environment included and no other.

    Args:
        own: of `own_settings`, which win.

    Raises:
        ConfigError: as `load.load`.
    """
    parser = flags.new_parser("minnow serve", "")
    flags.add_arguments(parser)
    words = [recipe.model] + [text for word in process.words for text in (word.name, word.value) if text is not None]
    environ = {word.name: word.value or "" for word in process.environment}
    asked = argparse.Namespace(**{**vars(flags.parse(parser, words)), **own})
    return load.load(asked, environ, is_planning=True)


def experts_format(foreign: vllm_words.Outcome) -> str:
    """The format that routed experts are converted to at load; "" leaves them.

    Raises:
        ConfigError: there is no such format.
    """
    whole = foreign.value_by_flag.get("--quantization-config", {})
    inside = _object("--quantization-config", whole).get("moe", "")
    name = str(foreign.value_by_flag.get("--quantization-config.moe", inside))
    if name and name not in SPEC_BY_NAME:
        raise ConfigError(f"--quantization-config.moe is {name!r}; it must be one of {', '.join(SPEC_BY_NAME)}")
    return name


def num_nodes(foreign: vllm_words.Outcome) -> int:
    """Machines of the engine; 0 is as few as hold it."""
    return _count(foreign.value_by_flag, "--nnodes", 0)


def has_sequence_parallel(foreign: vllm_words.Outcome) -> bool:
    """Whether long prefills are sharded by tokens."""
    return foreign.value_by_flag.get(_SEQUENCE_PARALLEL, "0") == "1"


def has_index_cp(foreign: vllm_words.Outcome) -> bool:
    """Whether the ranks of a group share the scan of index keys."""
    return str(foreign.value_by_flag.get(_INDEX_CP, False)).lower() == "true"


def dual_batch_tokens(foreign: vllm_words.Outcome) -> int:
    """Tokens of a prefill step from which it runs as two halves; 0 is never."""
    values = foreign.value_by_flag
    return _count(values, "--dbo-prefill-token-threshold", _DBO_PREFILL_TOKENS) if values.get("--enable-dbo") else 0


def connectors(foreign: vllm_words.Outcome) -> tuple[Connector, ...]:
    """The ways blocks come and go.

    Raises:
        ConfigError: as `connector.read`.
    """
    text = foreign.value_by_flag.get(connector.FLAG)
    return connector.read(text if isinstance(text, str) else json.dumps(text)) if text else ()


def check(loaded: Loaded, of: Deployment) -> Check:
    """Look at a command and its deployment.

    Raises:
        ConfigError: a value of a vLLM word does not fit.
    """
    foreign = loaded.foreign
    ways = connectors(foreign)
    return Check(
        host=_host(ways, of) if any(way.host_bytes for way in ways) else None,
        ignored=foreign.ignored,
        not_yet=foreign.not_yet,
        problems=tuple(_problems(foreign, of, ways)),
        notes=tuple(_notes(foreign, of, ways)),
    )


def _host(ways: tuple[Connector, ...], of: Deployment) -> Offload:
    return transfer.offload(
        capacity.row(of, EVERYTHING),
        sum(way.host_bytes for way in ways),
        of.num_ranks,
        num_nodes=of.num_nodes,
        has_huge_pages=any(way.has_huge_pages for way in ways),
    )


def _problems(foreign: vllm_words.Outcome, of: Deployment, ways: tuple[Connector, ...]) -> Iterator[str]:
    given, config = foreign.value_by_flag, of.config
    if given.get("--enable-dbo"):
        yield from prefill.problems(
            _count(given, "--dbo-prefill-token-threshold", _DBO_PREFILL_TOKENS),
            _count(given, "--dbo-decode-token-threshold", _DBO_DECODE_TOKENS),
            has_sequence_parallel=of.has_sequence_parallel,
            most_step_tokens=capacity.graph_tokens(of),
        )
    graphs = _object("--compilation-config", given.get("--compilation-config", {}))
    size = graphs.get("max_cudagraph_capture_size")
    if isinstance(size, int) and size < capacity.graph_tokens(of):
        yield (
            f"--compilation-config has max_cudagraph_capture_size {size}, but a decode step may have "
            f"{capacity.graph_tokens(of)} tokens ({config.scheduler.max_num_seqs} sequences of 1 + "
            f"{of.num_drafts}); set {capacity.graph_tokens(of)}"
        )
    if config.cache.num_gpu_blocks_override:
        memory = capacity.hold(of, EVERYTHING).memory
        left_bytes = max(memory.limit_bytes - memory.weights_bytes - memory.workspace_bytes, 0)
        if memory.cache_bytes > left_bytes:
            yield (
                f"--num-gpu-blocks-override is {memory.num_blocks}, a cache of {show_decimal(memory.cache_bytes)}, but "
                f"weights and reserve leave {show_decimal(left_bytes)}; "
                f"leave it out, or set at most {left_bytes // memory.row_bytes}"
            )
    if _is_prefill(ways) and not config.cache.enable_prefix_caching:
        yield "--no-enable-prefix-caching is given where prompts are computed; keep prefixes there, and only there"


def _is_prefill(ways: tuple[Connector, ...]) -> bool:
    return any(way.role == "kv_producer" for way in ways)


def _notes(foreign: vllm_words.Outcome, of: Deployment, ways: tuple[Connector, ...]) -> Iterator[str]:
    given = foreign.value_by_flag
    if _is_prefill(ways) and has_index_cp(foreign):
        yield f"{_INDEX_CP} is on, but a node that only prefills never splits index scores; leave it out"
    if any(way.name == "NixlConnector" and way.ttl_s != 0 for way in ways):
        yield f"{connector.FLAG} leaves engine_ttl at an hour or sets it: an idle peer is dropped then; 0 keeps it"
    if any(way.role == "kv_consumer" for way in ways) and not of.config.scheduler.watermark:
        yield "--watermark is 0: a full cache preempts running sequences, which compute their context again"
    if given.get("--enable-dbo") and of.num_drafts and given.get(_RUNNER) != "1":
        yield f"--enable-dbo: vLLM's older runner refuses drafts with it; there {_RUNNER}=1 is needed"
    for flag in ("--dbo-prefill-token-threshold", "--dbo-decode-token-threshold"):
        if flag in given and not given.get("--enable-dbo"):
            yield f"{flag} is given without --enable-dbo, so nothing is split"


def _count(given: Mapping[str, object], flag: str, default: int) -> int:
    text = str(given.get(flag, default))
    if not text.isdecimal():
        raise ConfigError(f"{flag} is {text!r}; a whole number is needed")
    return int(text)


def _object(flag: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{flag}: {value!r} is no JSON ({error})") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{flag}: {value!r} is no JSON object")
    return value
