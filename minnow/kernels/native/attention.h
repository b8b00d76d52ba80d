// queries against blocks of a paged cache: products, softmax and sums, one panel of keys at a time
//
// A panel is a run of at most 128 keys inside one block. What it adds to a row (largest score, sum of weights, weighted
// values) is kept in a State. What one row computes never depends on the rows beside it.
#pragma once

#include <math.h>

#include "cache_values.h"
#include "queries.h"

namespace MINNOW_ISA {

constexpr int64_t kPanel = 128;

#if defined(__AVX512F__)
constexpr int kSumRows = 4, kSumVectors = 4, kFewRows = 4;
#elif defined(__AVX2__)
constexpr int kSumRows = 2, kSumVectors = 2, kFewRows = 0;
#else
constexpr int kSumRows = 1, kSumVectors = 2, kFewRows = 0;
#endif

// sums[r] += weights[r * 128 + i] * values[i] over num_keys tokens i; the rows of sums and values are `width` floats.
template <int kRows, int kVectors>
inline void add_columns(const float* weights, const float* values, int64_t num_keys, int64_t width, float* sums) {
    F totals[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) totals[r][j] = load(sums + r * width + j * kLanes);
    }
    for (int64_t i = 0; i < num_keys; ++i, values += width) {
        F v[kVectors];
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) v[j] = load(values + j * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const F weight = broadcast(weights[r * kPanel + i]);
#pragma GCC unroll 8
            for (int j = 0; j < kVectors; ++j) totals[r][j] = fma(weight, v[j], totals[r][j]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; ++j) store(sums + r * width + j * kLanes, totals[r][j]);
    }
}

inline void add_values(const float* weights, int64_t num_rows, const float* values, int64_t num_keys, int64_t width,
                       float* sums) {
    for_groups<kSumRows>(0, num_rows, [&](int64_t row, auto count) {
        constexpr int kRows = decltype(count)::value;
        const float* w = weights + row * kPanel;
        float* place = sums + row * width;
        int64_t d = 0;
        for (; d + kSumVectors * kLanes <= width; d += kSumVectors * kLanes) {
            add_columns<kRows, kSumVectors>(w, values + d, num_keys, width, place + d);
        }
        for (; d < width; d += kLanes) {
            add_columns<kRows, 1>(w, values + d, num_keys, width, place + d);
        }
    });
}

#if defined(__AVX512F__)
// The same for few rows and values in their own order, which are decoded in registers. `room` is for a strip that
// holds an FP8 NaN. With each token a row of `ahead`, if there is one, is asked for.
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline void add_few(const float* weights, const Rows& values, int64_t num_keys, float* room,
                                              float* sums, const Rows& ahead) {
    const int64_t width = values.width, num_ahead = smaller(num_keys, ahead.num_rows);
    for (int64_t d = 0; d < width; d += 64) {
        ValueReader<kFormat> reader;
        F totals[kRows][4];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int j = 0; j < 4; ++j) totals[r][j] = load(sums + r * width + d + j * kLanes);
        }
        for (int64_t i = 0; i < num_keys; ++i) {
            if (i < num_ahead && d == 0) ask_for(ahead.from(i), 1);
            F v[4];
            reader.read(values, i, d, v);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const F weight = broadcast(weights[r * kPanel + i]);
#pragma GCC unroll 8
                for (int j = 0; j < 4; ++j) totals[r][j] = fma(weight, v[j], totals[r][j]);
            }
        }
        if (reader.has_nan()) {
            decode_values(values, num_keys, room);
            add_columns<kRows, 4>(weights, room + d, num_keys, width, sums + d);
            continue;
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int j = 0; j < 4; ++j) store(sums + r * width + d + j * kLanes, totals[r][j]);
        }
    }
}
#endif

// sums[r] += weights[r, i] * value i over the first num_keys of `values`. room: num_keys decoded values. `ahead`: what
// is read soon, if any.
inline void add_strip(const float* weights, int64_t num_rows, const Rows& values, int64_t num_keys, float* room,
                      float* sums, const Rows& ahead) {
#if defined(__AVX512F__)
    if (num_rows <= kFewRows && has_own_order(values.format, values.width)) {
        return for_groups<kFewRows>(0, num_rows, [&](int64_t, auto count) {
            constexpr int kRows = decltype(count)::value;
            const auto add = values.format == kNvfp4 ? add_few<kRows, kNvfp4>
                             : values.format == kFp8 ? add_few<kRows, kFp8>
                                                     : add_few<kRows, kBf16>;
            add(weights, values, num_keys, room, sums, ahead);
        });
    }
#endif
    ask_for(ahead, smaller(num_keys, ahead.num_rows));
    decode_values(values, num_keys, room);
    add_values(weights, num_rows, room, num_keys, round_up(values.width, kLanes), sums);
}

// What some rows have seen so far: each one's largest score, sum of weights relative to it, and weighted values, in
// the order and with the gain of decode_values.
struct State {
    float* largest;
    float* sums;
    float* values;
    int64_t width;

    inline State from(int64_t row) const { return {largest + row, sums + row, values + row * width, width}; }
};

inline State take_state(Scratch& scratch, int64_t num_rows, int64_t width) {
    width = round_up(width, kLanes);
    float* largest = scratch.take<float>(num_rows);
    float* sums = scratch.take<float>(num_rows);
    return {largest, sums, scratch.take<float>(num_rows * width), width};
}

inline void clear(const State& state, int64_t num_rows) {
    for (int64_t r = 0; r < num_rows; ++r) state.largest[r] = -INFINITY, state.sums[r] = 0.0f;
    memset(state.values, 0, num_rows * state.width * sizeof(float));
}

// 2^x to about one unit in the last place, for x up to 127; exactly zero for x so low that it makes no difference; NaN
// stays.
inline F weight_of(F x) {
    const F clamped = max(broadcast(-127.0f), x);  // in this order a NaN in x stays; 2^-127 comes out as zero
    const F n = round_int(clamped), r = clamped - n;
    F p = fma(broadcast(1.535336188e-4f), r, broadcast(1.339887440e-3f));
    p = fma(p, r, broadcast(9.618437357e-3f));
    p = fma(p, r, broadcast(5.550332471e-2f));
    p = fma(p, r, broadcast(2.402264791e-1f));
    p = fma(p, r, broadcast(6.931472029e-1f));
    p = fma(p, r, broadcast(1.0f));
#if defined(__AVX512F__)
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(clamped.v), _mm512_set1_epi32(127));
    return p * F{_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};  // scale_by_power would be slower, and not zero
#else
    return scale_by_power(p, n);
#endif
}
inline float weight_of(float x) {
    float lanes[kLanes];
    store(lanes, weight_of(broadcast(x)));
    return lanes[0];
}
// What scores are taken relative to: no infinity, which would turn scores of minus infinity into NaN.
inline float finite_base(float largest) { return largest == -INFINITY ? 0.0f : largest; }

inline void scale_row(float* row, int64_t width, float factor) {
    for (int64_t d = 0; d < width; d += kLanes) store(row + d, load(row + d) * broadcast(factor));
}

// Scores of a row (to the base 2) to weights times 2^lift: the first num_visible of num_keys; the others become 0.
inline void soften(float* s, int64_t num_visible, int64_t num_keys, float lift, const State& state) {
    const int64_t end = round_up(num_visible, kLanes);
    for (int64_t i = num_visible; i < end; ++i) s[i] = -INFINITY;
    F best = broadcast(state.largest[0]);
    for (int64_t i = 0; i < end; i += kLanes) best = max(load(s + i), best);  // in this order NaN is passed over
    const float largest = max_of(best), base = finite_base(largest);
    F sum = zero();
    const F shift = broadcast(lift - base);
    for (int64_t i = 0; i < end; i += kLanes) {
        const F weight = weight_of(load(s + i) + shift);
        sum = sum + weight;
        store(s + i, weight);
    }
    for (int64_t i = end; i < num_keys; ++i) s[i] = 0.0f;
    if (largest != state.largest[0]) {
        const float kept = weight_of(state.largest[0] - base);
        scale_row(state.values, state.width, kept);
        state.sums[0] *= kept;
        state.largest[0] = largest;
    }
    state.sums[0] += MINNOW_ISA::sum(sum);
}

// Add what `other` has seen.
inline void fold(const State& state, const State& other, int64_t num_rows) {
    for (int64_t r = 0; r < num_rows; ++r) {
        const float a = state.largest[r], b = other.largest[r], largest = a > b ? a : b, base = finite_base(largest);
        const float keep = weight_of(a - base), take = weight_of(b - base);
        float* to = state.values + r * state.width;
        const float* from = other.values + r * state.width;
        for (int64_t d = 0; d < state.width; d += kLanes) {
            store(to + d, fma(load(from + d), broadcast(take), load(to + d) * broadcast(keep)));
        }
        state.sums[r] = state.sums[r] * keep + other.sums[r] * take;
        state.largest[r] = largest;
    }
}

// The one of ascending starts[0..count] whose range [starts[i], starts[i + 1]) an item lies in.
inline int64_t range_of(const int64_t* starts, int64_t count, int64_t item) {
    int64_t low = 0, high = count - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (starts[middle] <= item) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

struct Attention {
    const Cache* k;
    const Cache* v;
    int64_t num_heads;  // query heads that share a key/value head
    float factor;       // of the products, so that weights are powers of 2
    float lift;         // weights are 2^lift too large, as values with a gain are too small
    float gain;         // of the result
    bool is_bf16;
};

inline Attention attention_of(const Cache& k, const Cache& v, int64_t num_heads, float scale, bool is_bf16) {
    constexpr double kLog2E = 1.4426950408889634;
    const float gain = value_gain(v.format, v.width), lift = gain == 1.0f ? 0.0f : 60.0f;
    return {&k, &v, num_heads / k.num_heads, static_cast<float>(scale * k.global_scale * kLog2E), lift,
            static_cast<float>(gain * v.global_scale), is_bf16};
}

// Tokens tokens[0..num_tokens) of a span, ascending, look at the first counts[i] keys of a panel: tokens
// [first, ...) of a block. `next`: keys that are read soon, if any. `state` has their rows alone.
inline void attend(Team& team, const Attention& attention, const Queries& queries, const int32_t* tokens,
                   const int32_t* counts, int64_t num_tokens, int64_t block, int64_t head, int64_t first,
                   const Rows& next, const State& state) {
    Scratch scratch = team.scratch();
    const int64_t num_heads = attention.num_heads, num_rows = num_tokens * num_heads;
    const int64_t value_strip = num_rows <= kFewRows ? kStrip : 2 * kStrip;
    int64_t num_keys = 0;
    for (int64_t i = 0; i < num_tokens; ++i) num_keys = larger(num_keys, counts[i]);
    float* s = scratch.take<float>(num_rows * kPanel);
    Keys keys = take_keys(scratch, queries);
    float* room = scratch.take<float>(value_strip * state.width);
    for (int64_t i = 0; i < num_keys; i += kStrip) {
        keys.ahead = rows_of(*attention.v, block, head, first + i);
        keys.ahead.num_rows = smaller(kStrip, num_keys - i);
        decode_strip(queries, rows_of(*attention.k, block, head, first + i), num_rows, keys);
        for (int64_t t = 0, end; t < num_tokens; t = end) {  // runs of tokens that lie side by side
            for (end = t + 1; end < num_tokens && tokens[end] == tokens[end - 1] + 1;) ++end;
            score_strip(queries, tokens[t] * num_heads, (end - t) * num_heads, keys, attention.factor,
                        s + t * num_heads * kPanel + i, kPanel);
        }
    }
    for (int64_t i = 0; i < num_rows; ++i) {
        soften(s + i * kPanel, counts[i / num_heads], num_keys, attention.lift, state.from(i));
    }
    for (int64_t i = 0; i < num_keys; i += value_strip) {
        const int64_t num_here = smaller(value_strip, num_keys - i);
        const Rows ahead = i < next.num_rows ? next.from(i) : Rows{};
        add_strip(s + i, num_rows, rows_of(*attention.v, block, head, first + i), num_here, room, state.values,
                  ahead);
    }
}

// The results of num_rows rows, `stride` floats apart.
inline void finish_rows(const Attention& attention, const State& state, int64_t num_rows, float* out, int64_t stride) {
    constexpr int64_t kPart = 128;
    const int64_t format = attention.v->format, width = attention.v->width;
    for (int64_t r = 0; r < num_rows; ++r) {
        float* values = state.from(r).values;
        scale_row(values, state.width, attention.gain / state.sums[r]);
        if (!attention.is_bf16) continue;
        for (int64_t d = 0; d < width; d += kLanes) store(values + d, round_bf16(load(values + d)));
    }
    for (int64_t start = 0; start < width; start += kPart) {
        int64_t dims[kPart];
        const int64_t count = smaller(kPart, width - start);
        for (int64_t p = 0; p < count; ++p) dims[p] = value_dim(format, width, start + p);
        for (int64_t r = 0; r < num_rows; ++r) {
            const float* values = state.from(r).values + start;
            for (int64_t p = 0; p < count; ++p) out[r * stride + dims[p]] = values[p];
        }
    }
}

}  // namespace MINNOW_ISA
