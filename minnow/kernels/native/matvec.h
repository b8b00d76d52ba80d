// a few rows times a matrix of any format, each weight read once and decoded in registers; FP32 sums
//
// A row's sums have the same order whatever rows stand beside it and whichever thread computes them.
#pragma once

#include "fixed_point.h"
#include "gemm_amx.h"
#include "weight.h"

namespace MINNOW_ISA {

constexpr int64_t kMaxFewRows = 16;

#if defined(MINNOW_HAS_AMX)
constexpr int64_t kFewTiledRows = 8;  // more of them take less time by AMX
#endif

// Rows up to which each weight is decoded for a few rows at a time; more go through panels (gemm.h).
inline int64_t few_rows([[maybe_unused]] int64_t format, [[maybe_unused]] bool is_bf16) {
#if defined(MINNOW_HAS_AMX)
    if (is_tiled(format)) return kFewTiledRows;
    if (is_bf16 && is_exact_in_bf16(format)) return 2;
#endif
#if defined(__AVX512BF16__)
    if (is_bf16) return 8;  // panels of BF16 pay earlier
#endif
    return kMaxFewRows;
}

#if defined(__AVX512F__)
constexpr int kRowsAtOnce = 8;  // by a Dot's outputs(): sums that fit the registers
#else
constexpr int kRowsAtOnce = 4;
#endif
constexpr int64_t kItemBytes = 12 << 10;      // of weights that one item reads at least: about a microsecond
constexpr int64_t kMaxItemBytes = 192 << 10;  // and at most: longer pieces are read faster
constexpr int64_t kRowsBytes = 24 << 10;      // of x that stay in the first cache while the outputs of an item go by

// How rows of x lie for a product with weights of a format.
enum class Order : int64_t {
    kPlain,    // as they are
    kSplit,    // FP32, each 32 values with the even ones first
    kNibbles,  // BF16, each 128 values in four groups of every fourth
    kPairs,    // BF16, as they are
    kFixed8,   // fixed point of one digit, for tiles
    kFixed16,  // of two
    kFixed24,  // of three
};

// Sums over [start, end) chunks for kRows rows and kOutputs outputs, added to totals[output][row].
struct FloatDot {
    static constexpr bool kHasTail = true;
    static constexpr int64_t kValues = kChunk;
    static constexpr int outputs(int rows) { return rows <= 2 ? 4 : rows <= 4 || kRowsAtOnce == 8 ? 2 : 1; }

    template <int kRows, int kOutputs, class Reader>
    static inline void add(const Reader* readers, const float* const* x, int64_t start, int64_t end, int64_t,
                           F* totals) {
        F total[kOutputs][kRows];
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) total[o][row] = totals[o * kRows + row];
        }
        for (int64_t b = start; b < end; ++b) {
            F first[kOutputs], second[kOutputs];
#pragma GCC unroll 8
            for (int o = 0; o < kOutputs; ++o) {
                prefetch(readers[o].place(b) + kPrefetchBytes);
                readers[o].read(b, first[o], second[o]);
            }
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) {
                const float* place = x[row] + b * kChunk;
                const F x_first = load(place), x_second = load(place + kLanes);
#pragma GCC unroll 8
                for (int o = 0; o < kOutputs; ++o) {
                    total[o][row] = fma(first[o], x_first, total[o][row]);
                    total[o][row] = fma(second[o], x_second, total[o][row]);
                }
            }
        }
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) totals[o * kRows + row] = total[o][row];
        }
    }

    template <class Reader>
    static constexpr bool has_rest() {
        return false;
    }

    static inline int64_t num_chunks(int64_t width) { return width / kChunk; }
    static inline int64_t row_bytes_of(int64_t width) { return 4 * width; }
};

}  // namespace MINNOW_ISA

#if defined(__AVX512BF16__)
#include "matvec_bf16.h"
#endif

namespace MINNOW_ISA {

inline Order order_for(const Weight& w, [[maybe_unused]] bool is_bf16) {
    if (is_tiled(w.format)) return static_cast<Order>(static_cast<int64_t>(Order::kFixed8) + num_digits(w.format) - 1);
#if defined(__AVX512BF16__)
    if (is_bf16 && is_split_format(w.format)) return Order::kNibbles;
    const bool has_exact_pairs = w.format == kMxfp8 || w.format == kFp8 || w.format == kBf16;
    if (is_bf16 && has_exact_pairs && w.width % kChunk == 0) return Order::kPairs;
#endif
    return is_split_format(w.format) ? Order::kSplit : Order::kPlain;
}

// Floats that a packed row takes; a plain one needs no packing.
inline int64_t packed_floats(Order order, int64_t width) {
    switch (order) {
        case Order::kPlain: return 0;
        case Order::kSplit: return width;
        case Order::kFixed8: return fixed_floats<1>(width);
        case Order::kFixed16: return fixed_floats<2>(width);
        case Order::kFixed24: return fixed_floats<3>(width);
#if defined(__AVX512BF16__)
        case Order::kNibbles: return nibble_floats(width);
        case Order::kPairs: return width / 2;
#else
        default: return 0;
#endif
    }
    return 0;
}

inline void split_row(const float* x, int64_t width, float* out) {
    int64_t k = 0;
    for (; k + kChunk <= width; k += kChunk) {
        for (int j = 0; j < kLanes; ++j) {
            out[k + j] = x[k + 2 * j];
            out[k + kLanes + j] = x[k + 2 * j + 1];
        }
    }
    for (; k < width; ++k) out[k] = x[k];
}

// The row in that order: out, or x itself where it is plain.
inline const float* pack_row(Order order, const float* x, int64_t width, float* out) {
    switch (order) {
        case Order::kPlain: return x;
        case Order::kSplit: split_row(x, width, out); return out;
        case Order::kFixed8: pack_fixed<1>(x, width, out); return out;
        case Order::kFixed16: pack_fixed<2>(x, width, out); return out;
        case Order::kFixed24: pack_fixed<3>(x, width, out); return out;
#if defined(__AVX512BF16__)
        case Order::kNibbles: pack_nibbles(x, width, out); return out;
        case Order::kPairs: pack_pairs(x, width, out); return out;
#else
        default: return x;
#endif
    }
    return x;
}

// A few rows in that order, by each thread for itself: cheaper than a barrier.
inline void pack_few(Scratch& memory, Order order, const float* x, int64_t x_stride, int64_t num_rows, int64_t width,
                     const float** rows) {
    for (int64_t row = 0; row < num_rows; ++row) {
        rows[row] = pack_row(order, x + row * x_stride, width, memory.take<float>(packed_floats(order, width)));
    }
}

// What whole chunks leave of the width.
template <class Reader>
inline float tail(const Reader& reader, const float* x, int64_t width) {
    float result = 0.0f;
    for (int64_t k = width / kChunk * kChunk; k < width; ++k) result += reader.at(k) * x[k];
    return result;
}

// kRows rows times outputs [output, end); totals: [end - output][kRows] of scratch.
template <class Dot, int kRows, class Reader, class Put>
inline void multiply_rows(const Reader& reader, const float* const* x, int64_t output, int64_t end, int64_t row,
                          F* totals, const Put& put) {
    // Several outputs at once are as many chains of sums and streams of memory, and share what is read of x.
    constexpr int kOutputs = Dot::outputs(kRows);
    const int64_t width = reader.w->width, num_chunks = Dot::num_chunks(width), num_outputs = end - output;
    const int64_t fitting = kRowsBytes / (kRows * Dot::row_bytes_of(Dot::kValues)), step = fitting < 1 ? 1 : fitting;
    Reader readers[kOutputs];
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) readers[o] = reader;
    for (int64_t i = 0; i < num_outputs * kRows; ++i) totals[i] = zero();
    for (int64_t start = 0; start < num_chunks; start += step) {
        const int64_t stop = start + step < num_chunks ? start + step : num_chunks;
        int64_t at = 0;
        for (; at + kOutputs <= num_outputs; at += kOutputs) {
#pragma GCC unroll 8
            for (int o = 0; o < kOutputs; ++o) readers[o].start(output + at + o);
            Dot::template add<kRows, kOutputs>(readers, x, start, stop, width, totals + at * kRows);
        }
        for (; at < num_outputs; ++at) {
            readers[0].start(output + at);
            Dot::template add<kRows, 1>(readers, x, start, stop, width, totals + at * kRows);
        }
    }
    if constexpr (Dot::template has_rest<Reader>()) {
        for (int64_t at = 0; at < num_outputs; ++at) {
            readers[0].start(output + at);
            for (int i = 0; i < kRows; ++i) Dot::complete(readers[0], x[i], width, totals[at * kRows + i]);
        }
    }
    for (int64_t at = 0; at < num_outputs; ++at) {
        float sums[kRows + 3];
        const F* place = totals + at * kRows;
        int i = 0;
        for (; i + 4 <= kRows; i += 4) sum_four(place[i], place[i + 1], place[i + 2], place[i + 3], sums + i);
        for (; i < kRows; ++i) sums[i] = sum(place[i]);
        if (Dot::kHasTail && width % kChunk != 0) {  // not where codes come in blocks
            readers[0].start(output + at);
            for (i = 0; i < kRows; ++i) sums[i] += tail(readers[0], x[i], width);
        }
        for (i = 0; i < kRows; ++i) put(row + i, output + at, sums[i]);
    }
}

template <class Dot, class Reader, class Put>
inline void multiply_groups(Team& team, const Reader& reader, const float* const* x, int64_t num_rows, int64_t output,
                            int64_t end, const Put& put) {
    Scratch memory = team.scratch();
    F* totals = memory.take<F>((end - output) * kRowsAtOnce);
    for (int64_t row = 0; row < num_rows; row += kRowsAtOnce) {
        const float* const* rows = x + row;
        const int64_t left = num_rows - row;
        switch (left < kRowsAtOnce ? left : kRowsAtOnce) {
            case 1: multiply_rows<Dot, 1>(reader, rows, output, end, row, totals, put); break;
            case 2: multiply_rows<Dot, 2>(reader, rows, output, end, row, totals, put); break;
            case 3: multiply_rows<Dot, 3>(reader, rows, output, end, row, totals, put); break;
            case 4: multiply_rows<Dot, 4>(reader, rows, output, end, row, totals, put); break;
            case 5: multiply_rows<Dot, kRowsAtOnce < 5 ? 1 : 5>(reader, rows, output, end, row, totals, put); break;
            case 6: multiply_rows<Dot, kRowsAtOnce < 6 ? 1 : 6>(reader, rows, output, end, row, totals, put); break;
            case 7: multiply_rows<Dot, kRowsAtOnce < 7 ? 1 : 7>(reader, rows, output, end, row, totals, put); break;
            default: multiply_rows<Dot, kRowsAtOnce>(reader, rows, output, end, row, totals, put); break;
        }
    }
}

inline void put_tiled(Team& team, const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end,
                      const Result& result) {
    multiply_tiled(w, x, num_rows, output, end, team.num_threads, result.from(0, output));
}

template <class Put>
inline void put_tiled(Team& team, const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end,
                      const Put& put) {
    const int64_t num_outputs = end - output;
    Scratch memory = team.scratch();
    float* sums = memory.take<float>(num_rows * num_outputs);
    multiply_tiled(w, x, num_rows, output, end, team.num_threads, {sums, num_outputs, false, false});
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t i = 0; i < num_outputs; ++i) put(row, output + i, sums[row * num_outputs + i]);
    }
}

// put(row, output, sum) for num_rows rows of x times outputs [output, end) of the weight, by the calling thread.
// x: a pointer a row, packed in the order. The weights of an item stay in the cache between groups of rows.
template <class Put>
inline void multiply_few(Team& team, const Weight& w, [[maybe_unused]] Order order, const float* const* x,
                         int64_t num_rows, int64_t output, int64_t end, const Put& put) {
    Scratch memory = team.scratch();
    if (is_tiled(w.format)) return put_tiled(team, w, x, num_rows, output, end, put);
    float* scratch = memory.take<float>(reader_scratch(w, end - output));
    with_reader(w, scratch, [&](auto reader) {
        reader.prepare(output, end - output);
        prefetch_scales(w, end + (team.num_threads - 1) * (end - output), end - output);
#if defined(__AVX512BF16__)
        using Reader = decltype(reader);
        if constexpr (Reader::kIsSplit) {
            if (order == Order::kNibbles) return multiply_groups<NibbleDot>(team, reader, x, num_rows, output, end, put);
        }
        if constexpr (has_pairs<Reader>()) {
            if (order == Order::kPairs) return multiply_groups<PairDot>(team, reader, x, num_rows, output, end, put);
        }
#endif
        multiply_groups<FloatDot>(team, reader, x, num_rows, output, end, put);
    });
}

// Outputs that one item computes.
inline int64_t outputs_per_item(const Weight& w) {
    int64_t outputs = kItemBytes / (row_bytes(w) + 1);
    if (is_tiled(w.format)) return outputs < 32 ? 32 : outputs / 32 * 32;
    const int64_t most = kMaxItemBytes / (row_bytes(w) + 1), share = w.num_rows / 128;
    if (share > outputs) outputs = share < most ? share : most;
    return outputs < 8 ? 8 : outputs / 4 * 4;
}

// Fetch what this thread reads first of a matrix that comes next: nothing before it can have done so.
__attribute__((always_inline)) inline void prefetch_first(const Team& team, const Weight& w) {
    const int64_t step = outputs_per_item(w), row = team.index * step;
    if (row >= w.num_rows) return;
    const uint8_t* place = w.codes + row * row_bytes(w);
    for (int64_t i = 0; i < kPrefetchBytes; i += kCacheLine) prefetch(place + i);
    prefetch_scales(w, row, step);
}

inline int64_t num_items(const Weight& w) { return (w.num_rows + outputs_per_item(w) - 1) / outputs_per_item(w); }

// Outputs [output, end) of one of several weights, whose own first output is number `start` of all.
struct Place {
    const Weight* weight;
    int64_t start, output, end;
};

inline Place find_item(const Weight* weights, int64_t item) {
    int64_t start = 0;
    for (; item >= num_items(*weights); ++weights) {
        item -= num_items(*weights);
        start += weights->num_rows;
    }
    const int64_t output = item * outputs_per_item(*weights), end = output + outputs_per_item(*weights);
    return {weights, start, output, end < weights->num_rows ? end : weights->num_rows};
}

}  // namespace MINNOW_ISA
