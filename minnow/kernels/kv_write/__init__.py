"""store keys, values or index keys in their slots, in the cache's format"""

from minnow.kernels.contract import Op

OP = Op(
    name="kv_write",
    inputs={"values": "bf16|f32 [T G H]", "cache": "cache [B G L H]", "slots": "i32|i64 [T]"},
    outputs={"cache": "cache [B G L H]"},
    cost=lambda T, G, H, cache_bytes=2.0, itemsize=2: (4 * T * G * H, T * G * H * (itemsize + cache_bytes)),
    cases=(
        {"T": 1, "G": 1, "H": 32, "B": 3, "L": 16, "format": "bf16"},
        {"T": 9, "G": 2, "H": 64, "B": 4, "L": 16, "format": "fp8"},
        {"T": 9, "G": 3, "H": 64, "B": 4, "L": 16, "format": "nvfp4"},
        {"T": 0, "G": 2, "H": 32, "B": 2, "L": 16, "format": "nvfp4"},
        {"T": 5, "G": 1, "H": 24, "B": 2, "L": 16, "format": "f32"},
        {"T": 300, "G": 4, "H": 128, "B": 4, "L": 128, "format": "nvfp4"},
        {"T": 2049, "G": 1, "H": 128, "B": 17, "L": 128, "format": "fp8", "is_strided": True},
    ),
    device_cases=({"T": 4096, "G": 4, "H": 128, "B": 64, "L": 128, "format": "nvfp4"},),
)
