"""logits to tokens: temperature, top-k, top-p, min-p, and one random number a row"""

from minnow.kernels.contract import Op

NOT_FINITE, NONE_OPEN = -1, -2
"""Instead of an id: a logit of the row is NaN or plus infinity; every token of the row is banned."""

OP = Op(
    name="sample",
    inputs={
        "logits": "f32 [S V]",
        "temperature": "f32 [S]",
        "top_k": "i64 [S]",
        "top_p": "f32 [S]",
        "min_p": "f32 [S]",
        "uniform": "f64 [S]",
    },
    outputs={"ids": "i64 [S]"},
    cost=lambda S, V: (20 * S * V, 4 * S * V),
    cases=(
        {"S": 1, "V": 11},
        {"S": 6, "V": 200},
        {"S": 0, "V": 5},
        {"S": 2, "V": 1},
        {"S": 5, "V": 40, "scale": 1e30},
        {"S": 7, "V": 2049, "scale": 0.01},
        {"S": 12, "V": 49152},
        {"S": 6, "V": 300, "has_bad_rows": True},
    ),
    device_cases=({"S": 64, "V": 200064},),
)
