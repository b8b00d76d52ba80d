// many rows in fixed point times int4 and int8 tiles by AMX: the whole numbers of tiles.h, so its sums, bit by bit
//
// The tiles of tiles.h are what AMX multiplies with as they are: sixteen outputs side by side, four values of k deep. A
// product takes 64 values of k, and a block has 32: so int4 codes come twice, sixteen times as large in the upper half,
// and rows bring 12 bits, eight and four. int8 codes leave no room for that and take digit by digit.
#pragma once

#include "gemm_amx.h"
#include "tiles.h"

#if defined(MINNOW_HAS_AMX)

namespace MINNOW_ISA {

// A block of up to sixteen rows, as tiles are loaded.
template <class Tile, int kDigits>
struct RowTiles {
    static constexpr int kParts = !Tile::kIsSmall ? kDigits : kDigits == 1 ? 1 : 2;
    static constexpr int64_t kPartBytes = Tile::kIsSmall ? 2 * kBlock : kBlock;
    int8_t parts[kParts][kTileRows][kPartBytes];  // the most significant first; values in the order of FixedBlock
    float steps[kTileRows], sums[kTileRows];
};

// Row `row` of a block; x [32].
template <class Tile, int kDigits>
inline void pack_row_tile(const float* x, int64_t row, void* block) {
    RowTiles<Tile, kDigits>& out = *static_cast<RowTiles<Tile, kDigits>*>(block);
    constexpr int kParts = RowTiles<Tile, kDigits>::kParts;
    int32_t numbers[kBlock];
    const Scaled scaled = to_whole<kDigits>(x, numbers);
    for (int part = kParts; part-- > 0;) {
        int8_t* place = out.parts[part][row];
        if (Tile::kIsSmall) {  // number = 4096 * rest + 16 * upper + lower
            int32_t upper[kBlock], lower[kBlock];
            for (int i = 0; i < kBlock; ++i) {
                const int32_t rest = part == 0 ? 0 : (numbers[i] + 2048) >> 12, twelve = numbers[i] - 4096 * rest;
                upper[i] = twelve >> 4;
                lower[i] = twelve & 15;
                numbers[i] = rest;
            }
            store_bytes(upper, place);
            store_bytes(lower, place + kBlock);
        } else {
            store_bytes(numbers, place);
            for (int i = 0; i < kBlock; ++i) numbers[i] = (numbers[i] - static_cast<int8_t>(numbers[i])) >> 8;
        }
    }
    out.steps[row] = scaled.step;
    out.sums[row] = scaled.sum;
}

template <class Tile>
inline void fetch_next(const uint8_t* block) {
    for (int64_t i = 0; i < Tile::kBytes; i += kCacheLine) prefetch(block + kPrefetchBytes + i);
}

// A block of int4 codes in two sizes, [16][64].
inline void spread_codes(const uint8_t* block, uint8_t* out) {
    for (int eight = 0; eight < 4; ++eight, block += 64, out += 128) {
        uint8_t* lower = out + 8 * 64;
        for (int i = 0; i < 64; ++i) {
            const uint8_t even = block[i] & 15, odd = block[i] >> 4;
            out[i] = static_cast<uint8_t>(even << 4);
            out[64 + i] = static_cast<uint8_t>(odd << 4);
            lower[i] = even;
            lower[64 + i] = odd;
        }
    }
}

// Tiles kFirst and up += rows times codes.
template <class Tile, int kDigits, int kFirst>
inline void multiply_parts(const RowTiles<Tile, kDigits>& x, const uint8_t* codes) {
    using Rows = RowTiles<Tile, kDigits>;
    tile_load<6>(codes, 64);
    const auto multiply = [&](auto number) {
        constexpr int kPart = decltype(number)::kValue;
        if constexpr (kPart < Rows::kParts) {
            tile_zero<kFirst + kPart>();
            tile_load<Tile::kIsSmall ? 4 + kPart : 3 + kPart>(x.parts[kPart], Rows::kPartBytes);
            tile_add_bytes<Tile::kIsSmall, kFirst + kPart, Tile::kIsSmall ? 4 + kPart : 3 + kPart, 6>();
        }
    };
    multiply(Number<0>());
    multiply(Number<1>());
    multiply(Number<2>());
}

// sums [part][16 rows][16 outputs] = what multiply_parts has left in tiles.
template <class Tile, int kDigits, int kFirst>
inline void store_parts(int32_t* sums) {
    constexpr int kParts = RowTiles<Tile, kDigits>::kParts, kNext = kTileRows * kLanes;
    tile_store<kFirst>(sums, 64);
    if (kParts > 1) tile_store<kFirst + 1>(sums + kNext, 64);
    if (kParts > 2) tile_store<kFirst + 2>(sums + 2 * kNext, 64);
}

// What value_of has of the digits' sums: FP32, rounded once at the most where codes are small.
template <class Tile, int kDigits>
inline F value_at(const int32_t* sums) {
    constexpr int kParts = RowTiles<Tile, kDigits>::kParts, kNext = kTileRows * kLanes;
    if constexpr (kParts == 1) return to_floats(load_whole(sums));
    if constexpr (Tile::kIsSmall) {
        return fma(to_floats(load_whole(sums)), broadcast(4096.0f), to_floats(load_whole(sums + kNext)));
    }
    I digits[3] = {load_whole(sums), load_whole(sums + kNext), {}};
    if constexpr (kParts == 3) digits[2] = load_whole(sums + 2 * kNext);
    return value_of<kParts>(digits);
}

// totals += the first kRows rows of a group times some blocks of a tile, whose spread codes lie codes_bytes apart.
// While a block is multiplied the one before it is stored, and the one before that is scaled: what a tile has just
// stored cannot be loaded at once. Blocks take turns in two sets of tiles; int8 needs all tiles for one.
template <class Tile, int kDigits, int kRows>
inline void multiply_group(const RowTiles<Tile, kDigits>* x, const uint8_t* tile, const uint8_t* codes,
                           int64_t codes_bytes, int64_t num_blocks, bool is_first, float* totals, int64_t stride) {
    constexpr int64_t kSums = RowTiles<Tile, kDigits>::kParts * kTileRows * kLanes;
    constexpr int kOther = Tile::kIsSmall ? 2 : 0;
    alignas(64) int32_t sums[2][kSums];
    F total[kRows];
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) total[row] = is_first ? zero() : load(totals + row * stride);
    multiply_parts<Tile, kDigits, 0>(x[0], codes);
    for (int64_t b = 0; b <= num_blocks; ++b) {
        const bool has_next = b + 1 < num_blocks;
        codes += codes_bytes;
        if (b == num_blocks) {
            // nothing is left to multiply
        } else if (kOther == 0) {
            store_parts<Tile, kDigits, 0>(sums[b % 2]);
            if (has_next) multiply_parts<Tile, kDigits, 0>(x[b + 1], codes);
        } else if (b % 2 == 0) {
            if (has_next) multiply_parts<Tile, kDigits, kOther>(x[b + 1], codes);
            store_parts<Tile, kDigits, 0>(sums[0]);
        } else {
            if (has_next) multiply_parts<Tile, kDigits, 0>(x[b + 1], codes);
            store_parts<Tile, kDigits, kOther>(sums[1]);
        }
        if (b == 0) continue;
        const RowTiles<Tile, kDigits>& rows = x[b - 1];
        const int32_t* before = sums[(b - 1) % 2];
        const F scales = Tile::scales(tile), minimums = Tile::minimums(tile);
        tile += Tile::kBytes;
#pragma GCC unroll 16
        for (int row = 0; row < kRows; ++row) {
            const F value = value_at<Tile, kDigits>(before + row * kLanes);
            total[row] = fma(value * broadcast(rows.steps[row]), scales, total[row]);
            if (Tile::kIsSmall) total[row] = fma(broadcast(rows.sums[row]), minimums, total[row]);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) store(totals + row * stride, total[row]);
}

constexpr int64_t kPanelBlocks = 9;  // of two tiles, and of a group of rows: they share the first cache

// Groups of sixteen rows, num_blocks blocks each, times outputs [output, end) of a weight, on the calling thread.
template <class Tile, int kDigits>
inline void multiply_row_tiles(Team& team, const Weight& w, const void* rows, int64_t num_rows, int64_t output,
                               int64_t end, const Result& result) {
    const RowTiles<Tile, kDigits>* x = static_cast<const RowTiles<Tile, kDigits>*>(rows);
    const int64_t num_blocks = w.width / kBlock, tile_bytes = num_blocks * Tile::kBytes, num_outputs = end - output;
    const int64_t codes_bytes = Tile::kIsSmall ? 16 * 64 : Tile::kBytes, num_tiles = num_outputs / kLanes;
    const int64_t num_groups = (num_rows + kTileRows - 1) / kTileRows;
    const uint8_t* tiles = w.codes + output / kLanes * tile_bytes;
    Scratch scratch = team.scratch();
    float* totals = scratch.take<float>(num_groups * kTileRows * num_outputs);
    uint8_t* room = scratch.take<uint8_t>(Tile::kIsSmall ? num_tiles * kPanelBlocks * codes_bytes : 0);
    tile_config(RowTiles<Tile, kDigits>::kPartBytes / 4);
    const int64_t num_panels = (num_blocks + kPanelBlocks - 1) / kPanelBlocks;
    for (int64_t panel = 0; panel < num_panels; ++panel) {
        const int64_t b = panel * num_blocks / num_panels, count = (panel + 1) * num_blocks / num_panels - b;
        for (int64_t t = 0; t < num_tiles; ++t) {
            const uint8_t* blocks = tiles + (t * num_blocks + b) * Tile::kBytes;
            uint8_t* place = room + t * count * codes_bytes;
            for (int64_t i = 0; i < count; ++i, blocks += Tile::kBytes, place += codes_bytes) {
                fetch_next<Tile>(blocks);
                if (Tile::kIsSmall && i % 4 == 0) stay_awake();  // its tiles are whole
                if (Tile::kIsSmall) spread_codes(blocks, place);
            }
        }
        for (int64_t group = 0; group < num_groups; ++group) {
            const int64_t left = num_rows - group * kTileRows;
            const auto multiply = left > 8 ? multiply_group<Tile, kDigits, 16>
                                  : left > 4 ? multiply_group<Tile, kDigits, 8>
                                             : multiply_group<Tile, kDigits, 4>;
            for (int64_t t = 0; t < num_tiles; ++t) {
                const uint8_t* blocks = tiles + (t * num_blocks + b) * Tile::kBytes;
                const uint8_t* codes = Tile::kIsSmall ? room + t * count * codes_bytes : blocks;
                multiply(x + group * num_blocks + b, blocks, codes, codes_bytes, count, panel == 0,
                         totals + group * kTileRows * num_outputs + t * kLanes, num_outputs);
            }
        }
    }
    tile_release();
    for (int64_t row = 0; row < num_rows; ++row) {
        for (int64_t i = 0; i < num_outputs; i += kLanes) {
            float* place = result.y + row * result.stride + i;
            store(place, result.finished(load(totals + row * num_outputs + i), place));
        }
    }
}

}  // namespace MINNOW_ISA

#endif
