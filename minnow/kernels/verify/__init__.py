"""drafts against the model's own distributions: how many are kept, and the token after them"""

from minnow.kernels.contract import Op

NOT_FINITE, NONE_OPEN = -1, -2
"""Instead of an id, as of `sample`: a distribution of the sequence is NaN, or has no token at all."""

OP = Op(
    name="verify",
    inputs={
        "p": "f32 [R V]",
        "q": "f32? [D V]",
        "drafts": "i64 [D]",
        "starts": "i64 [S1]",
        "uniform": "f64 [R]",
        "rule": "scalar",
    },
    outputs={"num_accepted": "i64 [S]", "ids": "i64 [S]"},
    cost=lambda R, D, V, S1=2: (8 * R * V, 4 * (R + D) * V),
    cases=(
        {"drafts": (3,), "V": 11, "rule": "block"},
        {"drafts": (2, 0, 5, 1), "V": 300, "rule": "block"},
        {"drafts": (2, 0, 5, 1), "V": 300, "rule": "standard"},
        {"drafts": (4, 7), "V": 40, "rule": "block", "has_q": False},
        {"drafts": (4, 7), "V": 40, "rule": "standard", "has_q": False},
        {"drafts": (), "V": 5, "rule": "block"},
        {"drafts": (0, 0), "V": 1, "rule": "standard"},
        {"drafts": (7, 7, 3), "V": 49152, "rule": "block"},
        {"drafts": (3, 3, 3, 3), "V": 64, "rule": "block", "has_bad_rows": True},
    ),
    device_cases=({"drafts": (7,) * 16, "V": 200064, "rule": "block"},),
)
