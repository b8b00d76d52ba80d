"""causal attention over the context, or a window of it; prefill, decode and drafts alike"""

from minnow.kernels.contract import Op

OP = Op(
    name="dense_attention",
    inputs={
        "q": "bf16|f32 [T N H]",
        "k_cache": "cache [B G L H]",
        "v_cache": "cache [B G L H]",
        "block_table": "i32 [S M]",
        "query_start": "i32 [S1]",
        "positions": "i32 [T]",
        "scale": "scalar",
        "first_keys": "i32? [T]",
        "prompt_end": "i32? [S]",
    },
    outputs={"out": "same [T N H]"},
    cost=lambda T, N, G, H, context_tokens, key_bytes=2.0: (
        4 * T * N * H * context_tokens,
        2 * G * context_tokens * H * key_bytes,
    ),
    cases=(
        {"N": 3, "G": 1, "H": 32, "L": 16, "contexts": (1,), "queries": (1,), "format": "bf16"},
        {"N": 4, "G": 2, "H": 32, "L": 16, "contexts": (50, 17), "queries": (50, 1), "format": "nvfp4"},
        {"N": 6, "G": 3, "H": 64, "L": 16, "contexts": (33, 64, 16), "queries": (2, 0, 16), "format": "fp8"},
        {"N": 9, "G": 3, "H": 64, "L": 128, "contexts": (1027, 128, 129, 1), "queries": (3, 1, 40, 1), "format": "fp8"},
        {"N": 16, "G": 1, "H": 128, "L": 200, "contexts": (600,), "queries": (5,), "format": "nvfp4"},
        {"N": 2, "G": 2, "H": 40, "L": 24, "contexts": (70,), "queries": (70,), "format": "bf16"},
        {"N": 2, "G": 1, "H": 64, "L": 16, "contexts": (90,), "queries": (2,), "format": "f32"},
        {
            "N": 9,
            "G": 3,
            "H": 64,
            "L": 128,
            "contexts": (1500, 5, 700),
            "queries": (7, 5, 3),
            "format": "fp8",
            "window": 512,
        },
        {"N": 4, "G": 2, "H": 32, "L": 16, "contexts": (130, 47), "queries": (5, 40), "format": "bf16", "window": 20},
        {
            "N": 9,
            "G": 3,
            "H": 64,
            "L": 128,
            "contexts": (700, 130, 90),
            "queries": (1, 20, 4),
            "format": "fp8",
            "prompts": (690, 115, 90),
        },
    ),
    device_cases=({"N": 64, "G": 4, "H": 128, "L": 128, "contexts": (8192,), "queries": (512,), "format": "fp8"},),
)
