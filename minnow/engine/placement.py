"""keeps this thread, and those it starts, to some CPUs and takes memory from some NUMA nodes"""

import ctypes
import os
import platform
from collections.abc import Callable, Collection
from dataclasses import dataclass

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}  # numbers of the system call, by machine
_PREFERRED, _INTERLEAVE = 1, 3  # modes of linux/mempolicy.h
_MASK_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The calls that bind; each raises OSError where the system refuses.

    Attributes:
        set_affinity: takes the CPUs.
        set_memory_policy: takes a mode of linux/mempolicy.h and the nodes.
    """

    set_affinity: Callable[[Collection[int]], None]
    set_memory_policy: Callable[[int, Collection[int]], None]


def linux() -> System:
    """The real calls."""
    return System(set_affinity=lambda cpus: os.sched_setaffinity(0, cpus), set_memory_policy=_set_memory_policy)


def bind(cpus: Collection[int], nodes: Collection[int], system: System) -> list[str]:
    """Keep the calling thread and all threads it will start to CPUs and memory; empty ones change nothing.

    One node is preferred, not forced: a model that is larger goes on to the next instead of dying. Several take turns,
    page by page, as every thread reads from all of them.

    Returns:
        What the system refused, a clause each; containers often allow no memory policy. It works without, slower.
    """
    refused = []
    if cpus:
        try:
            system.set_affinity(cpus)
        except OSError as error:
            refused.append(f"the affinity mask cannot be set ({error.strerror})")
    if nodes:
        try:
            system.set_memory_policy(_PREFERRED if len(nodes) == 1 else _INTERLEAVE, nodes)
        except OSError as error:
            refused.append(f"the memory policy cannot be set ({error.strerror}; a container needs CAP_SYS_NICE)")
    return refused


def _set_memory_policy(mode: int, nodes: Collection[int]) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(0, f"unknown on {platform.machine()}")
    num_words = max(nodes) // _MASK_WORD_BITS + 1
    mask = (ctypes.c_ulong * num_words)()
    for node in nodes:
        mask[node // _MASK_WORD_BITS] |= 1 << node % _MASK_WORD_BITS
    call = ctypes.CDLL(None, use_errno=True).syscall
    # The kernel reads one bit less than it is told.
    if call(number, ctypes.c_long(mode), mask, ctypes.c_ulong(num_words * _MASK_WORD_BITS + 1)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
