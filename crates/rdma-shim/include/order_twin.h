/*! Ordering primitives of the host twin: kernels on a host processor. See order.h; twin.h has CUDA's names.
 *
 * The contract is order_cuda.h's, not order_host.h's: each store waits in the launch's store buffer and
 * becomes visible when and in the order the seed chooses, unless a fence or barrier forbids it: what fails on
 * a GPU fails on x86 too. The buffer, with PTX ISA sections: crates/host-twin/src/memory.rs. In short:
 *
 *   primitive                                    becomes visible
 *   db_store*, db_copy, db_store_record,         later, in any order; to the lane itself at once
 *   db_store_register*, db_store_relaxed*
 *   db_order_wqe_before_record,                  what the lane has stored, or met at a barrier: to all, now
 *   db_order_record_before_register,             (fence.acq_rel.sys)
 *   db_release_cqes
 *   db_store_release*                            the same for the grid's lanes (.gpu) or all (_sys), then
 *                                                the word itself, later
 *   db_order_wqe_before_mark                     the same for the grid (fence.acq_rel.gpu)
 *   db_fetch_add_acq_rel64,                      the same for the grid, then the word, now
 *   db_fetch_and_release64,
 *   db_compare_swap_acq_rel64
 *   db_fetch_add64, db_fetch_add_acquire64,
 *   db_exchange_acquire32, db_compare_swap32,
 *   db_compare_swap_acquire64                    the word, now, after older stores to it; nothing else
 *   db_warp_sync, db_block_sync, db_block_any    what a lane saw before, to all lanes of the warp or block
 *   db_warp_ballot, db_warp_shuffle*             nothing: they order no memory (CUDA C++ Programming Guide)
 *   db_order_wqe_before_register, db_flush_register, db_acquire_cqe     nothing, as on a GPU
 *
 * «Later»: bytes of WQEs and payloads up to a fifth of a second, other words less than a millisecond.
 *
 * What a primitive stored must be loaded by a primitive. Loads are performed where they stand: acquire and
 * relaxed ones are alike here.
 */
#ifndef DB_ORDER_TWIN_H
#define DB_ORDER_TWIN_H

#include "twin.h"

/* Byte order: everything that the device reads or writes, except payload and single bytes, is big-endian. */
DB_FN db_u16 db_be16(db_u16 value) { return __builtin_bswap16(value); }
DB_FN db_u32 db_be32(db_u32 value) { return __builtin_bswap32(value); }
DB_FN db_u64 db_be64(db_u64 value) { return __builtin_bswap64(value); }

/* A defect to plant: a fence missing or of GPU scope only. Tests define one and see the kernel fail. */
#if defined(DB_DEFECT_NO_WQE_FENCE)
#define DB_TWIN_WQE_FENCE DB_TWIN_RELAXED
#elif defined(DB_DEFECT_GPU_SCOPE)
#define DB_TWIN_WQE_FENCE DB_TWIN_GPU
#else
#define DB_TWIN_WQE_FENCE DB_TWIN_SYS
#endif
#if defined(DB_DEFECT_GPU_SCOPE)
#define DB_TWIN_RECORD_FENCE DB_TWIN_GPU
#else
#define DB_TWIN_RECORD_FENCE DB_TWIN_SYS
#endif
#if defined(DB_DEFECT_RELAXED_RELEASE)
#define DB_TWIN_RELEASE(scope) DB_TWIN_RELAXED
#else
#define DB_TWIN_RELEASE(scope) scope
#endif

DB_FN void db_twin_order(db_u32 scope, DB_TWIN_HERE) {
    if (scope) db_twin_fence(scope, file, line);
}

/* Memory of the queue's owner. */
DB_FN void db_store32(db_u64 address, db_u32 value, DB_TWIN_HERE) { db_twin_put(address, value, 4, file, line); }
DB_FN void db_store64(db_u64 address, db_u64 value, DB_TWIN_HERE) { db_twin_put(address, value, 8, file, line); }
DB_FN void db_copy(db_u64 to, db_u64 from, db_u32 bytes, DB_TWIN_HERE) {
    db_u32 i = 0;
    if (!((to | from) & 3))
        for (; i + 4 <= bytes; i += 4) db_twin_put(to + i, db_twin_get(from + i, 4, file, line), 4, file, line);
    for (; i < bytes; i++) db_twin_put(to + i, db_twin_get(from + i, 1, file, line), 1, file, line);
}
/* A vector store: two accesses without an order (PTX ISA §8.2). */
DB_FN void db_store_segment(db_u64 address, db_u64 first, db_u64 second, DB_TWIN_HERE) {
    db_twin_put(address, first, 8, file, line);
    db_twin_put(address + 8, second, 8, file, line);
}

DB_FN void db_store_words(db_u64 address, const db_u32 words[4], DB_TWIN_HERE) {
    db_store_segment(address, words[0] | (db_u64)words[1] << 32, words[2] | (db_u64)words[3] << 32, file, line);
}
DB_FN db_u32 db_hidden_zero(db_u32 which) { return which & 0; }

/* ---- Edges of a post, in program order ----------------------------------------------------------------- */

DB_FN void db_order_wqe_before_record(DB_TWIN_HERE) { db_twin_order(DB_TWIN_WQE_FENCE, file, line); }
DB_FN void db_order_record_before_register(DB_TWIN_HERE) { db_twin_order(DB_TWIN_RECORD_FENCE, file, line); }
DB_FN void db_order_wqe_before_register(void) {}
DB_FN void db_flush_register(void) {}

/* ---- Stores and loads that the device sees ------------------------------------------------------------- */

DB_FN void db_store_record(db_u64 address, db_u32 big_endian, DB_TWIN_HERE) {
    db_twin_signal(address, big_endian, 4, 0, file, line);
}
DB_FN void db_store_register(db_u64 address, db_u64 as_in_memory, DB_TWIN_HERE) {
    db_twin_signal(address, as_in_memory, 8, 0, file, line);
}
DB_FN void db_store_register_chunk(db_u64 to, db_u64 from, DB_TWIN_HERE) {
    db_u32 word;
    for (word = 0; word < 8; word++)
        db_twin_signal(to + 8 * word, db_twin_get(from + 8 * word, 8, file, line), 8, 0, file, line);
}
DB_FN db_u64 db_load_cqe_tail(db_u64 address, DB_TWIN_HERE) { return db_twin_get(address, 8, file, line); }
DB_FN db_u8 db_load_owner(db_u64 address, DB_TWIN_HERE) { return (db_u8)db_twin_get(address, 1, file, line); }
DB_FN void db_acquire_cqe(void) {}
DB_FN void db_release_cqes(DB_TWIN_HERE) { db_twin_order(DB_TWIN_SYS, file, line); }
DB_FN db_u16 db_load16(db_u64 address, DB_TWIN_HERE) { return (db_u16)db_twin_get(address, 2, file, line); }
DB_FN db_u32 db_load32(db_u64 address, DB_TWIN_HERE) { return (db_u32)db_twin_get(address, 4, file, line); }

/* ---- What only a GPU has: see doorbell_gpu.h ----------------------------------------------------------- */

#define DB_GPU_FN static inline
#define DB_GPU_FN_OUTLINED static inline

DB_GPU_FN db_u32 db_lane(void) { return db_twin_lane(); }
DB_GPU_FN void db_warp_sync(DB_TWIN_HERE) { __syncwarp(0xffffffffu, file, line); }
DB_GPU_FN db_u32 db_warp_ballot(int predicate, DB_TWIN_HERE) {
    return __ballot_sync(0xffffffffu, predicate, file, line);
}
DB_GPU_FN db_u32 db_warp_shuffle32(db_u32 value, db_u32 lane, DB_TWIN_HERE) {
    return __shfl_sync(0xffffffffu, value, (int)lane, file, line);
}
DB_GPU_FN db_u64 db_warp_shuffle64(db_u64 value, db_u32 lane, DB_TWIN_HERE) {
    return __shfl_sync(0xffffffffu, value, (int)lane, file, line);
}
DB_GPU_FN db_u32 db_warp_shuffle_up32(db_u32 value, db_u32 by, DB_TWIN_HERE) {
    return __shfl_up_sync(0xffffffffu, value, by, file, line);
}
DB_GPU_FN db_u32 db_block_thread(void) { return threadIdx.x; }
DB_GPU_FN db_u32 db_block_threads(void) { return blockDim.x; }
DB_GPU_FN void db_block_sync(DB_TWIN_HERE) { __syncthreads(file, line); }
DB_GPU_FN int db_block_any(int predicate, DB_TWIN_HERE) { return __syncthreads_or(predicate, file, line); }

#define DB_LOAD_FN(name, type) \
    DB_GPU_FN type name(const type *word, DB_TWIN_HERE) { return (type)db_twin_get((db_u64)word, sizeof(type), file, line); }
#define DB_STORE_FN(name, type, scope)                                     \
    DB_GPU_FN void name(type *word, type value, DB_TWIN_HERE) {            \
        db_twin_signal((db_u64)word, value, sizeof(type), scope, file, line); \
    }
#define DB_ATOMIC_FN(name, type, what, scope)                                    \
    DB_GPU_FN type name(type *word, type value, DB_TWIN_HERE) {                  \
        return db_twin_change<type>(what, word, value, 0, scope, file, line);    \
    }
#define DB_SWAP_FN(name, type, scope)                                                                      \
    DB_GPU_FN type name(type *word, type expected, type value, DB_TWIN_HERE) {                             \
        return db_twin_change<type>(DB_TWIN_COMPARE_AND_SWAP, word, value, expected, scope, file, line);   \
    }

DB_LOAD_FN(db_load_relaxed32, db_u32)
DB_LOAD_FN(db_load_relaxed64, db_u64)
DB_LOAD_FN(db_load_acquire32, db_u32)
DB_LOAD_FN(db_load_acquire64, db_u64)
DB_STORE_FN(db_store_relaxed32, db_u32, 0)
DB_STORE_FN(db_store_relaxed64, db_u64, 0)
DB_STORE_FN(db_store_release32, db_u32, DB_TWIN_RELEASE(DB_TWIN_GPU))
DB_STORE_FN(db_store_release64, db_u64, DB_TWIN_RELEASE(DB_TWIN_GPU))
#ifdef DB_DEFECT_ONE_POSTER
DB_GPU_FN db_u64 db_fetch_add64(db_u64 *word, db_u64 value, DB_TWIN_HERE) {
    db_u64 old = db_twin_get((db_u64)word, 8, file, line);
    db_twin_signal((db_u64)word, old + value, 8, 0, file, line);
    return old;
}
DB_GPU_FN db_u64 db_fetch_add_acquire64(db_u64 *word, db_u64 value, DB_TWIN_HERE) {
    return db_fetch_add64(word, value, file, line);
}
#else
DB_ATOMIC_FN(db_fetch_add64, db_u64, DB_TWIN_ADD, DB_TWIN_RELAXED)
DB_ATOMIC_FN(db_fetch_add_acquire64, db_u64, DB_TWIN_ADD, DB_TWIN_RELAXED)
#endif
DB_ATOMIC_FN(db_fetch_add_acq_rel64, db_u64, DB_TWIN_ADD, DB_TWIN_RELEASE(DB_TWIN_GPU))
DB_ATOMIC_FN(db_fetch_and_release64, db_u64, DB_TWIN_AND, DB_TWIN_RELEASE(DB_TWIN_GPU))
DB_ATOMIC_FN(db_exchange_acquire32, db_u32, DB_TWIN_EXCHANGE, DB_TWIN_RELAXED)
DB_SWAP_FN(db_compare_swap32, db_u32, DB_TWIN_RELAXED)
DB_SWAP_FN(db_compare_swap_acquire64, db_u64, DB_TWIN_RELAXED)
DB_SWAP_FN(db_compare_swap_acq_rel64, db_u64, DB_TWIN_RELEASE(DB_TWIN_GPU))

DB_GPU_FN void db_acquire_room(void) {}
/* Every byte of the WQEs before the mark that says they are filled, for the thread that rings. */
DB_GPU_FN void db_order_wqe_before_mark(DB_TWIN_HERE) { db_twin_order(DB_TWIN_RELEASE(DB_TWIN_GPU), file, line); }

#define DB_MARKS 32u
#define DB_LANE_MARKS 8u
DB_GPU_FN db_u32 db_first_other_mark(db_u64 address, db_u32 ahead, db_u32 value, db_u32 marks, DB_TWIN_HERE) {
    db_u32 mark;
    for (mark = ahead; mark < marks; mark++)
        if ((db_u32)db_twin_get(address + 4 * mark, 4, file, line) != value) return mark;
    return marks;
}

DB_GPU_FN db_u32 db_load_acquire_sys32(db_u64 address, DB_TWIN_HERE) {
    return (db_u32)db_twin_get(address, 4, file, line);
}
DB_GPU_FN void db_store_release_sys32(db_u64 address, db_u32 value, DB_TWIN_HERE) {
    db_twin_signal(address, value, 4, DB_TWIN_RELEASE(DB_TWIN_SYS), file, line);
}
DB_GPU_FN void db_store_release_sys64(db_u64 address, db_u64 value, DB_TWIN_HERE) {
    db_twin_signal(address, value, 8, DB_TWIN_RELEASE(DB_TWIN_SYS), file, line);
}

DB_GPU_FN db_u64 db_clock_ns(DB_TWIN_HERE) { return db_twin_now(file, line); }

#endif /* DB_ORDER_TWIN_H */
