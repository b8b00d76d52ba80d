// keys as FP32, for queries that are: taken out of the dwords of FP8 and BF16 keys, in registers or in a tile
#pragma once

#include <math.h>

#include "cache.h"

namespace MINNOW_ISA {

#if defined(__AVX512F__)

inline bool has_floats(int64_t format, int64_t width) {
    return (format == kFp8 || format == kBf16) && has_columns(format, width);
}

// The dims of sixteen keys, which a dword of each holds.
template <int64_t kFormat>
struct Widener {
    __m512i largest = _mm512_setzero_si512();  // of FP8 numbers: NaNs are not read right
    static constexpr int kDims = kFormat == kFp8 ? 4 : 2;

    __attribute__((always_inline)) inline void widen(__m512i column, F* out) {
        if (kFormat == kFp8) {
            largest = e4m3_largest(largest, column);
            e4m3_floats(column, out);
        } else {
            out[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(column, 16))};
            out[1] = {_mm512_castsi512_ps(_mm512_and_si512(column, _mm512_set1_epi32(-0x10000)))};
        }
    }
};

// A whole strip as keys[d * 32 + i].
template <int64_t kFormat>
inline void fill_floats(const Rows& rows, float* keys) {
    constexpr int kDims = Widener<kFormat>::kDims;
    ColumnReader reader(rows);
    for (int64_t first = 0; first < kStrip; first += kLanes) {
        Widener<kFormat> widener;
        for (int64_t d = 0; d < rows.width; d += 4 * kDims) {
            float* place = keys + d * kStrip + first;
            reader.step<false>(reader.next(4 * d / kDims, first != 0), [&](int c, __m512i column) {
                F values[kDims];
                widener.widen(column, values);
                for (int j = 0; j < kDims; ++j) store(place + (c * kDims + j) * kStrip, values[j]);
            });
        }
        if (kFormat != kFp8 || e4m3_nans(widener.largest) == 0) continue;
        for (int64_t i = first; i < first + kLanes; ++i) {
            for (int64_t d = 0; d < rows.width; ++d) {
                if ((rows.codes_of(i)[d] & 0x7f) == 0x7f) keys[d * kStrip + i] = NAN;
            }
        }
    }
}

inline void decode_floats(const Rows& rows, float* keys) {
    if (rows.format == kFp8) return fill_floats<kFp8>(rows, keys);
    fill_floats<kBf16>(rows, keys);
}

// s[r * s_stride + i] = factor * (query r . key i) for whole strips of keys, which are decoded in registers: to the
// bit what plain_products has from a tile. False, and s is of no use, where an FP8 NaN came by.
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline bool few_float_products(const Rows& keys, int64_t num_keys, const float* q,
                                                         int64_t stride, float factor, float* s, int64_t s_stride,
                                                         Ahead& ahead) {
    constexpr int kDims = Widener<kFormat>::kDims;
    ColumnReader reader(keys);
    Widener<kFormat> widener;
    for (int64_t i = 0; i < num_keys; i += kLanes, s += kLanes) {
        F sums[kRows][2];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = zero();
        for (int64_t d = 0; d < stride; d += 4 * kDims) {
            ahead.ask();
            const uint8_t* next = reader.next(4 * d / kDims, i + kLanes == num_keys);
            reader.step<false>(next, [&](int c, __m512i column) __attribute__((always_inline)) {
                F values[kDims];
                widener.widen(column, values);
#pragma GCC unroll 4
                for (int j = 0; j < kDims; ++j) {
#pragma GCC unroll 8
                    for (int r = 0; r < kRows; ++r) {
                        const F x = spread(q + r * stride + d + c * kDims + j);
                        sums[r][j % 2] = fma(x, values[j], sums[r][j % 2]);
                    }
                }
            });
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) store(s + r * s_stride, (sums[r][0] + sums[r][1]) * broadcast(factor));
    }
    return kFormat != kFp8 || e4m3_nans(widener.largest) == 0;
}

#else

inline bool has_floats(int64_t, int64_t) { return false; }

#endif

}  // namespace MINNOW_ISA
