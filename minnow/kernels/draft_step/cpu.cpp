// a drafter: keys and values of its context, and a round of drafts, by the inner functions of the operations
#include "../native/export.h"
#include "../native/ranking.h"
#include "../native/step.h"

namespace MINNOW_ISA {
namespace {

// The structs below are laid out word by word in cpu.py beside this file.
struct Drafter {
    const Model* model;  // its layers; the head is the target's, or some rows of it
    Weight fuse, context_norm;
    Weight before, after;       // of the Markov head: rows of tokens before, and of drafts
    const int64_t* target_ids;  // of each draft; null: they are the target's
    Weight confidence;          // [1 D + r], or [1 D]; codes null: there is none
    double confidence_bias;
};

struct Context {
    int64_t num_tokens, num_taps;
    const float* const* taps;  // [T D] each
    const int32_t* positions;
    const int64_t* slots;
};

struct Round {
    Step step;  // the blocks; hidden and logits of all their rows
    int64_t num_sequences;
    const int64_t* counts;   // of drafts, descending
    const int32_t* anchors;  // [S]
    Settings settings;       // of the draws, but for their numbers; temperature 0 takes the likeliest
    const double* uniform;   // [P S]
    int64_t* ids;            // [P S], the target's
    float* q;                // [P S W]; null where nothing is drawn
    float* confidence;       // [P S], logits of the head; null where it is not asked
};

void remember(Team& team, const Drafter& drafter, const Context& context) {
    const Model& model = *drafter.model;
    const int64_t width = model.width, num_tokens = context.num_tokens, num_taps = context.num_taps;
    const float eps = static_cast<float>(model.eps), offset = static_cast<float>(model.offset);
    const bool is_bf16 = model.is_bf16 != 0;
    Scratch memory = team.shared();
    float* tapped = memory.take<float>(num_tokens * num_taps * width);
    float* fused = memory.take<float>(num_tokens * width);
    float* feature = memory.take<float>(num_tokens * width);
    team.for_each(num_tokens * num_taps, [&](int64_t i) {
        copy_row(tapped + i * width, context.taps[i % num_taps] + i / num_taps * width, width);
    });
    linear(team, tapped, num_taps * width, num_tokens, &drafter.fuse, 1, is_bf16, {fused, width, false, is_bf16});
    norm(team, fused, width, drafter.context_norm, feature, num_tokens, width, eps, offset, is_bf16);
    for (int64_t i = 0; i < model.num_layers; ++i) {
        const Layer& layer = model.layers[i];
        const int64_t rows = layer.projections[1].num_rows, stride = 2 * rows, heads = layer.k.num_heads;
        const HeadPart parts[2] = {{0, heads, layer.head_norms[1], 1, &layer.k},
                                   {rows, heads, layer.head_norms[2], 0, &layer.v}};
        Scratch own = team.shared();
        float* projected = own.take<float>(num_tokens * stride);
        linear(team, feature, width, num_tokens, layer.projections + 1, 2, is_bf16, {projected, stride, false, is_bf16});
        qk_norm_rope_write(team, projected, stride, num_tokens, parts, 2, context.positions, model.inv_freq,
                           model.num_frequencies, eps, offset, context.slots, is_bf16);
    }
}

// How likely the next drafts of some sequences are kept, from the hidden states of their slots and the tokens before.
void judge(Team& team, const Drafter& drafter, const Round& round, int64_t k, int64_t num, const float* tokens,
           float* memory) {
    const int64_t width = drafter.model->width, rank = drafter.before.width, stride = drafter.confidence.width;
    team.for_each(num, [&](int64_t s) {
        const int64_t slot = round.step.sequences.query_start[s] + k;
        copy_row(memory + s * stride, round.step.hidden + slot * width, width);
        if (stride > width) copy_row(memory + s * stride + width, tokens + s * rank, rank);
    });
    float* place = round.confidence + k * round.num_sequences;
    linear(team, memory, stride, num, &drafter.confidence, 1, false, {place, 1, false, false});
    team.for_each(num, [&](int64_t s) { place[s] += static_cast<float>(drafter.confidence_bias); });
}

void draft(Team& team, const Drafter& drafter, const Round& round) {
    const Model& model = *drafter.model;
    const int64_t S = round.num_sequences, W = model.head.num_rows, rank = drafter.before.width;
    decoder_step(team, model, round.step);
    Scratch memory = team.shared();
    int32_t* before = memory.take<int32_t>(S);
    float* tokens = memory.take<float>(S * rank);
    float* logits = memory.take<float>(S * W);
    float* judged = memory.take<float>(S * (model.width + rank));
    team.for_each(S, [&](int64_t s) { before[s] = round.anchors[s]; });
    for (int64_t k = 0, num = S; k < round.counts[0]; ++k) {
        while (round.counts[num - 1] <= k) --num;
        embed(team, before, num, drafter.before, tokens, false);
        if (round.confidence != nullptr) judge(team, drafter, round, k, num, tokens, judged);
        linear(team, tokens, rank, num, &drafter.after, 1, false, {logits, W, false, false});
        team.for_each(num, [&](int64_t s) {
            const float* base = round.step.logits + (round.step.sequences.query_start[s] + k) * W;
            for (int64_t v = 0; v < W; ++v) logits[s * W + v] += base[v];
        });
        for_rows(team, logits, round.settings, num, W, false, [&](int64_t s, const Row& row, Candidate* candidates) {
            const int64_t place = k * S + s;
            int64_t id = 0;
            if (row.temperature > 0.0f) {
                float* q = round.q + place * W;
                distribute(row, candidates, q);
                const auto mass_of = [&](int64_t v) { return static_cast<double>(q[v]); };
                id = draw_from(W, round.uniform[place] * sum_of(W, mass_of), mass_of);
            } else if (row.is_plain()) {
                id = likeliest(row);
            }
            round.ids[place] = drafter.target_ids == nullptr ? id : drafter.target_ids[id];
            before[s] = static_cast<int32_t>(round.ids[place]);
        });
    }
}

}  // namespace
}  // namespace MINNOW_ISA

MINNOW_EXPORT(draft_context)(const void* drafter, const void* context) {
    using namespace MINNOW_ISA;
    run(true, [&](Team& team) {
        remember(team, *static_cast<const Drafter*>(drafter), *static_cast<const Context*>(context));
    });
}

MINNOW_EXPORT(draft_round)(const void* drafter, const void* round) {
    using namespace MINNOW_ISA;
    run(true, [&](Team& team) {
        draft(team, *static_cast<const Drafter*>(drafter), *static_cast<const Round*>(round));
    });
}
