/*! The generator's senders on a queue shared by warps. A message's number is its block's in the queue's life:
 * numbers arrive in order. See generate.cu for what a message is.
 */
#include "generate.h"

/* Of one queue pair, in GPU memory, for its producers; 0 at first. */
struct db_generate_share {
    db_u64 claimed; /* messages that producers have set out to post */
    db_u64 line0[15];
    db_u64 through; /* producers that post no more */
    db_u64 begin_ns; /* of the producer that began first, before any of them posts */
    db_u64 clock_ticks; /* of that one, as in db_generate_result */
    db_u64 clock_ns;
    db_u64 post_ticks; /* of all */
    db_u64 batches; /* of the first one, whose ticks are the samples */
    db_u32 error; /* of one of those that failed */
    db_u32 pad;
    db_u64 line1[9];
};

/* The message that goes into a block: the queue's life may begin at any multiple of 65,536. */
DB_GPU_FN db_u64 shared_message(const struct db_poster *poster, db_u64 block) { return block - poster->sq.producer; }

/* A post refused after db_shared_take(): its poster stops no other from ringing for published WQEs. */
DB_GPU_FN int shared_refused(struct db_shared_sq *shared, struct db_poster *poster, struct db_wait *failed) {
    db_shared_give_up(shared, poster);
    return db_shared_refuse(shared, failed);
}

/* Waits until `count` messages from `begin` on stay inside the window (no longer than the ring) and the
 * receiver's credit; lane 0 alone. A waiting poster polls, and rings for the others. It times out as on an
 * exclusive queue: `patience_ns` without a completion, `hurry_ns` once told to end. */
DB_GPU_FN int shared_room(struct db_shared_sq *shared, struct db_poster *poster, const struct db_generate_plan *plan,
                          const struct db_generate_lane *lane, struct db_generate_clock *clock, db_u64 begin, db_u32 count) {
    struct db_wait failed = {db_clock_ns() + plan->patience_ns, 0, 0};
    db_u32 messages = (db_u32)shared_message(poster, begin) + count;
    int error;
    if (clock->stopping != 2) clock->moved_ns = db_clock_ns();
    for (;;) {
        db_u64 before = poster->consumed;
        if (begin + count - before <= plan->window &&
            (!lane->credits || messages - db_load_acquire_sys32(lane->credits) <= plan->window))
            return 0;
        poster->consumed = db_load_acquire64(&shared->consumed);
        /* A failure is noted before the room that its CQE gives back. */
        if (db_load_relaxed32(&shared->failing)) return shared_refused(shared, poster, &failed);
        if (poster->consumed != before) continue;
        /* A waiting poster is not the ringer meanwhile. */
        error = db_shared_give_up(shared, poster);
        if (!error && !db_shared_poll(shared, poster, DB_WARP)) error = db_shared_help(shared);
        if (!error) error = db_generate_turn(plan, clock, db_load_relaxed64(&shared->consumed) != before);
        if (error) {
            /* Blocks were handed out that no poster will fill. */
            db_shared_fail(shared, DB_FAILED_HOLE, shared_message(poster, begin), 0);
            return error;
        }
    }
}

/* Posts a message a lane into the blocks `begin..begin + count`, which are the warp's and have room. */
DB_GPU_FN int shared_post(struct db_shared_sq *shared, struct db_poster *poster, const struct db_generate_plan *plan,
                          const struct db_generate_lane *lane, db_u64 begin, db_u32 count, int last) {
    db_u32 me = db_lane(), mine = me < count, units = 2 + db_has_remote_address(plan->opcode);
    db_u64 message = shared_message(poster, begin);
    db_u32 source_slot = db_step((db_u32)(message % plan->source_slots), me, plan->source_slots);
    db_u32 target_slot = db_step((db_u32)(message % plan->target_slots), me, plan->target_slots);
    db_u64 from = db_message_at(plan, source_slot), to = lane->target + db_message_at(plan, target_slot);
    struct db_sge local = {lane->source + from, (db_u32)plan->payload_bytes, lane->lkey};
    struct db_send_wr wr = {message + me, &local, 1, plan->opcode, 0, db_be32(source_slot), to, 0, 0, lane->rkey};
    if (me + 1 == count && (last || ((begin ^ (begin + count)) & ~(db_u64)poster->signal_mask)))
        wr.send_flags = DB_SEND_SIGNALED;
    if (mine) {
        if (plan->opcode != DB_WR_RDMA_WRITE_WITH_IMM) db_store64(lane->slots + from + plan->payload_bytes - 8, message + me + 1);
        db_fill_wqe(&poster->sq, begin + me, &wr, plan->opcode, units, 1);
        db_remember(&poster->sq, begin + me, wr.wr_id, 1);
    }
    return db_shared_warp_publish(shared, poster, begin, count);
}

/* Takes blocks for `count` messages, waits for room and posts: 0, or the same error in every lane. */
DB_GPU_FN int shared_send(struct db_shared_sq *shared, struct db_poster *poster, const struct db_generate_plan *plan,
                          const struct db_generate_lane *lane, struct db_generate_clock *clock, db_u32 count, int last,
                          db_u64 *ticks) {
    struct db_wait failed = {0, 0, 0};
    db_u64 begin = 0, before;
    int error = 0;
    if (db_lane() == 0) {
        failed.deadline_ns = db_clock_ns() + plan->patience_ns;
        begin = db_shared_take(shared, poster, count);
        if (begin >= DB_RESERVED_FAILED)
            error = shared_refused(shared, poster, &failed);
        else
            error = shared_room(shared, poster, plan, lane, clock, begin, count);
    }
    begin = db_warp_shuffle64(begin, 0);
    error = (int)db_warp_shuffle32((db_u32)error, 0);
    if (error) return error;
    /* What lane 0 acquired is acquired by all: a shuffle orders no memory. */
    db_warp_sync();
    before = db_ticks();
    error = shared_post(shared, poster, plan, lane, begin, count, last || shared_message(poster, begin) + count == lane->share);
    *ticks = db_ticks() - before;
    return error;
}

/* The last producer waits for what all have posted, and says how it went. */
DB_GPU_FN void shared_finish(struct db_shared_sq *shared, struct db_poster *poster, const struct db_generate_plan *plan,
                             const struct db_generate_lane *lane, struct db_generate_clock *clock,
                             struct db_generate_result *result) {
    struct db_generate_share *all = (struct db_generate_share *)lane->share_words;
    struct db_failure failure = {};
    int error = (int)db_load_relaxed32(&all->error);
    clock->moved_ns = db_clock_ns();
    while (!error && db_load_acquire64(&shared->consumed) < db_shared_published(shared)) {
        db_u32 taken = db_shared_poll(shared, poster, DB_WARP);
        error = db_load_relaxed32(&shared->failing) ? DB_EIO : taken ? 0 : db_shared_help(shared);
        if (!error) error = db_generate_turn(plan, clock, taken != 0);
    }
    result->posted = shared_message(poster, db_shared_published(shared));
    result->completed = shared_message(poster, db_load_acquire64(&shared->consumed));
    result->post_ticks = db_load_relaxed64(&all->post_ticks);
    result->batches = db_load_relaxed64(&all->batches);
    result->end = db_kernel_end_of(poster->sq.qpn, result->completed, error, 0);
    if (!db_shared_failure(shared, &failure)) return;
    result->end.wr_id = failure.wr_id;
    if (failure.why != DB_FAILED_CQE) return;
    result->end.code = DB_END_COMPLETION;
    result->end.status = failure.status;
    result->end.syndrome = failure.syndrome;
    result->end.vendor_syndrome = failure.vendor_syndrome;
    result->end.is_send = 1;
}

/* Launch: for each queue pair `producers` blocks of one warp. */
extern "C" __global__ void generate_shared(const struct db_generate_plan *plans, const struct db_generate_lane *lanes,
                                           struct db_generate_result *results) {
    struct db_generate_plan plan = *plans;
    db_u32 queue = blockIdx.x / plan.producers, first = blockIdx.x % plan.producers == 0, me = db_lane(), looks = 0;
    struct db_generate_lane lane = lanes[queue];
    struct db_shared_sq *shared = (struct db_shared_sq *)lane.shared;
    struct db_generate_share *all = (struct db_generate_share *)lane.share_words;
    struct db_generate_result result = {0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0}};
    struct db_poster poster = db_poster_of(shared);
    struct db_generate_clock clock = {db_clock_ns(), 0, 0, 0};
    db_u64 began = clock.begin_ns, begin_ticks = db_ticks(), ticks = 0, posted;
    int error = 0, earliest = 0;
    clock.moved_ns = began;
    if (me == 0) {
        /* One time for all: a late producer does not post longer; the last to finish may have begun last. */
        db_u64 first_ns = db_compare_swap_acq_rel64(&all->begin_ns, 0, began);
        earliest = first_ns == 0;
        if (!earliest) clock.begin_ns = first_ns;
    }
    result.begin_ns = clock.begin_ns;
    while (!error) {
        db_u32 count = 0;
        if (me == 0) {
            error = db_generate_turn(&plan, &clock, 1);
            if (!error && !clock.stopping) {
                db_u64 claimed = db_fetch_add64(&all->claimed, DB_WARP);
                if (claimed < lane.share) count = lane.share - claimed < DB_WARP ? (db_u32)(lane.share - claimed) : DB_WARP;
            }
        }
        error = (int)db_warp_shuffle32((db_u32)error, 0);
        count = db_warp_shuffle32(count, 0);
        if (error || !count) break;
        error = shared_send(shared, &poster, &plan, &lane, &clock, count, 0, &ticks);
        if (me || error) continue;
        if (first && count == DB_WARP)
            db_generate_sample(&result, &lane, ticks);
        else
            result.post_ticks += ticks;
        if (first && (++looks & 63) == 0) {
            result.posted = shared_message(&poster, db_shared_published(shared));
            result.completed = shared_message(&poster, db_load_relaxed64(&shared->consumed));
            db_generate_show(&lane, &result);
        }
    }
    if (me == 0) {
        if (error) db_store_relaxed32(&all->error, (db_u32)error);
        if (first) db_store_relaxed64(&all->batches, result.batches);
        if (earliest) {
            db_store_relaxed64(&all->clock_ticks, db_ticks() - begin_ticks);
            db_store_relaxed64(&all->clock_ns, db_clock_ns() - began);
        }
        db_fetch_add64(&all->post_ticks, result.post_ticks);
        /* What each has counted is the last one's to read. */
        looks = db_fetch_add_acq_rel64(&all->through, 1) + 1 == plan.producers;
    }
    if (!db_warp_shuffle32(looks, 0)) return;
    /* At time-up the messages after the last completion have none: one more message asks for it. */
    error = (int)db_warp_shuffle32(db_load_relaxed32(&all->error), 0);
    posted = shared_message(&poster, db_shared_published(shared));
    if (!error && db_warp_shuffle64(posted, 0) != lane.share)
        error = shared_send(shared, &poster, &plan, &lane, &clock, 1, 1, &ticks);
    if (me) return;
    if (error) db_store_relaxed32(&all->error, (db_u32)error);
    shared_finish(shared, &poster, &plan, &lane, &clock, &result);
    result.clock_ticks = db_load_relaxed64(&all->clock_ticks);
    result.clock_ns = db_load_relaxed64(&all->clock_ns);
    result.end_ns = db_clock_ns();
    results[queue] = result;
}
