// the index branch of MSA: every key of the context against the index heads, the best product of each block
#include "../native/index_amx.h"
#include "../native/export.h"

namespace MINNOW_ISA {

constexpr int64_t kIndexSpanRows = 64;
constexpr int64_t kRunKeys = 4096, kLeastRunKeys = 512;  // that an item reads

struct IndexCall {
    const Sequences* sequences;
    const float* q;
    int64_t q_stride, num_heads;
    const Cache* cache;
    float* scores;
    bool is_bf16;

    // Keys of a block that a token sees; negative where it lies before the block.
    inline int64_t count(const Span& span, int64_t token, int64_t block, int64_t length) const {
        return smaller(length, sequences->positions[span.first + token] + int64_t{1} - block * length);
    }

    inline float* place(const Span& span, int64_t row, int64_t block) const {
        return scores + (span.first * num_heads + row) * sequences->num_table_blocks + block;
    }

#if defined(MINNOW_HAS_AMX)
    inline void score_by_tiles(const Queries& queries, Keys& keys, const Rows& rows, int64_t num_rows, int64_t num_keys,
                               float* s, int64_t stride, Tiles& tiles) const {
        tiles.configure(smaller(kTileRows, num_rows));
        tiles.fetch = {keys.ahead, keys.ahead};
        for (int64_t i = 0; i < num_keys; i += kStrip) {
            fill_key_tiles(rows.from(i), kStrip, keys.copy, keys.scales, keys.tile, tiles.fetch);
            tiles.for_rows(num_rows, [&](int64_t r, int64_t) {
                score_tiles(queries.rows + r * queries.stride, queries.num_limbs, rows.width, keys.tile, kStrip,
                            s + r * stride + i, stride, tiles.fetch);
            });
        }
    }
#endif

    // The scores of one block with all rows of a span. s: room for the block's keys, for each. next: a block that is
    // read soon, or -1.
    inline void score_block(const Span& span, const Queries& queries, Keys& keys, int64_t block, int64_t next,
                            float* s, [[maybe_unused]] Tiles& tiles) const {
        const int64_t length = cache->block_length, num_rows = span.num_tokens * num_heads;
        const int64_t num_keys = count(span, span.num_tokens - 1, block, length), stride = round_up(num_keys, kStrip);
        const Rows rows = rows_of(*cache, table_of(*sequences, span)[block], 0, 0);
        keys.ahead = next < 0 ? Ahead{rows.codes, rows.codes} : ahead_of(rows_of(*cache, next, 0, 0), length);
#if defined(MINNOW_HAS_AMX)
        if (queries.num_limbs != 0) score_by_tiles(queries, keys, rows, num_rows, num_keys, s, stride, tiles);
#endif
        for (int64_t i = 0; queries.num_limbs == 0 && i < num_keys; i += keys.num_keys) {
            read_keys(queries, rows.from(i), num_keys - i, num_rows, keys);
            score_keys(queries, 0, num_rows, keys, 1.0f, s + i, stride);
        }
        for (int64_t row = 0; row < num_rows; ++row, s += stride) {
            for (int64_t i = larger(0, count(span, row / num_heads, block, length)); i < stride; ++i) s[i] = -INFINITY;
            F best = load(s);
            bool is_nan = has_nan(best, best);
            for (int64_t i = 0; i < stride; i += kStrip) {
                const F first = load(s + i), second = load(s + i + kLanes);
                is_nan |= has_nan(first, second);
                best = max(best, max(first, second));
            }
            *place(span, row, block) = is_nan ? NAN : max_of(best) * static_cast<float>(cache->global_scale);
        }
    }

#if defined(MINNOW_HAS_AMX)
    static constexpr int64_t kPacked = 2 * kIndexTiles * kTileUnits * kLanes;

    // Groups of up to four heads of a token.
    inline int64_t groups_each() const { return (num_heads + kIndexRows - 1) / kIndexRows; }

    template <class Pack>
    inline uint16_t* pack_groups(Scratch& scratch, const Span& span, int64_t words, Pack&& pack) const {
        uint16_t* packed = scratch.take<uint16_t>(span.num_tokens * groups_each() * words);
        for (int64_t g = 0; g < span.num_tokens * groups_each(); ++g) {
            const int64_t head = g % groups_each() * kIndexRows;
            const float* from = q + (span.first + g / groups_each()) * q_stride + head * cache->width;
            pack(from, smaller(kIndexRows, num_heads - head), packed + g * words);
        }
        return packed;
    }

    // Keys of a block that a group sees.
    inline int64_t seen_of(const Span& span, int64_t group, int64_t block) const {
        return count(span, group / groups_each(), block, cache->block_length);
    }

    inline void put_best(const Span& span, int64_t block, const IndexBest* best, float factor) const {
        for (int64_t row = 0; row < span.num_tokens * num_heads; ++row) {
            const int64_t head = row % num_heads, group = row / num_heads * groups_each() + head / kIndexRows;
            *place(span, row, block) =
                best[group].of(head % kIndexRows, factor * static_cast<float>(cache->global_scale));
        }
    }

    // The same by index_amx.h, NVFP4 keys with BF16 queries; packed: each group. False where scales do not allow it.
    inline bool score_by_groups(const Span& span, const uint16_t* packed, int64_t block, int64_t next,
                                Scratch& scratch) const {
        constexpr int64_t kSums = 2 * kTileRows * kTileUnits;
        const int64_t length = cache->block_length, num_groups = span.num_tokens * groups_each();
        const int64_t num_keys = count(span, span.num_tokens - 1, block, length);
        const Rows rows = rows_of(*cache, table_of(*sequences, span)[block], 0, 0);
        uint32_t* keys = scratch.take<uint32_t>(kIndexTiles * kTileRows * kTileUnits);
        float* sums = scratch.take<float>(2 * num_groups * kSums);
        float* scales = scratch.take<float>(2 * kTileRows * kIndexGroups);
        IndexBest* best = scratch.take<IndexBest>(num_groups);
        for (int64_t g = 0; g < num_groups; ++g) best[g] = {_mm512_set1_ps(-INFINITY), 0};
        const Rows after = next < 0 ? rows : rows_of(*cache, next, 0, 0);
        const __m512i table = e2m1_to_bf16_table();
        for (int64_t i = 0; i < num_keys + kTileRows; i += kTileRows) {  // scales come a step later than products
            const int64_t turn = i / kTileRows % 2;
            if (i < num_keys) {
                ask_for<1>(after.codes_of(i), kTileRows, 64, after.stride);
                ask_for<1>(after.scales_of(i), kTileRows, kIndexGroups, after.scale_stride);
                spread_index_keys(rows.from(i), table, keys);
                if (!spread_index_scales(rows.from(i), scales + turn * kTileRows * kIndexGroups)) return false;
                for (int64_t g = 0; g < num_groups; ++g) {
                    multiply_index_keys(keys, packed + g * kPacked, sums + (turn * num_groups + g) * kSums);
                }
            }
            for (int64_t g = 0; i > 0 && g < num_groups; ++g) {
                const int64_t seen = seen_of(span, g, block) - (i - kTileRows);
                scale_index_keys(sums + ((1 - turn) * num_groups + g) * kSums,
                                 scales + (1 - turn) * kTileRows * kIndexGroups, seen, best[g]);
            }
        }
        put_best(span, block, best, 256.0f);
        return true;
    }

    // The same with the limbs of queries; packed: each group. False where a key is no number.
    template <int64_t kFormat, int kTiles>
    inline bool score_by_limbs(const Span& span, const uint16_t* packed, int64_t block, int64_t next,
                               Scratch& scratch) const {
        constexpr int64_t kKeys = 2 * kTileRows, kSums = kKeys * kTileUnits, kWords = 2 * kTiles * kTileUnits * kLanes;
        const int64_t length = cache->block_length, num_groups = span.num_tokens * groups_each();
        const int64_t num_keys = count(span, span.num_tokens - 1, block, length);
        const Rows rows = rows_of(*cache, table_of(*sequences, span)[block], 0, 0);
        uint32_t* keys = scratch.take<uint32_t>(2 * kTiles * kSums);
        float* sums = scratch.take<float>(2 * num_groups * kSums);
        IndexBest* best = scratch.take<IndexBest>(num_groups);
        for (int64_t g = 0; g < num_groups; ++g) best[g] = {_mm512_set1_ps(-INFINITY), 0};
        Ahead ahead = next < 0 ? Ahead{rows.codes, rows.codes} : ahead_of(rows_of(*cache, next, 0, 0), length);
        const int64_t num_steps = (num_keys + kKeys - 1) / kKeys;
        for (int64_t step = 0; step < num_steps + 2; ++step) {  // what was stored a step before is multiplied, then folded
            if (step < num_steps) {
                const int64_t i = step * kKeys;
                uint32_t* to = keys + step % 2 * kTiles * kSums;
                const int64_t second = smaller(i + kTileRows, num_keys - 1);
                const bool is_read =
                    fill_key_rows<kFormat>(rows.from(i), num_keys - i, ahead, to) &&
                    fill_key_rows<kFormat>(rows.from(second), num_keys - second, ahead, to + kTiles * kSums / 2);
                if (!is_read) return false;
            }
            for (int64_t g = 0; step >= 1 && step <= num_steps && g < num_groups; ++g) {
                multiply_key_rows<kTiles>(keys + (step - 1) % 2 * kTiles * kSums, packed + g * kWords,
                                          sums + ((step - 1) % 2 * num_groups + g) * kSums);
            }
            for (int64_t g = 0; step >= 2 && g < num_groups; ++g) {
                fold_key_rows(sums + (step % 2 * num_groups + g) * kSums,
                              seen_of(span, g, block) - (step - 2) * kKeys, best[g]);
            }
        }
        put_best(span, block, best, 1.0f);
        return true;
    }

    // Whether generated tokens go that way.
    inline bool has_limbs() const {
        return has_tiles(*cache) && (cache->width == 64 || cache->width == 128) && cache->format != kF32;
    }

    inline bool score_by_limbs(const Span& span, const uint16_t* packed, int64_t block, int64_t next,
                               Scratch& scratch) const {
        const bool is_wide = cache->width == 128;
        if (cache->format == kNvfp4) return score_by_limbs<kNvfp4, 4>(span, packed, block, next, scratch);
        if (cache->format == kFp8 && is_wide) return score_by_limbs<kFp8, 4>(span, packed, block, next, scratch);
        if (cache->format == kFp8) return score_by_limbs<kFp8, 2>(span, packed, block, next, scratch);
        if (is_wide) return score_by_limbs<kBf16, 4>(span, packed, block, next, scratch);
        return score_by_limbs<kBf16, 2>(span, packed, block, next, scratch);
    }
#endif

    // Blocks [first, end) of a span's sequence.
    inline void score_run(Team& team, const Span& span, int64_t first, int64_t end) const {
        const int64_t num_rows = span.num_tokens * num_heads;
        const int64_t position = sequences->positions[span.first + span.num_tokens - 1];
        const int64_t last = smaller(end, position / cache->block_length + 1);  // of the blocks that are seen
        if (first < last) {
            Scratch scratch = team.scratch();
            const Queries queries =
                take_queries(scratch, *cache, has_tiles(*cache), span, q, q_stride, 0, num_heads, is_bf16);
            Keys keys = take_keys(scratch, queries);
            Tiles tiles = {};
            float* s = scratch.take<float>(num_rows * round_up(cache->block_length, kStrip));
#if defined(MINNOW_HAS_AMX)
            // Which way a token goes depends on its place in the sequence alone: its scores do not depend on the step.
            const bool by_groups = has_index_tiles(*cache, is_bf16) && num_heads % kIndexRows == 0;
            const bool by_limbs = !by_groups && span.is_generated && has_limbs();
            uint16_t* packed = nullptr;
            if (by_groups) {
                packed = pack_groups(scratch, span, kPacked, [&](const float* from, int64_t heads, uint16_t* to) {
                    pack_index_rows(from, cache->width, heads, to);
                });
            } else if (by_limbs) {
                const int64_t width = cache->width, num_limbs = is_bf16 ? 1 : kLimbs;
                const auto pack = [&](const float* from, int64_t heads, uint16_t* to) {
                    pack_index_limbs(from, width, heads, cache->format, width, num_limbs, to);
                };
                packed = pack_groups(scratch, span, width * kLanes, pack);
            }
#endif
            for (int64_t block = first; block < last; ++block) {
                const int64_t next = block + 1 < last ? table_of(*sequences, span)[block + 1] : -1;
#if defined(MINNOW_HAS_AMX)
                if (packed != nullptr) {
                    Scratch own = team.scratch();
                    tiles.configure(kTileRows);
                    if (by_groups ? score_by_groups(span, packed, block, next, own)
                                  : score_by_limbs(span, packed, block, next, own)) {
                        continue;
                    }
                }
#endif
                score_block(span, queries, keys, block, next, s, tiles);
            }
            tiles.release();
        }
        for (int64_t row = 0; row < num_rows; ++row) {
            for (int64_t block = larger(first, last); block < end; ++block) *place(span, row, block) = -INFINITY;
        }
    }
};

void index_score(Team& team, const Sequences& sequences, const float* q, int64_t q_stride, int64_t num_heads,
                 const Cache& cache, float* scores, bool is_bf16) {
    const IndexCall call = {&sequences, q, q_stride, num_heads, &cache, scores, is_bf16};
    Scratch scratch = team.scratch();
    const Spans spans = cut(scratch, sequences, larger(1, kIndexSpanRows / num_heads));
    const int64_t all_keys = spans.num_spans * sequences.num_table_blocks * cache.block_length;
    const int64_t run_keys = larger(kLeastRunKeys, smaller(kRunKeys, all_keys / (2 * team.num_threads)));
    const int64_t run_blocks = larger(1, run_keys / cache.block_length);
    const int64_t num_runs = (sequences.num_table_blocks + run_blocks - 1) / run_blocks;
    team.for_each(spans.num_spans * num_runs, [&](int64_t item) {
        const int64_t first = item % num_runs * run_blocks;
        call.score_run(team, spans.spans[item / num_runs], first,
                       smaller(first + run_blocks, sequences.num_table_blocks));
    });
}

}  // namespace MINNOW_ISA

// q [T I J], dense; scores [T I M]; is_bf16: q holds BF16 values.
MINNOW_EXPORT(index_score)
(const void* sequences, const void* q, const void* cache, void* scores, int64_t num_heads, int64_t is_bf16) {
    using namespace MINNOW_ISA;
    const Sequences& step = *static_cast<const Sequences*>(sequences);
    const Cache& keys = *static_cast<const Cache*>(cache);
    const int64_t num_scores = step.num_tokens * num_heads * step.num_table_blocks * keys.block_length;
    run(num_scores * keys.width > 100'000, [&](Team& team) {
        index_score(team, step, static_cast<const float*>(q), num_heads * keys.width, num_heads, keys,
                    static_cast<float*>(scores), is_bf16 != 0);
    });
}
