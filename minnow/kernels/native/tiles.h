// rows in fixed point times int4 and int8 weights in tiles: sixteen outputs side by side, integer sums of 32 products
//
// A tile holds sixteen rows of a weight, block of 32 values after block (kernels/tiles.py makes it):
//     int4    four times 64 bytes: of each row four bytes of eight codes, low halves even; then its 16 scales and minimums
//     int8    four times 2 x 64 bytes: of each row the four even codes of eight, then the four odd ones; then 16 scales
// Lanes are outputs, so the products of one row and of a thousand are added in one order: whole blocks as integers,
// which is exact, and blocks in FP32 from the first to the last.
#pragma once

#include "fixed_point.h"
#include "weight.h"

namespace MINNOW_ISA {

template <int kNumber>
struct Number {
    static constexpr int kValue = kNumber;
};

// Sixteen sums of INT32; the products of four bytes of each lane are added to it.
#if defined(__AVX512VNNI__)
typedef __m512i Codes;
struct I {
    __m512i v;
};
inline I whole(int32_t value) { return {_mm512_set1_epi32(value)}; }
inline I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I times_256(I a) { return {_mm512_slli_epi32(a.v, 8)}; }
inline I load_whole(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline F to_floats(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
template <bool kIsSmall>
inline I add_products(I sum, Codes codes, const int8_t* four) {
    int32_t bytes;
    __builtin_memcpy(&bytes, four, sizeof bytes);
    return {_mm512_dpbusd_epi32(sum.v, codes, _mm512_set1_epi32(bytes))};
}
inline void read_int4(const uint8_t* p, Codes& even, Codes& odd) {
    const __m512i bytes = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
    even = _mm512_and_si512(bytes, mask);
    odd = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
}
inline Codes read_int8(const uint8_t* p) { return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128)); }
#elif defined(__AVX2__)
struct Codes {
    __m256i a, b;
};
struct I {
    __m256i a, b;
};
inline I whole(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
inline I operator+(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I times_256(I x) { return {_mm256_slli_epi32(x.a, 8), _mm256_slli_epi32(x.b, 8)}; }
inline I load_whole(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline F to_floats(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
template <bool kIsSmall>
inline __m256i products(__m256i codes, __m256i four) {
    if (kIsSmall) {  // codes up to 15: sums of two products fit 16 bits
        return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, four), _mm256_set1_epi16(1));
    }
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8));
    return _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(four, 8)));
}
template <bool kIsSmall>
inline I add_products(I sum, Codes codes, const int8_t* four) {
    int32_t bytes;
    __builtin_memcpy(&bytes, four, sizeof bytes);
    const __m256i spread = _mm256_set1_epi32(bytes);
    return {_mm256_add_epi32(sum.a, products<kIsSmall>(codes.a, spread)),
            _mm256_add_epi32(sum.b, products<kIsSmall>(codes.b, spread))};
}
inline __m256i bytes_at(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void read_int4(const uint8_t* p, Codes& even, Codes& odd) {
    const __m256i mask = _mm256_set1_epi8(15), first = bytes_at(p), second = bytes_at(p + 32);
    even = {_mm256_and_si256(first, mask), _mm256_and_si256(second, mask)};
    odd = {_mm256_and_si256(_mm256_srli_epi16(first, 4), mask), _mm256_and_si256(_mm256_srli_epi16(second, 4), mask)};
}
inline Codes read_int8(const uint8_t* p) {
    const __m256i top = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(bytes_at(p), top), _mm256_xor_si256(bytes_at(p + 32), top)};
}
#else
struct Codes {
    uint8_t v[64];
};
struct I {
    int32_t v[kLanes];
};
inline I whole(int32_t value) {
    I result;
    for (int i = 0; i < kLanes; ++i) result.v[i] = value;
    return result;
}
inline I operator+(I a, I b) {
    for (int i = 0; i < kLanes; ++i) a.v[i] += b.v[i];
    return a;
}
inline I times_256(I a) {
    for (int i = 0; i < kLanes; ++i) a.v[i] *= 256;
    return a;
}
inline I load_whole(const int32_t* p) {
    I result;
    __builtin_memcpy(result.v, p, sizeof result.v);
    return result;
}
inline F to_floats(I a) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(a.v[i]);
    return load(lanes);
}
template <bool kIsSmall>
inline I add_products(I sum, const Codes& codes, const int8_t* four) {
    for (int i = 0; i < kLanes; ++i) {
        for (int j = 0; j < 4; ++j) sum.v[i] += static_cast<int32_t>(codes.v[4 * i + j]) * four[j];
    }
    return sum;
}
inline void read_int4(const uint8_t* p, Codes& even, Codes& odd) {
    for (int i = 0; i < 64; ++i) {
        even.v[i] = p[i] & 15;
        odd.v[i] = p[i] >> 4;
    }
}
inline Codes read_int8(const uint8_t* p) {
    Codes result;
    for (int i = 0; i < 64; ++i) result.v[i] = p[i] ^ 128;
    return result;
}
#endif

struct Int4Tile {
    static constexpr bool kIsSmall = true;  // unsigned codes of four bits
    static constexpr int64_t kBytes = 4 * 64 + 4 * kLanes;
    static inline void read(const uint8_t* block, int eight, Codes& even, Codes& odd) {
        read_int4(block + 64 * eight, even, odd);
    }
    static inline F scales(const uint8_t* block) { return load(reinterpret_cast<const Float16*>(block + 4 * 64)); }
    static inline F minimums(const uint8_t* block) {
        return load(reinterpret_cast<const Float16*>(block + 4 * 64 + 2 * kLanes));
    }
    static inline float code(const uint8_t* block, int64_t lane, int k) {
        const uint8_t pair = block[64 * (k / 8) + 4 * lane + k % 8 / 2];
        return static_cast<float>(k % 2 ? pair >> 4 : pair & 15);
    }
};

struct Int8Tile {
    static constexpr bool kIsSmall = false;
    static constexpr int64_t kBytes = 8 * 64 + 2 * kLanes;
    static inline void read(const uint8_t* block, int eight, Codes& even, Codes& odd) {
        even = read_int8(block + 128 * eight);
        odd = read_int8(block + 128 * eight + 64);
    }
    static inline F scales(const uint8_t* block) { return load(reinterpret_cast<const Float16*>(block + 8 * 64)); }
    static inline F minimums(const uint8_t*) { return zero(); }
    static inline float code(const uint8_t* block, int64_t lane, int k) {
        return static_cast<float>(static_cast<int8_t>(block[128 * (k / 8) + k % 2 * 64 + 4 * lane + k % 8 / 2]));
    }
};

#if defined(__AVX512VNNI__)
constexpr int kTilesAtOnce = 2, kSumsAtOnce = 24;  // what registers hold
#else
constexpr int kTilesAtOnce = 1, kSumsAtOnce = 6;
#endif
// Rows that share what is read of the weights.
template <int kDigits>
constexpr int rows_at_once() { return kSumsAtOnce / (kTilesAtOnce * kDigits); }

// Three digits in FP32, or fewer exactly: the sum that they stand for, in steps of the row.
template <int kDigits>
inline F value_of(const I* sums) {
    if constexpr (kDigits == 1) return to_floats(sums[0]);
    const F high = to_floats(times_256(sums[0]) + sums[1]);
    if constexpr (kDigits == 2) return high;
    return fma(high, broadcast(256.0f), to_floats(sums[kDigits - 1]));
}

// kRows rows of x times kTiles tiles, which lie tile_bytes apart. ahead: fetch what lies so many bytes further, if any.
template <class Tile, int kDigits, int kRows, int kTiles>
inline void multiply_tiles(const uint8_t* tiles, int64_t tile_bytes, const FixedBlock<kDigits>* const* x,
                           int64_t num_blocks, int64_t ahead, const Result& result) {
    F total[kTiles][kRows];
#pragma GCC unroll 2
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 12
        for (int row = 0; row < kRows; ++row) total[tile][row] = zero();
    }
    for (int64_t b = 0; b < num_blocks; ++b) {
        const uint8_t* blocks = tiles + b * Tile::kBytes;
        if (ahead > 0) {
            for (int tile = 0; tile < kTiles; ++tile) {
                const uint8_t* place = blocks + tile * tile_bytes + ahead;
                for (int64_t i = 0; i < Tile::kBytes; i += kCacheLine) prefetch(place + i);
            }
        }
        I sums[kTiles][kRows][kDigits];
#pragma GCC unroll 12
        for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 3
            for (int digit = 0; digit < kDigits; ++digit) {
                const I start = whole(Tile::kIsSmall ? 0 : x[row][b].offsets[digit]);
#pragma GCC unroll 2
                for (int tile = 0; tile < kTiles; ++tile) sums[tile][row][digit] = start;
            }
        }
#pragma GCC unroll 4
        for (int eight = 0; eight < 4; ++eight) {
            Codes codes[2][kTiles];
#pragma GCC unroll 2
            for (int tile = 0; tile < kTiles; ++tile) {
                Tile::read(blocks + tile * tile_bytes, eight, codes[0][tile], codes[1][tile]);
            }
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
#pragma GCC unroll 12
                for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 3
                    for (int digit = 0; digit < kDigits; ++digit) {
                        const int8_t* four = x[row][b].digits[digit] + 8 * eight + 4 * half;
#pragma GCC unroll 2
                        for (int tile = 0; tile < kTiles; ++tile) {
                            I& sum = sums[tile][row][digit];
                            sum = add_products<Tile::kIsSmall>(sum, codes[half][tile], four);
                        }
                    }
                }
            }
        }
#pragma GCC unroll 2
        for (int tile = 0; tile < kTiles; ++tile) {
            const F scales = Tile::scales(blocks + tile * tile_bytes);
            const F minimums = Tile::minimums(blocks + tile * tile_bytes);
#pragma GCC unroll 12
            for (int row = 0; row < kRows; ++row) {
                F& sum = total[tile][row];
                sum = fma(value_of<kDigits>(sums[tile][row]) * broadcast(x[row][b].step), scales, sum);
                if (Tile::kIsSmall) sum = fma(broadcast(x[row][b].sum), minimums, sum);
            }
        }
    }
#pragma GCC unroll 2
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma GCC unroll 12
        for (int row = 0; row < kRows; ++row) {
            float* place = result.y + row * result.stride + tile * kLanes;
            store(place, result.finished(total[tile][row], place));
        }
    }
}

// Rows of x in fixed point times outputs [output, end), multiples of sixteen. The same thread's next outputs most likely
// lie num_threads times as many further.
template <class Tile, int kDigits>
inline void multiply_outputs(const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end,
                             int64_t num_threads, Result result) {
    constexpr int kRows = rows_at_once<kDigits>();
    const int64_t num_blocks = w.width / kBlock, tile_bytes = num_blocks * Tile::kBytes;
    const int64_t ahead = num_threads * (end - output) / kLanes * tile_bytes;
    const FixedBlock<kDigits>* const* rows = reinterpret_cast<const FixedBlock<kDigits>* const*>(x);
    while (output < end) {
        const bool is_full = output + kTilesAtOnce * kLanes <= end;
        const uint8_t* tiles = w.codes + output / kLanes * tile_bytes;
        for (int64_t row = 0; row < num_rows;) {
            const int64_t left = num_rows - row;
            const auto some = [&](auto count, auto num_tiles) {
                constexpr int kCount = decltype(count)::kValue, kTiles = decltype(num_tiles)::kValue;
                multiply_tiles<Tile, kDigits, kCount, kTiles>(tiles, tile_bytes, rows + row, num_blocks, row == 0 ? ahead : 0,
                                                              result.from(row, 0));
                row += kCount;
            };
            const Number<kTilesAtOnce> all;
            if (!is_full) some(Number<1>(), Number<1>());
            else if (left >= kRows) some(Number<kRows>(), all);
            else if (kRows > 4 && left >= 4) some(Number<kRows < 4 ? 1 : 4>(), all);
            else if (kRows > 3 && left == 3) some(Number<kRows < 3 ? 1 : 3>(), all);
            else if (left >= 2) some(Number<kRows < 2 ? 1 : 2>(), all);
            else some(Number<1>(), all);
        }
        const int64_t step = is_full ? kTilesAtOnce * kLanes : kLanes;
        output += step;
        result.y += step;
    }
}

template <class Tile>
inline void multiply_digits(const Weight& w, const float* const* x, int64_t num_rows, int64_t output, int64_t end,
                            int64_t num_threads, const Result& result) {
    switch (num_digits(w.format)) {
        case 1: return multiply_outputs<Tile, 1>(w, x, num_rows, output, end, num_threads, result);
        case 2: return multiply_outputs<Tile, 2>(w, x, num_rows, output, end, num_threads, result);
        default: return multiply_outputs<Tile, 3>(w, x, num_rows, output, end, num_threads, result);
    }
}

// One row of a tiled weight as floats.
template <class Tile>
inline void decode_tiled_row(const Weight& w, int64_t index, float* y) {
    const int64_t num_blocks = w.width / kBlock, lane = index % kLanes;
    const uint8_t* block = w.codes + index / kLanes * num_blocks * Tile::kBytes;
    for (int64_t i = 0; i < num_blocks * Tile::kBytes; i += kCacheLine) prefetch(block + i);  // its bytes are in every line
    for (int64_t b = 0; b < num_blocks; ++b, block += Tile::kBytes, y += kBlock) {
        float scales[kLanes], minimums[kLanes];
        store(scales, Tile::scales(block));
        store(minimums, Tile::minimums(block));
        for (int k = 0; k < kBlock; ++k) y[k] = Tile::code(block, lane, k) * scales[lane] + minimums[lane];
    }
}

}  // namespace MINNOW_ISA
