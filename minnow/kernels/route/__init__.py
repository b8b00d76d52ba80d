"""MoE: choose the experts of each token, and their weights"""

from minnow.kernels.contract import Op

OP = Op(
    name="route",
    inputs={
        "x": "bf16|f32 [T D]",
        "gate": "bf16|f32 [E D]",
        "bias": "f32|bf16? [E]",
        "num_experts": "scalar",
        "scaling": "scalar",
    },
    outputs={"ids": "i64 [T A]", "weights": "f32 [T A]"},
    cost=lambda T, D, E, itemsize=4: (2 * T * D * E, E * D * itemsize + T * D * 2),
    cases=(
        {"T": 1, "D": 64, "E": 8, "A": 2, "has_bias": True},
        {"T": 9, "D": 32, "E": 16, "A": 4, "has_bias": False},
        {"T": 0, "D": 32, "E": 4, "A": 1, "has_bias": True},
        {"T": 3, "D": 37, "E": 7, "A": 7, "has_bias": True},
        {"T": 2, "D": 6144, "E": 128, "A": 4, "has_bias": True},
        {"T": 2049, "D": 48, "E": 8, "A": 2, "has_bias": False},
    ),
    device_cases=({"T": 4096, "D": 6144, "E": 128, "A": 4, "has_bias": True},),
)
