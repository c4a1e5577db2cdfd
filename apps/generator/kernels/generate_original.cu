/*! The messages of generate.cu's thread in the original release's style (post_original.h): queue state in
 * memory, volatile stores, a fence a step, a doorbell a message. Room, completions, credits and clocks are
 * the shim's, so the NIC sees an ordinary queue. RDMA WRITEs, with or without immediate; never inline.
 */
#include "generate.h"
#include "post_original.h"

/* Launch: a block of one thread for each queue pair; `doorbell_batch` is 1. */
extern "C" __global__ void generate_original(const struct db_generate_plan *plans, const struct db_generate_lane *lanes,
                                             struct db_generate_result *results) {
    struct db_generate_plan plan = *plans;
    struct db_generate_lane lane = lanes[blockIdx.x];
    struct db_sq *sq = (struct db_sq *)lane.queue.sq;
    struct db_generate_poster poster = db_generate_begin(&lane);
    db_u32 source_slot = 0, target_slot = 0;
    int error = 0, numbered = plan.opcode != DB_WR_RDMA_WRITE_WITH_IMM;
    if (threadIdx.x) return;
    while (!error) {
        db_u64 posted = poster.result.posted, left = lane.share - posted, ticks;
        db_u32 count = left < plan.batch ? (db_u32)left : plan.batch, i;
        if (!db_generate_may_post(&poster, &plan, &lane, count)) {
            error = db_generate_complete(&poster, sq, &plan, &lane);
            continue;
        }
        /* All of a batch's blocks at once: the style itself does not look for room. */
        if ((db_u32)sq->producer + count - (db_u32)sq->consumer > sq->blocks) error = DB_ENOMEM;
        ticks = db_ticks();
        for (i = 0; i < count && !error; i++) {
            db_u64 message = posted + i, at = db_message_at(&plan, source_slot);
            struct db_sge local = {lane.source + at, (db_u32)plan.payload_bytes, lane.lkey};
            if (numbered) *(volatile db_u64 *)(lane.slots + at + plan.payload_bytes - 8) = message + 1;
            db_post_original(sq, message, local, lane.target + db_message_at(&plan, target_slot), lane.rkey,
                             db_wire_opcode(plan.opcode), numbered ? 0 : db_be32(source_slot),
                             i + 1 == count ? DB_SEND_SIGNALED : 0);
            source_slot = db_step(source_slot, 1, plan.source_slots);
            target_slot = db_step(target_slot, 1, plan.target_slots);
        }
        if (!error) {
            db_generate_sample(&poster.result, &lane, db_ticks() - ticks);
            sq->rung = sq->producer;
            poster.result.posted += count;
            error = db_generate_turn(&plan, &poster.clock, 1);
        }
        if (error) poster.result.end = db_kernel_end_of(sq->qpn, poster.result.posted, error, 0);
    }
    db_generate_end(&poster, &lane, &results[blockIdx.x]);
}
