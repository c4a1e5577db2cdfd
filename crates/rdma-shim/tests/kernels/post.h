/*! What the kernels that post RDMA WRITEs are told, what they say, and the payload of a message.
 *
 * Message n of a run carries 8 bytes, (n + 1) * DB_POST_STEP, to word n of the target, which so says what
 * arrived. The kernel stores the payload itself, into `window` words, each reused when its message has
 * completed. `status`: in host memory, read by the CPU after the kernel; no wait exceeds its deadline.
 */
#ifndef DB_POST_H
#define DB_POST_H

#include "doorbell_gpu.h"

#define DB_POST_STEP 0x0101010101010101ull

/* Where from and where to: registered memory. */
struct db_post_target {
    db_u64 local;  /* `window` words */
    db_u64 remote; /* `messages` words */
    db_u32 lkey;
    db_u32 rkey;
    db_u32 messages;
    db_u32 window;
    db_u32 per_ring; /* WQEs a doorbell; the last one is signalled */
    db_u32 signal_every; /* in flood(); the message that goes astray in post_shared_astray() */
    db_u64 deadline_ns; /* for each wait */
};

struct db_post_status {
    db_u32 error; /* of the first call that failed: DB_E*, or 0x10000 + the status of an error CQE */
    db_u32 done;  /* messages whose completion was seen; on a shared queue, messages posted */
    db_u32 early; /* of them, how many were not at the target then; counted by flood() */
    db_u32 pad;
};

DB_GPU_FN struct db_sge db_post_payload(const struct db_post_target *target, db_u32 message) {
    struct db_sge piece = {target->local + 8ull * (message % target->window), 8, target->lkey};
    db_store64(piece.addr, (message + 1) * DB_POST_STEP);
    return piece;
}

#endif /* DB_POST_H */
