// the router: scores of all experts in FP32, then the choice
#include <math.h>

#include "../native/export.h"
#include "../native/heads.h"

namespace MINNOW_ISA {
namespace {

constexpr int64_t kRowsPerItem = 64;
constexpr int64_t kExpertsPerItem = 4;  // where there are few rows
constexpr int64_t kSlice = 1024;        // columns at a time, so that a slice of all experts stays in the cache
#if defined(__AVX512F__)
constexpr int kTile = 4;  // rows times experts whose sums fit the registers
#else
constexpr int kTile = 2;
#endif

// Sums of count columns, into scores or added to them. Each sum has its order, whatever tile it is in.
template <int kRows, int kExperts, class G>
inline void score_tile(const float* x, int64_t x_stride, const G* gate, int64_t width, int64_t count,
                              bool is_first, float* scores, int64_t num_experts) {
    F sums[kRows][kExperts];
    for (int r = 0; r < kRows; ++r) {
        for (int e = 0; e < kExperts; ++e) sums[r][e] = zero();
    }
    const auto add = [&](auto read, int64_t k) {
        F values[kRows];
        for (int r = 0; r < kRows; ++r) values[r] = read(x + r * x_stride + k);
        for (int e = 0; e < kExperts; ++e) {
            const F weights = read(gate + e * width + k);
            for (int r = 0; r < kRows; ++r) sums[r][e] = fma(values[r], weights, sums[r][e]);
        }
    };
    int64_t k = 0;
    for (; k + kLanes <= count; k += kLanes) add([](auto* p) { return load(p); }, k);
    if (k < count) add([=](auto* p) { return load_padded(p, count - k); }, k);
    for (int r = 0; r < kRows; ++r) {
        for (int e = 0; e < kExperts; ++e) {
            float& score = scores[r * num_experts + e];
            score = (is_first ? 0.0f : score) + sum(sums[r][e]);
        }
    }
}

template <int kExperts, class G>
inline void score_rows(const float* x, int64_t x_stride, int64_t num_rows, const G* gate, int64_t width,
                              int64_t count, bool is_first, float* scores, int64_t num_experts) {
    int64_t r = 0;
    for (; r + kTile <= num_rows; r += kTile) {
        score_tile<kTile, kExperts>(x + r * x_stride, x_stride, gate, width, count, is_first, scores + r * num_experts,
                                    num_experts);
    }
    for (; r < num_rows; ++r) {
        score_tile<1, kExperts>(x + r * x_stride, x_stride, gate, width, count, is_first, scores + r * num_experts,
                                num_experts);
    }
}

// Sigmoid scores of some rows by the experts [first, last).
template <class G>
inline void score_block(const float* x, int64_t x_stride, int64_t num_rows, const G* gate, int64_t width,
                               int64_t first, int64_t last, float* scores, int64_t num_experts) {
    for (int64_t k = 0; k < width; k += kSlice) {
        const int64_t count = width - k < kSlice ? width - k : kSlice;
        int64_t e = first;
        for (; e + kTile <= last; e += kTile) {
            score_rows<kTile>(x + k, x_stride, num_rows, gate + e * width + k, width, count, k == 0, scores + e,
                              num_experts);
        }
        for (; e < last; ++e) {
            score_rows<1>(x + k, x_stride, num_rows, gate + e * width + k, width, count, k == 0, scores + e,
                          num_experts);
        }
    }
    for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t e = first; e < last; ++e) {
            float& score = scores[r * num_experts + e];
            score = 1.0f / (1.0f + expf(-score));
        }
    }
}

// The best by score + bias, equal ones and NaN (above all) to the lower id; keys is scratch.
inline void choose_experts(const float* scores, const float* bias, int64_t num_experts, int64_t num_chosen,
                                  float scaling, int32_t* keys, int64_t* ids, float* weights) {
    for (int64_t e = 0; e < num_experts; ++e) {
        const float ranked = scores[e] + bias[e] + 0.0f;  // no -0
        int32_t bits;
        memcpy(&bits, &ranked, sizeof bits);
        bits = bits < 0 ? bits ^ 0x7fffffff : bits;  // integers in the order of the floats
        keys[e] = ranked == ranked ? bits : INT32_MAX;
    }
    float total = 0.0f;
    for (int64_t a = 0; a < num_chosen; ++a) {
        int64_t best = 0;
        for (int64_t e = 1; e < num_experts; ++e) best = keys[e] > keys[best] ? e : best;
        keys[best] = INT32_MIN;  // below minus infinity
        ids[a] = best;
        weights[a] = scores[best];
        total += scores[best];
    }
    for (int64_t a = 0; a < num_chosen; ++a) weights[a] = weights[a] / (total + 1e-20f) * scaling;
}

}  // namespace

void route(Team& team, const float* x, int64_t x_stride, int64_t num_tokens, const Weight& gate, const Weight* bias,
           int64_t num_experts, float scaling, int64_t num_ids, int64_t* ids, float* weights) {
    const int64_t E = gate.num_rows, width = gate.width;
    Scratch memory = team.scratch(), common = team.shared();
    float* scores = common.take<float>(num_tokens * E);
    float* biases = memory.take<float>(E);
    int32_t* keys = memory.take<int32_t>(E);
    memset(biases, 0, E * sizeof(float));
    if (bias != nullptr) {
        with_plain(*bias, [&](auto* values) {
            for (int64_t e = 0; e < E; ++e) biases[e] = to_float(values[e]);
        });
    }

    const int64_t num_blocks = (num_tokens + kRowsPerItem - 1) / kRowsPerItem;
    const int64_t group = num_blocks >= 4 * team.num_threads ? E : kExpertsPerItem;
    const int64_t num_groups = (E + group - 1) / group;
    team.for_each(num_blocks * num_groups, [&](int64_t item) {
        const int64_t row = item / num_groups * kRowsPerItem, first = item % num_groups * group;
        const int64_t num_rows = num_tokens - row < kRowsPerItem ? num_tokens - row : kRowsPerItem;
        const int64_t last = first + group < E ? first + group : E;
        with_plain(gate, [&](auto* values) {
            score_block(x + row * x_stride, x_stride, num_rows, values, width, first, last, scores + row * E, E);
        });
    });
    team.for_each(num_tokens, [&](int64_t t) {
        choose_experts(scores + t * E, biases, E, num_experts, scaling, keys, ids + t * num_ids, weights + t * num_ids);
        for (int64_t a = num_experts; a < num_ids; ++a) {
            ids[t * num_ids + a] = E + a - num_experts;
            weights[t * num_ids + a] = 1.0f;
        }
    });
}

}  // namespace MINNOW_ISA

// x f32 [num_tokens D]; gate, bias: `struct Weight`, bias may be null; ids i64 and weights f32 [num_tokens num_chosen].
MINNOW_EXPORT(route)
(const void* x, const void* gate, const void* bias, void* ids, void* weights, int64_t num_tokens, int64_t num_chosen,
 float scaling) {
    using namespace MINNOW_ISA;
    const Weight& matrix = *static_cast<const Weight*>(gate);
    run(num_tokens * matrix.num_rows * matrix.width > 100'000, [&](Team& team) {
        route(team, static_cast<const float*>(x), matrix.width, num_tokens, matrix, static_cast<const Weight*>(bias),
              num_chosen, scaling, num_chosen, static_cast<int64_t*>(ids), static_cast<float*>(weights));
    });
}
