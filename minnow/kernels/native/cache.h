// keys and values of a paged cache, decoded for the kernels that read them
//
// Keys are read in strips of 32 tokens, transposed: a vector holds one dim of 16 keys, so that products with a query
// need no sum over lanes. Values are read token by token. A cache's global scale is left to the caller.
#pragma once

#include <stdint.h>
#include <string.h>

#include "gemm_units.h"

namespace MINNOW_ISA {

constexpr int64_t kStrip = 2 * kLanes;
constexpr int64_t kPanel = 128;  // keys that are read at once, at the most

// A number as a type.
template <int kValue>
struct Count {
    static constexpr int value = kValue;
};

// Tokens of one head of one block.
struct Rows {
    int64_t format, width;
    const uint8_t* codes;
    int64_t stride;
    const uint8_t* scales;
    int64_t scale_stride;
    int64_t num_rows;  // that the block holds, written or not

    inline Rows from(int64_t row) const {
        return {format, width, codes_of(row), stride, scales_of(row), scale_stride, num_rows - row};
    }
    inline const uint8_t* codes_of(int64_t row) const { return codes + row * stride; }
    inline const uint8_t* scales_of(int64_t row) const { return scales + row * scale_stride; }
};

inline int64_t bits_of(int64_t format) { return format == kF32 ? 32 : format == kBf16 ? 16 : format == kFp8 ? 8 : 4; }

inline Rows rows_of(const Cache& cache, int64_t block, int64_t head, int64_t first) {
    const uint8_t* codes = cache.codes + block * cache.block_stride + head * cache.head_stride;
    const uint8_t* scales = cache.scales + block * cache.scale_block_stride + head * cache.scale_head_stride;
    return {cache.format, cache.width, codes + first * cache.token_stride, cache.token_stride,
            scales + first * cache.scale_token_stride, cache.scale_token_stride, cache.block_length - first};
}

// Ask the second-level cache for what will be read in some microseconds (more loads can be under way for it than for
// the first), or the first for what is read next. Always inline, as GCC 12 drops calls of functions that do no more.
template <int kLevel = 2>
__attribute__((always_inline)) inline void ask_for(const uint8_t* rows, int64_t num_rows, int64_t row_bytes,
                                                   int64_t stride) {
    if (stride == row_bytes && num_rows > 0) row_bytes *= num_rows, num_rows = 1;
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t i = 0; i < row_bytes; i += kCacheLine) __builtin_prefetch(rows + row * stride + i, 0, 4 - kLevel);
    }
}
__attribute__((always_inline)) inline void ask_for(const Rows& rows, int64_t num_rows) {
    ask_for(rows.codes, num_rows, rows.width * bits_of(rows.format) / 8, rows.stride);
    if (rows.format == kNvfp4) ask_for(rows.scales, num_rows, rows.width / 16, rows.scale_stride);
}

// What is read soon, asked for a few lines at a time: many at once would hold up the loads behind them.
struct Ahead {
    const uint8_t *next, *end;

    // At the end those behind it are asked for over and over, which costs less than to look each time.
    template <int kLines = 4>
    __attribute__((always_inline)) inline void ask() {
        for (int i = 0; i < kLines; ++i) __builtin_prefetch(next + i * kCacheLine, 0, 2);
        next += next < end ? kLines * kCacheLine : 0;
    }
};
// Some rows' codes, and scales that lie right behind them; other scales are asked for at once.
__attribute__((always_inline)) inline Ahead ahead_of(const Rows& rows, int64_t num_rows) {
    Ahead ahead = {rows.codes, rows.codes_of(num_rows)};
    if (rows.format == kNvfp4 && rows.scales == ahead.end) {
        ahead.end = rows.scales_of(num_rows);
    } else if (rows.format == kNvfp4) {
        ask_for(rows.scales, num_rows, rows.width / 16, rows.scale_stride);
    }
    return ahead;
}

// A strip of 32 rows; where the block holds fewer, a copy in `room` (strip_bytes) with zeros behind them.
inline int64_t strip_bytes(int64_t format, int64_t width) {
    return kStrip * (width * bits_of(format) / 8 + round_up(width, 16) / 16);
}
inline Rows whole_strip(const Rows& rows, uint8_t* room) {
    if (rows.num_rows >= kStrip) return rows;
    const int64_t row_bytes = rows.width * bits_of(rows.format) / 8, num_scales = rows.width / 16;
    uint8_t* scales = room + kStrip * row_bytes;
    memset(room, 0, strip_bytes(rows.format, rows.width));
    for (int64_t i = 0; i < rows.num_rows; ++i) {
        memcpy(room + i * row_bytes, rows.codes_of(i), row_bytes);
        if (rows.format == kNvfp4) memcpy(scales + i * num_scales, rows.scales_of(i), num_scales);
    }
    return {rows.format, rows.width, room, row_bytes, scales, num_scales, kStrip};
}

// The dim that decode_row puts at a place: of whole 32 NVFP4 values the even ones come first.
inline int64_t row_dim(int64_t format, int64_t width, int64_t place) {
    if (format != kNvfp4 || place >= width / 32 * 32) return place;
    return place / 32 * 32 + 2 * (place % 16) + place / 16 % 2;
}

// One token, with zeros up to a whole vector.
inline void decode_row(const Rows& rows, int64_t row, float* out) {
    const uint8_t* codes = rows.codes_of(row);
    const int64_t width = rows.width;
    int64_t d = 0;
    if (rows.format == kNvfp4) {
        const uint8_t* scales = rows.scales_of(row);
        for (; d + 32 <= width; d += 32) {
            F even, odd;
            lookup_halves(codes + d / 2, e2m1_table(), even, odd);
            const float two[kLanes] = {from_e4m3(scales[d / 16]), from_e4m3(scales[d / 16 + 1])};
            const F scale = spread_pair(two);
            store(out + d, even * scale);
            store(out + d + kLanes, odd * scale);
        }
        for (; d < width; ++d) out[d] = from_e2m1(codes[d / 2] >> d % 2 * 4 & 15) * from_e4m3(scales[d / 16]);
    } else if (rows.format == kFp8) {
        for (; d + kLanes <= width; d += kLanes) store(out + d, load_e4m3(codes + d));
        for (; d < width; ++d) out[d] = from_e4m3(codes[d]);
    } else if (rows.format == kBf16) {
        const Bfloat16* values = reinterpret_cast<const Bfloat16*>(codes);
        for (; d + kLanes <= width; d += kLanes) store(out + d, load(values + d));
        for (; d < width; ++d) out[d] = to_float(values[d]);
    } else {
        memcpy(out, codes, width * sizeof(float));
        d = width;
    }
    for (; d < round_up(width, kLanes); ++d) out[d] = 0.0f;
}

// keys[p * 32 + i] of the tokens i of a whole strip, at the places p of decode_row. room: 16 rows of floats.
inline void decode_keys(const Rows& rows, float* room, float* keys) {
    const int64_t width = round_up(rows.width, kLanes);
    for (int64_t i = 0; i < kStrip; i += kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) decode_row(rows, i + j, room + j * width);
        for (int64_t p = 0; p < width; p += kLanes) {
            F vectors[kLanes];
            for (int64_t j = 0; j < kLanes; ++j) vectors[j] = load(room + j * width + p);
            store_transposed(vectors, keys + p * kStrip + i, kStrip);
        }
    }
}

#if defined(__AVX512F__)

inline bool has_columns(int64_t format, int64_t width) { return width * bits_of(format) % 256 == 0; }

// Sixteen bytes of each of rows 0, 4, 8 and 12.
__attribute__((always_inline)) inline __m512i load_parts(const uint8_t* codes, int64_t stride) {
    const auto part = [&](int64_t row) __attribute__((always_inline)) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + row * stride));
    };
    const __m256i low = _mm256_inserti64x2(_mm256_castsi128_si256(part(0)), part(4), 1);
    const __m256i high = _mm256_inserti64x2(_mm256_castsi128_si256(part(8)), part(12), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Sixteen keys, transposed, sixteen bytes of each at a time.
struct ColumnReader {
    const uint8_t* codes;
    int64_t stride, row_bytes;
    __m512i parts[4];

    __attribute__((always_inline)) inline explicit ColumnReader(const Rows& rows)
        : codes(rows.codes), stride(rows.stride), row_bytes(rows.width * bits_of(rows.format) / 8) {
        for (int i = 0; i < 4; ++i) parts[i] = load_parts(codes + i * stride, stride);
    }

    // use(c, column) for four dwords of the sixteen keys, one key in each lane; in the order 0 2 1 3 if mixed. In
    // between come the loads for `next`: all at once they would wait behind the arithmetic.
    template <bool kIsMixed, class Use>
    __attribute__((always_inline)) inline void step(const uint8_t* next, Use&& use) {
        const __m512i a = _mm512_unpacklo_epi32(parts[0], parts[1]), b = _mm512_unpackhi_epi32(parts[0], parts[1]);
        const __m512i c = _mm512_unpacklo_epi32(parts[2], parts[3]), d = _mm512_unpackhi_epi32(parts[2], parts[3]);
        const __m512i columns[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                                    _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
        codes = next;
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            parts[i] = load_parts(codes + i * stride, stride);
            const int column = kIsMixed ? i % 2 * 2 + i / 2 : i;
            use(column, columns[column]);
        }
    }

    // Where the next sixteen bytes are, behind `start` of the row: of these keys, of the next ones, or, at the end of
    // all, anywhere.
    inline const uint8_t* next(int64_t start, bool is_last_key) const {
        return start + 16 < row_bytes ? codes + 16 : is_last_key ? codes : codes - start + kLanes * stride;
    }
};

// Of E4M3 numbers the larger magnitudes: NaNs, which stand highest, stay for e4m3_nans.
inline __m512i e4m3_largest(__m512i largest, __m512i bytes) {
    return _mm512_max_epu8(largest, _mm512_or_si512(bytes, _mm512_set1_epi8(-128)));
}

// Byte j of each dword, an E4M3 number but no NaN.
__attribute__((always_inline)) inline void e4m3_floats(__m512i dwords, F* out) {
    const __m512i low = low_e4m3s(dwords), high = high_e4m3s(dwords), mask = _mm512_set1_epi32(-0x10000);
    out[0] = {_mm512_castsi512_ps(_mm512_slli_epi32(low, 16))};
    out[1] = {_mm512_castsi512_ps(_mm512_slli_epi32(high, 16))};
    out[2] = {_mm512_castsi512_ps(_mm512_and_si512(low, mask))};
    out[3] = {_mm512_castsi512_ps(_mm512_and_si512(high, mask))};
}

// The scales of 16 tokens: scales[g * 32 + i] for dims [16g, 16g + 16) of token i.
inline void decode_scales(const Rows& rows, float* scales) {
    const int64_t num_groups = rows.width / 16;
    const bool is_dense = rows.scale_stride == num_groups && (num_groups == 4 || num_groups == 8);
    __m512i first = _mm512_setzero_si512(), second = first;
    if (is_dense && num_groups == 4) {
        first = _mm512_loadu_si512(rows.scales);
    } else if (is_dense) {
        const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        const __m512i low = _mm512_loadu_si512(rows.scales), high = _mm512_loadu_si512(rows.scales + 64);
        first = _mm512_permutex2var_epi32(low, even, high);
        second = _mm512_permutex2var_epi32(low, odd, high);
    }
    if (!is_dense || (e4m3_nans(first) | e4m3_nans(second)) != 0) {
        for (int64_t i = 0; i < kLanes; ++i) {
            for (int64_t g = 0; g < num_groups; ++g) scales[g * kStrip + i] = from_e4m3(rows.scales_of(i)[g]);
        }
        return;
    }
    for (int64_t g = 0; g < num_groups; g += 4, first = second, scales += 4 * kStrip) {
        F four[4];
        e4m3_floats(first, four);
        for (int i = 0; i < 4; ++i) store(scales + i * kStrip, four[i]);
    }
}

#endif

}  // namespace MINNOW_ISA
