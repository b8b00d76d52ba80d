// keys as pairs of BF16, which hold FP8, NVFP4 without scales and BF16 exactly, in registers or in a tile
//
// Shifts bring the dims of a dword out in an order of their own: pair p holds dims pair_dim(p) and that plus
// pair_distance. Queries are laid out to match; eight pairs are 16 dims, one group of NVFP4.
#pragma once

#include "cache.h"

namespace MINNOW_ISA {

constexpr int64_t kGroupPairs = 8;

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

// Reads 16 keys, 32 bytes of each at a step.
template <int64_t kFormat>
struct PairReader {
    const uint8_t* codes;
    int64_t stride;
    static constexpr int64_t kColumnPairs = kFormat == kNvfp4 ? 4 : kFormat == kFp8 ? 2 : 1;
    static constexpr int64_t kStepPairs = 8 * kColumnPairs;

    // use(i, two) for the pairs i of the step that begins at pair `start`.
    template <class Use>
    __attribute__((always_inline)) inline void visit(int64_t start, Use&& use) {
        const __m512i table = e2m1_to_bf16_table();
        __m512i v[8];
        load_columns(codes + 4 * (start / kColumnPairs), stride, v);
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
            if (kFormat == kBf16) {
                use(k, v[k]);
            } else if (kFormat == kFp8) {
                use(2 * k, e4m3_to_bf16(v[k], _mm512_slli_epi16(v[k], 8)));
                use(2 * k + 1, e4m3_to_bf16(_mm512_srli_epi16(v[k], 8), v[k]));
            } else {
                use(4 * k, _mm512_permutexvar_epi16(v[k], table));
                use(4 * k + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(v[k], 4), table));
                use(4 * k + 2, _mm512_permutexvar_epi16(_mm512_srli_epi16(v[k], 8), table));
                use(4 * k + 3, _mm512_permutexvar_epi16(_mm512_srli_epi16(v[k], 12), table));
            }
        }
    }
};

// Sixteen keys of a strip as pairs[p * 32 + i].
template <int64_t kFormat>
inline void fill_half(const Rows& rows, float* pairs) {
    PairReader<kFormat> reader = {rows.codes, rows.stride};
    float* place = pairs;
    for (int64_t p = 0; p < rows.width / 2; p += reader.kStepPairs, place += reader.kStepPairs * kStrip) {
        reader.visit(p, [&](int i, __m512i two) __attribute__((always_inline)) {
            _mm512_storeu_si512(place + i * kStrip, two);
        });
    }
}

inline void decode_pairs(const Rows& rows, float* pairs) {
    for (int64_t i = 0; i < kStrip; i += kLanes, pairs += kLanes) {
        const Rows half = rows.from(i);
        if (rows.format == kNvfp4) {
            fill_half<kNvfp4>(half, pairs);
        } else if (rows.format == kFp8) {
            fill_half<kFp8>(half, pairs);
        } else {
            fill_half<kBf16>(half, pairs);
        }
    }
}

// sum + two dims of a query, which `q` points to, times those of 16 keys. As a broadcast inside the instruction, which
// the compiler does not find, the load costs no vector operation.
inline __m512 add_pair(__m512 sum, const float* q, __m512i two) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(two), "m"(*q));
    return sum;
}

// s[r * s_stride + i] = factor * (query r . key i) for the 32 keys of a strip, which are decoded in registers.
// scales[g * 32 + i], where the format has them, multiply the sum over group g of key i.
template <int kRows, int64_t kFormat>
__attribute__((noinline)) inline void few_products(const Rows& keys, const float* q, int64_t stride,
                                                   const float* scales, float factor, float* s, int64_t s_stride) {
    for (int64_t first = 0; first < kStrip; first += kLanes, s += kLanes) {
        PairReader<kFormat> reader = {keys.codes_of(first), keys.stride};
        __m512 totals[kRows], sums[kRows];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) totals[r] = _mm512_setzero_ps();
        const float* scale = scales + first;
        for (int64_t p = 0; p < stride; p += reader.kStepPairs) {
            reader.visit(p, [&](int i, __m512i two) __attribute__((always_inline)) {
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    if (i % kGroupPairs == 0) sums[r] = _mm512_setzero_ps();
                    sums[r] = add_pair(sums[r], q + r * stride + p + i, two);
                    if (i % kGroupPairs != kGroupPairs - 1) continue;
                    totals[r] = kFormat == kNvfp4 ? _mm512_fmadd_ps(sums[r], _mm512_loadu_ps(scale), totals[r])
                                                  : _mm512_add_ps(totals[r], sums[r]);
                }
                if (i % kGroupPairs == kGroupPairs - 1) scale += kStrip;
            });
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            _mm512_storeu_ps(s + r * s_stride, _mm512_mul_ps(totals[r], _mm512_set1_ps(factor)));
        }
    }
}

// The same, to the bit, from a tile: pairs[p * 32 + i].
template <int kRows, bool kHasScales>
__attribute__((noinline)) inline void tile_products(const float* pairs, const float* q, int64_t stride,
                                                    const float* scales, float factor, float* s, int64_t s_stride) {
    __m512 totals[kRows][2];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) totals[r][0] = totals[r][1] = _mm512_setzero_ps();
    for (int64_t group = 0; group < stride / kGroupPairs; ++group, scales += kStrip, q += kGroupPairs) {
        __m512 sums[kRows][2];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
#pragma GCC unroll 8
        for (int i = 0; i < kGroupPairs; ++i, pairs += kStrip) {
            const __m512bh a = (__m512bh)_mm512_loadu_si512(pairs), b = (__m512bh)_mm512_loadu_si512(pairs + kLanes);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const __m512bh x = (__m512bh)_mm512_castps_si512(_mm512_set1_ps(q[r * stride + i]));
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, a);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, b);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
            for (int h = 0; h < 2; ++h) {
                totals[r][h] = kHasScales
                                   ? _mm512_fmadd_ps(sums[r][h], _mm512_loadu_ps(scales + h * kLanes), totals[r][h])
                                   : _mm512_add_ps(totals[r][h], sums[r][h]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
        _mm512_storeu_ps(s + r * s_stride, _mm512_mul_ps(totals[r][0], _mm512_set1_ps(factor)));
        _mm512_storeu_ps(s + r * s_stride + kLanes, _mm512_mul_ps(totals[r][1], _mm512_set1_ps(factor)));
    }
}

#else

inline bool has_pairs(int64_t, int64_t) { return false; }

#endif

}  // namespace MINNOW_ISA
