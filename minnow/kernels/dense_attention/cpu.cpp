// causal attention: the context of a sequence in chunks that threads share, folded in their order
#include "../native/attention.h"
#include "../native/export.h"

namespace MINNOW_ISA {

// Where chunks begin depends on nothing but the position, so that a row's sums have one order whatever the batch, the
// team and the split. Few chunks at first leave work for two threads; later ones are longer, to fold less.
constexpr int64_t kShortChunk = 512, kLongChunk = 4096, kNumShort = 16, kLongFrom = kShortChunk * kNumShort;
constexpr int64_t kSpanRows = 64;
constexpr int64_t kMaxSplitFloats = int64_t{2} << 20;  // of partial results that stay in the cache between two loops

inline int64_t chunk_start(int64_t chunk) {
    return chunk <= kNumShort ? chunk * kShortChunk : kLongFrom + (chunk - kNumShort) * kLongChunk;
}
inline int64_t count_chunks(int64_t num_keys) {
    if (num_keys <= kLongFrom) return (num_keys + kShortChunk - 1) / kShortChunk;
    return kNumShort + (num_keys - kLongFrom + kLongChunk - 1) / kLongChunk;
}

struct DenseCall {
    const Sequences* sequences;
    const Attention* attention;  // to prompts, and to what was generated
    const float* q;
    int64_t q_stride;
    float* out;
    int64_t out_stride;

    inline const Attention& way(const Span& span) const { return attention[span.is_generated]; }

    inline int64_t num_rows(const Span& span) const { return span.num_tokens * attention->num_heads; }

    // Keys that the last token of a span sees.
    inline int64_t num_keys(const Span& span) const {
        return sequences->positions[span.first + span.num_tokens - 1] + int64_t{1};
    }

    inline Queries queries(Scratch& scratch, const Span& span, int64_t head) const {
        const int64_t num_heads = attention->num_heads;
        return take_queries(scratch, *attention->k, way(span).has_tiles, span, q, q_stride, head * num_heads, num_heads,
                            attention->is_bf16);
    }

    // The keys of a chunk, as far as they lie in its first block.
    inline Rows first_keys(const Span& span, int64_t head, int64_t chunk) const {
        const int64_t start = chunk_start(chunk), length = attention->k->block_length;
        return rows_of(*attention->k, table_of(*sequences, span)[start / length], head, start % length);
    }

    // after: keys that the same thread reads then, if it is known.
    inline void attend_chunk(Team& team, const Span& span, const Queries& queries, int64_t head, int64_t chunk,
                             const Rows& after, Tiles& tiles, const State& state) const {
        Scratch scratch = team.scratch();
        int32_t* tokens = scratch.take<int32_t>(span.num_tokens);
        int32_t* counts = scratch.take<int32_t>(span.num_tokens);
        const int32_t* first_keys = sequences->first_keys;
        int32_t* skips = first_keys == nullptr ? nullptr : scratch.take<int32_t>(span.num_tokens);
        const int64_t length = attention->k->block_length;
        const int64_t end = smaller(chunk_start(chunk + 1), num_keys(span));
        clear(state, num_rows(span));
        for (int64_t start = chunk_start(chunk), next; start < end; start = next) {
            next = smaller(smaller(start + kPanel, end), (start / length + 1) * length);
            if (first_keys != nullptr && next <= first_keys[span.first]) continue;  // the first token's is the lowest
            int64_t num_tokens = 0;
            for (int64_t t = 0; t < span.num_tokens; ++t) {
                const int64_t count = sequences->positions[span.first + t] + int64_t{1} - start;
                if (count <= 0) continue;
                if (skips != nullptr) {
                    const int64_t skipped = larger(0, first_keys[span.first + t] - start);
                    skips[num_tokens] = static_cast<int32_t>(smaller(skipped, next - start));
                }
                tokens[num_tokens] = static_cast<int32_t>(t);
                counts[num_tokens++] = static_cast<int32_t>(smaller(count, next - start));
            }
            // Positions ascend: the tokens that see any of it are the span's last ones.
            const State seen = state.from((span.num_tokens - num_tokens) * attention->num_heads);
            const int32_t* table = table_of(*sequences, span);
            attend(team, way(span), queries, tokens, counts, skips, num_tokens, table[start / length], head,
                   start % length,
                   next < end ? rows_of(*attention->k, table[next / length], head, next % length) : after, tiles, seen);
        }
    }

    inline void finish(const Span& span, int64_t head, const State& state) const {
        float* place = out + span.first * out_stride + head * attention->num_heads * attention->k->width;
        finish_rows(way(span), state, span.num_tokens, place, out_stride);
    }
};

// Every (span, head, chunk) is an item; a thread takes runs of them, to know what it reads next. A second loop folds.
inline void attend_split(Team& team, const DenseCall& call, const Spans& spans, const int64_t* item_starts,
                         const int64_t* float_starts) {
    Scratch shared = team.shared();
    const int64_t num_groups = call.attention->k->num_heads, num_spans = spans.num_spans;
    const int64_t width = round_up(call.attention->v->width, kLanes);
    float* memory = shared.take<float>(float_starts[num_spans]);
    const auto partial = [&](int64_t t, int64_t part) {
        const int64_t num_rows = call.num_rows(spans.spans[t]);
        float* place = memory + float_starts[t] + part * num_rows * (width + 2);
        return State{place + num_rows * width, place + num_rows * (width + 1), place, width};
    };
    const auto chunks_of = [&](int64_t t) { return (item_starts[t + 1] - item_starts[t]) / num_groups; };
    const int64_t num_items = item_starts[num_spans];
    const int64_t num_runs = larger(2 * team.num_threads, smaller(8 * team.num_threads, num_items / 8));
    team.for_each(num_runs, [&](int64_t run) {
        Tiles tiles = {};
        const int64_t end = num_items * (run + 1) / num_runs;
        for (int64_t item = num_items * run / num_runs; item < end; ++item) {
            Scratch scratch = team.scratch();
            const int64_t t = range_of(item_starts, num_spans, item), part = item - item_starts[t];
            const int64_t head = part / chunks_of(t), chunk = part % chunks_of(t);
            const Span& span = spans.spans[t];
            Rows after = {};
            if (item + 1 < end && item + 1 < item_starts[t + 1]) {
                after = call.first_keys(span, (part + 1) / chunks_of(t), (part + 1) % chunks_of(t));
            }
            const Queries queries = call.queries(scratch, span, head);
            call.attend_chunk(team, span, queries, head, chunk, after, tiles, partial(t, part));
        }
        tiles.release();
    });
    team.for_each(num_spans * num_groups, [&](int64_t item) {
        const int64_t t = item / num_groups, head = item % num_groups, start = head * chunks_of(t);
        const State state = partial(t, start);
        for (int64_t c = 1; c < chunks_of(t); ++c) fold(state, partial(t, start + c), call.num_rows(spans.spans[t]));
        call.finish(spans.spans[t], head, state);
    });
}

// Every (span, head) is an item, those with the longest context first.
inline void attend_whole(Team& team, const DenseCall& call, const Spans& spans) {
    const int64_t num_groups = call.attention->k->num_heads, num_items = spans.num_spans * num_groups;
    team.for_each(num_items, [&](int64_t item) {
        Scratch scratch = team.scratch();
        const int64_t from_behind = num_items - 1 - item, head = from_behind % num_groups;
        const Span& span = spans.spans[from_behind / num_groups];
        const Queries queries = call.queries(scratch, span, head);
        const State state = take_state(scratch, call.num_rows(span), call.attention->v->width);
        const State next = take_state(scratch, call.num_rows(span), call.attention->v->width);
        const int64_t num_chunks = count_chunks(call.num_keys(span));
        Tiles tiles = {};
        for (int64_t c = 0; c < num_chunks; ++c) {
            const Rows after = c + 1 < num_chunks ? call.first_keys(span, head, c + 1) : Rows{};
            call.attend_chunk(team, span, queries, head, c, after, tiles, c == 0 ? state : next);
            if (c > 0) fold(state, next, call.num_rows(span));
        }
        tiles.release();
        call.finish(span, head, state);
    });
}

void dense_attention(Team& team, const Sequences& sequences, const float* q, int64_t q_stride, int64_t num_heads,
                     const Cache& k, const Cache& v, float scale, float* out, int64_t out_stride, bool is_bf16) {
    const Attention attention[2] = {attention_of(k, v, num_heads, scale, is_bf16),
                                    attention_of(k, v, num_heads, scale, is_bf16, tokens_by_tiles(k, num_heads, is_bf16))};
    const DenseCall call = {&sequences, attention, q, q_stride, out, out_stride};
    Scratch scratch = team.scratch();
    const Spans spans = cut(scratch, sequences, larger(1, kSpanRows / attention->num_heads));
    int64_t* item_starts = scratch.take<int64_t>(spans.num_spans + 1);
    int64_t* float_starts = scratch.take<int64_t>(spans.num_spans + 1);
    item_starts[0] = float_starts[0] = 0;
    for (int64_t t = 0; t < spans.num_spans; ++t) {
        const int64_t num_items = k.num_heads * count_chunks(call.num_keys(spans.spans[t]));
        item_starts[t + 1] = item_starts[t] + num_items;
        float_starts[t + 1] =
            float_starts[t] + num_items * call.num_rows(spans.spans[t]) * (round_up(v.width, kLanes) + 2);
    }
    const bool is_small = float_starts[spans.num_spans] <= kMaxSplitFloats;
    if (is_small || spans.num_spans * k.num_heads < 4 * team.num_threads) {
        attend_split(team, call, spans, item_starts, float_starts);
    } else {
        attend_whole(team, call, spans);
    }
}

}  // namespace MINNOW_ISA

// q, out [T N H], dense; is_bf16: q holds BF16 values, and out is rounded to them.
MINNOW_EXPORT(dense_attention)
(const void* sequences, const void* q, const void* k, const void* v, void* out, int64_t num_heads, float scale,
 int64_t is_bf16) {
    using namespace MINNOW_ISA;
    const Sequences& step = *static_cast<const Sequences*>(sequences);
    const Cache& keys = *static_cast<const Cache*>(k);
    const int64_t stride = num_heads * keys.width;
    const int64_t num_scores = step.num_tokens * num_heads * step.num_table_blocks * keys.block_length;
    run(num_scores * keys.width > 100'000, [&](Team& team) {
        dense_attention(team, step, static_cast<const float*>(q), stride, num_heads, keys,
                        *static_cast<const Cache*>(v), scale, static_cast<float*>(out), stride, is_bf16 != 0);
    });
}
