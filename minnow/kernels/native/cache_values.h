// values of a paged cache, token by token
//
// Where the width allows it they are decoded into an order of their own, in which shifts bring them out of dwords;
// value_dim says which dim stands at a place.
#pragma once

#include <math.h>

#include "cache.h"

namespace MINNOW_ISA {

#if defined(__AVX512F__)

inline bool has_own_order(int64_t format, int64_t width) { return format != kF32 && width % 64 == 0; }
inline int64_t value_dim(int64_t format, int64_t width, int64_t place) {
    if (!has_own_order(format, width)) return row_dim(format, width, place);
    const int64_t start = place / 64 * 64, j = place % 64 / 16, lane = place % 16;
    if (format == kFp8) return start + 4 * lane + j;
    if (format == kBf16) return start + j / 2 * 32 + 2 * lane + j % 2;
    if (width % 128 == 0) return place / 128 * 128 + 8 * lane + place % 128 / 16;
    return start + lane % 8 * 8 + lane / 8 * 4 + j;
}

// Sixty-four values of a token, places [d, d + 64).
template <int64_t kFormat>
struct ValueReader {
    __m512i largest = _mm512_setzero_si512();  // of FP8 numbers: NaNs are not read right

    inline bool has_nan() const { return e4m3_nans(largest) != 0; }

    inline void read(const Rows& rows, int64_t row, int64_t d, F* out) {
        if (kFormat == kFp8) {
            const __m512i v = _mm512_loadu_si512(rows.codes_of(row) + d);
            largest = e4m3_largest(largest, v);
            e4m3_floats(v, out);
        } else if (kFormat == kBf16) {
            const __m512i mask = _mm512_set1_epi32(-0x10000);
            for (int h = 0; h < 2; ++h) {
                const __m512i v = _mm512_loadu_si512(rows.codes_of(row) + 2 * d + 64 * h);
                out[2 * h] = {_mm512_castsi512_ps(_mm512_slli_epi32(v, 16))};
                out[2 * h + 1] = {_mm512_castsi512_ps(_mm512_and_si512(v, mask))};
            }
        } else if (rows.width % 128 == 0) {
            read_wide(rows, row, d, d % 128 != 0, out);
        } else {
            const uint8_t* codes = rows.codes_of(row) + d / 2;
            const __m512i shifts = _mm512_set_epi32(16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0);
            const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
            const __m512i v = _mm512_srlv_epi32(_mm512_broadcast_i64x4(eight), shifts);
            const F table = e2m1_table(), scale = scales_of<uint32_t>(rows.scales_of(row) + d / 16);
            out[0] = F{_mm512_permutexvar_ps(v, table.v)} * scale;
            out[1] = F{_mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table.v)} * scale;
            out[2] = F{_mm512_permutexvar_ps(_mm512_srli_epi32(v, 8), table.v)} * scale;
            out[3] = F{_mm512_permutexvar_ps(_mm512_srli_epi32(v, 12), table.v)} * scale;
        }
    }

    // 128 values are 64 bytes: nibble j of each word as BF16, of which FP32 takes the low or the high half.
    __attribute__((always_inline)) static inline void read_wide(const Rows& rows, int64_t row, int64_t d, bool is_high,
                                                                F* out) {
        const __m512i v = _mm512_loadu_si512(rows.codes_of(row) + d / 128 * 64), table = e2m1_to_bf16_table();
        const F scale = scales_of<uint64_t>(rows.scales_of(row) + d / 128 * 8);
        const __m512i two[4] = {_mm512_permutexvar_epi16(v, table),
                                _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table),
                                _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table),
                                _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table)};
        for (int j = 0; j < 4; ++j) {
            const __m512i half = is_high ? _mm512_and_si512(two[j], _mm512_set1_epi32(-0x10000))
                                         : _mm512_slli_epi32(two[j], 16);
            out[j] = F{_mm512_castsi512_ps(half)} * scale;
        }
    }

    // Four scales or eight, each in the lanes of the dwords that it covers.
    template <class Bytes>
    static inline F scales_of(const uint8_t* scales) {
        Bytes bytes;
        memcpy(&bytes, scales, sizeof bytes);
        const __m128i packed = _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
        __m512i spread;  // into the lowest bytes of the dwords
        if (sizeof bytes == 8) {
            spread = _mm512_castps_si512(_mm512_moveldup_ps(_mm512_castsi512_ps(_mm512_cvtepu8_epi64(packed))));
        } else {
            const __m512i to_low = _mm512_set_epi32(24, 24, 16, 16, 8, 8, 0, 0, 24, 24, 16, 16, 8, 8, 0, 0);
            spread = _mm512_srlv_epi32(_mm512_broadcastd_epi32(packed), to_low);
        }
        const F scale = {_mm512_castsi512_ps(_mm512_slli_epi32(low_e4m3s(spread), 16))};
        const Bytes low = static_cast<Bytes>(0x0101010101010101), high = static_cast<Bytes>(0x8080808080808080);
        if ((((bytes & ~high) + low) & high) == 0) return scale;
        const __m512i low_byte = _mm512_or_si512(spread, _mm512_set1_epi32(-128));
        const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(low_byte, _mm512_or_si512(low_byte, _mm512_set1_epi32(127)));
        return {_mm512_mask_mov_ps(scale.v, is_nan, _mm512_set1_ps(NAN))};
    }
};

template <int64_t kFormat>
inline void decode_in_own_order(const Rows& rows, int64_t num_rows, float* out) {
    ValueReader<kFormat> reader;
    for (int64_t i = 0; i < num_rows; ++i, out += rows.width) {
        int64_t d = 0;
        F v[8];
        for (; d + 128 <= rows.width; d += 128) {
            if (kFormat == kNvfp4 && rows.width % 128 == 0) {
                reader.read_wide(rows, i, d, false, v);
                reader.read_wide(rows, i, d, true, v + 4);  // of the same bytes
            } else {
                reader.read(rows, i, d, v);
                reader.read(rows, i, d + 64, v + 4);
            }
            for (int j = 0; j < 8; ++j) store(out + d + j * kLanes, v[j]);
        }
        if (d == rows.width) continue;
        reader.read(rows, i, d, v);
        for (int j = 0; j < 4; ++j) store(out + d + j * kLanes, v[j]);
    }
    if (!reader.has_nan()) return;
    out -= num_rows * rows.width;
    for (int64_t i = 0; i < num_rows * rows.width; ++i) {
        const int64_t row = i / rows.width, d = value_dim(kFormat, rows.width, i % rows.width);
        if ((rows.codes_of(row)[d] & 0x7f) == 0x7f) out[i] = NAN;
    }
}

#else

inline bool has_own_order(int64_t, int64_t) { return false; }
inline int64_t value_dim(int64_t format, int64_t width, int64_t place) { return row_dim(format, width, place); }

#endif

// The first num_rows tokens, round_up(width, 16) floats each.
inline void decode_values(const Rows& rows, int64_t num_rows, float* out) {
#if defined(__AVX512F__)
    if (has_own_order(rows.format, rows.width)) {
        if (rows.format == kNvfp4) return decode_in_own_order<kNvfp4>(rows, num_rows, out);
        if (rows.format == kFp8) return decode_in_own_order<kFp8>(rows, num_rows, out);
        return decode_in_own_order<kBf16>(rows, num_rows, out);
    }
#endif
    for (int64_t i = 0; i < num_rows; ++i) decode_row(rows, i, out + i * round_up(rows.width, kLanes));
}

}  // namespace MINNOW_ISA
