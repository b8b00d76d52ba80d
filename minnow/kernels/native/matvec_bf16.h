// products with the BF16 dot instruction, of BF16 activations and codes of four, eight or sixteen bits; both exact
#pragma once

#include "weight.h"

namespace MINNOW_ISA {

constexpr int64_t kNibbleChunk = 128;

inline __m512bh as_bf16(__m512i bits) {
    __m512bh result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
}

inline int64_t nibble_chunks(int64_t width) { return (width + kNibbleChunk - 1) / kNibbleChunk; }
// Sums of each 32 values of x, for formats with a minimum; then chunks of [4][32] BF16.
inline int64_t nibble_sums(int64_t width) { return (width / kChunk + kLanes - 1) / kLanes * kLanes; }
inline int64_t nibble_floats(int64_t width) { return nibble_sums(width) + nibble_chunks(width) * (kNibbleChunk / 2); }

// 16 floats that are BF16 numbers as such.
inline __m256i as_words(__m512 x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16)); }

inline void pack_pairs(const float* x, int64_t width, float* out) {
    uint16_t* place = reinterpret_cast<uint16_t*>(out);
    for (int64_t k = 0; k < width; k += kLanes) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(place + k), as_words(_mm512_loadu_ps(x + k)));
    }
}

// Group j of a chunk: values 4 w + j of 128 that lie in order.
inline __m512i every_fourth(const __m512i* rows, int j) {
    alignas(64) uint16_t places[32];
    for (int w = 0; w < 32; ++w) places[w] = static_cast<uint16_t>((4 * w + j) % 64);
    const __m512i index = _mm512_load_si512(places);
    const __m512i low = _mm512_permutex2var_epi16(rows[0], index, rows[1]);
    const __m512i high = _mm512_permutex2var_epi16(rows[2], index, rows[3]);
    return _mm512_mask_mov_epi16(low, 0xffff0000u, high);
}

inline void pack_nibbles(const float* x, int64_t width, float* out) {
    int64_t b = 0;
    for (; b < width / kChunk; ++b) out[b] = sum(load(x + b * kChunk) + load(x + b * kChunk + kLanes));
    for (; b < nibble_sums(width); ++b) out[b] = 0.0f;
    uint16_t* place = reinterpret_cast<uint16_t*>(out + nibble_sums(width));
    for (int64_t c = 0; c < nibble_chunks(width); ++c) {
        __m512i rows[4];
        for (int i = 0; i < 8; ++i) {
            const int64_t k = c * kNibbleChunk + i * kLanes;  // whole vectors: the width is a multiple of 16
            const __m256i words = as_words(k < width ? _mm512_loadu_ps(x + k) : _mm512_setzero_ps());
            rows[i / 2] = i % 2 ? _mm512_inserti64x4(rows[i / 2], words, 1) : _mm512_castsi256_si512(words);
        }
        for (int j = 0; j < 4; ++j, place += 32) _mm512_storeu_si512(place, every_fourth(rows, j));
    }
}

// The BF16 bits of a code's value, for all codes twice: the lookup sees a fifth bit, of the next code.
template <class Reader>
inline __m512i nibble_table() {
    if (!Reader::kIsInteger) return e2m1_to_bf16_table();
    alignas(64) static const uint16_t integers[32] = {
        0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150,
        0x4160, 0x4170, 0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100, 0x4110, 0x4120, 0x4130,
        0x4140, 0x4150, 0x4160, 0x4170};
    return _mm512_load_si512(integers);
}

struct True {
    constexpr operator bool() const { return true; }
};
struct False {
    constexpr operator bool() const { return false; }
};

struct NibbleDot {
    static constexpr bool kHasTail = false;
    static constexpr int64_t kValues = kNibbleChunk;
    static constexpr int outputs(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
    static inline int64_t num_chunks(int64_t width) { return nibble_chunks(width); }
    static inline int64_t row_bytes_of(int64_t width) { return 2 * width; }

    template <int kRows, int kOutputs, class Reader>
    static inline void add(const Reader* readers, const float* const* x, int64_t start, int64_t end, int64_t width,
                           F* totals) {
        constexpr int kScales = kNibbleChunk / Reader::kScaleBlock;
        const __m512i table = nibble_table<Reader>();
        alignas(64) int32_t spread[16];
        for (int i = 0; i < 16; ++i) spread[i] = i * kScales / 16;
        const __m512i places = _mm512_load_si512(spread);
        const int64_t sums = nibble_sums(width);
        __m512 total[kOutputs][kRows];
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) total[o][row] = totals[o * kRows + row].v;
        }
        // The last chunk may be short; its codes and scales past the end of the row count as zero.
        const int64_t num_full = width / kNibbleChunk;
        const auto add_chunk = [&](int64_t c, auto is_full) {
            const int64_t left = width - c * kNibbleChunk;
            const __mmask64 codes = is_full ? ~__mmask64{0} : (__mmask64{1} << (left / 2)) - 1;
            const __mmask16 scales = is_full ? 0xffff : (1u << (left / Reader::kScaleBlock)) - 1;
            __m512i words[kOutputs];
            __m512 part[kOutputs][kRows];
#pragma GCC unroll 8
            for (int o = 0; o < kOutputs; ++o) {
                const uint8_t* place = readers[o].row + c * (kNibbleChunk / 2);
                prefetch(place + kPrefetchBytes);
                words[o] = is_full ? _mm512_loadu_si512(place) : _mm512_maskz_loadu_epi8(codes, place);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 8
                for (int o = 0; o < kOutputs; ++o) {
                    const __m512i shifted = j == 0 ? words[o] : _mm512_srli_epi16(words[o], 4 * j);
                    const __m512bh values = as_bf16(_mm512_permutexvar_epi16(shifted, table));
#pragma GCC unroll 8
                    for (int row = 0; row < kRows; ++row) {
                        const uint16_t* group = reinterpret_cast<const uint16_t*>(x[row] + sums) + c * kNibbleChunk;
                        const __m512bh x_values = as_bf16(_mm512_loadu_si512(group + j * 32));
                        const __m512 before = j == 0 ? _mm512_setzero_ps() : part[o][row];
                        part[o][row] = _mm512_dpbf16_ps(before, values, x_values);
                    }
                }
            }
#pragma GCC unroll 8
            for (int o = 0; o < kOutputs; ++o) {
                const float* place = readers[o].scales + c * kScales;
                const __m512 few = is_full ? _mm512_loadu_ps(place) : _mm512_maskz_loadu_ps(scales, place);
                const __m512 scale = _mm512_permutexvar_ps(places, few);
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    total[o][row] = _mm512_fmadd_ps(part[o][row], scale, total[o][row]);
                }
            }
        };
        for (int64_t c = start; c < (end < num_full ? end : num_full); ++c) add_chunk(c, True{});
        if (end > num_full) add_chunk(num_full, False{});
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) totals[o * kRows + row].v = total[o][row];
        }
    }

    template <class Reader>
    static constexpr bool has_rest() {
        return Reader::kIsInteger;
    }

    // Minimum times the sum of x, block by block.
    template <class Reader>
    static inline void complete(const Reader& reader, const float* x, int64_t width, F& total) {
        const int64_t num_blocks = width / kChunk;
        for (int64_t b = 0; b < num_blocks; b += kLanes) {
            const int64_t left = num_blocks - b;
            const __mmask16 mask = left < kLanes ? (1u << left) - 1 : 0xffffu;
            const __m512 minimums = _mm512_maskz_loadu_ps(mask, reader.minimums + b);
            total.v = _mm512_fmadd_ps(minimums, _mm512_loadu_ps(x + b), total.v);
        }
    }
};

// 32 E4M3 codes as BF16, exactly.
inline __m512i e4m3_as_bf16(__m256i bytes) {
    const __m512i words = _mm512_cvtepi8_epi16(bytes);
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    // Codes below 8 (subnormal: so many times 2^-9) and 0x7f (NaN) are looked up by their lowest five bits.
    alignas(64) static const uint16_t special[32] = {0,      0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60,
                                                     0,      0,      0,      0,      0,      0,      0,      0,
                                                     0,      0,      0,      0,      0,      0,      0,      0,
                                                     0,      0,      0,      0,      0,      0,      0,      0x7fc0};
    const __m512i moved = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(8));
    const __mmask32 is_special = _mm512_cmpge_epu16_mask(moved, _mm512_set1_epi16(0x7f - 8));
    const __m512i value = _mm512_mask_permutexvar_epi16(normal, is_special, magnitude, _mm512_load_si512(special));
    return _mm512_or_si512(value, _mm512_and_si512(words, _mm512_set1_epi16(static_cast<short>(0x8000))));
}

inline __m512i pairs(const Mxfp8Reader& reader, int64_t b) {
    return e4m3_as_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(reader.row + b * kChunk)));
}
inline __m512i pairs(const Fp8Reader& reader, int64_t b) {
    return e4m3_as_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(reader.row + b * kChunk)));
}
inline __m512i pairs(const PlainReader<Bfloat16>& reader, int64_t b) {
    return _mm512_loadu_si512(reader.row + b * kChunk);
}
inline __m512 pair_scale(const Mxfp8Reader& reader, int64_t b) { return _mm512_set1_ps(reader.scales[b]); }
inline __m512 pair_scale(const Fp8Reader& reader, int64_t) { return reader.factor.v; }
inline __m512 pair_scale(const PlainReader<Bfloat16>&, int64_t) { return _mm512_set1_ps(1.0f); }

template <class Reader>
constexpr bool has_pairs() {
    return false;
}
template <>
constexpr bool has_pairs<Mxfp8Reader>() {
    return true;
}
template <>
constexpr bool has_pairs<Fp8Reader>() {
    return true;
}
template <>
constexpr bool has_pairs<PlainReader<Bfloat16>>() {
    return true;
}

struct PairDot {
    static constexpr bool kHasTail = false;
    static constexpr int64_t kValues = kChunk;
    static constexpr int outputs(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
    static inline int64_t num_chunks(int64_t width) { return width / kChunk; }
    static inline int64_t row_bytes_of(int64_t width) { return 2 * width; }

    template <int kRows, int kOutputs, class Reader>
    static inline void add(const Reader* readers, const float* const* x, int64_t start, int64_t end, int64_t,
                           F* totals) {
        __m512 total[kOutputs][kRows];
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) total[o][row] = totals[o * kRows + row].v;
        }
        for (int64_t b = start; b < end; ++b) {
#pragma GCC unroll 8
            for (int o = 0; o < kOutputs; ++o) {
                prefetch(readers[o].place(b) + kPrefetchBytes);
                const __m512bh values = as_bf16(pairs(readers[o], b));
                const __m512 scale = pair_scale(readers[o], b);
#pragma GCC unroll 8
                for (int row = 0; row < kRows; ++row) {
                    const uint16_t* place = reinterpret_cast<const uint16_t*>(x[row]) + b * kChunk;
                    const __m512bh x_values = as_bf16(_mm512_loadu_si512(place));
                    const __m512 part = _mm512_dpbf16_ps(_mm512_setzero_ps(), values, x_values);
                    total[o][row] = _mm512_fmadd_ps(part, scale, total[o][row]);
                }
            }
        }
#pragma GCC unroll 8
        for (int o = 0; o < kOutputs; ++o) {
#pragma GCC unroll 8
            for (int row = 0; row < kRows; ++row) totals[o * kRows + row].v = total[o][row];
        }
    }

    template <class Reader>
    static constexpr bool has_rest() {
        return false;
    }
};

}  // namespace MINNOW_ISA
