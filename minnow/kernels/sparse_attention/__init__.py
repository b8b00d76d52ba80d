"""MSA: exact attention over the chosen blocks; prefill and decode alike"""

from minnow.kernels.contract import Op

OP = Op(
    name="sparse_attention",
    inputs={
        "q": "bf16|f32 [T N H]",
        "k_cache": "cache [B G L H]",
        "v_cache": "cache [B G L H]",
        "block_table": "i32 [S M]",
        "query_start": "i32 [S1]",
        "positions": "i32 [T]",
        "blocks": "i32 [T G K]",
        "scale": "scalar",
        "prompt_end": "i32? [S]",
    },
    outputs={"out": "same [T N H]"},
    cost=lambda T, N, G, H, num_keys=2048, key_bytes=2.0: (
        4 * T * N * H * num_keys,
        2 * T * G * num_keys * H * key_bytes,
    ),
    cases=(
        {"N": 4, "G": 2, "H": 32, "L": 16, "K": 4, "contexts": (1,), "queries": (1,), "format": "bf16"},
        {"N": 4, "G": 2, "H": 32, "L": 16, "K": 3, "contexts": (90, 17), "queries": (90, 1), "format": "nvfp4"},
        {"N": 6, "G": 3, "H": 64, "L": 16, "K": 2, "contexts": (33, 64), "queries": (2, 0), "format": "fp8"},
        {"N": 32, "G": 2, "H": 128, "L": 128, "K": 3, "contexts": (640, 1), "queries": (9, 1), "format": "nvfp4"},
        {"N": 3, "G": 3, "H": 48, "L": 24, "K": 3, "contexts": (100,), "queries": (40,), "format": "f32"},
        {
            "N": 9,
            "G": 3,
            "H": 64,
            "L": 128,
            "K": 4,
            "contexts": (700, 130, 90),
            "queries": (1, 20, 4),
            "format": "fp8",
            "prompts": (690, 115, 90),
        },
    ),
    device_cases=(
        {"N": 64, "G": 4, "H": 128, "L": 128, "K": 16, "contexts": (32768,), "queries": (8,), "format": "nvfp4"},
    ),
)
