// rows times matrices of any format: few rows read each weight once, many go through panels of decoded weights
#include "../native/export.h"
#include "../native/gemm.h"
#include "../native/half_rows.h"
#include "../native/matvec.h"
#include "../native/row_tiles.h"
#include "../native/tiles.h"

namespace MINNOW_ISA {

void multiply_tiled(const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end,
                    int64_t num_threads, const Result& result) {
    if (has_int4_tiles(w.format)) {
        multiply_digits<Int4Tile>(w, x, num_rows, output, end, num_threads, result);
    } else {
        multiply_digits<Int8Tile>(w, x, num_rows, output, end, num_threads, result);
    }
}

static void multiply_by_all(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                            int64_t num_weights, bool is_bf16, const Result& result) {
    const int64_t width = weights[0].width;
    constexpr int64_t kMaxWeights = 16;
    Order orders[kMaxWeights];
    const float* rows[kMaxWeights][kMaxFewRows];
    int64_t total = 0;
    Scratch memory = team.scratch();
    for (int64_t i = 0; i < num_weights; ++i) {
        orders[i] = order_for(weights[i], is_bf16);
        total += num_items(weights[i]);
        const bool is_packed = i > 0 && orders[i] == orders[i - 1];
        if (is_packed) {
            for (int64_t row = 0; row < num_rows; ++row) rows[i][row] = rows[i - 1][row];
        } else {
            pack_few(memory, orders[i], x, x_stride, num_rows, width, rows[i]);
        }
    }
    team.for_each(total, [&](int64_t item) {
        const Place place = find_item(weights, item);
        const int64_t i = place.weight - weights;
        multiply_few(team, *place.weight, orders[i], rows[i], num_rows, place.output, place.end,
                     result.from(0, place.start));
    });
}

constexpr int64_t kPanelOutputs = 32;
constexpr int64_t kPanelRows = 128;  // of x that one item multiplies with a panel

// Outputs [output, end) decoded to FP32, in the order in which split rows of x have their values.
static void fill_panel(Team& team, const Weight& w, int64_t output, int64_t end, float* panel) {
    Scratch memory = team.scratch();
    with_reader(w, memory.take<float>(reader_scratch(w, end - output)), [&](auto reader) {
        reader.prepare(output, end - output);
        for (int64_t at = output; at < end; ++at, panel += w.width) {
            reader.start(at);
            int64_t k = 0;
            for (; k + kChunk <= w.width; k += kChunk) {
                F first, second;
                reader.read(k / kChunk, first, second);
                store(panel + k, first);
                store(panel + k + kLanes, second);
            }
            for (; k < w.width; ++k) panel[k] = reader.at(k);
        }
    });
}

// Many rows of FP32: panels of decoded weights, and then the same sums as for few rows, bit by bit.
static void multiply_by_panels(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight& w,
                               const Result& result) {
    Scratch memory = team.shared();
    const Order order = order_for(w, false);
    const int64_t packed = packed_floats(order, w.width);
    float* space = memory.take<float>(num_rows * packed);
    if (packed != 0) {
        team.for_each(num_rows, [&](int64_t row) {
            pack_row(order, x + row * x_stride, w.width, space + row * packed);
        });
        x = space;
        x_stride = packed;
    }
    const int64_t num_panels = (w.num_rows + kPanelOutputs - 1) / kPanelOutputs;
    const int64_t num_groups = (num_rows + kPanelRows - 1) / kPanelRows;
    team.for_each(num_panels * num_groups, [&](int64_t item) {
        const int64_t output = item % num_panels * kPanelOutputs, row = item / num_panels * kPanelRows;
        const int64_t end = output + kPanelOutputs < w.num_rows ? output + kPanelOutputs : w.num_rows;
        const int64_t count = row + kPanelRows < num_rows ? kPanelRows : num_rows - row;
        Scratch own = team.scratch();
        float* panel = own.take<float>(kPanelOutputs * w.width);
        fill_panel(team, w, output, end, panel);
        const float* rows[kPanelRows];
        for (int64_t i = 0; i < count; ++i) rows[i] = x + (row + i) * x_stride;
        const Weight view = {kF32, end - output, w.width, reinterpret_cast<const uint8_t*>(panel), nullptr, nullptr, 1.0};
        const Result part = result.from(row, output);
        multiply_groups<FloatDot>(team, PlainReader<float>(view, nullptr), rows, count, 0, end - output, part);
    });
}

// Many rows in fixed point: tiles stay in the first cache while rows go by, a group of rows in the second.
static void multiply_by_tiles(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight& w,
                              const Result& result) {
    Scratch memory = team.shared();
    const Order order = order_for(w, false);
    const int64_t stride = packed_floats(order, w.width);
    float* packed = memory.take<float>(num_rows * stride);
    team.for_each(num_rows, [&](int64_t row) { pack_row(order, x + row * x_stride, w.width, packed + row * stride); });
    const int64_t num_groups = (num_rows + kPanelRows - 1) / kPanelRows;
    team.for_each(num_items(w) * num_groups, [&](int64_t item) {
        const int64_t row = item / num_items(w) * kPanelRows;
        const int64_t count = row + kPanelRows < num_rows ? kPanelRows : num_rows - row;
        const float* rows[kPanelRows];
        for (int64_t i = 0; i < count; ++i) rows[i] = packed + (row + i) * stride;
        const Place place = find_item(&w, item % num_items(w));
        multiply_few(team, w, order, rows, count, place.output, place.end, result.from(row, 0));
    });
}

// body(weight, its result), one after the other.
template <class Body>
static inline void for_weights(const Weight* weights, int64_t num_weights, const Result& result, Body&& body) {
    int64_t output = 0;
    for (int64_t i = 0; i < num_weights; output += weights[i].num_rows, ++i) body(weights[i], result.from(0, output));
}

// Weights of one format in tiles.
static void multiply_run(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                         int64_t num_weights, [[maybe_unused]] bool is_bf16, const Result& result) {
#if defined(MINNOW_HAS_AMX)
    if (num_rows > kFewTiledRows) {
        Scratch memory = team.shared();
        const PackedTiles tiles = take_tiles(memory, weights[0], num_rows, is_bf16);
        pack_rows(team, x, x_stride, tiles);
        return multiply_packed(team, tiles, weights, num_weights, result);
    }
#endif
    for_weights(weights, num_weights, result, [&](const Weight& w, const Result& its) {
        multiply_by_tiles(team, x, x_stride, num_rows, w, its);
    });
}

void linear(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights, int64_t num_weights,
            bool is_bf16, const Result& result) {
    if (num_rows == 0 || num_weights == 0) return;
    if (num_rows <= few_rows(weights[0].format, is_bf16)) {
        return multiply_by_all(team, x, x_stride, num_rows, weights, num_weights, is_bf16, result);
    }
    int64_t output = 0;
    for (int64_t i = 0, end; i < num_weights; i = end) {
        const int64_t format = weights[i].format;
        const auto is_alike = [&](const Weight& w) { return is_tiled(format) ? w.format == format : !is_tiled(w.format); };
        const Result part = result.from(0, output);
        for (end = i; end < num_weights && is_alike(weights[end]); ++end) output += weights[end].num_rows;
        if (is_tiled(format)) {
            multiply_run(team, x, x_stride, num_rows, weights + i, end - i, is_bf16, part);
        } else if (is_bf16) {
            gemm(team, x, x_stride, num_rows, weights + i, end - i, true, part);
        } else {
            for_weights(weights + i, end - i, part, [&](const Weight& w, const Result& its) {
                multiply_by_panels(team, x, x_stride, num_rows, w, its);
            });
        }
    }
}

}  // namespace MINNOW_ISA

// x [num_rows width]; y, rows y_stride apart; both BF16 if is_bf16, else FP32.
MINNOW_EXPORT(linear)
(const void* x, const void* weights, void* y, int64_t num_rows, int64_t num_weights, int64_t y_stride,
 int64_t is_bf16) {
    using namespace MINNOW_ISA;
    const Weight* list = static_cast<const Weight*>(weights);
    const int64_t width = list[0].width;
    run(num_rows * y_stride * width > 100'000, [&](Team& team) {
        with_floats(team, x, num_rows * width, y, num_rows * y_stride, is_bf16 != 0, [&](const float* in, float* out) {
            linear(team, in, width, num_rows, list, num_weights, is_bf16 != 0, {out, y_stride, false, is_bf16 != 0});
        });
    });
}
