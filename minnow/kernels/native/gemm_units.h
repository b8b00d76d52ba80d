// what the many-row products multiply: units of 32 bits, transposed where a vector is to hold a value of 16 rows
//
// A unit is one FP32 value, or a pair of BF16 values where both sides are exactly BF16. Which values a pair holds is
// up to the format: as its codes come out of registers.
#pragma once

#include "weight.h"

namespace MINNOW_ISA {

#if defined(__AVX512F__)

// The high byte of each word, an E4M3 number but no NaN, as BF16. low_bits: the same bytes in bits 0 to 7.
inline __m512i words_of_e4m3(__m512i words, __m512i low_bits) {
    // Subnormals m * 2^-9 for m below 8; the rest only needs another exponent bias.
    const __m512i table = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0x3c603c403c203c00, 0x3bc03b803b000000);
    __m512i bits = _mm512_and_si512(_mm512_srli_epi16(words, 4), _mm512_set1_epi16(0x07f0));
    bits = _mm512_add_epi16(bits, _mm512_set1_epi16(120 << 7));
    const __mmask32 is_small = _mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x7800));
    bits = _mm512_mask_permutexvar_epi16(bits, is_small, low_bits, table);
    return _mm512_ternarylogic_epi64(bits, words, _mm512_set1_epi16(-0x8000), 0xf8);  // with the sign
}

// Bytes 0 and 2 of dwords as BF16, and bytes 1 and 3.
inline __m512i low_e4m3s(__m512i words) { return words_of_e4m3(_mm512_slli_epi16(words, 8), words); }
inline __m512i high_e4m3s(__m512i words) { return words_of_e4m3(words, _mm512_srli_epi16(words, 8)); }

#endif

// Column j of the 16 x 16 units in rows goes to place + j * stride.
#if defined(__AVX512F__)
inline void store_transposed(const F* rows, float* place, int64_t stride) {
    __m512 pairs[16], fours[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    const auto low = [&pairs](int i, int j) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[j])));
    };
    const auto high = [&pairs](int i, int j) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(pairs[i]), _mm512_castps_pd(pairs[j])));
    };
    for (int i = 0; i < 16; i += 4) {  // fours[i + c]: in its quarter q, column 4 q + c of rows i..i+3
        fours[i] = low(i, i + 2);
        fours[i + 1] = high(i, i + 2);
        fours[i + 2] = low(i + 1, i + 3);
        fours[i + 3] = high(i + 1, i + 3);
    }
    for (int c = 0; c < 4; ++c) {
        const __m512 even_top = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
        const __m512 odd_top = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xdd);
        const __m512 even_bottom = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
        const __m512 odd_bottom = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xdd);
        _mm512_storeu_ps(place + c * stride, _mm512_shuffle_f32x4(even_top, even_bottom, 0x88));
        _mm512_storeu_ps(place + (4 + c) * stride, _mm512_shuffle_f32x4(odd_top, odd_bottom, 0x88));
        _mm512_storeu_ps(place + (8 + c) * stride, _mm512_shuffle_f32x4(even_top, even_bottom, 0xdd));
        _mm512_storeu_ps(place + (12 + c) * stride, _mm512_shuffle_f32x4(odd_top, odd_bottom, 0xdd));
    }
}
#elif defined(__AVX2__)
inline void store_transposed_eight(const __m256* rows, float* place, int64_t stride) {
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {  // fours[i + c]: in its half q, column 4 q + c of rows i..i+3
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
    for (int c = 0; c < 4; ++c) {
        _mm256_storeu_ps(place + c * stride, _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20));
        _mm256_storeu_ps(place + (4 + c) * stride, _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31));
    }
}
inline void store_transposed(const F* rows, float* place, int64_t stride) {
    for (int half = 0; half < 2; ++half) {
        __m256 left[8], right[8];
        for (int i = 0; i < 8; ++i) {
            left[i] = rows[8 * half + i].a;
            right[i] = rows[8 * half + i].b;
        }
        store_transposed_eight(left, place + 8 * half, stride);
        store_transposed_eight(right, place + 8 * half + 8 * stride, stride);
    }
}
#else
inline void store_transposed(const F* rows, float* place, int64_t stride) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        store(lanes, rows[i]);
        for (int j = 0; j < kLanes; ++j) place[j * stride + i] = lanes[j];
    }
}
#endif

// How far apart the two values of a pair are: in every 2 n values, value i of the first n stands with value i + n.
inline int64_t unit_distance(int64_t format) {
    return format == kBf16 ? 1 : format == kFp8 || format == kMxfp8 ? 2 : 4;
}

inline int64_t bytes_of(int64_t format, int64_t num_values) {
    return row_bytes({format, 1, num_values, nullptr, nullptr, nullptr, 1.0});
}

inline int64_t units_of_width(int64_t width, bool is_paired) {
    return round_up(width, kChunk) / (is_paired ? 2 : 1);
}

// Which of 32 values go where in their 16 pairs.
struct PairOrder {
    alignas(kCacheLine) uint16_t value[kChunk];

    explicit PairOrder(int64_t distance) {
        for (int64_t i = 0; i < kChunk && distance != 0; ++i) {
            const int64_t pair = i / 2;
            value[i] = static_cast<uint16_t>(pair / distance * 2 * distance + pair % distance + i % 2 * distance);
        }
    }

    inline F pair_up(const float* values) const {
#if defined(__AVX512BF16__)
        const __m512i words = (__m512i)_mm512_cvtne2ps_pbh(load(values + kLanes).v, load(values).v);
        return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(value), words))};
#else
        Bfloat16 pairs[kChunk];
        for (int64_t i = 0; i < kChunk; ++i) store(pairs + i, values[value[i]]);
        F units;
        memcpy(&units, pairs, sizeof units);
        return units;
#endif
    }
};

// 16 units of the values that place points to, 16 or, in pairs, 32 of them.
inline F load_units(const float* place, bool is_paired, const PairOrder& order) {
    return is_paired ? order.pair_up(place) : load(place);
}

// One row's sums of a panel become results.
inline void finish_row(const float* sums, int64_t num_outputs, float factor, const Result& result) {
    float* y = result.y;
    const auto finished = [&](const float* from, const float* old) {
        return result.finished(load(from) * broadcast(factor), old);
    };
    int64_t o = 0;
    for (; o + kLanes <= num_outputs; o += kLanes) store(y + o, finished(sums + o, y + o));
    if (o == num_outputs) return;
    float old[kLanes] = {}, rest[kLanes];
    for (int64_t i = o; i < num_outputs; ++i) old[i - o] = y[i];
    store(rest, finished(sums + o, old));
    for (int64_t i = o; i < num_outputs; ++i) y[i] = rest[i - o];
}

}  // namespace MINNOW_ISA
