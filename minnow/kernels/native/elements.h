// element types as FP32: exact on the way in, round to nearest even on the way out
#pragma once

#include <stdint.h>

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
