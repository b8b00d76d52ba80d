// rows times matrices of any format: few rows read each weight once, many go through panels of decoded weights
#include "../native/export.h"
#include "../native/gemm.h"
#include "../native/half_rows.h"
#include "../native/matvec.h"
#include "../native/tiles_amx.h"

namespace MINNOW_ISA {

void multiply_tiled(const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end, float* y,
                    int64_t y_stride, bool is_added) {
    const Sums out = {y, y_stride, is_added};
    if (has_int4_tiles(w.format)) {
        multiply_digits<Int4Tile>(w, x, num_rows, output, end, out);
    } else {
        multiply_digits<Int8Tile>(w, x, num_rows, output, end, out);
    }
}

// Outputs [output, end) of one of several weights, whose own first output is number `start` of all.
struct Place {
    const Weight* weight;
    int64_t start, output, end;
};

static inline Place find_item(const Weight* weights, int64_t item) {
    int64_t start = 0;
    for (; item >= num_items(*weights); ++weights) {
        item -= num_items(*weights);
        start += weights->num_rows;
    }
    const int64_t output = item * outputs_per_item(*weights), end = output + outputs_per_item(*weights);
    return {weights, start, output, end < weights->num_rows ? end : weights->num_rows};
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
        for (int64_t row = 0; row < num_rows; ++row) {  // each thread for itself: cheaper than a barrier
            float* space = is_packed ? nullptr : memory.take<float>(packed_floats(orders[i], width));
            rows[i][row] = is_packed ? rows[i - 1][row] : pack_row(orders[i], x + row * x_stride, width, space);
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

#if defined(MINNOW_HAS_AMX)
constexpr int64_t kFewestTileRows = 9;  // of x: fewer take less time one after the other

// Several rows times tiled weights of one format, by AMX.
template <class Tile, int kDigits>
static void multiply_by_row_tiles(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                                  int64_t num_weights, const Result& result) {
    using Rows = RowTiles<Tile, kDigits>;
    constexpr int64_t kPackedBlocks = 8;       // of a group of rows, by one item
    constexpr int64_t kPanelBytes = 1 << 20;   // of rows that stay in the second cache while outputs go by
    const int64_t num_blocks = weights[0].width / kBlock, num_groups = (num_rows + kTileRows - 1) / kTileRows;
    const int64_t num_parts = (num_blocks + kPackedBlocks - 1) / kPackedBlocks;
    Scratch memory = team.shared();
    Rows* packed = memory.take<Rows>(num_groups * num_blocks);
    team.for_each(num_groups * num_parts, [&](int64_t item) {
        static const float kZeros[kBlock] = {};
        const int64_t group = item / num_parts, part = item % num_parts;
        for (int64_t b = part * num_blocks / num_parts; b < (part + 1) * num_blocks / num_parts; ++b) {
            for (int64_t i = 0; i < kTileRows; ++i) {
                const int64_t row = group * kTileRows + i;
                const float* place = row < num_rows ? x + row * x_stride + b * kBlock : kZeros;
                pack_row_tile(place, i, packed[group * num_blocks + b]);
            }
        }
    });
    int64_t total = 0;
    for (int64_t i = 0; i < num_weights; ++i) total += num_items(weights[i]);
    const int64_t fitting = kPanelBytes / (num_blocks * static_cast<int64_t>(sizeof(Rows)));
    const int64_t panel_groups = fitting < 1 ? 1 : fitting, num_panels = (num_groups + panel_groups - 1) / panel_groups;
    team.for_each(total * num_panels, [&](int64_t item) {
        const int64_t panel = item / total, first = panel * num_groups / num_panels * kTileRows;
        const int64_t last = (panel + 1) * num_groups / num_panels * kTileRows;
        const Place place = find_item(weights, item % total);
        const Result part = result.from(first, place.start + place.output);
        multiply_row_tiles(team, *place.weight, packed + first / kTileRows * num_blocks,
                           (last < num_rows ? last : num_rows) - first, place.output, place.end,
                           {part.y, part.stride, part.is_added});
    });
}

// Whether it was done: weights in tiles, run by run of one format.
static bool multiply_by_amx(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                            int64_t num_weights, const Result& result) {
    for (int64_t i = 0; i < num_weights; ++i) {
        if (!is_tiled(weights[i].format)) return false;
    }
    int64_t output = 0;
    for (int64_t i = 0, end; i < num_weights; i = end) {
        const int64_t format = weights[i].format, first = output;
        for (end = i; end < num_weights && weights[end].format == format; ++end) output += weights[end].num_rows;
        const auto multiply = [&](auto tile, auto digits) {
            multiply_by_row_tiles<decltype(tile), decltype(digits)::kValue>(team, x, x_stride, num_rows, weights + i,
                                                                            end - i, result.from(0, first));
        };
        const auto multiply_digits = [&](auto tile) {
            switch (num_digits(format)) {
                case 1: return multiply(tile, Number<1>());
                case 2: return multiply(tile, Number<2>());
                default: return multiply(tile, Number<3>());
            }
        };
        if (has_int4_tiles(format)) {
            multiply_digits(Int4Tile());
        } else {
            multiply_digits(Int8Tile());
        }
    }
    return true;
}
#endif

void linear(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights, int64_t num_weights,
            float* y, int64_t y_stride, bool is_added, bool is_bf16) {
    if (num_rows == 0 || num_weights == 0) return;
#if defined(MINNOW_HAS_AMX)
    const Result result = {y, y_stride, is_added, is_bf16};
    if (num_rows >= kFewestTileRows && multiply_by_amx(team, x, x_stride, num_rows, weights, num_weights, result)) return;
#endif
    if (num_rows <= few_rows(weights[0].format, is_bf16)) {
        multiply_by_all(team, x, x_stride, num_rows, weights, num_weights, is_bf16, {y, y_stride, is_added, is_bf16});
    } else if (is_bf16) {
        gemm(team, x, x_stride, num_rows, weights, num_weights, y, y_stride, is_added, is_bf16);
    } else {
        for (int64_t i = 0; i < num_weights; y += weights[i].num_rows, ++i) {
            if (is_tiled(weights[i].format)) {
                multiply_by_tiles(team, x, x_stride, num_rows, weights[i], {y, y_stride, is_added, false});
            } else {
                multiply_by_panels(team, x, x_stride, num_rows, weights[i], {y, y_stride, is_added, false});
            }
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
            linear(team, in, width, num_rows, list, num_weights, out, y_stride, false, is_bf16 != 0);
        });
    });
}
