// queries against blocks of a paged cache: products, softmax and sums, one panel of keys at a time
//
// A panel is a run of at most 128 keys inside one block. What it adds to a row (largest score, sum of weights, weighted
// values) is kept in a State. What one row computes never depends on the rows beside it, as long as values are finite:
// a weight of zero times a NaN is one.
#pragma once

#include <math.h>

#include "cache_values.h"
#include "queries.h"

namespace MINNOW_ISA {

#if defined(__AVX512F__)
constexpr int kSumRows = 4, kSumVectors = 4;
#elif defined(__AVX2__)
constexpr int kSumRows = 2, kSumVectors = 2;
#else
constexpr int kSumRows = 1, kSumVectors = 2;
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
            const F weight = spread(weights + r * kPanel + i);
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
// The same for few rows and values in their own order, which are decoded in registers. `room` is for values that hold
// an FP8 NaN.
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline void add_few(const float* weights, const Rows& values, int64_t num_keys, float* room,
                                              float* sums, Ahead& ahead) {
    constexpr int64_t kAsk = kFormat == kBf16 ? 2 : 4;
    const int64_t width = values.width;
    for (int64_t d = 0; d < width; d += 64) {
        ValueReader<kFormat> reader;
        F totals[kRows][4];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int j = 0; j < 4; ++j) totals[r][j] = load(sums + r * width + d + j * kLanes);
        }
        for (int64_t i = 0; i < num_keys; ++i) {
            if (i % kAsk == 0) ahead.ask();
            F v[4];
            reader.read(values, i, d, v);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const F weight = spread(weights + r * kPanel + i);
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

inline bool are_few(const Rows& values, int64_t num_rows) {
    return num_rows <= kFewRows && has_own_order(values.format, values.width);
}

// sums[r] += weights[r, i] * value i over the first num_keys of `values`. room: num_keys decoded values.
inline void add_weighted(const float* weights, int64_t num_rows, const Rows& values, int64_t num_keys, float* room,
                         float* sums, Ahead& ahead) {
#if defined(__AVX512F__)
    if (are_few(values, num_rows)) {
        return for_groups<kFewRows>(0, num_rows, [&](int64_t, auto count) {
            constexpr int kRows = decltype(count)::value;
            const auto add = values.format == kNvfp4 ? add_few<kRows, kNvfp4>
                             : values.format == kFp8 ? add_few<kRows, kFp8>
                                                     : add_few<kRows, kBf16>;
            add(weights, values, num_keys, room, sums, ahead);
        });
    }
#endif
    for (int64_t i = 0; i < num_keys * values.stride; i += 4 * kCacheLine) ahead.ask();
    decode_values(values, num_keys, room);
    add_values(weights, num_rows, room, num_keys, round_up(values.width, kLanes), sums);
}

// What some rows have seen so far: each one's largest score, sum of weights relative to it, and weighted values, in
// the order of decode_values.
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

// 2^x to about one unit in the last place, for x up to 127; exactly zero for x so low that it makes no difference (and
// that the last of its limbs would be no normal number, which takes a processor's detour); NaN stays.
inline F weight_of(F x) {
#if defined(__AVX512F__)
    const F magic = broadcast(12583039.0f), shifted = x + magic;  // 1.5 * 2^23 + 127: whole, and 2^n after a shift
    const F r = x - (shifted - magic);
#else
    const F clamped = max(broadcast(-127.0f), x);  // in this order a NaN in x stays; 2^-127 comes out as zero
    const F n = round_int(clamped), r = clamped - n;
#endif
    F p = fma(broadcast(1.535336188e-4f), r, broadcast(1.339887440e-3f));
    p = fma(p, r, broadcast(9.618437357e-3f));
    p = fma(p, r, broadcast(5.550332471e-2f));
    p = fma(p, r, broadcast(2.402264791e-1f));
    p = fma(p, r, broadcast(6.931472029e-1f));
    p = fma(p, r, broadcast(1.0f));
#if defined(__AVX512F__)
    const __mmask16 is_seen = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-100.0f), _CMP_NLT_UQ);
    const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
    return {_mm512_maskz_mul_ps(is_seen, p.v, _mm512_castsi512_ps(power))};
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

// Scores of rows, which factor takes to the base 2, kPanel apart, to weights: row r sees the first counts[r] of
// num_keys, but not the first skips[r] (null: none) of those; the others become 0. What the rows have seen so far is
// taken relative to their new largest scores.
// kHasTiles: those of attention_amx.h are configured.
template <bool kHasTiles>
inline void soften(float* s, int64_t num_rows, const int32_t* counts, const int32_t* skips, int64_t num_keys,
                   float factor, const State& state) {
    const F scale = broadcast(factor);
    for (int64_t first = 0; first < num_rows; first += kLanes) {
        const int64_t last = smaller(first + kLanes, num_rows);
        float bases[kLanes], kept[kLanes] = {};
        for (int64_t r = first; r < last; ++r) {  // rows side by side: each step would else wait for the one before it
            const int64_t end = round_up(counts[r], kLanes);
            float* row = s + r * kPanel;
            for (int64_t i = counts[r]; i < end; ++i) row[i] = -INFINITY;
            const int64_t skipped = skips == nullptr ? 0 : smaller(skips[r], end);
            for (int64_t i = 0; i < skipped; ++i) row[i] = -INFINITY;
            for (int64_t i = end; i < num_keys; ++i) row[i] = 0.0f;
            F best = broadcast(-INFINITY);
            for (int64_t i = 0; i < end; i += kLanes) best = max(load(row + i), best);  // so NaN is passed over
            const float here = max_of(best) * factor, largest = here > state.largest[r] ? here : state.largest[r];
            bases[r - first] = finite_base(largest);
            kept[r - first] = state.largest[r] - bases[r - first];
            state.largest[r] = largest;
        }
        if (kHasTiles) stay_awake();
        store(kept, weight_of(load(kept)));
        for (int64_t r = first; r < last; ++r) {
            if (kHasTiles && r % 4 == 0) stay_awake();
            float* row = s + r * kPanel;
            const F shift = broadcast(-bases[r - first]);
            F total = zero();
            for (int64_t i = 0; i < counts[r]; i += kLanes) {
                const F weight = weight_of(fma(load(row + i), scale, shift));
                total = total + weight;
                store(row + i, weight);
            }
            scale_row(state.values + r * state.width, state.width, kept[r - first]);
            state.sums[r] = state.sums[r] * kept[r - first] + sum(total);
        }
    }
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
    float gain;         // of the result
    bool is_bf16;
    bool has_tiles;     // it goes by attention_amx.h
};

inline Attention attention_of(const Cache& k, const Cache& v, int64_t num_heads, float scale, bool is_bf16,
                              bool by_tiles = true) {
    constexpr double kLog2E = 1.4426950408889634;
    return {&k, &v, num_heads / k.num_heads, static_cast<float>(scale * k.global_scale * kLog2E),
            static_cast<float>(v.global_scale), is_bf16, by_tiles && has_tiles(k) && has_tiles(v)};
}

#if defined(MINNOW_HAS_AMX)
// The values of some keys, where both caches are laid out alike; else none.
inline Rows values_beside(const Cache& k, const Cache& v, const Rows& keys) {
    if (keys.num_rows == 0) return keys;
    const bool is_alike = k.format == v.format && k.block_stride == v.block_stride && k.head_stride == v.head_stride &&
                          k.token_stride == v.token_stride && k.scale_block_stride == v.scale_block_stride &&
                          k.scale_head_stride == v.scale_head_stride && k.width == v.width;
    Rows values = keys;
    values.codes += is_alike ? v.codes - k.codes : 0;
    values.scales += is_alike && v.scales != nullptr ? v.scales - k.scales : 0;
    return values;
}

// The same as attend. Sixteen rows at a time go all the way, so that what they need stays in the first cache.
inline void attend_by_tiles(Scratch& scratch, const Attention& attention, const Queries& queries, const int32_t* tokens,
                            const int32_t* row_counts, const int32_t* row_skips, int64_t num_tokens, int64_t num_keys,
                            const Rows& keys,
                            const Rows& values, const Rows& next_keys, const Rows& next_values, Tiles& tiles,
                            const State& state) {
    const int64_t num_heads = attention.num_heads, whole = round_up(num_keys, kStrip);
    const int64_t num_limbs = attention.is_bf16 ? kRoundedLimbs : kLimbs, width = values.width;
    float* key_pairs = scratch.take<float>(whole * keys.width / 2);
    float* value_pairs = scratch.take<float>(whole * width / 2);
    float* s = scratch.take<float>(kTileRows * kPanel);
    uint16_t* weights = scratch.take<uint16_t>(kTileRows * num_limbs * kPanel);
    uint8_t* room = scratch.take<uint8_t>(strip_bytes(keys.format, keys.width));
    tiles.configure(tiles.num_rows != 0 ? tiles.num_rows : kTileRows);
    if (tiles.fetched != keys.codes) tiles.fetch = {{keys.codes, keys.codes}, ahead_of(values, num_keys)};
    float* scales = scratch.take<float>(keys.width / 16 * kStrip);
    fill_key_tiles(keys, num_keys, room, scales, key_pairs, tiles.fetch);
    const int64_t num_next = smaller(next_keys.num_rows, kPanel);
    if (num_next > 0) tiles.fetch = {ahead_of(next_keys, num_next), ahead_of(next_values, num_next)};
    tiles.fetched = next_keys.codes;
    bool has_values = false;
    for (int64_t t = 0, end; t < num_tokens; t = end) {  // runs of tokens that lie side by side
        for (end = t + 1; end < num_tokens && tokens[end] == tokens[end - 1] + 1;) ++end;
        const float* q = queries.rows + tokens[t] * num_heads * queries.stride;
        tiles.for_rows((end - t) * num_heads, [&](int64_t r, int64_t count) {
            const int32_t* counts = row_counts + t * num_heads + r;
            const int64_t seen = round_up(counts[count - 1], kStrip);  // the last of them sees most
            const State rows = state.from(t * num_heads + r);
            score_tiles(q + r * queries.stride, queries.num_limbs, keys.width, key_pairs, seen, s, kPanel, tiles.fetch);
            if (!has_values) fill_value_tiles(values, num_keys, value_pairs, tiles.fetch);  // while scores are stored
            has_values = true;
            soften<true>(s, count, counts, row_skips == nullptr ? nullptr : row_skips + t * num_heads + r, seen,
                         attention.factor, rows);
            split_weights(s, count, seen, num_limbs, weights);
            add_tiles(weights, num_limbs, value_pairs, seen, width, rows.values, tiles.fetch);
        });
    }
}
#endif

// Tokens tokens[0..num_tokens) of a span, ascending, look at the first counts[i] keys of a panel, but for the first
// skips[i] (null: none): tokens [first, ...) of a block. `next`: keys that are read soon, if any. `state` has their rows
// alone.
inline void attend(Team& team, const Attention& attention, const Queries& queries, const int32_t* tokens,
                   const int32_t* counts, const int32_t* skips, int64_t num_tokens, int64_t block, int64_t head,
                   int64_t first,
                   const Rows& next, [[maybe_unused]] Tiles& tiles, const State& state) {
    Scratch scratch = team.scratch();
    const int64_t num_heads = attention.num_heads, num_rows = num_tokens * num_heads;
    int32_t* row_counts = scratch.take<int32_t>(num_rows);
    int32_t* row_skips = skips == nullptr ? nullptr : scratch.take<int32_t>(num_rows);
    int64_t num_keys = 0;
    for (int64_t t = 0; t < num_tokens; ++t) {
        num_keys = larger(num_keys, counts[t]);
        for (int64_t h = 0; h < num_heads; ++h) row_counts[t * num_heads + h] = counts[t];
        for (int64_t h = 0; h < num_heads && skips != nullptr; ++h) row_skips[t * num_heads + h] = skips[t];
    }
#if defined(MINNOW_HAS_AMX)
    if (attention.has_tiles) {
        return attend_by_tiles(scratch, attention, queries, tokens, row_counts, row_skips, num_tokens, num_keys,
                               rows_of(*attention.k, block, head, first), rows_of(*attention.v, block, head, first),
                               next, values_beside(*attention.k, *attention.v, next), tiles, state);
    }
#endif
    float* s = scratch.take<float>(num_rows * kPanel);
    Keys keys = take_keys(scratch, queries);
    const Rows key_rows = rows_of(*attention.k, block, head, first), values = rows_of(*attention.v, block, head, first);
    keys.ahead = ahead_of(values, num_keys);
    for (int64_t i = 0; i < num_keys; i += keys.num_keys) {
        read_keys(queries, key_rows.from(i), num_keys - i, num_rows, keys);
        for (int64_t t = 0, end; t < num_tokens; t = end) {  // runs of tokens that lie side by side
            for (end = t + 1; end < num_tokens && tokens[end] == tokens[end - 1] + 1;) ++end;
            score_keys(queries, tokens[t] * num_heads, (end - t) * num_heads, keys, attention.factor,
                       s + t * num_heads * kPanel + i, kPanel);
        }
    }
    soften<false>(s, num_rows, row_counts, row_skips, num_keys, 1.0f, state);
    const int64_t num_next = smaller(next.num_rows, kPanel);
    Ahead ahead = num_next > 0 ? ahead_of(next, num_next) : Ahead{values.codes, values.codes};
    const int64_t num_at_once = are_few(values, num_rows) ? kPanel : 2 * kStrip;
    float* room = scratch.take<float>(num_at_once * state.width);
    for (int64_t i = 0; i < num_keys; i += num_at_once) {
        add_weighted(s + i, num_rows, values.from(i), smaller(num_at_once, num_keys - i), room, state.values, ahead);
    }
}

// place[dims[p]] = values[p]. The barrier keeps GCC from scatters, which are many times slower, and a function of its
// own from spilling the pointers.
__attribute__((noinline)) inline void put_apart(const float* values, const int64_t* dims, int64_t count, float* place) {
    for (int64_t p = 0; p < count; ++p) {
        place[dims[p]] = values[p];
        __asm__("" ::: "memory");
    }
}

// The results of num_tokens tokens, `stride` floats apart. Where values lie is found out once for all.
inline void finish_rows(const Attention& attention, const State& state, int64_t num_tokens, float* out,
                        int64_t stride) {
    constexpr int64_t kPart = 128;
    const int64_t format = attention.v->format, width = attention.v->width, num_heads = attention.num_heads;
    for (int64_t r = 0; r < num_tokens * num_heads; ++r) {
        float* values = state.from(r).values;
        scale_row(values, state.width, attention.gain / state.sums[r]);
        if (!attention.is_bf16) continue;
        for (int64_t d = 0; d < width; d += kLanes) store(values + d, round_bf16(load(values + d)));
    }
    for (int64_t start = 0; start < width; start += kPart) {
        int64_t dims[kPart];
        const int64_t count = smaller(kPart, width - start);
        for (int64_t p = 0; p < count; ++p) {
            dims[p] = attention.has_tiles ? tile_value_dim(format, start + p) : value_dim(format, width, start + p);
        }
        for (int64_t t = 0; t < num_tokens; ++t) {
            for (int64_t h = 0; h < num_heads; ++h) {
                const float* values = state.from(t * num_heads + h).values + start;
                float* place = out + t * stride + h * width;
                put_apart(values, dims, count, place);
            }
        }
    }
}

}  // namespace MINNOW_ISA
