// the distribution of each row after temperature, top-k, top-p and min-p
#include "../native/export.h"
#include "../native/ranking.h"

namespace MINNOW_ISA {

static inline void fill(float* p, int64_t count, float value) {
    for (int64_t i = 0; i < count; ++i) p[i] = value;
}

static inline void distribute(const Row& row, Candidate* memory, float* p) {
    const bool is_finite = row.scan.check == 0.0f;
    if (!row.is_plain() || row.temperature <= 0.0f) {
        fill(p, row.num_tokens, is_finite ? 0.0f : NAN);
        if (row.is_plain()) p[likeliest(row)] = 1.0f;
        return;
    }
    Ranking ranking(row, memory);
    const Kept kept = keep(row, ranking);
    const int64_t last = ranking.take(INFINITY, false, kept.limit).id;
    const float least = row.logits[last];
    for (int64_t start = 0; start < row.num_tokens; start += kStep) {
        const int64_t count = smaller(row.num_tokens - start, kStep);
        const float* logits = row.logits + start;
        double weights[kStep];
        weigh(row, logits, count, weights);
        for (int64_t i = 0; i < count; ++i) {
            const bool is_ranked = logits[i] > least || (logits[i] == least && start + i <= last);
            p[start + i] = is_ranked && weights[i] >= row.min_p ? static_cast<float>(weights[i] / kept.mass) : 0.0f;
        }
    }
}

}  // namespace MINNOW_ISA

// As in the contract, all dense; p [num_rows num_tokens].
MINNOW_EXPORT(probabilities)
(const void* logits, const void* temperature, const void* top_k, const void* top_p, const void* min_p, void* p,
 int64_t num_rows, int64_t num_tokens) {
    using namespace MINNOW_ISA;
    const Settings settings = {static_cast<const float*>(temperature), static_cast<const int64_t*>(top_k),
                               static_cast<const float*>(top_p), static_cast<const float*>(min_p), nullptr};
    float* out = static_cast<float*>(p);
    run(is_much(settings.temperature, num_rows, num_tokens), [&](Team& team) {
        for_rows(team, static_cast<const float*>(logits), settings, num_rows, num_tokens,
                 [&](int64_t r, const Row& row, Candidate* memory) { distribute(row, memory, out + r * num_tokens); });
    });
}
