"""rows of the embedding table, by token id"""

from minnow.kernels.contract import Op

OP = Op(
    name="embed",
    inputs={"ids": "i32|i64 [T]", "table": "weight [V D]", "dtype": "scalar"},
    outputs={"x": "bf16|f32 [T D]"},
    cost=lambda T, D, V=0, itemsize=2: (0, 2 * T * D * itemsize),
    cases=(
        {"T": 1, "D": 64, "V": 7, "format": "bf16"},
        {"T": 5, "D": 96, "V": 40, "format": "int8"},
        {"T": 0, "D": 32, "V": 3, "format": "f32"},
        {"T": 9, "D": 37, "V": 20, "format": "f16"},
        {"T": 6, "D": 96, "V": 12, "format": "nvfp4"},
        {"T": 6, "D": 96, "V": 12, "format": "mxfp8"},
        {"T": 2049, "D": 32, "V": 40, "format": "int4"},
    ),
    device_cases=({"T": 4096, "D": 6144, "V": 200064, "format": "bf16"},),
)
