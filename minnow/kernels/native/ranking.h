// the tokens of rows of logits, the likeliest first: they fall into buckets by their distance from the likeliest, and only
// the buckets are sorted in which something is decided (where top-k or top-p ends, where a draw lands)
#pragma once

#include <math.h>

#include "simd.h"
#include "threads.h"

namespace MINNOW_ISA {

constexpr int64_t kSegments = 8;  // of a row, shared out among threads; sums do not depend on who has which
constexpr int64_t kBuckets = 1024;  // the likeliest first
constexpr int64_t kSpread = 8;  // more buckets, in turn, for what min_p drops or has no mass: often most of a row
constexpr float kReach = 64.0f;  // nats that the buckets cover; what is less likely shares the last one
constexpr int64_t kParts = 8;  // of a sum, which are added in one order
constexpr int64_t kStep = 512;  // tokens at a time, a multiple of 16

struct Scan {
    float largest, least, check;  // check is NaN where a logit is NaN or plus infinity
};

struct Segment {
    Scan scan;
    double mass[kBuckets + kSpread];
    int32_t count[kBuckets + kSpread];
};

struct Candidate {
    uint32_t key;  // grows as the logit falls
    int32_t id;
};

struct Row {
    const float* logits;
    int64_t num_tokens, step_tokens;  // step_tokens: of a segment
    float temperature;
    int64_t top_k;
    double top_p, min_p, uniform;
    Segment* segments;
    uint16_t* buckets;  // [num_tokens]
    Scan scan;          // of all segments

    inline int64_t start(int64_t s) const {
        return s * step_tokens < num_tokens ? s * step_tokens : num_tokens;
    }
    // Whether top-k and top-p leave all tokens, so that none has to be ranked to know the distribution.
    inline bool is_whole() const { return (top_k <= 0 || top_k >= num_tokens) && top_p >= 1.0; }
    inline bool is_plain() const { return scan.check == 0.0f && scan.largest > -INFINITY; }
};

inline Scan scan_logits(const float* x, int64_t count) {
    F largest = broadcast(-INFINITY), least = broadcast(INFINITY), check = zero();
    const F lowest = broadcast(-3.4028235e38f);
    for (int64_t i = 0; i < count; i += kLanes) {
        float padded[kLanes];
        if (count - i < kLanes) {
            for (int64_t j = 0; j < kLanes; ++j) padded[j] = x[i + j < count ? i + j : i];
        }
        const F values = load(count - i < kLanes ? padded : x + i);
        largest = max(values, largest);  // in this order a NaN is left out
        least = min(values, least);
        check = fma(max(lowest, values), zero(), check);
    }
    return {max_of(largest), -max_of(zero() - least), sum(check)};
}

// The first i from start on with x[i] == wanted, or end.
template <class T>
inline int64_t find_equal(const T* x, int64_t start, int64_t end, T wanted) {
    constexpr int64_t kTogether = 64;
    for (; start + kTogether <= end; start += kTogether) {
        int32_t num_equal = 0;
        for (int64_t j = 0; j < kTogether; ++j) num_equal += x[start + j] == wanted;
        if (num_equal != 0) break;
    }
    while (start < end && x[start] != wanted) ++start;
    return start;
}

// e^x for x <= 0 to about a unit in the last place of a double; 0 below -708. No branches: loops of it are vectors.
inline double exp_of(double x) {
    constexpr double kWhole = 6755399441055744.0;  // 1.5 * 2^52
    const double clamped = x < -708.0 ? -708.0 : x;
    const double shifted = clamped * 1.4426950408889634074 + kWhole;
    const double n = shifted - kWhole;
    const double r = (clamped - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return x < -708.0 ? 0.0 : p * power;
}

// The sum of value(v) for v in [0, count).
template <class Value>
inline double sum_of(int64_t count, Value&& value) {
    double parts[kParts] = {};
    int64_t v = 0;
    for (; v + kParts <= count; v += kParts) {
        for (int64_t j = 0; j < kParts; ++j) parts[j] += value(v + j);
    }
    for (; v < count; ++v) parts[0] += value(v);
    double total = 0.0;
    for (int64_t j = 0; j < kParts; ++j) total += parts[j];
    return total;
}

// exp of (logit - largest) / temperature: probability over that of the likeliest.
inline void weigh(const Row& row, const float* logits, int64_t count, double* weights) {
    const float largest = row.scan.largest;
    const double inverse = -1.0 / static_cast<double>(row.temperature);
    for (int64_t i = 0; i < count; ++i) weights[i] = exp_of(static_cast<double>(largest - logits[i]) * inverse);
}

// Put a segment's tokens into buckets.
inline void fill_segment(const Row& row, int64_t s) {
    Segment& segment = row.segments[s];
    memset(segment.mass, 0, sizeof segment.mass);
    memset(segment.count, 0, sizeof segment.count);
    const float largest = row.scan.largest, far = kReach * row.temperature;
    float width = largest - row.scan.least;
    width = width < far ? width : far;
    width = width > 1e-30f ? width : 1e-30f;
    const float scale = static_cast<float>(kBuckets) / (width < 1e30f ? width : 1e30f);
    const double least = row.min_p > 1e-300 ? row.min_p : 1e-300;
    for (int64_t start = row.start(s); start < row.start(s + 1); start += kStep) {
        const int64_t left = row.start(s + 1) - start, count = left < kStep ? left : kStep;
        const float* logits = row.logits + start;
        uint16_t* buckets = row.buckets + start;
        double weights[kStep];
        weigh(row, logits, count, weights);
        for (int64_t i = 0; i < count; ++i) {
            const float at = (largest - logits[i]) * scale;
            buckets[i] = static_cast<uint16_t>(static_cast<int32_t>(at < kBuckets - 1 ? at : kBuckets - 1));
        }
        for (int64_t i = 0; i < count; ++i) {
            buckets[i] = weights[i] < least ? static_cast<uint16_t>(kBuckets + i % kSpread) : buckets[i];
        }
        for (int64_t i = 0; i < count; ++i) {
            segment.mass[buckets[i]] += weights[i];
            ++segment.count[buckets[i]];
        }
    }
}

// The mass of a segment alone.
inline void weigh_segment(const Row& row, int64_t s) {
    const double least = row.min_p > 1e-300 ? row.min_p : 1e-300;
    double mass = 0.0;
    for (int64_t start = row.start(s); start < row.start(s + 1); start += kStep) {
        const int64_t count = smaller(row.start(s + 1) - start, kStep);
        double weights[kStep];
        weigh(row, row.logits + start, count, weights);
        mass += sum_of(count, [&](int64_t i) { return weights[i] < least ? 0.0 : weights[i]; });
    }
    row.segments[s].mass[0] = mass;
}

// By key, equal ones in the order they have; spare is as large.
inline Candidate* sort_candidates(Candidate* found, Candidate* spare, int64_t count) {
    for (int shift = 0; shift < 32; shift += 8) {
        int64_t starts[256] = {};
        for (int64_t i = 0; i < count; ++i) ++starts[found[i].key >> shift & 255];
        if (starts[found[0].key >> shift & 255] == count) continue;  // all the same here
        int64_t before = 0;
        for (int64_t byte = 0; byte < 256; ++byte) {
            const int64_t here = starts[byte];
            starts[byte] = before;
            before += here;
        }
        for (int64_t i = 0; i < count; ++i) spare[starts[found[i].key >> shift & 255]++] = found[i];
        Candidate* other = found;
        found = spare;
        spare = other;
    }
    return found;
}

// The tokens of a row, the likeliest first; of equal logits the lower id.
class Ranking {
public:
    // The last token that was taken; mass and number of those up to it.
    struct Taken {
        int64_t id;
        double mass;
        int64_t rank;
    };

    Ranking(const Row& row, Candidate* memory) : row_(row), memory_(memory), sorted_(nullptr), sorted_bucket_(-1) {
        for (int64_t b = 0; b < kBuckets; ++b) {
            mass_[b] = 0.0;
            count_[b] = 0;
            for (int64_t s = 0; s < kSegments; ++s) {
                mass_[b] += row.segments[s].mass[b];
                count_[b] += row.segments[s].count[b];
            }
        }
    }

    double total_mass() const {
        double total = 0.0;
        for (int64_t b = 0; b < kBuckets; ++b) total += mass_[b];
        return total;
    }

    // Take tokens until their mass reaches goal (or is above it, if so asked) or limit are taken.
    Taken take(double goal, bool is_above, int64_t limit) {
        Taken before = {-1, 0.0, 0}, before_last = before;
        int64_t last = 0;
        for (int64_t b = 0; b < kBuckets; ++b) {
            const double mass = before.mass + mass_[b];
            const int64_t rank = before.rank + count_[b];
            if (count_[b] == 0) continue;
            if (rank >= limit || is_reached(mass, goal, is_above)) {
                return take_from(b, before, goal, is_above, limit);
            }
            last = b;
            before_last = before;
            before = {-1, mass, rank};
        }
        return take_from(last, before_last, goal, is_above, limit);  // rounding kept it out of reach
    }

private:
    static bool is_reached(double mass, double goal, bool is_above) { return is_above ? mass > goal : mass >= goal; }

    Taken take_from(int64_t bucket, Taken taken, double goal, bool is_above, int64_t limit) {
        sort(bucket);
        for (int64_t i = 0; i < count_[bucket]; ++i) {
            double weight;
            weigh(row_, row_.logits + sorted_[i].id, 1, &weight);
            taken.id = sorted_[i].id;
            taken.mass += weight;
            ++taken.rank;
            if (taken.rank >= limit || is_reached(taken.mass, goal, is_above)) break;
        }
        return taken;
    }

    void sort(int64_t bucket) {
        if (bucket == sorted_bucket_) return;
        int64_t count = 0;
        for (int64_t s = 0; s < kSegments; ++s) {
            if (row_.segments[s].count[bucket] == 0) continue;
            const int64_t end = row_.start(s + 1);
            const uint16_t wanted = static_cast<uint16_t>(bucket);
            for (int64_t i = find_equal(row_.buckets, row_.start(s), end, wanted); i < end;
                 i = find_equal(row_.buckets, i + 1, end, wanted)) {
                const float logit = row_.logits[i] + 0.0f;  // no -0
                uint32_t bits;
                memcpy(&bits, &logit, sizeof bits);
                memory_[count++] = {bits >> 31 ? bits : ~bits & 0x7fffffffu, static_cast<int32_t>(i)};
            }
        }
        sorted_ = sort_candidates(memory_, memory_ + row_.num_tokens, count);
        sorted_bucket_ = bucket;
    }

    const Row& row_;
    Candidate* memory_;
    Candidate* sorted_;
    int64_t sorted_bucket_;
    double mass_[kBuckets];
    int64_t count_[kBuckets];
};

inline int64_t likeliest(const Row& row) {
    int64_t s = 0;
    while (row.segments[s].scan.largest != row.scan.largest) ++s;
    return find_equal(row.logits, row.start(s), row.num_tokens, row.scan.largest);
}

// What top-k and top-p leave of a row: so many tokens, and their mass.
struct Kept {
    int64_t limit;
    double mass;
};

inline Kept keep(const Row& row, Ranking& ranking) {
    int64_t limit = row.top_k > 0 && row.top_k < row.num_tokens ? row.top_k : row.num_tokens;
    const double mass = limit == row.num_tokens ? ranking.total_mass() : ranking.take(INFINITY, false, limit).mass;
    if (row.top_p >= 1.0) return {limit, mass};
    const Ranking::Taken kept = ranking.take(row.top_p * mass, false, limit);
    return {kept.rank, kept.mass};
}

inline void fill(float* p, int64_t count, float value) {
    for (int64_t i = 0; i < count; ++i) p[i] = value;
}

// That of a row whose tokens need no rank.
inline void distribute_whole(const Row& row, float* p) {
    double mass = 0.0;
    for (int64_t s = 0; s < kSegments; ++s) mass += row.segments[s].mass[0];
    const double inverse = 1.0 / mass;
    for (int64_t start = 0; start < row.num_tokens; start += kStep) {
        const int64_t count = smaller(row.num_tokens - start, kStep);
        double weights[kStep];
        weigh(row, row.logits + start, count, weights);
        for (int64_t i = 0; i < count; ++i) {
            p[start + i] = static_cast<float>(weights[i] >= row.min_p ? weights[i] * inverse : 0.0);
        }
    }
}

// The distribution that a row is drawn from; see probabilities/reference.py.
inline void distribute(const Row& row, Candidate* memory, float* p) {
    const bool is_finite = row.scan.check == 0.0f;
    if (!row.is_plain() || row.temperature <= 0.0f) {
        fill(p, row.num_tokens, is_finite ? 0.0f : NAN);
        if (row.is_plain()) p[likeliest(row)] = 1.0f;
        return;
    }
    if (row.is_whole()) return distribute_whole(row, p);
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

// A token, by inverting the cumulative sums of value at a goal below their total. Steps that end before it are passed
// over whole. The last token that has any if rounding leads past it.
template <class Value>
inline int64_t draw_from(int64_t count, double goal, Value&& value) {
    double at = 0.0;
    for (int64_t start = 0; start < count; start += kStep) {
        const int64_t length = smaller(count - start, kStep);
        const double mass = sum_of(length, [&](int64_t i) { return value(start + i); });
        if (at + mass <= goal) {
            at += mass;
            continue;
        }
        for (int64_t v = start; v < start + length; ++v) {
            const double own = value(v);
            if (own > 0.0 && (at += own) > goal) return v;
        }
    }
    int64_t last = count - 1;
    while (last > 0 && !(value(last) > 0.0)) --last;
    return last;
}

inline void merge_scans(Row& row) {
    row.scan = row.segments[0].scan;
    for (int64_t s = 1; s < kSegments; ++s) {
        const Scan& scan = row.segments[s].scan;
        row.scan.largest = scan.largest > row.scan.largest ? scan.largest : row.scan.largest;
        row.scan.least = scan.least < row.scan.least ? scan.least : row.scan.least;
        row.scan.check += scan.check;
    }
}

// Columns of settings, a value a row; uniform may be null.
struct Settings {
    const float* temperature;
    const int64_t* top_k;
    const float *top_p, *min_p;
    const double* uniform;
};

// use(number, row, candidates) for rows of logits that are ready to be ranked. As many at once as there are threads, so
// that one row alone is shared out too and memory stays small. is_ranked: also where no token needs it.
template <class Use>
inline void for_rows(Team& team, const float* logits, const Settings& settings, int64_t num_rows, int64_t num_tokens,
                     bool is_ranked, Use&& use) {
    Scratch memory = team.scratch(), common = team.shared();
    const int64_t step = round_up(num_tokens, kSegments * kLanes) / kSegments, num_together = team.num_threads;
    Row* rows = memory.take<Row>(num_together);  // every thread has the same
    Candidate* candidates = memory.take<Candidate>(2 * num_tokens);
    Segment* segments = common.take<Segment>(num_together * kSegments);
    uint16_t* buckets = common.take<uint16_t>(num_together * num_tokens);
    for (int64_t first = 0; first < num_rows; first += num_together) {
        const int64_t count = smaller(num_rows - first, num_together);
        for (int64_t r = 0; r < count; ++r) {
            const int64_t row = first + r;
            rows[r] = {logits + row * num_tokens, num_tokens, step, settings.temperature[row], settings.top_k[row],
                       static_cast<double>(settings.top_p[row]), static_cast<double>(settings.min_p[row]),
                       settings.uniform == nullptr ? 0.0 : settings.uniform[row], segments + r * kSegments,
                       buckets + r * num_tokens, {}};
        }
        team.for_each(count * kSegments, [&](int64_t item) {
            const Row& row = rows[item / kSegments];
            const int64_t s = item % kSegments, start = row.start(s);
            row.segments[s].scan = scan_logits(row.logits + start, row.start(s + 1) - start);
        });
        for (int64_t r = 0; r < count; ++r) merge_scans(rows[r]);
        team.for_each(count * kSegments, [&](int64_t item) {
            const Row& row = rows[item / kSegments];
            if (row.temperature <= 0.0f || !row.is_plain()) return;
            if (is_ranked || !row.is_whole()) {
                fill_segment(row, item % kSegments);
            } else {
                weigh_segment(row, item % kSegments);
            }
        });
        team.for_each(count, [&](int64_t r) { use(first + r, rows[r], candidates); });
    }
}

// Of so many rows and tokens: whether other threads are worth waking for. A greedy row is a tenth of another.
inline bool is_much(const float* temperature, int64_t num_rows, int64_t num_tokens) {
    int64_t cost = 0;
    for (int64_t row = 0; row < num_rows; ++row) cost += temperature[row] > 0.0f ? 10 * num_tokens : num_tokens;
    return cost > 80'000;
}

}  // namespace MINNOW_ISA
