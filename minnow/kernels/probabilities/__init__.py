"""logits to the distributions that sample draws from: temperature, top-k, top-p, min-p"""

from minnow.kernels.contract import Op

OP = Op(
    name="probabilities",
    inputs={
        "logits": "f32 [S V]",
        "temperature": "f32 [S]",
        "top_k": "i64 [S]",
        "top_p": "f32 [S]",
        "min_p": "f32 [S]",
    },
    outputs={"p": "f32 [S V]"},
    cost=lambda S, V: (20 * S * V, 8 * S * V),
    cases=(
        {"S": 1, "V": 11},
        {"S": 6, "V": 200},
        {"S": 0, "V": 5},
        {"S": 2, "V": 1},
        {"S": 7, "V": 2049, "scale": 0.01},
        {"S": 12, "V": 49152},
        {"S": 6, "V": 300, "has_bad_rows": True},
    ),
    device_cases=({"S": 64, "V": 200064},),
    rtol=1e-5,
    atol=1e-7,
)
