/*! What a kernel shares with the Rust program that launches it (rdma_shim::kernel): where a queue's structs
 * lie, how it ended. src/kernel/queue.rs and src/kernel/end.rs mirror each struct field for field.
 */
#ifndef DB_DOORBELL_KERNEL_H
#define DB_DOORBELL_KERNEL_H

#include "doorbell_gpu.h"

/* A queue between launches: its structs lie in host memory, at these addresses. A kernel copies them, and
 * stores the copies back before it ends. */
struct db_kernel_queue {
    db_u64 sq;         /* struct db_sq */
    db_u64 rq;         /* struct db_rq */
    db_u64 send_cq;    /* struct db_cq */
    db_u64 receive_cq; /* struct db_cq; the same as send_cq when both directions complete there */
};

#define DB_END_COMPLETION 0x10000u /* an error CQE: the fields below tell which */

/* How a kernel ended, one a queue. */
struct db_kernel_end {
    db_u64 wr_id;  /* of the request that failed */
    db_u32 code;   /* 0, DB_E*, or DB_END_COMPLETION */
    db_u32 qpn;
    db_u32 status; /* DB_WC_*, likewise the two syndromes: of an error CQE */
    db_u32 syndrome;
    db_u32 vendor_syndrome;
    db_u32 is_send;
};

/* Of a call's result, and of what was taken last where that was an error CQE. */
DB_GPU_FN struct db_kernel_end db_kernel_end_of(db_u32 qpn, db_u64 wr_id, int error, const struct db_completion *done) {
    struct db_kernel_end end = {wr_id, (db_u32)error, qpn, 0, 0, 0, 0};
    if (!error && done && done->status != DB_WC_SUCCESS) {
        end.code = DB_END_COMPLETION;
        end.wr_id = done->wr_id;
        end.qpn = done->qpn;
        end.status = done->status;
        end.syndrome = done->syndrome;
        end.vendor_syndrome = done->vendor_syndrome;
        end.is_send = done->is_send;
    }
    return end;
}

#endif /* DB_DOORBELL_KERNEL_H */
