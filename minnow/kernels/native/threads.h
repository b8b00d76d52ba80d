// a team of threads: parallel loops, barriers that spin for a bounded while and then sleep, scratch memory
//
// One team serves the process (threads.cpp). Work is written as a body that every thread runs with its own `Team`;
// loops inside it share out items, and each loop ends in a barrier:
//
//     run([&](Team& team) {
//         team.for_each(num_items, [&](int64_t item) { ... });   // any thread takes the next item
//         team.for_each(num_others, [&](int64_t item) { ... });  // all of the first loop is done here
//     });
//
// Which thread computes an item never changes its result.
#pragma once

#include <stdint.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

extern "C" {
typedef void (*minnow_body)(void* context, int64_t index, int64_t num_threads);
// Run a body on every thread of the team, the caller among them, and wait for all. Not to be nested.
__attribute__((visibility("hidden"))) void minnow_team_run(minnow_body body, void* context);
// Run it on the calling thread alone, as a team of one.
__attribute__((visibility("hidden"))) void minnow_team_run_alone(minnow_body body, void* context);
__attribute__((visibility("hidden"))) void minnow_team_barrier(void);
__attribute__((visibility("hidden"))) int64_t minnow_team_next(void);
// How far a thread is in a list of chunks of memory.
struct minnow_place {
    char* top;
    char* end;    // of the chunk
    void* chunk;  // threads.cpp knows what it is
};
// The beginnings of a thread's own list and of the team's. A thread that runs alone (index -1) has both for itself.
__attribute__((visibility("hidden"))) void minnow_team_memory(int64_t index, minnow_place* own, minnow_place* shared);
// Go on to a later chunk with room for so many bytes. It is taken from the system if there is none: one at least twice
// as large as the one before, so that a list is never longer than a few chunks nor four times what was needed at once.
__attribute__((visibility("hidden"))) void minnow_team_grow(minnow_place* place, int64_t num_bytes);
}

namespace MINNOW_ISA {

constexpr int64_t kCacheLine = 64;

// `make sanitize` looks for races in loops of any size, and for steps past the end of scratch memory.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kGuardBytes = kCacheLine;
#else
constexpr int64_t kGuardBytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool kIsAlwaysWorthIt = true;
#else
constexpr bool kIsAlwaysWorthIt = false;
#endif

// Scratch memory as a stack: what a Scratch took is free again when it goes out of scope.
class Scratch {
public:
    explicit Scratch(minnow_place* place) : place_(place), saved_(*place) {}
    ~Scratch() { *place_ = saved_; }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // num_items of uninitialised T, on a cache line of their own.
    template <class T>
    T* take(int64_t num_items) {
        const int64_t num_bytes = num_items * static_cast<int64_t>(sizeof(T));
        const int64_t step = (num_bytes / kCacheLine + 1) * kCacheLine + kGuardBytes;  // nothing has a place, too
        if (step > place_->end - place_->top) minnow_team_grow(place_, step);
        char* found = place_->top;
        place_->top = found + step;
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(found, num_bytes);
        __asan_poison_memory_region(found + num_bytes, step - num_bytes);
#endif
        return reinterpret_cast<T*>(found);
    }

private:
    minnow_place* place_;
    minnow_place saved_;
};

struct Team {
    int64_t index;
    int64_t num_threads;
    minnow_place own_place;
    minnow_place shared_place;

    // This thread's own.
    inline Scratch scratch() { return Scratch(&own_place); }

    // The same memory for every thread of the team, as long as all take the same from it in the same order. It may be
    // taken again by what follows the next barrier after its end.
    inline Scratch shared() { return Scratch(&shared_place); }

    inline void barrier() const {
        if (num_threads > 1) minnow_team_barrier();
    }

    // Items [0, num_items), each by whichever thread is free; returns when all are done. A single item is thread 0's.
    template <class Body>
    inline void for_each(int64_t num_items, Body&& body) {
        if (num_threads == 1) {
            for (int64_t item = 0; item < num_items; ++item) body(item);
            return;
        }
        if (num_items == 1) {
            if (index == 0) body(int64_t{0});
        } else {
            for (int64_t item = minnow_team_next(); item < num_items; item = minnow_team_next()) body(item);
        }
        minnow_team_barrier();
    }
};

// Run body(Team&) on every thread; a body that is not worth waking others for runs on the caller alone.
template <class Body>
inline void run(bool is_worth_it, Body&& body) {
    struct Call {
        static void enter(void* context, int64_t index, int64_t num_threads) {
            Team team = {index, num_threads, {}, {}};
            minnow_team_memory(num_threads == 1 ? -1 : index, &team.own_place, &team.shared_place);
            (*static_cast<Body*>(context))(team);
        }
    };
    void* context = const_cast<void*>(static_cast<const void*>(&body));
    if (is_worth_it || kIsAlwaysWorthIt) {
        minnow_team_run(&Call::enter, context);
    } else {
        minnow_team_run_alone(&Call::enter, context);
    }
}

}  // namespace MINNOW_ISA
