// the distribution of each row after temperature, top-k, top-p and min-p
#include "../native/export.h"
#include "../native/ranking.h"

// As in the contract, all dense; p [num_rows num_tokens].
MINNOW_EXPORT(probabilities)
(const void* logits, const void* temperature, const void* top_k, const void* top_p, const void* min_p, void* p,
 int64_t num_rows, int64_t num_tokens) {
    using namespace MINNOW_ISA;
    const Settings settings = {static_cast<const float*>(temperature), static_cast<const int64_t*>(top_k),
                               static_cast<const float*>(top_p), static_cast<const float*>(min_p), nullptr};
    float* out = static_cast<float*>(p);
    run(is_much(settings.temperature, num_rows, num_tokens), [&](Team& team) {
        for_rows(team, static_cast<const float*>(logits), settings, num_rows, num_tokens, false,
                 [&](int64_t r, const Row& row, Candidate* memory) { distribute(row, memory, out + r * num_tokens); });
    });
}
