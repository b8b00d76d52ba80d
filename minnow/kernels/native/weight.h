// the number formats of weights, read in the checkpoint's own layout: 32 values at a time as two F
//
// A reader of a format has
//     kIsSplit         the two F hold the even values and the odd ones (4-bit codes); else the first 16 and the last
//     prepare(row, n)  turn the scales of n rows into floats, which start(row) to start(row + n - 1) rely on
//     start(row)       go to a row
//     read(b, f, s)    values [32 b, 32 b + 32) of the row
//     at(k)            one value, for what is left when 32 do not divide the width
//     place(b)         where the codes of read(b) lie
#pragma once

#include "operations.h"

namespace MINNOW_ISA {

constexpr int64_t kChunk = 32;  // values that a reader hands out at once
constexpr int64_t kPrefetchBytes = 16 << 10;  // the processor's own prefetcher loses short rows

// Floats of scratch that a reader of some rows needs.
inline int64_t reader_scratch(const Weight& w, int64_t num_rows) {
    return num_rows * (w.format == kNvfp4 || w.format == kInt4 ? w.width / 16 : w.width / 32) + 4 * kLanes;
}

// The same for one row of a format that is not known yet.
inline int64_t reader_scratch(int64_t width) { return width / 16 + 4 * kLanes; }

inline bool is_split_format(int64_t format) { return format == kNvfp4 || format == kMxfp4 || format == kInt4; }

// All the format's values are BF16 values, but for the global scale, which waits for the sums.
inline bool is_exact_in_bf16(int64_t format) {
    return format == kBf16 || format == kFp8 || format == kNvfp4 || format == kMxfp4 || format == kMxfp8;
}

inline int64_t row_bytes(const Weight& w) {
    switch (w.format) {
        case kF32: return 4 * w.width;
        case kBf16: case kF16: return 2 * w.width;
        case kFp8: case kMxfp8: case kInt8: return w.width;
        case kNvfp4: case kMxfp4: case kInt4: return w.width / 2;
        default: return has_int4_tiles(w.format) ? w.width / 2 + w.width / 32 * 4 : w.width + w.width / 32 * 2;
    }
}

template <class T>
inline const T* row_of(const Weight& w, int64_t row) {
    return reinterpret_cast<const T*>(w.codes + row * row_bytes(w));
}

// Turn count E4M3, E8M0 or F16 scales into floats; writes up to 15 more.
inline void read_e4m3_scales(const uint8_t* p, int64_t count, float factor, float* out) {
    const F factors = broadcast(factor);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(out + i, load_e4m3(p + i) * factors);
    for (; i < count; ++i) out[i] = from_e4m3(p[i]) * factor;
}
inline void read_e8m0_scales(const uint8_t* p, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(out + i, load_e8m0(p + i));
    for (; i < count; ++i) out[i] = from_e8m0(p[i]);
}
inline void read_f16_scales(const Float16* p, int64_t count, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(out + i, load(p + i));
    for (; i < count; ++i) out[i] = to_float(p[i]);
}

template <class T>
struct PlainReader {  // f32, bf16, f16
    static constexpr bool kIsSplit = false;
    const Weight* w;
    const T* row;

    inline PlainReader() {}
    inline PlainReader(const Weight& weight, float*) : w(&weight), row(nullptr) {}
    inline void prepare(int64_t, int64_t) {}
    inline void start(int64_t index) { row = row_of<T>(*w, index); }
    inline void read(int64_t b, F& first, F& second) const {
        first = load(row + b * kChunk);
        second = load(row + b * kChunk + kLanes);
    }
    inline float at(int64_t k) const { return to_float(row[k]); }
    inline const uint8_t* place(int64_t b) const { return reinterpret_cast<const uint8_t*>(row + b * kChunk); }
};

struct Fp8Reader {
    static constexpr bool kIsSplit = false;
    const Weight* w;
    F factor;
    const uint8_t* row;

    inline Fp8Reader() {}
    inline Fp8Reader(const Weight& weight, float*)
        : w(&weight), factor(broadcast(static_cast<float>(weight.global_scale))), row(nullptr) {}
    inline void prepare(int64_t, int64_t) {}
    inline void start(int64_t index) { row = w->codes + index * w->width; }
    inline void read(int64_t b, F& first, F& second) const {
        first = load_e4m3(row + b * kChunk) * factor;
        second = load_e4m3(row + b * kChunk + kLanes) * factor;
    }
    inline float at(int64_t k) const { return from_e4m3(row[k]) * static_cast<float>(w->global_scale); }
    inline const uint8_t* place(int64_t b) const { return row + b * kChunk; }
};

struct Mxfp8Reader {
    static constexpr bool kIsSplit = false;
    const Weight* w;
    float* prepared;
    float* scales;
    int64_t first;
    const uint8_t* row;

    inline Mxfp8Reader() {}
    inline Mxfp8Reader(const Weight& weight, float* scratch)
        : w(&weight), prepared(scratch), scales(scratch), first(0), row(nullptr) {}
    inline void prepare(int64_t index, int64_t num_rows) {
        const int64_t count = w->width / 32;
        first = index;
        read_e8m0_scales(w->scales + index * count, num_rows * count, prepared);
    }
    inline void start(int64_t index) {
        row = w->codes + index * w->width;
        scales = prepared + (index - first) * (w->width / 32);
    }
    inline void read(int64_t b, F& first, F& second) const {
        const F scale = broadcast(scales[b]);
        first = load_e4m3(row + b * kChunk) * scale;
        second = load_e4m3(row + b * kChunk + kLanes) * scale;
    }
    inline float at(int64_t k) const { return from_e4m3(row[k]) * scales[k / 32]; }
    inline const uint8_t* place(int64_t b) const { return row + b * kChunk; }
};

struct Nvfp4Reader {
    static constexpr bool kIsSplit = true;
    static constexpr bool kIsInteger = false;
    static constexpr int64_t kScaleBlock = 16;
    const Weight* w;
    F table;
    float* prepared;
    float* scales;
    int64_t first;
    const uint8_t* row;

    inline Nvfp4Reader() {}
    inline Nvfp4Reader(const Weight& weight, float* scratch)
        : w(&weight), table(e2m1_table()), prepared(scratch), scales(scratch), first(0), row(nullptr) {}
    inline void prepare(int64_t index, int64_t num_rows) {
        const int64_t count = w->width / 16;
        first = index;
        const float factor = static_cast<float>(w->global_scale);
        read_e4m3_scales(w->scales + index * count, num_rows * count, factor, prepared);
    }
    inline void start(int64_t index) {
        row = w->codes + index * (w->width / 2);
        scales = prepared + (index - first) * (w->width / 16);
    }
    inline void read(int64_t b, F& even, F& odd) const {
        const F scale = spread_pair(scales + 2 * b);
        lookup_halves(row + b * (kChunk / 2), table, even, odd);
        even = even * scale;
        odd = odd * scale;
    }
    inline float at(int64_t k) const {
        return from_e2m1(k % 2 ? row[k / 2] >> 4 : row[k / 2] & 15) * scales[k / 16];
    }
    inline const uint8_t* place(int64_t b) const { return row + b * (kChunk / 2); }
};

struct Mxfp4Reader {
    static constexpr bool kIsSplit = true;
    static constexpr bool kIsInteger = false;
    static constexpr int64_t kScaleBlock = 32;
    const Weight* w;
    F table;
    float* prepared;
    float* scales;
    int64_t first;
    const uint8_t* row;

    inline Mxfp4Reader() {}
    inline Mxfp4Reader(const Weight& weight, float* scratch)
        : w(&weight), table(e2m1_table()), prepared(scratch), scales(scratch), first(0), row(nullptr) {}
    inline void prepare(int64_t index, int64_t num_rows) {
        const int64_t count = w->width / 32;
        first = index;
        read_e8m0_scales(w->scales + index * count, num_rows * count, prepared);
    }
    inline void start(int64_t index) {
        row = w->codes + index * (w->width / 2);
        scales = prepared + (index - first) * (w->width / 32);
    }
    inline void read(int64_t b, F& even, F& odd) const {
        lookup_halves(row + b * (kChunk / 2), table * broadcast(scales[b]), even, odd);
    }
    inline float at(int64_t k) const {
        return from_e2m1(k % 2 ? row[k / 2] >> 4 : row[k / 2] & 15) * scales[k / 32];
    }
    inline const uint8_t* place(int64_t b) const { return row + b * (kChunk / 2); }
};

struct Int4Reader {
    static constexpr bool kIsSplit = true;
    static constexpr bool kIsInteger = true;
    static constexpr int64_t kScaleBlock = 32;
    const Weight* w;
    F codes;
    float* prepared;
    float* scales;
    float* minimums;
    int64_t first, num_prepared;
    const uint8_t* row;

    inline Int4Reader() {}
    inline Int4Reader(const Weight& weight, float* scratch)
        : w(&weight), codes(iota()), prepared(scratch), scales(scratch), minimums(scratch), first(0), num_prepared(0),
          row(nullptr) {}
    inline void prepare(int64_t index, int64_t num_rows) {
        const int64_t count = w->width / 32;
        first = index;
        num_prepared = num_rows * count;
        read_f16_scales(reinterpret_cast<const Float16*>(w->scales) + index * count, num_prepared, prepared);
        read_f16_scales(reinterpret_cast<const Float16*>(w->minimums) + index * count, num_prepared,
                        prepared + num_prepared);
    }
    inline void start(int64_t index) {
        row = w->codes + index * (w->width / 2);
        scales = prepared + (index - first) * (w->width / 32);
        minimums = scales + num_prepared;
    }
    inline void read(int64_t b, F& even, F& odd) const {
        const F table = fma(codes, broadcast(scales[b]), broadcast(minimums[b]));  // all sixteen values of the block
        lookup_halves(row + b * (kChunk / 2), table, even, odd);
    }
    inline float at(int64_t k) const {
        const int code = k % 2 ? row[k / 2] >> 4 : row[k / 2] & 15;
        return static_cast<float>(code) * scales[k / 32] + minimums[k / 32];
    }
    inline const uint8_t* place(int64_t b) const { return row + b * (kChunk / 2); }
};

struct Int8Reader {
    static constexpr bool kIsSplit = false;
    const Weight* w;
    float* prepared;
    float* scales;
    int64_t first;
    const int8_t* row;

    inline Int8Reader() {}
    inline Int8Reader(const Weight& weight, float* scratch)
        : w(&weight), prepared(scratch), scales(scratch), first(0), row(nullptr) {}
    inline void prepare(int64_t index, int64_t num_rows) {
        const int64_t count = w->width / 32;
        first = index;
        read_f16_scales(reinterpret_cast<const Float16*>(w->scales) + index * count, num_rows * count, prepared);
    }
    inline void start(int64_t index) {
        row = row_of<int8_t>(*w, index);
        scales = prepared + (index - first) * (w->width / 32);
    }
    inline void read(int64_t b, F& first, F& second) const {
        const F scale = broadcast(scales[b]);
        first = load_int8(row + b * kChunk) * scale;
        second = load_int8(row + b * kChunk + kLanes) * scale;
    }
    inline float at(int64_t k) const { return static_cast<float>(row[k]) * scales[k / 32]; }
    inline const uint8_t* place(int64_t b) const { return reinterpret_cast<const uint8_t*>(row) + b * kChunk; }
};

// Fetch the scales of rows that this thread will come to next; places past the end are no harm.
__attribute__((always_inline)) inline void prefetch_scales(const Weight& w, int64_t row, int64_t num_rows) {
    if (w.scales == nullptr) return;
    const int64_t scale_bytes = w.minimums || w.format == kInt8 ? 2 : 1;
    const int64_t width = (w.format == kNvfp4 ? w.width / 16 : w.width / 32) * scale_bytes;
    for (int64_t i = row * width; i < (row + num_rows) * width; i += kCacheLine) {
        prefetch(w.scales + i);
        if (w.minimums) prefetch(w.minimums + i);
    }
}

// Call body(reader) with a reader of the weight's format; scratch holds reader_scratch floats for what is prepared.
template <class Body>
inline void with_reader(const Weight& w, float* scratch, Body&& body) {
    switch (w.format) {
        case kF32: return body(PlainReader<float>(w, scratch));
        case kBf16: return body(PlainReader<Bfloat16>(w, scratch));
        case kF16: return body(PlainReader<Float16>(w, scratch));
        case kFp8: return body(Fp8Reader(w, scratch));
        case kNvfp4: return body(Nvfp4Reader(w, scratch));
        case kMxfp4: return body(Mxfp4Reader(w, scratch));
        case kMxfp8: return body(Mxfp8Reader(w, scratch));
        case kInt4: return body(Int4Reader(w, scratch));
        case kInt8: return body(Int8Reader(w, scratch));
    }
}

}  // namespace MINNOW_ISA
