"""what ways of a prefill cost and need: sequence parallelism, dual batches, computing anew"""

from minnow.arch import size
from minnow.config.model import ModelConfig

SEQUENCE_PARALLEL_TOKENS = 4096  # steps from here on shard the tokens


def sequence_parallel_bytes(model: ModelConfig) -> int:
    """Bytes that sequence-parallel prefill takes from each rank's cache: the attention's output projections, whole.

    A rank keeps its own part of them for decoding besides.
    """
    return size.bytes_named(model, "self_attn.o_proj")


def num_recomputed_steps(num_tokens: int, max_num_batched_tokens: int) -> int:
    """Steps that a preempted sequence of some length takes again, alone in them."""
    return -(-num_tokens // max_num_batched_tokens)


def problems(
    prefill_threshold: int, decode_threshold: int, *, has_sequence_parallel: bool, most_step_tokens: int
) -> tuple[str, ...]:
    """What is wrong with the thresholds of dual batches, one sentence each.

    Args:
        prefill_threshold: tokens from which a prefill step is split in two.
        decode_threshold: tokens from which a decode step is.
        has_sequence_parallel: the halves are to be sharded by tokens.
        most_step_tokens: of the largest step.
    """
    found = []
    half = prefill_threshold // 2
    if has_sequence_parallel and half < SEQUENCE_PARALLEL_TOKENS:
        found.append(
            f"--dbo-prefill-token-threshold is {prefill_threshold}: halves of {half} tokens are not sharded by tokens; "
            f"set {2 * SEQUENCE_PARALLEL_TOKENS} or more"
        )
    if decode_threshold < most_step_tokens:
        found.append(
            f"--dbo-decode-token-threshold is {decode_threshold}, but a step may have {most_step_tokens} tokens; "
            f"set {most_step_tokens} or more, so that decode steps stay whole"
        )
    return tuple(found)
