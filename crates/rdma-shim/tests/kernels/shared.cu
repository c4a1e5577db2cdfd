/*! RDMA WRITEs on a queue that many threads and warps share: what post.h says. Words of `local` are not used
 * again: `window` is at least `messages`.
 */
#include "post.h"

/* Launch: any number of threads, on one queue; it divides `messages`, and each thread posts its share. */
extern "C" __global__ void post_shared(struct db_shared_sq *shared, struct db_post_target target,
                                       struct db_post_status *status) {
    db_u32 threads = gridDim.x * blockDim.x, message = blockIdx.x * blockDim.x + threadIdx.x;
    struct db_poster poster = db_poster_of(shared);
    int error = 0;
    for (; message < target.messages && !error; message += threads) {
        struct db_sge payload = db_post_payload(&target, message);
        struct db_send_wr wr = {message, &payload, 1, DB_WR_RDMA_WRITE, 0, 0, target.remote + 8ull * message, 0, 0,
                                target.rkey};
        struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
        error = db_shared_post(shared, &wr, &poster, wait);
        if (!error) atomicAdd(&status->done, 1u);
    }
    if (error) atomicExch(&status->error, (db_u32)error);
}

/* The same by whole warps: `messages` is a multiple of their lanes. */
extern "C" __global__ void post_shared_warp(struct db_shared_sq *shared, struct db_post_target target,
                                            struct db_post_status *status) {
    db_u32 threads = gridDim.x * blockDim.x, message = blockIdx.x * blockDim.x + threadIdx.x;
    struct db_poster poster = db_poster_of(shared);
    int error = 0;
    for (; message < target.messages && !error; message += threads) {
        struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
        error = db_shared_warp_post_write(shared, message, db_post_payload(&target, message), target.remote + 8ull * message,
                                          target.rkey, 0, &poster, wait);
        if (!error) atomicAdd(&status->done, 1u);
    }
    if (error) atomicExch(&status->error, (db_u32)error);
}

/* Launch: one warp. Lane 0 posts a message by itself before the warp posts one a lane, so that the warp's
 * blocks lie across multiples of 32: `messages` is a multiple of 33. */
extern "C" __global__ void post_shared_both(struct db_shared_sq *shared, struct db_post_target target,
                                            struct db_post_status *status) {
    struct db_poster poster = db_poster_of(shared);
    db_u32 message = 0;
    int error = 0;
    for (; message < target.messages && !error; message += DB_WARP + 1) {
        struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
        struct db_sge payload = db_post_payload(&target, message + 1 + db_lane());
        if (db_lane() == 0) {
            struct db_sge lone = db_post_payload(&target, message);
            struct db_send_wr wr = {message, &lone, 1, DB_WR_RDMA_WRITE, 0, 0, target.remote + 8ull * message, 0, 0,
                                    target.rkey};
            error = db_shared_post(shared, &wr, &poster, wait);
        }
        error = (int)db_warp_shuffle32((db_u32)error, 0);
        if (!error)
            error = db_shared_warp_post_write(shared, message + 1 + db_lane(), payload,
                                              target.remote + 8ull * (message + 1 + db_lane()), target.rkey, 0, &poster,
                                              wait);
        if (!error && db_lane() == 0) status->done += DB_WARP + 1;
    }
    if (db_lane() == 0) status->error = (db_u32)error;
}

/* Launch: one thread. Message `target.signal_every` goes where it may not; those behind it are posted too, as
 * far as the queue takes them. Then it waits until the queue has failed and posts once more: `status->error`
 * is what that said, `done` how many were posted before, `failure` what the queue says. */
extern "C" __global__ void post_shared_astray(struct db_shared_sq *shared, struct db_post_target target,
                                              struct db_post_status *status, struct db_failure *failure) {
    struct db_poster poster = db_poster_of(shared);
    struct db_wait wait = {db_clock_ns() + target.deadline_ns, 0, 0};
    db_u32 message = 0;
    int error = 0;
    for (; message <= target.messages && !error; message++) {
        struct db_sge payload = db_post_payload(&target, message);
        db_u32 rkey = message == target.signal_every ? target.rkey ^ 0x5500 : target.rkey;
        struct db_send_wr wr = {message, &payload, 1, DB_WR_RDMA_WRITE, 0, 0, target.remote + 8ull * message, 0, 0, rkey};
        while (message == target.messages && !db_shared_failure(shared, failure) && !db_wait_over(&wait))
            db_shared_poll(shared, &poster, DB_WARP);
        error = db_shared_post(shared, &wr, &poster, wait);
        if (!error) status->done++;
    }
    status->error = (db_u32)error;
}
