// sixteen floats at a time, whatever registers the instruction set has
//
// F is always 16 lanes: one register of AVX-512, two of AVX2, four 128-bit vectors elsewhere (SSE2, NEON).
// Every conversion is exact on the way in; stores round to nearest even.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "elements.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace MINNOW_ISA {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

constexpr int64_t kLanes = 16;

#if defined(__AVX512F__)

struct F {
    __m512 v;
};

inline F zero() { return {_mm512_setzero_ps()}; }
inline F broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
// One float in every lane. An integer load does it alone; the float one, which compilers choose, takes a shuffle too.
__attribute__((always_inline)) inline F spread(const float* p) {
    F x;
    __asm__("vpbroadcastd %1, %0" : "=v"(x.v) : "m"(*p));
    return x;
}
inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where either is NaN
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline float sum(F a) {  // in the order of sum_four
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m256 pairs = _mm256_hadd_ps(half, half);
    const __m256 fours = _mm256_hadd_ps(pairs, pairs);
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}
inline float max_of(F a) { return _mm512_reduce_max_ps(a.v); }

inline F load(const Bfloat16* p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}
inline F load(const Float16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline F load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// 2^(byte - 127); 255 is NaN, 0 is 2^-127.
inline F load_e8m0(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    __m512i bits = _mm512_slli_epi32(e, 23);
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(e, _mm512_setzero_si512()), _mm512_set1_epi32(0x400000));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                                 _mm512_set1_epi32(0x7fc00000));
    return {_mm512_castsi512_ps(bits)};
}
// An E4M3 byte shifted into a half is 2^-8 of its value; 0x7f and 0xff are NaN.
inline F load_e4m3(const uint8_t* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i shifted = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);  // the sign is in bits 14 and 15
    const __m512 scaled = _mm512_cvtph_ps(_mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbf80))));
    const __mmask16 is_nan = _mm_cmpeq_epi8_mask(_mm_and_si128(bytes, _mm_set1_epi8(0x7f)), _mm_set1_epi8(0x7f));
    const __m512 value = _mm512_mul_ps(scaled, _mm512_set1_ps(256.0f));
    return {_mm512_mask_mov_ps(value, is_nan, _mm512_set1_ps(NAN))};
}
// 16 bytes: table[low half of each], table[high half of each].
inline void lookup_halves(const uint8_t* p, F table, F& low, F& high) {
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    low.v = _mm512_permutexvar_ps(codes, table.v);  // it looks at the lowest four bits alone
    high.v = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4), table.v);
}
inline void store(Bfloat16* p, F a) {
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i safe = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(safe, 16)));
}
inline F round_int(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^n for whole n in [-126, 127].
inline F scale_by_power(F a, F n) { return {_mm512_scalef_ps(a.v, n.v)}; }
// Whether a lane of either is NaN.
inline bool has_nan(F a, F b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q) != 0; }
// Whether a lane is above the limit, or NaN.
inline bool has_above(F a, float limit) {
    return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(limit), _CMP_NLE_UQ) != 0;
}

// Eight dwords of each of 16 rows, transposed: row i in lane i.
inline void load_columns(const uint8_t* codes, int64_t stride, __m512i* out) {
    const auto part = [&](int64_t row) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + row * stride));
    };
    __m512i z[8], t[8];
    for (int r = 0; r < 8; ++r) {
        const int64_t row = r < 4 ? r : r + 4;
        z[r] = _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(part(row)), 0xf0, part(row + 4));
    }
    for (int r = 0; r < 8; r += 2) {
        t[r] = _mm512_unpacklo_epi32(z[r], z[r + 1]);
        t[r + 1] = _mm512_unpackhi_epi32(z[r], z[r + 1]);
    }
    for (int r = 0; r < 8; r += 4) {  // lanes: dword c of four rows, dword c + 4 of them, then of the next four
        z[r] = _mm512_unpacklo_epi64(t[r], t[r + 2]);
        z[r + 1] = _mm512_unpackhi_epi64(t[r], t[r + 2]);
        z[r + 2] = _mm512_unpacklo_epi64(t[r + 1], t[r + 3]);
        z[r + 3] = _mm512_unpackhi_epi64(t[r + 1], t[r + 3]);
    }
    for (int c = 0; c < 4; ++c) {
        out[c] = _mm512_shuffle_i32x4(z[c], z[c + 4], 0x88);
        out[c + 4] = _mm512_shuffle_i32x4(z[c], z[c + 4], 0xdd);
    }
}

inline __mmask64 e4m3_nans(__m512i bytes) {
    return _mm512_cmpeq_epi8_mask(_mm512_or_si512(bytes, _mm512_set1_epi8(-128)), _mm512_set1_epi8(-1));
}

// E2M1 as BF16. The lookup heeds five bits, so the upper half repeats the lower one.
inline __m512i e2m1_to_bf16_table() {
    const __m256i half = _mm256_set_epi16(-0x3f40, -0x3f80, -0x3fc0, -0x4000, -0x4040, -0x4080, -0x4100, -0x8000,
                                          0x40c0, 0x4080, 0x4040, 0x4000, 0x3fc0, 0x3f80, 0x3f00, 0);
    return _mm512_broadcast_i64x4(half);
}

#elif defined(__AVX2__)

struct F {
    __m256 a, b;
};

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F operator+(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F operator-(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F operator*(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F operator/(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline float sum(F x) {
    const __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
}
inline float max_of(F x) {
    const __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_shuffle_ps(t, t, 1)));
}
inline __m256 bf16_half(const Bfloat16* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
inline F load(const Bfloat16* p) { return {bf16_half(p), bf16_half(p + 8)}; }
inline F load(const Float16* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F load_int8(const int8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8))))};
}
inline __m256 e8m0_half(const uint8_t* p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    __m256i bits = _mm256_slli_epi32(e, 23);
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x400000), _mm256_cmpeq_epi32(e, _mm256_setzero_si256()));
    bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)));
    return _mm256_castsi256_ps(bits);
}
inline F load_e8m0(const uint8_t* p) { return {e8m0_half(p), e8m0_half(p + 8)}; }
inline __m256 e4m3_half(const uint8_t* p) {
    const __m128i words = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i magnitude = _mm_and_si128(words, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(words, _mm_set1_epi16(0x80)), 8);
    const __m256 scaled = _mm256_cvtph_ps(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
    const __m256 wide = _mm256_castsi256_ps(_mm256_cvtepi16_epi32(is_nan));
    return _mm256_blendv_ps(_mm256_mul_ps(scaled, _mm256_set1_ps(256.0f)), _mm256_set1_ps(NAN), wide);
}
inline F load_e4m3(const uint8_t* p) { return {e4m3_half(p), e4m3_half(p + 8)}; }
inline __m256 lookup_eight(__m256i codes, F table) {  // codes 0..15, one in each 32 bits
    const __m256 low = _mm256_permutevar8x32_ps(table.a, codes);  // it looks at the lowest three bits alone
    const __m256 high = _mm256_permutevar8x32_ps(table.b, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}
inline void lookup_halves(const uint8_t* p, F table, F& low, F& high) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i first = _mm256_cvtepu8_epi32(bytes), second = _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8));
    low = {lookup_eight(first, table), lookup_eight(second, table)};
    high = {lookup_eight(_mm256_srli_epi32(first, 4), table), lookup_eight(_mm256_srli_epi32(second, 4), table)};
}
inline __m128i bf16_rounded(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_packus_epi32(words, words);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
inline void store(Bfloat16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bf16_rounded(x.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), bf16_rounded(x.b));
}
inline F round_int(F x) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, kMode), _mm256_round_ps(x.b, kMode)};
}
inline __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F scale_by_power(F x, F n) {
    return {_mm256_mul_ps(x.a, power_of_two(n.a)), _mm256_mul_ps(x.b, power_of_two(n.b))};
}
inline bool has_nan(F x, F y) {
    const __m256 a = _mm256_cmp_ps(x.a, y.a, _CMP_UNORD_Q), b = _mm256_cmp_ps(x.b, y.b, _CMP_UNORD_Q);
    return _mm256_movemask_ps(_mm256_or_ps(a, b)) != 0;
}
inline bool has_above(F x, float limit) {
    const __m256 bound = _mm256_set1_ps(limit);
    const __m256 a = _mm256_cmp_ps(x.a, bound, _CMP_NLE_UQ), b = _mm256_cmp_ps(x.b, bound, _CMP_NLE_UQ);
    return _mm256_movemask_ps(_mm256_or_ps(a, b)) != 0;
}

#else

typedef float Four __attribute__((vector_size(16)));

struct F {
    Four v[4];
};

#define MINNOW_LANEWISE(expression) \
    F r;                            \
    for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
    return r

inline F broadcast(float x) { MINNOW_LANEWISE((Four{x, x, x, x})); }
inline F zero() { return broadcast(0.0f); }
inline F load(const float* p) {
    F r;
    memcpy(&r, p, sizeof r);
    return r;
}
inline void store(float* p, F a) { memcpy(p, &a, sizeof a); }
inline F operator+(F a, F b) { MINNOW_LANEWISE(a.v[i] + b.v[i]); }
inline F operator-(F a, F b) { MINNOW_LANEWISE(a.v[i] - b.v[i]); }
inline F operator*(F a, F b) { MINNOW_LANEWISE(a.v[i] * b.v[i]); }
inline F operator/(F a, F b) { MINNOW_LANEWISE(a.v[i] / b.v[i]); }
inline F fma(F a, F b, F c) { MINNOW_LANEWISE(a.v[i] * b.v[i] + c.v[i]); }
inline F max(F a, F b) { MINNOW_LANEWISE(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F min(F a, F b) { MINNOW_LANEWISE(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
#undef MINNOW_LANEWISE
inline float sum(F a) {
    const Four s = (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}
inline float max_of(F a) {
    float lanes[kLanes];
    store(lanes, a);
    float best = lanes[0];
    for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
    return best;
}
template <class Read>
inline F gather_lanes(Read&& read) {
    float lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = read(i);
    return load(lanes);
}
inline F load(const Bfloat16* p) {
    return gather_lanes([p](int i) { return to_float(p[i]); });
}
inline F load(const Float16* p) {
    return gather_lanes([p](int i) { return to_float(p[i]); });
}
inline F load_int8(const int8_t* p) {
    return gather_lanes([p](int i) { return static_cast<float>(p[i]); });
}
inline F load_e8m0(const uint8_t* p) {
    return gather_lanes([p](int i) { return from_e8m0(p[i]); });
}
inline F load_e4m3(const uint8_t* p) {
    return gather_lanes([p](int i) { return from_e4m3(p[i]); });
}
inline void lookup_halves(const uint8_t* p, F table, F& low, F& high) {
    float values[kLanes];
    store(values, table);
    low = gather_lanes([&](int i) { return values[p[i] & 15]; });
    high = gather_lanes([&](int i) { return values[p[i] >> 4]; });
}
inline void store(Bfloat16* p, F a) {
    float lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < kLanes; ++i) store(p + i, lanes[i]);
}
inline F round_int(F a) {
    const F magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it leaves no bits behind the point
    return (a + magic) - magic;
}
inline F scale_by_power(F a, F n) {
    float lanes[kLanes], powers[kLanes];
    store(lanes, a);
    store(powers, n);
    return gather_lanes([&](int i) {
        const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(powers[i]) + 127) << 23;
        float power;
        memcpy(&power, &bits, sizeof power);
        return lanes[i] * power;
    });
}
inline bool has_above(F a, float limit) {
    float lanes[kLanes];
    store(lanes, a);
    bool is_above = false;
    for (int i = 0; i < kLanes; ++i) is_above |= !(lanes[i] <= limit);
    return is_above;
}
inline bool has_nan(F a, F b) { return has_above(a, INFINITY) || has_above(b, INFINITY); }

#endif

// Four sums at once, each as sum() has it.
inline void sum_four(F a, F b, F c, F d, float* out) {
#if defined(__AVX512F__)
    const auto fold = [](F x) {
        return _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    };
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(fold(a), fold(b)), _mm256_hadd_ps(fold(c), fold(d)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
#else
    const F all[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) out[i] = sum(all[i]);
#endif
}

// The first of two floats in lanes 0 to 7, the second in the others. May read 16 floats.
inline F spread_pair(const float* p) {
#if defined(__AVX512F__)
    const __m512i places = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    return {_mm512_permutexvar_ps(places, _mm512_loadu_ps(p))};
#elif defined(__AVX2__)
    return {_mm256_set1_ps(p[0]), _mm256_set1_ps(p[1])};
#else
    const F first = broadcast(p[0]), second = broadcast(p[1]);
    return {{first.v[0], first.v[1], second.v[2], second.v[3]}};
#endif
}

#if !defined(__AVX512F__)
inline F spread(const float* p) { return broadcast(*p); }
#endif

inline F iota() {
    static const float numbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(numbers);
}
inline F e2m1_table() {
    static const float values[kLanes] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return load(values);
}

// e^x to about one unit in the last place; 0 below -87, and NaN stays NaN. For x up to 88.
inline F exp(F x) {
    const F clamped = max(broadcast(-87.0f), x);  // in this order a NaN in x stays
    const F n = round_int(clamped * broadcast(1.44269504f));
    F r = fma(n, broadcast(-0.693359375f), clamped);  // ln 2 in two parts
    r = fma(n, broadcast(2.12194440e-4f), r);
    F p = broadcast(1.9875691500e-4f);
    p = fma(p, r, broadcast(1.3981999507e-3f));
    p = fma(p, r, broadcast(8.3334519073e-3f));
    p = fma(p, r, broadcast(4.1665795894e-2f));
    p = fma(p, r, broadcast(1.6666665459e-1f));
    p = fma(p, r, broadcast(5.0000001201e-1f));
    p = fma(p, r * r, r + broadcast(1.0f));
    return scale_by_power(p, n);
}

// Rounded to BF16 and back: what a chain of BF16 operations would keep.
inline F round_bf16(F a) {
    Bfloat16 lanes[kLanes];
    store(lanes, a);
    return load(lanes);
}

}  // namespace MINNOW_ISA
