"""gated feed-forward of each token's experts, weighed and summed; a dense layer is one expert for all"""

from minnow.kernels.contract import Op

OP = Op(
    name="experts",
    inputs={
        "x": "bf16|f32 [T D]",
        "ids": "i64? [T A]",
        "weights": "f32? [T A]",
        "table": "scalar",
        "activation": "scalar",
    },
    outputs={"y": "same [T D]"},
    cost=lambda T, D, F, A=1, num_read=None, weight_bytes=None, itemsize=2: (
        6 * T * A * D * F,
        (3 * D * F * itemsize if weight_bytes is None else weight_bytes) * (num_read or A) + 2 * T * D * itemsize,
    ),
    cases=(
        {"T": 1, "D": 64, "F": 32, "E": 1, "A": 0, "format": "bf16", "act": "silu"},
        {"T": 7, "D": 64, "F": 32, "E": 8, "A": 2, "format": "nvfp4", "act": "swigluoai"},
        {"T": 2, "D": 64, "F": 32, "E": 1, "A": 0, "format": "int4", "act": "silu"},
        {"T": 3, "D": 32, "F": 64, "E": 4, "A": 4, "format": "mxfp8", "act": "swigluoai"},
        {"T": 0, "D": 32, "F": 32, "E": 4, "A": 2, "format": "bf16", "act": "silu"},
    ),
    device_cases=({"T": 256, "D": 6144, "F": 3072, "E": 16, "A": 4, "format": "nvfp4", "act": "swigluoai"},),
)
