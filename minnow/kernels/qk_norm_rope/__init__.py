"""per-head norm, then rotary position, of queries or keys; then a matrix where a cache wants values alike"""

from minnow.kernels.contract import Op

OP = Op(
    name="qk_norm_rope",
    inputs={
        "x": "bf16|f32 [T N H]",
        "w": "bf16|f32? [H]",
        "positions": "i32 [T]",
        "inv_freq": "f32 [R]",
        "eps": "scalar",
        "offset": "scalar",
        "mix": "bf16|f32? [M H H]",
    },
    outputs={"y": "same [T N H]"},
    # without a mix, which takes 2 T N H H more
    cost=lambda T, N, H, itemsize=2: (10 * T * N * H, 2 * T * N * H * itemsize),
    cases=(
        {"T": 1, "N": 2, "H": 32, "rotary": 16, "has_norm": True},
        {"T": 7, "N": 3, "H": 64, "rotary": 64, "has_norm": False},
        {"T": 0, "N": 1, "H": 32, "rotary": 32, "has_norm": True},
        {"T": 3, "N": 64, "H": 128, "rotary": 64, "has_norm": True},
        {"T": 5, "N": 2, "H": 36, "rotary": 22, "has_norm": True, "dtype": "f32"},
        {"T": 4, "N": 3, "H": 64, "rotary": 64, "has_norm": False, "dtype": "f32", "mixes": 3},
        {"T": 3, "N": 2, "H": 128, "rotary": 64, "has_norm": True, "mixes": 1},
        {"T": 6, "N": 1, "H": 8, "rotary": 4, "has_norm": True, "dtype": "f32", "mixes": 1},
        {"T": 2, "N": 4, "H": 100, "rotary": 50, "has_norm": False, "mixes": 2},
        {"T": 2049, "N": 1, "H": 16, "rotary": 16, "has_norm": False, "is_strided": True},
    ),
    device_cases=({"T": 4096, "N": 64, "H": 128, "rotary": 64, "has_norm": True},),
)
