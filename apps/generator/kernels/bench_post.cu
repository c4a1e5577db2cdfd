/*! Kernels of `generator bench-post-gpu`: time of a post by the shim, by style, and in the original style.
 *
 * Launch of all: `struct db_bench_run` by value; a block is a producer, one thread where the name does not
 * say warp. Queues' structs are in GPU memory; rings, records and registers where the host put them. No NIC
 * takes part: there is room for all posts of a run, so nothing waits. The host compares what a run leaves in
 * the ring. The timer is read before the first post and after the last doorbell was issued.
 */
#include "doorbell_gpu.h"
#include "bench_next.h"
#include "post_original.h"

typedef char db_bench_sq_fits[sizeof(struct db_sq) <= DB_BENCH_SQ_BYTES ? 1 : -1];
typedef char db_bench_shared_fits[sizeof(struct db_shared_sq) <= DB_BENCH_SHARED_BYTES ? 1 : -1];

/* One by one by db_try_post_write(), a doorbell every per_ring, the last one before it signalled. */
extern "C" __global__ void bench_post_one(struct db_bench_run run) {
    struct db_sq *queue = db_bench_queue(&run), sq = *queue;
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i = 0, j;
    int error = 0;
    db_u64 start = db_clock_ns();
    while (i < run.posts) {
        for (j = 1; j < run.per_ring; j++, i++) {
            error |= db_try_post_write(&sq, i, next.local, next.remote, run.rkey, 0);
            db_bench_advance(&next, 1);
        }
        error |= db_try_post_write(&sq, i++, next.local, next.remote, run.rkey, DB_SEND_SIGNALED);
        db_bench_advance(&next, 1);
        db_ring(&sq);
    }
    db_bench_end(&run, start, error);
    *queue = sq;
}

/* The same without looking for room. */
extern "C" __global__ void bench_post_one_unchecked(struct db_bench_run run) {
    struct db_sq *queue = db_bench_queue(&run), sq = *queue;
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i = 0, j;
    db_u64 start = db_clock_ns();
    while (i < run.posts) {
        for (j = 1; j <= run.per_ring; j++, i++) {
            struct db_send_wr wr = {i, &next.local, 1, DB_WR_RDMA_WRITE, j == run.per_ring ? DB_SEND_SIGNALED : 0,
                                    0, next.remote, 0, 0, run.rkey};
            sq.doorbell_word = db_fill_wqe(&sq, sq.producer, &wr, DB_WR_RDMA_WRITE, 3, 1);
            db_remember(&sq, sq.producer, i, 1);
            sq.producer++;
            db_bench_advance(&next, 1);
        }
        db_ring(&sq);
    }
    db_bench_end(&run, start, 0);
    *queue = sq;
}

/* per_ring at once by db_try_post_writes(), and a doorbell. */
extern "C" __global__ void bench_post_list(struct db_bench_run run) {
    struct db_sq *queue = db_bench_queue(&run), sq = *queue;
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i;
    int error = 0;
    db_u64 start = db_clock_ns();
    for (i = 0; i < run.posts; i += run.per_ring) {
        error |= db_try_post_writes(&sq, i, next.local, next.remote, run.rkey, DB_SEND_SIGNALED, run.per_ring, DB_BENCH_LENGTH);
        db_bench_advance(&next, run.per_ring);
        db_ring(&sq);
    }
    db_bench_end(&run, start, error);
    *queue = sq;
}

/* The same without looking for room. */
extern "C" __global__ void bench_post_list_unchecked(struct db_bench_run run) {
    struct db_sq *queue = db_bench_queue(&run), sq = *queue;
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i;
    db_u64 start = db_clock_ns();
    for (i = 0; i < run.posts; i += run.per_ring) {
        sq.doorbell_word = db_fill_writes(&sq, sq.producer, i, next.local, next.remote, run.rkey, DB_SEND_SIGNALED,
                                          run.per_ring, DB_BENCH_LENGTH);
        sq.producer += run.per_ring;
        db_bench_advance(&next, run.per_ring);
        db_ring(&sq);
    }
    db_bench_end(&run, start, 0);
    *queue = sq;
}

/* 32 at a time by db_warp_post_write(), a WQE a lane; the last lane's signalled before a doorbell. */
extern "C" __global__ void bench_post_warp(struct db_bench_run run) {
    struct db_sq *queue = db_bench_queue(&run), sq = *queue;
    struct db_bench_next next = db_bench_first(&run, db_lane());
    db_u32 i = 0, j, signal = db_lane() == DB_WARP - 1 ? DB_SEND_SIGNALED : 0;
    int error = 0;
    db_u64 start = db_clock_ns();
    while (i < run.posts) {
        for (j = 0; j < run.per_ring; j += DB_WARP, i += DB_WARP) {
            error |= db_warp_post_write(&sq, i + db_lane(), next.local, next.remote, run.rkey,
                                        j + DB_WARP == run.per_ring ? signal : 0);
            db_bench_advance(&next, DB_WARP);
        }
        db_warp_ring(&sq);
    }
    if (db_lane()) return;
    db_bench_end(&run, start, error);
    *queue = sq;
}

/* The same without looking for room. */
extern "C" __global__ void bench_post_warp_unchecked(struct db_bench_run run) {
    struct db_sq *queue = db_bench_queue(&run), sq = *queue;
    struct db_bench_next next = db_bench_first(&run, db_lane());
    db_u32 i = 0, j, signal = db_lane() == DB_WARP - 1 ? DB_SEND_SIGNALED : 0;
    db_u64 start = db_clock_ns();
    while (i < run.posts) {
        for (j = 0; j < run.per_ring; j += DB_WARP, i += DB_WARP) {
            struct db_send_wr wr = {i + db_lane(), &next.local, 1, DB_WR_RDMA_WRITE, j + DB_WARP == run.per_ring ? signal : 0,
                                    0, next.remote, 0, 0, run.rkey};
            db_fill_wqe(&sq, sq.producer + db_lane(), &wr, DB_WR_RDMA_WRITE, 3, 1);
            db_remember(&sq, sq.producer + db_lane(), wr.wr_id, 1);
            sq.doorbell_word = db_control_first(&sq, sq.producer + DB_WARP - 1, DB_WR_RDMA_WRITE, 3);
            sq.producer += DB_WARP;
            db_bench_advance(&next, DB_WARP);
        }
        db_warp_ring(&sq);
    }
    if (db_lane()) return;
    db_bench_end(&run, start, 0);
    *queue = sq;
}

/* Launch: one thread. Makes the shared queue out of an exclusive one, from whose indices it goes on, unless
 * db_shared_init() refuses; `error`: its result. */
extern "C" __global__ void bench_share(const struct db_sq *from, struct db_shared_sq *shared, struct db_cq cq, db_u64 filled,
                                       db_u32 signal_mask, db_u32 *error) {
    struct db_shared_sq made = {};
    made.sq = *from;
    made.cq = cq;
    made.filled = filled;
    made.signal_mask = signal_mask;
    *error = (db_u32)db_shared_init(&made);
    *shared = made;
}

/* One by one by db_shared_post(), which rings by itself. */
extern "C" __global__ void bench_post_shared(struct db_bench_run run) {
    struct db_shared_sq *shared = (struct db_shared_sq *)run.queues;
    struct db_poster poster = db_poster_of(shared);
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i;
    int error = 0;
    db_u64 start = db_clock_ns();
    struct db_wait wait = {start + run.patience_ns, 0, 0};
    for (i = 0; i < run.posts; i++) {
        struct db_send_wr wr = {i, &next.local, 1, DB_WR_RDMA_WRITE, 0, 0, next.remote, 0, 0, run.rkey};
        error |= db_shared_post(shared, &wr, &poster, wait);
        db_bench_advance(&next, 1);
    }
    db_bench_end(&run, start, error);
}

/* 32 at a time by db_shared_warp_post_write(). */
extern "C" __global__ void bench_post_shared_warp(struct db_bench_run run) {
    struct db_shared_sq *shared = (struct db_shared_sq *)run.queues;
    struct db_poster poster = db_poster_of(shared);
    struct db_bench_next next = db_bench_first(&run, db_lane());
    db_u32 i;
    int error = 0;
    db_u64 start = db_clock_ns();
    struct db_wait wait = {start + run.patience_ns, 0, 0};
    for (i = 0; i < run.posts; i += DB_WARP) {
        error |= db_shared_warp_post_write(shared, i + db_lane(), next.local, next.remote, run.rkey, 0, &poster, wait);
        db_bench_advance(&next, DB_WARP);
    }
    if (db_lane() == 0) db_bench_end(&run, start, error);
}

/* The original release's instructions: a queue's state looked up in memory at each use, a WQE in words, no
 * check for room, a doorbell a WQE. Signalled, as what it is compared with. */

/* Each store volatile, a fence of system scope behind each step: post_original.h. */
extern "C" __global__ void bench_post_original(struct db_bench_run run) {
    volatile struct db_sq *sq = db_bench_queue(&run);
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i;
    db_u64 start = db_clock_ns();
    for (i = 0; i < run.posts; i++) {
        db_post_original(sq, i, next.local, next.remote, run.rkey, DB_OPCODE_RDMA_WRITE, 0, DB_SEND_SIGNALED);
        db_bench_advance(&next, 1);
    }
    db_bench_end(&run, start, 0);
}

/* The release's instructions: three segments, then release stores of GPU scope for record and register. For a
 * NIC that orders too little; here only its time counts. */
extern "C" __global__ void bench_post_original_release(struct db_bench_run run) {
    volatile struct db_sq *sq = db_bench_queue(&run);
    struct db_bench_next next = db_bench_first(&run, 0);
    db_u32 i;
    db_u64 start = db_clock_ns();
    for (i = 0; i < run.posts; i++) {
        db_u32 index = (db_u32)sq->producer & (sq->blocks - 1);
        db_u64 wqe = sq->ring + (db_u64)index * DB_BLOCK_BYTES;
        volatile db_u64 *slot = (volatile db_u64 *)(sq->slots + (db_u64)index * sizeof(struct db_slot));
        db_u64 first = db_pair(((db_u32)sq->producer & 0xffff) << 8 | DB_OPCODE_RDMA_WRITE, sq->qpn << 8 | 3);
        slot[0] = i;
        slot[1] = sq->producer + 1;
        sq->producer = sq->producer + 1;
        db_store_segment(wqe, first, db_pair(DB_CTRL_CE_ALWAYS, 0));
        db_store_segment(wqe + 16, db_be64(next.remote), db_pair(run.rkey, 0));
        db_store_segment(wqe + 32, db_pair(next.local.length, next.local.lkey), db_be64(next.local.addr));
        db_store_release32((db_u32 *)sq->record, db_be32((db_u32)sq->producer & 0xffff));
        db_store_release64((db_u64 *)sq->reg, first);
        db_bench_advance(&next, 1);
    }
    db_bench_end(&run, start, 0);
}

/* ---- What posts are made of: one thread each, `posts` times ------------------------------------------ */

/* WQEs and their slots without doorbells, behind each the fence of that scope: 0 for none. */
#define DB_BENCH_SYSTEM 1
#define DB_BENCH_GPU 2
DB_GPU_FN void db_bench_wqes(const struct db_bench_run *run, int scope) {
    struct db_sq sq = *db_bench_queue(run);
    struct db_bench_next next = db_bench_first(run, 0);
    db_u64 start = db_clock_ns();
    db_u32 i;
    for (i = 0; i < run->posts; i++) {
        struct db_send_wr wr = {i, &next.local, 1, DB_WR_RDMA_WRITE, 0, 0, next.remote, 0, 0, run->rkey};
        db_fill_wqe(&sq, sq.producer + i, &wr, DB_WR_RDMA_WRITE, 3, 1);
        db_remember(&sq, sq.producer + i, i, 1);
        db_bench_advance(&next, 1);
        if (scope == DB_BENCH_SYSTEM) db_order_wqe_before_record();
        if (scope == DB_BENCH_GPU) db_order_wqe_before_mark();
    }
    db_bench_end(run, start, 0);
}

extern "C" __global__ void bench_floor_wqe(struct db_bench_run run) { db_bench_wqes(&run, 0); }

/* With the fence in front of a doorbell. */
extern "C" __global__ void bench_floor_wqe_fence(struct db_bench_run run) { db_bench_wqes(&run, DB_BENCH_SYSTEM); }

/* With the fence in front of a mark of a shared queue. */
extern "C" __global__ void bench_floor_wqe_mark_fence(struct db_bench_run run) { db_bench_wqes(&run, DB_BENCH_GPU); }

/* The fence with nothing to wait for. */
extern "C" __global__ void bench_floor_fence(struct db_bench_run run) {
    db_u64 start = db_clock_ns();
    db_u32 i;
    for (i = 0; i < run.posts; i++) db_order_wqe_before_record();
    db_bench_end(&run, start, 0);
}

/* A doorbell without fences: record and register. */
extern "C" __global__ void bench_floor_doorbell(struct db_bench_run run) {
    struct db_sq sq = *db_bench_queue(&run);
    db_u64 start = db_clock_ns();
    db_u32 i;
    for (i = 0; i < run.posts; i++) {
        db_store_record(sq.record, db_be32(i & 0xffff));
        db_store_register(sq.reg, db_pair((i & 0xffff) << 8, sq.qpn << 8));
    }
    db_bench_end(&run, start, 0);
}

/* Atomics and loads of a word in GPU memory, each at a place that the previous result tells: always the same,
 * unknown to the compiler. */
DB_GPU_FN void db_bench_adds(const struct db_bench_run *run, int acq_rel) {
    db_u64 *word = (db_u64 *)db_bench_queue(run)->slots, old = 0, start;
    db_u32 i;
    *word = 0;
    start = db_clock_ns();
    for (i = 0; i < run->posts; i++) {
        db_u64 *at = word + (old >> 63);
        old = acq_rel ? db_fetch_add_acq_rel64(at, 1) : db_fetch_add64(at, 1);
    }
    db_bench_end(run, start, old + 1 == run->posts ? 0 : DB_EINVAL);
}

extern "C" __global__ void bench_floor_add(struct db_bench_run run) { db_bench_adds(&run, 0); }

extern "C" __global__ void bench_floor_add_acq_rel(struct db_bench_run run) { db_bench_adds(&run, 1); }

extern "C" __global__ void bench_floor_load(struct db_bench_run run) {
    db_u64 *word = (db_u64 *)db_bench_queue(&run)->slots, found = 0, start;
    db_u32 i;
    *word = 0;
    start = db_clock_ns();
    for (i = 0; i < run.posts; i++) found += db_load_relaxed64(word + found);
    db_bench_end(&run, start, found ? DB_EINVAL : 0);
}

/* Launch: one thread. Timer step: the smallest of `count` differences between two readings that differ. */
extern "C" __global__ void bench_timer_step(db_u64 *step_ns, db_u32 count) {
    db_u64 smallest = ~(db_u64)0, last = db_clock_ns();
    while (count--) {
        db_u64 now = db_clock_ns();
        while (now == last) now = db_clock_ns();
        if (now - last < smallest) smallest = now - last;
        last = now;
    }
    *step_ns = smallest;
}
