/*! What generate.cu's thread sends, posted in the original release's style (post_original.h): the queue's state in memory, its
 * stores volatile, a fence a step, a doorbell a message. Room, completions, credits and clocks are the shim's, as there, so that the
 * NIC sees a queue like any other. RDMA WRITEs, with or without an immediate; never inline.
 */
#include "generate.h"
#include "post_original.h"

/* Launch: a block of one thread for each queue pair; `doorbell_batch` is 1. */
extern "C" __global__ void generate_original(const struct db_generate_plan *plans, const struct db_generate_lane *lanes,
                                             struct db_generate_result *results) {
    struct db_generate_plan plan = *plans;
    struct db_generate_lane lane = lanes[blockIdx.x];
    struct db_generate_result result = {0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0}};
    struct db_sq *sq = (struct db_sq *)lane.queue.sq;
    struct db_cq cq = *(struct db_cq *)lane.queue.send_cq;
    struct db_completion done = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    struct db_generate_clock clock = {db_clock_ns(), 0, 0, 0};
    db_u64 released = cq.consumer;
    db_u32 source_slot = 0, target_slot = 0, looks = 0;
    int error = 0, numbered = plan.opcode != DB_WR_RDMA_WRITE_WITH_IMM;
    if (threadIdx.x) return;
    result.begin_ns = clock.moved_ns = clock.begin_ns;
    result.begin_ticks = db_ticks();
    while (!error) {
        db_u64 left = lane.share - result.posted, ticks;
        db_u32 count = left < plan.batch ? (db_u32)left : plan.batch, i;
        int taken;
        if (count && !clock.stopping && db_generate_room(&plan, &lane, result.posted, result.completed, count)) {
            /* All of a batch's blocks at once: the style itself does not look for room. */
            if ((db_u32)sq->producer + count - (db_u32)sq->consumer > sq->blocks) {
                result.end = db_kernel_end_of(sq->qpn, result.posted, DB_ENOMEM, 0);
                break;
            }
            ticks = db_ticks();
            for (i = 0; i < count; i++) {
                db_u64 message = result.posted + i, at = db_message_at(&plan, source_slot);
                struct db_sge local = {lane.source + at, (db_u32)plan.payload_bytes, lane.lkey};
                if (numbered) *(volatile db_u64 *)(lane.slots + at + plan.payload_bytes - 8) = message + 1;
                db_post_original(sq, message, local, lane.target + db_message_at(&plan, target_slot), lane.rkey,
                                 db_wire_opcode(plan.opcode), numbered ? 0 : db_be32(source_slot),
                                 i + 1 == count ? DB_SEND_SIGNALED : 0);
                source_slot = db_step(source_slot, 1, plan.source_slots);
                target_slot = db_step(target_slot, 1, plan.target_slots);
            }
            db_generate_sample(&result, &lane, db_ticks() - ticks);
            sq->rung = sq->producer;
            result.posted += count;
            error = db_generate_turn(&plan, &clock, 1);
            continue;
        }
        if (result.completed == result.posted && (clock.stopping || !count)) break;
        taken = db_gpu_take(&cq, sq, 0, &done, &released);
        error = taken < 0 ? DB_EINVAL : db_generate_turn(&plan, &clock, taken);
        if (taken > 0 && done.status == DB_WC_SUCCESS) result.completed = done.wr_id + 1;
        if (error || (taken > 0 && done.status != DB_WC_SUCCESS)) {
            result.end = db_kernel_end_of(sq->qpn, result.completed, error, &done);
            break;
        }
        if ((++looks & 255) == 0) db_generate_show(&lane, &result);
    }
    result.end_ticks = db_ticks();
    result.end_ns = db_clock_ns();
    db_release(&cq);
    *(struct db_cq *)lane.queue.send_cq = cq;
    results[blockIdx.x] = result;
}
