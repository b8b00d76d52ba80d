// more than a few rows times matrices of any format: weights are decoded exactly into small panels, once for each
// block of rows, and multiplied from the cache; FP32 sums
//
// Where activations are BF16 and the format's values are, too, both are multiplied as BF16 pairs if the processor can;
// with AMX, as tiles (gemm_tiles.h).
// A row's sums have the same order whatever rows stand beside it and whichever thread computes them.
#pragma once

#include "gemm_panel.h"
#include "gemm_tiles.h"

namespace MINNOW_ISA {

#if defined(__AVX512F__)
constexpr int kFullRows = 8;  // rows times vectors of outputs: sums that fit the registers
constexpr int kFullVectors = 3;
#elif defined(__AVX2__)
constexpr int kFullRows = 6;
constexpr int kFullVectors = 1;
#else
constexpr int kFullRows = 2;
constexpr int kFullVectors = 1;
#endif

// A kind of unit: how the rows of a block lie, and how a block is multiplied.
struct Single {
    static constexpr bool kIsPaired = false;
    static constexpr int kRows = kFullRows, kVectors = kFullVectors;
    static inline F add_product(F a, F b, F sum) { return fma(a, b, sum); }
};
#if defined(__AVX512BF16__) && !defined(MINNOW_HAS_AMX)
constexpr bool kHasPairs = true;
struct Paired {
    static constexpr bool kIsPaired = true;
    static constexpr int kRows = kFullRows, kVectors = kFullVectors;
    static inline F add_product(F a, F b, F sum) {
        return {_mm512_dpbf16_ps(sum.v, (__m512bh)_mm512_castps_si512(a.v), (__m512bh)_mm512_castps_si512(b.v))};
    }
};
#else
constexpr bool kHasPairs = false;
using Paired = Single;
#endif

constexpr int64_t kPanelUnits = 512, kMaxPanelUnits = 640;  // a rest of up to 128 joins the panel before it
#if defined(MINNOW_HAS_AMX)
constexpr int64_t kRowsAtHand = 512;  // rows that share a panel
constexpr int64_t kGemmOutputs = 32;  // ranges that start at multiples of it waste nothing
// How many of them one item computes: a few rows wait for the weights, which are best read in one piece; many wait for
// the rows.
inline int64_t num_ranges_at_once(int64_t num_rows) { return num_rows <= 64 ? 1 : num_rows < 256 ? 3 : 12; }
#else
constexpr int64_t kRowsAtHand = 512, kGemmOutputs = 48;
inline int64_t num_ranges_at_once(int64_t) { return 1; }
#endif

// Rows of x as gemm_blocks reads them, in blocks of at most kRows rows, as even as can be. A block is [unit][row].
struct PackedRows {
    float* units;
    int64_t num_rows;
    int64_t width;
    int64_t distance;  // of the values in a pair; 0 for FP32 units

    inline bool is_paired() const { return distance != 0; }
    inline int64_t num_units() const { return units_of_width(width, is_paired()); }
    inline int64_t block_rows() const { return is_paired() ? Paired::kRows : Single::kRows; }
    inline int64_t num_blocks() const { return (num_rows + block_rows() - 1) / block_rows(); }
    inline int64_t first_row(int64_t block) const { return block * num_rows / num_blocks(); }
    inline int64_t num_floats() const { return num_rows * num_units(); }
};

// The distance of the pairs that these operands are multiplied as; 0 if as FP32.
inline int64_t distance_for(const Weight& w, bool is_bf16) {
    return kHasPairs && is_bf16 && is_exact_in_bf16(w.format) ? unit_distance(w.format) : 0;
}

// Pack one block of rows that lie x_stride apart.
inline void pack_block(const PackedRows& packed, int64_t block, const float* x, int64_t x_stride) {
    const int64_t first = packed.first_row(block), num_rows = packed.first_row(block + 1) - first;
    const int64_t num_groups = packed.num_units() / kLanes, group_values = packed.is_paired() ? kChunk : kLanes;
    const PairOrder order(packed.distance);
    float* place = packed.units + first * packed.num_units();
    x += first * x_stride;
    for (int64_t group = 0; group < num_groups; ++group, place += kLanes * num_rows, x += group_values) {
        const int64_t left = packed.width - group * group_values;
        F rows[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) {
            if (i >= num_rows) {
                rows[i] = zero();
            } else if (left >= group_values) {
                rows[i] = load_units(x + i * x_stride, packed.is_paired(), order);
            } else {
                float rest[kChunk] = {};
                for (int64_t k = 0; k < left; ++k) rest[k] = x[i * x_stride + k];
                rows[i] = load_units(rest, packed.is_paired(), order);
            }
        }
        float columns[kLanes * kLanes];
        store_transposed(rows, columns, kLanes);
        for (int64_t u = 0; u < kLanes; ++u) {
            if (group + 1 < num_groups) {
                store(place + u * num_rows, load(columns + u * kLanes));  // the next unit overwrites spare lanes
            } else {
                for (int64_t i = 0; i < num_rows; ++i) place[u * num_rows + i] = columns[u * kLanes + i];
            }
        }
    }
}

// sums [kRows outputs] (+)= x [num_units kRows]^T times panel [num_units outputs].
template <int kRows, class Unit>
inline void multiply_block(const float* x, const float* panel, int64_t num_units, float* sums, bool is_first) {
    constexpr int64_t kOutputs = Unit::kVectors * kLanes;
    F s[kRows][Unit::kVectors];
    for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < Unit::kVectors; ++j) s[i][j] = zero();
    }
    for (int64_t u = 0; u < num_units; ++u, x += kRows, panel += kOutputs) {
        F p[Unit::kVectors];
        for (int j = 0; j < Unit::kVectors; ++j) p[j] = load(panel + j * kLanes);
        for (int i = 0; i < kRows; ++i) {
            const F value = broadcast(x[i]);
            for (int j = 0; j < Unit::kVectors; ++j) s[i][j] = Unit::add_product(value, p[j], s[i][j]);
        }
    }
    for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < Unit::kVectors; ++j) {
            float* place = sums + i * kOutputs + j * kLanes;
            store(place, is_first ? s[i][j] : load(place) + s[i][j]);
        }
    }
}

template <int kRows, class Unit>
inline void multiply_any_block(int64_t num_rows, const float* x, const float* panel, int64_t num_units, float* sums,
                               bool is_first) {
    if constexpr (kRows > 1) {
        if (num_rows < kRows) {
            return multiply_any_block<kRows - 1, Unit>(num_rows, x, panel, num_units, sums, is_first);
        }
    }
    multiply_block<kRows, Unit>(x, panel, num_units, sums, is_first);
}

// Blocks [block, last) times the panel, whose units are those of x from first_unit on.
template <class Unit>
inline void multiply_blocks(const PackedRows& x, int64_t block, int64_t last, int64_t first_unit, const float* panel,
                            int64_t num_units, float* sums, bool is_first) {
    for (; block < last; ++block) {
        const int64_t row = x.first_row(block), num_rows = x.first_row(block + 1) - row;
        multiply_any_block<Unit::kRows, Unit>(num_rows, x.units + row * x.num_units() + first_unit * num_rows, panel,
                                              num_units, sums, is_first);
        sums += num_rows * Unit::kVectors * kLanes;
    }
}

// Blocks [block, last) of x times the panel of outputs that starts at output and stops before end.
template <class Unit>
inline void multiply_panel(Scratch& scratch, const PackedRows& x, int64_t block, int64_t last, const Weight& w,
                           int64_t output, int64_t end, const Result& result) {
    constexpr int64_t kOutputs = Unit::kVectors * kLanes, kUnitValues = Unit::kIsPaired ? 2 : 1;
    const int64_t first_place = x.first_row(block);
    float* panel = scratch.take<float>(kMaxPanelUnits * kOutputs);
    float* decoding = scratch.take<float>(panel_scratch(kMaxPanelUnits * kUnitValues));
    float* sums = scratch.take<float>((x.first_row(last) - first_place) * kOutputs);
    for (int64_t start = 0, count = 0; start < x.width; start += count) {
        const int64_t left = x.width - start;
        count = left <= kMaxPanelUnits * kUnitValues ? left : kPanelUnits * kUnitValues;
        fill_panel<Unit::kIsPaired>(w, output, kOutputs, end, start, count, decoding, panel);
        multiply_blocks<Unit>(x, block, last, units_of_width(start, Unit::kIsPaired), panel,
                              units_of_width(count, Unit::kIsPaired), sums, start == 0);
    }
    const int64_t num_outputs = end - output < kOutputs ? end - output : kOutputs;
    for (; block < last; ++block) {
        const int64_t row = x.first_row(block), num_rows = x.first_row(block + 1) - row;
        const float* place = sums + (row - first_place) * kOutputs;
        for (int64_t i = 0; i < num_rows; ++i) {
            finish_row(place + i * kOutputs, num_outputs, static_cast<float>(w.global_scale),
                       result.from(row + i, output));
        }
    }
}

// Blocks [block, last) of x times outputs [output, end) of a weight, on the calling thread.
inline void gemm_blocks(Team& team, const PackedRows& x, int64_t block, int64_t last, const Weight& w, int64_t output,
                        int64_t end, const Result& result) {
    for (; output < end; output += (x.is_paired() ? Paired::kVectors : Single::kVectors) * kLanes) {
        Scratch scratch = team.scratch();
        if (x.is_paired()) {
            multiply_panel<Paired>(scratch, x, block, last, w, output, end, result);
        } else {
            multiply_panel<Single>(scratch, x, block, last, w, output, end, result);
        }
    }
}

// How many parts a number of rows is computed in, so that every thread has some of num_ranges * parts items.
inline int64_t num_row_parts(int64_t num_rows, int64_t num_ranges, int64_t num_threads) {
    constexpr int64_t kFewestRows = 64, kItemsPerThread = 4;
    int64_t parts = (num_rows + kRowsAtHand - 1) / kRowsAtHand;
    while (num_rows >= 2 * parts * kFewestRows && num_ranges * parts < kItemsPerThread * num_threads) parts *= 2;
    return parts;
}

// The contract of linear in operations.h, for any number of rows; meant for more than a few. is_bf16: x holds BF16
// values, whatever becomes of the results.
inline void gemm(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                 int64_t num_weights, bool is_bf16, const Result& result) {
    Scratch shared = team.shared();
    PackedRows packed[5] = {};  // by distance
#if defined(MINNOW_HAS_AMX)
    TiledRows tiled[2] = {};  // split or not
#endif
    int64_t num_ranges = 0, step = kGemmOutputs * num_ranges_at_once(num_rows);
    while (step % (2 * kGemmOutputs) == 0 && weights[0].num_rows < 4 * team.num_threads * step) step /= 2;
    for (int64_t i = 0; i < num_weights; ++i) {
        num_ranges += (weights[i].num_rows + step - 1) / step;
#if defined(MINNOW_HAS_AMX)
        if (is_bf16 && is_exact_in_bf16(weights[i].format)) {
            TiledRows& rows = tiled[is_split_format(weights[i].format)];
            if (rows.units != nullptr) continue;
            rows = {nullptr, num_rows, weights[i].width, is_split_format(weights[i].format)};
            rows.units = shared.take<float>(rows.num_floats());
            team.for_each(rows.num_blocks() * rows.num_panels(), [&](int64_t item) {
                pack_tiles(rows, item % rows.num_panels(), item / rows.num_panels(), x, x_stride);
            });
            continue;
        }
#endif
        const int64_t distance = distance_for(weights[i], is_bf16);
        PackedRows& rows = packed[distance];
        if (rows.units != nullptr) continue;
        rows = {nullptr, num_rows, weights[i].width, distance};
        rows.units = shared.take<float>(rows.num_floats());
        team.for_each(rows.num_blocks(), [&](int64_t block) {
            pack_block(rows, block, x, x_stride);
        });
    }
    const int64_t parts = num_row_parts(num_rows, num_ranges, team.num_threads);
    team.for_each(num_ranges * parts, [&](int64_t item) {
        const int64_t part = item / num_ranges;
        int64_t output = item % num_ranges * step, column = 0;
        const Weight* w = weights;
        for (; output >= round_up(w->num_rows, step); ++w) {
            output -= round_up(w->num_rows, step);
            column += w->num_rows;
        }
        const int64_t end = output + step < w->num_rows ? output + step : w->num_rows;
        const auto multiply = [&](const auto& rows, auto&& gemm_part) {
            const int64_t num_blocks = rows.num_blocks();
            gemm_part(team, rows, part * num_blocks / parts, (part + 1) * num_blocks / parts, *w, output, end,
                      result.from(0, column));
        };
#if defined(MINNOW_HAS_AMX)
        if (is_bf16 && is_exact_in_bf16(w->format)) return multiply(tiled[is_split_format(w->format)], gemm_tiles);
#endif
        multiply(packed[distance_for(*w, is_bf16)], gemm_blocks);
    });
}

}  // namespace MINNOW_ISA
