"""router, routed experts, shared expert"""

from torch import Tensor, nn

from minnow.config.model import ModelConfig
from minnow.formats.quantized import Weight
from minnow.kernels.experts.activation import Activation
from minnow.kernels.registry import Kernels


class GatedExperts(nn.Module):
    """A table of gated feed-forwards; a dense layer and the shared expert are tables of one."""

    def __init__(self, config: ModelConfig, kernels: Kernels, names: tuple[tuple[str, str, str], ...]) -> None:
        super().__init__()
        self.kernels = kernels
        self.activation = Activation(
            kind=config.hidden_act, alpha=config.swiglu_alpha, limit=config.swiglu_limit, beta=config.swiglu_beta
        )
        self.weight_names = tuple(name for triple in names for name in triple)
        self.weights: tuple[Weight, ...] = ()

    def forward(self, x_TD: Tensor, ids_TA: Tensor | None = None, weights_TA: Tensor | None = None) -> Tensor:
        """[T D] -> [T D]; without ids every token goes through the one expert."""
        y: Tensor = self.kernels.experts(x_TD, ids_TA, weights_TA, self.table, self.activation)
        return y

    @property
    def table(self) -> tuple[tuple[Weight, Weight, Weight], ...]:
        """(gate, up, down) of each expert."""
        return tuple(zip(self.weights[0::3], self.weights[1::3], self.weights[2::3], strict=True))


class Router(nn.Module):
    """Chooses experts and their weights."""

    def __init__(self, config: ModelConfig, kernels: Kernels, at: str) -> None:
        super().__init__()
        self.config, self.kernels = config, kernels
        bias = (at + "e_score_correction_bias",) if config.use_routing_bias else ()
        self.weight_names = (at + "gate", *bias)
        self.weights: tuple[Weight, ...] = ()

    def forward(self, x_TD: Tensor) -> tuple[Tensor, Tensor]:
        """[T D] -> ids i64 [T A], weights f32 [T A]."""
        bias = self.weights[1] if len(self.weights) > 1 else None
        config = self.config
        ids_TA, weights_TA = self.kernels.route(
            x_TD, self.weights[0], bias, config.num_experts_per_tok, config.routed_scaling_factor
        )
        return ids_TA, weights_TA


class MixtureOfExperts(nn.Module):
    """Routed experts plus the shared one."""

    def __init__(self, config: ModelConfig, kernels: Kernels, at: str) -> None:
        super().__init__()
        self.router = Router(config, kernels, at)
        routed = (at + f"experts.{e}." for e in range(config.num_local_experts))
        self.routed = GatedExperts(config, kernels, tuple((e + "w1", e + "w3", e + "w2") for e in routed))
        self.shared: GatedExperts | None = None
        if config.n_shared_experts:
            self.shared = GatedExperts(config, kernels, (_gate_up_down(at + "shared_experts."),))

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T D] -> [T D]."""
        y_TD: Tensor = self.routed(x_TD, *self.router(x_TD))
        return y_TD if self.shared is None else y_TD + self.shared(x_TD)


def feed_forward(config: ModelConfig, layer: int, kernels: Kernels, at: str) -> nn.Module:
    """The feed-forward part of a layer, whose names begin with `at`: experts, or one dense gated unit."""
    if config.is_moe[layer]:
        return MixtureOfExperts(config, kernels, at + "block_sparse_moe.")
    return GatedExperts(config, kernels, (_gate_up_down(at + "mlp."),))


def _gate_up_down(at: str) -> tuple[str, str, str]:
    return at + "gate_proj", at + "up_proj", at + "down_proj"
