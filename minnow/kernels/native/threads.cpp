// the process's team of threads: pinned, woken by a bounded spin and then a futex; compiled once, for any processor
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "threads.h"

namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kScratchBytes = int64_t{256} << 20;  // of address space, not of memory
constexpr int64_t kSharedBytes = int64_t{64} << 30;
// Waits shorter than a futex's round trip (some 50 us) are spun through; a thread whose partner lost its core sleeps.
constexpr int64_t kBarrierSpinNs = 60'000;
constexpr int64_t kIdleSpinNs = 200'000;
constexpr int kPausesPerLook = 32;

struct alignas(64) Word {
    uint32_t value;
};

// A word that threads wait on, and how many of them sleep.
struct Gate {
    Word word;
    Word num_sleepers;
};

struct Team {
    Gate start;    // counts runs
    Gate phase;    // counts barriers
    Word arrived;  // threads that wait at the barrier
    alignas(64) int64_t next_item;
    alignas(64) int64_t num_threads;  // the caller among them
    minnow_body body;
    void* context;
    bool is_stopping;
    pthread_t workers[kMaxThreads];
    int32_t cpus[kMaxThreads];  // -1: not pinned
    char* scratch[kMaxThreads];
};

Team team;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // one run at a time
pid_t owner = 0;                                   // after a fork the child has no workers
char* shared = nullptr;
__thread char* lone_scratch = nullptr;
__thread char* lone_shared = nullptr;

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

inline int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// Wait until the gate's word is no longer `old`: spin for a while, then sleep.
void wait_for_change(Gate& gate, uint32_t old, int64_t spin_ns) {
    for (int i = 0; i < 4 * kPausesPerLook; ++i) {  // the common case needs no clock
        if (__atomic_load_n(&gate.word.value, __ATOMIC_ACQUIRE) != old) return;
        pause_briefly();
    }
    const int64_t until = now_ns() + spin_ns;
    while (now_ns() < until) {
        for (int i = 0; i < kPausesPerLook; ++i) {
            if (__atomic_load_n(&gate.word.value, __ATOMIC_ACQUIRE) != old) return;
            pause_briefly();
        }
    }
    // The sleeper counts itself before the kernel compares the word, the waker changes the word before it reads the
    // count: one of the two sees the other.
    __atomic_fetch_add(&gate.num_sleepers.value, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&gate.word.value, __ATOMIC_SEQ_CST) == old) {
        syscall(SYS_futex, &gate.word.value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    }
    __atomic_fetch_sub(&gate.num_sleepers.value, 1, __ATOMIC_SEQ_CST);
}

void advance(Gate& gate) {
    __atomic_fetch_add(&gate.word.value, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&gate.num_sleepers.value, __ATOMIC_SEQ_CST) != 0) {
        syscall(SYS_futex, &gate.word.value, FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0);
    }
}

void pin(pthread_t thread, int32_t cpu) {
    cpu_set_t* set = CPU_ALLOC(cpu + 1);
    if (set == nullptr) return;
    const size_t num_bytes = CPU_ALLOC_SIZE(cpu + 1);
    CPU_ZERO_S(num_bytes, set);
    CPU_SET_S(cpu, num_bytes, set);
    pthread_setaffinity_np(thread, num_bytes, set);  // refused in some containers: the thread then floats
    CPU_FREE(set);
}

void* work(void* argument) {
    const int64_t index = reinterpret_cast<int64_t>(argument);
    uint32_t seen = 0;
    for (;;) {
        wait_for_change(team.start, seen, kIdleSpinNs);
        ++seen;
        if (team.is_stopping) return nullptr;
        team.body(team.context, index, team.num_threads);
        minnow_team_barrier();
    }
}

// Address space; where the system promises no more than it has, less of it. The page behind it may not be touched.
char* map_memory(int64_t num_bytes) {
    for (; num_bytes >= kScratchBytes / 4; num_bytes /= 2) {
        void* place = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                           0);
        if (place == MAP_FAILED) continue;
        madvise(place, num_bytes, MADV_HUGEPAGE);
        return static_cast<char*>(place);
    }
    abort();  // nothing else would work either
}

void stop_workers() {
    if (owner == getpid() && team.num_threads > 1) {
        team.is_stopping = true;
        advance(team.start);
        for (int64_t i = 1; i < team.num_threads; ++i) pthread_join(team.workers[i], nullptr);
    }
    team.is_stopping = false;
    team.start = {};
    team.phase = {};
    team.arrived = {};
    team.next_item = 0;
}

// Start workers until there are as many threads as asked for, or the system gives no more.
void start_workers(int64_t num_threads) {
    owner = getpid();
    team.num_threads = num_threads;
    if (shared == nullptr) shared = map_memory(kSharedBytes);
    for (int64_t i = 0; i < num_threads; ++i) {
        if (team.scratch[i] == nullptr) team.scratch[i] = map_memory(kScratchBytes);
    }
    for (int64_t i = 1; i < num_threads; ++i) {
        if (pthread_create(&team.workers[i], nullptr, work, reinterpret_cast<void*>(i)) != 0) {
            team.num_threads = i;  // a limit on processes: those that there are will do
            return;
        }
        if (team.cpus[i] >= 0) pin(team.workers[i], team.cpus[i]);
    }
}

}  // namespace

// Make the team num_threads large; the caller of runs is one of them. cpus: one for each thread, or null: not pinned.
// The first is the caller's own, which is left alone: runs may come from another thread than this.
extern "C" __attribute__((visibility("default"))) void minnow_set_threads(int64_t num_threads, const int32_t* cpus) {
    if (num_threads < 1) num_threads = 1;
    if (num_threads > kMaxThreads) num_threads = kMaxThreads;
    pthread_mutex_lock(&lock);
    stop_workers();
    for (int64_t i = 0; i < num_threads; ++i) team.cpus[i] = cpus == nullptr ? -1 : cpus[i];
    start_workers(num_threads);
    pthread_mutex_unlock(&lock);
}

extern "C" __attribute__((visibility("default"))) int64_t minnow_num_threads() {
    return team.num_threads < 1 ? 1 : team.num_threads;
}

extern "C" void minnow_team_run(minnow_body body, void* context) {
    pthread_mutex_lock(&lock);
    if (team.num_threads > 1 && owner != getpid()) {  // a forked child: its workers stayed with the parent
        const int64_t num_threads = team.num_threads;
        stop_workers();
        start_workers(num_threads);
    }
    if (team.num_threads <= 1) {
        pthread_mutex_unlock(&lock);
        minnow_team_run_alone(body, context);
        return;
    }
    team.body = body;
    team.context = context;
    advance(team.start);
    body(context, 0, team.num_threads);
    minnow_team_barrier();
    pthread_mutex_unlock(&lock);
}

extern "C" void minnow_team_run_alone(minnow_body body, void* context) { body(context, 0, 1); }

extern "C" void minnow_team_barrier(void) {
    const uint32_t phase = __atomic_load_n(&team.phase.word.value, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&team.arrived.value, 1, __ATOMIC_ACQ_REL) == static_cast<uint32_t>(team.num_threads)) {
        // The last one: nobody takes items or arrives until the phase moves on.
        __atomic_store_n(&team.arrived.value, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&team.next_item, 0, __ATOMIC_RELAXED);
        advance(team.phase);
    } else {
        wait_for_change(team.phase, phase, kBarrierSpinNs);
    }
}

extern "C" int64_t minnow_team_next(void) {
#if defined(__SANITIZE_THREAD__)
    sched_yield();  // else one thread takes all items of a small loop, and there is no race to see
#endif
    return __atomic_fetch_add(&team.next_item, 1, __ATOMIC_RELAXED);
}

extern "C" char* minnow_team_scratch(int64_t index) {
    if (index >= 0) return team.scratch[index];
    if (lone_scratch == nullptr) lone_scratch = map_memory(kScratchBytes);
    return lone_scratch;
}

extern "C" char* minnow_team_shared(int64_t index) {
    if (index >= 0) return shared;
    if (lone_shared == nullptr) lone_shared = map_memory(kSharedBytes);
    return lone_shared;
}
