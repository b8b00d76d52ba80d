// one row or head at a time: norm, rotation by position, storing in the format of a cache
#pragma once

#include <math.h>

#include "operations.h"
#include "simd.h"

namespace MINNOW_ISA {

template <class T>
inline F load_padded(const T* p, int64_t count) {  // zeros behind the first count < 16
    T padded[kLanes] = {};
    for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
    return load(padded);
}

// Call body with a weight's values, of type f32, bf16 or f16.
template <class Body>
inline void with_plain(const Weight& w, Body&& body) {
    switch (w.format) {
        case kF32: return body(reinterpret_cast<const float*>(w.codes));
        case kBf16: return body(reinterpret_cast<const Bfloat16*>(w.codes));
        case kF16: return body(reinterpret_cast<const Float16*>(w.codes));
    }
}

inline float sum_of_squares(const float* x, int64_t width) {
    F sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
        for (int64_t j = 0; j < 4; ++j) {
            const F values = load(x + i + j * kLanes);
            sums[j] = fma(values, values, sums[j]);
        }
    }
    for (; i < width; i += kLanes) {
        const F values = i + kLanes <= width ? load(x + i) : load_padded(x + i, width - i);
        sums[0] = fma(values, values, sums[0]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline void round_row(float* x, int64_t width) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) store(x + i, round_bf16(load(x + i)));
    for (; i < width; ++i) x[i] = round_to_bf16(x[i]);
}

template <class W>
inline void norm_row_by(const float* x, const W* w, float* y, int64_t width, float eps, float offset) {
    const float scale = 1.0f / sqrtf(sum_of_squares(x, width) / static_cast<float>(width) + eps);
    const F scales = broadcast(scale), offsets = broadcast(offset);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) store(y + i, load(x + i) * scales * (offsets + load(w + i)));
    for (; i < width; ++i) y[i] = x[i] * scale * (offset + to_float(w[i]));
}

// y = x / rms(x) * (offset + w), for w in f32, bf16 or f16; y may be x.
inline void norm_row(const float* x, const Weight& w, float* y, int64_t width, float eps, float offset) {
    with_plain(w, [=](auto* values) { norm_row_by(x, values, y, width, eps, offset); });
}

// Cosine and sine of position * inv_freq; the product is rounded to f32 as the reference does, the rest is exact to
// f32's last place. In doubles and without branches, so that the loop becomes vector instructions.
inline void angles_of(int32_t position, const float* inv_freq, int64_t count, float* cosines, float* sines) {
    constexpr double kWhole = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves no bits behind the point
    constexpr double kHigh = 1.57079632673412561417, kLow = 6.07710050650619224932e-11;  // pi / 2, 33 bits and the rest
    const float place = static_cast<float>(position);
    for (int64_t i = 0; i < count; ++i) {
        const float angle = place * inv_freq[i];
        const double shifted = angle * 0.63661977236758134308 + kWhole;
        const double turns = shifted - kWhole;
        uint64_t quadrant;
        memcpy(&quadrant, &shifted, sizeof quadrant);
        const double r = (angle - turns * kHigh) - turns * kLow;
        const double z = r * r;
        const double sine = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 -
                                         z / 39916800))));
        const double cosine = 1.0 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 +
                              z * (-1.0 / 3628800 + z / 479001600)))));
        const bool is_swapped = quadrant & 1;
        const double c = is_swapped ? sine : cosine, s = is_swapped ? cosine : sine;
        cosines[i] = static_cast<float>((quadrant + 1) & 2 ? -c : c);
        sines[i] = static_cast<float>(quadrant & 2 ? -s : s);
    }
}

// Dims (j, j + count) rotate together; those from 2 * count on stay.
inline void turn_head(float* __restrict x, const float* __restrict cosines, const float* __restrict sines,
                      int64_t count) {
    float* __restrict second_half = x + count;
    for (int64_t i = 0; i < count; ++i) {
        const float first = x[i], second = second_half[i];
        x[i] = first * cosines[i] - second * sines[i];
        second_half[i] = second * cosines[i] + first * sines[i];
    }
}

// y = x mix for a matrix [width width]; x and y lie apart.
inline void mix_head(const float* x, const float* mix, int64_t width, float* __restrict y) {
    constexpr int64_t kColumns = 4 * kLanes;
    int64_t column = 0;
    for (; column + kColumns <= width; column += kColumns) {
        F sums[4] = {zero(), zero(), zero(), zero()};
        for (int64_t i = 0; i < width; ++i) {
            const F value = broadcast(x[i]);
            for (int64_t j = 0; j < 4; ++j) {
                sums[j] = fma(value, load(mix + i * width + column + j * kLanes), sums[j]);
            }
        }
        for (int64_t j = 0; j < 4; ++j) store(y + column + j * kLanes, sums[j]);
    }
    for (; column < width; ++column) {
        float sum = 0.0f;
        for (int64_t i = 0; i < width; ++i) sum += x[i] * mix[i * width + column];
        y[column] = sum;
    }
}

// Round to nearest even; beyond 448 is 448, and every NaN is 0x7f.
inline uint8_t to_e4m3(float value) {
    uint32_t bits, magnitude_bits, small_bits;
    memcpy(&bits, &value, sizeof bits);
    float magnitude = fabsf(value);
    magnitude = magnitude > 448.0f ? 448.0f : magnitude;
    memcpy(&magnitude_bits, &magnitude, sizeof bits);
    const float small = magnitude + 16384.0f;  // whose last place is 2^-9, as that of E4M3 below 2^-6
    memcpy(&small_bits, &small, sizeof bits);
    const uint32_t rebias = (127 - 7) << 3;
    const uint32_t normal = ((magnitude_bits + 0x7ffffu + ((magnitude_bits >> 20) & 1u)) >> 20) - rebias;
    const uint32_t code = magnitude < 0.015625f ? small_bits - 0x46800000u : normal;
    const uint32_t sign = (bits >> 24) & 0x80u;
    return static_cast<uint8_t>(value != value ? 0x7fu : code | sign);
}

inline void write_fp8(const float* x, int64_t width, float factor, uint8_t* codes) {
    if (factor == 1.0f) {
        for (int64_t i = 0; i < width; ++i) codes[i] = to_e4m3(x[i]);
    } else {
        for (int64_t i = 0; i < width; ++i) codes[i] = to_e4m3(x[i] / factor);
    }
}

// The rule of minnow/formats/nvfp4.py, operation by operation.
inline void write_nvfp4(const float* x, int64_t width, float factor, uint8_t* codes, uint8_t* scales) {
    constexpr int kBlock = 16;
    for (int64_t b = 0; b < width / kBlock; ++b, x += kBlock, codes += kBlock / 2) {
        int32_t largest_bits = 0;  // as integers, magnitudes order as they should and a NaN is above all
        for (int j = 0; j < kBlock; ++j) {
            int32_t bits;
            memcpy(&bits, x + j, sizeof bits);
            bits &= 0x7fffffff;
            largest_bits = bits > largest_bits ? bits : largest_bits;
        }
        float largest;
        memcpy(&largest, &largest_bits, sizeof largest);
        scales[b] = to_e4m3(largest / 6.0f / factor);
        const float step = from_e4m3(scales[b]), inverse = 1.0f / (step * factor);
        const float multiplier = step == 0.0f ? 0.0f : inverse;
        int32_t nibbles[kBlock];
        for (int j = 0; j < kBlock; ++j) {
            const float scaled = x[j] * multiplier, m = fabsf(scaled);
            int32_t bits;
            memcpy(&bits, &scaled, sizeof bits);
            const int32_t sign = scaled == scaled ? (bits >> 28) & 8 : 0;
            // Counted from the top down, so that a NaN, which is below nothing, ends at 7; ties to the even code.
            nibbles[j] = (7 - (m <= 0.25f) - (m < 0.75f) - (m <= 1.25f) - (m < 1.75f) - (m <= 2.5f) - (m < 3.5f) -
                          (m <= 5.0f)) | sign;
        }
        for (int j = 0; j < kBlock / 2; ++j) {
            codes[j] = step == 0.0f ? 0 : static_cast<uint8_t>(nibbles[2 * j] | nibbles[2 * j + 1] << 4);
        }
    }
}

// One head's values to their slot, in the cache's format.
inline void write_head(const float* x, const Cache& cache, int64_t slot, int64_t head) {
    const int64_t block = slot / cache.block_length, place = slot % cache.block_length;
    uint8_t* codes = cache.codes + block * cache.block_stride + head * cache.head_stride + place * cache.token_stride;
    const float factor = static_cast<float>(cache.global_scale);
    switch (cache.format) {
        case kF32: memcpy(codes, x, cache.width * sizeof(float)); return;
        case kBf16:
            for (int64_t i = 0; i < cache.width; ++i) store(reinterpret_cast<Bfloat16*>(codes) + i, x[i]);
            return;
        case kFp8: return write_fp8(x, cache.width, factor, codes);
        case kNvfp4:
            return write_nvfp4(x, cache.width, factor, codes,
                               cache.scales + block * cache.scale_block_stride + head * cache.scale_head_stride +
                                   place * cache.scale_token_stride);
    }
}

}  // namespace MINNOW_ISA
