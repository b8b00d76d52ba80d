"""what simulations of tests are made of: small engines whose steps take made-up times"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from minnow.config.scheduler import SchedulerConfig
from minnow.plan import hardware, simulation
from minnow.plan.acceptance import AcceptanceLaw
from minnow.plan.cluster import Cluster, Pool
from minnow.plan.rank import RankShape
from minnow.plan.simulation import Outcome
from minnow.plan.work import Limits, Work
from minnow.plan.workload import Piece, Session, Turn, Workload

SHAPE = RankShape(
    scheduler=SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=16),
    num_blocks=400,
    block_size=16,
    row_bytes=1_000_000,
    max_model_len=4096,
    has_prefix_cache=True,
    num_drafts=0,
    limits=Limits(chosen_tokens=128, window_tokens=64),
)
B300 = hardware.read("b300")


def seconds(work: Work) -> float:
    """A step: a floor, and something for each token, sequence and key."""
    return 0.004 + 2e-5 * work.num_tokens + 1e-7 * work.context_tokens + 3e-7 * work.chosen_pairs


def pool(*, engines: int = 1, ranks: int = 1, **changes: Any) -> Pool:
    """Engines of ranks as SHAPE has them, but for some fields."""
    return Pool(
        shape=replace(SHAPE, **changes), num_engines=engines, num_ranks=ranks, num_devices=engines * ranks,
        seconds=seconds,
    )  # fmt: skip


def cluster(*, law: AcceptanceLaw | None = None, **changes: Any) -> Cluster:
    """One pool."""
    words = {name: changes.pop(name) for name in ("routing", "is_repeating", "prefill", "handover") if name in changes}
    return Cluster(pool=pool(**changes), law=law, **words)


def play(on: Cluster, sessions: Iterable[Session], **limits: Any) -> Outcome:
    """What sessions come to."""
    return simulation.simulate(on, Workload(sessions=sessions, **limits), B300)


def alone(number: int, start_s: float = 0.0, num_input_tokens: int = 100, num_output_tokens: int = 10) -> Session:
    """A request of its own text."""
    turn = Turn(pieces=(Piece(number, num_input_tokens),), num_output_tokens=num_output_tokens)
    return Session(turns=(turn,), start_s=start_s)
