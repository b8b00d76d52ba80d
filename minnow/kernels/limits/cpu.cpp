// the fastest reads and the fastest multiplications of this instruction set, with nothing else around them
#include <stdint.h>
#include <string.h>

#include "../native/export.h"
#include "../native/gemm_amx.h"
#include "../native/simd.h"
#include "../native/threads.h"

namespace MINNOW_ISA {

constexpr int64_t kPieceBytes = int64_t{64} << 10;  // what a thread takes at a time
constexpr int64_t kStreams = 4;                      // one core waits for memory less when it reads in several places
constexpr int64_t kAhead = 1024;                     // bytes that each stream is fetched ahead

constexpr int64_t kLineBytes = 64;

#if defined(__AVX512F__)
typedef uint64_t Words __attribute__((vector_size(64)));
#elif defined(__AVX2__)
typedef uint64_t Words __attribute__((vector_size(32)));
#else
typedef uint64_t Words __attribute__((vector_size(16)));
#endif

// Sum of the 64-bit words of a piece, whose bytes are a multiple of kStreams * kLineBytes.
static uint64_t sum_piece(const uint8_t* data, int64_t num_bytes) {
    const int64_t stream_bytes = num_bytes / kStreams;
    Words sums[kStreams] = {};
    for (int64_t at = 0; at < stream_bytes; at += kLineBytes) {
        for (int64_t stream = 0; stream < kStreams; ++stream) {
            const uint8_t* place = data + stream * stream_bytes + at;
            for (int64_t part = 0; part < kLineBytes; part += sizeof(Words)) {
                Words words;
                memcpy(&words, place + part, sizeof words);
                sums[stream] += words;
            }
            if (at + kAhead < stream_bytes) __builtin_prefetch(place + kAhead);
        }
    }
    const Words all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    uint64_t sum = 0;
    for (uint64_t lane = 0; lane < sizeof(Words) / sizeof sum; ++lane) sum += all[lane];
    return sum;
}

// A chain of dependent multiplications each, as many chains as hide their latency; the values do not matter.
#if defined(__AVX512F__)
constexpr int kChains = 12;
#elif defined(__AVX2__)
constexpr int kChains = 5;  // of two registers each
#else
constexpr int kChains = 2;  // of four
#endif

static double multiply_float32(int64_t num_rounds) {
    F chains[kChains];
    for (int i = 0; i < kChains; ++i) chains[i] = broadcast(static_cast<float>(i));
    F factor = broadcast(0.999f);
    __asm__ volatile("" : "+m"(factor));  // else the compiler knows it
    for (int64_t round = 0; round < num_rounds; ++round) {
        for (int i = 0; i < kChains; ++i) chains[i] = fma(chains[i], factor, factor);
    }
    __asm__ volatile("" : : "m"(chains));
    return 2.0 * kLanes * kChains * static_cast<double>(num_rounds);
}

#if defined(MINNOW_HAS_AMX)

// Four tiles of sums hide the latency; a product of two tiles is 16 x 16 sums of 64 bytes.
static double multiply_bfloat16(int64_t num_rounds) {
    tile_config();
    for (int64_t round = 0; round < num_rounds; ++round) {
        tile_add_products<0, 4, 6>();
        tile_add_products<1, 4, 7>();
        tile_add_products<2, 5, 6>();
        tile_add_products<3, 5, 7>();
    }
    tile_release();
    return 2.0 * 16 * 16 * 32 * 4 * static_cast<double>(num_rounds);
}

#elif defined(__AVX512BF16__)

static double multiply_bfloat16(int64_t num_rounds) {
    __m512 chains[kChains];
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_ps(static_cast<float>(i));  // equal ones are made one
    __m512bh factor = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f80));
    __asm__ volatile("" : "+v"(factor));
    for (int64_t round = 0; round < num_rounds; ++round) {
        for (int i = 0; i < kChains; ++i) chains[i] = _mm512_dpbf16_ps(chains[i], factor, factor);
    }
    __asm__ volatile("" : : "m"(chains));
    return 2.0 * 32 * kChains * static_cast<double>(num_rounds);
}

#else

// No instruction multiplies these: kernels turn them into FP32.
static double multiply_bfloat16(int64_t) { return 0.0; }

#endif

#if defined(__AMX_INT8__)

static double multiply_int8(int64_t num_rounds) {
    tile_config();
    for (int64_t round = 0; round < num_rounds; ++round) {
        __asm__ volatile("tdpbssd %tmm6, %tmm4, %tmm0");
        __asm__ volatile("tdpbssd %tmm7, %tmm4, %tmm1");
        __asm__ volatile("tdpbssd %tmm6, %tmm5, %tmm2");
        __asm__ volatile("tdpbssd %tmm7, %tmm5, %tmm3");
    }
    tile_release();
    return 2.0 * 16 * 16 * 64 * 4 * static_cast<double>(num_rounds);
}

#elif defined(__AVX512VNNI__)

static double multiply_int8(int64_t num_rounds) {
    __m512i chains[kChains];
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_epi32(i);
    __m512i factor = _mm512_set1_epi8(3);
    __asm__ volatile("" : "+v"(factor));
    for (int64_t round = 0; round < num_rounds; ++round) {
        for (int i = 0; i < kChains; ++i) chains[i] = _mm512_dpbusd_epi32(chains[i], factor, factor);
    }
    __asm__ volatile("" : : "m"(chains));
    return 2.0 * 64 * kChains * static_cast<double>(num_rounds);
}

#else

static double multiply_int8(int64_t) { return 0.0; }

#endif

}  // namespace MINNOW_ISA

using namespace MINNOW_ISA;

// Read a buffer once: sums[i] is what thread i found, the sum of the 64-bit words that it read.
MINNOW_EXPORT(read_bytes)(const uint8_t* data, int64_t num_bytes, uint64_t* sums) {
    run(true, [&](Team& team) {
        uint64_t sum = 0;
        team.for_each((num_bytes + kPieceBytes - 1) / kPieceBytes, [&](int64_t piece) {
            const int64_t start = piece * kPieceBytes;
            sum += sum_piece(data + start, num_bytes - start < kPieceBytes ? num_bytes - start : kPieceBytes);
        });
        sums[team.index] = sum;
    });
}

// Multiply in registers, on every thread; operations[i] is how many thread i did, 0 where there is no instruction.
// kind: 0 FP32, 1 BF16 pairs summed in FP32, 2 int8 in fours summed in int32.
MINNOW_EXPORT(multiply)(int64_t kind, int64_t num_rounds, double* operations) {
    run(true, [&](Team& team) {
        operations[team.index] = kind == 0   ? multiply_float32(num_rounds)
                                 : kind == 1 ? multiply_bfloat16(num_rounds)
                                             : multiply_int8(num_rounds);
    });
}
