// a few rows times an int4 or int8 matrix, read once and dequantised exactly on the way; FP32 inside
#include "../native/elements.h"
#include "../native/export.h"

namespace MINNOW_ISA {

constexpr int kBlock = 32;   // values that a scale covers
constexpr int kLanes = 16;   // independent sums: the order of additions does not depend on the number of rows
constexpr int kMaxRows = 8;  // as in cpu.py

// Both readers give a block's values as two halves; x is laid out to match (see cpu.py).
struct Int4 {
    const uint8_t* codes;
    const Float16* scales;
    const Float16* minimums;

    inline void read(int64_t block, float* first, float* second) const {
        const float scale = to_float(scales[block]), minimum = to_float(minimums[block]);
        const uint8_t* c = codes + block * (kBlock / 2);
        for (int j = 0; j < kLanes; ++j) first[j] = scale * static_cast<float>(c[j] & 15) + minimum;
        for (int j = 0; j < kLanes; ++j) second[j] = scale * static_cast<float>(c[j] >> 4) + minimum;
    }
};

struct Int8 {
    const int8_t* codes;
    const Float16* scales;

    inline void read(int64_t block, float* first, float* second) const {
        const float scale = to_float(scales[block]);
        const int8_t* c = codes + block * kBlock;
        for (int j = 0; j < kLanes; ++j) first[j] = scale * static_cast<float>(c[j]);
        for (int j = 0; j < kLanes; ++j) second[j] = scale * static_cast<float>(c[j + kLanes]);
    }
};

template <int kRows, class Weight>
inline void multiply(const float* x, const Weight& weight, float* y, int64_t num_outputs, int64_t width,
                     int64_t y_stride) {
    const int64_t num_blocks = width / kBlock;
    for (int64_t output = 0; output < num_outputs; ++output) {
        float sums[kRows][kLanes] = {};
        for (int64_t b = 0; b < num_blocks; ++b) {
            float first[kLanes], second[kLanes];
            weight.read(output * num_blocks + b, first, second);
            for (int row = 0; row < kRows; ++row) {
                const float* place = x + row * width + b * kBlock;
                for (int j = 0; j < kLanes; ++j) sums[row][j] += first[j] * place[j];
                for (int j = 0; j < kLanes; ++j) sums[row][j] += second[j] * place[j + kLanes];
            }
        }
        for (int row = 0; row < kRows; ++row) {
            float sum = 0.0f;
            for (int j = 0; j < kLanes; ++j) sum += sums[row][j];
            y[row * y_stride + output] = sum;
        }
    }
}

template <class Weight>
inline void multiply_rows(const float* x, const Weight& weight, float* y, int64_t num_rows, int64_t num_outputs,
                          int64_t width, int64_t y_stride) {
    switch (num_rows) {
        case 1: return multiply<1>(x, weight, y, num_outputs, width, y_stride);
        case 2: return multiply<2>(x, weight, y, num_outputs, width, y_stride);
        case 3: return multiply<3>(x, weight, y, num_outputs, width, y_stride);
        case 4: return multiply<4>(x, weight, y, num_outputs, width, y_stride);
        case 5: return multiply<5>(x, weight, y, num_outputs, width, y_stride);
        case 6: return multiply<6>(x, weight, y, num_outputs, width, y_stride);
        case 7: return multiply<7>(x, weight, y, num_outputs, width, y_stride);
        case kMaxRows: return multiply<kMaxRows>(x, weight, y, num_outputs, width, y_stride);
    }
}

}  // namespace MINNOW_ISA

// x f32 [num_rows width], each block of 32 with its even values first; y f32, rows y_stride apart.
MINNOW_EXPORT(linear_int4)
(const void* x, const void* codes, const void* scales, const void* minimums, void* y, int64_t num_rows,
 int64_t num_outputs, int64_t width, int64_t y_stride) {
    using namespace MINNOW_ISA;
    const Int4 weight = {static_cast<const uint8_t*>(codes), static_cast<const Float16*>(scales),
                         static_cast<const Float16*>(minimums)};
    multiply_rows(static_cast<const float*>(x), weight, static_cast<float*>(y), num_rows, num_outputs, width, y_stride);
}

// x f32 [num_rows width]; y f32, rows y_stride apart.
MINNOW_EXPORT(linear_int8)
(const void* x, const void* codes, const void* scales, void* y, int64_t num_rows, int64_t num_outputs, int64_t width,
 int64_t y_stride) {
    using namespace MINNOW_ISA;
    const Int8 weight = {static_cast<const int8_t*>(codes), static_cast<const Float16*>(scales)};
    multiply_rows(static_cast<const float*>(x), weight, static_cast<float*>(y), num_rows, num_outputs, width, y_stride);
}
