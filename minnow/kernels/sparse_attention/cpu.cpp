// attention over chosen blocks: the rows of a span share a block that several of them chose
#include "../native/attention.h"
#include "../native/export.h"

namespace MINNOW_ISA {

constexpr int64_t kSpanTokens = 16;
constexpr int64_t kSharedRows = 256;  // of a span at most: their state stays in the second-level cache

// A block, and the tokens of the span that chose it and see some of it.
struct Choice {
    int32_t block;
    int32_t num_tokens;
    int32_t tokens[kSpanTokens];
    int32_t counts[kSpanTokens];
};

struct Choices {
    Choice* choices;
    int64_t num_choices;
};

struct SparseCall {
    const Sequences* sequences;
    const Attention* attention;  // to prompts, and to what was generated
    const float* q;
    int64_t q_stride;
    const int32_t* blocks;  // null: all that a token sees, num_blocks at most
    int64_t num_blocks;
    float* out;
    int64_t out_stride;

    inline const Attention& way(const Span& span) const { return attention[span.is_generated]; }

    inline int64_t num_rows(const Span& span) const { return span.num_tokens * attention->num_heads; }

    // The union of what the span's tokens chose for a key/value head, ascending. Each row's own blocks are thus in
    // their order, whatever others chose. A block that begins behind its token is not read.
    inline Choices choices(Scratch& scratch, const Span& span, int64_t head) const {
        const int64_t length = attention->k->block_length, num_words = (sequences->num_table_blocks + 63) / 64;
        Choice* list = scratch.take<Choice>(span.num_tokens * num_blocks);
        uint64_t* words = scratch.take<uint64_t>(num_words);
        memset(words, 0, num_words * sizeof *words);
        const int32_t* chosen[kSpanTokens];
        for (int64_t t = 0; t < span.num_tokens; ++t) {
            const int64_t token = span.first + t, local = sequences->positions[token] / length;
            chosen[t] = blocks == nullptr ? nullptr : blocks + (token * attention->k->num_heads + head) * num_blocks;
            for (int64_t j = 0; j < num_blocks; ++j) {
                const int64_t block = blocks == nullptr ? j : chosen[t][j];
                if (block >= 0 && block <= local) words[block / 64] |= uint64_t{1} << block % 64;
            }
        }
        int64_t num_choices = 0;
        for (int64_t w = 0; w < num_words; ++w) {
            for (uint64_t bits = words[w]; bits != 0; bits &= bits - 1) {
                Choice& choice = list[num_choices++];
                choice.block = static_cast<int32_t>(w * 64 + __builtin_ctzll(bits));
                choice.num_tokens = 0;
                for (int64_t t = 0; t < span.num_tokens; ++t) {
                    bool is_chosen = blocks == nullptr;
                    for (int64_t j = 0; j < num_blocks && !is_chosen; ++j) is_chosen = chosen[t][j] == choice.block;
                    const int64_t count = sequences->positions[span.first + t] + int64_t{1} - choice.block * length;
                    if (!is_chosen || count <= 0) continue;
                    choice.tokens[choice.num_tokens] = static_cast<int32_t>(t);
                    choice.counts[choice.num_tokens++] = static_cast<int32_t>(smaller(count, length));
                }
            }
        }
        return {list, num_choices};
    }

    inline Queries queries(Scratch& scratch, const Span& span, int64_t head) const {
        const int64_t num_heads = attention->num_heads;
        return take_queries(scratch, *attention->k, way(span).has_tiles, span, q, q_stride, head * num_heads, num_heads,
                            attention->is_bf16);
    }

    // A block's part for those who chose it; `state` has their rows alone. The choice behind it, unless it is `end`,
    // will be read soon.
    inline void attend_choice(Team& team, const Span& span, const Queries& queries, int64_t head, const Choice* choice,
                              const Choice* end, Tiles& tiles, const State& state) const {
        const int64_t length = attention->k->block_length;
        const int32_t* table = table_of(*sequences, span);
        const int64_t block = table[choice->block];
        const Rows next = choice + 1 < end ? rows_of(*attention->k, table[choice[1].block], head, 0) : Rows{};
        clear(state, choice->num_tokens * attention->num_heads);
        for (int64_t start = 0; start < length; start += kPanel) {
            int32_t tokens[kSpanTokens], counts[kSpanTokens];
            int64_t num_tokens = 0;
            for (int64_t i = 0; i < choice->num_tokens; ++i) {
                if (choice->counts[i] <= start) continue;
                tokens[num_tokens] = choice->tokens[i];
                counts[num_tokens++] = static_cast<int32_t>(smaller(choice->counts[i] - start, kPanel));
            }
            // Positions ascend: those who see a later part of the block are the last ones.
            if (num_tokens == 0) return;
            attend(team, way(span), queries, tokens, counts, nullptr, num_tokens, block, head, start, next,
                   tiles, state.from((choice->num_tokens - num_tokens) * attention->num_heads));
        }
    }

    // Add a block's part to the states of those who chose it.
    inline void fold_choice(const Choice& choice, const State& state, const State& part) const {
        const int64_t num_heads = attention->num_heads;
        for (int64_t i = 0; i < choice.num_tokens; ++i) {
            fold(state.from(choice.tokens[i] * num_heads), part.from(i * num_heads), num_heads);
        }
    }

    inline void finish(const Span& span, int64_t head, const Choices& choices, const State& state) const {
        const int64_t row_floats = attention->num_heads * attention->v->width;
        float* place = out + span.first * out_stride + head * row_floats;
        finish_rows(way(span), state, span.num_tokens, place, out_stride);
        bool is_any[kSpanTokens] = {};
        for (int64_t c = 0; c < choices.num_choices; ++c) {
            const Choice& choice = choices.choices[c];
            for (int64_t i = 0; i < choice.num_tokens; ++i) is_any[choice.tokens[i]] = true;
        }
        for (int64_t t = 0; t < span.num_tokens; ++t) {
            if (!is_any[t]) memset(place + t * out_stride, 0, row_floats * sizeof *place);
        }
    }
};

// Every (span, head) is an item.
inline void attend_spans(Team& team, const SparseCall& call, const Spans& spans) {
    const int64_t num_groups = call.attention->k->num_heads;
    team.for_each(spans.num_spans * num_groups, [&](int64_t item) {
        Scratch scratch = team.scratch();
        const Span& span = spans.spans[item / num_groups];
        const int64_t head = item % num_groups;
        const Choices choices = call.choices(scratch, span, head);
        const Queries queries = call.queries(scratch, span, head);
        const State state = take_state(scratch, call.num_rows(span), call.attention->v->width);
        const State part = take_state(scratch, call.num_rows(span), call.attention->v->width);
        clear(state, call.num_rows(span));
        Tiles tiles = {};
        for (int64_t c = 0; c < choices.num_choices; ++c) {
            const Choice* choice = choices.choices + c;
            call.attend_choice(team, span, queries, head, choice, choices.choices + choices.num_choices, tiles,
                               part);
            call.fold_choice(choices.choices[c], state, part);
        }
        tiles.release();
        call.finish(span, head, choices, state);
    });
}

// Few spans: every (span, head, block) is an item of its own; a second loop folds, in the same order.
inline void attend_blocks(Team& team, const SparseCall& call, const Spans& spans) {
    const int64_t num_groups = call.attention->k->num_heads, num_heads = call.attention->num_heads;
    const int64_t num_parts = spans.num_spans * num_groups, width = round_up(call.attention->v->width, kLanes);
    Scratch own = team.scratch();
    Choices* choices = own.take<Choices>(num_parts);
    int64_t* starts = own.take<int64_t>(num_parts + 1);
    starts[0] = 0;
    int64_t num_rows = 0;
    for (int64_t p = 0; p < num_parts; ++p) {
        choices[p] = call.choices(own, spans.spans[p / num_groups], p % num_groups);
        starts[p + 1] = starts[p] + choices[p].num_choices;
        for (int64_t c = 0; c < choices[p].num_choices; ++c) num_rows += choices[p].choices[c].num_tokens * num_heads;
    }
    int64_t* row_starts = own.take<int64_t>(starts[num_parts] + 1);
    row_starts[0] = 0;
    for (int64_t p = 0, i = 0; p < num_parts; ++p) {
        for (int64_t c = 0; c < choices[p].num_choices; ++c, ++i) {
            row_starts[i + 1] = row_starts[i] + choices[p].choices[c].num_tokens * num_heads;
        }
    }
    Scratch shared = team.shared();
    const State parts = take_state(shared, num_rows, width);
    const int64_t num_items = starts[num_parts], num_runs = smaller(num_items, 4 * team.num_threads);
    team.for_each(num_runs, [&](int64_t run) {  // runs of items: a thread knows what it reads next
        Tiles tiles = {};
        const int64_t last = num_items * (run + 1) / num_runs;
        for (int64_t item = num_items * run / num_runs, end; item < last; item = end) {
            Scratch scratch = team.scratch();
            const int64_t p = range_of(starts, num_parts, item), head = p % num_groups;
            end = smaller(last, starts[p + 1]);
            const Span& span = spans.spans[p / num_groups];
            const Queries queries = call.queries(scratch, span, head);
            const Choice *choice = choices[p].choices + (item - starts[p]), *behind = choice + (end - item);
            for (; choice < behind; ++choice, ++item) {
                call.attend_choice(team, span, queries, head, choice, behind, tiles, parts.from(row_starts[item]));
            }
        }
        tiles.release();
    });
    team.for_each(num_parts, [&](int64_t p) {
        Scratch scratch = team.scratch();
        const Span& span = spans.spans[p / num_groups];
        const State state = take_state(scratch, call.num_rows(span), width);
        clear(state, call.num_rows(span));
        for (int64_t c = 0; c < choices[p].num_choices; ++c) {
            call.fold_choice(choices[p].choices[c], state, parts.from(row_starts[starts[p] + c]));
        }
        call.finish(span, p % num_groups, choices[p], state);
    });
}

void sparse_attention(Team& team, const Sequences& sequences, const float* q, int64_t q_stride, int64_t num_heads,
                      const Cache& k, const Cache& v, const int32_t* blocks, int64_t num_blocks, float scale,
                      float* out, int64_t out_stride, bool is_bf16) {
    const Attention attention[2] = {attention_of(k, v, num_heads, scale, is_bf16),
                                    attention_of(k, v, num_heads, scale, is_bf16, tokens_by_tiles(k, num_heads, is_bf16))};
    const SparseCall call = {&sequences, attention, q, q_stride, blocks, num_blocks, out, out_stride};
    Scratch scratch = team.scratch();
    const int64_t span_tokens = smaller(kSpanTokens, larger(1, kSharedRows / attention->num_heads));
    const Spans spans = cut(scratch, sequences, span_tokens);
    if (spans.num_spans * k.num_heads < 4 * team.num_threads) {
        attend_blocks(team, call, spans);
    } else {
        attend_spans(team, call, spans);
    }
}

}  // namespace MINNOW_ISA

// q, out [T N H], blocks [T G K], dense; is_bf16: q holds BF16 values, and out is rounded to them.
MINNOW_EXPORT(sparse_attention)
(const void* sequences, const void* q, const void* k, const void* v, const void* blocks, void* out, int64_t num_heads,
 int64_t num_blocks, float scale, int64_t is_bf16) {
    using namespace MINNOW_ISA;
    const Sequences& step = *static_cast<const Sequences*>(sequences);
    const Cache& keys = *static_cast<const Cache*>(k);
    const int64_t stride = num_heads * keys.width;
    run(step.num_tokens * num_heads * num_blocks * keys.block_length * keys.width > 100'000, [&](Team& team) {
        sparse_attention(team, step, static_cast<const float*>(q), stride, num_heads, keys,
                         *static_cast<const Cache*>(v), static_cast<const int32_t*>(blocks), num_blocks, scale,
                         static_cast<float*>(out), stride, is_bf16 != 0);
    });
}
