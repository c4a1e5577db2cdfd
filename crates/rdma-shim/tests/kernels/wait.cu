/*! Waits of device code that end: by a completion, an error, a deadline, or a word that the host sets.
 *
 * Launch: one thread each. Queues and results are in host memory.
 */
#include "doorbell_gpu.h"

struct db_wait_status {
    db_u32 result; /* of the last wait: 0 or DB_E* */
    db_u32 status; /* of the last completion: DB_WC_* */
    db_u32 syndrome;
    db_u32 taken; /* completions without an error */
    db_u64 wr_id; /* of the last completion */
};

/* Waits for one completion: of the send queue, or of any kind where there is none. */
extern "C" __global__ void wait_once(struct db_cq *cq, struct db_sq *sq, db_u64 deadline_ns, db_u32 *cancel,
                                     struct db_wait_status *out) {
    struct db_completion done = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    struct db_wait wait = {db_clock_ns() + deadline_ns, (db_u64)cancel, 0};
    db_u64 released = cq->consumer;
    out->result = (db_u32)db_gpu_wait(cq, sq, 0, &done, &released, wait);
    out->status = done.status;
    out->syndrome = done.syndrome;
    out->wr_id = done.wr_id;
    out->taken = !out->result && done.status == DB_WC_SUCCESS;
}

/* One look for sends. */
extern "C" __global__ void take_sends(struct db_cq *cq, struct db_sq *sq, struct db_wait_status *out) {
    struct db_completion done = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    db_u64 released = cq->consumer;
    out->taken = (db_u32)db_gpu_take_sends(cq, sq, &done, &released);
    out->status = done.status;
    out->wr_id = done.wr_id;
}

/* Receives `messages` messages of 8 bytes, `window` at a time, each into a word at `local`, and stores what
 * each said to `seen`. Ends early with the first error. */
extern "C" __global__ void receive(struct db_rq *rq, struct db_cq *cq, db_u64 local, db_u32 lkey, db_u32 window,
                                   db_u32 messages, db_u64 deadline_ns, db_u64 *seen, struct db_wait_status *out) {
    struct db_completion done = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    db_u64 released = cq->consumer;
    db_u32 posted = 0, bad;
    out->result = 0;
    while (out->taken < messages && !out->result) {
        struct db_wait wait = {db_clock_ns() + deadline_ns, 0, 0};
        while (posted < messages && posted - out->taken < window && !out->result) {
            struct db_sge piece = {local + 8ull * (posted % window), 8, lkey};
            struct db_recv_wr wr = {posted, &piece, 1};
            out->result = (db_u32)db_post_recv(rq, &wr, 1, &bad);
            posted++;
        }
        if (!out->result) out->result = (db_u32)db_gpu_wait(cq, 0, rq, &done, &released, wait);
        out->status = done.status;
        out->wr_id = done.wr_id;
        if (out->result || done.status != DB_WC_SUCCESS) return;
        seen[out->taken] = db_load_relaxed64((const db_u64 *)(local + 8ull * (done.wr_id % window)));
        out->taken++;
    }
}
