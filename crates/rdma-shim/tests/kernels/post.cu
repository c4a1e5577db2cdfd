/*! RDMA WRITEs from device code: by one thread, by a warp; and any list of requests.
 */
#include "post.h"

/* Launch: any; the first thread posts. `sq` and `cq` are the queue's own, in host memory, kept up to date. */
extern "C" __global__ void post_thread(struct db_sq *sq, struct db_cq *cq, struct db_post_target target,
                                       struct db_post_status *status) {
    struct db_sq queue = *sq;
    struct db_cq completions = *cq;
    struct db_completion done;
    db_u64 released = completions.consumer;
    db_u32 message = 0, retired = 0;
    int error = 0;
    if (blockIdx.x || threadIdx.x) return;
#ifdef DEFECT_EIGHT_BYTES
    queue.doorbell = DB_DOORBELL_8_BYTES;
#endif
    while (retired < target.messages && !error) {
        while (message < target.messages && message - retired < target.window && !error) {
            int last = (message + 1) % target.per_ring == 0 || message + 1 == target.messages;
            error = db_try_post_write(&queue, message, db_post_payload(&target, message), target.remote + 8ull * message,
                                      target.rkey, last ? DB_SEND_SIGNALED : 0);
            if (last) db_ring(&queue);
            message++;
        }
        if (!error) {
            struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
            error = db_gpu_wait(&completions, &queue, 0, &done, &released, wait);
        }
        if (!error && done.status != DB_WC_SUCCESS) error = 0x10000 + (int)done.status;
        if (!error) retired = (db_u32)done.wr_id + 1;
    }
    status->error = (db_u32)error;
    status->done = retired;
    *sq = queue;
    *cq = completions;
}

/* Launch: one warp. 32 WQEs at a time, one doorbell, the last lane's signalled. `messages` and `window`:
 * multiples of 32. */
extern "C" __global__ void post_warp(struct db_sq *sq, struct db_cq *cq, struct db_post_target target,
                                     struct db_post_status *status) {
    struct db_sq queue = *sq;
    struct db_cq completions = *cq;
    struct db_completion done;
    db_u64 released = completions.consumer;
    db_u32 message = 0, lane = db_lane();
    int error = 0;
    for (; message < target.messages && !error; message += DB_WARP) {
        db_u32 mine = message + lane;
        error = db_warp_post_write(&queue, mine, db_post_payload(&target, mine), target.remote + 8ull * mine, target.rkey,
                                   lane == DB_WARP - 1 ? DB_SEND_SIGNALED : 0);
        if (!error) db_warp_ring(&queue);
        if (!error) {
            struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
            error = db_warp_wait(&completions, &queue, 0, &done, &released, wait);
            if (!error && done.status != DB_WC_SUCCESS) error = 0x10000 + (int)done.status;
        }
    }
    if (lane) return;
    status->error = (db_u32)error;
    status->done = error ? message - DB_WARP : message;
    *sq = queue;
    *cq = completions;
}

/* Words of the target that flood() uses, one after the other and again. */
#define DB_FLOOD_WORDS 8192u

/* The next completion. What the paper's own release did wrong here can be put back: it believed whatever lay
 * in the CQ (no look at the owner bit), and cut the CQ's consumer index to 16 bits. */
DB_GPU_FN int db_flood_wait(struct db_cq *cq, struct db_sq *sq, struct db_completion *done, db_u64 *released,
                            db_u64 deadline_ns) {
    struct db_wait wait = {db_clock_ns() + deadline_ns, 0, 0};
#if defined(DEFECT_NO_OWNER_BIT)
    db_u64 cqe = cq->ring + (cq->consumer & (cq->entries - 1)) * DB_CQE_BYTES;
    db_u32 ahead = (db_be16(db_load16(cqe + DB_CQE_WQE_COUNTER)) - (db_u32)sq->consumer) & 0xffff;
    (void)released;
    done->status = DB_WC_SUCCESS;
    done->wr_id = ahead < sq->rung - sq->consumer ? sq->consumer + ahead : sq->rung - 1;
    sq->consumer = done->wr_id + 1;
    cq->consumer++;
    db_release(cq);
    return db_wait_over(&wait);
#elif defined(DEFECT_SHORT_INDEX)
    int over = 0;
    (void)released;
    while (!over) {
        if (db_take_cqe(cq, done) > 0) {
            db_retire_send(sq, done);
            db_release_cqes();
            db_store_record(cq->record, db_be32((db_u32)cq->consumer & 0xffff));
            return 0;
        }
        over = db_wait_over(&wait);
    }
    return over;
#else
    return db_gpu_wait(cq, sq, 0, done, released, wait);
#endif
}

/* Launch: one thread. As fast as there is room for at most `window` messages: rings every `per_ring` WQEs and
 * when there is none, then waits for one completion. A complete message's word has to be at the target. */
extern "C" __global__ void flood(struct db_sq *sq, struct db_cq *cq, struct db_post_target target,
                                 struct db_post_status *status) {
    struct db_sq queue = *sq;
    struct db_cq completions = *cq;
    struct db_completion done;
    db_u64 released = completions.consumer;
    db_u32 message = 0, full;
    int error = 0;
    while (status->done < target.messages && !error) {
        full = message == target.messages || message - status->done == target.window;
        if (!full) {
            db_u64 consumer = queue.consumer;
            int signal = (message + 1) % target.signal_every == 0 || message + 1 == target.messages;
#ifdef DEFECT_NO_SPACE_CHECK
            /* The release assumed that there is room. */
            queue.consumer = queue.producer;
#endif
            error = db_try_post_write(&queue, message, db_post_payload(&target, message),
                                      target.remote + 8ull * (message % DB_FLOOD_WORDS), target.rkey,
                                      signal ? DB_SEND_SIGNALED : 0);
            queue.consumer = consumer;
            full = error == DB_ENOMEM;
            if (full) error = 0;
        }
        if (!full && !error && ++message % target.per_ring == 0) db_ring(&queue);
        if (!full || error) continue;
        db_ring(&queue);
        error = db_flood_wait(&completions, &queue, &done, &released, target.deadline_ns);
        if (!error && done.status != DB_WC_SUCCESS) error = 0x10000 + (int)done.status;
        if (error) break;
        status->done = (db_u32)done.wr_id + 1;
        if (target.messages <= DB_FLOOD_WORDS &&
            db_load_relaxed64((const db_u64 *)(target.remote + 8 * done.wr_id)) != (done.wr_id + 1) * DB_POST_STEP)
            status->early++;
    }
    status->error = (db_u32)error;
    *sq = queue;
    *cq = completions;
}

/* Launch: one thread. db_post(): posts an array of requests with one doorbell; results as on a host. */
extern "C" __global__ void post_list(struct db_sq *sq, const struct db_send_wr *wrs, db_u32 count, db_u32 *error,
                                     db_u32 *bad) {
    *error = (db_u32)db_post(sq, wrs, count, bad);
}

/* Launch: one thread. db_post_recv(). */
extern "C" __global__ void post_receives(struct db_rq *rq, const struct db_recv_wr *wrs, db_u32 count, db_u32 *error,
                                         db_u32 *bad) {
    *error = (db_u32)db_post_recv(rq, wrs, count, bad);
}

/* Launch: one warp. Posts an array of at most 32 requests, one a lane, with one doorbell. */
extern "C" __global__ void post_warp_list(struct db_sq *sq, const struct db_send_wr *wrs, db_u32 count, db_u32 *error,
                                          db_u32 *bad) {
    struct db_sq queue = *sq;
    db_u32 lane = db_lane(), offender = 0;
    int result = db_warp_post(&queue, lane < count ? &wrs[lane] : 0, &offender);
    if (!result) db_warp_ring(&queue);
    if (lane) return;
    *error = (db_u32)result;
    *bad = offender;
    *sq = queue;
}
