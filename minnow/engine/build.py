"""EngineConfig -> a running Engine: the only composition root"""

from collections.abc import Callable
from pathlib import Path

import torch

from minnow.cache.blocks import BlockPool
from minnow.cache.pool import Pool
from minnow.checkpoint.load import fill, open_drafter, open_weights
from minnow.config import model as model_config
from minnow.config.drafter import DrafterConfig
from minnow.config.engine import EngineConfig
from minnow.core.errors import ConfigError
from minnow.core.log import Logger
from minnow.core.units import show_bytes
from minnow.engine import costs, memory, processors
from minnow.engine.drafting import PlainDrafts
from minnow.engine.engine import Engine
from minnow.engine.pace import StepCosts
from minnow.engine.record import Recorder
from minnow.engine.runner import Runner
from minnow.engine.scheduler import Scheduler
from minnow.engine.speculative import Speculator
from minnow.kernels import native, registry
from minnow.model import decoder_class, native_step
from minnow.model.decoder import Decoder
from minnow.model.dspark import Drafter, DraftFunction
from minnow.model.step import StepFunction

Report = Callable[[str, float], None]

_EAGER_BYTES = 8 << 30  # a copy of this much takes a few seconds; larger checkpoints start faster from their files
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def build(
    config: EngineConfig,
    directory: Path,
    *,
    record: Path | None = None,
    is_bench: bool = False,
    report: Report = lambda stage, share: None,
) -> Engine:
    """Read a checkpoint and make an engine that runs it in this process.

    Args:
        config: as loaded; what is "auto" or 0 in it is settled here.
        directory: of the checkpoint.
        record: file that every plan and result is written to, or None.
        is_bench: drafts may be accepted whatever they are, if that is asked for.
        report: told the stage that is done now, and its share from 0 to 1.

    Raises:
        ConfigError, CheckpointError, CapacityError: before weights are read where that is possible.
    """
    log = Logger("engine")
    report("configuration", 0.0)
    model = model_config.read(directory)
    settled = memory.settle(config, model, directory, is_bench=is_bench)
    config, drafter, layout = settled.config, settled.drafter, settled.layout
    device = device_of(config.kernel.device)
    threads = processors.settle(config.kernel)
    torch.set_num_threads(threads.count)
    native.set_threads(threads.count, threads.cpus)
    kernels = registry.bind(registry.target_of(device), config.kernel.kernel_backends)
    plan = memory.plan(settled, device)
    max_model_len = min(config.max_model_len, plan.num_tokens)
    if max_model_len < config.max_model_len:
        log.warning("context cut", to_tokens=max_model_len, because="--num-gpu-blocks-override holds no more")
    report("weights", 0.0)
    is_eager, refusal = _is_eager(config, plan.weights_bytes), native_step.refusal(kernels)
    digits = _digits(config, is_eager, refusal)
    source = open_weights(directory, model, device, is_eager=is_eager and refusal is not None)
    decoder = decoder_class(model_config.ARCHITECTURE)(settled.model, kernels, _DTYPES[config.dtype], device)
    fill(decoder, source, progress=lambda share: report("weights", share), is_unused=_is_unused(config))
    report("cache", 0.0)
    pool = Pool(layout, plan.num_blocks, device)
    log.info(
        "ready to run",
        device=kernels.target.name,
        dtype=config.dtype,
        cache=config.cache.kv_cache_dtype,
        blocks=plan.num_blocks,
        cache_memory=show_bytes(plan.cache_bytes),
        context_tokens=max_model_len,
    )
    if refusal is None:
        log.info("step function", kind="native", activation_quantization=config.kernel.activation_quantization)
    else:
        log.info("step function", kind="decoder", because=refusal)
    step_function: StepFunction = decoder
    if refusal is None:
        # Threads of torch's own would spin where the team's are to run: 3 ms after every large copy (measured).
        torch.set_num_threads(1)
        step_function = native_step.NativeStep(decoder, pool.layers, is_resident=is_eager, digits=digits)
    runner = Runner(
        step_function,
        pool,
        kernels,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=max_model_len,
        speculator=None if drafter is None else _speculator(config, drafter, decoder, pool, is_eager=is_eager),
    )
    scheduler = Scheduler(
        config.scheduler,
        BlockPool(plan.num_blocks, layout.block_size),
        max_model_len=max_model_len,
        eos_token_ids=model.eos_token_ids,
        seed=config.seed,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        num_speculative_tokens=0 if drafter is None else config.speculative_config.num_speculative_tokens,
        step_costs=_step_costs(config, runner, plan.num_blocks - 1),
    )
    return Engine(
        scheduler,
        runner,
        model=model,
        max_model_len=max_model_len,
        max_logprobs=config.server.max_logprobs,
        recorder=None if record is None else Recorder(record),
    )


def _step_costs(config: EngineConfig, runner: Runner, num_blocks: int) -> StepCosts | None:
    """What steps cost, where drafts are made and verified only as far as it pays."""
    settings = config.speculative_config
    if not settings.enable_adaptive_verification:
        return None
    found = costs.measure(
        runner,
        settings.num_speculative_tokens,
        max_num_seqs=config.scheduler.max_num_seqs,
        num_blocks=num_blocks,
    )
    shown = {f"tokens_{n}_ms": round(1000 * s, 2) for n, s in enumerate(found.drafting[:8], 1)}
    Logger("engine").info("costs of steps", plain_ms=round(1000 * found.plain[0], 2), **shown)
    return found


def _is_unused(config: EngineConfig) -> Callable[[str], bool]:
    """Which weights of the checkpoint the model need not take."""
    return lambda name: config.dense and ".index_" in name


def _speculator(
    config: EngineConfig, drafter: DrafterConfig, decoder: Decoder, pool: Pool, *, is_eager: bool
) -> Speculator:
    """Load a drafter, which shares the decoder's embedding and head."""
    settings, kernels = config.speculative_config, decoder.kernels
    network = Drafter(drafter, kernels, decoder.embed.dtype, pool.device)
    fill(network, open_drafter(Path(settings.model), drafter, pool.device))
    network.share(decoder.embed.weights[0], decoder.head.weights[0])
    refusal = native_step.refusal(kernels) or native_step.draft_refusal(network)
    drafts: DraftFunction = PlainDrafts(network, pool.draft_layers)
    if refusal is None:
        drafts = native_step.NativeDrafts(network, pool.draft_layers, is_resident=is_eager)
    speculator = Speculator(drafts, network, settings, block_size=pool.layout.block_size)
    log = Logger("engine")
    if settings.attention_backend:
        log.info(
            "no effect", key="attention_backend", because="--kernel-backends chooses the backend of each operation"
        )
    if settings.rejection_sample_method == "block" and settings.draft_sample_method == "greedy":
        log.info("no effect", key="rejection_sample_method", because="block keeps more only of probabilistic drafts")
    log.info(
        "drafts",
        tokens=settings.num_speculative_tokens,
        sampling=settings.draft_sample_method,
        verification=settings.rejection_sample_method,
        cache=settings.kv_cache_dtype,
        kind="native" if refusal is None else f"one operation at a time, because {refusal}",
    )
    return speculator


def _is_eager(config: EngineConfig, weights_bytes: int) -> bool:
    """Whether weights are copied out of their files."""
    choice = config.kernel.safetensors_load_strategy
    return choice == "eager" or (choice == "auto" and weights_bytes <= _EAGER_BYTES)


def _digits(config: EngineConfig, is_eager: bool, refusal: str | None) -> int:
    """Bytes of an activation in products with integer weights: 3 unless they are rounded."""
    choice = config.kernel.activation_quantization
    if choice != "none":
        reason = refusal
        if config.dtype != "float32":
            reason = f"activations are {config.dtype}, and only those of --dtype float32 are rounded"
        elif not is_eager:
            reason = "weights are read where they are; --safetensors-load-strategy eager copies them"
        if reason is not None:
            raise ConfigError(f"--activation-quantization {choice} cannot be had here: {reason}")
    return {"none": 3, "int16": 2, "int8": 1}[choice]


def device_of(choice: str) -> torch.device:
    """The device that `--device` names; "auto" takes a GPU when there is one.

    Raises:
        ConfigError: cuda is asked for and there is none.
    """
    has_cuda = torch.cuda.is_available()
    if choice == "cuda" and not has_cuda:
        raise ConfigError("--device is cuda, but torch finds no CUDA device; take --device cpu or auto")
    return torch.device("cuda" if choice == "cuda" or (choice == "auto" and has_cuda) else "cpu")
