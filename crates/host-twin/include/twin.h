/*! A kernel's surroundings on a host processor: makes CUDA sources compile with a C++17 compiler of the host.
 *
 * Each lane of a launch is a thread of its own, so that lanes are preempted anywhere and nothing is in lock step that the
 * source does not put in step. The names are those of the CUDA C++ Programming Guide, as far as our kernels use them; one
 * that is missing does not compile. Everything that waits or that others can see is done by the runtime (`crates/host-twin/src`),
 * which knows by file and line where each lane is.
 *
 * Stricter than a GPU, as the guide allows: __activemask() is the caller alone; lanes of a warp share no clock; a mask whose
 * lanes cannot come is an error that names them, not undefined behaviour.
 *
 * `__shared__`: the build compiles a source that uses it once for each block that can run at a time (DB_TWIN_BLOCKS), in
 * a namespace of its own, and there the variable is `static`: so all lanes of a block share it and no other block does. In
 * the source itself, that is: a header is read once for all blocks.
 * Dynamic shared memory (`extern __shared__`) and `__device__` variables do not compile here.
 *
 * Left out: clusters, cooperative groups, textures, match and reduce, printf, dimensions but x.
 */
#ifndef DB_TWIN_H
#define DB_TWIN_H

#ifndef __cplusplus
#error "twin.h: kernels are C++"
#endif

#include <utility> /* nothing of it is linked */

typedef unsigned int db_twin_u32;
typedef unsigned long long db_twin_u64;

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __shared__ static
#define __constant__ const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

/* ---- The runtime ------------------------------------------------------------------------------------------------- */

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

/* Whom a fence reaches, PTX's `.cta`, `.gpu` and `.sys`; 0 is no fence. */
enum db_twin_scope { DB_TWIN_RELAXED, DB_TWIN_CTA, DB_TWIN_GPU, DB_TWIN_SYS };

/* What an atomic does with the word and its operand. */
enum db_twin_operation {
    DB_TWIN_ADD,
    DB_TWIN_EXCHANGE,
    DB_TWIN_COMPARE_AND_SWAP,
    DB_TWIN_MAX,
    DB_TWIN_MIN,
    DB_TWIN_AND,
    DB_TWIN_OR,
    DB_TWIN_XOR
};

/* Each returns 0, or another number when the launch was given up and the lane has to leave the kernel. */
extern "C" {
int db_twin_store(db_twin_u64 address, db_twin_u64 value, db_twin_u32 bytes, db_twin_u32 signal, const char *file,
                  int line);
int db_twin_load(db_twin_u64 address, db_twin_u64 *value, db_twin_u32 bytes, const char *file, int line);
int db_twin_atomic(db_twin_u32 operation, db_twin_u64 address, db_twin_u64 operand, db_twin_u64 compared,
                   db_twin_u64 *old, db_twin_u32 bytes, const char *file, int line);
int db_twin_fence(db_twin_u32 scope, const char *file, int line);
int db_twin_warp(db_twin_u32 what, db_twin_u32 mask, db_twin_u64 value, db_twin_u64 *values, const char *file, int line);
int db_twin_block(db_twin_u64 vote, db_twin_u64 *all, const char *file, int line);
int db_twin_pause(db_twin_u64 ns, const char *file, int line);
db_twin_u64 db_twin_clock(void);
/* Waits until a test lets this look at the clock go on. */
int db_twin_gate(const char *file, int line);
/* Ends the lane's kernel, from wherever it is (src/jump.c). */
void db_twin_leave(void) __attribute__((noreturn));
}

/* A kernel's place in its launch; a lane's thread fills it in. */
struct db_twin_dim {
    db_twin_u32 x, y, z;
};
struct db_twin_here {
    struct db_twin_dim thread, block, threads, blocks;
};
extern "C" __thread struct db_twin_here db_twin_here;
#define threadIdx db_twin_here.thread
#define blockIdx db_twin_here.block
#define blockDim db_twin_here.threads
#define gridDim db_twin_here.blocks
#define warpSize 32

/* Where a call stands in the source that makes it. */
#define DB_TWIN_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define DB_TWIN_DO(call) \
    do { \
        if (call) db_twin_leave(); \
    } while (0)

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static inline db_twin_u64 db_twin_get(db_twin_u64 address, db_twin_u32 bytes, DB_TWIN_HERE) {
    db_twin_u64 value = 0;
    DB_TWIN_DO(db_twin_load(address, &value, bytes, file, line));
    return value;
}
/* A word that somebody waits for, after a fence of that scope. */
static inline void db_twin_signal(db_twin_u64 address, db_twin_u64 value, db_twin_u32 bytes, db_twin_u32 release,
                                  DB_TWIN_HERE) {
    if (release) DB_TWIN_DO(db_twin_fence(release, file, line));
    DB_TWIN_DO(db_twin_store(address, value, bytes, 1, file, line));
}
/* Bytes that nobody looks for until a signal has said that they are there. */
static inline void db_twin_put(db_twin_u64 address, db_twin_u64 value, db_twin_u32 bytes, DB_TWIN_HERE) {
    DB_TWIN_DO(db_twin_store(address, value, bytes, 0, file, line));
}
template <class T>
static inline T db_twin_change(db_twin_u32 operation, T *word, T operand, T compared, db_twin_u32 release, const char *file,
                               int line) {
    db_twin_u64 old = 0;
    if (release) DB_TWIN_DO(db_twin_fence(release, file, line));
    DB_TWIN_DO(db_twin_atomic(operation, (db_twin_u64)word, (db_twin_u64)operand, (db_twin_u64)compared, &old, sizeof(T),
                              file, line));
    return (T)old;
}

/* Relaxed, as CUDA's are. Not of signed words where the order of numbers matters: the runtime's are unsigned. */
#define DB_TWIN_ATOMIC_OF(T, name, operation) \
    static inline T name(T *word, T operand, DB_TWIN_HERE) { \
        return db_twin_change<T>(operation, word, operand, 0, DB_TWIN_RELAXED, file, line); \
    }
#define DB_TWIN_ATOMICS_OF(T) \
    DB_TWIN_ATOMIC_OF(T, atomicAdd, DB_TWIN_ADD) \
    DB_TWIN_ATOMIC_OF(T, atomicExch, DB_TWIN_EXCHANGE) \
    DB_TWIN_ATOMIC_OF(T, atomicMax, DB_TWIN_MAX) \
    DB_TWIN_ATOMIC_OF(T, atomicMin, DB_TWIN_MIN) \
    DB_TWIN_ATOMIC_OF(T, atomicAnd, DB_TWIN_AND) \
    DB_TWIN_ATOMIC_OF(T, atomicOr, DB_TWIN_OR) \
    DB_TWIN_ATOMIC_OF(T, atomicXor, DB_TWIN_XOR) \
    static inline T atomicCAS(T *word, T compared, T value, DB_TWIN_HERE) { \
        return db_twin_change<T>(DB_TWIN_COMPARE_AND_SWAP, word, value, compared, DB_TWIN_RELAXED, file, line); \
    }
DB_TWIN_ATOMICS_OF(unsigned int)
DB_TWIN_ATOMICS_OF(unsigned long long)
DB_TWIN_ATOMIC_OF(int, atomicAdd, DB_TWIN_ADD)
DB_TWIN_ATOMIC_OF(int, atomicExch, DB_TWIN_EXCHANGE)

static inline void __threadfence_block(DB_TWIN_HERE) { DB_TWIN_DO(db_twin_fence(DB_TWIN_CTA, file, line)); }
static inline void __threadfence(DB_TWIN_HERE) { DB_TWIN_DO(db_twin_fence(DB_TWIN_GPU, file, line)); }
static inline void __threadfence_system(DB_TWIN_HERE) { DB_TWIN_DO(db_twin_fence(DB_TWIN_SYS, file, line)); }

/* ---- Lanes of a warp and of a block ------------------------------------------------------------------------------- */

#define DB_TWIN_WARP 32u

static inline db_twin_u32 db_twin_lane(void) { return threadIdx.x % DB_TWIN_WARP; }
static inline unsigned __activemask(void) { return 1u << db_twin_lane(); }

static inline void __syncwarp(unsigned mask = 0xffffffffu, DB_TWIN_HERE) {
    db_twin_u64 values[DB_TWIN_WARP];
    DB_TWIN_DO(db_twin_warp(DB_TWIN_SYNCWARP, mask, 0, values, file, line));
}
static inline int __syncthreads_or(int predicate, DB_TWIN_HERE) {
    db_twin_u64 all = 0;
    DB_TWIN_DO(db_twin_block(predicate != 0, &all, file, line));
    return all != 0;
}
static inline void __syncthreads(DB_TWIN_HERE) { (void)__syncthreads_or(0, file, line); }

static inline unsigned db_twin_vote(db_twin_u32 what, unsigned mask, int predicate, const char *file, int line) {
    db_twin_u64 values[DB_TWIN_WARP];
    unsigned lane, votes = 0;
    DB_TWIN_DO(db_twin_warp(what, mask, predicate != 0, values, file, line));
    for (lane = 0; lane < DB_TWIN_WARP; lane++) votes |= (unsigned)values[lane] << lane;
    return votes;
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

/* The value of lane `from`, or this lane's own where `from` is not one. A lane outside the mask has no value: 0. */
template <class T>
static inline T db_twin_shuffle(unsigned mask, T value, int from, const char *file, int line) {
    db_twin_u64 values[DB_TWIN_WARP];
    static_assert(sizeof(T) <= sizeof(db_twin_u64) && (T)0.5 == 0, "a shuffle moves a whole number of 4 or 8 bytes");
    DB_TWIN_DO(db_twin_warp(DB_TWIN_SHUFFLE, mask, (db_twin_u64)value, values, file, line));
    return from < 0 || from >= (int)DB_TWIN_WARP ? value : (T)values[from];
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, DB_TWIN_HERE) {
    return db_twin_shuffle(mask, value, (int)((unsigned)from % DB_TWIN_WARP), file, line);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, DB_TWIN_HERE) {
    return db_twin_shuffle(mask, value, (int)db_twin_lane() - (int)by, file, line);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, DB_TWIN_HERE) {
    return db_twin_shuffle(mask, value, (int)(db_twin_lane() + by), file, line);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int bits, DB_TWIN_HERE) {
    return db_twin_shuffle(mask, value, (int)db_twin_lane() ^ bits, file, line);
}

/* ---- Time and bits ------------------------------------------------------------------------------------------------ */

static inline void __nanosleep(unsigned ns, DB_TWIN_HERE) { DB_TWIN_DO(db_twin_pause(ns, file, line)); }
/* A look at the clock is how a kernel waits with a deadline, so that it is also where a lane leaves. */
static inline db_twin_u64 db_twin_now(DB_TWIN_HERE) {
#ifdef DB_TWIN_GATED_CLOCK
    DB_TWIN_DO(db_twin_gate(file, line));
#endif
    DB_TWIN_DO(db_twin_pause(0, file, line));
    return db_twin_clock();
}
static inline long long clock64(DB_TWIN_HERE) { return (long long)db_twin_now(file, line); }

static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

/* ---- How the runtime calls a kernel -------------------------------------------------------------------------------- */

/* One kernel for src/kernels.rs. */
struct db_twin_kernel {
    const char *name;
    void (*const *runs)(void **arguments); /* one for each block that can run at a time; a lone one serves all */
    db_twin_u32 blocks;                    /* how many */
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
        F(*(A *)arguments[I]...);
    }
    static void run(void **arguments) { call(arguments, std::index_sequence_for<A...>()); }
    static constexpr db_twin_u32 parameters = sizeof...(A);
    static constexpr db_twin_u32 sizes[] = {(db_twin_u32)sizeof(A)..., 0};
};

#endif /* DB_TWIN_H */
