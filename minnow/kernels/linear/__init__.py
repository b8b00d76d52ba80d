"""matrix products with weights in any format, as a list of row segments"""

from minnow.kernels.contract import Op

OP = Op(
    name="linear",
    inputs={"x": "bf16|f32 [T D]", "weights": "weights [D]", "dtype": "scalar?"},
    outputs={"y": "bf16|f32 [T O]"},
    cost=lambda T, D, O, weight_bytes=None, itemsize=2: (
        2 * T * D * O,
        (O * D * itemsize if weight_bytes is None else weight_bytes) + T * (D + O) * itemsize,
    ),
    cases=(
        {"T": 1, "D": 64, "rows": (8,), "format": "bf16"},
        {"T": 5, "D": 96, "rows": (7, 3, 1), "format": "f32"},
        {"T": 3, "D": 64, "rows": (16, 5), "format": "nvfp4"},
        {"T": 3, "D": 64, "rows": (16, 5), "format": "mxfp4"},
        {"T": 2, "D": 128, "rows": (9,), "format": "mxfp8"},
        {"T": 2, "D": 64, "rows": (9,), "format": "fp8"},
        {"T": 4, "D": 96, "rows": (12, 4), "format": "int4"},
        {"T": 4, "D": 96, "rows": (12, 4), "format": "int8"},
        {"T": 1, "D": 576, "rows": (33,), "format": "int4"},
        {"T": 8, "D": 64, "rows": (5,), "format": "int8"},
        {"T": 9, "D": 64, "rows": (5,), "format": "int4"},
        {"T": 17, "D": 96, "rows": (50, 7), "format": "int4"},
        {"T": 33, "D": 160, "rows": (97,), "format": "nvfp4"},
        {"T": 33, "D": 160, "rows": (97,), "format": "mxfp8"},
        {"T": 2049, "D": 64, "rows": (49,), "format": "bf16"},
        {"T": 0, "D": 64, "rows": (8,), "format": "bf16"},
    ),
    device_cases=({"T": 512, "D": 6144, "rows": (8192, 512, 512, 512, 128), "format": "mxfp8"},),
)
