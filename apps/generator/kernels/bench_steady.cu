/*! Kernels of `generator bench-post-gpu` for a steady state: the ring fills again; completions give room.
 *
 * Launch: `struct db_bench_run` by value, as in bench_post.cu; a block is a producer. Host threads play the
 * NIC: they execute what the doorbell names and write CQEs. A post waits for room, and its poster polls. On
 * shared queues bench_post.cu's kernels do that already.
 */
#include "bench_next.h"

typedef char db_bench_cq_fits[sizeof(struct db_cq) <= DB_BENCH_CQ_BYTES ? 1 : -1];

/* What a producer polls. */
struct db_bench_polled {
    struct db_cq cq;
    db_u64 released;
    struct db_completion done;
    struct db_wait wait;
};

DB_GPU_FN struct db_bench_polled db_bench_polled_of(const struct db_bench_run *run, db_u64 start) {
    struct db_bench_polled polled = {};
    polled.cq = ((const struct db_cq *)run->cqs)[blockIdx.x];
    polled.released = polled.cq.consumer;
    polled.wait.deadline_ns = start + run->patience_ns;
    return polled;
}

/* Whether the WQEs before `behind` end with one that asks for a completion. */
DB_GPU_FN db_u32 db_bench_signal(const struct db_bench_run *run, db_u32 behind) {
    return behind & (run->signal_every - 1) ? 0 : DB_SEND_SIGNALED;
}

/* One by one by db_try_post_write(), a doorbell every per_ring. */
extern "C" __global__ void bench_steady_one(struct db_bench_run run) {
    struct db_sq sq = *db_bench_queue(&run);
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i = 0, j;
    int error = 0;
    db_u64 start = db_clock_ns();
    struct db_bench_polled polled = db_bench_polled_of(&run, start);
    while (i < run.posts && !error) {
        for (j = 1; j <= run.per_ring && !error; j++, i++) {
            db_u32 flags = j == run.per_ring ? db_bench_signal(&run, i + 1) : 0;
            while ((error = db_try_post_write(&sq, i, next.local, next.remote, run.rkey, flags)) == DB_ENOMEM) {
                db_ring(&sq);
                error = db_gpu_make_room(&polled.cq, &sq, &polled.done, &polled.released, polled.wait);
                if (error) break;
            }
            db_bench_advance(&next, 1);
        }
        db_ring(&sq);
    }
    db_bench_end(&run, start, error);
}

/* per_ring at once by db_try_post_writes(), and a doorbell. */
extern "C" __global__ void bench_steady_list(struct db_bench_run run) {
    struct db_sq sq = *db_bench_queue(&run);
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i;
    int error = 0;
    db_u64 start = db_clock_ns();
    struct db_bench_polled polled = db_bench_polled_of(&run, start);
    for (i = 0; i < run.posts && !error; i += run.per_ring) {
        db_u32 flags = db_bench_signal(&run, i + run.per_ring);
        while ((error = db_try_post_writes(&sq, i, next.local, next.remote, run.rkey, flags, run.per_ring, DB_BENCH_LENGTH)) ==
               DB_ENOMEM) {
            error = db_gpu_make_room(&polled.cq, &sq, &polled.done, &polled.released, polled.wait);
            if (error) break;
        }
        db_bench_advance(&next, run.per_ring);
        db_ring(&sq);
    }
    db_bench_end(&run, start, error);
}

/* 32 at a time by db_warp_post_write(), a WQE a lane, and a doorbell. */
extern "C" __global__ void bench_steady_warp(struct db_bench_run run) {
    struct db_sq sq = *db_bench_queue(&run);
    struct db_bench_next next = db_bench_first(&run, db_lane());
    db_u32 i;
    int error = 0;
    db_u64 start = db_clock_ns();
    struct db_bench_polled polled = db_bench_polled_of(&run, start);
    for (i = 0; i < run.posts && !error; i += DB_WARP) {
        db_u32 flags = db_lane() == DB_WARP - 1 ? db_bench_signal(&run, i + DB_WARP) : 0;
        while ((error = db_warp_post_write(&sq, i + db_lane(), next.local, next.remote, run.rkey, flags)) == DB_ENOMEM) {
            error = db_warp_make_room(&polled.cq, &sq, &polled.done, &polled.released, polled.wait);
            if (error) break;
        }
        db_bench_advance(&next, DB_WARP);
        db_warp_ring(&sq);
    }
    if (db_lane() == 0) db_bench_end(&run, start, error);
}
