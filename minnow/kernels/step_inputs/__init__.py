"""rows of the request table to ids, positions and slots of a step's tokens"""

from minnow.kernels.contract import Op

OP = Op(
    name="step_inputs",
    inputs={
        "ids": "i32 [T]",
        "rows": "i32 [S]",
        "starts": "i32 [S]",
        "query_start": "i32 [S1]",
        "last_token": "i32 [R]",
        "row_blocks": "i32 [R M]",
        "block_size": "scalar",
    },
    outputs={"ids": "i32 [T]", "positions": "i32 [T]", "slots": "i64 [T]", "block_table": "i32 [S M]"},
    cost=lambda T, S, M: (8 * T, 24 * T + 8 * S * M),
    cases=({"queries": (1,), "L": 16}, {"queries": (1, 20, 0, 3), "L": 16}),
    device_cases=({"queries": (1,) * 200 + (2048,), "L": 128},),
)
