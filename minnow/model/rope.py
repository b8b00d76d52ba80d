"""rotary frequencies of a model"""

import math

import torch
from torch import Tensor

from minnow.config.model import ModelConfig


def inverse_frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """f32 [rotary_dim / 2]: theta^(-2j / rotary_dim), stretched where the config says so.

    Source: RoFormer; Llama 3.1's scaling keeps short wavelengths, divides long ones by `factor`, and
        blends between.
    """
    exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=device) / config.rotary_dim
    frequency = 1.0 / (config.rope_theta**exponent)
    scaling = config.rope_scaling
    if scaling is None:
        return frequency
    turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)  # 1 keeps the frequency, 0 divides it
    return frequency * (share + (1 - share) / scaling.factor)
