// which instruction sets the library holds and this machine can run; compiled once, for any processor
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// Tiles need the processor, the system's saving of them (XCR0), and, once a process, its permission to use them.
bool may_use_amx() {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kNeeded = kBf16 | kTile | kInt8;
    constexpr unsigned kTileState = 3u << 17;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kNeeded) != kNeeded) return false;
    unsigned low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
#elif defined(__x86_64__)
static bool may_use_amx() { return false; }
#endif

// Of the package that the library was built from.
extern "C" __attribute__((visibility("default"))) const char* minnow_version() { return MINNOW_VERSION; }

// Both lists are words with blanks between, worst first, and each level implies those before it.
extern "C" __attribute__((visibility("default"))) const char* minnow_built_isas() { return MINNOW_BUILT_ISAS; }

extern "C" __attribute__((visibility("default"))) const char* minnow_supported_isas() {
#if defined(__x86_64__)
    // The builtin asks cpuid, and XCR0 for whether the system saves the wide registers.
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
    if (has_avx512 && may_use_amx()) return "portable avx2 avx512 amx";
    if (has_avx512) return "portable avx2 avx512";
    if (has_avx2) return "portable avx2";
#endif
    return "portable";
}
