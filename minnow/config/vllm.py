"""table of vLLM flags: same, other meaning, no effect, not yet, refused (with a reason)"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from minnow.core import env

VERSION = "0.33.0"
DEST = "vllm:"  # before the flag's name in a Namespace

Verdict = Literal["same", "other meaning", "no effect", "not yet", "refused"]  # "not yet": planned with, no launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one flag, JSON key or environment variable of vLLM.

    Attributes:
        flag: "--enforce-eager", "--attention-config.indexer_decode_cp" (a key of a JSON flag), or "VLLM_USE_V1".
        reason: why, and what to use; a clause.
        harmless: values of a refused flag that ask for nothing Minnow lacks; they have no effect.
        choices: the values there are; empty where any goes.
        needs_value: a recipe leaves it to be filled in; set but empty, it is not ready for a launch.
    """

    flag: str
    verdict: Verdict
    reason: str = ""
    aliases: tuple[str, ...] = ()
    takes_value: bool = True
    takes_many: bool = False
    harmless: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    needs_value: bool = False


def _same(*flags: str) -> tuple[Row, ...]:
    return tuple(Row(flag=flag, verdict="same") for flag in flags)


def _other(flag: str, reason: str) -> Row:
    return Row(flag=flag, verdict="other meaning", reason=reason)


def _switches(verdict: Verdict, reason: str, *flags: str) -> tuple[Row, ...]:
    return tuple(Row(flag=flag, verdict=verdict, reason=reason, takes_value=False) for flag in flags)


def _ignored(reason: str, *flags: str, aliases: tuple[str, ...] = ()) -> tuple[Row, ...]:
    return tuple(Row(flag=flag, verdict="no effect", reason=reason, aliases=aliases) for flag in flags)


def _refused(
    reason: str, *flags: str, aliases: tuple[str, ...] = (), harmless: tuple[str, ...] = ()
) -> tuple[Row, ...]:
    return tuple(Row(flag=f, verdict="refused", reason=reason, aliases=aliases, harmless=harmless) for f in flags)


def _later(reason: str, *flags: str, harmless: tuple[str, ...] = (), choices: tuple[str, ...] = ()) -> tuple[Row, ...]:
    return tuple(Row(flag=f, verdict="not yet", reason=reason, harmless=harmless, choices=choices) for f in flags)


_KERNELS = "--kernel-backends chooses the backend of each operation"
_GRAPHS = "steps run as they are; nothing is compiled or captured"
_ONE_DEVICE = "one device sends nothing, so there is nothing to overlap"
_HALVES = "steps are never split in two, since one device sends nothing; a plan checks the thresholds"
_MACHINES = "an engine has one process on one machine; leave it out"
_EXPERTS = "experts are not converted when they are loaded; minnow convert writes a checkpoint that has them so"
_REASONING = "reasoning is not split from the text yet; leave it out"
_PARSERS = ("minimax_m3",)
_FORMATS = "weights are served in the checkpoint's own formats; minnow convert writes others"
_TOOLS = "tool calls are not parsed yet; leave it out"
_TEXT_ONLY = "only text is served, images and videos are refused"
_LORA = "LoRA adapters are not served yet; leave it out"
_TRANSFER = "blocks are not moved between machines or to host memory yet; leave it out"
_APART = "blocks are not moved between machines"
_PROXY = "the server speaks plain HTTP; put a proxy before it"

FLAGS: tuple[Row, ...] = (
    *_same(
        "--model", "--dtype", "--seed", "--max-model-len", "--block-size", "--kv-cache-dtype",
        "--num-gpu-blocks-override", "--enable-prefix-caching", "--max-num-batched-tokens", "--max-num-seqs",
        "--long-prefill-token-threshold", "--scheduler-reserve-full-isl", "--watermark", "--scheduling-policy",
        "--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel", "--attention-config",
        "--speculative-config",
        "--host", "--port", "--max-logprobs", "--chat-template", "--shutdown-timeout",
        "--numa-bind", "--numa-bind-nodes", "--numa-bind-cpus", "--safetensors-load-strategy",
    ),
    _other("--gpu-memory-utilization", "a share of the memory of any device, the main memory of a CPU machine too"),
    _other("--kv-cache-memory-bytes", "takes units: 2GiB is binary, 2GB and 2G are decimal"),
    _other("--served-model-name", "takes one name"),
    _other("--api-key", "takes one key"),
    _other("--config", "takes JSON or TOML, no YAML"),
    # kernels, graphs, memory: things of another engine's inside
    *_ignored(_KERNELS, "--moe-backend", "--attention-backend", "--linear-backend", "--all2all-backend"),
    *_ignored(_GRAPHS, "--compilation-config", aliases=("-cc",)),
    *_ignored(_GRAPHS, "--optimization-level", aliases=("-O",)),
    *_ignored(_GRAPHS, "--cudagraph-capture-sizes", "--max-cudagraph-capture-size"),
    *_switches("no effect", _GRAPHS, "--enforce-eager", "--disable-cascade-attn"),
    *_switches("no effect", "all layers always share one block table", "--disable-hybrid-kv-cache-manager"),
    *_switches("no effect", "prompts longer than a step are always split", "--enable-chunked-prefill"),
    *_switches("no effect", "the loop fits the device by itself", "--async-scheduling"),
    *_switches("no effect", _ONE_DEVICE, "--disable-custom-all-reduce"),
    *_switches("no effect", _HALVES, "--enable-dbo"),
    *_ignored(_HALVES, "--dbo-decode-token-threshold", "--dbo-prefill-token-threshold"),
    *_ignored("preempted sequences are computed anew, never swapped", "--swap-space"),
    *_ignored("blocks are always hashed with SHA-256", "--prefix-caching-hash-algo"),
    *_ignored("one process does all the work", "--distributed-executor-backend", "--max-parallel-loading-workers"),
    *_ignored("the queries stay in BF16, which is more exact", "--attention-config.use_prefill_query_quantization"),
    *_ignored("one device scores every block itself; a plan checks the role", "--attention-config.indexer_decode_cp"),
    # weights and their whereabouts
    *_switches("no effect", "no code of a checkpoint is ever run", "--trust-remote-code"),
    *_refused(
        "weights are read from safetensors; minnow convert reads GGUF", "--load-format",
        harmless=("auto", "safetensors"),
    ),
    *_refused(_FORMATS, "--quantization", aliases=("-q",)),
    *_refused(_FORMATS, "--hf-overrides"),
    *_later(_EXPERTS, "--quantization-config", "--quantization-config.moe"),
    *_refused("the model is the directory that is named; leave it out", "--revision", "--code-revision"),
    *_refused("the tokenizer is the one in the model's directory; leave it out", "--tokenizer", "--tokenizer-revision"),
    *_refused("only tokenizer.json is read; leave it out", "--tokenizer-mode", harmless=("auto", "hf")),
    *_refused("models lie under MINNOW_HOME; set that instead", "--download-dir"),
    *_refused("nothing is fetched from a hub; leave it out", "--hf-token"),
    *_refused("requests say how they are sampled; leave it out", "--override-generation-config"),
    *_refused("weights stay on the device; leave it out", "--cpu-offload-gb", harmless=("0",)),
    # features that do not exist yet
    *_refused("give --speculative-config instead", "--spec-method", "--spec-model", "--spec-tokens"),
    *_later(_TOOLS, "--tool-call-parser", choices=_PARSERS),
    *_switches("not yet", _TOOLS, "--enable-auto-tool-choice"),
    *_later(_REASONING, "--reasoning-parser", choices=_PARSERS),
    *_refused(_TOOLS, "--tool-parser-plugin"),
    *_refused(_REASONING, "--reasoning-config"),
    *_refused("grammars are not served yet; leave it out", "--structured-outputs-config"),
    *_later(_TRANSFER, "--kv-transfer-config"),
    *_refused(_TRANSFER, "--kv-events-config", "--ec-transfer-config"),
    *_refused(_TRANSFER, "--kv-offloading-size", "--kv-offloading-backend"),
    *_switches("refused", _LORA, "--enable-lora"),
    Row(flag="--lora-modules", verdict="refused", reason=_LORA, takes_many=True),
    *_ignored(_LORA, "--max-loras", "--max-lora-rank"),
    *_switches("refused", "weights cannot be put to sleep yet; leave it out", "--enable-sleep-mode"),
    *_ignored(_TEXT_ONLY, "--limit-mm-per-prompt", "--mm-encoder-tp-mode", "--mm-processor-cache-gb"),
    *_ignored(_TEXT_ONLY, "--mm-processor-kwargs", "--media-io-kwargs"),
    *_switches("no effect", _TEXT_ONLY, "--language-model-only"),
    # many devices and machines
    *_refused("layers are never spread over devices; leave it out", "--pipeline-parallel-size", aliases=("-pp",),
              harmless=("1",)),
    *_refused("not served yet; leave it out", "--decode-context-parallel-size", aliases=("-dcp",), harmless=("1",)),
    *_refused("not served yet; leave it out", "--prefill-context-parallel-size", aliases=("-pcp",), harmless=("1",)),
    *_later(_MACHINES, "--nnodes", harmless=("1",)),
    *_later(_MACHINES, "--node-rank", harmless=("0",)),
    *_later(_MACHINES, "--master-addr", "--master-port", "--data-parallel-address", "--data-parallel-rpc-port"),
    *_later(_MACHINES, "--data-parallel-size-local", "--data-parallel-rank", "--data-parallel-start-rank"),
    *_refused(_MACHINES, "--data-parallel-backend", harmless=("mp",)),
    *_switches("not yet", _MACHINES, "--headless"),
    *_switches("refused", _MACHINES, "--data-parallel-hybrid-lb", "--data-parallel-external-lb"),
    *_switches("refused", "experts are not moved while serving; leave it out", "--enable-eplb"),
    # the door
    *_switches("no effect", "requests are never logged", "--enable-log-requests", "--disable-log-requests"),
    *_switches("no effect", "MINNOW_LOG sets what is logged", "--disable-log-stats", "--disable-uvicorn-access-log"),
    *_ignored("MINNOW_LOG sets what is logged", "--uvicorn-log-level"),
    *_switches("no effect", "cached tokens are always reported", "--enable-prompt-tokens-details"),
    *_ignored("there is one process for the door", "--api-server-count", aliases=("-asc",)),
    *_refused(_PROXY, "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--root-path"),
    *_refused(
        "pages of other origins get no answer; serve them through a proxy of the same origin",
        "--allowed-origins", "--allowed-methods", "--allowed-headers",
    ),
    *_refused("send chat_template_kwargs with each request", "--default-chat-template-kwargs"),
)  # fmt: skip

ENVIRONMENT: tuple[Row, ...] = (
    *_ignored("products of FP32 values are never rounded", "VLLM_FLOAT32_MATMUL_PRECISION"),
    *_ignored(_KERNELS, "VLLM_ROCM_USE_AITER", "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS", "VLLM_ATTENTION_BACKEND"),
    *_ignored("there is one runner", "VLLM_USE_V1", "VLLM_USE_V2_MODEL_RUNNER"),
    *_ignored("prefill is not sharded by tokens; a plan counts its copies", "VLLM_ROCM_MINIMAX_M3_SP_PREFILL"),
    *_ignored("the door waits for its engine as long as it takes", "VLLM_ENGINE_READY_TIMEOUT_S"),
    *_ignored("--engine-step-timeout says how long a step may take", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
    Row(flag="VLLM_NIXL_SIDE_CHANNEL_HOST", verdict="no effect", reason=_APART, needs_value=True),
    *_ignored(_APART, "VLLM_NIXL_SIDE_CHANNEL_PORT"),
    *_refused("a block always holds all its layers, as in BLHNC", "VLLM_KV_CACHE_LAYOUT", harmless=("BLHNC",)),
    *_refused("it would guard nothing here; set MINNOW_API_KEY or --api-key", "VLLM_API_KEY"),
    *_ignored("use --kv-cache-memory-bytes", "VLLM_CPU_KVCACHE_SPACE"),
    *_ignored("use --num-threads", "VLLM_CPU_OMP_THREADS_BIND"),
    *_ignored("use MINNOW_LOG", "VLLM_LOGGING_LEVEL"),
)  # fmt: skip


def find(name: str) -> Row | None:
    """The row of a flag (any of its spellings), JSON key or environment variable."""
    return next((row for row in (*FLAGS, *ENVIRONMENT) if name in (row.flag, *row.aliases)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the vLLM words of a command line and environment come to.

    Attributes:
        value_by_flag: all that are given.
        ignored, not_yet, refused: flag -> reason. A plan may be made with what a launch does not do yet.
    """

    value_by_flag: Mapping[str, object]
    ignored: Mapping[str, str]
    not_yet: Mapping[str, str]
    refused: Mapping[str, str]


def judge(values_by_flag: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Outcome:
    """Sort given vLLM flags, JSON keys and environment variables by what becomes of them.

    Args:
        values_by_flag: flag of `FLAGS` -> the value given (text, a list of texts, or a bool).
        environ: the environment; None reads the process's own.
    """
    given = {**values_by_flag, **env.read_prefixed("VLLM_", environ)}
    found: dict[str, dict[str, str]] = {"no effect": {}, "not yet": {}, "refused": {}}
    for flag, value in given.items():
        verdict, reason = _judge(find(flag), flag, value)
        if verdict:
            found[verdict][flag] = reason
    return Outcome(value_by_flag=given, ignored=found["no effect"], not_yet=found["not yet"], refused=found["refused"])


def _judge(row: Row | None, flag: str, value: object) -> tuple[str, str]:
    """Verdict and reason; both are empty where nothing was asked for."""
    is_variable = not flag.startswith("-")
    if is_variable and not value:
        lacks = row is not None and row.needs_value
        return (
            ("not yet", "it is empty; set this node's own address, which the other one reaches") if lacks else ("", "")
        )
    if row is None:
        return "no effect", "Minnow does not read it"
    if row.choices and value not in row.choices:
        return "refused", f"it is {value!r}; it must be one of {', '.join(row.choices)}"
    asks = value is not False and str(value) not in row.harmless
    return (row.verdict, row.reason) if asks else ("no effect", row.reason)
