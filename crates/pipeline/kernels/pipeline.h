/*! What the kernels of a pipeline share with each other and with the Rust program that launches them. Each struct is mirrored in
 * src/kernel.rs.
 */
#ifndef DB_PIPELINE_H
#define DB_PIPELINE_H

#include "doorbell_gpu.h"
#include "slots.h"

/* How a wait ended. */
#define DB_TURN_NONE 0u    /* its time was over */
#define DB_TURN_REQUEST 1u /* a request is whole */
#define DB_TURN_STOP 2u    /* the host wants an end */

/* The request that the pipeline serves in this turn. Written by the waiting kernel, read by those behind it. */
struct db_turn {
    db_u32 state;    /* DB_TURN_* */
    db_u32 slot;     /* of the request; otherwise that of the request before */
    db_u32 sequence; /* of the request */
    db_u32 pad;
};

/* Where requests arrive. */
struct db_arrivals {
    db_u64 flags;     /* of slot 0, 8-byte aligned, in memory that the NIC writes */
    db_u64 stride;    /* from one flag to the next, in bytes */
    db_u64 sequences; /* 32-bit words in memory of the GPU's: of each slot's last request */
    db_u64 cancel;    /* 32-bit word in host memory; anything but 0 ends a wait that found nothing for 64 rounds */
    db_u64 wait_ns;   /* longest wait */
    db_u32 slots;     /* 1 at least */
    db_u32 pad;
};

/* When a wait of so many nanoseconds is over; the end of time, if that is behind it. */
DB_GPU_FN db_u64 db_deadline_ns(db_u64 wait_ns) {
    db_u64 now = db_clock_ns();
    return now + wait_ns < now ? ~0ull : now + wait_ns;
}

/* The sequence that follows: never 0. */
DB_GPU_FN db_u32 db_slot_next(db_u32 sequence) { return sequence + 1 ? sequence + 1 : 1; }

DB_GPU_FN db_u64 db_slot_flag(db_u32 sequence) { return (db_u64)sequence << 32 | (sequence ^ DB_SLOT_FLAG_MARK); }

/* Whether the next request of a slot is whole. One load across no more than the GPU's own bus, and no order: the finder acquires. */
DB_GPU_FN int db_slot_has_request(const struct db_arrivals *at, db_u32 slot) {
    db_u64 flag = db_load_cqe_tail(at->flags + slot * at->stride);
#ifdef DB_DEFECT_ANY_FLAG
    return flag != 0;
#else
    return flag == db_slot_flag(db_slot_next(db_load_relaxed32((const db_u32 *)at->sequences + slot)));
#endif
}

/* Takes the request of a slot. */
DB_GPU_FN void db_turn_take(struct db_turn *turn, const struct db_arrivals *at, db_u32 slot) {
    db_u32 *last = (db_u32 *)at->sequences + slot, sequence = db_slot_next(db_load_relaxed32(last));
    db_store_relaxed32(last, sequence);
    turn->slot = slot;
    turn->sequence = sequence;
    turn->state = DB_TURN_REQUEST;
}

#endif /* DB_PIPELINE_H */
