// queries against a panel of keys and values by AMX, in BF16 pairs that hold keys, values and weights exactly
//
// FP8, BF16 and scaled NVFP4 values are BF16 numbers as they are. Queries and weights in FP32 are sums of three of them
// (limbs), whose products are added up in FP32 one after the other; so results are as exact as FP32 ones.
#pragma once

#include "gemm_amx.h"
#include "cache_values.h"
#include "gemm_columns.h"
#include "key_pairs.h"

namespace MINNOW_ISA {

#if defined(MINNOW_HAS_AMX)

constexpr int64_t kLimbs = 3;  // of FP32
constexpr int64_t kRoundedLimbs = 2;  // of weights whose result is rounded to BF16

inline bool has_tiles(const Cache& cache) {
    return has_pairs(cache.format, cache.width) && cache.width % (cache.format == kNvfp4 ? 128 : 64) == 0;
}

// What is read next, the keys and then the values of a panel, asked for all along: a core waits for no more than a dozen
// lines of memory at a time, so it must never stop asking.
struct Fetch {
    Ahead keys, values;

    __attribute__((always_inline)) inline void ask(int64_t num_lines) {
        for (int64_t i = 0; i < num_lines; i += 2) {
            Ahead& some = keys.next < keys.end ? keys : values;
            some.ask<2>();
        }
    }
};

// What a thread takes from panel to panel. num_rows: that tiles are configured for, 0 before their first use.
struct Tiles {
    int64_t num_rows;
    Fetch fetch;
    const uint8_t* fetched;  // the keys that were asked for

    inline void configure(int64_t count) {
        if (count != num_rows) tile_config(kTileUnits, num_rows = count);
    }
    inline void release() {
        if (num_rows != 0) tile_release();
        num_rows = 0;
    }
    // body(first row, number of rows) for groups of up to sixteen rows.
    template <class Body>
    inline void for_rows(int64_t count, Body&& body) {
        for (int64_t r = 0; r < count; r += kTileRows) {
            configure(smaller(kTileRows, count - r));
            body(r, num_rows);
        }
    }
};
// x as three numbers of which BF16 holds each: their sum.
inline void split_limbs(F x, F* limbs) {
    const __m512i mask = _mm512_set1_epi32(-0x10000);
    for (int i = 0; i < kLimbs; ++i) {
        limbs[i] = {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x.v), mask))};
        x = x - limbs[i];
    }
}

// For each word of 32 dims in the order of the keys' pairs, the upper half of the dword that holds the dim.
inline __m512i pair_words(int64_t format) {
    const int64_t distance = pair_distance(format);
    uint16_t words[kStrip];
    for (int64_t i = 0; i < kStrip; ++i) {
        words[i] = static_cast<uint16_t>(2 * (pair_dim(format, i / 2) + i % 2 * distance) + 1);
    }
    return _mm512_loadu_si512(words);
}

// A query row as pairs in the order of the keys' pairs: one limb of a BF16 row, three of others; out: [limb][width / 2].
inline void pack_query(const float* x, __m512i words, int64_t width, int64_t num_limbs, float* out) {
    for (int64_t d = 0; d < width; d += kStrip, out += kLanes) {
        F low[kLimbs], high[kLimbs];
        split_limbs(load(x + d), low);
        split_limbs(load(x + d + kLanes), high);
        for (int64_t limb = 0; limb < num_limbs; ++limb) {
            _mm512_storeu_si512(out + limb * width / 2,
                                _mm512_permutex2var_epi16(_mm512_castps_si512(low[limb].v), words,
                                                          _mm512_castps_si512(high[limb].v)));
        }
    }
}

// A strip of keys, NVFP4 ones with their scales, as pairs[p * 32 + i]; scales: room for those of a strip.
template <int64_t kFormat>
inline void fill_key_strip(const Rows& rows, float* scales, float* pairs, Fetch& fetch) {
    constexpr int kPairs = Pairer<kFormat>::kPairs;
    const Pairer<kFormat> pairer;
    ColumnReader reader(rows);
    __m512i largest = _mm512_setzero_si512();
    for (int64_t first = 0; first < kStrip; first += kLanes, scales += kLanes) {
        stay_awake();
        fetch.ask(rows.stride * 12 / kCacheLine);
        if (kFormat == kNvfp4) decode_scales(rows.from(first), scales);
        for (int64_t p = 0; p < rows.width / 2; p += 4 * kPairs) {
            float* place = pairs + p * kStrip + first;
            reader.step<true>(reader.next(4 * p / kPairs, first != 0), [&](int c, __m512i column) {
                const auto put = [&](int i, __m512i two) {
                    _mm512_storeu_si512(place + (c * kPairs + i) * kStrip, two);
                };
                if (kFormat == kNvfp4) {
                    const F scale = load(scales + (p / 8 + c / 2) * kStrip);
                    pairer.visit(column, [&](int i, __m512i two) { put(i, scaled_pairs(two, scale)); });
                } else if (kFormat == kFp8) {
                    largest = e4m3_largest(largest, column);
                    put(0, low_e4m3s(column));
                    put(1, high_e4m3s(column));
                } else {
                    put(0, column);
                }
            });
        }
    }
    if (kFormat == kFp8 && e4m3_nans(largest) != 0) decode_pairs(rows, pairs);
}

// Keys of a panel as pairs, strip by strip: [strip][pair][32].
inline void fill_key_tiles(const Rows& rows, int64_t num_keys, uint8_t* room, float* scales, float* pairs, Fetch& fetch) {
    const auto fill = rows.format == kNvfp4 ? fill_key_strip<kNvfp4>
                      : rows.format == kFp8 ? fill_key_strip<kFp8>
                                            : fill_key_strip<kBf16>;
    for (int64_t i = 0; i < num_keys; i += kStrip, pairs += rows.width / 2 * kStrip) {
        fill(whole_strip(rows.from(i), room), scales, pairs, fetch);
    }
}

// Values of 64 dims of a token, 128 of NVFP4, as BF16: 32 to a vector.
template <int64_t kFormat>
inline void read_halves(const Rows& rows, int64_t row, int64_t d, __m512i& largest, __m512i* out) {
    const uint8_t* codes = rows.codes_of(row);
    if (kFormat == kFp8) {
        const __m512i v = _mm512_loadu_si512(codes + d);
        largest = e4m3_largest(largest, v);
        out[0] = low_e4m3s(v);
        out[1] = high_e4m3s(v);
    } else if (kFormat == kBf16) {
        out[0] = _mm512_loadu_si512(codes + 2 * d);
        out[1] = _mm512_loadu_si512(codes + 2 * d + 64);
    } else {
        const __m512i v = _mm512_loadu_si512(codes + d / 2), table = e2m1_to_bf16_table();
        const F scale = ValueReader<kNvfp4>::scales_of<uint64_t>(rows.scales_of(row) + d / 16);
        for (int j = 0; j < 4; ++j) {
            out[j] = scaled_pairs(_mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4 * j), table), scale);
        }
    }
}

// The dim at a place of fill_value_tiles, which unpacks the words of read_halves.
inline int64_t tile_value_dim(int64_t format, int64_t place) {
    const int64_t j = place % 64 / 16, word = place % 16 / 4 * 8 + j % 2 * 4 + place % 4;
    if (format == kFp8) return place / 64 * 64 + 2 * word + j / 2;
    if (format == kBf16) return place / 64 * 64 + j / 2 * 32 + word;
    return place / 128 * 128 + 4 * word + place % 128 / 32;
}

// The first num_keys tokens in pairs i and i + 16 of each strip: [token pair][width] pairs, zeros behind them.
template <int64_t kFormat>
inline void fill_values(const Rows& rows, int64_t num_keys, float* pairs, Fetch& fetch) {
    constexpr int kVectors = kFormat == kNvfp4 ? 4 : 2;
    float* place = pairs;
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < num_keys; i += i % kLanes == kLanes - 1 ? kLanes + 1 : 1) {
        if (i % 2 == 0) fetch.ask(2 * rows.stride / kCacheLine);
        if (i % 8 == 0) stay_awake();
        for (int64_t d = 0; d < rows.width; d += 32 * kVectors) {
            __m512i first[kVectors], second[kVectors] = {};
            read_halves<kFormat>(rows, i, d, largest, first);
            if (i + kLanes < num_keys) read_halves<kFormat>(rows, i + kLanes, d, largest, second);
            for (int j = 0; j < kVectors; ++j, place += kStrip) {
                _mm512_storeu_si512(place, _mm512_unpacklo_epi16(first[j], second[j]));
                _mm512_storeu_si512(place + kLanes, _mm512_unpackhi_epi16(first[j], second[j]));
            }
        }
    }
    for (float* end = pairs + round_up(num_keys, kStrip) / 2 * rows.width; place < end; place += kLanes) {
        store(place, zero());
    }
    if (kFormat != kFp8 || e4m3_nans(largest) == 0) return;
    uint16_t* halves = reinterpret_cast<uint16_t*>(pairs);
    for (int64_t i = 0; i < num_keys * rows.width; ++i) {
        const int64_t row = i / rows.width, p = i % rows.width, pair = row / kStrip * kLanes + row % kLanes;
        const bool is_nan = (rows.codes_of(row)[tile_value_dim(kFormat, p)] & 0x7f) == 0x7f;
        if (is_nan) halves[2 * (pair * rows.width + p) + row % kStrip / kLanes] = 0x7fc0;
    }
}

inline void fill_value_tiles(const Rows& rows, int64_t num_keys, float* pairs, Fetch& fetch) {
    if (rows.format == kNvfp4) return fill_values<kNvfp4>(rows, num_keys, pairs, fetch);
    if (rows.format == kFp8) return fill_values<kFp8>(rows, num_keys, pairs, fetch);
    fill_values<kBf16>(rows, num_keys, pairs, fetch);
}

// s[r * s_stride + i] = query r . key i for a group of up to sixteen rows, whose tiles are configured, and whole strips
// of keys; q: [row][limb][width / 2].
inline void score_tiles(const float* q, int64_t num_limbs, int64_t width, const float* keys, int64_t num_keys, float* s,
                        int64_t s_stride, Fetch& fetch) {
    const int64_t num_pairs = width / 2, q_bytes = 4 * num_limbs * num_pairs, s_bytes = 4 * s_stride;
    constexpr int64_t kBytes = 4 * kStrip;
    for (int64_t i = 0; i < num_keys; i += 2 * kStrip, keys += 2 * num_pairs * kStrip, s += 2 * kStrip) {
        const bool is_double = i + kStrip < num_keys;
        const float* second = keys + num_pairs * kStrip;
        tile_zero<0>();
        tile_zero<1>();
        tile_zero<2>();
        tile_zero<3>();
        for (int64_t p = 0; p < num_pairs; p += kTileUnits) {
            for (int64_t limb = 0; limb < num_limbs; ++limb) {
                fetch.ask(4);
                tile_load<4>(q + limb * num_pairs + p, q_bytes);
                tile_load<6>(keys + p * kStrip, kBytes);
                tile_add_products<0, 4, 6>();
                tile_load<7>(keys + p * kStrip + kLanes, kBytes);
                tile_add_products<1, 4, 7>();
                if (!is_double) continue;
                tile_load<6>(second + p * kStrip, kBytes);
                tile_add_products<2, 4, 6>();
                tile_load<7>(second + p * kStrip + kLanes, kBytes);
                tile_add_products<3, 4, 7>();
            }
        }
        tile_store<0>(s, s_bytes);
        tile_store<1>(s + kLanes, s_bytes);
        if (!is_double) break;
        tile_store<2>(s + kStrip, s_bytes);
        tile_store<3>(s + kStrip + kLanes, s_bytes);
    }
}

// Weights [row][128] of whole strips as limbs: [row][limb][128] of BF16, in pairs of keys i and i + 16 of a strip.
inline void split_weights(const float* weights, int64_t num_rows, int64_t num_keys, int64_t num_limbs, uint16_t* out) {
    for (int64_t r = 0; r < num_rows; ++r, weights += kPanel, out += num_limbs * kPanel) {
        if (r % 4 == 0) stay_awake();
        for (int64_t i = 0; i < num_keys; i += kStrip) {
            F low[kLimbs], high[kLimbs];
            split_limbs(load(weights + i), low);
            split_limbs(load(weights + i + kLanes), high);
            for (int64_t limb = 0; limb < num_limbs; ++limb) {
                const __m512i first = _mm512_srli_epi32(_mm512_castps_si512(low[limb].v), 16);
                _mm512_storeu_si512(out + limb * kPanel + i, _mm512_or_si512(first, _mm512_castps_si512(high[limb].v)));
            }
        }
    }
}

// sums[r * width + place] += weights of row r times values, for a group of rows as in score_tiles.
inline void add_tiles(const uint16_t* weights, int64_t num_limbs, const float* values, int64_t num_keys, int64_t width,
                      float* sums, Fetch& fetch) {
    const int64_t weight_bytes = 2 * num_limbs * kPanel, width_bytes = 4 * width;
    for (int64_t d = 0; d < width; d += 4 * kLanes, sums += 4 * kLanes) {
        tile_load<0>(sums, width_bytes);
        tile_load<1>(sums + kLanes, width_bytes);
        tile_load<2>(sums + 2 * kLanes, width_bytes);
        tile_load<3>(sums + 3 * kLanes, width_bytes);
        for (int64_t i = 0; i < num_keys; i += kStrip) {
            const float* place = values + i / 2 * width + d;
            for (int64_t limb = 0; limb < num_limbs; ++limb) {
                fetch.ask(4);
                tile_load<4>(weights + limb * kPanel + i, weight_bytes);
                tile_load<6>(place, width_bytes);
                tile_add_products<0, 4, 6>();
                tile_load<7>(place + kLanes, width_bytes);
                tile_add_products<1, 4, 7>();
                tile_load<6>(place + 2 * kLanes, width_bytes);
                tile_add_products<2, 4, 6>();
                tile_load<7>(place + 3 * kLanes, width_bytes);
                tile_add_products<3, 4, 7>();
            }
        }
        tile_store<0>(sums, width_bytes);
        tile_store<1>(sums + kLanes, width_bytes);
        tile_store<2>(sums + 2 * kLanes, width_bytes);
        tile_store<3>(sums + 3 * kLanes, width_bytes);
    }
}

#else

struct Tiles {
    int64_t num_rows;
    inline void release() {}
};
inline bool has_tiles(const Cache&) { return false; }
inline int64_t tile_value_dim(int64_t, int64_t place) { return place; }

#endif

}  // namespace MINNOW_ISA
