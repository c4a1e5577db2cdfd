/*! Ordering primitives for NVIDIA GPUs, sm_70 and newer. See order.h.
 *
 * Sources: PTX ISA 8.8, "Memory Consistency Model" (scopes §8.5, release and acquire patterns §8.7, causality
 * §8.9.5: a release is cumulative, so one fence covers the other threads' writes that this one has observed),
 * `fence` §9.7.13, `st.mmio` §9.7.9 (exactly one access, `.relaxed.sys` only up to PTX 9.0).
 * Why `.sys`: the observer is a device across PCIe, outside `.gpu`. Peers use `.gpu` for rings in GPU memory,
 * where PCIe reads a store that has reached L2; we do not until seen on hardware.
 */
#ifndef DB_ORDER_CUDA_H
#define DB_ORDER_CUDA_H

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)

/* Byte order, by the one instruction that permutes bytes: from shifts or __byte_perm the compiler makes four
 * to six instructions in the loops that post. */
DB_FN db_u16 db_be16(db_u16 value) { return (db_u16)(value << 8 | value >> 8); }
DB_FN db_u32 db_be32(db_u32 value) {
    db_u32 swapped;
    asm("prmt.b32 %0, %1, 0, 0x0123;" : "=r"(swapped) : "r"(value));
    return swapped;
}
DB_FN db_u64 db_be64(db_u64 value) { return (db_u64)db_be32((db_u32)value) << 32 | db_be32((db_u32)(value >> 32)); }

/* Memory of the queue's owner. Plain (weak) stores; the fences below order them. */
DB_FN void db_store32(db_u64 address, db_u32 value) { *(db_u32 *)address = value; }
DB_FN void db_store64(db_u64 address, db_u64 value) { *(db_u64 *)address = value; }

/* Inline payload: words where both sides are aligned, else bytes. */
DB_FN void db_copy(db_u64 to, db_u64 from, db_u32 bytes) {
    db_u32 i = 0;
    if (!((to | from) & 3))
        for (; i + 4 <= bytes; i += 4) *(db_u32 *)(to + i) = *(const db_u32 *)(from + i);
    for (; i < bytes; i++) *(db_u8 *)(to + i) = *(const db_u8 *)(from + i);
}

/* A 16-byte segment of a WQE as one vector store: half the PCIe transactions of two 8-byte ones. */
DB_FN void db_store_segment(db_u64 address, db_u64 first, db_u64 second) {
    *(ulonglong2 *)address = make_ulonglong2(first, second);
}

/* The same of four words. */
DB_FN void db_store_words(db_u64 address, const db_u32 words[4]) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

/* Four zeroes that the compiler knows neither to be 0 nor to be equal: no lane is below or above itself, none
 * above the first or below the last. What is combined with one stays in its thread's registers, where a
 * vector store needs it; constants and kernel arguments would be moved there each time. */
DB_FN db_u32 db_hidden_zero(db_u32 which) {
    db_u32 below, above;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
    asm volatile("mov.u32 %0, %%lanemask_gt;" : "=r"(above));
    return which == 0 ? below >> 31 : which == 1 ? above & 1 : which == 2 ? below & above : (below & above) >> 1;
}

/* ---- Edges of a post, in program order ----------------------------------------------------------------- */

/* Every byte of the WQEs before the doorbell record and the register: the fence precedes both. It also covers
 * WQEs that other lanes wrote, once this thread has observed that they are done. */
DB_FN void db_order_wqe_before_record(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/* Record before register, the third edge, in the `strict` order. A release store to the record would order
 * nothing about the register write after it. */
DB_FN void db_order_record_before_register(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/* In the `early` order nothing is left to do: WQE before register is the first fence's. */
DB_FN void db_order_wqe_before_register(void) { asm volatile("" ::: "memory"); }

/* An mmio store is performed as it is issued, never combined. */
DB_FN void db_flush_register(void) {}

/* ---- Stores and loads that the device sees ------------------------------------------------------------- */

DB_FN void db_store_record(db_u64 address, db_u32 big_endian) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(big_endian) : "memory");
}

/* The 8-byte doorbell: `mmio` promises exactly one access, never split or merged. */
DB_FN void db_store_register(db_u64 address, db_u64 as_in_memory) {
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(as_in_memory) : "memory");
}

/* 64 bytes of a BlueFlame doorbell, ascending. One lane cannot make one burst of them; a card takes the
 * doorbell in the first 8 bytes either way and fetches the WQE when the rest is torn. */
DB_FN void db_store_register_chunk(db_u64 to, db_u64 from) {
    db_u32 word;
    for (word = 0; word < 8; word++) db_store_register(to + 8 * word, *(const db_u64 *)(from + 8 * word));
}

/* The last 8 bytes of a CQE, of which the device writes the owner byte last. One load, so one trip across
 * PCIe; it orders nothing, so that several CQEs are looked at side by side. */
DB_FN db_u64 db_load_cqe_tail(db_u64 address) {
    db_u64 tail;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(tail) : "l"(address) : "memory");
    return tail;
}

/* A byte that the device writes, before all that is read behind it. */
DB_FN db_u8 db_load_owner(db_u64 address) {
    db_u32 value;
    asm volatile("ld.acquire.sys.global.u8 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return (db_u8)value;
}

/* `fence.acquire` waits for no store; `fence.acq_rel.sys` waits until this thread's own stores have crossed
 * PCIe: some 600 ns on an H200. PTX ISA 8.6, sm_90, CUDA 12.8 and newer; else the full fence. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && \
    (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 8))
#define DB_HAS_ACQUIRING_FENCE
#endif

/* The CQEs that were found, before the rest of them, the payload, and stores to what they give back. */
DB_FN void db_acquire_cqe(void) {
#ifdef DB_HAS_ACQUIRING_FENCE
    asm volatile("fence.acquire.sys;" ::: "memory");
#else
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/* Loads of CQEs before the consumer index that lets the device overwrite them. A full fence, so release CQEs
 * by the dozen: see db_gpu_release(). */
DB_FN void db_release_cqes(void) { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/* Words of a CQE, after db_acquire_cqe(). */
DB_FN db_u16 db_load16(db_u64 address) { return *(const db_u16 *)address; }
DB_FN db_u32 db_load32(db_u64 address) { return *(const db_u32 *)address; }

#endif /* device pass */

/* ---- What only a GPU has: see doorbell_gpu.h ----------------------------------------------------------- */

/* A routine that only device code calls. */
#define DB_GPU_FN static __device__ __forceinline__
/* A routine whose instructions lie apart from its caller's. It takes no queue that a thread keeps in
 * registers: the queue would have to lie in memory. */
#define DB_GPU_FN_OUTLINED static __device__ __noinline__ __attribute__((unused))

/* The thread's place in its warp, and the warp's lanes in step: what one wrote before, all see after. */
DB_GPU_FN db_u32 db_lane(void) {
    db_u32 lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
DB_GPU_FN void db_warp_sync(void) { __syncwarp(0xffffffffu); }
DB_GPU_FN db_u32 db_warp_ballot(int predicate) { return __ballot_sync(0xffffffffu, predicate); }
DB_GPU_FN db_u32 db_warp_shuffle32(db_u32 value, db_u32 lane) { return __shfl_sync(0xffffffffu, value, (int)lane); }
DB_GPU_FN db_u64 db_warp_shuffle64(db_u64 value, db_u32 lane) { return __shfl_sync(0xffffffffu, value, (int)lane); }
/* The value of the lane `by` below this one; this lane's own where there is none. */
DB_GPU_FN db_u32 db_warp_shuffle_up32(db_u32 value, db_u32 by) { return __shfl_up_sync(0xffffffffu, value, by); }
/* Likewise for a one-dimensional block; db_block_any() also tells every thread whether any said so. */
DB_GPU_FN db_u32 db_block_thread(void) { return threadIdx.x; }
DB_GPU_FN db_u32 db_block_threads(void) { return blockDim.x; }
DB_GPU_FN void db_block_sync(void) { __syncthreads(); }
DB_GPU_FN int db_block_any(int predicate) { return __syncthreads_or(predicate); }

/* One access each, by the instruction beside its name; `reg` is how asm takes a register of the type. */
#define DB_LOAD_FN(name, type, reg, instruction)                                                                 \
    DB_GPU_FN type name(const type *word) {                                                                      \
        type value;                                                                                              \
        asm volatile(instruction " %0, [%1];" : "=" reg(value) : "l"(word) : "memory");                          \
        return value;                                                                                            \
    }
#define DB_STORE_FN(name, type, reg, instruction)                                                                \
    DB_GPU_FN void name(type *word, type value) {                                                                \
        asm volatile(instruction " [%0], %1;" ::"l"(word), reg(value) : "memory");                               \
    }
/* Returns what was there. */
#define DB_ATOMIC_FN(name, type, reg, instruction)                                                               \
    DB_GPU_FN type name(type *word, type value) {                                                                \
        type old;                                                                                                \
        asm volatile(instruction " %0, [%1], %2;" : "=" reg(old) : "l"(word), reg(value) : "memory");            \
        return old;                                                                                              \
    }
/* Puts `value` there if `expected` is found; returns what was. */
#define DB_SWAP_FN(name, type, reg, instruction)                                                                 \
    DB_GPU_FN type name(type *word, type expected, type value) {                                                 \
        type old;                                                                                                \
        asm volatile(instruction " %0, [%1], %2, %3;" : "=" reg(old) : "l"(word), reg(expected), reg(value) : "memory"); \
        return old;                                                                                              \
    }

/* Words that the GPU's own threads share: `.gpu` scope. */
DB_LOAD_FN(db_load_relaxed32, db_u32, "r", "ld.relaxed.gpu.global.u32")
DB_LOAD_FN(db_load_relaxed64, db_u64, "l", "ld.relaxed.gpu.global.u64")
DB_LOAD_FN(db_load_acquire32, db_u32, "r", "ld.acquire.gpu.global.u32")
DB_LOAD_FN(db_load_acquire64, db_u64, "l", "ld.acquire.gpu.global.u64")
DB_STORE_FN(db_store_relaxed32, db_u32, "r", "st.relaxed.gpu.global.u32")
DB_STORE_FN(db_store_relaxed64, db_u64, "l", "st.relaxed.gpu.global.u64")
DB_STORE_FN(db_store_release32, db_u32, "r", "st.release.gpu.global.u32")
DB_STORE_FN(db_store_release64, db_u64, "l", "st.release.gpu.global.u64")
/* Handing out numbers orders nothing; an acquire takes over what was handed over with the word, a release
 * hands over what was written before. */
DB_ATOMIC_FN(db_fetch_add64, db_u64, "l", "atom.relaxed.gpu.global.add.u64")
DB_ATOMIC_FN(db_fetch_add_acquire64, db_u64, "l", "atom.acquire.gpu.global.add.u64")
DB_ATOMIC_FN(db_fetch_add_acq_rel64, db_u64, "l", "atom.acq_rel.gpu.global.add.u64")
DB_ATOMIC_FN(db_fetch_and_release64, db_u64, "l", "atom.release.gpu.global.and.b64")
/* A lock's word: taken with what its last holder wrote. Given back by db_store_release32(). */
DB_ATOMIC_FN(db_exchange_acquire32, db_u32, "r", "atom.acquire.gpu.global.exch.b32")
DB_SWAP_FN(db_compare_swap32, db_u32, "r", "atom.relaxed.gpu.global.cas.b32")
DB_SWAP_FN(db_compare_swap_acquire64, db_u64, "l", "atom.acquire.gpu.global.cas.b64")
DB_SWAP_FN(db_compare_swap_acq_rel64, db_u64, "l", "atom.acq_rel.gpu.global.cas.b64")

/* What was handed over with a word found relaxed: room, and its earlier content. Waits for no store. */
DB_GPU_FN void db_acquire_room(void) {
#ifdef DB_HAS_ACQUIRING_FENCE
    asm volatile("fence.acquire.gpu;" ::: "memory");
#else
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

/* A WQE before the mark that says that it is filled, towards the thread that will ring. */
DB_GPU_FN void db_order_wqe_before_mark(void) { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/* Marks that one look of a thread takes in, and of each lane of a warp. */
#define DB_MARKS 32u
#define DB_LANE_MARKS 8u

/* The first of `marks` marks at `address`, 16-byte aligned, that is not `value`, skipping those before
 * `ahead`; `marks` if none. Loads unordered among each other, as a vector load's halves: one trip to L2. */
DB_GPU_FN db_u32 db_first_other_mark(db_u64 address, db_u32 ahead, db_u32 value, db_u32 marks) {
    db_u32 word[DB_MARKS], first = marks, i;
#pragma unroll
    for (i = 0; i < marks; i += 4)
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
                     : "l"(address + 4 * i)
                     : "memory");
#pragma unroll
    for (i = marks; i-- > 0;)
        if (i >= ahead && word[i] != value) first = i;
    return first;
}

/* Words that the host or a device writes: `.sys` scope. */
DB_GPU_FN db_u32 db_load_acquire_sys32(db_u64 address) {
    db_u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}
DB_GPU_FN void db_store_release_sys32(db_u64 address, db_u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
DB_GPU_FN void db_store_release_sys64(db_u64 address, db_u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

/* Nanoseconds of the GPU's global timer, in steps of 32 ns or more: for deadlines, not for timing a post. */
DB_GPU_FN db_u64 db_clock_ns(void) {
    db_u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

#endif /* DB_ORDER_CUDA_H */
