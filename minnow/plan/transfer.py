"""moving cache: from a prefill engine to a decode engine, and to host memory in huge pages"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minnow.cache.layout import BlockLayout
from minnow.core.errors import ConfigError
from minnow.plan import hardware
from minnow.plan.capacity import Capacity

HUGE_PAGE_BYTES = 1 << 30
HUGE_PAGES_FILE = "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The blocks of one sequence on one rank, on their way to another.

    Attributes:
        num_bytes: of whole blocks: the last one travels as it is.
        reads_by_page: remote reads where each layer's pages lie apart.
        reads_by_block: where a block is one run of bytes.
        seconds_by_link: bytes over the rate of each link one way; latencies are left out.
        has_one_layout: both sides lay a block out the same way, so rows travel as they are.
    """

    num_blocks: int
    num_bytes: int
    reads_by_page: int
    reads_by_block: int
    seconds_by_link: dict[str, float]
    has_one_layout: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Cache in host memory.

    Attributes:
        bytes_a_rank: of host memory.
        num_blocks, num_tokens: that one rank's share holds.
        total_bytes: of all ranks.
        num_nodes: that the ranks share.
        num_huge_pages: of 1 GiB, to be reserved on each node before the start; 0 where memory comes in ordinary pages.
    """

    bytes_a_rank: int
    num_blocks: int
    num_tokens: int
    total_bytes: int
    num_nodes: int
    num_huge_pages: int


def move(layout: BlockLayout, num_tokens: int, rate_by_link: Mapping[str, float]) -> Transfer:
    """What a sequence of some length has to move from each rank.

    Args:
        rate_by_link: bytes a second, one way.
    """
    num_blocks = -(-num_tokens // layout.block_size)
    num_bytes = num_blocks * layout.row_bytes
    return Transfer(
        num_blocks=num_blocks,
        num_bytes=num_bytes,
        reads_by_page=num_blocks * layout.num_pages,
        reads_by_block=num_blocks,
        seconds_by_link={link: num_bytes / rate for link, rate in rate_by_link.items()},
    )


def between(prefill: Capacity, decode: Capacity) -> Transfer:
    """One sequence from a rank of an engine that prefills, over every network card and the devices' own links."""
    rates = {sheet.title: sheet.figures["rate"].value for sheet in hardware.read_all("link")}
    device = prefill.deployment.device
    if "scale_up" in device.figures:
        rates[f"{device.title}'s own links"] = device.figures["scale_up"].value
    here, there = prefill.allocated.layout, decode.allocated.layout
    moved = move(here, decode.deployment.context_tokens, rates)
    return dataclasses.replace(moved, has_one_layout=here.layout_id == there.layout_id)


def huge_pages(bytes_a_rank: int, num_ranks: int) -> int:
    """Pages of 1 GiB that some ranks need on a node.

    Raises:
        ConfigError: a rank's memory does not fill whole pages.
    """
    if bytes_a_rank <= 0 or bytes_a_rank % HUGE_PAGE_BYTES:
        whole = max(round(bytes_a_rank / HUGE_PAGE_BYTES), 1)
        raise ConfigError(f"host memory is {bytes_a_rank} bytes a rank, no whole number of 1 GiB pages; set {whole}GiB")
    return bytes_a_rank // HUGE_PAGE_BYTES * num_ranks


def free_huge_pages(folder: Path = Path(HUGE_PAGES_FILE).parent) -> int:
    """Pages of 1 GiB that are reserved on this machine and not in use; none where there is no such size."""
    path = folder / "free_hugepages"
    return int(path.read_text(encoding="ascii")) if path.is_file() else 0


def offload(
    layout: BlockLayout, bytes_a_rank: int, num_ranks: int, *, num_nodes: int = 1, has_huge_pages: bool = True
) -> Offload:
    """What host memory holds.

    Args:
        layout: of a block on a rank.
        bytes_a_rank: of host memory that each rank may use.
        num_nodes: that the ranks are spread over evenly.

    Raises:
        ConfigError: they do not fill whole huge pages.
    """
    num_huge_pages = huge_pages(bytes_a_rank, num_ranks // num_nodes) if has_huge_pages else 0
    num_blocks = bytes_a_rank // layout.row_bytes
    return Offload(
        bytes_a_rank=bytes_a_rank,
        num_blocks=num_blocks,
        num_tokens=num_blocks * layout.block_size,
        total_bytes=bytes_a_rank * num_ranks,
        num_nodes=num_nodes,
        num_huge_pages=num_huge_pages,
    )
