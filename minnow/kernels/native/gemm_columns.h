// weights decoded a column at a time: a vector holds a dword of 16 rows, whose values need no transposing
//
// Shifts bring the values of a dword out in an order of their own, which unit_distance describes.
#pragma once

#include "gemm_units.h"

namespace MINNOW_ISA {

constexpr int64_t kColumnBytes = 32;  // of a row that are read at once

#if defined(__AVX512BF16__)

inline __m512i scaled_pairs(__m512i pairs, F scale) {
    const __m512i high_mask = _mm512_set1_epi32(-0x10000);
    const F low = F{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))} * scale;
    const F high = F{_mm512_castsi512_ps(_mm512_and_si512(pairs, high_mask))} * scale;
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(low.v), 16),
                                   _mm512_castps_si512(high.v));
}

inline bool has_column_reader(int64_t format, bool is_paired) {
    return is_paired || format == kInt4 || format == kInt8;
}

// Powers of two that leave every product of a format's values a normal number as BF16 become what is added to the
// bits of a pair; false, and no change, if one is beyond.
inline bool shifts_of_powers(float* scales, int64_t num_blocks) {
    const __m512 least = _mm512_set1_ps(0x1p-110f), largest = _mm512_set1_ps(0x1p110f);
    __mmask16 is_beyond = 0;
    for (int64_t b = 0; b < num_blocks; ++b) {
        const __m512 scale = load(scales + b * kLanes).v;
        is_beyond |= _mm512_cmp_ps_mask(scale, least, _CMP_NGE_UQ) | _mm512_cmp_ps_mask(scale, largest, _CMP_NLE_UQ);
    }
    for (int64_t b = 0; b < num_blocks && is_beyond == 0; ++b) {
        const __m512i bits = _mm512_castps_si512(load(scales + b * kLanes).v);
        const __m512i shift = _mm512_srli_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(127 << 23)), 16);
        _mm512_storeu_si512(scales + b * kLanes, _mm512_or_si512(shift, _mm512_slli_epi32(shift, 16)));
    }
    return is_beyond == 0;
}

inline __m512i shifted_pairs(__m512i pairs, F shift) {
    const __mmask32 is_nonzero = _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_add_epi16(pairs, is_nonzero, pairs, _mm512_castps_si512(shift.v));
}

// The units of whole columns; scales[b * 16 + i] and minimums for block b of row i. False if an E4M3 NaN came by, which
// is not read right.
template <int64_t kFormat, bool kIsShifted = false>
inline bool fill_columns(const uint8_t* codes, int64_t stride, const float* scales, const float* minimums,
                         int64_t num_bytes, float* panel, int64_t num_outputs) {
    constexpr int64_t kBlock = kFormat == kNvfp4 ? 16 : 32;
    constexpr bool kHasBytes = kFormat == kFp8 || kFormat == kMxfp8 || kFormat == kInt8;
    constexpr int64_t kColumnValues = kFormat == kBf16 ? 2 : kHasBytes ? 4 : 8;
    const __m512i table = e2m1_to_bf16_table();
    const F numbers = iota();
    __mmask64 nans = 0;
    for (int64_t column = 0; column < num_bytes / 4; column += 8, codes += kColumnBytes) {
        __m512i v[8];
        load_columns(codes, stride, v);
#pragma GCC unroll 8
        for (int64_t k = 0; k < 8; ++k) {
            const int64_t place = (column + k) * kColumnValues / kBlock * kLanes;
            const auto put = [&](__m512i units) __attribute__((always_inline)) {
                _mm512_storeu_si512(panel, units);
                panel += num_outputs;
            };
            const auto put_scaled = [&](__m512i pairs) __attribute__((always_inline)) {
                const F scale = load(scales + place);
                put(kIsShifted ? shifted_pairs(pairs, scale) : scaled_pairs(pairs, scale));
            };
            if (kFormat == kBf16) {
                put(v[k]);
            } else if (kFormat == kFp8 || kFormat == kMxfp8) {
                nans |= e4m3_nans(v[k]);
                const __m512i even = words_of_e4m3(_mm512_slli_epi16(v[k], 8), v[k]);
                const __m512i odd = words_of_e4m3(v[k], _mm512_srli_epi16(v[k], 8));
                kFormat == kFp8 ? put(even) : put_scaled(even);
                kFormat == kFp8 ? put(odd) : put_scaled(odd);
            } else if (kFormat == kNvfp4 || kFormat == kMxfp4) {
                put_scaled(_mm512_permutexvar_epi16(v[k], table));
                put_scaled(_mm512_permutexvar_epi16(_mm512_srli_epi16(v[k], 4), table));
                put_scaled(_mm512_permutexvar_epi16(_mm512_srli_epi16(v[k], 8), table));
                put_scaled(_mm512_permutexvar_epi16(_mm512_srli_epi16(v[k], 12), table));
            } else if (kFormat == kInt4) {
                const F scale = load(scales + place), minimum = load(minimums + place);
                for (int i = 0; i < 8; ++i, v[k] = _mm512_srli_epi32(v[k], 4)) {
                    const F code = {_mm512_permutexvar_ps(v[k], numbers.v)};  // it looks at four bits alone
                    put(_mm512_castps_si512(fma(code, scale, minimum).v));
                }
            } else {
                const F scale = load(scales + place);
                for (int i = 0; i < 4; ++i, v[k] = _mm512_srli_epi32(v[k], 8)) {
                    const __m512i code = _mm512_srai_epi32(_mm512_slli_epi32(v[k], 24), 24);
                    put(_mm512_castps_si512((F{_mm512_cvtepi32_ps(code)} * scale).v));
                }
            }
        }
    }
    return nans == 0;
}

// Scales of one row from a place on, turned to floats and padded with zeros.
inline void read_row_scales(const Weight& w, const uint8_t* scales, int64_t index, int64_t count, int64_t padded,
                            float* out) {
    const int64_t total = w.num_rows * (w.width / (w.format == kNvfp4 ? 16 : 32));
    const int64_t readable = index + padded <= total ? padded : count;  // whole vectors are faster
    if (w.format == kNvfp4) {
        read_e4m3_scales(scales + index, readable, 1.0f, out);
    } else if (w.format == kInt4 || w.format == kInt8) {
        read_f16_scales(reinterpret_cast<const Float16*>(scales) + index, readable, out);
    } else {
        read_e8m0_scales(scales + index, readable, out);
    }
    for (int64_t b = count; b < padded; ++b) out[b] = 0.0f;
}

// What fill_by_rows does, faster; false if it must do it after all.
inline bool fill_by_columns(const Weight& w, int64_t row, int64_t end, int64_t start, int64_t count, float* scratch,
                            float* panel, int64_t num_outputs) {
    const int64_t block = w.format == kNvfp4 ? 16 : 32, num_blocks = w.scales == nullptr ? 0 : count / block;
    const int64_t padded_blocks = round_up(num_blocks, kLanes), stride = padded_blocks + kLanes;
    const int64_t num_bytes = bytes_of(w.format, count);
    const int64_t padded_bytes = round_up(bytes_of(w.format, round_up(count, kChunk)), kColumnBytes);
    const int64_t code_stride = padded_bytes + kCacheLine;  // rows in memory often lie where they evict each other
    float* scales = scratch;                               // [padded_blocks, 16]
    float* minimums = scales + padded_blocks * kLanes;     // the same
    float* by_row = minimums + padded_blocks * kLanes;     // [16, stride]
    uint8_t* codes = reinterpret_cast<uint8_t*>(by_row + kLanes * stride);
    for (int64_t i = 0; i < kLanes; ++i) {
        const int64_t index = row + i < end ? row + i : end - 1;
        memcpy(codes + i * code_stride, w.codes + index * row_bytes(w) + bytes_of(w.format, start), num_bytes);
        memset(codes + i * code_stride + num_bytes, 0, padded_bytes - num_bytes);
    }
    const uint8_t* const parts[2] = {w.scales, w.minimums};
    for (const uint8_t* part : parts) {
        if (part == nullptr) continue;
        for (int64_t i = 0; i < kLanes; ++i) {
            const int64_t index = row + i < end ? row + i : end - 1;
            read_row_scales(w, part, (index * w.width + start) / block, num_blocks, padded_blocks, by_row + i * stride);
        }
        for (int64_t b = 0; b < num_blocks; b += kLanes) {
            F rows[kLanes];
            for (int64_t i = 0; i < kLanes; ++i) rows[i] = load(by_row + i * stride + b);
            store_transposed(rows, (part == w.scales ? scales : minimums) + b * kLanes, kLanes);
        }
    }
    const auto fill = [&](auto* columns) {
        return columns(codes, code_stride, scales, minimums, padded_bytes, panel, num_outputs);
    };
    switch (w.format) {
        case kBf16: return fill(fill_columns<kBf16>);
        case kFp8: return fill(fill_columns<kFp8>);
        case kNvfp4: return fill(fill_columns<kNvfp4>);
        case kInt4: return fill(fill_columns<kInt4>);
        case kInt8: return fill(fill_columns<kInt8>);
    }
    const bool is_shifted = shifts_of_powers(scales, num_blocks);
    if (w.format == kMxfp4) return fill(is_shifted ? fill_columns<kMxfp4, true> : fill_columns<kMxfp4>);
    return fill(is_shifted ? fill_columns<kMxfp8, true> : fill_columns<kMxfp8>);
}

#else

inline bool has_column_reader(int64_t, bool) { return false; }
inline bool fill_by_columns(const Weight&, int64_t, int64_t, int64_t, int64_t, float*, float*, int64_t) {
    return false;
}

#endif

}  // namespace MINNOW_ISA
