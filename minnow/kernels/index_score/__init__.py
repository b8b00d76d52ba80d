"""MSA: score every visible block with the index heads"""

from minnow.kernels.contract import Op

OP = Op(
    name="index_score",
    inputs={
        "index_q": "bf16|f32 [T I J]",
        "index_cache": "cache [B 1 L J]",
        "block_table": "i32 [S M]",
        "query_start": "i32 [S1]",
        "positions": "i32 [T]",
        "prompt_end": "i32? [S]",
    },
    outputs={"scores": "f32 [T I M]"},
    cost=lambda T, I, J, context_tokens, key_bytes=2.0: (
        2 * T * I * J * context_tokens,
        context_tokens * J * key_bytes,
    ),
    cases=(
        {"I": 2, "J": 32, "L": 16, "contexts": (1,), "queries": (1,), "format": "bf16"},
        {"I": 4, "J": 64, "L": 16, "contexts": (40, 17, 16), "queries": (40, 1, 3), "format": "nvfp4"},
        {"I": 1, "J": 32, "L": 16, "contexts": (33, 5), "queries": (2, 0), "format": "fp8"},
        {"I": 4, "J": 128, "L": 128, "contexts": (129, 128), "queries": (2, 3), "format": "nvfp4"},
        {"I": 3, "J": 48, "L": 24, "contexts": (49,), "queries": (49,), "format": "nvfp4"},
        {"I": 2, "J": 64, "L": 40, "contexts": (90,), "queries": (1,), "format": "f32"},
        {
            "I": 3,
            "J": 128,
            "L": 128,
            "contexts": (2300, 130, 90),
            "queries": (1, 20, 4),
            "format": "fp8",
            "prompts": (690, 115, 90),
        },
    ),
    device_cases=({"I": 4, "J": 128, "L": 128, "contexts": (65536,), "queries": (8,), "format": "nvfp4"},),
)
