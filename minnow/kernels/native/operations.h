// what the operations' cpu.cpp files lend each other and decoder_step: the same functions that are exported one by one
//
// Each function is called by every thread of a team with the same arguments, shares the work out, and ends in a
// barrier. Activations are FP32 in memory; where a model keeps BF16 activations the values are rounded to BF16 by the
// operation that makes them (`is_bf16`). Rows lie `*_stride` floats apart.
#pragma once

#include <stdint.h>

#include "simd.h"
#include "threads.h"

namespace MINNOW_ISA {

// As in kernels/words.py, which also lays out the structs below.
enum Format : int64_t { kF32, kBf16, kF16, kFp8, kNvfp4, kMxfp4, kMxfp8, kInt4, kInt8, kTiles };

// Of weights in tiles (tiles.h): kTiles and up, for int4 and int8 each, by the digits that rows of x have (fixed_point.h).
inline bool is_tiled(int64_t format) { return format >= kTiles; }
inline bool has_int4_tiles(int64_t format) { return (format - kTiles) % 2 == 0; }
inline int64_t num_digits(int64_t format) { return (format - kTiles) / 2 + 1; }

// A matrix [num_rows width] in the checkpoint's own layout, or in tiles (tiles.h); seven words of int64 in the interface.
struct Weight {
    int64_t format;
    int64_t num_rows;
    int64_t width;
    const uint8_t* codes;     // rows dense
    const uint8_t* scales;    // null where the format has none, or keeps them in its tiles
    const uint8_t* minimums;  // int4 alone
    double global_scale;      // multiplies every value; 1 without one
};

// One layer's keys or values [B G L H], strides in bytes; thirteen words of int64 in the interface.
struct Cache {
    int64_t format;  // kF32, kBf16, kFp8 or kNvfp4
    uint8_t* codes;
    int64_t block_stride, head_stride, token_stride;
    uint8_t* scales;  // E4M3, for nvfp4; else null
    int64_t scale_block_stride, scale_head_stride, scale_token_stride;
    int64_t num_heads, block_length, width;
    double global_scale;
};

// The tokens of a step: those of sequence s are rows [query_start[s], query_start[s + 1]).
struct Sequences {
    int64_t num_tokens;
    int64_t num_sequences;
    int64_t num_table_blocks;     // M
    int64_t table_stride;         // int32 elements between two sequences' tables
    const int32_t* block_table;   // [S M]; entries past a sequence's end may hold anything
    const int32_t* query_start;   // [S + 1]
    const int32_t* positions;     // [T], the last keys that they see
    const int32_t* prompt_end;    // [S], the position at which what was generated begins; null: all is prompt
    const int32_t* first_keys;    // [T], the first keys that dense attention sees, ascending; null: all from 0 on
};

struct Activation {
    int64_t is_swigluoai;  // else silu
    double alpha, limit, beta;
};

// One expert's matrices; a dense layer and a shared expert are one of these too.
struct Expert {
    Weight gate, up, down;
};

void embed(Team& team, const int32_t* ids, int64_t num_tokens, const Weight& table, float* x, bool is_bf16);

void norm(Team& team, const float* x, int64_t x_stride, const Weight& w, float* y, int64_t num_rows, int64_t width,
          float eps, float offset, bool is_bf16);

// Where products go: y is row 0, output 0. They are rounded where results are BF16, and added to what is there for a
// residual.
struct Result {
    float* y;
    int64_t stride;
    bool is_added;
    bool is_bf16;

    // The same with another first row and output.
    inline Result from(int64_t row, int64_t output) const {
        return {y + row * stride + output, stride, is_added, is_bf16};
    }
    inline void operator()(int64_t row, int64_t output, float value) const {
        float* place = y + row * stride + output;
        value = is_bf16 ? round_to_bf16(value) : value;
        if (is_added) value = is_bf16 ? round_to_bf16(*place + value) : *place + value;
        *place = value;
    }
    // Sixteen of them; old: what is there.
    inline F finished(F value, const float* old) const {
        if (is_bf16) value = round_bf16(value);
        if (is_added) value = load(old) + value;
        return is_added && is_bf16 ? round_bf16(value) : value;
    }
};

// Packed rows of x times outputs [output, end) of a tiled weight, by the calling thread of so many; result: from output on.
void multiply_tiled(const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end,
                    int64_t num_threads, const Result& result);

// result[t, :] = x[t, :] @ concat(weights)^T. is_bf16: x holds BF16 values.
void linear(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights, int64_t num_weights,
            bool is_bf16, const Result& result);

// One head part of a fused projection: its columns, norm (codes null: none) and where its rows go.
struct HeadPart {
    int64_t start;         // first column in the row
    int64_t num_heads;
    Weight norm;           // [1 width]; codes null: no norm, its width is still that of the heads
    int64_t is_turned;     // norm and rope; values are only written
    const Cache* cache;    // null: the rows stay where they are (queries)
    const float* mix = nullptr;  // [num_heads / heads_per_mix, width, width], behind the rotation; null: nothing
    int64_t heads_per_mix = 1;
};

// Norm, rotate and store the parts of x [T, sum of parts] in place; keys and values go to their slots, quantised.
// A slot of -1 stores nothing.
void qk_norm_rope_write(Team& team, float* x, int64_t x_stride, int64_t num_rows, const HeadPart* parts,
                        int64_t num_parts, const int32_t* positions, const float* inv_freq, int64_t num_frequencies,
                        float eps, float offset, const int64_t* slots, bool is_bf16);

// scores [T I M], minus infinity where a block has no visible key.
void index_score(Team& team, const Sequences& sequences, const float* q, int64_t q_stride, int64_t num_heads,
                 const Cache& cache, float* scores, bool is_bf16);

void block_topk(Team& team, const float* scores, int64_t num_tokens, int64_t num_heads, int64_t num_table_blocks,
                const int32_t* positions, int64_t num_blocks, int64_t block_size, int64_t num_local_blocks,
                int64_t num_init_blocks, int32_t* blocks);

void dense_attention(Team& team, const Sequences& sequences, const float* q, int64_t q_stride, int64_t num_heads,
                     const Cache& k, const Cache& v, float scale, float* out, int64_t out_stride, bool is_bf16);

void sparse_attention(Team& team, const Sequences& sequences, const float* q, int64_t q_stride, int64_t num_heads,
                      const Cache& k, const Cache& v, const int32_t* blocks, int64_t num_blocks, float scale,
                      float* out, int64_t out_stride, bool is_bf16);

// ids, weights [T num_ids]: the chosen experts; then those behind the routed ones, with weight 1.
void route(Team& team, const float* x, int64_t x_stride, int64_t num_tokens, const Weight& gate, const Weight* bias,
           int64_t num_experts, float scaling, int64_t num_ids, int64_t* ids, float* weights);

// y[t, :] (+)= sum of weights[t, a] * expert(ids[t, a]); ids null: every token through table[0] with weight 1.
void experts(Team& team, const float* x, int64_t x_stride, int64_t num_tokens, const int64_t* ids,
             const float* weights, int64_t num_chosen, const Expert* table, int64_t num_experts,
             const Activation& activation, float* y, int64_t y_stride, bool is_added, bool is_bf16);

}  // namespace MINNOW_ISA
