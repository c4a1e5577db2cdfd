/*! What kernels of bench_post.cu and peer/bench_put.cu take and report: the same, since they are compared.
 *
 * A producer is a block: of one thread, or of one warp. Message m, counted through all producers, goes from
 * local + 64 m to remote + 64 m. So a ring tells afterwards which message each WQE is.
 */
#ifndef DB_BENCH_RUN_H
#define DB_BENCH_RUN_H

#include "order.h"

/* Bytes from one queue's struct to the next: `struct db_sq` for the shim's exclusive queues, or a peer's. */
#define DB_BENCH_SQ_BYTES 128u
#define DB_BENCH_PEER_BYTES 1024u
#define DB_BENCH_CQ_BYTES 32u
/* The one shared queue's. */
#define DB_BENCH_SHARED_BYTES 2048u

/* Bytes of a message: constant on both sides; the peer's routine cuts up messages of unknown length. */
#define DB_BENCH_LENGTH 64u

/* By value. */
struct db_bench_run {
    db_u64 queues; /* structs of queues, GPU memory */
    db_u64 times;  /* struct db_bench_time of each producer, host memory */
    db_u64 local;  /* where message 0 comes from */
    db_u64 remote; /* and goes to */
    db_u32 lkey;
    db_u32 rkey;
    db_u32 posts;       /* of one producer: a multiple of per_ring, of a warp also of 32 */
    db_u32 per_ring;    /* WQEs a doorbell, of a warp a multiple of 32 */
    db_u64 apart;       /* bytes from one producer's queue to the next one's; 0: all post to one */
    db_u64 patience_ns; /* longest wait for room, from the start on */
    db_u64 cqs;          /* struct db_cq of each exclusive queue of the shim, DB_BENCH_CQ_BYTES apart; 0 where nothing completes */
    db_u32 signal_every; /* WQEs a completion of these: a multiple of per_ring */
    db_u32 pad;
};

/* Of one producer: its first lane's view. */
struct db_bench_time {
    db_u64 start_ns; /* global timer */
    db_u64 end_ns;
    db_u32 error; /* 0, or what its posts returned, one over the other */
    db_u32 pad;
};

#endif /* DB_BENCH_RUN_H */
