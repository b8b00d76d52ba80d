"""MSA: choose the blocks that a query reads"""

from minnow.kernels.contract import Op

OP = Op(
    name="block_topk",
    inputs={
        "scores": "f32 [T I M]",
        "positions": "i32 [T]",
        "num_blocks": "scalar",
        "block_size": "scalar",
        "num_local_blocks": "scalar",
        "num_init_blocks": "scalar",
    },
    outputs={"blocks": "i32 [T I K]"},
    cost=lambda T, I, M, K=16: (T * I * M * 4, T * I * (M * 4 + K * 4)),
    cases=(
        {"T": 1, "I": 1, "M": 1, "K": 4, "L": 16, "init": 0},
        {"T": 6, "I": 4, "M": 40, "K": 16, "L": 16, "init": 0},
        {"T": 5, "I": 2, "M": 9, "K": 4, "L": 16, "init": 1},
        {"T": 0, "I": 2, "M": 3, "K": 2, "L": 16, "init": 0},
        {"T": 3, "I": 4, "M": 700, "K": 16, "L": 128, "init": 2},
    ),
    device_cases=({"T": 256, "I": 4, "M": 8192, "K": 16, "L": 128, "init": 0},),
)
