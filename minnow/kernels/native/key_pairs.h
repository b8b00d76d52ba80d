// keys as pairs of BF16, which hold FP8, NVFP4 without scales and BF16 exactly, in registers or in a tile
//
// Shifts bring the dims of a dword out in an order of their own: pair p holds dims pair_dim(p) and that plus
// pair_distance. Queries are laid out to match; eight pairs are 16 dims, one group of NVFP4.
#pragma once

#include "cache.h"

namespace MINNOW_ISA {

inline int64_t pair_distance(int64_t format) { return format == kNvfp4 ? 4 : format == kFp8 ? 2 : 1; }
inline int64_t pair_dim(int64_t format, int64_t pair) {
    const int64_t distance = pair_distance(format);
    return pair / distance * 2 * distance + pair % distance;
}

#if defined(__AVX512BF16__)

inline bool has_pairs(int64_t format, int64_t width) { return format != kF32 && has_columns(format, width); }

// BF16 of the 128 magnitudes of E4M3.
struct E4m3Magnitudes {
    uint16_t bits[128];
    constexpr E4m3Magnitudes() : bits() {
        const uint16_t subnormals[8] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // m * 2^-9
        for (int i = 0; i < 127; ++i) bits[i] = i < 8 ? subnormals[i] : static_cast<uint16_t>((i << 4) + (120 << 7));
        bits[127] = 0x7fc0;
    }
};
static constexpr E4m3Magnitudes kE4m3Magnitudes;

// The E4M3 number in the lowest bits of each word as BF16; its sign is the highest bit of signs.
inline __m512i e4m3_to_bf16(__m512i words, __m512i signs) {
    const __m512i* table = reinterpret_cast<const __m512i*>(kE4m3Magnitudes.bits);
    const auto part = [&](int i) { return _mm512_loadu_si512(table + i); };
    const __m512i low = _mm512_permutex2var_epi16(part(0), words, part(1));  // lookups heed six bits
    const __m512i high = _mm512_permutex2var_epi16(part(2), words, part(3));
    const __mmask32 is_high = _mm512_test_epi16_mask(words, _mm512_set1_epi16(0x40));
    const __m512i magnitudes = _mm512_mask_blend_epi16(is_high, low, high);
    return _mm512_ternarylogic_epi64(magnitudes, signs, _mm512_set1_epi16(-0x8000), 0xf8);
}

// Pairs of the dims of sixteen keys, which a dword of each holds.
template <int64_t kFormat>
struct Pairer {
    static constexpr int kPairs = kFormat == kNvfp4 ? 4 : kFormat == kFp8 ? 2 : 1;
    __m512i table = e2m1_to_bf16_table();

    // use(i, two) for the pairs i of a dword.
    template <class Use>
    __attribute__((always_inline)) inline void visit(__m512i column, Use&& use) const {
        if (kFormat == kBf16) {
            use(0, column);
        } else if (kFormat == kFp8) {
            use(0, e4m3_to_bf16(column, _mm512_slli_epi16(column, 8)));
            use(1, e4m3_to_bf16(_mm512_srli_epi16(column, 8), column));
        } else {
            use(0, _mm512_permutexvar_epi16(column, table));
            use(1, _mm512_permutexvar_epi16(_mm512_srli_epi16(column, 4), table));
            use(2, _mm512_permutexvar_epi16(_mm512_srli_epi16(column, 8), table));
            use(3, _mm512_permutexvar_epi16(_mm512_srli_epi16(column, 12), table));
        }
    }
};

// A whole strip as pairs[p * 32 + i].
template <int64_t kFormat>
inline void fill_pairs(const Rows& rows, float* pairs) {
    constexpr int kPairs = Pairer<kFormat>::kPairs;
    const Pairer<kFormat> pairer;
    ColumnReader reader(rows);
    for (int64_t first = 0; first < kStrip; first += kLanes) {
        for (int64_t p = 0; p < rows.width / 2; p += 4 * kPairs) {
            float* place = pairs + p * kStrip + first;
            reader.step<true>(reader.next(4 * p / kPairs, first != 0), [&](int c, __m512i column) {
                pairer.visit(column, [&](int i, __m512i two) {
                    _mm512_storeu_si512(place + (c * kPairs + i) * kStrip, two);
                });
            });
        }
    }
}

inline void decode_pairs(const Rows& rows, float* pairs) {
    if (rows.format == kNvfp4) return fill_pairs<kNvfp4>(rows, pairs);
    if (rows.format == kFp8) return fill_pairs<kFp8>(rows, pairs);
    fill_pairs<kBf16>(rows, pairs);
}

// sum + two dims of a query, which `q` points to, times those of 16 keys. As a broadcast inside the instruction, which
// the compiler does not find, the load costs no vector operation.
inline __m512 add_pair(__m512 sum, const float* q, __m512i two) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(two), "m"(*q));
    return sum;
}

// s[r * s_stride + i] = factor * (query r . key i) for whole strips of keys, which are decoded in registers. Two sums
// in turn, for the first two and the last two dwords of sixteen bytes, as one waits for itself; of NVFP4 they are
// those of two groups, which the scales multiply. scales: room for those of a strip.
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline void few_products(const Rows& keys, int64_t num_keys, const float* q, int64_t stride,
                                                   float* scales, float factor, float* s, int64_t s_stride,
                                                   Ahead& ahead) {
    constexpr int kPairs = Pairer<kFormat>::kPairs;
    const Pairer<kFormat> pairer;
    ColumnReader reader(keys);
    for (int64_t i = 0; i < num_keys; i += kLanes, s += kLanes) {
        const float* scale = scales + i % kStrip;
        if (kFormat == kNvfp4) decode_scales(keys.from(i), scales + i % kStrip);
        __m512 totals[kRows], sums[kRows][2];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) totals[r] = sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        for (int64_t p = 0; p < stride; p += 4 * kPairs) {
            ahead.ask<kFormat == kNvfp4 ? 5 : 4>();  // what is read, and scales
            const uint8_t* next = reader.next(4 * p / kPairs, i + kLanes == num_keys);
            reader.step<true>(next, [&](int c, __m512i column) __attribute__((always_inline)) {
                pairer.visit(column, [&](int k, __m512i two) __attribute__((always_inline)) {
#pragma GCC unroll 8
                    for (int r = 0; r < kRows; ++r) {
                        sums[r][c / 2] = add_pair(sums[r][c / 2], q + r * stride + p + c * kPairs + k, two);
                    }
                });
            });
            if (kFormat != kNvfp4) continue;
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                totals[r] = _mm512_fmadd_ps(sums[r][0], _mm512_loadu_ps(scale), totals[r]);
                totals[r] = _mm512_fmadd_ps(sums[r][1], _mm512_loadu_ps(scale + kStrip), totals[r]);
                sums[r][0] = sums[r][1] = _mm512_setzero_ps();
            }
            scale += 2 * kStrip;
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const __m512 total = kFormat == kNvfp4 ? totals[r] : _mm512_add_ps(sums[r][0], sums[r][1]);
            _mm512_storeu_ps(s + r * s_stride, _mm512_mul_ps(total, _mm512_set1_ps(factor)));
        }
    }
}

// The same, to the bit, for one strip from a tile: pairs[p * 32 + i].
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline void tile_products(const float* pairs, const float* q, int64_t stride,
                                                    const float* scales, float factor, float* s, int64_t s_stride) {
    constexpr int kPart = 2 * Pairer<kFormat>::kPairs;
    __m512 sums[2][kRows][2];  // of NVFP4: totals, and sums of a group
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        sums[0][r][0] = sums[0][r][1] = sums[1][r][0] = sums[1][r][1] = _mm512_setzero_ps();
    }
    for (int64_t start = 0; start < stride; start += 2 * kPart) {
#pragma GCC unroll 2
        for (int part = 0; part < 2; ++part, q += kPart) {
            __m512(&here)[kRows][2] = sums[kFormat == kNvfp4 ? 1 : part];
#pragma GCC unroll 8
            for (int i = 0; i < kPart; ++i, pairs += kStrip) {
                const __m512bh a = (__m512bh)_mm512_loadu_si512(pairs);
                const __m512bh b = (__m512bh)_mm512_loadu_si512(pairs + kLanes);
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    const __m512bh x = (__m512bh)_mm512_castps_si512(spread(q + r * stride + i).v);
                    here[r][0] = _mm512_dpbf16_ps(here[r][0], x, a);
                    here[r][1] = _mm512_dpbf16_ps(here[r][1], x, b);
                }
            }
            if (kFormat != kNvfp4) continue;
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
                for (int h = 0; h < 2; ++h) {
                    sums[0][r][h] = _mm512_fmadd_ps(here[r][h], _mm512_loadu_ps(scales + h * kLanes), sums[0][r][h]);
                    here[r][h] = _mm512_setzero_ps();
                }
            }
            scales += kStrip;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            const __m512 total = kFormat == kNvfp4 ? sums[0][r][h] : _mm512_add_ps(sums[0][r][h], sums[1][r][h]);
            _mm512_storeu_ps(s + r * s_stride + h * kLanes, _mm512_mul_ps(total, _mm512_set1_ps(factor)));
        }
    }
}

#else

inline bool has_pairs(int64_t, int64_t) { return false; }

#endif

}  // namespace MINNOW_ISA
