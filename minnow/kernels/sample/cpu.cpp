// one token a row, by inverting the cumulative distribution
#include "../native/export.h"
#include "../native/ranking.h"

namespace MINNOW_ISA {

constexpr int64_t kNotFinite = -1, kNoneOpen = -2;  // as in __init__.py

static inline int64_t draw(const Row& row, Candidate* memory) {
    if (!(row.scan.check == 0.0f)) return kNotFinite;
    if (!row.is_plain()) return kNoneOpen;
    if (row.temperature <= 0.0f) return likeliest(row);
    Ranking ranking(row, memory);
    const Kept kept = keep(row, ranking);
    return ranking.take(row.uniform * kept.mass, true, kept.limit).id;
}

}  // namespace MINNOW_ISA

// As in the contract, all dense; ids i64 [num_rows], see draw() for the negative ones.
MINNOW_EXPORT(sample)
(const void* logits, const void* temperature, const void* top_k, const void* top_p, const void* min_p,
 const void* uniform, void* ids, int64_t num_rows, int64_t num_tokens) {
    using namespace MINNOW_ISA;
    const Settings settings = {static_cast<const float*>(temperature), static_cast<const int64_t*>(top_k),
                               static_cast<const float*>(top_p), static_cast<const float*>(min_p),
                               static_cast<const double*>(uniform)};
    int64_t* out = static_cast<int64_t*>(ids);
    run(is_much(settings.temperature, num_rows, num_tokens), [&](Team& team) {
        for_rows(team, static_cast<const float*>(logits), settings, num_rows, num_tokens, true,
                 [&](int64_t r, const Row& row, Candidate* memory) { out[r] = draw(row, memory); });
    });
}
