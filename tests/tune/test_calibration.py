"""a confidence head is calibrated by one temperature a draft"""

import pytest
import torch

from minnow.tune import calibration


def test_the_temperatures_that_were_put_in_come_out() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(20_000, 3, generator=generator)
    survival = torch.sigmoid(true).cumprod(-1)
    wrong = torch.tensor([2.0, 0.5, 1.0])
    found = calibration.temperatures(true * wrong, survival)
    assert found == pytest.approx(wrong.tolist(), rel=0.1)
    said = torch.sigmoid(true * wrong / torch.tensor(found)).cumprod(-1)
    for draft in range(3):
        assert calibration.calibration_error(said[:, draft], survival[:, draft]) < 0.01


def test_the_error_by_hand() -> None:
    predicted, outcome = torch.tensor([0.11, 0.14, 0.9, 1.0]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert calibration.calibration_error(predicted, outcome) == pytest.approx((0.25 + 0.1 + 0.0) / 4)
    assert calibration.calibration_error(outcome, outcome) == 0.0
