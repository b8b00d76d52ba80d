// index keys in NVFP4 against the index heads by AMX: products of whole numbers, scales afterwards
//
// Of four rows at a time a tile takes the sums of four groups of sixteen dims apart, one in each quarter of its columns:
// so codes need no scale before they are multiplied, and one multiplication a group does for four rows.
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

// The largest score of each row, and whether one was no number: in the four quarters of vectors.
struct IndexBest {
    __m512 largest;
    __mmask16 nans;
};

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
        const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[1], 0x44), _mm512_shuffle_f32x4(t[0], t[1], 0xee));
        const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(t[2], t[3], 0x44), _mm512_shuffle_f32x4(t[2], t[3], 0xee));
        __m512 scores = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
        if (i + 4 > num_keys) {
            const __mmask16 seen = static_cast<__mmask16>((1 << 4 * (num_keys - i)) - 1);
            scores = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, scores);
        }
        best.nans |= _mm512_cmp_ps_mask(scores, scores, _CMP_UNORD_Q);
        best.largest = _mm512_max_ps(best.largest, scores);
    }
}

#endif

}  // namespace MINNOW_ISA
