// the query rows of a step against keys of a paged cache: products
//
// What one row computes never depends on the rows beside it.
#pragma once

#include "attention_amx.h"
#include "key_floats.h"
#include "key_pairs.h"

namespace MINNOW_ISA {

// As many rows and vectors of keys at once as registers allow; few rows do without a tile.
#if defined(__AVX512F__)
constexpr int kProductRows = 6, kProductVectors = 2, kFewRows = 4;
#elif defined(__AVX2__)
constexpr int kProductRows = 3, kProductVectors = 1, kFewRows = 0;
#else
constexpr int kProductRows = 2, kProductVectors = 1, kFewRows = 0;
#endif

// Some tokens of one sequence, rows [first, first + num_tokens) of the step: of its prompt, or of what was generated.
struct Span {
    int64_t sequence, first, num_tokens;
    bool is_generated;
};

struct Spans {
    Span* spans;
    int64_t num_spans;
};

inline Spans cut(Scratch& scratch, const Sequences& sequences, int64_t max_tokens) {
    const int32_t* start = sequences.query_start;
    Span* spans = scratch.take<Span>(sequences.num_tokens / max_tokens + 2 * sequences.num_sequences);
    int64_t num_spans = 0;
    for (int64_t s = 0; s < sequences.num_sequences; ++s) {
        const int64_t count = start[s + 1] - start[s];
        const bool has_end = sequences.prompt_end != nullptr && count > 0;
        const int64_t left = has_end ? sequences.prompt_end[s] - sequences.positions[start[s]] : count;
        const int64_t end = start[s] + larger(0, smaller(left, count));
        for (int64_t first = start[s], next; first < start[s + 1]; first = next) {
            next = smaller(first + max_tokens, first < end ? end : start[s + 1]);
            spans[num_spans++] = {s, first, next - first, first >= end};
        }
    }
    return {spans, num_spans};
}

inline const int32_t* table_of(const Sequences& sequences, const Span& span) {
    return sequences.block_table + span.sequence * sequences.table_stride;
}

// The query rows of a span that share a key head, in the form that the products want: FP32 at the places of
// decode_row (or of key_floats.h), or, in the same four bytes, pairs of BF16 in the order of the keys' pairs.
struct Queries {
    const Cache* cache;  // of the keys
    int64_t num_limbs;   // of attention_amx.h; 0: by other means
    bool is_paired;
    bool has_floats;  // the keys are read as key_floats.h has it
    int64_t stride;
    float* rows;
};

// Whether tokens that were generated meet keys in attention_amx.h, where that is possible: a few FP32 rows at a time take
// less time in registers. Which way a token goes depends on its place in the sequence alone, so that its sums do not
// depend on the step that it is in.
inline bool tokens_by_tiles(const Cache& cache, int64_t num_heads, bool is_bf16) {
    return is_bf16 || num_heads / cache.num_heads > kFewRows || !has_floats(cache.format, cache.width);
}

// Heads [head, head + num_heads) of each token, which lie q_stride floats apart. is_bf16: they hold BF16 values. by_tiles:
// they meet the keys in attention_amx.h.
inline Queries take_queries(Scratch& scratch, const Cache& cache, [[maybe_unused]] bool by_tiles, const Span& span,
                            const float* q, int64_t q_stride, int64_t head, int64_t num_heads, bool is_bf16) {
    const int64_t format = cache.format, width = cache.width, num_rows = span.num_tokens * num_heads;
#if defined(MINNOW_HAS_AMX)
    if (by_tiles) {
        const int64_t num_limbs = is_bf16 ? 1 : kLimbs, stride = num_limbs * width / 2;
        float* place = scratch.take<float>(num_rows * stride);
        const __m512i words = pair_words(format);
        for (int64_t row = 0; row < num_rows; ++row) {
            const float* from = q + (span.first + row / num_heads) * q_stride + (head + row % num_heads) * width;
            pack_query(from, words, width, num_limbs, place + row * stride);
        }
        return {&cache, num_limbs, true, false, stride, place};
    }
#endif
    const bool is_paired = is_bf16 && has_pairs(format, width), is_float = !is_paired && has_floats(format, width);
    const int64_t stride = is_paired ? width / 2 : round_up(width, kLanes);
    float* place = scratch.take<float>(num_rows * stride);
    const Queries queries = {&cache, 0, is_paired, is_float, stride, place};
    for (int64_t row = 0; row < num_rows; ++row, place += stride) {
        const float* from = q + (span.first + row / num_heads) * q_stride + (head + row % num_heads) * width;
        if (is_float) {
            for (int64_t d = 0; d < width; d += kLanes) store(place + d, load(from + d));
            continue;
        }
        for (int64_t p = 0; p < stride; ++p) {
            if (!is_paired) {
                place[p] = p < width ? from[row_dim(format, width, p)] : 0.0f;
                continue;
            }
            uint32_t low, high;
            memcpy(&low, from + pair_dim(format, p), sizeof low);
            memcpy(&high, from + pair_dim(format, p) + pair_distance(format), sizeof high);
            high = low >> 16 | (high & 0xffff0000u);
            memcpy(place + p, &high, sizeof high);
        }
    }
    return queries;
}

// Keys in the queries' form: a strip in a tile or, for few rows, where that is possible, several strips that are
// decoded in registers.
struct Keys {
    float* tile;    // [dims or pairs][32]
    float* room;    // for rows on their way there
    float* scales;  // [groups][32] of NVFP4 pairs
    uint8_t* copy;  // of a strip
    Rows rows;
    int64_t num_keys;
    Ahead ahead;
    bool has_tile;
};

inline Keys take_keys(Scratch& scratch, const Queries& queries) {
    Keys keys = {};
    keys.tile = scratch.take<float>(queries.stride * kStrip);
    keys.scales = scratch.take<float>(queries.cache->width / 16 * kStrip);
    keys.room = scratch.take<float>(kLanes * round_up(queries.cache->width, kLanes));
    keys.copy = scratch.take<uint8_t>(strip_bytes(queries.cache->format, queries.cache->width));
    return keys;
}

// Read the first num_keys of `rows`, up to a panel, or fewer.
inline void read_keys(const Queries& queries, const Rows& rows, int64_t num_keys, int64_t num_rows, Keys& keys) {
    keys.has_tile = !(queries.is_paired || queries.has_floats) || num_rows > kFewRows;
    const int64_t num_whole = smaller(round_up(num_keys, kStrip), rows.num_rows / kStrip * kStrip);
    keys.num_keys = keys.has_tile ? kStrip : larger(kStrip, smaller(kPanel, num_whole));
    keys.rows = whole_strip(rows, keys.copy);
    for (int64_t i = 0; keys.has_tile && i < kStrip * rows.stride; i += 4 * kCacheLine) keys.ahead.ask();
#if defined(__AVX512F__)
    if (queries.has_floats && keys.has_tile) decode_floats(keys.rows, keys.tile);
    if (queries.has_floats) return;
#endif
    if (!queries.is_paired) return decode_keys(keys.rows, keys.room, keys.tile);
#if defined(__AVX512BF16__)
    if (!keys.has_tile) return;
    if (rows.format == kNvfp4) {
        decode_scales(keys.rows, keys.scales);
        decode_scales(keys.rows.from(kLanes), keys.scales + kLanes);
    }
    decode_pairs(keys.rows, keys.tile);
#endif
}

// s[r * s_stride + i] = factor * (query r . key i), in FP32. Even dims and odd ones have a sum each: short chains.
template <int kRows>
inline void plain_products(const float* q, int64_t stride, const float* keys, float factor, float* s,
                           int64_t s_stride) {
    for (int64_t half = 0; half < kStrip; half += kProductVectors * kLanes) {
        F sums[kRows][kProductVectors][2];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int j = 0; j < kProductVectors; ++j) sums[r][j][0] = sums[r][j][1] = zero();
        }
        for (int64_t start = 0; start < stride; start += 2) {
#pragma GCC unroll 2
            for (int d = 0; d < 2; ++d) {
                const float* place = keys + (start + d) * kStrip + half;
                F key[kProductVectors];
#pragma GCC unroll 8
                for (int j = 0; j < kProductVectors; ++j) key[j] = load(place + j * kLanes);
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    const F x = spread(q + r * stride + start + d);
#pragma GCC unroll 8
                    for (int j = 0; j < kProductVectors; ++j) sums[r][j][d] = fma(x, key[j], sums[r][j][d]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int j = 0; j < kProductVectors; ++j) {
                store(s + r * s_stride + half + j * kLanes, (sums[r][j][0] + sums[r][j][1]) * broadcast(factor));
            }
        }
    }
}

// body(row, number of rows as a type) for groups of rows, the largest first.
template <int kRows, class Body>
inline void for_groups(int64_t row, int64_t num_rows, Body&& body) {
    for (; row + kRows <= num_rows; row += kRows) body(row, Count<kRows>());
    if constexpr (kRows > 1) {
        if (row < num_rows) for_groups<kRows - 1>(row, num_rows, body);
    }
}

// Scores of query rows [first, first + num_rows) with the keys that were read.
inline void score_keys(const Queries& queries, int64_t first, int64_t num_rows, Keys& keys, float factor, float* s,
                       int64_t s_stride) {
    const float* q = queries.rows + first * queries.stride;
    const int64_t stride = queries.stride;
#if defined(__AVX512BF16__)
    const int64_t format = keys.rows.format;
    if (queries.is_paired && !keys.has_tile) {
        return for_groups<kFewRows>(0, num_rows, [&](int64_t row, auto count) {
            constexpr int kRows = decltype(count)::value;
            const auto multiply = format == kNvfp4 ? few_products<kRows, kNvfp4>
                                  : format == kFp8 ? few_products<kRows, kFp8>
                                                   : few_products<kRows, kBf16>;
            multiply(keys.rows, keys.num_keys, q + row * stride, stride, keys.scales, factor, s + row * s_stride,
                     s_stride, keys.ahead);
        });
    }
    if (queries.is_paired) {
        return for_groups<kProductRows>(0, num_rows, [&](int64_t row, auto count) {
            constexpr int kRows = decltype(count)::value;
            const auto multiply = format == kNvfp4 ? tile_products<kRows, kNvfp4>
                                  : format == kFp8 ? tile_products<kRows, kFp8>
                                                   : tile_products<kRows, kBf16>;
            multiply(keys.tile, q + row * stride, stride, keys.scales, factor, s + row * s_stride, s_stride);
        });
    }
#endif
    const auto multiply_tile = [&](float* place) {
        for_groups<kProductRows>(0, num_rows, [&](int64_t row, auto count) {
            plain_products<decltype(count)::value>(q + row * stride, stride, keys.tile, factor, place + row * s_stride,
                                                   s_stride);
        });
    };
#if defined(__AVX512F__)
    if (queries.has_floats && !keys.has_tile) {
        bool is_done = true;
        for_groups<kFewRows>(0, num_rows, [&](int64_t row, auto count) {
            constexpr int kRows = decltype(count)::value;
            const auto multiply = keys.rows.format == kFp8 ? few_float_products<kRows, kFp8>
                                                           : few_float_products<kRows, kBf16>;
            is_done &= multiply(keys.rows, keys.num_keys, q + row * stride, stride, factor, s + row * s_stride,
                                s_stride, keys.ahead);
        });
        for (int64_t i = 0; i < keys.num_keys && !is_done; i += kStrip) {
            decode_floats(keys.rows.from(i), keys.tile);
            multiply_tile(s + i);
        }
        return;
    }
#endif
    multiply_tile(s);
}

}  // namespace MINNOW_ISA
