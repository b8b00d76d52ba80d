"""MSA attention (index branch and sparse) and its dense form"""

import torch
from torch import Tensor, nn

from minnow.cache.pool import LayerCache
from minnow.config.model import ModelConfig
from minnow.kernels.registry import Kernels
from minnow.model.layers import HeadNormRope, Linear
from minnow.model.step import StepInputs


class Attention(nn.Module):
    """Grouped-query attention of one layer; sparse layers first choose blocks with the index heads.

    Args:
        at: what the names of its weights begin with.
    """

    def __init__(self, config: ModelConfig, layer: int, kernels: Kernels, inv_freq: Tensor, at: str) -> None:
        super().__init__()
        self.config, self.kernels = config, kernels
        self.is_sparse = config.sparse.is_sparse[layer]
        projections = ("q_proj", "k_proj", "v_proj") + (("index_q_proj", "index_k_proj") if self.is_sparse else ())
        self.project_in = Linear(kernels, *(at + p for p in projections))
        self.project_out = Linear(kernels, at + "o_proj")

        def turn(norm: str, mix: str | None = None) -> HeadNormRope:
            name = at + norm if config.use_qk_norm else None
            mix = at + mix if mix and config.use_qk_mix else None
            return HeadNormRope(kernels, name, inv_freq, config.rms_norm_eps, config.norm_offset, mix)

        self.turn_q, self.turn_k = turn("q_norm", "q_mix"), turn("k_norm", "k_mix")
        if self.is_sparse:
            self.turn_index_q, self.turn_index_k = turn("index_q_norm"), turn("index_k_norm")

    def forward(self, x_TD: Tensor, inputs: StepInputs, cache: LayerCache) -> Tensor:
        """[T D] -> [T D]; K, V and index keys of the step are written to the cache first."""
        q_TNH, k_TGH, v_TGH, *index = self.project(x_TD, inputs.positions)
        write = self.kernels.kv_write
        write(k_TGH, cache.k, inputs.slots)
        write(v_TGH, cache.v, inputs.slots)
        where = (inputs.block_table, inputs.query_start, inputs.positions)
        scale = self.config.head_dim**-0.5
        if self.is_sparse:
            index_q_TIJ, index_k_T1J = index
            write(index_k_T1J, cache.index, inputs.slots)
            sparse = self.config.sparse
            scores_TIM = self.kernels.index_score(index_q_TIJ, cache.index, *where, inputs.prompt_end)
            blocks_TIK = self.kernels.block_topk(
                scores_TIM,
                inputs.positions,
                sparse.num_blocks,
                sparse.block_size,
                sparse.num_local_blocks,
                sparse.num_init_blocks,
            )
            out_TNH = self.kernels.sparse_attention(
                q_TNH, cache.k, cache.v, *where, blocks_TIK, scale, inputs.prompt_end
            )
        else:
            out_TNH = self.kernels.dense_attention(q_TNH, cache.k, cache.v, *where, scale, None, inputs.prompt_end)
        y_TD: Tensor = self.project_out(out_TNH.flatten(1))
        return y_TD

    def project(self, x_TD: Tensor, positions_T: Tensor) -> list[Tensor]:
        """q, k, v, and on a sparse layer the index queries and the index key: each [T heads width]."""
        config, sparse = self.config, self.config.sparse
        heads = [(config.num_attention_heads, config.head_dim)] + [(config.num_key_value_heads, config.head_dim)] * 2
        if self.is_sparse:
            heads += [(sparse.num_index_heads, sparse.index_dim), (1, sparse.index_dim)]
        q, k, v, *index = _split(self.project_in(x_TD), heads)
        q, k = self.turn_q(q, positions_T), self.turn_k(k, positions_T)
        if self.is_sparse:
            index = [self.turn_index_q(index[0], positions_T), self.turn_index_k(index[1], positions_T)]
        return [q, k, v, *index]

    def keys_values(self, x_TD: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """k and v alone, [T G H] each: what a drafter's context lends."""
        heads = [(self.config.num_key_value_heads, self.config.head_dim)] * 2
        k, v = _split(self.kernels.linear(x_TD, self.project_in.weights[1:3], None), heads)
        return self.turn_k(k, positions_T), v


def _split(projected_TD: Tensor, heads: list[tuple[int, int]]) -> list[Tensor]:
    """[T sum of heads * width] -> [T heads width] each."""
    parts = torch.split(projected_TD, [n * width for n, width in heads], dim=1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, heads, strict=True)]
