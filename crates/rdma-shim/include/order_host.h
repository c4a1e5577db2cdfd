/*! Ordering primitives for a host: x86-64 or arm64, little-endian, compiled by gcc or clang. See order.h.
 *
 * Sources: rdma-core `util/udma_barrier.h` and `util/mmio.h` (which barrier stands for which edge), Linux
 * `Documentation/memory-barriers.txt` §"Kernel I/O barrier effects", Intel SDM vol. 3 §9.2.2 (x86 store
 * order) and §12.3 (write-combining memory).
 */
#ifndef DB_ORDER_HOST_H
#define DB_ORDER_HOST_H

/* Byte order: everything that the device reads or writes, except payload and single bytes, is big-endian. */
DB_FN db_u16 db_be16(db_u16 value) { return __builtin_bswap16(value); }
DB_FN db_u32 db_be32(db_u32 value) { return __builtin_bswap32(value); }
DB_FN db_u64 db_be64(db_u64 value) { return __builtin_bswap64(value); }

/* Memory of the queue's owner: WQEs and the shim's tables. Plain stores; the fences below order them. The
 * copy puts a word in memory of unknown type within the aliasing rules; it compiles to one store or load. */
DB_FN void db_store32(db_u64 address, db_u32 value) { __builtin_memcpy((void *)address, &value, sizeof value); }
DB_FN void db_store64(db_u64 address, db_u64 value) { __builtin_memcpy((void *)address, &value, sizeof value); }
DB_FN void db_copy(db_u64 to, db_u64 from, db_u32 bytes) {
    __builtin_memcpy((void *)to, (const void *)from, bytes);
}

/* A 16-byte segment of a WQE, as its two halves in memory order: built in registers, stored as a whole. */
DB_FN void db_store_segment(db_u64 address, db_u64 first, db_u64 second) {
    __builtin_memcpy((void *)address, &first, sizeof first);
    __builtin_memcpy((void *)(address + 8), &second, sizeof second);
}

/* The same of four words; and zeroes that a GPU's compiler does not know. */
DB_FN void db_store_words(db_u64 address, const db_u32 words[4]) {
    db_store_segment(address, words[0] | (db_u64)words[1] << 32, words[2] | (db_u64)words[3] << 32);
}
DB_FN db_u32 db_hidden_zero(db_u32 which) { return which & 0; }

/* ---- Edges of a post, in program order ----------------------------------------------------------------- */

/* Every byte of the WQEs before the doorbell record. */
DB_FN void db_order_wqe_before_record(void) {
#if defined(__x86_64__)
    /* Both are ordinary write-back memory, and x86 makes stores visible in program order (SDM §9.2.2): only
     * the compiler must be held. rdma-core's udma_to_device_barrier() is the same. */
    __asm__ __volatile__("" ::: "memory");
#elif defined(__aarch64__)
    /* Outer shareable, since the observer is a device. */
    __asm__ __volatile__("dmb oshst" ::: "memory");
#else
#error "order.h has no fences for this processor"
#endif
}

/* Doorbell record before register, the third edge, in the `strict` order. */
DB_FN void db_order_record_before_register(void) {
#if defined(__x86_64__)
    /* The register is mapped write-combining, and such stores are not ordered with others (SDM §12.3.1). A
     * locked instruction would do as well and costs more. rdma-core's mmio_wc_start() is the same. */
    __asm__ __volatile__("sfence" ::: "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("dsb st" ::: "memory");
#endif
}

/* What is left of the third edge in the `early` order: the register write's index keeps the device right, so
 * that only the compiler is held. WQE before register must still hold. On x86 stores leave the store buffer
 * in program order, and the write-combining buffer behind it can only delay the later one; arm64 needs its
 * fence. To be confirmed on hardware; `strict` is the default until then. */
DB_FN void db_order_wqe_before_register(void) {
#if defined(__x86_64__)
    __asm__ __volatile__("" ::: "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("dmb oshst" ::: "memory");
#endif
}

/* The register write leaves this processor now, and before any later one. Without it the store may rest in a
 * write-combining buffer until something evicts it, and two rings may overtake each other. */
DB_FN void db_flush_register(void) {
#if defined(__x86_64__)
    __asm__ __volatile__("sfence" ::: "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("dsb st" ::: "memory");
#endif
}

/* ---- Stores and loads that the device sees ------------------------------------------------------------- */

/* One word of a doorbell record. */
DB_FN void db_store_record(db_u64 address, db_u32 big_endian) {
    __atomic_store_n((db_u32 *)address, big_endian, __ATOMIC_RELAXED);
}

/* The 8-byte doorbell: exactly one store, never split or merged. */
DB_FN void db_store_register(db_u64 address, db_u64 as_in_memory) {
    *(volatile db_u64 *)address = as_in_memory;
}

/* 64 bytes of a BlueFlame doorbell. Ascending words, and no memcpy: a string move may write in any order
 * (rdma-core `providers/mlx5/qp.c`, comment at mlx5_bf_copy). */
DB_FN void db_store_register_chunk(db_u64 to, db_u64 from) {
    volatile db_u64 *reg = (volatile db_u64 *)to;
    db_u32 word;
    for (word = 0; word < 8; word++) {
        db_u64 value;
        __builtin_memcpy(&value, (const void *)(from + 8 * word), sizeof value);
        reg[word] = value;
    }
}

/* The last 8 bytes of a CQE, of which the device writes the owner byte last. */
DB_FN db_u64 db_load_cqe_tail(db_u64 address) { return __atomic_load_n((const db_u64 *)address, __ATOMIC_RELAXED); }

/* A byte that the device writes. */
DB_FN db_u8 db_load_owner(db_u64 address) { return __atomic_load_n((const db_u8 *)address, __ATOMIC_RELAXED); }

/* The owner byte before the rest of the CQE and before the payload that it announces. */
DB_FN void db_acquire_cqe(void) {
#if defined(__x86_64__)
    /* Loads of write-back memory are not reordered with loads (SDM §9.2.2), so Linux' dma_rmb() is a compiler
     * barrier on x86; rdma-core's lfence here orders nothing more for such memory. */
    __asm__ __volatile__("" ::: "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("dmb oshld" ::: "memory");
#endif
}

/* Loads of CQEs before the consumer index that lets the device overwrite them. */
DB_FN void db_release_cqes(void) {
#if defined(__x86_64__)
    __asm__ __volatile__("" ::: "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("dmb osh" ::: "memory");
#endif
}

/* Words of a CQE, after db_acquire_cqe(). */
DB_FN db_u16 db_load16(db_u64 address) {
    db_u16 value;
    __builtin_memcpy(&value, (const void *)address, sizeof value);
    return value;
}
DB_FN db_u32 db_load32(db_u64 address) {
    db_u32 value;
    __builtin_memcpy(&value, (const void *)address, sizeof value);
    return value;
}

#endif /* DB_ORDER_HOST_H */
