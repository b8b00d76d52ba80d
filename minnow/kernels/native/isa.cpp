// which instruction sets the library holds and this machine can run; compiled once, for any processor

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
    if (has_avx512) return "portable avx2 avx512";
    if (has_avx2) return "portable avx2";
#endif
    return "portable";
}
