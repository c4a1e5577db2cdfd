/*! RDMA WRITEs by a whole thread block on a queue of its own: what post.h says.
 *
 * Launch: one block, its thread count divides `messages` and `window`. A WQE a thread, one doorbell for all,
 * the last thread's signalled; the first thread polls. `sq` and `cq` lie in host memory, kept up to date.
 */
#include "post.h"

extern "C" __global__ void post_block(struct db_sq *sq, struct db_cq *cq, struct db_post_target target,
                                      struct db_post_status *status) {
    __shared__ struct db_block_news news;
    struct db_sq queue = *sq;
    struct db_cq completions = *cq;
    struct db_completion done;
    db_u64 released = completions.consumer;
    db_u32 message = 0, threads = db_block_threads(), me = db_block_thread();
    int error = 0;
    for (; message < target.messages && !error; message += threads) {
        db_u32 mine = message + me;
        struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
        error = db_block_post_write(&queue, mine, db_post_payload(&target, mine), target.remote + 8ull * mine, target.rkey,
                                    me == threads - 1 ? DB_SEND_SIGNALED : 0);
        if (error) break;
        db_block_ring(&queue);
        error = db_block_wait(&completions, &queue, 0, &done, &released, wait, &news);
        if (!error && done.status != DB_WC_SUCCESS) error = 0x10000 + (int)done.status;
    }
    if (me) return;
    status->error = (db_u32)error;
    status->done = error ? message - threads : message;
    *sq = queue;
    *cq = completions;
}

/* Launch: one block; thread `odd` posts with its own flags or length. `result`: what each thread was told. */
extern "C" __global__ void post_block_oddly(struct db_sq *sq, db_u32 odd, db_u32 length, db_u32 send_flags, db_u32 *result) {
    struct db_sq queue = *sq;
    struct db_sge piece = {64, 8, 1};
    db_u32 flags = db_block_thread() == odd ? send_flags : 0;
    if (db_block_thread() == odd) piece.length = length;
    result[db_block_thread()] = (db_u32)db_block_post_write(&queue, 0, piece, 64, 1, flags);
}

/* The same of a warp: on a queue of its own, and on one that is shared. */
extern "C" __global__ void post_warp_oddly(struct db_sq *sq, struct db_shared_sq *shared, db_u32 odd, db_u32 length,
                                           db_u32 send_flags, db_u32 *result) {
    struct db_sq queue = *sq;
    struct db_poster poster = db_poster_of(shared);
    struct db_sge piece = {64, 8, 1};
    struct db_wait wait = {db_clock_ns() + 1000000000, 0, 0};
    db_u32 flags = db_lane() == odd ? send_flags : 0;
    if (db_lane() == odd) piece.length = length;
    result[db_lane()] = (db_u32)db_warp_post_write(&queue, 0, piece, 64, 1, flags);
    result[DB_WARP + db_lane()] = (db_u32)db_shared_warp_post_write(shared, 0, piece, 64, 1, flags, &poster, wait);
}
