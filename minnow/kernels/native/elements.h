// element types as FP32: exact on the way in, round to nearest even on the way out
#pragma once

#include <stdint.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace MINNOW_ISA {

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

inline void store(float* place, float value) { *place = value; }

inline void store(Bfloat16* place, float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;  // adding would carry a NaN into infinity
    place->bits = static_cast<uint16_t>(is_nan ? quiet : rounded);
}

}  // namespace MINNOW_ISA
