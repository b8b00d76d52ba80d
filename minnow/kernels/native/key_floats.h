// keys as FP32, for queries that are: taken out of the dwords of FP8 and BF16 keys, in registers or in a tile
//
// E4M3 numbers come times 2^-120, as shifts leave them. Queries are 2^60 times too large to make up for half of it, so
// that neither products nor sums lose bits; the factor of the products makes up for the rest.
#pragma once

#include <math.h>

#include "cache.h"

namespace MINNOW_ISA {

#if defined(__AVX512F__)

inline bool has_floats(int64_t format, int64_t width) {
    return (format == kFp8 || format == kBf16) && has_columns(format, width);
}
inline float query_gain(int64_t format) { return format == kFp8 ? 1.152921504606846976e18f : 1.0f; }

constexpr int kGroupDims = 16;  // that are summed one by one

// Sixteen keys, one in each lane.
template <int64_t kFormat>
struct FloatReader {
    const uint8_t* codes;
    int64_t stride;
    __m512i largest = _mm512_setzero_si512();  // of FP8 numbers: NaNs are not read right
    static constexpr int kColumnDims = kFormat == kFp8 ? 4 : 2, kColumns = kGroupDims / kColumnDims;

    // use(group, i, keys) for the dims i of groups of 16 from dim `start` on: two groups in turn, as a sum waits for
    // the one before it. FP8 comes in twos.
    template <int kGroups, class Use>
    __attribute__((always_inline)) inline void visit(int64_t start, Use&& use) {
        __m512i v[kGroups * kColumns];
#pragma GCC unroll 2
        for (int k = 0; k < kGroups * kColumns; k += 8) {
            load_columns(codes + 4 * (start / kColumnDims + k), stride, v + k);
        }
#pragma GCC unroll 8
        for (int k = 0; k < kColumns; ++k) {
#pragma GCC unroll 2
            for (int group = 0; group < kGroups; ++group) {
                F keys[kColumnDims];
                widen(v[group * kColumns + k], keys);
#pragma GCC unroll 4
                for (int j = 0; j < kColumnDims; ++j) use(group, kColumnDims * k + j, keys[j]);
            }
        }
    }

    __attribute__((always_inline)) inline void widen(__m512i column, F* out) {
        if (kFormat == kFp8) {
            largest = e4m3_largest(largest, column);
            small_e4m3s(column, out);
        } else {
            out[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(column, 16))};
            out[1] = {_mm512_castsi512_ps(_mm512_and_si512(column, _mm512_set1_epi32(-0x10000)))};
        }
    }
};

// A whole strip as keys[d * 32 + i].
template <int64_t kFormat>
inline void fill_floats(const Rows& rows, float* keys) {
    for (int64_t first = 0; first < kStrip; first += kLanes) {
        FloatReader<kFormat> reader = {rows.codes_of(first), rows.stride};
        float* place = keys + first;
        const auto put = [&](int group, int i, F key) __attribute__((always_inline)) {
            store(place + (group * kGroupDims + i) * kStrip, key);
        };
        int64_t d = 0;
        for (; d + 2 * kGroupDims <= rows.width; d += 2 * kGroupDims, place += 2 * kGroupDims * kStrip) {
            reader.template visit<2>(d, put);
        }
        if (kFormat != kFp8 && d < rows.width) reader.template visit<kFormat == kFp8 ? 2 : 1>(d, put);
        if (kFormat != kFp8 || e4m3_nans(reader.largest) == 0) continue;
        for (int64_t i = first; i < first + kLanes; ++i) {
            for (d = 0; d < rows.width; ++d) {
                if ((rows.codes_of(i)[d] & 0x7f) == 0x7f) keys[d * kStrip + i] = NAN;
            }
        }
    }
}

inline void decode_floats(const Rows& rows, float* keys) {
    if (rows.format == kFp8) return fill_floats<kFp8>(rows, keys);
    fill_floats<kBf16>(rows, keys);
}

// s[r * s_stride + i] = factor * (query r . key i) for the 32 keys of a strip, which are decoded in registers: to the
// bit what plain_products has from a tile. False, and s is of no use, where an FP8 NaN came by. Meanwhile `ahead` is
// asked for, a few rows at a time: many at once would hold up the loads behind them.
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline bool few_float_products(const Rows& keys, const float* q, int64_t stride,
                                                         float factor, float* s, int64_t s_stride, const Rows& ahead) {
    const int64_t part = (kStrip * kGroupDims + stride - 1) / stride;
    int64_t num_asked = 0;
    __mmask64 nans = 0;
    for (int64_t first = 0; first < kStrip; first += kLanes, s += kLanes) {
        FloatReader<kFormat> reader = {keys.codes_of(first), keys.stride};
        F totals[kRows];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) totals[r] = zero();
        const auto add_groups = [&](int64_t d, auto count) __attribute__((always_inline)) {
            constexpr int kGroups = decltype(count)::value;
            ask_for(ahead.from(num_asked), smaller(part, ahead.num_rows - num_asked));
            num_asked = smaller(num_asked + part, ahead.num_rows);
            F sums[kGroups][kRows];
            reader.template visit<kGroups>(d, [&](int group, int i, F key) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    const F x = broadcast(q[r * stride + d + group * kGroupDims + i]);
                    sums[group][r] = fma(x, key, i == 0 ? zero() : sums[group][r]);
                }
            });
#pragma GCC unroll 2
            for (int group = 0; group < kGroups; ++group) {
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) totals[r] = totals[r] + sums[group][r];
            }
        };
        int64_t d = 0;
        for (; d + 2 * kGroupDims <= stride; d += 2 * kGroupDims) add_groups(d, Count<2>());
        if (kFormat != kFp8 && d < stride) add_groups(d, Count<kFormat == kFp8 ? 2 : 1>());
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) store(s + r * s_stride, totals[r] * broadcast(factor));
        if (kFormat == kFp8) nans |= e4m3_nans(reader.largest);
    }
    return nans == 0;
}

#else

inline bool has_floats(int64_t, int64_t) { return false; }
inline float query_gain(int64_t) { return 1.0f; }

#endif

}  // namespace MINNOW_ISA
