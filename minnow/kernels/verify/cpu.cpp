// drafts against the model's distributions: sums of rows, then of what a weighted row has beyond the draft's, then a draw
#include <math.h>

#include "../native/export.h"
#include "../native/ranking.h"

namespace MINNOW_ISA {
namespace {

constexpr int64_t kNotFinite = -1, kNoneOpen = -2;  // as in __init__.py

struct Call {
    const float* p;
    const float* q;  // null: each draft was the only one possible
    const int64_t* drafts;
    const int64_t* starts;
    const double* uniform;
    int64_t num_sequences, num_tokens;
    bool is_block;

    inline int64_t num_drafts(int64_t s) const { return starts[s + 1] - starts[s] - 1; }
    inline int64_t draft(int64_t s, int64_t i) const { return drafts[starts[s] - s + i]; }
    inline const float* row(int64_t s, int64_t i) const { return p + (starts[s] + i) * num_tokens; }
    inline const float* draft_row(int64_t s, int64_t i) const {
        return q == nullptr ? nullptr : q + (starts[s] - s + i) * num_tokens;
    }
    inline double draft_probability(int64_t s, int64_t i) const {
        return q == nullptr ? 1.0 : static_cast<double>(draft_row(s, i)[draft(s, i)]);
    }
};

// What a token has beyond the draft's distribution: factor * p - q, or nothing. only: the one token that q has, or -1.
struct Rest {
    const float *p, *q;
    double factor;
    int64_t only;

    inline double operator()(int64_t v) const {
        const double beyond = factor * static_cast<double>(p[v]) - (q == nullptr ? v == only : static_cast<double>(q[v]));
        return beyond > 0.0 ? beyond : 0.0;
    }
};

// weights [n + 1] of the prefixes and ratios [n] of the drafts of a sequence; totals: of its rows of p.
inline void weigh(const Call& call, int64_t s, const double* totals, double* weights, double* ratios) {
    weights[0] = 1.0;
    for (int64_t i = 0; i < call.num_drafts(s); ++i) {
        const double proposed = call.draft_probability(s, i);
        ratios[i] = proposed > 0.0 ? static_cast<double>(call.row(s, i)[call.draft(s, i)]) / totals[i] / proposed : 0.0;
        const double weight = weights[i] * ratios[i];
        weights[i + 1] = !call.is_block || weight > 1.0 ? 1.0 : weight;
    }
}

// Drafts that are kept; masses [n]: of the rests.
inline int64_t count_kept(const Call& call, int64_t s, const double* weights, const double* ratios, const double* masses) {
    const int64_t n = call.num_drafts(s);
    const double* uniform = call.uniform + call.starts[s];
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
        double limit = ratios[i];
        if (call.is_block && i + 1 == n) limit = weights[n];
        if (call.is_block && i + 1 < n) {
            const double mass = masses[i + 1], whole = mass + 1.0 - weights[i + 1];
            limit = whole > 0.0 ? mass / whole : 1.0;
        }
        if (uniform[i] < limit) {
            kept = i + 1;
        } else if (!call.is_block) {
            return i;
        }
    }
    return kept;
}

}  // namespace

static void verify(Team& team, const Call& call, int64_t* num_accepted, int64_t* ids) {
    const int64_t num_rows = call.starts[call.num_sequences], V = call.num_tokens;
    Scratch memory = team.shared();
    double* totals = memory.take<double>(num_rows);
    double* masses = memory.take<double>(num_rows);
    double* weights = memory.take<double>(num_rows);
    double* ratios = memory.take<double>(num_rows);
    int64_t* owners = memory.take<int64_t>(num_rows);
    team.for_each(num_rows, [&](int64_t row) {
        totals[row] = sum_of(V, [&](int64_t v) { return static_cast<double>(call.p[row * V + v]); });
    });
    team.for_each(call.num_sequences, [&](int64_t s) {
        for (int64_t row = call.starts[s]; row < call.starts[s + 1]; ++row) owners[row] = s;
        weigh(call, s, totals + call.starts[s], weights + call.starts[s], ratios + call.starts[s]);
    });
    const auto rest_of = [&](int64_t s, int64_t i) {
        const int64_t row = call.starts[s] + i;
        return Rest{call.row(s, i), call.draft_row(s, i), weights[row] / totals[row], call.draft(s, i)};
    };
    team.for_each(num_rows, [&](int64_t row) {
        const int64_t s = owners[row], i = row - call.starts[s];
        if (i < call.num_drafts(s)) masses[row] = sum_of(V, rest_of(s, i));
    });
    team.for_each(call.num_sequences, [&](int64_t s) {
        const int64_t first = call.starts[s], n = call.num_drafts(s);
        num_accepted[s] = 0;
        ids[s] = 0;
        for (int64_t row = first; row <= first + n; ++row) {
            if (!(fabs(totals[row]) < INFINITY)) ids[s] = kNotFinite;
        }
        for (int64_t row = first; row <= first + n; ++row) {
            if (totals[row] <= 0.0 && ids[s] == 0) ids[s] = kNoneOpen;
        }
        if (ids[s] != 0) return;
        const int64_t kept = count_kept(call, s, weights + first, ratios + first, masses + first);
        const float* p = call.row(s, kept);
        const double uniform = call.uniform[first + n];
        num_accepted[s] = kept;
        ids[s] = kept < n && masses[first + kept] > 0.0
                     ? draw_from(V, uniform * masses[first + kept], rest_of(s, kept))
                     : draw_from(V, uniform * totals[first + kept], [&](int64_t v) { return static_cast<double>(p[v]); });
    });
}

}  // namespace MINNOW_ISA

// As in the contract, all dense; num_accepted, ids i64 [num_sequences].
MINNOW_EXPORT(verify)
(const void* p, const void* q, const void* drafts, const void* starts, const void* uniform, void* num_accepted, void* ids,
 int64_t num_sequences, int64_t num_tokens, int64_t is_block) {
    using namespace MINNOW_ISA;
    const Call call = {static_cast<const float*>(p), static_cast<const float*>(q), static_cast<const int64_t*>(drafts),
                       static_cast<const int64_t*>(starts), static_cast<const double*>(uniform), num_sequences, num_tokens,
                       is_block != 0};
    run(call.starts[num_sequences] * num_tokens > 100'000, [&](Team& team) {
        verify(team, call, static_cast<int64_t*>(num_accepted), static_cast<int64_t*>(ids));
    });
}
