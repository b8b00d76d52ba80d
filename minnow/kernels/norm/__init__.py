"""root-mean-square norm over the model width"""

from minnow.kernels.contract import Op

OP = Op(
    name="norm",
    inputs={"x": "bf16|f32 [T D]", "w": "bf16|f32 [D]", "eps": "scalar", "offset": "scalar"},
    outputs={"y": "same [T D]"},
    cost=lambda T, D, itemsize=2: (4 * T * D, (2 * T * D + D) * itemsize),
    cases=(
        {"T": 1, "D": 64},
        {"T": 5, "D": 100},
        {"T": 3, "D": 1},
        {"T": 0, "D": 64},
        {"T": 4, "D": 576, "offset": 1.0},
        {"T": 4, "D": 96, "dtype": "f32"},
        {"T": 4, "D": 96, "dtype": "f32", "w_dtype": "f32", "offset": 1.0},
        {"T": 4, "D": 96, "w_dtype": "f32"},
        {"T": 6, "D": 80, "is_strided": True},
        {"T": 2, "D": 64, "scale": 0.0},
        {"T": 3, "D": 6144},
        {"T": 2049, "D": 40},
        {"T": 2, "D": 64, "scale": 1e-18, "dtype": "f32"},
        {"T": 2, "D": 64, "scale": 1e17},
    ),
    device_cases=({"T": 4096, "D": 6144}, {"T": 64, "D": 3072, "offset": 1.0}),
)
