// products with the BF16 dot instruction: exact codes of four or eight bits, and x as one BF16 or three that add up to it
#pragma once

#include "weight.h"

namespace MINNOW_ISA {

constexpr int64_t kMaxLimbRows = 2;  // three limbs of one or two rows cost less than FP32 products of decoded weights
constexpr int64_t kNibbleChunk = 128;

inline __m512bh as_bf16(__m512i bits) {
    __m512bh result;
    __builtin_memcpy(&result, &bits, sizeof result);
    return result;
}

inline int64_t nibble_chunks(int64_t width) { return (width + kNibbleChunk - 1) / kNibbleChunk; }
// Sums of each 32 values of x, for formats with a minimum; then chunks of [limb][4][32] BF16.
inline int64_t nibble_sums(int64_t width) { return (width / kChunk + kLanes - 1) / kLanes * kLanes; }
inline int64_t nibble_floats(int64_t width, int64_t num_limbs) {
    return nibble_sums(width) + nibble_chunks(width) * num_limbs * (kNibbleChunk / 2);
}

// 16 floats to num_limbs BF16 whose sum they are; what is not finite is in the first alone.
inline void to_limbs(__m512 x, int64_t num_limbs, __m256i* limbs) {
    for (int64_t i = 0; i < num_limbs; ++i) {
        const __m256bh rounded = _mm512_cvtneps_pbh(x);
        __builtin_memcpy(&limbs[i], &rounded, sizeof rounded);
        const __m512 back = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(limbs[i]), 16));
        const __mmask16 is_finite = _mm512_cmp_ps_mask(_mm512_abs_ps(back), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
        x = _mm512_maskz_sub_ps(is_finite, x, back);
    }
}

inline void pack_pairs(const float* x, int64_t width, float* out) {
    uint16_t* place = reinterpret_cast<uint16_t*>(out);
    for (int64_t k = 0; k < width; k += kLanes) {
        __m256i limb;
        to_limbs(_mm512_loadu_ps(x + k), 1, &limb);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(place + k), limb);
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

inline void pack_nibbles(const float* x, int64_t width, int64_t num_limbs, float* out) {
    int64_t b = 0;
    for (; b < width / kChunk; ++b) out[b] = sum(load(x + b * kChunk) + load(x + b * kChunk + kLanes));
    for (; b < nibble_sums(width); ++b) out[b] = 0.0f;
    uint16_t* place = reinterpret_cast<uint16_t*>(out + nibble_sums(width));
    for (int64_t c = 0; c < nibble_chunks(width); ++c) {
        __m512i rows[3][4];
        for (int i = 0; i < 8; ++i) {
            const int64_t k = c * kNibbleChunk + i * kLanes;  // whole vectors: the width is a multiple of 16
            __m256i limbs[3];
            to_limbs(k < width ? _mm512_loadu_ps(x + k) : _mm512_setzero_ps(), num_limbs, limbs);
            for (int64_t limb = 0; limb < num_limbs; ++limb) {
                __m512i& row = rows[limb][i / 2];
                row = i % 2 ? _mm512_inserti64x4(row, limbs[limb], 1) : _mm512_castsi256_si512(limbs[limb]);
            }
        }
        for (int64_t limb = 0; limb < num_limbs; ++limb) {
            for (int j = 0; j < 4; ++j, place += 32) _mm512_storeu_si512(place, every_fourth(rows[limb], j));
        }
    }
}

// The BF16 bits of a code's value, for all codes twice: the lookup sees a fifth bit, of the next code.
template <class Reader>
inline __m512i nibble_table() {
    alignas(64) uint16_t bits[32];
    for (int i = 0; i < 32; ++i) {
        const float value = Reader::kIsInteger ? static_cast<float>(i & 15) : from_e2m1(i & 15);
        Bfloat16 rounded;
        store(&rounded, value);
        bits[i] = rounded.bits;
    }
    return _mm512_load_si512(bits);
}

struct True {
    constexpr operator bool() const { return true; }
};
struct False {
    constexpr operator bool() const { return false; }
};

template <int kLimbs>
struct NibbleDot {
    static constexpr int64_t kValues = kNibbleChunk;
    static constexpr int outputs(int rows) { return rows * kLimbs <= 3 ? 4 : rows * kLimbs <= 6 ? 2 : 1; }
    static inline int64_t num_chunks(int64_t width) { return nibble_chunks(width); }
    static inline int64_t row_bytes_of(int64_t width) { return 2 * kLimbs * width; }

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
        for (int o = 0; o < kOutputs; ++o) {
            for (int row = 0; row < kRows; ++row) total[o][row] = totals[o * kRows + row].v;
        }
        // The last chunk may be short; its codes and scales past the end of the row count as zero.
        const int64_t num_full = width / kNibbleChunk;
        const auto add_chunk = [&](int64_t c, auto is_full) {
            const int64_t left = width - c * kNibbleChunk;
            const __mmask64 codes = is_full ? ~__mmask64{0} : (__mmask64{1} << (left / 2)) - 1;
            const __mmask16 scales = is_full ? 0xffff : (1u << (left / Reader::kScaleBlock)) - 1;
            __m512i words[kOutputs];
            __m512 part[kOutputs][kRows][kLimbs];  // a sum for each limb: long chains of sums would wait for each other
            for (int o = 0; o < kOutputs; ++o) {
                const uint8_t* place = readers[o].row + c * (kNibbleChunk / 2);
                prefetch(place + kPrefetchBytes);
                words[o] = is_full ? _mm512_loadu_si512(place) : _mm512_maskz_loadu_epi8(codes, place);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                for (int o = 0; o < kOutputs; ++o) {
                    const __m512i shifted = j == 0 ? words[o] : _mm512_srli_epi16(words[o], 4 * j);
                    const __m512bh values = as_bf16(_mm512_permutexvar_epi16(shifted, table));
                    for (int row = 0; row < kRows; ++row) {
                        const uint16_t* limbs = reinterpret_cast<const uint16_t*>(x[row] + sums) +
                                                c * kLimbs * kNibbleChunk + j * 32;
                        for (int limb = 0; limb < kLimbs; ++limb) {
                            const __m512bh x_values = as_bf16(_mm512_loadu_si512(limbs + limb * kNibbleChunk));
                            const __m512 before = j == 0 ? _mm512_setzero_ps() : part[o][row][limb];
                            part[o][row][limb] = _mm512_dpbf16_ps(before, values, x_values);
                        }
                    }
                }
            }
            for (int o = 0; o < kOutputs; ++o) {
                const float* place = readers[o].scales + c * kScales;
                const __m512 few = is_full ? _mm512_loadu_ps(place) : _mm512_maskz_loadu_ps(scales, place);
                const __m512 scale = _mm512_permutexvar_ps(places, few);
                for (int row = 0; row < kRows; ++row) {
                    __m512 sum = part[o][row][0];
                    for (int limb = 1; limb < kLimbs; ++limb) sum = _mm512_add_ps(sum, part[o][row][limb]);
                    total[o][row] = _mm512_fmadd_ps(sum, scale, total[o][row]);
                }
            }
        };
        for (int64_t c = start; c < (end < num_full ? end : num_full); ++c) add_chunk(c, True{});
        if (end > num_full) add_chunk(num_full, False{});
        for (int o = 0; o < kOutputs; ++o) {
            for (int row = 0; row < kRows; ++row) totals[o * kRows + row].v = total[o][row];
        }
    }

    template <class Reader>
    static inline float finish(const Reader& reader, const float* x, int64_t width, F total) {
        if constexpr (Reader::kIsInteger) {  // minimum times the sum of x, block by block
            const int64_t num_blocks = width / kChunk;
            for (int64_t b = 0; b < num_blocks; b += kLanes) {
                const int64_t left = num_blocks - b;
                const __mmask16 mask = left < kLanes ? (1u << left) - 1 : 0xffffu;
                const __m512 minimums = _mm512_maskz_loadu_ps(mask, reader.minimums + b);
                total.v = _mm512_fmadd_ps(minimums, _mm512_loadu_ps(x + b), total.v);
            }
        }
        return sum(total);
    }
};

// 32 E4M3 codes as BF16, exactly.
inline __m512i e4m3_as_bf16(__m256i bytes) {
    const __m512i words = _mm512_cvtepi8_epi16(bytes);
    const __m512i magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    // Codes below 8 (subnormal) and 0x7f (NaN) are looked up by their lowest five bits.
    alignas(64) uint16_t bits[32] = {};
    for (int i = 0; i < 8; ++i) {
        Bfloat16 rounded;
        store(&rounded, from_e4m3(static_cast<uint8_t>(i)));
        bits[i] = rounded.bits;
    }
    bits[31] = 0x7fc0;
    const __m512i moved = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(8));
    const __mmask32 is_special = _mm512_cmpge_epu16_mask(moved, _mm512_set1_epi16(0x7f - 8));
    const __m512i value = _mm512_mask_permutexvar_epi16(normal, is_special, magnitude, _mm512_load_si512(bits));
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
    static constexpr int64_t kValues = kChunk;
    static constexpr int outputs(int rows) { return rows <= 2 ? 4 : rows <= 4 ? 2 : 1; }
    static inline int64_t num_chunks(int64_t width) { return width / kChunk; }
    static inline int64_t row_bytes_of(int64_t width) { return 2 * width; }

    template <int kRows, int kOutputs, class Reader>
    static inline void add(const Reader* readers, const float* const* x, int64_t start, int64_t end, int64_t,
                           F* totals) {
        __m512 total[kOutputs][kRows];
        for (int o = 0; o < kOutputs; ++o) {
            for (int row = 0; row < kRows; ++row) total[o][row] = totals[o * kRows + row].v;
        }
        for (int64_t b = start; b < end; ++b) {
            for (int o = 0; o < kOutputs; ++o) {
                prefetch(readers[o].place(b) + kPrefetchBytes);
                const __m512bh values = as_bf16(pairs(readers[o], b));
                const __m512 scale = pair_scale(readers[o], b);
                for (int row = 0; row < kRows; ++row) {
                    const uint16_t* place = reinterpret_cast<const uint16_t*>(x[row]) + b * kChunk;
                    const __m512bh x_values = as_bf16(_mm512_loadu_si512(place));
                    const __m512 part = _mm512_dpbf16_ps(_mm512_setzero_ps(), values, x_values);
                    total[o][row] = _mm512_fmadd_ps(part, scale, total[o][row]);
                }
            }
        }
        for (int o = 0; o < kOutputs; ++o) {
            for (int row = 0; row < kRows; ++row) totals[o * kRows + row].v = total[o][row];
        }
    }

    template <class Reader>
    static inline float finish(const Reader&, const float*, int64_t, F total) {
        return sum(total);
    }
};

}  // namespace MINNOW_ISA
