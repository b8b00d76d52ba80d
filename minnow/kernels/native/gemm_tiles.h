// many rows times matrices whose values are BF16 numbers, by AMX: weights are decoded row by row, as they lie
//
// Weights stand on the left of a product, so that a row of a tile holds 32 values of one of their rows, and rows of x
// on the right, transposed. A panel of 32 outputs stays in the first cache while all rows of x go by, and the rows'
// part of its width in the second while outputs do. A row's sums have the same order whatever rows stand beside it.
#pragma once

#include "gemm_amx.h"
#include "gemm_columns.h"

#if defined(MINNOW_HAS_AMX)
#include "matvec_bf16.h"

namespace MINNOW_ISA {

constexpr int64_t kTileValues = 2 * kTileUnits;         // of a row of a tile
constexpr int64_t kPanelValues = 512;                   // of an output in a panel
constexpr int64_t kTileFloats = kTileRows * kTileUnits;

// Rows of x as tiles: [panel][block of 16 rows][group of 16 units][unit][row]. Where codes have four bits, a tile row
// holds every fourth value of 128.
struct TiledRows {
    float* units;
    int64_t num_rows, width;
    bool is_split;

    inline int64_t num_values() const { return round_up(width, is_split ? 4 * kTileValues : kTileValues); }
    inline int64_t num_panels() const { return (width + kPanelValues - 1) / kPanelValues; }
    inline int64_t num_groups(int64_t panel) const {
        const int64_t left = num_values() - panel * kPanelValues;
        return (left < kPanelValues ? left : kPanelValues) / kTileValues;
    }
    inline int64_t num_blocks() const { return (num_rows + kTileRows - 1) / kTileRows; }
    inline float* place(int64_t panel, int64_t block) const {
        return units + num_blocks() * panel * (kPanelValues / 2) * kTileRows + block * num_groups(panel) * kTileFloats;
    }
    inline int64_t num_floats() const { return num_blocks() * kTileRows * num_values() / 2; }
};

// Which value the i-th half of a unit is.
inline int64_t split_place(int64_t i) { return i / 128 * 128 + i % kTileValues * 4 + i % 128 / kTileValues; }

// A panel's values of one row of x; out [group][16 units].
inline void pair_row(const TiledRows& rows, int64_t num_groups, const float* x, float* out) {
    __m512i words[kPanelValues / kTileValues];
    for (int64_t g = 0; g < num_groups; ++g, x += kTileValues) {
        words[g] = (__m512i)_mm512_cvtne2ps_pbh(load(x + kLanes).v, load(x).v);
    }
    for (int64_t g = 0; g < num_groups; ++g) {
        _mm512_storeu_si512(out + g * kTileUnits, rows.is_split ? every_fourth(words + g / 4 * 4, g % 4) : words[g]);
    }
}

// Pack a panel of a block of rows that lie x_stride apart.
inline void pack_tiles(const TiledRows& rows, int64_t panel, int64_t block, const float* x, int64_t x_stride) {
    alignas(kCacheLine) float staged[kTileRows][kPanelValues / 2] = {}, rest[kPanelValues] = {};
    const int64_t num_groups = rows.num_groups(panel), start = panel * kPanelValues, left = rows.width - start;
    for (int64_t i = 0; i < kTileRows && block * kTileRows + i < rows.num_rows; ++i) {
        const float* from = x + (block * kTileRows + i) * x_stride + start;
        if (left < kPanelValues) from = static_cast<const float*>(memcpy(rest, from, sizeof(float) * left));
        pair_row(rows, num_groups, from, staged[i]);
    }
    float* place = rows.place(panel, block);
    for (int64_t g = 0; g < num_groups; ++g, place += kTileFloats) {
        F units[kTileRows];
        for (int64_t i = 0; i < kTileRows; ++i) units[i] = load(staged[i] + g * kTileUnits);
        store_transposed(units, place, kTileRows);
    }
}

constexpr int kPowerBias = 104;  // the least power of two that a block of MXFP8 may have here, negated

// 32 E4M3 numbers times powers of two as BF16; power: of each, kPowerBias - exponent in place of a BF16 exponent.
inline __m512i scaled_e4m3(__m256i codes, __m512i power) {
    const __m512i table = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0x7060704070207000, 0x6fc06f806f000000);
    const __m512i words = _mm512_cvtepi8_epi16(codes);
    __m512i bits = _mm512_ternarylogic_epi64(_mm512_slli_epi16(words, 4), _mm512_set1_epi16(0x07f0),
                                             _mm512_set1_epi16((120 + kPowerBias) << 7), 0xea);
    bits = _mm512_mask_permutexvar_epi16(bits, _mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x78)), words, table);
    bits = _mm512_subs_epu16(bits, power);  // zero stays zero
    return _mm512_ternarylogic_epi64(bits, words, _mm512_set1_epi16(-0x8000), 0xf8);
}

// A panel's values of one row; out [group], kTileFloats apart. False if there is a number among them that is not read
// right. Codes and scales are those of whole groups.
template <int64_t kFormat>
inline bool decode_row(const uint8_t* codes, const uint8_t* scales, int64_t num_groups, float* out) {
    if constexpr (kFormat == kBf16) {
        for (int64_t g = 0; g < num_groups; ++g) {
            _mm512_storeu_si512(out + g * kTileFloats, _mm512_loadu_si512(codes + 2 * g * kTileValues));
        }
        return true;
    } else if constexpr (kFormat == kFp8 || kFormat == kMxfp8) {
        alignas(kCacheLine) int32_t powers[kPanelValues / kTileValues];
        bool is_right = true;
        if (kFormat == kMxfp8) {
            const __m512i exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
            const __m512i power = _mm512_sub_epi32(_mm512_set1_epi32(127 + kPowerBias), exponents);
            is_right = _mm512_cmpgt_epu32_mask(power, _mm512_set1_epi32(2 * kPowerBias)) == 0;
            _mm512_store_si512(powers, _mm512_or_si512(_mm512_slli_epi32(power, 7), _mm512_slli_epi32(power, 23)));
            asm("" : "+m"(powers));  // or GCC takes them out of the register one by one
        }
        __m256i largest = _mm256_setzero_si256();
        for (int64_t g = 0; g < num_groups; ++g) {
            const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + g * kTileValues));
            const __m512i power = _mm512_set1_epi32(kFormat == kFp8 ? kPowerBias * 0x800080 : powers[g]);
            _mm512_storeu_si512(out + g * kTileFloats, scaled_e4m3(v, power));
            largest = _mm256_max_epu8(largest, _mm256_and_si256(v, _mm256_set1_epi8(0x7f)));
        }
        return is_right && _mm256_cmpeq_epi8_mask(largest, _mm256_set1_epi8(0x7f)) == 0;
    } else {
        constexpr int kScales = kFormat == kNvfp4 ? 8 : 4;  // of 128 values
        const __m512i table = e2m1_to_bf16_table();
        const __m512i places = _mm512_srli_epi32(_mm512_cvttps_epi32(iota().v), kFormat == kNvfp4 ? 1 : 2);
        alignas(kCacheLine) float values[kPanelValues / 16 + kLanes];
        for (int64_t i = 0; i < kPanelValues / 128 * kScales; i += kLanes) {
            store(values + i, kFormat == kNvfp4 ? load_e4m3(scales + i) : load_e8m0(scales + i));
        }
        for (int64_t g = 0; g < num_groups; g += 4, codes += 64, out += 4 * kTileFloats) {
            const __m512i v = _mm512_loadu_si512(codes);
            const F scale = {_mm512_permutexvar_ps(places, load(values + g / 4 * kScales).v)};
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                const __m512i pairs = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4 * j), table);
                _mm512_storeu_si512(out + j * kTileFloats, scaled_pairs(pairs, scale));
            }
        }
        return true;
    }
}

template <int64_t kFormat>
inline bool decode_row(const Weight& w, int64_t row, int64_t start, int64_t num_groups, float* out) {
    constexpr int64_t kBlock = kFormat == kNvfp4 ? 16 : 32;
    const int64_t left = w.width - start < kPanelValues ? w.width - start : kPanelValues;
    const uint8_t* codes = w.codes + row * row_bytes(w) + bytes_of(kFormat, start);
    const uint8_t* scales = w.scales + (row * w.width + start) / kBlock;
    uint8_t own_codes[2 * kPanelValues], own_scales[kPanelValues / 16];
    if (left < kPanelValues) {
        memset(own_codes, 0, sizeof own_codes);
        codes = static_cast<const uint8_t*>(memcpy(own_codes, codes, bytes_of(kFormat, left)));
    }
    if (w.scales != nullptr && left < kPanelValues) {
        memset(own_scales, kFormat == kNvfp4 ? 0 : 127, sizeof own_scales);
        scales = static_cast<const uint8_t*>(memcpy(own_scales, scales, left / kBlock));
    }
    return decode_row<kFormat>(codes, scales, num_groups, out);
}

// The same for any number, slowly.
inline void decode_any_row(const Weight& w, int64_t row, int64_t start, int64_t num_groups, bool is_split, float* out) {
    const int64_t count = w.width - start < kPanelValues ? w.width - start : kPanelValues;
    const Weight view = {w.format, 1, count, w.codes + row * row_bytes(w) + bytes_of(w.format, start),
                         w.scales + (row * w.width + start) / (w.format == kNvfp4 ? 16 : 32), nullptr, 1.0};
    float scratch[kPanelValues / 16 + 4 * kLanes];
    with_reader(view, scratch, [&](auto reader) {
        reader.prepare(0, 1);
        reader.start(0);
        for (int64_t i = 0; i < num_groups * kTileValues; ++i) {
            const int64_t g = i / kTileValues, k = is_split ? split_place(i) : i;
            const float value = k < count ? reader.at(k) : 0.0f;
            store(reinterpret_cast<Bfloat16*>(out + g * kTileFloats) + i % kTileValues, value);
        }
    });
}

constexpr int64_t kPairOutputs = 2 * kTileRows;  // of two tiles

// Panel number `panel` of outputs from output on, those from end on repeat the last one: [half][group][16 outputs][16
// units]. What lies row_ahead rows and value_ahead values further is fetched.
template <int64_t kFormat>
inline void fill_tiles(const Weight& w, const TiledRows& x, int64_t output, int64_t end, int64_t panel,
                       int64_t row_ahead, int64_t value_ahead, float* out) {
    const int64_t start = panel * kPanelValues, num_groups = x.num_groups(panel), block = kFormat == kNvfp4 ? 16 : 32;
    const int64_t code_ahead = row_ahead * row_bytes(w) + bytes_of(kFormat, start + value_ahead);
    const int64_t scale_ahead = (row_ahead * w.width + start + value_ahead) / block;
    for (int64_t i = 0; i < kPairOutputs; ++i) {
        if (i % 8 == 0) stay_awake();
        const int64_t row = output + i < end ? output + i : end - 1;
        const uint8_t* ahead = w.codes + row * row_bytes(w) + code_ahead;
        for (int64_t byte = 0; byte < bytes_of(kFormat, kPanelValues); byte += kCacheLine) prefetch(ahead + byte);
        if (w.scales != nullptr) prefetch(w.scales + row * w.width / block + scale_ahead);
        float* place = out + i / kTileRows * num_groups * kTileFloats + i % kTileRows * kTileUnits;
        if (!decode_row<kFormat>(w, row, start, num_groups, place)) {
            decode_any_row(w, row, start, num_groups, x.is_split, place);
        }
    }
}

// sums (+)= panel times kBlocks blocks of x; sums [half][block][16 outputs][16 rows], halves half_stride apart. So many
// lines of what comes next are fetched for each group.
template <int kBlocks>
inline void multiply_tiles(const float* panel, const float* x, int64_t num_groups, float* sums, int64_t half_stride,
                           bool is_first, const float* next, int64_t num_lines) {
    constexpr bool kIsDouble = kBlocks == 2;
    constexpr int64_t kBytes = 4 * kTileUnits;
    const int64_t stride = num_groups * kTileFloats;
    float* half = sums + half_stride;
    if (is_first) {
        tile_zero<0>();
        tile_zero<1>();
        if (kIsDouble) tile_zero<2>();
        if (kIsDouble) tile_zero<3>();
    } else {
        tile_load<0>(sums, kBytes);
        tile_load<1>(half, kBytes);
        if (kIsDouble) tile_load<2>(sums + kTileFloats, kBytes);
        if (kIsDouble) tile_load<3>(half + kTileFloats, kBytes);
    }
    for (int64_t g = 0; g < num_groups; ++g, panel += kTileFloats, x += kTileFloats) {
        for (int64_t i = 0; i < num_lines; ++i, next += kTileUnits) prefetch(next);
        tile_load<4>(panel, kBytes);
        tile_load_once<6>(x, kBytes);
        tile_add_products<0, 4, 6>();
        tile_load<5>(panel + stride, kBytes);
        tile_add_products<1, 5, 6>();
        if (kIsDouble) tile_load_once<7>(x + stride, kBytes);
        if (kIsDouble) tile_add_products<2, 4, 7>();
        if (kIsDouble) tile_add_products<3, 5, 7>();
    }
    tile_store<0>(sums, kBytes);
    tile_store<1>(half, kBytes);
    if (kIsDouble) tile_store<2>(sums + kTileFloats, kBytes);
    if (kIsDouble) tile_store<3>(half + kTileFloats, kBytes);
}

// Blocks [block, last) of x times outputs [output, end) of a weight, on the calling thread.
template <int64_t kFormat>
inline void multiply_tiled_rows(Team& team, const TiledRows& x, int64_t block, int64_t last, const Weight& w,
                                int64_t output, int64_t end, const Result& result) {
    const int64_t num_blocks = last - block, half_stride = num_blocks * kTileFloats, num_outputs = end - output;
    const int64_t num_halves = round_up(num_outputs, kPairOutputs) / kTileRows;
    Scratch scratch = team.scratch();
    float* sums = scratch.take<float>(num_halves * half_stride);
    float* panel = scratch.take<float>(kPairOutputs * kPanelValues / 2);
    tile_config();
    for (int64_t p = 0; p < x.num_panels(); ++p) {
        const bool is_last = p + 1 == x.num_panels();
        const int64_t row_ahead = is_last ? num_outputs * team.num_threads : 0;
        const int64_t value_ahead = is_last ? -p * kPanelValues : kPanelValues;
        const float* next = x.place(p + 1, block);  // shared out among the products of this panel
        const int64_t num_groups = x.num_groups(p), num_pairs = num_halves / 2;
        const int64_t num_lines = is_last || num_blocks < 8 ? 0 : (2 * kTileRows + num_pairs - 1) / num_pairs;
        for (int64_t half = 0; half < num_halves; half += 2) {
            fill_tiles<kFormat>(w, x, output + half * kTileRows, end, p, row_ahead, value_ahead, panel);
            float* place = sums + half * half_stride;
            int64_t b = block;
            for (; b + 2 <= last; b += 2, place += 2 * kTileFloats, next += num_lines * num_groups * kTileUnits) {
                multiply_tiles<2>(panel, x.place(p, b), num_groups, place, half_stride, p == 0, next, num_lines);
            }
            if (b < last) multiply_tiles<1>(panel, x.place(p, b), num_groups, place, half_stride, p == 0, next, 0);
        }
    }
    tile_release();
    for (int64_t b = block; b < last; ++b) {
        const int64_t row = b * kTileRows, num_rows = x.num_rows - row < kTileRows ? x.num_rows - row : kTileRows;
        for (int64_t o = 0; o < num_outputs; o += kTileRows) {
            const float* place = sums + o / kTileRows * half_stride + (b - block) * kTileFloats;
            float rows[kTileFloats];
            F columns[kTileRows];
            for (int64_t i = 0; i < kTileRows; ++i) columns[i] = load(place + i * kTileRows);
            store_transposed(columns, rows, kTileRows);
            for (int64_t i = 0; i < num_rows; ++i) {
                finish_row(rows + i * kTileRows, num_outputs - o < kTileRows ? num_outputs - o : kTileRows,
                           static_cast<float>(w.global_scale), result.from(row + i, output + o));
            }
        }
    }
}

inline void gemm_tiles(Team& team, const TiledRows& x, int64_t block, int64_t last, const Weight& w, int64_t output,
                       int64_t end, const Result& result) {
    const auto multiply = w.format == kBf16    ? multiply_tiled_rows<kBf16>
                          : w.format == kFp8   ? multiply_tiled_rows<kFp8>
                          : w.format == kMxfp8 ? multiply_tiled_rows<kMxfp8>
                          : w.format == kNvfp4 ? multiply_tiled_rows<kNvfp4>
                                               : multiply_tiled_rows<kMxfp4>;
    multiply(team, x, block, last, w, output, end, result);
}

}  // namespace MINNOW_ISA

#endif
