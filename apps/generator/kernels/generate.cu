/*! The generator's senders: its plan's messages, posted by a thread or a warp on a queue of its own.
 *
 * A message's number, from 1, is its payload's last word. The kernel stores it before it posts: the
 * doorbell's fence covers it with the WQE. With WRITE_WITH_IMM the immediate is the number's place among the
 * source slots, and the payload is untouched. A batch asks for one completion; the poster polls when the next
 * has no room. Ends when all is posted and completed, at time-up, when told to, or at the first error.
 */
#include "generate.h"

/* One request, its opcode a constant where this is called. */
DB_GPU_FN int post_one(struct db_sq *sq, const struct db_generate_plan *plan, const struct db_generate_lane *lane,
                       db_u64 message, db_u32 source_slot, db_u32 target_slot, db_u32 flags) {
    db_u64 at = db_message_at(plan, source_slot), to = lane->target + db_message_at(plan, target_slot);
    /* An inline payload is read by this thread, any other by the NIC. */
    db_u64 from = (plan->send_flags & DB_SEND_INLINE ? lane->slots : lane->source) + at;
    struct db_sge local = {from, (db_u32)plan->payload_bytes, lane->lkey};
    flags |= plan->send_flags;
    if (plan->opcode == DB_WR_RDMA_WRITE_WITH_IMM)
        return db_try_post_write_imm(sq, message, local, to, lane->rkey, db_be32(source_slot), flags);
    db_store64(lane->slots + at + plan->payload_bytes - 8, message + 1);
    if (plan->opcode == DB_WR_SEND) return db_try_post_send(sq, message, local, flags);
    return db_try_post_write(sq, message, local, to, lane->rkey, flags);
}

/* A doorbell's worth of plain WRITEs, none across the end of the slots. */
DB_GPU_FN int post_writes(struct db_sq *sq, const struct db_generate_plan *plan, const struct db_generate_lane *lane,
                          db_u64 message, db_u32 source_slot, db_u32 target_slot, db_u32 count, db_u32 flags) {
    db_u64 at = db_message_at(plan, source_slot), word = lane->slots + at + plan->payload_bytes - 8;
    struct db_sge local = {lane->source + at, (db_u32)plan->payload_bytes, lane->lkey};
    db_u32 i;
    for (i = 0; i < count; i++) {
        db_store64(word, message + i + 1);
        word += plan->slot_bytes;
    }
    return db_try_post_writes(sq, message, local, lane->target + db_message_at(plan, target_slot), lane->rkey, flags, count,
                              (db_u32)plan->slot_bytes);
}

/* Launch: a block of one thread for each queue pair. */
extern "C" __global__ void generate_thread(const struct db_generate_plan *plans, const struct db_generate_lane *lanes,
                                           struct db_generate_result *results) {
    struct db_generate_plan plan = *plans;
    struct db_generate_lane lane = lanes[blockIdx.x];
    struct db_sq sq = *(struct db_sq *)lane.queue.sq;
    struct db_generate_poster poster = db_generate_begin(&lane);
    db_u32 source_slot = 0, target_slot = 0;
    int error = 0, plain = plan.opcode == DB_WR_RDMA_WRITE && !(plan.send_flags & DB_SEND_INLINE);
    if (threadIdx.x) return;
    while (!error) {
        db_u64 posted = poster.result.posted, left = lane.share - posted, ticks;
        db_u32 count = left < plan.batch ? (db_u32)left : plan.batch, at;
        if (!db_generate_may_post(&poster, &plan, &lane, count)) {
            error = db_generate_complete(&poster, &sq, &plan, &lane);
            continue;
        }
        ticks = db_ticks();
        for (at = 0; at < count && !error; at += plan.doorbell_batch) {
            db_u32 some = count - at < plan.doorbell_batch ? count - at : plan.doorbell_batch, i;
            db_u32 flags = at + some == count ? DB_SEND_SIGNALED : 0;
            db_u64 message = posted + at;
            if (plain) {
                error = post_writes(&sq, &plan, &lane, message, source_slot, target_slot, some, flags);
                source_slot = db_step(source_slot, some, plan.source_slots);
                target_slot = db_step(target_slot, some, plan.target_slots);
            } else {
                for (i = 0; i < some && !error; i++) {
                    error = post_one(&sq, &plan, &lane, message + i, source_slot, target_slot, i + 1 == some ? flags : 0);
                    source_slot = db_step(source_slot, 1, plan.source_slots);
                    target_slot = db_step(target_slot, 1, plan.target_slots);
                }
            }
            db_ring(&sq);
        }
        db_generate_sample(&poster.result, &lane, db_ticks() - ticks);
        if (!error) {
            poster.result.posted += count;
            error = db_generate_turn(&plan, &poster.clock, 1);
        }
        if (error) poster.result.end = db_kernel_end_of(sq.qpn, poster.result.posted, error, 0);
    }
    *(struct db_sq *)lane.queue.sq = sq;
    db_generate_end(&poster, &lane, &results[blockIdx.x]);
}

/* Launch: a block of one warp for each queue pair; `doorbell_batch` is a multiple of 32. Every lane has its
 * own copy of the queue, lane 0 the rest. */
extern "C" __global__ void generate_warp(const struct db_generate_plan *plans, const struct db_generate_lane *lanes,
                                         struct db_generate_result *results) {
    struct db_generate_plan plan = *plans;
    struct db_generate_lane lane = lanes[blockIdx.x];
    struct db_sq sq = *(struct db_sq *)lane.queue.sq;
    struct db_generate_poster poster = db_generate_begin(&lane);
    db_u64 posted = 0;
    db_u32 me = db_lane(), source_slot = me, target_slot = me;
    int error = 0, plain = plan.opcode == DB_WR_RDMA_WRITE && !(plan.send_flags & DB_SEND_INLINE);
    for (;;) {
        db_u64 left = lane.share - posted, ticks;
        db_u32 most = left < plan.batch ? (db_u32)left : plan.batch, count = 0, over = 0, at, bad = 0;
        if (me == 0) {
            if (db_generate_may_post(&poster, &plan, &lane, most)) {
                count = most;
                error = db_generate_turn(&plan, &poster.clock, 1);
                if (error) poster.result.end = db_kernel_end_of(sq.qpn, posted, error, 0);
                over = error != 0;
            } else {
                over = (db_u32)db_generate_complete(&poster, &sq, &plan, &lane);
            }
        }
        if (db_warp_shuffle32(over, 0)) break;
        count = db_warp_shuffle32(count, 0);
        /* What lane 0 has learnt of the queue, and with it the slots that may be used again. */
        sq.consumer = db_warp_shuffle64(sq.consumer, 0);
        if (!count) continue;
        db_warp_sync();
        ticks = db_ticks();
        for (at = 0; at < count && !error; at += DB_WARP) {
            db_u32 some = count - at < DB_WARP ? count - at : DB_WARP, mine = me < some;
            db_u32 flags = (at + me + 1 == count ? DB_SEND_SIGNALED : 0) | plan.send_flags;
            db_u64 message = posted + at + me, from = db_message_at(&plan, source_slot);
            db_u64 to = lane.target + db_message_at(&plan, target_slot);
            struct db_sge local = {(plan.send_flags & DB_SEND_INLINE ? lane.slots : lane.source) + from,
                                   (db_u32)plan.payload_bytes, lane.lkey};
            if (mine && plan.opcode != DB_WR_RDMA_WRITE_WITH_IMM)
                db_store64(lane.slots + from + plan.payload_bytes - 8, message + 1);
            if (plain && some == DB_WARP) {
                error = db_warp_post_write(&sq, message, local, to, lane.rkey, flags);
            } else {
                struct db_send_wr wr = {message, &local, 1, plan.opcode, flags, db_be32(source_slot), to, 0, 0, lane.rkey};
                error = db_warp_post(&sq, mine ? &wr : 0, &bad);
            }
            source_slot = db_step(source_slot, some, plan.source_slots);
            target_slot = db_step(target_slot, some, plan.target_slots);
            if (at + some == count || (at + some) % plan.doorbell_batch == 0) db_warp_ring(&sq);
        }
        if (me == 0) db_generate_sample(&poster.result, &lane, db_ticks() - ticks);
        if (error) {
            poster.result.end = db_kernel_end_of(sq.qpn, posted + bad, error, 0);
            break;
        }
        poster.result.posted = posted += count;
    }
    if (me) return;
    *(struct db_sq *)lane.queue.sq = sq;
    db_generate_end(&poster, &lane, &results[blockIdx.x]);
}
