// root-mean-square norm: one row at a time, FP32 inside
#include "../native/export.h"
#include "../native/heads.h"

namespace MINNOW_ISA {

void norm(Team& team, const float* x, int64_t x_stride, const Weight& w, float* y, int64_t num_rows, int64_t width,
          float eps, float offset, bool is_bf16) {
    team.for_each(num_rows, [&](int64_t row) {
        norm_row(x + row * x_stride, w, y + row * width, width, eps, offset);
        if (is_bf16) round_row(y + row * width, width);
    });
}

}  // namespace MINNOW_ISA

// x [num_rows width], dense; w [width]; y [num_rows width].
MINNOW_EXPORT(norm)
(const void* x, const void* w, void* y, int64_t num_rows, int64_t width, float eps, float offset) {
    using namespace MINNOW_ISA;
    run(num_rows > 1 && num_rows * width > 50'000, [&](Team& team) {
        norm(team, static_cast<const float*>(x), width, *static_cast<const Weight*>(w), static_cast<float*>(y),
             num_rows, width, eps, offset, false);
    });
}
