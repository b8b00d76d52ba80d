// panels: the units of some outputs of a weight side by side, padded with zeros to whole chunks of 32 values
#pragma once

#include "gemm_columns.h"

namespace MINNOW_ISA {

constexpr int64_t kStagedRows = 16;  // rows of a weight that are decoded before they are transposed

// Decode count values of one row of a weight, to which the reader's view was moved; staged gets their units, padded to
// whole chunks. Split readers leave FP32 units split.
template <bool kIsPaired, class Reader>
inline void stage_row(Reader& reader, int64_t count, const PairOrder& order, float* staged) {
    const int64_t num_whole = count / kChunk;
    const auto put = [&](int64_t b, F first, F second) {
        float* place = staged + b * (kIsPaired ? kLanes : kChunk);
        if (!kIsPaired) {
            store(place, first);
            store(place + kLanes, second);
            return;
        }
        float halves[kChunk], values[kChunk];
        store(halves, first);
        store(halves + kLanes, second);
        for (int i = 0; i < kChunk; ++i) values[i] = halves[Reader::kIsSplit ? i / 2 + i % 2 * kLanes : i];
        store(place, order.pair_up(values));
    };
    reader.prepare(0, 1);
    reader.start(0);
    for (int64_t b = 0; b < num_whole; ++b) {
        F first, second;
        reader.read(b, first, second);
        put(b, first, second);
    }
    if (num_whole * kChunk == count) return;
    float rest[kChunk] = {};
    for (int64_t k = 0; k < count - num_whole * kChunk; ++k) {
        rest[Reader::kIsSplit ? k / 2 + k % 2 * kLanes : k] = reader.at(num_whole * kChunk + k);
    }
    put(num_whole, load(rest), load(rest + kLanes));
}

// Scratch of fill_panel in floats, for so many values at once.
inline int64_t panel_scratch(int64_t count) {
    return reader_scratch(round_up(count, kChunk)) + kStagedRows * (round_up(count, kChunk) + kLanes);
}

// Values [start, start + count) of 16 rows from row on, of which those from end on repeat the last one, as
// panel[unit * num_outputs + i].
template <bool kIsPaired>
inline void fill_by_rows(const Weight& w, int64_t row, int64_t end, int64_t start, int64_t count, float* scratch,
                         float* panel, int64_t num_outputs) {
    const int64_t num_units = units_of_width(count, kIsPaired), staged_stride = num_units + kLanes;
    float* staged = scratch + reader_scratch(round_up(count, kChunk));
    const int64_t scale_bytes = w.format == kInt4 || w.format == kInt8 ? 2 : 1;
    const int64_t scale_block = w.format == kNvfp4 ? 16 : 32;
    Weight view = {w.format, 1, count, nullptr, nullptr, nullptr, 1.0};
    const int64_t start_bytes = bytes_of(w.format, start);
    const PairOrder order(kIsPaired ? unit_distance(w.format) : 0);
    with_reader(view, scratch, [&](auto reader) {
        using Reader = decltype(reader);
        constexpr bool kIsSplit = Reader::kIsSplit && !kIsPaired;
        for (int64_t i = 0; i < kStagedRows; ++i) {
            const int64_t index = row + i < end ? row + i : end - 1;
            const int64_t scale = (index * w.width + start) / scale_block * scale_bytes;
            view.codes = w.codes + index * row_bytes(w) + start_bytes;
            view.scales = w.scales + scale;
            view.minimums = w.minimums + scale;
            stage_row<kIsPaired>(reader, count, order, staged + i * staged_stride);
        }
        for (int64_t group = 0; group < num_units / kLanes; ++group) {
            F rows[kStagedRows];
            for (int64_t i = 0; i < kStagedRows; ++i) rows[i] = load(staged + i * staged_stride + group * kLanes);
            const int64_t unit = kIsSplit ? group / 2 * kChunk + group % 2 : group * kLanes;
            store_transposed(rows, panel + unit * num_outputs, (kIsSplit ? 2 : 1) * num_outputs);
        }
    });
}

// Values [start, start + count) of outputs [output, output + num_outputs), as [unit][num_outputs]; start is a multiple
// of kChunk, num_outputs of 16. Outputs from end on repeat the last one.
template <bool kIsPaired>
inline void fill_panel(const Weight& w, int64_t output, int64_t num_outputs, int64_t end, int64_t start, int64_t count,
                       float* scratch, float* panel) {
    const int64_t num_bytes = bytes_of(w.format, count), next = bytes_of(w.format, start + count);
    for (int64_t first = output; first < output + num_outputs; first += kStagedRows, panel += kStagedRows) {
        for (int64_t row = first; row < first + kStagedRows && row < end; ++row) {  // what the next call decodes
            const uint8_t* place = w.codes + row * row_bytes(w) + next;
            for (int64_t byte = 0; byte < num_bytes; byte += kCacheLine) __builtin_prefetch(place + byte, 0, 2);
        }
        if (has_column_reader(w.format, kIsPaired) &&
            fill_by_columns(w, first, end, start, count, scratch, panel, num_outputs)) {
            continue;
        }
        fill_by_rows<kIsPaired>(w, first, end, start, count, scratch, panel, num_outputs);
    }
}

}  // namespace MINNOW_ISA
