"""M3.1-Flash on every device that has a sheet: predictions, not yet compared with any engine's log"""

import dataclasses
from dataclasses import dataclass, field

from minnow.config.parallel import ParallelConfig
from minnow.plan import capacity, published
from minnow.plan.capacity import EVERYTHING, Holding
from minnow.plan.deployment import UTILIZATION, Deployment, parallel_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A deployment to forecast."""

    device: str
    strategy: str
    utilization: float = UTILIZATION
    settings: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a row comes to.

    Attributes:
        even_bytes: weights of a rank where everything but a DEP rank's attention divides evenly, as the forecast has
            it.
        sharded_bytes: as Minnow's table of shards gives them: routers, index keys and the vision tower are copied.
        holding: with the even weights, every stored byte charged.
    """

    row: Row
    even_bytes: int
    sharded_bytes: int
    cache_bytes: int
    holding: Holding

    @property
    def num_tokens(self) -> int:
        """Of the engine: of all its replicas."""
        return self.holding.memory.num_tokens * parallel_of(self.row.strategy).data_parallel_size


_HOPPER: dict[str, object] = {
    "kv_cache_dtype": "fp8",
    "attention_config": {"indexer_kv_dtype": "fp8"},
    "speculation": False,
}
_CDNA4: dict[str, object] = {"experts_format": "mxfp8"}
ROWS = (
    Row(device="h100", strategy="tp8", settings=_HOPPER),
    Row(device="h200", strategy="tp8", settings=_HOPPER),
    Row(device="b200", strategy="tp4"),
    Row(device="gb200", strategy="tp4"),
    Row(device="gb200", strategy="dep4"),
    Row(device="b300", strategy="tp2"),
    Row(device="b300", strategy="tp4"),
    Row(device="b300", strategy="tp8"),
    Row(device="b300", strategy="dep4"),
    Row(device="gb300", strategy="tp4"),
    Row(device="gb300", strategy="dep2"),
    Row(device="gb300", strategy="dep4", utilization=0.95),
    Row(device="mi355x", strategy="tp4", settings=_CDNA4),
    Row(device="rubin", strategy="tp4"),
    Row(device="rubin", strategy="dep4"),
)


def forecast(row: Row) -> Forecast:
    """Add up one row."""
    of = published.deploy(published.FLASH, row.device, row.strategy, row.utilization, **row.settings)
    even_bytes = even_weights_bytes(of)
    holding = capacity.hold(of, EVERYTHING, even_bytes)
    return Forecast(
        row=row,
        even_bytes=even_bytes,
        sharded_bytes=of.weights().num_bytes,
        cache_bytes=holding.memory.limit_bytes - even_bytes - of.reserve.num_bytes,
        holding=holding,
    )


def all_rows() -> tuple[Forecast, ...]:
    """Every row, added up."""
    return tuple(map(forecast, ROWS))


def even_weights_bytes(of: Deployment) -> int:
    """Weights of a rank where tensor parallelism divides all of them, whatever must be copied."""
    parallel = of.config.parallel
    if parallel.tensor_parallel_size == 1:
        return of.weights().num_bytes
    alone = dataclasses.replace(of, config=dataclasses.replace(of.config, parallel=ParallelConfig()))
    return alone.weights().num_bytes // parallel.tensor_parallel_size
