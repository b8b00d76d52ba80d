"""verify on a CPU, in C++: sums in double precision, rows shared out among threads"""

import torch
from torch import Tensor

from minnow.kernels import native
from minnow.kernels.contract import Target


def refusal(target: Target) -> str | None:
    """Only a CPU."""
    return None if target.kind == "cpu" else f"it computes on the CPU, this device is {target.kind}"


def verify(
    p: Tensor, q: Tensor | None, drafts: Tensor, starts: Tensor, uniform: Tensor, rule: str
) -> tuple[Tensor, Tensor]:
    """Keep the first drafts of each sequence so that what comes out has the law of p; see reference.py."""
    num_sequences, num_tokens = len(starts) - 1, p.shape[1]
    columns = [column.contiguous() for column in (p, drafts, starts, uniform)]
    own_q = None if q is None else q.contiguous()
    num_accepted, ids = torch.empty(2, num_sequences, dtype=torch.int64)
    native.function("verify", "pppppppiii")(
        columns[0].data_ptr(), None if own_q is None else own_q.data_ptr(),
        *(column.data_ptr() for column in columns[1:]), num_accepted.data_ptr(), ids.data_ptr(),
        num_sequences, num_tokens, rule == "block",
    )  # fmt: skip
    return num_accepted, ids
