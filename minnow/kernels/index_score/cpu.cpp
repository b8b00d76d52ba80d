// the index branch of MSA: every key of the context against the index heads, the best product of each block
#include "../native/queries.h"
#include "../native/export.h"

namespace MINNOW_ISA {

constexpr int64_t kIndexSpanRows = 64;
constexpr int64_t kRunKeys = 4096;  // that an item reads

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
        for (int64_t i = 0; i < num_keys; i += kStrip) {
            fill_key_tiles(rows.from(i), kStrip, keys.copy, keys.scales, keys.tile, keys.ahead);
            tiles.for_rows(num_rows, [&](int64_t r, int64_t) {
                score_tiles(queries.rows + r * queries.stride, queries.num_limbs, rows.width, keys.tile, kStrip,
                            s + r * stride + i, stride);
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

    // Blocks [first, end) of a span's sequence.
    inline void score_run(Team& team, const Span& span, int64_t first, int64_t end) const {
        const int64_t num_rows = span.num_tokens * num_heads;
        const int64_t position = sequences->positions[span.first + span.num_tokens - 1];
        const int64_t last = smaller(end, position / cache->block_length + 1);  // of the blocks that are seen
        if (first < last) {
            Scratch scratch = team.scratch();
            const Queries queries = take_queries(scratch, *cache, span, q, q_stride, 0, num_heads, is_bf16);
            Keys keys = take_keys(scratch, queries);
            Tiles tiles = {0};
            float* s = scratch.take<float>(num_rows * round_up(cache->block_length, kStrip));
            for (int64_t block = first; block < last; ++block) {
                const int64_t next = block + 1 < last ? table_of(*sequences, span)[block + 1] : -1;
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
    const int64_t run_blocks = larger(1, kRunKeys / cache.block_length);
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
