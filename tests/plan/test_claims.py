"""every published number of model and memory is computed, and stays what it is worth"""

import dataclasses
from collections import Counter

import pytest

from minnow.plan import claims

# What Minnow's arithmetic gave when it was checked by hand: (status, computed, to how many places).
COMPUTED = {
    "P1": ("approx", 427.05, 2),
    "P2": ("approx", 23.52, 2),
    "C1": ("forward", 250.10, 2),
    "C2": ("approx", 443.7, 1),
    "C2h": ("fitted", 451.5, 1),
    "C3": ("identity", 44.6, 1),
    "K1": ("forward", 61440, 0),
    "K2": ("forward", 34560, 0),
    "K3": ("identity", 43.75, 2),
    "K4": ("forward", 128, 0),
    "K5": ("forward", 1024, 0),
    "K6": ("identity", 12.5, 1),
    "K6b": ("identity", 12.5, 1),
    "K7": ("forward", 2048, 0),
    "bits": ("identity", 4.5, 1),
    "context": ("config", 1048576, 0),
    "layers": ("config", 60, 0),
    "heads": ("config", 64, 0),
    "kv heads": ("config", 4, 0),
    "head dim": ("config", 128, 0),
    "window": ("config", 4096, 0),
    "R1": ("fitted", 125, 0),
    "R2": ("fitted", 1.82272, 5),
    "S1": ("fitted", 76, 0),
    "S2": ("fitted", 28, 0),
    "S3": ("identity", 2.71, 2),
    "D1": ("fitted", 4.51, 2),
    "D2": ("identity", 21, 0),
    "D3": ("identity", 224, 0),
    "H1": ("identity", 560, 0),
    "H2": ("identity", 2240, 0),
    "H3": ("identity", 180, 0),
    "O1": ("approx", 3.114, 3),
}


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_is_reproduced_with_its_status(claim: claims.Claim) -> None:
    status, computed, places = COMPUTED[claim.id]
    verdict = claims.judge(claim)
    assert verdict.is_ok
    assert (claim.status, round(verdict.computed, places)) == (status, computed)
    if claim.status == "fitted":
        assert claim.note, "it must say what was chosen"
    if claim.status == "forward":
        assert claim.places is not None, "forward claims are equal, not close"


def test_every_claim_is_there_once_and_few_are_evidence() -> None:
    assert Counter(claim.id for claim in claims.CLAIMS) == Counter(COMPUTED.keys())
    counts = Counter(claim.status for claim in claims.CLAIMS)
    assert counts == {"forward": 6, "approx": 4, "identity": 11, "fitted": 6, "config": 6}


def test_the_gap_of_the_larger_checkpoint_stays_visible() -> None:
    gap = claims.judge(next(claim for claim in claims.CLAIMS if claim.id == "C2"))
    assert round(100 * gap.difference, 1) == -1.7


def test_a_number_that_is_off_is_not_ok() -> None:
    claim = next(claim for claim in claims.CLAIMS if claim.id == "K1")
    assert not claims.judge(dataclasses.replace(claim, stated=61_441)).is_ok
    assert not claims.judge(dataclasses.replace(claim, stated=62_000, places=None, tolerance=0.001)).is_ok
    assert claims.judge(dataclasses.replace(claim, stated=61_500, places=None, tolerance=0.001)).is_ok
