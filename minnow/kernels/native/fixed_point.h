// rows of FP32 as whole numbers, 32 values to a step, for exact products with integer weights
//
// With three digits a block of 32 values becomes whole numbers below 2^22 in steps of a power of two: its greatest value
// keeps 21 bits or more, and none of the others is off by more than half a step, which is what FP32 sums of such products
// lose as well. Two digits and one are roundings to 16 and 8 bits that a user may choose. A digit is a signed byte of
// base 256; integer dot products take one after the other.
#pragma once

#include <math.h>
#include <stdint.h>

#include "elements.h"
#if defined(__AVX512BW__)
#include <immintrin.h>
#endif

namespace MINNOW_ISA {

constexpr int64_t kBlock = 32;

// A block, ready to be multiplied with tiles.h.
template <int kDigits>
struct FixedBlock {
    int8_t digits[kDigits][kBlock];  // highest first; eight values at a time, the even ones before the odd ones
    int32_t offsets[kDigits];        // -128 times the sum of the digits: what codes that are 128 too great add
    float step;                      // what 1 stands for; NaN where a value is not finite
    float sum;                       // of the values
};

// Where value i of a block lies.
constexpr int place_of(int i) { return i / 8 * 8 + i % 2 * 4 + i % 8 / 2; }

// Floats that a packed row takes.
template <int kDigits>
constexpr int64_t fixed_floats(int64_t width) {
    return width / kBlock * static_cast<int64_t>(sizeof(FixedBlock<kDigits>) / sizeof(float));
}

inline float float_of(int32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// What values are multiplied with to become whole numbers; bits: of the greatest magnitude.
template <int kDigits>
inline float factor_for(int32_t bits) {
    constexpr int32_t kLeast = 27;  // 2^-100: blocks below it are zero, or steps would not be normal numbers
    const int32_t exponent = bits >> 23 < kLeast ? kLeast : bits >> 23;
    if (kDigits == 3) return float_of((254 + 21 - exponent) << 23);
    const float greatest = bits >> 23 < kLeast ? float_of(kLeast << 23) : float_of(bits);
    return (kDigits == 2 ? 127.0f * 256.0f : 127.0f) / greatest;
}

// What whole numbers times `step` stand for, and their sum.
struct Scaled {
    float step, sum;
};

// x [32] as whole numbers. They are of no use where one is not finite.
template <int kDigits>
inline Scaled to_whole(const float* x, int32_t* numbers) {
#if defined(__AVX512BW__)
    const __m512 first = _mm512_loadu_ps(x), second = _mm512_loadu_ps(x + 16);
    const __m512i magnitudes = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(first)),
                                                _mm512_castps_si512(_mm512_abs_ps(second)));
    const int32_t greatest = _mm512_reduce_max_epi32(magnitudes);
    const bool is_finite = greatest >> 23 != 255;
    const float factor = is_finite ? factor_for<kDigits>(greatest) : 0.0f;
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(first, _mm512_set1_ps(factor)));
    const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(second, _mm512_set1_ps(factor)));
    _mm512_storeu_si512(numbers, a);
    _mm512_storeu_si512(numbers + 16, b);
    const int32_t total = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
#else
    int32_t bits[kBlock], greatest = 0;
    __builtin_memcpy(bits, x, sizeof bits);
    for (int i = 0; i < kBlock; ++i) {
        const int32_t magnitude = bits[i] & 0x7fffffff;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    const bool is_finite = greatest >> 23 != 255;
    const float factor = is_finite ? factor_for<kDigits>(greatest) : 0.0f;
    const float magic = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, in its low bits
    int32_t total = 0;
    for (int i = 0; i < kBlock; ++i) {
        const float shifted = x[i] * factor + magic;
        int32_t number;
        __builtin_memcpy(&number, &shifted, sizeof number);
        numbers[i] = is_finite ? number - 0x4b400000 : 0;
        total += numbers[i];
    }
#endif
    const float step = is_finite ? 1.0f / factor : NAN;
    return {step, static_cast<float>(total) * step};
}

#if defined(__AVX512BW__)
// The lowest bytes of 32 numbers in the order of place_of.
inline __m256i to_places(__m512i first, __m512i second) {
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    const __m256i bytes = _mm256_set_m128i(_mm512_cvtepi32_epi8(second), _mm512_cvtepi32_epi8(first));
    return _mm256_shuffle_epi8(bytes, order);
}
#endif

// The lowest bytes of 32 numbers at their places.
inline void store_bytes(const int32_t* numbers, int8_t* out) {
#if defined(__AVX512BW__)
    const __m256i bytes = to_places(_mm512_loadu_si512(numbers), _mm512_loadu_si512(numbers + 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
#else
    for (int i = 0; i < kBlock; ++i) out[place_of(i)] = static_cast<int8_t>(numbers[i]);
#endif
}

template <int kDigits>
inline void pack_block(const float* x, FixedBlock<kDigits>& out) {
    int32_t numbers[kBlock];
    const Scaled scaled = to_whole<kDigits>(x, numbers);
#if defined(__AVX512VNNI__)
    __m512i first = _mm512_loadu_si512(numbers), second = _mm512_loadu_si512(numbers + 16);
    __m256i sums[4] = {};  // of the bytes of each digit, in eight parts
    for (int digit = kDigits; digit-- > 0;) {
        const __m256i bytes = to_places(first, second);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.digits[digit]), bytes);
        sums[digit] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
        first = _mm512_srai_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(128)), 8);
        second = _mm512_srai_epi32(_mm512_add_epi32(second, _mm512_set1_epi32(128)), 8);
    }
    const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    const __m128i whole = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    _mm_mask_storeu_epi32(out.offsets, (1 << kDigits) - 1, _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(whole, 7)));
#else
    for (int digit = kDigits; digit-- > 0;) {
        store_bytes(numbers, out.digits[digit]);
        int32_t digits = 0;
        for (int i = 0; i < kBlock; ++i) {
            const int32_t byte = static_cast<int8_t>(numbers[i]);
            digits += byte;
            numbers[i] = (numbers[i] - byte) >> 8;
        }
        out.offsets[digit] = -128 * digits;
    }
#endif
    out.step = scaled.step;
    out.sum = scaled.sum;
}

// x [width], a multiple of 32.
template <int kDigits>
inline void pack_fixed(const float* x, int64_t width, float* out) {
    FixedBlock<kDigits>* blocks = reinterpret_cast<FixedBlock<kDigits>*>(out);
    for (int64_t b = 0; b < width / kBlock; ++b) pack_block(x + b * kBlock, blocks[b]);
}

}  // namespace MINNOW_ISA
