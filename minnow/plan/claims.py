"""published numbers of model and memory, each beside what Minnow's arithmetic gives"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from minnow.arch import size
from minnow.arch.size import ModelSize
from minnow.cache.layout import BlockLayout, GroupName, PageGroup
from minnow.config import model as model_config
from minnow.config.model import ModelConfig
from minnow.formats.spec import SPEC_BY_NAME
from minnow.plan import capacity, prefill, published, transfer
from minnow.plan.capacity import EVERYTHING, KV_ONLY
from minnow.plan.deployment import Deployment
from minnow.plan.published import FLASH, M3

Status = Literal["forward", "approx", "identity", "fitted", "config"]
MEANING_BY_STATUS: dict[Status, str] = {
    "forward": "inputs are published elsewhere, none was chosen to hit the number: evidence",
    "approx": "forward, but it agrees within the tolerance only: evidence, with that tolerance",
    "identity": "follows from other stated numbers: consistency only",
    "fitted": "an input was chosen after the number was seen (the note names it): a pin, no evidence",
    "config": "read from the published configuration",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One published number.

    Attributes:
        stated: as published, in `unit`.
        compute: the same from configurations and formulas.
        places: decimal places at which both must be equal; None where a tolerance counts.
        tolerance: share of the stated number.
        note: what it rests on, and what was chosen.
    """

    id: str
    words: str
    stated: float
    unit: str
    status: Status
    compute: Callable[[], float]
    places: int | None = 0
    tolerance: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim and what was computed; `is_ok` where they agree as far as they must."""

    claim: Claim
    computed: float
    is_ok: bool

    @property
    def difference(self) -> float:
        """Share of the stated number by which the computed one is above it."""
        return self.computed / self.claim.stated - 1


def judge(claim: Claim) -> Verdict:
    """Compute a claim and compare."""
    computed, stated = claim.compute(), claim.stated
    if claim.places is not None:
        is_ok = round(computed, claim.places) == stated
    else:
        is_ok = abs(computed - stated) <= claim.tolerance * abs(stated)
    return Verdict(claim=claim, computed=computed, is_ok=is_ok)


def _known(name: str) -> ModelConfig:
    config = model_config.known(name)
    assert config is not None, name
    return config


@cache
def _size(name: str) -> ModelSize:
    return size.measure(_known(name))


@cache
def _row(name: str, strategy: str) -> BlockLayout:
    """A block of M3.1-Flash in NVFP4 with its drafter, or of M3 in FP8, on a rank."""
    of = published.deploy(name, "b300", strategy, kv_cache_dtype="nvfp4" if name == FLASH else "fp8")
    return capacity.row(of, EVERYTHING)


def _token_bytes(layout: BlockLayout, name: GroupName) -> int:
    return _layer_bytes(layout, name) * len(_group(layout, name).layers)


def _layer_bytes(layout: BlockLayout, name: GroupName) -> int:
    return _group(layout, name).token_bytes


def _group(layout: BlockLayout, name: GroupName) -> PageGroup:
    group = layout.group(name)
    assert group is not None, name
    return group


def _checkpoint_gb(name: str) -> float:
    return _size(name).num_bytes / 1e9


def _saving(less: float, more: float) -> float:
    return 100 * (1 - less / more)


def _index_share(name: str) -> float:
    layout = _row(name, "tp1")
    return 100 * _layer_bytes(layout, "index") / _layer_bytes(layout, "kv")


def _sequences(of: Deployment) -> int:
    return capacity.hold(of, KV_ONLY).num_sequences_engine


def _drafter_window() -> int:
    drafter = published.flash().drafter
    assert drafter is not None
    return drafter.window


def _running() -> float:
    """Sequences of a mean length beneath a watermark, from the stated tokens of a rank."""
    rank = published.decode_rank()
    return published.DECODE_TOKENS * (1 - rank.config.scheduler.watermark) // MEAN_CONTEXT_TOKENS


MEAN_CONTEXT_TOKENS = 200_000
_CHECKPOINT_GB, _M3_CHECKPOINT_GB = 250.1, 451.5
_FP8_BYTES, _NVFP4_BYTES = 61_440, 34_560  # of K and V of a token
_AS_C1 = "experts in NVFP4, other linears MXFP8, routers FP32, the rest BF16; M3's shapes; without the drafter"
_ONE_RESERVE = "K and V only, 0.90 of 275,040 MiB, and the one reserve that was chosen for S1, S2 and D1 together"

CLAIMS: tuple[Claim, ...] = (
    Claim(id="P1", words="parameters", stated=428, unit="B", status="approx", places=None, tolerance=0.005,
          compute=lambda: _size(FLASH).num_parameters / 1e9, note="the drafter is not counted"),
    Claim(id="P2", words="active parameters", stated=23, unit="B", status="approx", places=None, tolerance=0.025,
          compute=lambda: _size(FLASH).num_active_parameters / 1e9,
          note="without embedding and head; the counting rule is not published, and this does not round to 23"),
    Claim(id="C1", words="checkpoint of M3.1-Flash", stated=_CHECKPOINT_GB, unit="GB", status="forward", places=1,
          compute=lambda: _checkpoint_gb(FLASH), note=_AS_C1),
    Claim(id="C2", words="checkpoint of M3-MXFP8", stated=_M3_CHECKPOINT_GB, unit="GB", status="approx", places=None,
          tolerance=0.02, compute=lambda: _checkpoint_gb(M3),
          note="the rule of C1; the gap stays open, public listings of the repository say about 444"),
    Claim(id="C2h", words="the same and one MXFP8 layer for MTP", stated=_M3_CHECKPOINT_GB, unit="GB",
          status="fitted", places=1,
          compute=lambda: (_size(M3).num_bytes + published.mtp_bytes(_known(M3))) / 1e9,
          note="the layer was added because it closes the gap of C2"),
    Claim(id="C3", words="smaller than M3-MXFP8", stated=44.6, unit="%", status="identity", places=1,
          compute=lambda: _saving(_CHECKPOINT_GB, _M3_CHECKPOINT_GB), note="from the two stated sizes"),
    Claim(id="K1", words="K and V of a token, FP8", stated=_FP8_BYTES, unit="bytes", status="forward",
          compute=lambda: _token_bytes(_row(M3, "tp1"), "kv")),
    Claim(id="K2", words="K and V of a token, NVFP4", stated=_NVFP4_BYTES, unit="bytes", status="forward",
          compute=lambda: _token_bytes(_row(FLASH, "tp1"), "kv")),
    Claim(id="K3", words="NVFP4 below FP8", stated=43.75, unit="%", status="identity", places=2,
          compute=lambda: _saving(_NVFP4_BYTES, _FP8_BYTES)),
    Claim(id="K4", words="index keys of a token and layer, FP8", stated=128, unit="bytes", status="forward",
          compute=lambda: _layer_bytes(_row(M3, "tp1"), "index")),
    Claim(id="K5", words="K and V of a token and layer, FP8", stated=1024, unit="bytes", status="forward",
          compute=lambda: _layer_bytes(_row(M3, "tp1"), "kv")),
    Claim(id="K6", words="index scan against dense reads, FP8", stated=12.5, unit="%", status="identity", places=1,
          compute=lambda: _index_share(M3), note="the index scan alone; chosen blocks add 2,048 / context"),
    Claim(id="K6b", words="index scan against dense reads, NVFP4", stated=12.5, unit="%", status="identity", places=1,
          compute=lambda: _index_share(FLASH), note="the index scan alone; chosen blocks add 2,048 / context"),
    Claim(id="K7", words="keys that a query attends to", stated=2048, unit="keys", status="forward",
          compute=lambda: _known(FLASH).sparse.num_blocks * _known(FLASH).sparse.block_size),
    Claim(id="bits", words="a value in NVFP4", stated=4.5, unit="bits", status="identity", places=1,
          compute=lambda: 8 * SPEC_BY_NAME["nvfp4"].num_bytes(16) / 16),
    Claim(id="context", words="context", stated=2**20, unit="tokens", status="config",
          compute=lambda: _known(FLASH).max_position_embeddings, note="published as 1M"),
    Claim(id="layers", words="layers", stated=60, unit="", status="config",
          compute=lambda: _known(FLASH).num_hidden_layers),
    Claim(id="heads", words="query heads", stated=64, unit="", status="config",
          compute=lambda: _known(FLASH).num_attention_heads),
    Claim(id="kv heads", words="key/value heads", stated=4, unit="", status="config",
          compute=lambda: _known(FLASH).num_key_value_heads),
    Claim(id="head dim", words="values of a head", stated=128, unit="", status="config",
          compute=lambda: _known(FLASH).head_dim),
    Claim(id="window", words="tokens that the drafter sees back", stated=4096, unit="tokens", status="config",
          compute=_drafter_window),
    Claim(id="R1", words="pages of a block", stated=125, unit="pages", status="fitted",
          compute=lambda: _row(FLASH, "tp4").num_pages,
          note="60 of K/V, 60 of index keys; 5 of the drafter, whose depth was first read off this number"),
    Claim(id="R2", words="a block in one row, TP4", stated=1.82, unit="MB", status="fitted", places=2,
          compute=lambda: _row(FLASH, "tp4").row_bytes / 1e6,
          note="the drafter's heads were chosen; 1.659 MB without it are forward"),
    Claim(id="S1", words="sequences of 256K, M3.1-Flash, 4x B300 DEP4", stated=published.FLASH_SEQUENCES,
          unit="sequences", status="fitted", compute=lambda: _sequences(published.flash()), note=_ONE_RESERVE),
    Claim(id="S2", words="sequences of 256K, M3 in FP8, 4x B300 DEP4", stated=published.M3_SEQUENCES,
          unit="sequences", status="fitted", compute=lambda: _sequences(published.m3()), note=_ONE_RESERVE),
    Claim(id="S3", words="S1 to S2", stated=2.7, unit="x", status="identity", places=1,
          compute=lambda: published.FLASH_SEQUENCES / published.M3_SEQUENCES),
    Claim(id="D1", words="tokens of a decode rank, GB300 DEP4", stated=published.DECODE_TOKENS / 1e6, unit="M tokens",
          status="fitted", places=None, tolerance=0.02,
          compute=lambda: capacity.hold(published.decode_rank(), EVERYTHING).memory.num_tokens / 1e6,
          note="0.95 is stated; the reserve of S1; every stored byte charged, which S1 and S2 do not"),
    Claim(id="D2", words="running at 200K on average, upper end", stated=21, unit="sequences", status="identity",
          compute=_running, note="from the stated tokens, watermark and mean; the lower end, 19, is not derived"),
    Claim(id="D3", words="tokens of the largest decode graph", stated=224, unit="tokens", status="identity",
          compute=lambda: capacity.measure(published.decode_rank()).graph_tokens,
          note="28 sequences, a token and 7 drafts each"),
    Claim(id="H1", words="host memory of a rank", stated=560, unit="GiB", status="identity",
          compute=lambda: 601_295_421_440 / 2**30, note="from the stated bytes"),
    Claim(id="H2", words="huge pages of four ranks", stated=2240, unit="pages", status="identity",
          compute=lambda: transfer.offload(_row(FLASH, "tp4"), 560 * 2**30, 4).num_huge_pages),
    Claim(id="H3", words="host memory of a prefill rank", stated=180, unit="GiB", status="identity",
          compute=lambda: 193_273_528_320 / 2**30, note="from the stated bytes"),
    Claim(id="O1", words="output projections, whole, for SP", stated=3.1, unit="GB", status="approx", places=1,
          compute=lambda: prefill.sequence_parallel_bytes(_known(FLASH)) / 1e9, note="a whole copy, in MXFP8"),
)  # fmt: skip


def judge_all() -> tuple[Verdict, ...]:
    """Every claim, computed and compared."""
    return tuple(map(judge, CLAIMS))
