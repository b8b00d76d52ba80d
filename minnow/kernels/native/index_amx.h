// index keys against the index heads by AMX: sixteen keys are the rows of a tile as they lie, four queries its outputs
//
// A column of outputs has four quarters. In them are the sums of four groups of sixteen dims of NVFP4 keys, whose codes
// then need no scale before they are multiplied; or the products with the BF16 numbers whose sum an FP32 query is.
#pragma once

#include "queries.h"

namespace MINNOW_ISA {

#if defined(MINNOW_HAS_AMX)

constexpr int64_t kIndexRows = 4, kIndexWidth = 128, kIndexGroups = kIndexWidth / 16;
constexpr int64_t kIndexTiles = 4;  // each two nibbles of the words of four groups

inline bool has_index_tiles(const Cache& cache, bool is_bf16) {
    return is_bf16 && cache.format == kNvfp4 && cache.width == kIndexWidth && cache.block_length % kLanes == 0;
}

// The dim in a half of a unit of a tile.
inline int64_t index_dim(int64_t tile, int64_t unit, int64_t half) {
    const int64_t nibble = tile % 2 * 2 + unit / 8, word = tile / 2 * 16 + unit % 8 * 2 + half;
    return 4 * word + nibble;
}

// Four rows of BF16 values, `stride` apart, as outputs: [tile][16 units][4 groups][4 rows] pairs. Few rows leave zeros.
inline void pack_index_rows(const float* q, int64_t stride, int64_t num_rows, uint16_t* out) {
    memset(out, 0, kIndexTiles * kTileUnits * kLanes * sizeof(uint32_t));
    for (int64_t tile = 0; tile < kIndexTiles; ++tile) {
        for (int64_t unit = 0; unit < kTileUnits; ++unit, out += 2 * kLanes) {
            for (int64_t row = 0; row < num_rows; ++row) {
                for (int64_t half = 0; half < 2; ++half) {
                    uint32_t bits;
                    memcpy(&bits, q + row * stride + index_dim(tile, unit, half), sizeof bits);
                    out[2 * (unit % 8 / 2 * kIndexRows + row) + half] = static_cast<uint16_t>(bits >> 16);
                }
            }
        }
    }
}

// Sixteen keys as rows: [tile][16 keys][16 units].
inline void spread_index_keys(const Rows& keys, __m512i table, uint32_t* out) {
    for (int64_t i = 0; i < kTileRows; ++i, out += kTileUnits) {
        const __m512i words = _mm512_loadu_si512(keys.codes_of(i));
        const __m512i a = _mm512_permutexvar_epi16(words, table);
        const __m512i b = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
        const __m512i c = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
        const __m512i d = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
        _mm512_storeu_si512(out, _mm512_shuffle_i64x2(a, b, 0x44));
        _mm512_storeu_si512(out + kTileRows * kTileUnits, _mm512_shuffle_i64x2(c, d, 0x44));
        _mm512_storeu_si512(out + 2 * kTileRows * kTileUnits, _mm512_shuffle_i64x2(a, b, 0xee));
        _mm512_storeu_si512(out + 3 * kTileRows * kTileUnits, _mm512_shuffle_i64x2(c, d, 0xee));
    }
}

// sums [half of the groups][16 keys][16] of sixteen keys and four packed rows.
inline void multiply_index_keys(const uint32_t* keys, const uint16_t* rows, float* sums) {
    constexpr int64_t kFloats = kTileRows * kTileUnits, kBytes = 4 * kTileUnits;
    tile_zero<0>();
    tile_zero<1>();
    tile_load<4>(keys, kBytes);
    tile_load<6>(rows, kBytes);
    tile_add_products<0, 4, 6>();
    tile_load<5>(keys + 2 * kFloats, kBytes);
    tile_load<7>(rows + 4 * kFloats, kBytes);
    tile_add_products<1, 5, 7>();
    tile_load<4>(keys + kFloats, kBytes);
    tile_load<6>(rows + 2 * kFloats, kBytes);
    tile_add_products<0, 4, 6>();
    tile_load<5>(keys + 3 * kFloats, kBytes);
    tile_load<7>(rows + 6 * kFloats, kBytes);
    tile_add_products<1, 5, 7>();
    tile_store<0>(sums, kBytes);
    tile_store<1>(sums + kFloats, kBytes);
}

// The scales of sixteen keys times 2^-8, a dword for each group: [key][8]. False where one is negative or no number:
// then other means are needed.
inline bool spread_index_scales(const Rows& keys, float* out) {
    __mmask16 odd = 0;
    for (int64_t i = 0; i < kTileRows; i += 2) {
        const auto eight = [&](int64_t key) {
            return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(keys.scales_of(key)));
        };
        const __m128i bytes = _mm_unpacklo_epi64(eight(i), eight(i + 1));
        odd |= _mm_cmpge_epu8_mask(bytes, _mm_set1_epi8(0x7f));
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7);
        _mm512_storeu_ps(out + i * kIndexGroups, _mm512_cvtph_ps(halves));
    }
    return odd == 0;
}

// The dim of a word of a key's row in a tile, as read_halves has it.
inline int64_t key_row_dim(int64_t format, int64_t tile, int64_t word) {
    if (format == kNvfp4) return tile / 4 * 128 + 4 * word + tile % 4;
    return tile / 2 * 64 + (format == kFp8 ? 2 * word + tile % 2 : tile % 2 * 32 + word);
}

// Four rows of queries, `stride` apart, as outputs: [tile][16 units][4 limbs][4 rows] pairs. Few rows leave zeros.
inline void pack_index_limbs(const float* q, int64_t stride, int64_t num_rows, int64_t format, int64_t width,
                             int64_t num_limbs, uint16_t* out) {
    memset(out, 0, width / kStrip * kTileUnits * kLanes * sizeof(uint32_t));
    for (int64_t place = 0; place < width; ++place) {
        const int64_t dim = key_row_dim(format, place / kStrip, place % kStrip), half = place % 2;
        for (int64_t row = 0; row < num_rows; ++row) {
            float left = q[row * stride + dim];
            for (int64_t limb = 0; limb < num_limbs; ++limb) {
                uint32_t bits;
                memcpy(&bits, &left, sizeof bits);
                out[2 * (place / 2 * kLanes + limb * kIndexRows + row) + half] = static_cast<uint16_t>(bits >> 16);
                bits &= 0xffff0000u;
                float taken;
                memcpy(&taken, &bits, sizeof taken);
                left -= taken;
            }
        }
    }
}

// Sixteen keys, or the last of num_keys again, as rows: [tile][16 keys][16 units]. False where one is no number.
template <int64_t kFormat>
inline bool fill_key_rows(const Rows& keys, int64_t num_keys, Ahead& ahead, uint32_t* out) {
    constexpr int kVectors = kFormat == kNvfp4 ? 4 : 2;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < kTileRows; ++i) {
        uint32_t* place = out + i * kTileUnits;
        ahead.ask<kFormat == kBf16 ? 4 : kFormat == kFp8 ? 2 : 1>();
        for (int64_t d = 0; d < keys.width; d += kVectors * kStrip) {
            __m512i halves[kVectors];
            read_halves<kFormat>(keys, smaller(i, num_keys - 1), d, largest, halves);
            for (int j = 0; j < kVectors; ++j, place += kTileRows * kTileUnits) _mm512_storeu_si512(place, halves[j]);
        }
    }
    return kFormat != kFp8 || e4m3_nans(largest) == 0;
}

// sums [2][16 keys][4 limbs][4 rows] of two times sixteen keys and four packed rows.
template <int kTiles>
inline void multiply_key_rows(const uint32_t* keys, const uint16_t* rows, float* sums) {
    constexpr int64_t kFloats = kTileRows * kTileUnits, kBytes = 4 * kTileUnits;
    const uint32_t* others = keys + kTiles * kFloats;
    tile_zero<0>();
    tile_zero<1>();
    for (int64_t t = 0; t < kTiles; ++t, keys += kFloats, others += kFloats, rows += 2 * kFloats) {
        tile_load<6>(rows, kBytes);
        tile_load<4>(keys, kBytes);
        tile_add_products<0, 4, 6>();
        tile_load<5>(others, kBytes);
        tile_add_products<1, 5, 6>();
    }
    tile_store<0>(sums, kBytes);
    tile_store<1>(sums + kFloats, kBytes);
}

// The largest score of each row, and whether one was no number: in the four quarters of vectors.
struct IndexBest {
    __m512 largest;
    __mmask16 nans;

    // The quarters of four keys are to be added up; a row sees the first num_keys.
    inline void fold(const __m512* t, int64_t num_keys) {
        const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x44), _mm512_shuffle_f32x4(t[0], t[1], 0xee));
        const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x44), _mm512_shuffle_f32x4(t[2], t[3], 0xee));
        __m512 scores = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        if (num_keys < 4) {
            const __mmask16 seen = static_cast<__mmask16>((1 << 4 * num_keys) - 1);
            scores = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, scores);
        }
        nans |= _mm512_cmp_ps_mask(scores, scores, _CMP_UNORD_Q);
        largest = _mm512_max_ps(largest, scores);
    }

    inline float of(int64_t row, float factor) const {
        float lanes[kLanes], best = -INFINITY;
        _mm512_storeu_ps(lanes, largest);
        for (int64_t j = row; j < kLanes; j += kIndexRows) best = lanes[j] > best ? lanes[j] : best;
        return (nans & 0x1111 << row) != 0 ? NAN : best * factor;
    }
};

// Scores of two times sixteen keys from their limbs, of which a row sees the first num_keys.
inline void fold_key_rows(const float* sums, int64_t num_keys, IndexBest& best) {
    for (int64_t i = 0; i < 2 * kTileRows && i < num_keys; i += 4) {
        __m512 t[4];
        for (int j = 0; j < 4; ++j) t[j] = _mm512_loadu_ps(sums + (i + j) * kTileUnits);
        best.fold(t, num_keys - i);
    }
}

// Scores of sixteen keys, of which a row sees the first num_keys.
inline void scale_index_keys(const float* sums, const float* scales, int64_t num_keys, IndexBest& best) {
    constexpr int64_t kFloats = kTileRows * kTileUnits;
    const __m512i first = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    for (int64_t i = 0; i < kTileRows && i < num_keys; i += 4) {
        __m512 t[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            const float* place = sums + (i + j) * kTileUnits;
            const __m512i shift = _mm512_set1_epi32(j % 2 * 8);
            const __m512 two = _mm512_loadu_ps(scales + (i + j / 2 * 2) * kIndexGroups);
            const __m512 low = _mm512_permutexvar_ps(_mm512_add_epi32(first, shift), two);
            const __m512 high = _mm512_permutexvar_ps(
                _mm512_add_epi32(first, _mm512_add_epi32(shift, _mm512_set1_epi32(4))), two);
            t[j] = _mm512_fmadd_ps(_mm512_loadu_ps(place), low, _mm512_mul_ps(_mm512_loadu_ps(place + kFloats), high));
        }
        best.fold(t, num_keys - i);
    }
}

#endif

}  // namespace MINNOW_ISA
