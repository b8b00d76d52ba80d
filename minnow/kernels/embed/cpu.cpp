// rows of the embedding table, decoded on the way
#include <math.h>

#include "../native/export.h"
#include "../native/heads.h"
#include "../native/tiles.h"

namespace MINNOW_ISA {

template <class Reader>
static inline void decode_row(const Reader& reader, int64_t width, float* y) {
    int64_t k = 0;
    for (; k + kChunk <= width; k += kChunk) {
        F first, second;
        reader.read(k / kChunk, first, second);
        if (Reader::kIsSplit) {
            float even[kLanes], odd[kLanes];
            store(even, first);
            store(odd, second);
            for (int64_t j = 0; j < kLanes; ++j) {
                y[k + 2 * j] = even[j];
                y[k + 2 * j + 1] = odd[j];
            }
        } else {
            store(y + k, first);
            store(y + k + kLanes, second);
        }
    }
    for (; k < width; ++k) y[k] = reader.at(k);
}

void embed(Team& team, const int32_t* ids, int64_t num_tokens, const Weight& table, float* x, bool is_bf16) {
    const auto each = [&](auto&& decode) {
        team.for_each(num_tokens, [&](int64_t token) {
            float* y = x + token * table.width;
            if (ids[token] < 0 || ids[token] >= table.num_rows) {  // nothing to read there; NaN is noticed downstream
                for (int64_t k = 0; k < table.width; ++k) y[k] = NAN;
                return;
            }
            decode(ids[token], y);
            if (is_bf16) round_row(y, table.width);
        });
    };
    if (is_tiled(table.format)) {
        return each([&](int64_t id, float* y) {
            if (has_int4_tiles(table.format)) {
                decode_tiled_row<Int4Tile>(table, id, y);
            } else {
                decode_tiled_row<Int8Tile>(table, id, y);
            }
        });
    }
    Scratch memory = team.scratch();
    float* space = memory.take<float>(reader_scratch(table.width));
    with_reader(table, space, [&](auto reader) {
        each([&](int64_t id, float* y) {
            reader.prepare(id, 1);
            reader.start(id);
            decode_row(reader, table.width, y);
        });
    });
}

}  // namespace MINNOW_ISA

// ids i32 [num_tokens]; x f32 [num_tokens width].
MINNOW_EXPORT(embed)(const void* ids, const void* table, void* x, int64_t num_tokens) {
    using namespace MINNOW_ISA;
    const Weight& weight = *static_cast<const Weight*>(table);
    run(num_tokens > 1 && num_tokens * weight.width > 50'000, [&](Team& team) {
        embed(team, static_cast<const int32_t*>(ids), num_tokens, weight, static_cast<float*>(x), false);
    });
}
