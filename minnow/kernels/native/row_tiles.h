// many rows times weights in tiles by AMX: rows are packed once for all outputs, as whole numbers or as BF16 numbers
#pragma once

#include "matvec.h"
#include "tiles_bf16.h"

#if defined(MINNOW_HAS_AMX)

namespace MINNOW_ISA {

// How rows meet tiles of a format.
struct RowWay {
    int64_t block_bytes;  // of a group of sixteen rows
    int64_t num_groups;   // whose blocks lie side by side
    void (*pack)(const float* x, int64_t row, void* block);  // x [32]
    void (*multiply)(Team& team, const Weight& w, const void* rows, int64_t num_rows, int64_t output, int64_t end,
                     const Result& result);
};

template <class Tile>
inline RowWay row_way(int64_t num_digits, bool is_bf16) {
    const RowWay one = {sizeof(RowTiles<Tile, 1>), 1, pack_row_tile<Tile, 1>, multiply_row_tiles<Tile, 1>};
    const RowWay two = {sizeof(RowTiles<Tile, 2>), 1, pack_row_tile<Tile, 2>, multiply_row_tiles<Tile, 2>};
    const RowWay three = {sizeof(RowTiles<Tile, 3>), 1, pack_row_tile<Tile, 3>, multiply_row_tiles<Tile, 3>};
    const RowWay halves = {sizeof(HalfRows), kHalfGroups, pack_half_row, multiply_half_rows<Tile>};
    return num_digits == 1 ? one : num_digits == 2 ? two : is_bf16 ? halves : three;
}

// Rows packed for weights of one format: [set of groups][block of 32 values][group].
struct PackedTiles {
    RowWay way;
    uint8_t* blocks;
    int64_t num_rows, num_blocks;

    inline int64_t set_rows() const { return way.num_groups * kTileRows; }
    inline int64_t num_sets() const { return (num_rows + set_rows() - 1) / set_rows(); }
    inline int64_t set_bytes() const { return num_blocks * way.num_groups * way.block_bytes; }

    // Value 32 `block` and up of a row.
    inline void pack(const float* x, int64_t row, int64_t block) const {
        const int64_t group = row % set_rows() / kTileRows;
        uint8_t* place = blocks + row / set_rows() * set_bytes();
        way.pack(x, row % kTileRows, place + (block * way.num_groups + group) * way.block_bytes);
    }

    // Sets in parts that stay in the second cache while outputs go by.
    inline int64_t num_parts() const {
        constexpr int64_t kPartBytes = 3 << 19;
        const int64_t fitting = larger(1, kPartBytes / set_bytes());
        return (num_sets() + fitting - 1) / fitting;
    }
    inline int64_t first_set(int64_t part) const { return part * num_sets() / num_parts(); }
    inline int64_t first_row(int64_t part) const { return smaller(num_rows, first_set(part) * set_rows()); }
};

inline PackedTiles take_tiles(Scratch& scratch, const Weight& w, int64_t num_rows, bool is_bf16) {
    const int64_t digits = num_digits(w.format);
    const RowWay way = has_int4_tiles(w.format) ? row_way<Int4Tile>(digits, is_bf16) : row_way<Int8Tile>(digits, is_bf16);
    PackedTiles tiles = {way, nullptr, num_rows, w.width / kBlock};
    tiles.blocks = scratch.take<uint8_t>(tiles.num_sets() * tiles.set_bytes());
    return tiles;
}

// All rows, and zeros up to a whole group.
inline void pack_rows(Team& team, const float* x, int64_t x_stride, const PackedTiles& tiles) {
    constexpr int64_t kPackedBlocks = 8;  // of a group of rows, by one item
    const int64_t num_groups = (tiles.num_rows + kTileRows - 1) / kTileRows;
    const int64_t num_parts = (tiles.num_blocks + kPackedBlocks - 1) / kPackedBlocks;
    team.for_each(num_groups * num_parts, [&](int64_t item) {
        static const float kZeros[kBlock] = {};
        const int64_t group = item / num_parts, part = item % num_parts;
        const int64_t end = (part + 1) * tiles.num_blocks / num_parts;
        for (int64_t b = part * tiles.num_blocks / num_parts; b < end; ++b) {
            for (int64_t row = group * kTileRows; row < (group + 1) * kTileRows; ++row) {
                tiles.pack(row < tiles.num_rows ? x + row * x_stride + b * kBlock : kZeros, row, b);
            }
        }
    });
}

// Rows of a part times outputs [output, end), on the calling thread; result: of the part's first row.
inline void multiply_part(Team& team, const PackedTiles& tiles, int64_t part, const Weight& w, int64_t output,
                          int64_t end, const Result& result) {
    const uint8_t* rows = tiles.blocks + tiles.first_set(part) * tiles.set_bytes();
    tiles.way.multiply(team, w, rows, tiles.first_row(part + 1) - tiles.first_row(part), output, end, result);
}

// Weights of one format, whose outputs stand side by side.
inline void multiply_packed(Team& team, const PackedTiles& tiles, const Weight* weights, int64_t num_weights,
                            const Result& result) {
    int64_t total = 0;
    for (int64_t i = 0; i < num_weights; ++i) total += num_items(weights[i]);
    team.for_each(total * tiles.num_parts(), [&](int64_t item) {
        const Place place = find_item(weights, item % total);
        const int64_t part = item / total;
        multiply_part(team, tiles, part, *place.weight, place.output, place.end,
                      result.from(tiles.first_row(part), place.start + place.output));
    });
}

}  // namespace MINNOW_ISA

#endif
