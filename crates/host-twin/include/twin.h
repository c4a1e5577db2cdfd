/*! A kernel's surroundings on a host processor: makes CUDA sources compile with a C++17 compiler of the host.
 *
 * The names are those of the CUDA C++ Programming Guide; one that is missing does not compile. The runtime
 * (`crates/host-twin/src`) does all that waits or that others see, and knows each lane's file and line. Lanes
 * take turns where they wait. With weak memory the seed interrupts them elsewhere too: only the source keeps
 * them in step. With direct memory (`db_twin_here.direct`) atomics bypass the runtime.
 *
 * Stricter than a GPU, as the guide allows: __activemask() is the caller alone; lanes of a warp share no
 * clock; a mask whose lanes cannot come is an error that names them, not undefined behaviour.
 *
 * `__shared__`: the build rewrites these declarations in the source itself
 * (`crates/host-twin/build/src/shared.rs`); in a header they do not compile.
 *
 * Left out: clusters, coalesced groups, textures, match and reduce, printf, symbols that the host copies to.
 */
#ifndef DB_TWIN_H
#define DB_TWIN_H

#ifndef __cplusplus
#error "twin.h: kernels are C++"
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility> /* nothing of these is linked but libm */

typedef unsigned int db_twin_u32;
typedef unsigned long long db_twin_u64;

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __constant__ static
#define __align__(bytes) alignas(bytes)
#define __restrict__ __restrict
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

/* ---- The runtime --------------------------------------------------------------------------------------- */

/* Numbers of `What` in src/site.rs. */
enum db_twin_what {
    DB_TWIN_LOAD = 1,
    DB_TWIN_STORE,
    DB_TWIN_ATOMIC,
    DB_TWIN_FENCE,
    DB_TWIN_TIME,
    DB_TWIN_SYNCWARP,
    DB_TWIN_BALLOT,
    DB_TWIN_ANY,
    DB_TWIN_ALL,
    DB_TWIN_SHUFFLE,
    DB_TWIN_SYNCTHREADS
};

/* The scope of a fence, PTX's `.cta`, `.gpu` and `.sys`; 0 is no fence. */
enum db_twin_scope { DB_TWIN_RELAXED, DB_TWIN_CTA, DB_TWIN_GPU, DB_TWIN_SYS };

/* What an atomic does with the word and its operand. */
enum db_twin_operation {
    DB_TWIN_ADD,
    DB_TWIN_EXCHANGE,
    DB_TWIN_COMPARE_AND_SWAP,
    DB_TWIN_AND,
    DB_TWIN_OR,
    DB_TWIN_XOR
};

/* None returns in a launch that was abandoned: the lane stays where it is. */
extern "C" {
void db_twin_store(db_twin_u64 address, db_twin_u64 value, db_twin_u32 bytes, db_twin_u32 signal, const char *file,
                   int line);
db_twin_u64 db_twin_load(db_twin_u64 address, db_twin_u32 bytes, const char *file, int line);
db_twin_u64 db_twin_atomic(db_twin_u32 operation, db_twin_u64 address, db_twin_u64 operand, db_twin_u64 compared,
                           db_twin_u32 bytes, const char *file, int line);
void db_twin_fence(db_twin_u32 scope, const char *file, int line);
/* `value`: what the lane brings. What lane `from` brought; `votes`: lanes that brought anything but 0. */
db_twin_u64 db_twin_warp(db_twin_u32 what, db_twin_u32 mask, db_twin_u64 value, db_twin_u32 from, db_twin_u32 *votes,
                         const char *file, int line);
db_twin_u64 db_twin_block(db_twin_u64 vote, const char *file, int line);
void *db_twin_shared(const char *tag, const char *name, db_twin_u64 bytes, db_twin_u64 align, const char *file, int line);
/* Others go on; for a lane that waits by atomics. */
void db_twin_others(const char *file, int line);
void db_twin_pause(db_twin_u64 ns, const char *file, int line);
db_twin_u64 db_twin_clock(void);
/* Waits until a test lets this look at the clock go on. */
void db_twin_gate(const char *file, int line);
}

#include "twin_vector.h"

/* A lane's place in its launch; the runtime fills it in (`Indices` in src/control.rs). */
struct db_twin_here {
    uint3 thread, block;
    dim3 threads, blocks;
    db_twin_u32 lane, direct;
    void *dynamic;
    db_twin_u32 *grid;
    db_twin_u32 atomics;
};
extern "C" __thread struct db_twin_here db_twin_here;
#define threadIdx db_twin_here.thread
#define blockIdx db_twin_here.block
#define blockDim db_twin_here.threads
#define gridDim db_twin_here.blocks
#define warpSize 32

/* Where a call stands in the source that makes it. */
#define DB_TWIN_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- Memory -------------------------------------------------------------------------------------------- */

static inline db_twin_u64 db_twin_get(db_twin_u64 address, db_twin_u32 bytes, DB_TWIN_HERE) {
    return db_twin_load(address, bytes, file, line);
}
/* A word that another lane waits for, after a fence of that scope. */
static inline void db_twin_signal(db_twin_u64 address, db_twin_u64 value, db_twin_u32 bytes, db_twin_u32 release,
                                  DB_TWIN_HERE) {
    if (release) db_twin_fence(release, file, line);
    db_twin_store(address, value, bytes, 1, file, line);
}
/* Bytes that no reader looks for until a signal has said that they are there. */
static inline void db_twin_put(db_twin_u64 address, db_twin_u64 value, db_twin_u32 bytes, DB_TWIN_HERE) {
    db_twin_store(address, value, bytes, 0, file, line);
}
template <class T>
static inline T db_twin_change(db_twin_u32 operation, T *word, T operand, T compared, db_twin_u32 release, const char *file,
                               int line) {
    if (release) db_twin_fence(release, file, line);
    return (T)db_twin_atomic(operation, (db_twin_u64)word, (db_twin_u64)operand, (db_twin_u64)compared, sizeof(T), file,
                             line);
}

/* A lane that waits by atomics lets others go on now and then. */
#define DB_TWIN_ATOMICS_IN_A_ROW 64u
static inline void db_twin_atomic_done(const char *file, int line) {
    if (++db_twin_here.atomics % DB_TWIN_ATOMICS_IN_A_ROW == 0) db_twin_others(file, line);
}

/* What was there. `expected` is compared as bits. */
template <class T> static inline T db_twin_swap_if(T *word, T expected, T value, const char *file, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are of 4 or 8 bytes");
    if (db_twin_here.direct) {
        __atomic_compare_exchange(word, &expected, &value, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
        return expected;
    }
    db_twin_u64 bits = 0, compared = 0, old;
    memcpy(&bits, &value, sizeof(T));
    memcpy(&compared, &expected, sizeof(T));
    old = db_twin_atomic(DB_TWIN_COMPARE_AND_SWAP, (db_twin_u64)word, bits, compared, sizeof(T), file, line);
    memcpy(&value, &old, sizeof(T));
    return value;
}

/* Any change of a word. */
template <class T, class F> static inline T db_twin_update(T *word, F change, const char *file, int line) {
    T old, found;
    __atomic_load(word, &old, __ATOMIC_RELAXED);
    for (;; old = found) {
        found = db_twin_swap_if(word, old, (T)change(old), file, line);
        if (!memcmp(&found, &old, sizeof(T))) break;
    }
    if (db_twin_here.direct) db_twin_atomic_done(file, line);
    return old;
}

/* Relaxed, as CUDA's are. */
#define DB_TWIN_ATOMIC_OF(T, name, operation, builtin) \
    static inline T name(T *word, T operand, DB_TWIN_HERE) { \
        if (db_twin_here.direct) { \
            T old = builtin(word, operand, __ATOMIC_RELAXED); \
            db_twin_atomic_done(file, line); \
            return old; \
        } \
        return db_twin_change<T>(operation, word, operand, 0, DB_TWIN_RELAXED, file, line); \
    }
#define DB_TWIN_UPDATE_OF(T, name, expression) \
    static inline T name(T *word, T operand, DB_TWIN_HERE) { \
        return db_twin_update( \
            word, [=](T old) { return expression; }, file, line); \
    }
#define DB_TWIN_ATOMICS_OF(T) \
    DB_TWIN_ATOMIC_OF(T, atomicAdd, DB_TWIN_ADD, __atomic_fetch_add) \
    DB_TWIN_ATOMIC_OF(T, atomicExch, DB_TWIN_EXCHANGE, __atomic_exchange_n) \
    DB_TWIN_ATOMIC_OF(T, atomicAnd, DB_TWIN_AND, __atomic_fetch_and) \
    DB_TWIN_ATOMIC_OF(T, atomicOr, DB_TWIN_OR, __atomic_fetch_or) \
    DB_TWIN_ATOMIC_OF(T, atomicXor, DB_TWIN_XOR, __atomic_fetch_xor) \
    DB_TWIN_UPDATE_OF(T, atomicMax, old > operand ? old : operand) \
    DB_TWIN_UPDATE_OF(T, atomicMin, old < operand ? old : operand) \
    static inline T atomicCAS(T *word, T compared, T value, DB_TWIN_HERE) { \
        T old = db_twin_swap_if(word, compared, value, file, line); \
        if (db_twin_here.direct) db_twin_atomic_done(file, line); \
        return old; \
    }
DB_TWIN_ATOMICS_OF(int)
DB_TWIN_ATOMICS_OF(unsigned int)
DB_TWIN_ATOMICS_OF(unsigned long long)
DB_TWIN_UPDATE_OF(float, atomicAdd, old + operand)
DB_TWIN_UPDATE_OF(double, atomicAdd, old + operand)
DB_TWIN_UPDATE_OF(float, atomicExch, ((void)old, operand))
DB_TWIN_UPDATE_OF(int, atomicSub, old - operand)
DB_TWIN_UPDATE_OF(unsigned int, atomicSub, old - operand)
DB_TWIN_UPDATE_OF(unsigned int, atomicInc, old >= operand ? 0 : old + 1)
DB_TWIN_UPDATE_OF(unsigned int, atomicDec, old == 0 || old > operand ? operand : old - 1)

/* Through the read-only cache: a load like others here. */
template <class T> static inline T __ldg(const T *address) { return *address; }

static inline void __threadfence_block(DB_TWIN_HERE) { db_twin_fence(DB_TWIN_CTA, file, line); }
static inline void __threadfence(DB_TWIN_HERE) { db_twin_fence(DB_TWIN_GPU, file, line); }
static inline void __threadfence_system(DB_TWIN_HERE) { db_twin_fence(DB_TWIN_SYS, file, line); }

/* ---- Shared memory ------------------------------------------------------------------------------------- */

/* A block's one variable of that type; each rewritten declaration has a type of its own. */
template <class T> static inline T &db_twin_shared_of(const char *name, DB_TWIN_HERE) {
    static const char tag = 0;
    return *(T *)db_twin_shared(&tag, name, sizeof(T), alignof(T), file, line);
}
static inline void *db_twin_dynamic(void) { return db_twin_here.dynamic; }
/* The dynamic part as an array that is declared outside functions. */
template <class T> struct db_twin_dynamic_of {
    operator T *() const { return (T *)db_twin_dynamic(); }
};

/* ---- Lanes of a warp and of a block -------------------------------------------------------------------- */

#define DB_TWIN_WARP 32u

static inline db_twin_u32 db_twin_lane(void) { return db_twin_here.lane % DB_TWIN_WARP; }
static inline unsigned __activemask(void) { return 1u << db_twin_lane(); }

static inline unsigned db_twin_vote(db_twin_u32 what, unsigned mask, int predicate, const char *file, int line) {
    db_twin_u32 votes;
    db_twin_warp(what, mask, predicate != 0, 0, &votes, file, line);
    return votes;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, DB_TWIN_HERE) {
    (void)db_twin_vote(DB_TWIN_SYNCWARP, mask, 0, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, DB_TWIN_HERE) {
    return db_twin_vote(DB_TWIN_BALLOT, mask, predicate, file, line);
}
static inline int __any_sync(unsigned mask, int predicate, DB_TWIN_HERE) {
    return db_twin_vote(DB_TWIN_ANY, mask, predicate, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, DB_TWIN_HERE) {
    return db_twin_vote(DB_TWIN_ALL, mask, predicate, file, line) == mask;
}

static inline int __syncthreads_count(int predicate, DB_TWIN_HERE) {
    return (int)db_twin_block(predicate != 0, file, line);
}
static inline int __syncthreads_or(int predicate, DB_TWIN_HERE) { return __syncthreads_count(predicate, file, line) != 0; }
static inline int __syncthreads_and(int predicate, DB_TWIN_HERE) { return __syncthreads_count(!predicate, file, line) == 0; }
static inline void __syncthreads(DB_TWIN_HERE) { (void)__syncthreads_count(0, file, line); }

/* The value of lane `from`, or this lane's own if `from` is no lane; 0 from a lane outside the mask. */
template <class T>
static inline T db_twin_shuffle(unsigned mask, T value, int from, const char *file, int line) {
    static_assert(sizeof(T) <= sizeof(db_twin_u64), "a shuffle moves at most 8 bytes");
    int is_one = from >= 0 && from < (int)DB_TWIN_WARP;
    db_twin_u64 bits = 0;
    db_twin_u32 votes;
    memcpy(&bits, &value, sizeof(T));
    bits = db_twin_warp(DB_TWIN_SHUFFLE, mask, bits, is_one ? (db_twin_u32)from : 0, &votes, file, line);
    if (is_one) memcpy(&value, &bits, sizeof(T));
    return value;
}
/* The lane that a shuffle names within its segment of `width` lanes; -1 for one outside. */
static inline int db_twin_in_segment(int to, int width) {
    int lane = (int)db_twin_lane();
    return lane / width == to / width && to >= 0 ? to : -1;
}
#define DB_TWIN_SHUFFLE_OF(name, N, from) \
    template <class T> \
    static inline T name(unsigned mask, T value, N by, int width, const char *file = __builtin_FILE(), \
                         int line = __builtin_LINE()) { \
        int lane = (int)db_twin_lane(); \
        (void)lane; \
        return db_twin_shuffle(mask, value, from, file, line); \
    } \
    template <class T> static inline T name(unsigned mask, T value, N by, DB_TWIN_HERE) { \
        return name(mask, value, by, (int)DB_TWIN_WARP, file, line); \
    }
DB_TWIN_SHUFFLE_OF(__shfl_sync, int, lane / width *width + (int)((unsigned)by % (unsigned)width))
DB_TWIN_SHUFFLE_OF(__shfl_up_sync, unsigned, db_twin_in_segment(lane - (int)by, width))
DB_TWIN_SHUFFLE_OF(__shfl_down_sync, unsigned, db_twin_in_segment(lane + (int)by, width))
DB_TWIN_SHUFFLE_OF(__shfl_xor_sync, int, (lane ^ by) / width <= lane / width ? lane ^ by : -1)

/* All blocks of a cooperative launch wait for one another: word 0 counts them, word 1 how often they met. */
static inline void db_twin_grid_sync(DB_TWIN_HERE) {
    __syncthreads(file, line);
    if (db_twin_here.lane == 0) {
        db_twin_u32 *words = db_twin_here.grid, all = gridDim.x * gridDim.y * gridDim.z;
        db_twin_fence(DB_TWIN_GPU, file, line);
        db_twin_u32 met = (db_twin_u32)db_twin_get((db_twin_u64)&words[1], 4, file, line);
        if (atomicAdd(&words[0], 1u, file, line) + 1 == all) {
            atomicExch(&words[0], 0u, file, line);
            atomicAdd(&words[1], 1u, file, line);
        } else {
            while ((db_twin_u32)db_twin_get((db_twin_u64)&words[1], 4, file, line) == met) {
            }
        }
        db_twin_fence(DB_TWIN_GPU, file, line);
    }
    __syncthreads(file, line);
}

/* ---- Time and bits ------------------------------------------------------------------------------------- */

static inline void __nanosleep(unsigned ns, DB_TWIN_HERE) { db_twin_pause(ns, file, line); }
/* A look at the clock is how a kernel waits with a deadline, so that others go on meanwhile. */
static inline db_twin_u64 db_twin_now(DB_TWIN_HERE) {
#ifdef DB_TWIN_GATED_CLOCK
    db_twin_gate(file, line);
#endif
    db_twin_pause(0, file, line);
    return db_twin_clock();
}
static inline long long clock64(DB_TWIN_HERE) { return (long long)db_twin_now(file, line); }

#include "twin_math.h"

/* ---- How the runtime calls a kernel -------------------------------------------------------------------- */

/* One kernel for src/kernels.rs. */
struct db_twin_kernel {
    const char *name;
    void (*run)(void **arguments);
    db_twin_u32 parameters;
    const db_twin_u32 *sizes; /* of the parameters, in bytes */
};

/* Kernels that a build script compiled. */
struct db_twin_table {
    db_twin_u32 count;
    const struct db_twin_kernel *const *kernels;
};

/* A kernel's entry by pointers to its arguments, as cuLaunchKernel takes them. */
template <auto F> struct db_twin_entry;
template <class... A, void (*F)(A...)> struct db_twin_entry<F> {
    template <std::size_t... I> static void call(void **arguments, std::index_sequence<I...>) {
        (void)arguments;
        F(*(std::remove_const_t<A> *)arguments[I]...);
    }
    static void run(void **arguments) { call(arguments, std::index_sequence_for<A...>()); }
    static constexpr db_twin_u32 parameters = sizeof...(A);
    static constexpr db_twin_u32 sizes[] = {(db_twin_u32)sizeof(A)..., 0};
};

#endif /* DB_TWIN_H */
