// root-mean-square norm: one row at a time, FP32 inside
#include <math.h>

#include "../native/elements.h"
#include "../native/export.h"

namespace MINNOW_ISA {

constexpr int kLanes = 16;  // independent sums: the order of additions is fixed, and the compiler may use vectors

template <class X>
inline float sum_of_squares(const X* x, int64_t width) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
            const float value = to_float(x[i + j]);
            lanes[j] += value * value;
        }
    }
    float sum = 0.0f;
    for (int j = 0; j < kLanes; ++j) sum += lanes[j];
    for (; i < width; ++i) {
        const float value = to_float(x[i]);
        sum += value * value;
    }
    return sum;
}

template <class X, class W>
inline void norm_rows(const X* x, const W* w, X* y, int64_t num_rows, int64_t width, int64_t x_stride, float eps,
                      float offset) {
    for (int64_t row = 0; row < num_rows; ++row, x += x_stride, y += width) {
        const float scale = 1.0f / sqrtf(sum_of_squares(x, width) / static_cast<float>(width) + eps);
        for (int64_t i = 0; i < width; ++i) store(y + i, to_float(x[i]) * scale * (offset + to_float(w[i])));
    }
}

template <class X>
inline void norm_any_weight(const X* x, const void* w, X* y, int64_t w_dtype, int64_t num_rows, int64_t width,
                            int64_t x_stride, float eps, float offset) {
    if (w_dtype == kBfloat16) {
        norm_rows(x, static_cast<const Bfloat16*>(w), y, num_rows, width, x_stride, eps, offset);
    } else {
        norm_rows(x, static_cast<const float*>(w), y, num_rows, width, x_stride, eps, offset);
    }
}

}  // namespace MINNOW_ISA

// x [num_rows width], rows x_stride elements apart; w [width]; y [num_rows width], dense, of x's type.
MINNOW_EXPORT(norm)
(const void* x, const void* w, void* y, int64_t x_dtype, int64_t w_dtype, int64_t num_rows, int64_t width,
 int64_t x_stride, float eps, float offset) {
    using namespace MINNOW_ISA;
    if (x_dtype == kBfloat16) {
        norm_any_weight(static_cast<const Bfloat16*>(x), w, static_cast<Bfloat16*>(y), w_dtype, num_rows, width,
                        x_stride, eps, offset);
    } else {
        norm_any_weight(static_cast<const float*>(x), w, static_cast<float*>(y), w_dtype, num_rows, width, x_stride,
                        eps, offset);
    }
}
