// element types as FP32: exact on the way in, round to nearest even on the way out
#pragma once

#include <stdint.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace MINNOW_ISA {

// Into the second cache: the first has too few misses in flight for memory's latency, and is near enough to the second.
// Always inline, as is what calls nothing else: GCC 12 takes a function that only fetches for one without effect.
__attribute__((always_inline)) inline void prefetch(const void* place) { __builtin_prefetch(place, 0, 2); }
// Into the first cache.
__attribute__((always_inline)) inline void prefetch_near(const void* place) { __builtin_prefetch(place, 0, 3); }

// The codes of minnow/kernels/native.py.
enum Dtype : int64_t { kFloat32 = 0, kBfloat16 = 1 };

struct Bfloat16 {
    uint16_t bits;
};

inline float to_float(float value) { return value; }

inline float to_float(Bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
}

struct Float16 {
    uint16_t bits;
};

inline float to_float(Float16 value) {
#ifdef __F16C__
    return _cvtsh_ss(value.bits);
#else
    const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
    const uint32_t rest = value.bits & 0x7fffu;
    uint32_t bits = sign | ((rest << 13) + 0x38000000u);        // rebias the exponent from 15 to 127
    if (rest >= 0x7c00u) bits = sign | (rest << 13) | 0x7f800000u;  // infinity and NaN
    float result;
    __builtin_memcpy(&result, &bits, sizeof result);
    if (rest < 0x400u) {  // zero and subnormals count in steps of 2^-24
        result = static_cast<float>(rest) * 5.9604644775390625e-8f;
        if (sign) result = -result;
    }
    return result;
#endif
}

// E4M3: sign, four exponent bits (bias 7), three mantissa bits; no infinity, 0x7f and 0xff are NaN.
inline float from_e4m3(uint8_t byte) {
    if ((byte & 0x7f) == 0x7f) return __builtin_nanf("");
    const Float16 scaled = {static_cast<uint16_t>(((byte & 0x80) << 8) | ((byte & 0x7f) << 7))};
    return to_float(scaled) * 256.0f;  // the same bits in a half, whose bias is 8 more
}

// 2^(byte - 127); 255 is NaN.
inline float from_e8m0(uint8_t byte) {
    const uint32_t bits = byte == 0 ? 0x400000u : byte == 255 ? 0x7fc00000u : static_cast<uint32_t>(byte) << 23;
    float result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
}

inline float from_e2m1(int code) {
    const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

inline void store(float* place, float value) { *place = value; }

inline void store(Bfloat16* place, float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;  // adding would carry a NaN into infinity
    place->bits = static_cast<uint16_t>(is_nan ? quiet : rounded);
}

inline float round_to_bf16(float value) {
    Bfloat16 rounded;
    store(&rounded, value);
    return to_float(rounded);
}

}  // namespace MINNOW_ISA
