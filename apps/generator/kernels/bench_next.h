/*! What the kernels of bench_post.cu and bench_steady.cu post, and how they tell their time. */
#ifndef DB_BENCH_NEXT_H
#define DB_BENCH_NEXT_H

#include "bench_run.h"
#include "doorbell_gpu.h"

/* What a lane posts next, `ahead` messages further than its producer's first. */
struct db_bench_next {
    struct db_sge local;
    db_u64 remote;
};

DB_GPU_FN struct db_bench_next db_bench_first(const struct db_bench_run *run, db_u32 ahead) {
    db_u64 bytes = ((db_u64)blockIdx.x * run->posts + ahead) * DB_BENCH_LENGTH;
    struct db_bench_next next = {{run->local + bytes, DB_BENCH_LENGTH, run->lkey}, run->remote + bytes};
    return next;
}

DB_GPU_FN void db_bench_advance(struct db_bench_next *next, db_u32 messages) {
    next->local.addr += (db_u64)messages * DB_BENCH_LENGTH;
    next->remote += (db_u64)messages * DB_BENCH_LENGTH;
}

DB_GPU_FN struct db_sq *db_bench_queue(const struct db_bench_run *run) {
    return (struct db_sq *)(run->queues + (db_u64)blockIdx.x * run->apart);
}

DB_GPU_FN void db_bench_end(const struct db_bench_run *run, db_u64 start_ns, int error) {
    struct db_bench_time *time = (struct db_bench_time *)run->times + blockIdx.x;
    db_u64 end_ns = db_clock_ns();
    time->start_ns = start_ns;
    time->end_ns = end_ns;
    time->error = (db_u32)error;
}

#endif /* DB_BENCH_NEXT_H */
