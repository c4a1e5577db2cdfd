/*! Requests of every kind from a kernel, and messages of every kind to it, each with its completion.
 *
 * Launch: one thread each. Queues, requests, results: in host memory; no wait is longer than `deadline_ns`.
 */
#include "doorbell_kernel.h"

/* Posts requests, each asking for a completion, with one doorbell, and takes the completions. `error`: of the
 * first call that failed; the number of completions is how many of `out` have a queue. */
extern "C" __global__ void carry_out(struct db_sq *sq, struct db_cq *cq, const struct db_send_wr *wrs, db_u32 count,
                                     db_u64 deadline_ns, struct db_completion *out, db_u32 *error) {
    db_u64 released = cq->consumer;
    db_u32 taken = 0, bad;
    int failed = db_post(sq, wrs, count, &bad);
    while (taken < count && !failed) {
        struct db_wait wait = {db_clock_ns() + deadline_ns, 0, 0};
        failed = db_gpu_wait(cq, sq, 0, &out[taken++], &released, wait);
    }
    *error = (db_u32)failed;
}

/* Posts `count` receives of `bytes` each, consecutive from `local` on, and takes as many completions. */
extern "C" __global__ void take_in(struct db_rq *rq, struct db_cq *cq, db_u64 local, db_u32 lkey, db_u32 bytes, db_u32 count,
                                   db_u64 deadline_ns, struct db_completion *out, db_u32 *error) {
    db_u64 released = cq->consumer;
    db_u32 taken = 0, posted, bad;
    int failed = 0;
    for (posted = 0; posted < count && !failed; posted++) {
        struct db_sge piece = {local + (db_u64)posted * bytes, bytes, lkey};
        struct db_recv_wr wr = {100 + posted, &piece, 1};
        failed = db_post_recv(rq, &wr, 1, &bad);
    }
    while (taken < count && !failed) {
        struct db_wait wait = {db_clock_ns() + deadline_ns, 0, 0};
        failed = db_gpu_wait(cq, 0, rq, &out[taken++], &released, wait);
    }
    *error = (db_u32)failed;
}

/* Posts a WRITE of the word at `local` and waits for it, then the next one, until something ends it: an
 * error, a deadline, the word at `cancel`. `progress`: how many have completed; request n is number n. */
extern "C" __global__ void post_endlessly(struct db_sq *sq, struct db_cq *cq, db_u64 local, db_u32 lkey, db_u32 rkey,
                                          db_u64 remote, db_u64 deadline_ns, db_u32 *cancel, db_u64 *progress,
                                          struct db_kernel_end *end) {
    struct db_sq queue = *sq;
    struct db_cq completions = *cq;
    struct db_completion done;
    struct db_sge piece = {local, 8, lkey};
    db_u64 released = completions.consumer, request = 0;
    int error = 0;
    done.status = DB_WC_SUCCESS;
    for (; !error && done.status == DB_WC_SUCCESS; request++) {
        struct db_wait wait = {db_clock_ns() + deadline_ns, (db_u64)cancel, 0};
        if (request) db_store_relaxed64(progress, request);
        if (db_load_acquire_sys32((db_u64)cancel)) {
            error = DB_ECANCELED;
            break;
        }
        error = db_try_post_write(&queue, request, piece, remote, rkey, DB_SEND_SIGNALED);
        if (!error) db_ring(&queue);
        if (!error) error = db_gpu_wait(&completions, &queue, 0, &done, &released, wait);
        if (error || done.status != DB_WC_SUCCESS) break;
    }
    *end = db_kernel_end_of(queue.qpn, request, error, &done);
    *sq = queue;
    *cq = completions;
}

/* What db_sq_init() says of a queue. */
extern "C" __global__ void look_at_queue(struct db_sq *sq, db_u32 stride, db_u32 *error) {
    *error = (db_u32)db_sq_init(sq, stride);
}

/* Posts a row of 8-byte WRITEs, `stride` bytes further each, only the last asking for a completion, and takes
 * `taken` completions. */
extern "C" __global__ void post_row(struct db_sq *sq, struct db_cq *cq, db_u64 local, db_u32 lkey, db_u32 rkey, db_u64 remote,
                                    db_u32 stride, db_u32 count, db_u64 deadline_ns, db_u32 taken,
                                    struct db_completion *out, db_u32 *error) {
    struct db_sge piece = {local, 8, lkey};
    db_u64 released = cq->consumer;
    db_u32 done = 0;
    int failed = db_try_post_writes(sq, 500, piece, remote, rkey, DB_SEND_SIGNALED, count, stride);
    if (!failed) db_ring(sq);
    while (done < taken && !failed) {
        struct db_wait wait = {db_clock_ns() + deadline_ns, 0, 0};
        failed = db_gpu_wait(cq, sq, 0, &out[done++], &released, wait);
    }
    *error = (db_u32)failed;
}
