"""Deployment: a model, how it is served, and on what; settled and checked before anything is added up"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minnow.arch import size
from minnow.config import drafter as drafter_config
from minnow.config import load
from minnow.config import model as model_config
from minnow.config.drafter import DrafterConfig
from minnow.config.engine import EngineConfig
from minnow.config.model import ModelConfig
from minnow.config.parallel import ParallelConfig
from minnow.config.speculative import SpeculativeConfig
from minnow.core.errors import ConfigError
from minnow.core.units import parse_bytes, show_decimal
from minnow.engine import budget
from minnow.formats.spec import SPEC_BY_NAME
from minnow.parallel.mesh import Axis, Mesh
from minnow.plan import hardware, prefill
from minnow.plan.hardware import Sheet

# The convention that planned GPU numbers follow where nothing else is asked for. The published comparison names
# neither; of the pairs that reproduce it (plan/published.py lists them) this one is chosen, not derived.
UTILIZATION = 0.90
GPU_STEP_TOKENS = 8192  # max_num_batched_tokens of a planned GPU, as vLLM's servers have it; Minnow's own is for CPUs
RESERVE_BYTES = 9 * 10**9
FITTED_ON = (("b300", "m3.1-flash"), ("b300", "m3-mxfp8"), ("gb300", "m3.1-flash"))  # in DEP4
CONTEXT_TOKENS = 262_144  # the length that the published comparison counts sequences of

_STRATEGY = re.compile(r"(tp|tep|dp|dep)([1-9]\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Memory of a rank that is kept for all but the target's weights and the cache.

    Attributes:
        num_bytes: a drafter's weights, activations, graphs and buffers together.
        status: "fitted", "extrapolated" from where it was fitted, "given", or "forward" (the engine's own formula).
        words: what it rests on.
    """

    num_bytes: int
    status: str
    words: str


_NOTHING = Reserve(num_bytes=0, status="", words="")  # until the rest is settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """An engine that may be on many devices.

    Attributes:
        name: of the model.
        drafter: of drafts, if any are made.
        config: without "auto"; its `parallel` is the strategy.
        device: what each rank runs on.
        num_nodes: machines that the ranks share.
        context_tokens: length of the sequences that are counted.
        experts_format: that routed experts are converted to when they are loaded; "" leaves them.
        has_sequence_parallel: prefill shards tokens, for which each rank keeps whole output projections.
        has_hybrid_manager: the drafter's pages are kept for its window only, as vLLM's hybrid manager would. Minnow
            has none: all layers share one block table.
        has_index_cp: each rank of a tensor-parallel group scans its part of the index keys.
        dual_batch_tokens: steps of so many tokens run as two halves, each one's messages beside the other's
            arithmetic; 0 is never.
    """

    name: str
    model: ModelConfig
    drafter: DrafterConfig | None
    config: EngineConfig
    device: Sheet
    num_nodes: int
    reserve: Reserve
    context_tokens: int
    experts_format: str = ""
    has_sequence_parallel: bool = False
    has_hybrid_manager: bool = False
    has_index_cp: bool = False
    dual_batch_tokens: int = 0

    @property
    def num_ranks(self) -> int:
        """Devices of the engine."""
        return self.config.parallel.tensor_parallel_size * self.config.parallel.data_parallel_size

    @property
    def num_drafts(self) -> int:
        """Drafts of a round."""
        return self.config.speculative_config.num_speculative_tokens if self.drafter is not None else 0

    @property
    def mesh(self) -> Mesh:
        """The ranks along each axis, as rank 0 sees them."""
        parallel = self.config.parallel
        ranks: tuple[tuple[Axis, int], ...] = (
            ("tp", parallel.tensor_parallel_size),
            ("dp", parallel.data_parallel_size),
            ("ep", self.num_ranks if parallel.enable_expert_parallel else 1),
            ("cp", 1),
        )
        return dataclasses.replace(Mesh.single(), num_ranks=ranks)

    @property
    def strategy(self) -> str:
        """In a word: "TP4", "DEP4", "TP2 x DP2"."""
        parallel, experts = self.config.parallel, "E" if self.config.parallel.enable_expert_parallel else ""
        tp, dp = parallel.tensor_parallel_size, parallel.data_parallel_size
        if dp == 1:
            return f"T{experts}P{tp}"
        return f"D{experts}P{dp}" if tp == 1 else f"TP{tp} x D{experts}P{dp}"

    @property
    def drafter_bytes(self) -> int:
        """Bytes of the drafter's weights on a rank."""
        return size.drafter_bytes(self.drafter, budget.ranks_of(self.mesh))

    @property
    def copied_bytes(self) -> int:
        """Bytes of the projections that sequence-parallel prefill keeps on a rank besides its own part."""
        return prefill.sequence_parallel_bytes(self.model) if self.has_sequence_parallel else 0

    def weights(self) -> size.ModelSize:
        """The target's weights on the fullest rank, by kind and format."""
        converted = {"routed expert": self.experts_format} if self.experts_format else {}
        return size.measure(self.model, ranks=budget.ranks_of(self.mesh), format_by_kind=converted)  # type: ignore[arg-type]


def parallel_of(word: str) -> ParallelConfig:
    """Read a strategy: "tp8", "tep8" (experts spread), "dp2" (replicas), "dep4" (attention on each, experts spread).

    Raises:
        ConfigError: it is none of these.
    """
    match = _STRATEGY.fullmatch(word.lower())
    if match is None:
        raise ConfigError(f"no strategy is called {word!r}; write tp, tep, dp or dep and the number of devices: dep4")
    kind, count = match[1], int(match[2])
    return ParallelConfig(
        tensor_parallel_size=count if kind in ("tp", "tep") else 1,
        data_parallel_size=count if kind in ("dp", "dep") else 1,
        enable_expert_parallel=kind in ("tep", "dep"),
    )


def with_gpu_defaults(config: EngineConfig, origin_by_field: Mapping[str, str]) -> EngineConfig:
    """Settings that nobody gave, as plans of GPUs take them.

    Args:
        origin_by_field: where each setting came from, as `config.load` says.
    """
    cache, scheduler = config.cache, config.scheduler
    if origin_by_field["gpu_memory_utilization"] == "default":
        cache = dataclasses.replace(cache, gpu_memory_utilization=UTILIZATION)
    if origin_by_field["max_num_batched_tokens"] == "default":
        scheduler = dataclasses.replace(scheduler, max_num_batched_tokens=GPU_STEP_TOKENS)
    return dataclasses.replace(config, cache=cache, scheduler=scheduler)


def settle(
    name: str,
    model: ModelConfig,
    directory: Path | None,
    config: EngineConfig,
    device: Sheet,
    *,
    context_tokens: int = 0,
    num_nodes: int = 0,
    reserve: str = "",
    experts_format: str = "",
    has_sequence_parallel: bool = False,
    has_hybrid_manager: bool = False,
    has_index_cp: bool = False,
    dual_batch_tokens: int = 0,
    is_drafting: bool = False,
) -> Deployment:
    """Settle a deployment and refuse what cannot be.

    Args:
        directory: of the model, where its drafter is looked for; None where there is none.
        config: as loaded, "auto" and all.
        context_tokens: 0 takes 262,144, or the longest that the model takes.
        num_nodes: 0 takes as few as hold the devices.
        reserve: memory such as "9GB"; "" takes the convention on a GPU, the engine's own formula on a CPU.
        is_drafting: drafts are made even where the drafter does not propose it.

    Raises:
        ConfigError: settings that cannot work together, with the model or with the device.
    """
    is_silent = config.speculation and config.speculative_config == SpeculativeConfig()
    is_bundled = directory is not None and drafter_config.find(directory) is not None
    alone = dataclasses.replace(config, parallel=ParallelConfig())
    if is_drafting and is_silent and is_bundled:
        alone = dataclasses.replace(alone, speculative_config=SpeculativeConfig(method="dspark"))
    alone, model, drafter = load.settle(alone, model, directory)
    deployment = Deployment(
        name=name, model=model, drafter=drafter, config=dataclasses.replace(alone, parallel=config.parallel),
        device=device, num_nodes=num_nodes, reserve=_NOTHING,
        context_tokens=context_tokens or min(CONTEXT_TOKENS, alone.max_model_len), experts_format=experts_format,
        has_sequence_parallel=has_sequence_parallel, has_hybrid_manager=has_hybrid_manager, has_index_cp=has_index_cp,
        dual_batch_tokens=dual_batch_tokens,
    )  # fmt: skip
    _check(deployment)
    return dataclasses.replace(deployment, num_nodes=_nodes(deployment), reserve=_reserve(deployment, reserve))


def _check(deployment: Deployment) -> None:
    tp, model = deployment.config.parallel.tensor_parallel_size, deployment.model
    if deployment.device.kind == "link":
        raise ConfigError(f"--hardware is {deployment.device.name}, a link; name a device")
    if model.num_attention_heads % tp:
        raise ConfigError(f"{tp} ranks do not divide the {model.num_attention_heads} attention heads; take a divisor")
    if deployment.has_sequence_parallel and tp == 1:
        raise ConfigError(
            f"sequence-parallel prefill needs tensor parallelism, {deployment.strategy} has none; take tp4"
        )
    if deployment.context_tokens > deployment.config.max_model_len:
        raise ConfigError(
            f"--context is {deployment.context_tokens}, but --max-model-len is {deployment.config.max_model_len}; "
            "set at most that"
        )
    if deployment.experts_format and deployment.experts_format not in SPEC_BY_NAME:
        raise ConfigError(
            f"--experts-format is {deployment.experts_format!r}; it must be one of {', '.join(SPEC_BY_NAME)}"
        )
    if deployment.experts_format and not any(model.is_moe):
        raise ConfigError(
            f"--experts-format is {deployment.experts_format}, but this model has no experts; leave it out"
        )
    if deployment.has_hybrid_manager and not (deployment.drafter is not None and deployment.drafter.window):
        raise ConfigError("--hybrid-kv-cache-manager is given, but no drafter with a window is served; leave it out")
    deployment.weights()  # refuses ranks that do not divide a weight


def _nodes(deployment: Deployment) -> int:
    per_node, ranks = deployment.device.devices_per_node, deployment.num_ranks
    least = -(-ranks // per_node)
    nodes = deployment.num_nodes or least
    if nodes < least:
        raise ConfigError(f"--nodes is {nodes}; {ranks} devices need {least}, a node has {per_node}")
    if ranks % nodes:
        raise ConfigError(f"--nodes is {nodes}, which does not divide the {ranks} devices of {deployment.strategy}")
    return nodes


def _is_fitted(of: Deployment) -> bool:
    """Whether the reserve was fitted here: the shipped sheet and the very model, not others of the same name."""
    return of.strategy == "DEP4" and any(
        of.device.name == device and of.device == hardware.read(device) and of.model == model_config.known(model)
        for device, model in FITTED_ON
    )


def _reserve(deployment: Deployment, given: str) -> Reserve:
    own = deployment.drafter_bytes
    if given:
        reserve = Reserve(num_bytes=parse_bytes(given), status="given", words="--reserve")
    elif deployment.device.kind == "cpu":
        workspace = budget.workspace_bytes(deployment.config, deployment.model)
        reserve = Reserve(num_bytes=own + workspace, status="forward", words="what the engine sets aside on a CPU")
    else:
        status = "fitted" if _is_fitted(deployment) else "extrapolated"
        reserve = Reserve(
            num_bytes=RESERVE_BYTES, status=status, words="meets published numbers of B300 and GB300, DEP4"
        )
    if reserve.num_bytes < own:
        raise ConfigError(
            f"--reserve is {show_decimal(reserve.num_bytes)}, but the drafter's weights alone take "
            f"{show_decimal(own)}; give more, or leave the drafter out (--no-speculation)"
        )
    return reserve
