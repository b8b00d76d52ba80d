// a whole step of the decoder in one call: the operations' own inner functions, one after the other, on one team
#include "../native/export.h"
#include "../native/heads.h"
#include "../native/matvec.h"
#include "../native/step.h"

namespace MINNOW_ISA {

constexpr int64_t kOwnRows = 8;  // of which every thread has a norm of its own: cheaper than a barrier

// Whether no token of a step has more blocks before it than it keeps: there is nothing to choose.
static bool keeps_all(const Model& model, const Layer& layer, const Sequences& sequences) {
    int64_t last = 0;
    for (int64_t t = 0; t < sequences.num_tokens; ++t) last = larger(last, sequences.positions[t]);
    return last < model.num_blocks * layer.k.block_length;
}

static void attend(Team& team, const Model& model, const Layer& layer, const Step& step, const float* x, float* h) {
    const Sequences& sequences = step.sequences;
    const int64_t num_tokens = sequences.num_tokens;
    const bool is_bf16 = model.is_bf16 != 0;
    const bool chooses = layer.is_sparse && !keeps_all(model, layer, sequences);
    const Cache* const caches[kMaxProjections] = {nullptr, &layer.k, &layer.v, nullptr, &layer.index};
    HeadPart parts[kMaxProjections];  // query, key, value, index key and, where blocks are chosen, index query
    Weight projections[kMaxProjections];
    const float* const mixes[kMaxProjections] = {layer.query_mix, layer.key_mix};
    const int64_t order[kMaxProjections] = {0, 1, 2, 4, 3};
    int64_t stride = 0, num_parts = 0;
    for (const int64_t i : order) {
        if ((i == 4 && !layer.is_sparse) || (i == 3 && !chooses)) continue;
        const Weight& norm = layer.head_norms[i];
        const int64_t num_heads = layer.projections[i].num_rows / norm.width;
        const int64_t heads_per_mix = i == 0 ? num_heads / layer.k.num_heads : 1;
        parts[num_parts] = {stride, num_heads, norm, i != 2, caches[i], mixes[i], heads_per_mix};
        projections[num_parts++] = layer.projections[i];
        stride += layer.projections[i].num_rows;
    }
    Scratch memory = team.shared();
    float* projected = memory.take<float>(num_tokens * stride);
    linear(team, x, model.width, num_tokens, projections, num_parts, is_bf16, {projected, stride, false, is_bf16});
    const int32_t* positions = step.rope_positions != nullptr ? step.rope_positions : sequences.positions;
    qk_norm_rope_write(team, projected, stride, num_tokens, parts, num_parts, positions, model.inv_freq,
                       model.num_frequencies, static_cast<float>(model.eps), static_cast<float>(model.offset),
                       step.slots, is_bf16);
    prefetch_first(team, layer.project_out);
    const int64_t num_heads = parts[0].num_heads, out_width = layer.projections[0].num_rows;
    const float scale = static_cast<float>(model.scale);
    float* out = memory.take<float>(num_tokens * out_width);
    if (layer.is_sparse) {
        int32_t* blocks = nullptr;
        if (chooses) {
            const int64_t num_index_heads = parts[4].num_heads;
            float* scores = memory.take<float>(num_tokens * num_index_heads * sequences.num_table_blocks);
            blocks = memory.take<int32_t>(num_tokens * num_index_heads * model.num_blocks);
            index_score(team, sequences, projected + parts[4].start, stride, num_index_heads, layer.index, scores,
                        is_bf16);
            block_topk(team, scores, num_tokens, num_index_heads, sequences.num_table_blocks, sequences.positions,
                       model.num_blocks, layer.k.block_length, model.num_local_blocks, model.num_init_blocks, blocks);
        }
        sparse_attention(team, sequences, projected, stride, num_heads, layer.k, layer.v, blocks, model.num_blocks,
                         scale, out, out_width, is_bf16);
    } else {
        dense_attention(team, sequences, projected, stride, num_heads, layer.k, layer.v, scale, out, out_width,
                        is_bf16);
    }
    linear(team, out, out_width, num_tokens, &layer.project_out, 1, is_bf16, {h, model.width, true, is_bf16});
}

static void feed_forward(Team& team, const Model& model, const Layer& layer, int64_t num_tokens, const float* x,
                         float* h) {
    const bool is_bf16 = model.is_bf16 != 0;
    const int64_t width = model.width;
    if (layer.num_experts == 0) {
        prefetch_first(team, layer.shared.down);  // small enough to wait in the cache
        experts(team, x, width, num_tokens, nullptr, nullptr, 1, &layer.shared, 1, model.activation, h, width, true,
                is_bf16);
        return;
    }
    Scratch memory = team.shared();
    const int64_t num_folded = layer.shared_kind == kFolded, num_ids = model.num_chosen + num_folded;
    int64_t* ids = memory.take<int64_t>(num_tokens * num_ids);
    float* weights = memory.take<float>(num_tokens * num_ids);
    float* y = memory.take<float>(num_tokens * width);
    route(team, x, width, num_tokens, layer.gate, layer.has_bias ? &layer.bias : nullptr, model.num_chosen,
          static_cast<float>(model.scaling), num_ids, ids, weights);
    experts(team, x, width, num_tokens, ids, weights, num_ids, layer.experts, layer.num_experts + num_folded,
            model.activation, y, width, false, is_bf16);
    if (layer.shared_kind == kApart) {
        experts(team, x, width, num_tokens, nullptr, nullptr, 1, &layer.shared, 1, model.activation, y, width, true,
                is_bf16);
    }
    team.for_each(num_tokens, [&](int64_t t) {
        for (int64_t k = t * width; k < (t + 1) * width; ++k) {
            h[k] = is_bf16 ? round_to_bf16(h[k] + y[k]) : h[k] + y[k];
        }
    });
}

void decoder_step(Team& team, const Model& model, const Step& step) {
    const int64_t num_tokens = step.sequences.num_tokens, width = model.width;
    const bool is_bf16 = model.is_bf16 != 0;
    const float eps = static_cast<float>(model.eps), offset = static_cast<float>(model.offset);
    Scratch memory = team.shared(), own = team.scratch();
    float* h = memory.take<float>(num_tokens * width);
    float* x = (num_tokens <= kOwnRows ? own : memory).take<float>(num_tokens * width);
    Team norms = team;
    if (num_tokens <= kOwnRows) norms.num_threads = 1;
    embed(team, step.ids, num_tokens, model.embedding, h, is_bf16);
    team.for_each(step.num_embeddings, [&](int64_t i) {
        copy_row(h + step.embedding_rows[i] * width, step.embeddings + i * width, width);
    });
    const auto tap = [&](int64_t layer) {
        for (int64_t i = 0; i < step.num_taps; ++i) {
            if (step.tap_layers[i] != layer) continue;
            team.for_each(num_tokens, [&](int64_t t) { copy_row(step.taps[i] + t * width, h + t * width, width); });
        }
    };
    tap(-1);
    for (int64_t i = 0; i < model.num_layers; ++i) {
        const Layer& layer = model.layers[i];
        prefetch_first(team, layer.projections[0]);
        norm(norms, h, width, layer.attention_norm, x, num_tokens, width, eps, offset, is_bf16);
        attend(team, model, layer, step, x, h);
        if (layer.num_experts == 0) prefetch_first(team, layer.shared.gate);
        norm(norms, h, width, layer.feed_forward_norm, x, num_tokens, width, eps, offset, is_bf16);
        feed_forward(team, model, layer, num_tokens, x, h);
        tap(i);
    }
    prefetch_first(team, model.head);
    team.for_each(step.num_logits, [&](int64_t i) {
        norm_row(h + step.logits_rows[i] * width, model.norm, step.hidden + i * width, width, eps, offset);
        if (is_bf16) round_row(step.hidden + i * width, width);
    });
    linear(team, step.hidden, width, step.num_logits, &model.head, 1, false,
           {step.logits, model.head.num_rows, false, false});
}

}  // namespace MINNOW_ISA

MINNOW_EXPORT(decoder_step)(const void* model, const void* step) {
    using namespace MINNOW_ISA;
    run(true, [&](Team& team) {
        decoder_step(team, *static_cast<const Model*>(model), *static_cast<const Step*>(step));
    });
}
