// rows times matrices of any format: few rows read each weight once, many go through panels (native/gemm.h)
#include "../native/export.h"
#include "../native/gemm.h"
#include "../native/matvec.h"

namespace MINNOW_ISA {

static void multiply_by_all(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                            int64_t num_weights, bool is_bf16, const Result& result) {
    const int64_t width = weights[0].width;
    constexpr int64_t kMaxWeights = 8;
    RowLayout layouts[kMaxWeights];
    const float* rows[kMaxWeights][kMaxFewRows];
    int64_t total = 0;
    Scratch memory = team.scratch();
    for (int64_t i = 0; i < num_weights; ++i) {
        layouts[i] = layout_for(weights[i], num_rows, is_bf16);
        total += num_items(weights[i]);
        const bool is_packed = i > 0 && is_same(layouts[i], layouts[i - 1]);
        for (int64_t row = 0; row < num_rows; ++row) {  // each thread for itself: cheaper than a barrier
            float* space = is_packed ? nullptr : memory.take<float>(packed_floats(layouts[i], width));
            rows[i][row] = is_packed ? rows[i - 1][row] : pack_row(layouts[i], x + row * x_stride, width, space);
        }
    }
    team.for_each(total, [&](int64_t item) {
        int64_t start = 0, i = 0;
        for (; item >= num_items(weights[i]); ++i) {
            item -= num_items(weights[i]);
            start += weights[i].num_rows;
        }
        const Weight& w = weights[i];
        const int64_t step = outputs_per_item(w), output = item * step;
        const int64_t end = output + step < w.num_rows ? output + step : w.num_rows;
        multiply_few(team, w, layouts[i], rows[i], num_rows, output, end,
                     [&](int64_t row, int64_t at, float sum) { result.put(row, start + at, sum); });
    });
}

void linear(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights, int64_t num_weights,
            float* y, int64_t y_stride, bool is_added, bool is_bf16) {
    if (num_rows == 0 || num_weights == 0) return;
    if (num_rows <= kMaxFewRows) {
        multiply_by_all(team, x, x_stride, num_rows, weights, num_weights, is_bf16, {y, y_stride, is_added, is_bf16});
    } else {
        gemm(team, x, x_stride, num_rows, weights, num_weights, y, y_stride, is_added, is_bf16);
    }
}

}  // namespace MINNOW_ISA

// x f32 [num_rows width]; y f32, rows y_stride apart.
MINNOW_EXPORT(linear)
(const void* x, const void* weights, void* y, int64_t num_rows, int64_t num_weights, int64_t y_stride,
 int64_t is_bf16) {
    using namespace MINNOW_ISA;
    const Weight* list = static_cast<const Weight*>(weights);
    const int64_t width = list[0].width;
    run(num_rows * y_stride * width > 100'000, [&](Team& team) {
        linear(team, static_cast<const float*>(x), width, num_rows, list, num_weights, static_cast<float*>(y), y_stride,
               false, is_bf16 != 0);
    });
}
