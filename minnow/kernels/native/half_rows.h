// rows that lie as BF16 for operations that want FP32: converted on the way in and out, by all threads, in memory that is
// kept from call to call
#pragma once

#include "simd.h"
#include "threads.h"

namespace MINNOW_ISA {

constexpr int64_t kConvertedValues = 16 << 10;  // by one item

// body(first, number of values) for parts of so many values.
template <class Body>
inline void for_parts(Team& team, int64_t num_values, Body&& body) {
    team.for_each((num_values + kConvertedValues - 1) / kConvertedValues, [&](int64_t part) {
        const int64_t first = part * kConvertedValues, left = num_values - first;
        body(first, left < kConvertedValues ? left : kConvertedValues);
    });
}

// body(x, y) with FP32 in place of x [num_in] and y [num_out], which hold BF16 if is_bf16, else FP32. It ends in a
// barrier.
template <class Body>
inline void with_floats(Team& team, const void* x, int64_t num_in, void* y, int64_t num_out, bool is_bf16,
                        Body&& body) {
    if (!is_bf16) return body(static_cast<const float*>(x), static_cast<float*>(y));
    Scratch memory = team.shared();
    float *in = memory.take<float>(num_in), *out = memory.take<float>(num_out);
    for_parts(team, num_in, [&](int64_t first, int64_t count) {
        const Bfloat16* from = static_cast<const Bfloat16*>(x) + first;
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) store(in + first + i, load(from + i));
        for (; i < count; ++i) in[first + i] = to_float(from[i]);
    });
    body(static_cast<const float*>(in), out);
    for_parts(team, num_out, [&](int64_t first, int64_t count) {
        Bfloat16* to = static_cast<Bfloat16*>(y) + first;
        int64_t i = 0;
        for (; i + kLanes <= count; i += kLanes) store(to + i, load(out + first + i));
        for (; i < count; ++i) store(to + i, out[first + i]);
    });
}

}  // namespace MINNOW_ISA
