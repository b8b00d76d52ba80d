// the best-scored blocks of each row: one scan that looks closer only where a score beats the worst one kept
#include <math.h>

#include "../native/export.h"
#include "../native/operations.h"
#include "../native/simd.h"

namespace MINNOW_ISA {

// Scores as integers in their order: NaN above infinity, the two zeros equal.
inline uint32_t rank_of(float score) {
    if (score != score) return 0xffffffffu;
    score += 0.0f;
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct Kept {
    int32_t* blocks;
    uint32_t* ranks;
    int64_t num_wanted, num_kept;
    int64_t worst;  // place of the lowest rank, the last of equal ones; once all places are taken

    // Blocks come in ascending order, so that an equal one never displaces one that is kept.
    inline void offer(int64_t block, float score) {
        const uint32_t rank = rank_of(score);
        if (num_kept < num_wanted) {
            blocks[num_kept] = static_cast<int32_t>(block);
            ranks[num_kept++] = rank;
            if (num_kept < num_wanted) return;
        } else if (rank > ranks[worst]) {
            for (int64_t i = worst; i + 1 < num_wanted; ++i) {  // what is kept stays ascending
                blocks[i] = blocks[i + 1];
                ranks[i] = ranks[i + 1];
            }
            blocks[num_wanted - 1] = static_cast<int32_t>(block);
            ranks[num_wanted - 1] = rank;
        } else {
            return;
        }
        worst = 0;
        for (int64_t i = 1; i < num_wanted; ++i) worst = ranks[i] <= ranks[worst] ? i : worst;
    }
};

inline void choose(const float* scores, int64_t num_visible, int64_t num_init, int64_t first_local, Kept kept) {
    const auto is_forced = [&](int64_t block) { return block < num_init || block >= first_local; };
    const auto offer = [&](int64_t block) { kept.offer(block, is_forced(block) ? INFINITY : scores[block]); };
    const int64_t end = first_local < num_visible ? first_local : num_visible;  // of blocks that no rule forces
    int64_t block = kept.num_wanted > 0 ? 0 : num_visible;
    while (block < num_visible) {
        const bool is_plain = kept.num_kept == kept.num_wanted && block >= num_init && block + kLanes <= end;
        if (!is_plain) {
            offer(block++);
            continue;
        }
        const uint32_t worst = kept.ranks[kept.worst];
        uint32_t bits = worst >> 31 ? worst & 0x7fffffffu : ~worst;
        float limit;
        memcpy(&limit, &bits, sizeof limit);
        if (worst == 0xffffffffu || !has_above(load(scores + block), limit)) {
            block += kLanes;
            continue;
        }
        for (int64_t i = 0; i < kLanes; ++i) offer(block++);
    }
    for (int64_t i = kept.num_kept; i < kept.num_wanted; ++i) kept.blocks[i] = -1;
}

void block_topk(Team& team, const float* scores, int64_t num_tokens, int64_t num_heads, int64_t num_table_blocks,
                const int32_t* positions, int64_t num_blocks, int64_t block_size, int64_t num_local_blocks,
                int64_t num_init_blocks, int32_t* blocks) {
    team.for_each(num_tokens * num_heads, [&](int64_t row) {
        Scratch scratch = team.scratch();
        const int64_t local = positions[row / num_heads] / block_size;
        const int64_t num_visible = local + 1 < num_table_blocks ? local + 1 : num_table_blocks;
        choose(scores + row * num_table_blocks, num_visible, num_init_blocks, local - num_local_blocks + 1,
               {blocks + row * num_blocks, scratch.take<uint32_t>(num_blocks), num_blocks, 0, 0});
    });
}

}  // namespace MINNOW_ISA

// scores [T I M]; blocks [T I K], ascending, -1 in unused places.
MINNOW_EXPORT(block_topk)
(const void* scores, const void* positions, void* blocks, int64_t num_tokens, int64_t num_heads,
 int64_t num_table_blocks, int64_t num_blocks, int64_t block_size, int64_t num_local_blocks,
 int64_t num_init_blocks) {
    using namespace MINNOW_ISA;
    run(num_tokens * num_heads * num_table_blocks > 200'000, [&](Team& team) {
        block_topk(team, static_cast<const float*>(scores), num_tokens, num_heads, num_table_blocks,
                   static_cast<const int32_t*>(positions), num_blocks, block_size, num_local_blocks, num_init_blocks,
                   static_cast<int32_t*>(blocks));
    });
}
