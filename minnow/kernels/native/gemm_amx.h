// AMX: its instructions
//
// Tiles are per thread and must be configured on it. The instructions are written out: GCC 12's intrinsics declare
// neither the whole configuration nor the memory that tiles are loaded from. MINNOW_AMX_EMULATED, for tests on other
// processors with AVX-512, puts plain C++ in their place.
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "elements.h"

#if (defined(__AMX_BF16__) || defined(MINNOW_AMX_EMULATED)) && defined(__AVX512BF16__)
#define MINNOW_HAS_AMX 1

namespace MINNOW_ISA {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileUnits = 16;  // in a row of a tile

// Tiles hold 16 rows of 64 bytes: sums (0 to 3), rows of x (4, 5; 3 where it holds no sums) and outputs (6, 7). Where
// products are less than 16 units deep, those of x are narrower and those of outputs have fewer rows; where x has fewer
// than 16 rows, so have its tiles and the sums.
constexpr bool is_left(int number) { return number >= 3 && number <= 5; }

#if defined(MINNOW_AMX_EMULATED)

struct TileMemory {
    uint32_t units[kTileRows][kTileUnits];
};

inline TileMemory& tile(int number) {
    static __thread TileMemory tiles[8];
    return tiles[number];
}
inline int64_t& tile_depth() {
    static __thread int64_t depth;
    return depth;
}
inline int64_t& tile_rows() {
    static __thread int64_t rows;
    return rows;
}
inline void tile_config(int64_t depth = kTileUnits, int64_t num_rows = kTileRows) {
    tile_depth() = depth;
    tile_rows() = num_rows;
}
inline void tile_release() {}
template <int kTile>
inline void tile_zero() {
    memset(&tile(kTile), 0, sizeof(TileMemory));
}
template <int kTile>
inline void tile_load(const void* place, int64_t stride) {
    const int64_t num_rows = kTile >= 6 ? tile_depth() : tile_rows();
    const int64_t num_units = is_left(kTile) ? tile_depth() : kTileUnits;
    for (int64_t i = 0; i < num_rows; ++i) {
        memcpy(tile(kTile).units[i], static_cast<const char*>(place) + i * stride, 4 * num_units);
    }
}
template <int kTile>
inline void tile_load_once(const void* place, int64_t stride) {
    tile_load<kTile>(place, stride);
}
template <int kTile>
inline void tile_store(void* place, int64_t stride) {
    for (int64_t i = 0; i < tile_rows(); ++i) memcpy(static_cast<char*>(place) + i * stride, tile(kTile).units[i], 64);
}
template <bool kIsUnsigned, int kSums, int kRows, int kOutputs>
inline void tile_add_bytes() {
    const TileMemory &a = tile(kRows), &b = tile(kOutputs);
    for (int i = 0; i < kTileRows; ++i) {
        for (int j = 0; j < kTileUnits; ++j) {
            for (int64_t k = 0; k < 4 * tile_depth(); ++k) {
                const uint8_t y = static_cast<uint8_t>(b.units[k / 4][j] >> 8 * (k % 4));
                const int8_t x = static_cast<int8_t>(a.units[i][k / 4] >> 8 * (k % 4));
                tile(kSums).units[i][j] += static_cast<uint32_t>(x * (kIsUnsigned ? y : static_cast<int8_t>(y)));
            }
        }
    }
}
inline float half_of(uint32_t unit, int half) {
    return to_float(Bfloat16{static_cast<uint16_t>(unit >> (16 * half))});
}
template <int kSums, int kRows, int kOutputs>
inline void tile_add_products() {
    const TileMemory &a = tile(kRows), &b = tile(kOutputs);
    for (int i = 0; i < kTileRows; ++i) {
        for (int j = 0; j < kTileUnits; ++j) {
            float sum;
            memcpy(&sum, &tile(kSums).units[i][j], sizeof sum);
            for (int u = 0; u < kTileUnits; ++u) {
                for (int half = 0; half < 2; ++half) sum += half_of(a.units[i][u], half) * half_of(b.units[u][j], half);
            }
            memcpy(&tile(kSums).units[i][j], &sum, sizeof sum);
        }
    }
}

#else

inline void tile_config(int64_t depth = kTileUnits, int64_t num_rows = kTileRows) {
    struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64, "the operand of ldtilecfg");
    for (int i = 0; i < 8; ++i) {
        config.row_bytes[i] = static_cast<uint16_t>(4 * (is_left(i) ? depth : kTileUnits));
        config.rows[i] = static_cast<uint8_t>(i >= 6 ? depth : num_rows);
    }
    asm volatile("ldtilecfg %0" : : "m"(*reinterpret_cast<const char(*)[64]>(&config)));
}
inline void tile_release() { asm volatile("tilerelease"); }
template <int kTile>
inline void tile_zero() {
    asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
}
template <int kTile>
inline void tile_load(const void* place, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(place), "r"(stride), "n"(kTile) : "memory");
}
// The same, but leaves the first cache to others.
template <int kTile>
inline void tile_load_once(const void* place, int64_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(place), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* place, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(place), "r"(stride), "n"(kTile) : "memory");
}
template <bool kIsUnsigned, int kSums, int kRows, int kOutputs>
inline void tile_add_bytes() {
    if (kIsUnsigned) {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSums), "n"(kRows), "n"(kOutputs));
    } else {
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSums), "n"(kRows), "n"(kOutputs));
    }
}
template <int kSums, int kRows, int kOutputs>
inline void tile_add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSums), "n"(kRows), "n"(kOutputs));
}

#endif

// The unit that multiplies tiles falls asleep when it has had nothing to do for half a microsecond, and takes almost as
// long to wake up; that which multiplies 512 bits does, too, and tiles are stored through it. Products that nobody reads
// keep both awake (docs/experiments/2026-11-30-amx.md). Tiles 3, 5 and 7 must be whole, and free.
inline void stay_awake() {
#if defined(MINNOW_AMX_EMULATED)
    if (tile_depth() != kTileUnits) abort();
    memset(&tile(3), 0xff, sizeof(TileMemory));  // NaN: whoever needs it will notice
#else
    tile_add_products<3, 5, 7>();
    asm volatile("vfmadd231ps %%zmm31, %%zmm31, %%zmm31" ::: "xmm31");
#endif
}

}  // namespace MINNOW_ISA

#else

namespace MINNOW_ISA {
inline void stay_awake() {}
}  // namespace MINNOW_ISA

#endif
