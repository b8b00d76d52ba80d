// more than a few rows times matrices of any format: weights are decoded exactly into small panels, once for each
// block of rows, and multiplied from the cache; FP32 sums
//
// Where activations are BF16 and the format's values are, too, both are multiplied as BF16 pairs if the processor can.
// A row's sums have the same order whatever rows stand beside it and whichever thread computes them.
#pragma once

#include "gemm_amx.h"
#include "gemm_panel.h"

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
    static constexpr bool kIsPaired = false, kIsTiled = false;
    static constexpr int kRows = kFullRows, kVectors = kFullVectors;
    static inline F add_product(F a, F b, F sum) { return fma(a, b, sum); }
};
#if defined(MINNOW_HAS_AMX)
constexpr bool kHasPairs = true;
struct Paired {
    static constexpr bool kIsPaired = true, kIsTiled = true;
    static constexpr int kRows = kTileRows, kVectors = 2;
};
#elif defined(__AVX512BF16__)
constexpr bool kHasPairs = true;
struct Paired {
    static constexpr bool kIsPaired = true, kIsTiled = false;
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
constexpr int64_t kRowsAtHand = 512;  // rows that share a panel
constexpr int64_t kGemmOutputs = Paired::kIsTiled ? 96 : 48;  // ranges that start at multiples of it waste nothing

// Rows of x as gemm_blocks reads them, in blocks of at most kRows rows, as even as can be. A block is [unit][row], or,
// for tiles, [group of 16 units][16 rows][unit].
struct PackedRows {
    float* units;
    int64_t num_rows;
    int64_t width;
    int64_t distance;  // of the values in a pair; 0 for FP32 units

    inline bool is_paired() const { return distance != 0; }
    inline bool is_tiled() const { return is_paired() && Paired::kIsTiled; }
    inline int64_t num_units() const { return units_of_width(width, is_paired()); }
    inline int64_t block_rows() const { return is_paired() ? Paired::kRows : Single::kRows; }
    inline int64_t num_blocks() const { return (num_rows + block_rows() - 1) / block_rows(); }
    inline int64_t first_row(int64_t block) const { return block * num_rows / num_blocks(); }
    // The rows before a block, spare ones of tiles included.
    inline int64_t place(int64_t block) const { return is_tiled() ? block * block_rows() : first_row(block); }
    inline int64_t num_floats() const { return num_rows == 0 ? 0 : place(num_blocks()) * num_units(); }
};

// The distance of the pairs that these operands are multiplied as; 0 if as FP32.
inline int64_t distance_for(const Weight& w, bool is_bf16) {
    return kHasPairs && is_bf16 && is_exact_in_bf16(w.format) ? unit_distance(w.format) : 0;
}

// Pack one block of rows that lie x_stride apart.
inline void pack_block(const PackedRows& packed, int64_t block, const float* x, int64_t x_stride) {
    const int64_t first = packed.first_row(block), num_rows = packed.first_row(block + 1) - first;
    const int64_t num_groups = packed.num_units() / kLanes, group_values = packed.is_paired() ? kChunk : kLanes;
    const int64_t stride = packed.is_tiled() ? packed.block_rows() : num_rows;
    const PairOrder order(packed.distance);
    float* place = packed.units + packed.place(block) * packed.num_units();
    x += first * x_stride;
    for (int64_t group = 0; group < num_groups; ++group, place += kLanes * stride, x += group_values) {
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
        if (packed.is_tiled()) {
            for (int64_t i = 0; i < kLanes; ++i) store(place + i * kLanes, rows[i]);
            continue;
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
#if defined(MINNOW_HAS_AMX)
    if constexpr (Unit::kIsTiled) {
        const int64_t stride = kTileRows * x.num_units();
        const float* place = x.units + block * stride + kTileRows * first_unit;
        for (; block + 2 <= last; block += 2, place += 2 * stride, sums += 2 * kTileRows * 2 * kTileUnits) {
            multiply_tiles<2>(place, stride, panel, num_units, sums, is_first);
        }
        if (block < last) multiply_tiles<1>(place, stride, panel, num_units, sums, is_first);
        return;
    } else
#endif
    {
        for (; block < last; ++block) {
            const int64_t row = x.first_row(block), num_rows = x.first_row(block + 1) - row;
            multiply_any_block<Unit::kRows, Unit>(num_rows, x.units + row * x.num_units() + first_unit * num_rows,
                                                  panel, num_units, sums, is_first);
            sums += num_rows * Unit::kVectors * kLanes;
        }
    }
}

// Where the products go: y is row 0, output 0; added to what is there, and rounded to BF16.
struct Results {
    float* y;
    int64_t stride;
    bool is_added;
    bool is_rounded;
};

// One row's sums of a panel become results.
inline void finish_row(const float* sums, int64_t num_outputs, float factor, float* y, bool is_added, bool is_rounded) {
    const auto finished = [&](const float* from, const float* old) {
        F value = load(from) * broadcast(factor);
        if (is_rounded) value = round_bf16(value);
        if (is_added) value = load(old) + value;
        return is_added && is_rounded ? round_bf16(value) : value;
    };
    int64_t o = 0;
    for (; o + kLanes <= num_outputs; o += kLanes) store(y + o, finished(sums + o, y + o));
    if (o == num_outputs) return;
    float old[kLanes] = {}, rest[kLanes];
    for (int64_t i = o; i < num_outputs; ++i) old[i - o] = y[i];
    store(rest, finished(sums + o, old));
    for (int64_t i = o; i < num_outputs; ++i) y[i] = rest[i - o];
}

// Blocks [block, last) of x times the panel of outputs that starts at output and stops before end.
template <class Unit>
inline void multiply_panel(Scratch& scratch, const PackedRows& x, int64_t block, int64_t last, const Weight& w,
                           int64_t output, int64_t end, const Results& results) {
    constexpr int64_t kOutputs = Unit::kVectors * kLanes, kUnitValues = Unit::kIsPaired ? 2 : 1;
    const int64_t first_place = x.place(block);
    float* panel = scratch.take<float>(kMaxPanelUnits * kOutputs);
    float* decoding = scratch.take<float>(panel_scratch(kMaxPanelUnits * kUnitValues));
    float* sums = scratch.take<float>((x.place(last) - first_place) * kOutputs);
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
        const float* place = sums + (x.place(block) - first_place) * kOutputs;
        for (int64_t i = 0; i < num_rows; ++i) {
            finish_row(place + i * kOutputs, num_outputs, static_cast<float>(w.global_scale),
                       results.y + (row + i) * results.stride + output, results.is_added, results.is_rounded);
        }
    }
}

// Blocks [block, last) of x times outputs [output, end) of a weight, on the calling thread.
inline void gemm_blocks(Team& team, const PackedRows& x, int64_t block, int64_t last, const Weight& w, int64_t output,
                        int64_t end, const Results& results) {
#if defined(MINNOW_HAS_AMX)
    if (x.is_paired()) tile_config();
#endif
    for (; output < end; output += (x.is_paired() ? Paired::kVectors : Single::kVectors) * kLanes) {
        Scratch scratch = team.scratch();
        if (x.is_paired()) {
            multiply_panel<Paired>(scratch, x, block, last, w, output, end, results);
        } else {
            multiply_panel<Single>(scratch, x, block, last, w, output, end, results);
        }
    }
#if defined(MINNOW_HAS_AMX)
    if (x.is_paired()) tile_release();
#endif
}

// How many parts a number of rows is computed in, so that every thread has some of num_ranges * parts items.
inline int64_t num_row_parts(int64_t num_rows, int64_t num_ranges, int64_t num_threads) {
    constexpr int64_t kFewestRows = 64, kItemsPerThread = 4;
    int64_t parts = (num_rows + kRowsAtHand - 1) / kRowsAtHand;
    while (num_rows >= 2 * parts * kFewestRows && num_ranges * parts < kItemsPerThread * num_threads) parts *= 2;
    return parts;
}

// The contract of linear in operations.h, for any number of rows; meant for more than a few. With keeps_sums, BF16 rows
// of x give results that are not rounded.
inline void gemm(Team& team, const float* x, int64_t x_stride, int64_t num_rows, const Weight* weights,
                 int64_t num_weights, float* y, int64_t y_stride, bool is_added, bool is_bf16,
                 bool keeps_sums = false) {
    Scratch shared = team.shared();
    PackedRows packed[5] = {};  // by distance
    int64_t num_ranges = 0;
    for (int64_t i = 0; i < num_weights; ++i) {
        num_ranges += (weights[i].num_rows + kGemmOutputs - 1) / kGemmOutputs;
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
        int64_t output = item % num_ranges * kGemmOutputs, column = 0;
        const Weight* w = weights;
        for (; output >= round_up(w->num_rows, kGemmOutputs); ++w) {
            output -= round_up(w->num_rows, kGemmOutputs);
            column += w->num_rows;
        }
        const PackedRows& rows = packed[distance_for(*w, is_bf16)];
        const int64_t num_blocks = rows.num_blocks();
        const int64_t end = output + kGemmOutputs < w->num_rows ? output + kGemmOutputs : w->num_rows;
        gemm_blocks(team, rows, part * num_blocks / parts, (part + 1) * num_blocks / parts, *w, output, end,
                    {y + column, y_stride, is_added, is_bf16 && !keeps_sums});
    });
}

}  // namespace MINNOW_ISA
