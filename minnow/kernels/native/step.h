// a model, a step of it, and the function that runs it: decoder_step/cpu.cpp
#pragma once

#include "operations.h"

namespace MINNOW_ISA {

// The structs below are laid out word by word in decoder_step/cpu.py.
constexpr int64_t kMaxProjections = 5;  // q, k, v, and on sparse layers index q, index k
// A shared expert that is like the routed ones stands behind them in their table; another is computed apart.
constexpr int64_t kApart = 1, kFolded = 2;

struct Layer {
    Weight attention_norm;
    Weight projections[kMaxProjections];
    Weight head_norms[kMaxProjections];  // codes null: no norm; the width is that of the heads
    Weight project_out;
    Weight feed_forward_norm;
    Cache k, v, index;
    const float *query_mix, *key_mix;  // behind the rotation; null where nothing is mixed
    int64_t is_sparse;
    int64_t num_experts;  // 0: the shared expert is the whole feed-forward part
    int64_t has_bias;
    Weight gate, bias;
    const Expert* experts;
    int64_t shared_kind;
    Expert shared;
};

struct Model {
    int64_t num_layers;
    const Layer* layers;
    Weight embedding, norm, head;
    int64_t width;
    const float* inv_freq;
    int64_t num_frequencies;
    double eps, offset, scale;
    int64_t num_blocks, num_local_blocks, num_init_blocks;  // of sparse attention
    int64_t num_chosen;                                     // experts a token uses
    double scaling;
    Activation activation;
    int64_t is_bf16;
};

struct Step {
    Sequences sequences;
    const int32_t* ids;
    const int64_t* slots;
    const int32_t* rope_positions;  // [T], or null where they are the sequences' positions
    int64_t num_logits;
    const int64_t* logits_rows;
    float* hidden;  // [Q D]
    float* logits;  // [Q V]
    int64_t num_taps;
    const int64_t* tap_layers;
    float* const* taps;  // [T D] each
    int64_t num_embeddings;
    const int64_t* embedding_rows;
    const float* embeddings;  // [X D]
};

inline void copy_row(float* to, const float* from, int64_t width) {
    for (int64_t k = 0; k < width; ++k) to[k] = from[k];
}

void decoder_step(Team& team, const Model& model, const Step& step);

}  // namespace MINNOW_ISA
