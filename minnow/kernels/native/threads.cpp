// the process's team of threads: pinned, woken by a bounded spin and then a futex; compiled once, for any processor
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "threads.h"

namespace {

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kPageBytes = int64_t{2} << 20;  // a huge one; the first chunk of a list is as large
// Waits shorter than a futex's round trip (some 50 us) are spun through; a thread whose partner lost its core sleeps. A
// team of more threads than CPUs does not spin: it would keep away those that it waits for.
constexpr int64_t kBarrierSpinNs = 60'000;
constexpr int64_t kIdleSpinNs = 500'000;
constexpr int kPausesPerLook = 32;

struct alignas(64) Word {
    uint32_t value;
};

// A word that threads wait on, and how many of them sleep.
struct Gate {
    Word word;
    Word num_sleepers;
};

// Memory with its description in front. Lists only grow while the team runs: all its threads find the same ones.
struct alignas(64) Chunk {
    Chunk* next;
    int64_t num_bytes;  // with this description
};

struct Team {
    Gate start;    // counts runs
    Gate phase;    // counts barriers
    Word arrived;  // threads that wait at the barrier
    alignas(64) int64_t next_item;
    alignas(64) int64_t num_threads;  // the caller among them
    bool has_workers;  // the child of a fork has none yet
    bool may_spin;
    minnow_body body;
    void* context;
    bool is_stopping;
    pthread_t workers[kMaxThreads];
    int32_t cpus[kMaxThreads];  // -1: not pinned
    Chunk own[kMaxThreads];     // empty ones: heads of lists
    Chunk shared;
};

Team team;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    // one run at a time
pthread_mutex_t growth = PTHREAD_MUTEX_INITIALIZER;  // of a list
pthread_key_t when_thread_ends;
int64_t num_cpus;  // that the process had when it loaded this
__thread Chunk lone[2];  // heads of a thread that runs alone: its own list, and what it shares with nobody

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
    const int64_t until = team.may_spin ? now_ns() + spin_ns : 0;
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

// There is nobody to return to: the other threads of the team would wait for this one.
[[noreturn]] void give_up(int64_t num_bytes) {
    fprintf(stderr,
            "minnow: the system gives no %lld MiB for the scratch memory of a kernel; raise the limit of memory "
            "(ulimit -v, or the container's) or lower --max-num-batched-tokens\n",
            static_cast<long long>(num_bytes >> 20));
    abort();
}

// Whole huge pages: the edges of a larger mapping go back.
Chunk* map_chunk(int64_t num_bytes) {
    num_bytes = (num_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* mapped = mmap(nullptr, num_bytes + kPageBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) give_up(num_bytes);
    char* start = static_cast<char*>(mapped);
    const int64_t before = -reinterpret_cast<int64_t>(start) & (kPageBytes - 1);
    if (before > 0) munmap(start, before);
    munmap(start + before + num_bytes, kPageBytes - before);
    Chunk* chunk = reinterpret_cast<Chunk*>(start + before);
    madvise(chunk, num_bytes, MADV_HUGEPAGE);
    *chunk = {nullptr, num_bytes};
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(chunk + 1, num_bytes - static_cast<int64_t>(sizeof(Chunk)));
#endif
    return chunk;
}

void free_chunks(Chunk& head) {
    for (Chunk* chunk = head.next; chunk != nullptr;) {
        Chunk* next = chunk->next;
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(chunk, chunk->num_bytes);
#endif
        munmap(chunk, chunk->num_bytes);
        chunk = next;
    }
    head.next = nullptr;
}

void free_lone(void* heads) {
    free_chunks(static_cast<Chunk*>(heads)[0]);
    free_chunks(static_cast<Chunk*>(heads)[1]);
}

// What threads meet at is again as before the first run.
void forget_workers() {
    team.has_workers = false;
    team.is_stopping = false;
    team.start = {};
    team.phase = {};
    team.arrived = {};
    team.next_item = 0;
}

void stop_workers() {
    if (team.has_workers) {
        team.is_stopping = true;
        advance(team.start);
        for (int64_t i = 1; i < team.num_threads; ++i) pthread_join(team.workers[i], nullptr);
    }
    forget_workers();
    for (Chunk& head : team.own) free_chunks(head);
    free_chunks(team.shared);
}

// The child of a fork has only the thread that called it; another may have been in the middle of a run.
void begin_child() {
    lock = PTHREAD_MUTEX_INITIALIZER;
    growth = PTHREAD_MUTEX_INITIALIZER;
    forget_workers();
}

__attribute__((constructor)) void begin_process() {
    cpu_set_t allowed;  // of more CPUs than it can hold nothing is known
    num_cpus = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : kMaxThreads;
    if (pthread_key_create(&when_thread_ends, free_lone) != 0) abort();  // no memory for some bytes
    if (pthread_atfork(nullptr, nullptr, begin_child) != 0) abort();
}

// Start workers until there are as many threads as asked for, or the system gives no more.
void start_workers(int64_t num_threads) {
    team.num_threads = num_threads;
    team.has_workers = true;
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
// The first is left to the thread that calls runs, see minnow_pin_caller: it may be another than this.
extern "C" __attribute__((visibility("default"))) void minnow_set_threads(int64_t num_threads, const int32_t* cpus) {
    if (num_threads < 1) num_threads = 1;
    if (num_threads > kMaxThreads) num_threads = kMaxThreads;
    pthread_mutex_lock(&lock);
    stop_workers();
    for (int64_t i = 0; i < num_threads; ++i) team.cpus[i] = cpus == nullptr ? -1 : cpus[i];
    team.may_spin = num_threads <= num_cpus;
    start_workers(num_threads);
    pthread_mutex_unlock(&lock);
}

// Keep the calling thread to the team's first CPU, beside which workers have theirs.
extern "C" __attribute__((visibility("default"))) void minnow_pin_caller() {
    pthread_mutex_lock(&lock);
    if (team.num_threads > 1 && team.cpus[0] >= 0) pin(pthread_self(), team.cpus[0]);
    pthread_mutex_unlock(&lock);
}

extern "C" __attribute__((visibility("default"))) int64_t minnow_num_threads() {
    return team.num_threads < 1 ? 1 : team.num_threads;
}

extern "C" void minnow_team_run(minnow_body body, void* context) {
    pthread_mutex_lock(&lock);
    if (team.num_threads > 1 && !team.has_workers) start_workers(team.num_threads);
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

extern "C" void minnow_team_memory(int64_t index, minnow_place* own, minnow_place* shared) {
    if (index < 0 && lone[0].next == nullptr && lone[1].next == nullptr) pthread_setspecific(when_thread_ends, lone);
    *own = {nullptr, nullptr, index < 0 ? &lone[0] : &team.own[index]};
    *shared = {nullptr, nullptr, index < 0 ? &lone[1] : &team.shared};
}

extern "C" void minnow_team_grow(minnow_place* place, int64_t num_bytes) {
    const int64_t needed = num_bytes + static_cast<int64_t>(sizeof(Chunk));
    Chunk* chunk = static_cast<Chunk*>(place->chunk);
    pthread_mutex_lock(&growth);
    do {
        if (chunk->next == nullptr) {
            const int64_t doubled = 2 * chunk->num_bytes;
            chunk->next = map_chunk(doubled > needed ? doubled : needed);
        }
        chunk = chunk->next;
    } while (chunk->num_bytes < needed);
    pthread_mutex_unlock(&growth);
    *place = {reinterpret_cast<char*>(chunk + 1), reinterpret_cast<char*>(chunk) + chunk->num_bytes, chunk};
}
