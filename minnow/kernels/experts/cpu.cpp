// gated feed-forwards of the chosen experts: tokens grouped by expert, gate and up and activation in one pass
#include "../native/export.h"
#include "../native/half_rows.h"
#include "../native/row_tiles.h"

namespace MINNOW_ISA {

// silu(gate) * up, or MiniMax's clamped unit; in place of gate.
static void activate(float* gate, const float* up, int64_t count, const Activation& kind, bool is_bf16) {
    const F one = broadcast(1.0f), limit = broadcast(static_cast<float>(kind.limit));
    const F alpha = broadcast(static_cast<float>(kind.is_swigluoai ? kind.alpha : 1.0));
    const F beta = broadcast(static_cast<float>(kind.beta));
    for (int64_t i = 0; i < count; i += kLanes) {  // callers pad to whole vectors
        F g = load(gate + i), u = load(up + i);
        if (is_bf16) {
            g = round_bf16(g);
            u = round_bf16(u);
        }
        if (kind.is_swigluoai) {
            g = min(limit, g);  // in this order a NaN stays
            u = max(zero() - limit, min(limit, u)) + beta;
        }
        const F inner = u * (g / (one + exp(min(broadcast(88.0f), zero() - alpha * g))));
        store(gate + i, is_bf16 ? round_bf16(inner) : inner);
    }
}

// The tokens of each expert: pairs [start[e], start[e + 1]) name a token and its weight.
struct Groups {
    int64_t* start;
    int64_t* token;
    float* weight;
};

static void group_by_expert(const int64_t* ids, const float* weights, int64_t num_tokens, int64_t num_chosen,
                            int64_t num_experts, const Groups& groups) {
    for (int64_t e = 0; e <= num_experts; ++e) groups.start[e] = 0;
    for (int64_t i = 0; i < num_tokens * num_chosen; ++i) ++groups.start[ids[i] + 1];
    for (int64_t e = 0; e < num_experts; ++e) groups.start[e + 1] += groups.start[e];
    for (int64_t i = 0; i < num_tokens * num_chosen; ++i) {
        const int64_t place = groups.start[ids[i]]++;
        groups.token[place] = i / num_chosen;
        groups.weight[place] = weights[i];
    }
    for (int64_t e = num_experts; e > 0; --e) groups.start[e] = groups.start[e - 1];  // undo the counting up
    groups.start[0] = 0;
}

// Rows of the inner width that one item computes.
static inline int64_t inner_step(const Expert& expert) {
    return round_up(kItemBytes / (2 * row_bytes(expert.gate) + 1) + 1, kChunk);
}

// One item of gate and up: inner values [output, output + inner_step) of some rows, which part 0 and 1 want in orders.
static void inner_part(Team& team, const Expert& expert, int64_t output, const Order* orders,
                       const float* const (*rows)[kMaxFewRows], int64_t num_rows, const Activation& activation,
                       bool is_bf16, float* inner, int64_t inner_stride) {
    const int64_t step = inner_step(expert);
    const int64_t end = output + step < expert.gate.num_rows ? output + step : expert.gate.num_rows;
    Scratch memory = team.scratch();
    float* sums[2] = {memory.take<float>(num_rows * step), memory.take<float>(num_rows * step)};
    const Weight* parts[2] = {&expert.gate, &expert.up};
    for (int part = 0; part < 2; ++part) {
        const Result result = {sums[part] - output, step, false, false};
        multiply_few(team, *parts[part], orders[part], rows[part], num_rows, output, end, result);
    }
    for (int64_t i = 0; i < num_rows; ++i) {
        float* gate = sums[0] + i * step;
        activate(gate, sums[1] + i * step, round_up(end - output, kLanes), activation, is_bf16);
        for (int64_t j = 0; j < end - output; ++j) inner[i * inner_stride + output + j] = gate[j];
    }
}

// Experts with few tokens: one pass over gate and up, one over down; items of all experts stand in one queue.
class FewTokens {
public:
    FewTokens(const Expert* table, int64_t num_experts, const Groups& groups, const Activation& activation,
              bool is_bf16)
        : table_(table), num_experts_(num_experts), groups_(groups), activation_(activation), is_bf16_(is_bf16) {}

    // Rows are packed once for all, as the first expert's formats ask; one of other formats is for many_tokens.
    inline bool has(int64_t e) const {
        const int64_t count = groups_.start[e + 1] - groups_.start[e];
        return count > 0 && count <= few_rows(table_[0].gate.format, is_bf16_) &&
               is_alike(table_[e].gate, table_[0].gate) && is_alike(table_[e].up, table_[0].up) &&
               is_alike(table_[e].down, table_[0].down);
    }

    // x: for gate and for up a pointer a token, packed in its order; inner [pairs, inner_stride].
    void gate_and_up(Team& team, const Order* orders, const float* const* const* x, float* inner,
                     int64_t inner_stride) const {
        int64_t total = 0;
        for (int64_t e = 0; e < num_experts_; ++e) total += has(e) ? items_of(e) : 0;
        team.for_each(total, [&](int64_t item) {
            int64_t e = 0;
            for (; !has(e) || item >= items_of(e); ++e) item -= has(e) ? items_of(e) : 0;
            gate_and_up_item(team, e, item * inner_step(table_[e]), orders, x, inner, inner_stride);
        });
    }

    // inner: a pointer a pair, packed in order. Adds to sums [num_tokens, width], outputs [output, end), expert after
    // expert.
    void down(Team& team, Order order, const float* const* inner, int64_t output, int64_t end, float* sums,
              int64_t sums_stride) const {
        for (int64_t e = 0; e < num_experts_; ++e) {
            if (!has(e)) continue;
            const int64_t first = groups_.start[e], count = groups_.start[e + 1] - first;
            const auto put = [&](int64_t row, int64_t at, float sum) {
                sums[groups_.token[first + row] * sums_stride + at - output] += groups_.weight[first + row] * sum;
            };
            multiply_few(team, table_[e].down, order, inner + first, count, output, end, put);
        }
    }

private:
    inline bool is_alike(const Weight& a, const Weight& b) const {
        return order_for(a, is_bf16_) == order_for(b, is_bf16_);
    }

    inline int64_t items_of(int64_t e) const {
        return (table_[e].gate.num_rows + inner_step(table_[e]) - 1) / inner_step(table_[e]);
    }

    void gate_and_up_item(Team& team, int64_t e, int64_t output, const Order* orders,
                          const float* const* const* x, float* inner, int64_t inner_stride) const {
        const int64_t first = groups_.start[e], count = groups_.start[e + 1] - first;
        const float* rows[2][kMaxFewRows];
        for (int64_t i = 0; i < count; ++i) {
            for (int part = 0; part < 2; ++part) rows[part][i] = x[part][groups_.token[first + i]];
        }
        inner_part(team, table_[e], output, orders, rows, count, activation_, is_bf16_, inner + first * inner_stride,
                   inner_stride);
    }

    const Expert* table_;
    int64_t num_experts_;
    Groups groups_;
    const Activation& activation_;
    bool is_bf16_;
};

// A few tokens through one expert.
static void apply_to_few(Team& team, const Expert& expert, const float* x, int64_t x_stride, int64_t num_rows,
                         const Activation& activation, bool is_bf16, const Result& result) {
    const int64_t width = expert.gate.width, inner_width = expert.gate.num_rows;
    const int64_t stride = round_up(inner_width, kChunk), inner_items = (inner_width - 1) / inner_step(expert) + 1;
    const Order orders[2] = {order_for(expert.gate, is_bf16), order_for(expert.up, is_bf16)};
    Scratch shared = team.shared(), own = team.scratch();
    float* inner = shared.take<float>(num_rows * stride);
    const float *rows[2][kMaxFewRows], *inner_rows[kMaxFewRows];
    for (int part = 0; part < 2; ++part) pack_few(own, orders[part], x, x_stride, num_rows, width, rows[part]);
    team.for_each(inner_items, [&](int64_t item) {
        inner_part(team, expert, item * inner_step(expert), orders, rows, num_rows, activation, is_bf16, inner, stride);
    });
    const Order order = order_for(expert.down, is_bf16);
    pack_few(own, order, inner, stride, num_rows, inner_width, inner_rows);
    const int64_t step = outputs_per_item(expert.down);
    team.for_each(num_items(expert.down), [&](int64_t item) {
        const int64_t output = item * step, end = output + step < width ? output + step : width;
        multiply_few(team, expert.down, order, inner_rows, num_rows, output, end, result);
    });
}

#if defined(MINNOW_HAS_AMX)
static inline bool goes_by_tiles(const Expert& expert) {
    return is_tiled(expert.gate.format) && expert.up.format == expert.gate.format && is_tiled(expert.down.format);
}

// An expert in tiles: 32 values of the inner width at a time are activated and packed for the product that follows.
static void apply_by_tiles(Team& team, const Expert& expert, const float* x, int64_t x_stride, int64_t num_rows,
                           const Activation& activation, bool is_bf16, const Result& result) {
    Scratch memory = team.shared();
    const PackedTiles outer = take_tiles(memory, expert.gate, num_rows, is_bf16);
    const PackedTiles inner = take_tiles(memory, expert.down, num_rows, is_bf16);
    pack_rows(team, x, x_stride, outer);
    team.for_each(inner.num_blocks * outer.num_parts(), [&](int64_t item) {
        const int64_t block = item % inner.num_blocks, part = item / inner.num_blocks, output = block * kBlock;
        const int64_t first = outer.first_row(part), last = outer.first_row(part + 1);
        const int64_t end = round_up(last, kTileRows), count = (end - first) * kBlock;
        Scratch own = team.scratch();
        float *gate = own.take<float>(count), *up = own.take<float>(count);
        for (int64_t i = (last - first) * kBlock; i < count; ++i) gate[i] = up[i] = 0.0f;
        multiply_part(team, outer, part, expert.gate, output, output + kBlock, {gate, kBlock, false, false});
        multiply_part(team, outer, part, expert.up, output, output + kBlock, {up, kBlock, false, false});
        activate(gate, up, count, activation, is_bf16);
        for (int64_t row = first; row < end; ++row) inner.pack(gate + (row - first) * kBlock, row, block);
    });
    multiply_packed(team, inner, &expert.down, 1, result);
}
#endif

// result = an expert's outputs for many rows.
static void apply(Team& team, const Expert& expert, const float* x, int64_t x_stride, int64_t num_rows,
                  const Activation& activation, bool is_bf16, const Result& result) {
#if defined(MINNOW_HAS_AMX)
    if (goes_by_tiles(expert)) return apply_by_tiles(team, expert, x, x_stride, num_rows, activation, is_bf16, result);
#endif
    const int64_t inner_width = expert.gate.num_rows;
    const int64_t stride = round_up(2 * inner_width, kLanes) + kLanes;  // activate works on whole vectors
    Scratch memory = team.shared();
    float* gate = memory.take<float>(num_rows * stride);
    const Weight both[2] = {expert.gate, expert.up};
    linear(team, x, x_stride, num_rows, both, 2, is_bf16, {gate, stride, false, is_bf16});
    team.for_each(num_rows, [&](int64_t i) {
        float* place = gate + i * stride;
        activate(place, place + inner_width, round_up(inner_width, kLanes), activation, is_bf16);
    });
    linear(team, gate, stride, num_rows, &expert.down, 1, is_bf16, result);
}

// An expert with many tokens: its rows are gathered.
static void many_tokens(Team& team, const Expert& expert, const Groups& groups, int64_t e, const float* x,
                        int64_t x_stride, const Activation& activation, float* sums, int64_t width, bool is_bf16) {
    const int64_t first = groups.start[e], count = groups.start[e + 1] - first;
    Scratch memory = team.shared();
    float *rows = memory.take<float>(count * width), *outputs = memory.take<float>(count * width);
    team.for_each(count, [&](int64_t i) {
        const float* from = x + groups.token[first + i] * x_stride;
        for (int64_t k = 0; k < width; ++k) rows[i * width + k] = from[k];
    });
    apply(team, expert, rows, width, count, activation, is_bf16, {outputs, width, false, false});
    team.for_each(count, [&](int64_t i) {  // a token is in an expert's list once
        float* to = sums + groups.token[first + i] * width;
        for (int64_t k = 0; k < width; ++k) to[k] += groups.weight[first + i] * outputs[i * width + k];
    });
}

static inline void put_row(float* y, const float* sums, int64_t count, bool is_added, bool is_bf16) {
    for (int64_t k = 0; k < count; ++k) {
        float value = is_bf16 ? round_to_bf16(sums[k]) : sums[k];
        if (is_added) value = is_bf16 ? round_to_bf16(y[k] + value) : y[k] + value;
        y[k] = value;
    }
}

void experts(Team& team, const float* x, int64_t x_stride, int64_t num_tokens, const int64_t* ids,
             const float* weights, int64_t num_chosen, const Expert* table, int64_t num_experts,
             const Activation& activation, float* y, int64_t y_stride, bool is_added, bool is_bf16) {
    if (num_tokens == 0) return;
    if (ids == nullptr) {
        const bool is_few = num_tokens <= few_rows(table[0].gate.format, is_bf16);
        const auto apply_to = is_few ? apply_to_few : apply;
        return apply_to(team, table[0], x, x_stride, num_tokens, activation, is_bf16, {y, y_stride, is_added, is_bf16});
    }
    const int64_t width = table[0].gate.width, inner_width = table[0].gate.num_rows;
    const int64_t num_pairs = num_tokens * num_chosen, inner_stride = round_up(inner_width, kChunk);
    Scratch memory = team.shared();
    const Groups groups = {memory.take<int64_t>(num_experts + 1), memory.take<int64_t>(num_pairs),
                           memory.take<float>(num_pairs)};
    float* sums = memory.take<float>(num_tokens * width);
    float* inner = memory.take<float>(num_pairs * inner_stride);
    const Order outer[2] = {order_for(table[0].gate, is_bf16), order_for(table[0].up, is_bf16)};
    const Order middle = order_for(table[0].down, is_bf16);
    const bool is_shared = outer[0] == outer[1];
    const float** x_rows[2];
    float* packed_x[2];
    for (int part = 0; part < 2; ++part) {
        x_rows[part] = memory.take<const float*>(num_tokens);
        packed_x[part] = memory.take<float>(num_tokens * packed_floats(outer[part], width));
    }
    const int64_t middle_floats = packed_floats(middle, inner_width);
    float* packed_inner = memory.take<float>(num_pairs * middle_floats);
    const float** inner_rows = memory.take<const float*>(num_pairs);
    const FewTokens few(table, num_experts, groups, activation, is_bf16);
    if (team.index == 0) group_by_expert(ids, weights, num_tokens, num_chosen, num_experts, groups);
    team.for_each(num_tokens, [&](int64_t t) {
        for (int part = 0; part < 2; ++part) {
            float* space = packed_x[part] + t * packed_floats(outer[part], width);
            const bool is_packed = part == 1 && is_shared;
            x_rows[part][t] = is_packed ? x_rows[0][t] : pack_row(outer[part], x + t * x_stride, width, space);
        }
        for (int64_t k = 0; k < width; ++k) sums[t * width + k] = 0.0f;
    });
    few.gate_and_up(team, outer, x_rows, inner, inner_stride);
    team.for_each(num_pairs, [&](int64_t i) {  // pairs of experts with many tokens have nothing here
        inner_rows[i] = pack_row(middle, inner + i * inner_stride, inner_width, packed_inner + i * middle_floats);
    });
    const int64_t step = outputs_per_item(table[0].down);
    team.for_each((width + step - 1) / step, [&](int64_t item) {
        const int64_t output = item * step, end = output + step < width ? output + step : width;
        few.down(team, middle, inner_rows, output, end, sums + output, width);
    });
    for (int64_t e = 0; e < num_experts; ++e) {
        if (groups.start[e + 1] > groups.start[e] && !few.has(e)) {
            many_tokens(team, table[e], groups, e, x, x_stride, activation, sums, width, is_bf16);
        }
    }
    team.for_each(num_tokens, [&](int64_t t) {
        put_row(y + t * y_stride, sums + t * width, width, is_added, is_bf16);
    });
}

}  // namespace MINNOW_ISA

// x, y [T D], BF16 if is_bf16, else FP32; ids i64 [T A] or null; weights f32 [T A]; activation: struct Activation.
MINNOW_EXPORT(experts)
(const void* x, const void* ids, const void* weights, const void* table, const void* activation, void* y,
 int64_t num_tokens, int64_t num_chosen, int64_t num_experts, int64_t is_bf16) {
    using namespace MINNOW_ISA;
    const Expert* list = static_cast<const Expert*>(table);
    const int64_t width = list[0].gate.width;
    run(num_tokens * width * list[0].gate.num_rows > 50'000, [&](Team& team) {
        const int64_t count = num_tokens * width;
        with_floats(team, x, count, y, count, is_bf16 != 0, [&](const float* in, float* out) {
            experts(team, in, width, num_tokens, static_cast<const int64_t*>(ids), static_cast<const float*>(weights),
                    num_chosen, list, num_experts, *static_cast<const Activation*>(activation), out, width, false,
                    is_bf16 != 0);
        });
    });
}
