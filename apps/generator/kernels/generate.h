/*! What the generator's kernels take and report; src/kernel/generate.rs mirrors each field. */
#ifndef DB_GENERATE_H
#define DB_GENERATE_H

#include "doorbell_kernel.h"

/* Of all queue pairs of a run. Slots and their order are apps/generator's (src/plan.rs, src/payload.rs). */
struct db_generate_plan {
    db_u64 cancel;      /* the word that tells to end */
    db_u64 run_ns;      /* how long to post; 0: until all of `share` is posted */
    db_u64 patience_ns; /* nothing completes for so long: the end */
    db_u64 hurry_ns;    /* the same, once told to end */
    db_u64 payload_bytes;
    db_u64 slot_bytes;
    db_u32 opcode; /* DB_WR_RDMA_WRITE, DB_WR_RDMA_WRITE_WITH_IMM, DB_WR_SEND */
    db_u32 send_flags;     /* DB_SEND_INLINE, or 0 */
    db_u32 source_slots;
    db_u32 target_slots;
    db_u32 batch;          /* messages a completion */
    db_u32 doorbell_batch; /* messages a doorbell */
    db_u32 window;         /* outstanding messages */
    db_u32 producers;      /* warps on a shared queue */
};

/* Of one queue pair. Addresses are the kernel's, but for those that go into requests. */
struct db_generate_lane {
    struct db_kernel_queue queue;
    db_u64 shared;  /* struct db_shared_sq, or 0 */
    db_u64 slots;   /* source slots */
    db_u64 source;  /* the same, as requests name them */
    db_u64 target;  /* target slots, as requests name them */
    db_u64 credits; /* word with the number of messages that the receiver has looked at; 0: it gives none */
    db_u64 share;   /* messages */
    db_u64 samples; /* DB_GENERATE_SAMPLES words: ticks of the last batches */
    db_u64 shown;   /* two words: messages posted and completed, now and then */
    db_u64 share_words; /* struct db_generate_share of a shared queue */
    db_u32 lkey;
    db_u32 rkey;
};

/* Of one queue pair, written by its kernel when it ends. */
struct db_generate_result {
    db_u64 posted;
    db_u64 completed;
    db_u64 begin_ns; /* before the first post */
    db_u64 end_ns;   /* after the last completion */
    db_u64 clock_ticks; /* so many ticks of one thread's ... */
    db_u64 clock_ns;    /* ... are so many nanoseconds */
    db_u64 post_ticks; /* in batches of posts, nothing else */
    db_u64 batches;
    struct db_kernel_end end;
};

#define DB_GENERATE_SAMPLES 4096u

/* A clock whose reading costs next to nothing. */
DB_GPU_FN db_u64 db_ticks(void) { return (db_u64)clock64(); }

/* A place in a cycle, without a division a message. */
DB_GPU_FN db_u32 db_step(db_u32 place, db_u32 by, db_u32 cycle) {
    place += by;
    return place >= cycle ? place - cycle : place;
}

/* Offset of a slot's message, which lies at its end. */
DB_GPU_FN db_u64 db_message_at(const struct db_generate_plan *plan, db_u32 slot) {
    return (slot + 1ull) * plan->slot_bytes - plan->payload_bytes;
}

/* Whether `count` more messages stay inside the window and, where credits count, the receiver's credit. */
DB_GPU_FN int db_generate_room(const struct db_generate_plan *plan, const struct db_generate_lane *lane, db_u64 posted,
                               db_u64 completed, db_u32 count) {
    if (posted + count - completed > plan->window) return 0;
    return !lane->credits || (db_u32)(posted + count) - db_load_acquire_sys32(lane->credits) <= plan->window;
}

/* When a poster has to stop, and what it waits for. */
struct db_generate_clock {
    db_u64 begin_ns;
    db_u64 moved_ns; /* something was posted or completed; once told to end: when that was */
    db_u32 turns;
    db_u32 stopping; /* 1: the time is up, 2: told to end; nothing more is posted */
};

/* Called once a turn: 0, or the error with which to give up. `moved`: something was posted or completed. */
DB_GPU_FN int db_generate_turn(const struct db_generate_plan *plan, struct db_generate_clock *clock, int moved) {
    db_u64 now = db_clock_ns();
    if (clock->stopping == 2) return now - clock->moved_ns > plan->hurry_ns ? DB_ECANCELED : 0;
    if (moved) clock->moved_ns = now;
    /* Producers of a shared queue share its begin, read on another multiprocessor. */
    if (!clock->stopping && plan->run_ns && now > clock->begin_ns && now - clock->begin_ns >= plan->run_ns) clock->stopping = 1;
    /* The word lies across PCIe. */
    if ((clock->turns++ & 63) == 63 && db_load_acquire_sys32(plan->cancel)) {
        clock->stopping = 2;
        clock->moved_ns = now;
    }
    return now - clock->moved_ns > plan->patience_ns ? DB_ETIMEDOUT : 0;
}

/* Notes what a batch of posts took. */
DB_GPU_FN void db_generate_sample(struct db_generate_result *result, const struct db_generate_lane *lane, db_u64 ticks) {
    result->post_ticks += ticks;
    db_store32(lane->samples + 4 * (result->batches++ % DB_GENERATE_SAMPLES), (db_u32)ticks);
}

/* Counts for the host, which may look at any time. */
DB_GPU_FN void db_generate_show(const struct db_generate_lane *lane, const struct db_generate_result *result) {
    db_store_relaxed64((db_u64 *)lane->shown, result->posted);
    db_store_relaxed64((db_u64 *)(lane->shown + 8), result->completed);
}

/* What a poster on a queue of its own keeps beside the queue; of a warp, lane 0 alone. */
struct db_generate_poster {
    struct db_cq cq;
    db_u64 released;
    struct db_completion done;
    struct db_generate_clock clock;
    struct db_generate_result result;
    db_u64 begin_ticks;
    db_u32 looks;
};

DB_GPU_FN struct db_generate_poster db_generate_begin(const struct db_generate_lane *lane) {
    struct db_generate_poster poster = {*(const struct db_cq *)lane->queue.send_cq,
                                        0,
                                        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
                                        {db_clock_ns(), 0, 0, 0},
                                        {0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0}},
                                        0,
                                        0};
    poster.released = poster.cq.consumer;
    poster.result.begin_ns = poster.clock.moved_ns = poster.clock.begin_ns;
    poster.begin_ticks = db_ticks();
    return poster;
}

/* Whether `count` messages are to be posted now. */
DB_GPU_FN int db_generate_may_post(const struct db_generate_poster *poster, const struct db_generate_plan *plan,
                                   const struct db_generate_lane *lane, db_u32 count) {
    return count && !poster->clock.stopping &&
           db_generate_room(plan, lane, poster->result.posted, poster->result.completed, count);
}

/* With nothing to post: takes the completions of one poll. Not 0: that was the end; `result` says why. */
DB_GPU_FN int db_generate_complete(struct db_generate_poster *poster, struct db_sq *sq, const struct db_generate_plan *plan,
                                   const struct db_generate_lane *lane) {
    struct db_generate_result *result = &poster->result;
    int taken, error, failed;
    if (result->completed == result->posted && (poster->clock.stopping || result->posted == lane->share)) return 1;
    taken = db_gpu_take_sends(&poster->cq, sq, &poster->done, &poster->released);
    error = taken < 0 ? DB_EINVAL : db_generate_turn(plan, &poster->clock, taken);
    failed = taken > 0 && poster->done.status != DB_WC_SUCCESS;
    if (taken > 0 && !failed) result->completed = poster->done.wr_id + 1;
    if (error || failed) result->end = db_kernel_end_of(sq->qpn, result->completed, error, &poster->done);
    if ((++poster->looks & 255) == 0) db_generate_show(lane, result);
    return error || failed;
}

/* Says how it went, and gives the CQ back; the send queue is the caller's to store. */
DB_GPU_FN void db_generate_end(struct db_generate_poster *poster, const struct db_generate_lane *lane,
                               struct db_generate_result *to) {
    poster->result.clock_ticks = db_ticks() - poster->begin_ticks;
    poster->result.end_ns = db_clock_ns();
    poster->result.clock_ns = poster->result.end_ns - poster->result.begin_ns;
    db_release(&poster->cq);
    *(struct db_cq *)lane->queue.send_cq = poster->cq;
    *to = poster->result;
}

#endif /* DB_GENERATE_H */
