// many rows of BF16 times int4 and int8 tiles by AMX: a weight is the sum of two BF16 numbers, products add up in FP32
//
// The tiles of tiles.h have outputs side by side, as the right operand of a product wants them; rows of x stand on the
// left as they are. The two numbers keep sixteen bits of a weight, where BF16 rows have eight. A row's sums have the
// same order whatever rows stand beside it.
#pragma once

#include "tiles_amx.h"

#if defined(MINNOW_HAS_AMX)

namespace MINNOW_ISA {

// A block of sixteen rows of x, and the weights of a block of sixteen outputs: of each the two numbers, value 2i and
// 2i + 1 of all outputs in row i.
struct HalfRows {
    Bfloat16 values[kTileRows][kBlock];
};
struct HalfWeights {
    Bfloat16 parts[2][kTileRows][kBlock];
};

// Row `row` of a block; x [32], BF16 values.
inline void pack_half_row(const float* x, int64_t row, void* block) {
    _mm512_storeu_si512(static_cast<HalfRows*>(block)->values[row],
                        (__m512i)_mm512_cvtne2ps_pbh(load(x + kLanes).v, load(x).v));
}

// Codes 8 i to 8 i + 7 of eight outputs, pair by pair: the even one of an output in an even lane, its neighbour beside it.
struct PairedCodes {
    __m512i dwords[2];  // of outputs 0 to 7, and 8 to 15
};
template <class Tile>
inline PairedCodes paired_codes(const uint8_t* block, int eight) {
    const __m512i lanes = _mm512_cvttps_epi32(iota().v), twice = _mm512_srli_epi32(lanes, 1);
    const __m512i upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
    if constexpr (Tile::kIsSmall) {
        const __m512i codes = _mm512_loadu_si512(block + 64 * eight);
        const __m512i shifts = _mm512_slli_epi32(_mm512_and_si512(lanes, _mm512_set1_epi32(1)), 2);
        return {{_mm512_srlv_epi32(_mm512_permutexvar_epi32(twice, codes), shifts),
                 _mm512_srlv_epi32(_mm512_permutexvar_epi32(upper, codes), shifts)}};
    } else {
        const __m512i even = _mm512_loadu_si512(block + 128 * eight), odd = _mm512_loadu_si512(block + 128 * eight + 64);
        const __m512i second = _mm512_slli_epi32(_mm512_and_si512(lanes, _mm512_set1_epi32(1)), 4);  // the other table
        return {{_mm512_permutex2var_epi32(even, _mm512_or_si512(twice, second), odd),
                 _mm512_permutex2var_epi32(even, _mm512_or_si512(upper, second), odd)}};
    }
}

// Pair `j` of them as floats.
template <class Tile>
inline F code_floats(__m512i dwords, int j) {
    if constexpr (Tile::kIsSmall) {
        return {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(dwords, 8 * j), _mm512_set1_epi32(15)))};
    } else {
        return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(dwords, 24 - 8 * j), 24))};
    }
}

template <class Tile>
inline void decode_halves(const uint8_t* block, HalfWeights& out) {
    const __m512i twice = _mm512_srli_epi32(_mm512_cvttps_epi32(iota().v), 1), mask = _mm512_set1_epi32(-0x10000);
    const __m512i upper = _mm512_add_epi32(twice, _mm512_set1_epi32(8));
    const F scales = Tile::scales(block), minimums = Tile::minimums(block);
    const F scale[2] = {{_mm512_permutexvar_ps(twice, scales.v)}, {_mm512_permutexvar_ps(upper, scales.v)}};
    const F minimum[2] = {{_mm512_permutexvar_ps(twice, minimums.v)}, {_mm512_permutexvar_ps(upper, minimums.v)}};
#pragma GCC unroll 4
    for (int eight = 0; eight < 4; ++eight) {
        const PairedCodes codes = paired_codes<Tile>(block, eight);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            F first[2], rest[2];
            for (int half = 0; half < 2; ++half) {
                const F value = fma(code_floats<Tile>(codes.dwords[half], j), scale[half], minimum[half]);
                first[half] = {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value.v), mask))};
                rest[half] = value - first[half];
            }
            const int row = 4 * eight + j;
            _mm512_storeu_si512(out.parts[0][row], (__m512i)_mm512_cvtne2ps_pbh(first[1].v, first[0].v));
            _mm512_storeu_si512(out.parts[1][row], (__m512i)_mm512_cvtne2ps_pbh(rest[1].v, rest[0].v));
        }
    }
}

constexpr int64_t kHalfGroups = 2;  // of sixteen rows, which meet two tiles of weights
constexpr int64_t kHalfBlocks = 6;  // of two tiles of weights, which share the first cache with those of rows

// totals (+)= one or two groups of rows times some blocks of two tiles; x [block][2 groups], w [block][2 tiles], totals
// [2 groups][2 tiles].
template <bool kIsDouble>
inline void multiply_half_groups(const HalfRows* x, const HalfWeights* w, int64_t num_blocks, bool is_first,
                                 float* totals) {
    constexpr int64_t kNext = kTileRows * kLanes;
    if (is_first) {
        tile_zero<0>();
        tile_zero<1>();
        if (kIsDouble) tile_zero<2>();
        if (kIsDouble) tile_zero<3>();
    } else {
        tile_load<0>(totals, 64);
        tile_load<1>(totals + kNext, 64);
        if (kIsDouble) tile_load<2>(totals + 2 * kNext, 64);
        if (kIsDouble) tile_load<3>(totals + 3 * kNext, 64);
    }
    for (int64_t b = 0; b < num_blocks; ++b, x += kHalfGroups, w += 2) {
        for (int64_t i = 0; i < kHalfGroups * kTileRows; ++i) {
            prefetch_near(x[kHalfGroups + i / kTileRows].values[i % kTileRows]);
        }
        tile_load<6>(w[0].parts[0], 64);
        tile_load<4>(x, 64);
        tile_add_products<0, 4, 6>();
        if (kIsDouble) tile_load<5>(x + 1, 64);
        if (kIsDouble) tile_add_products<2, 5, 6>();
        tile_load<7>(w[1].parts[0], 64);
        tile_add_products<1, 4, 7>();
        if (kIsDouble) tile_add_products<3, 5, 7>();
        tile_load<6>(w[0].parts[1], 64);
        tile_add_products<0, 4, 6>();
        if (kIsDouble) tile_add_products<2, 5, 6>();
        tile_load<7>(w[1].parts[1], 64);
        tile_add_products<1, 4, 7>();
        if (kIsDouble) tile_add_products<3, 5, 7>();
    }
    tile_store<0>(totals, 64);
    tile_store<1>(totals + kNext, 64);
    if (kIsDouble) tile_store<2>(totals + 2 * kNext, 64);
    if (kIsDouble) tile_store<3>(totals + 3 * kNext, 64);
}

// Rows times outputs [output, end) of a weight, on the calling thread; rows: for each two groups [block][group].
template <class Tile>
inline void multiply_half_rows(Team& team, const Weight& w, const void* rows, int64_t num_rows, int64_t output,
                               int64_t end, const Result& result) {
    constexpr int64_t kPairRows = kHalfGroups * kTileRows, kPairTotals = 2 * kPairRows * kLanes;
    const HalfRows* x = static_cast<const HalfRows*>(rows);
    const int64_t num_blocks = w.width / kBlock, tile_bytes = num_blocks * Tile::kBytes;
    const int64_t num_pairs = (num_rows + kPairRows - 1) / kPairRows;
    const int64_t num_panels = (num_blocks + kHalfBlocks - 1) / kHalfBlocks;
    Scratch scratch = team.scratch();
    float* totals = scratch.take<float>(num_pairs * kPairTotals);
    HalfWeights* room = scratch.take<HalfWeights>(2 * kHalfBlocks);
    tile_config();
    for (float* y = result.y; output < end; output += 2 * kLanes, y += 2 * kLanes) {
        const bool has_second = output + kLanes < end;  // else the first tile stands for it
        const uint8_t* tiles = w.codes + output / kLanes * tile_bytes;
        for (int64_t panel = 0; panel < num_panels; ++panel) {
            const int64_t b = panel * num_blocks / num_panels, count = (panel + 1) * num_blocks / num_panels - b;
            for (int64_t i = 0; i < 2 * count; ++i) {
                const uint8_t* block = tiles + (has_second ? i % 2 * tile_bytes : 0) + (b + i / 2) * Tile::kBytes;
                if (i % 4 == 0) stay_awake();
                fetch_next<Tile>(block);
                decode_halves<Tile>(block, room[i]);
            }
            for (int64_t pair = 0; pair < num_pairs; ++pair) {
                const bool is_double = num_rows - pair * kPairRows > kTileRows;
                const auto multiply = is_double ? multiply_half_groups<true> : multiply_half_groups<false>;
                multiply(x + (pair * num_blocks + b) * kHalfGroups, room, count, panel == 0, totals + pair * kPairTotals);
            }
        }
        for (int64_t row = 0; row < num_rows; ++row) {
            if (row % kTileRows == 0) stay_awake();
            const float* from = totals + (row / kTileRows * 2 * kTileRows + row % kTileRows) * kLanes;
            float* place = y + row * result.stride;
            store(place, result.finished(load(from), place));
            if (!has_second) continue;
            store(place + kLanes, result.finished(load(from + kTileRows * kLanes), place + kLanes));
        }
    }
    tile_release();
}

}  // namespace MINNOW_ISA

#endif
