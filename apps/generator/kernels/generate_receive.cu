/*! The generator's receiver: a warp for each queue pair takes what arrives, compares number and body, posts
 * receives again, and gives the sender credit.
 *
 * A WRITE is found by its slot's last word, the others by their completions. RC alone: order is kept and
 * nothing is lost, so whatever a message says to be, it is the next one. Ends at the sender's count, which
 * the host tells, when told to, or at the first error completion. Bodies: apps/generator/src/payload.rs.
 */
#include "generate.h"

struct db_receive_plan {
    db_u64 cancel;
    db_u64 payload_bytes;
    db_u64 slot_bytes;
    db_u32 opcode; /* of the sender's requests */
    db_u32 source_slots;
    db_u32 target_slots;
    db_u32 window;
    db_u32 receives;    /* kept posted; 0 with WRITE */
    db_u32 sample;      /* each how many-th message's body is compared; 0: none */
    db_u32 has_credits; /* whether the sender waits for leave */
    db_u32 pad;
};

/* Of one queue pair. */
struct db_receive_lane {
    struct db_kernel_queue queue;
    db_u64 slots;   /* as the kernel sees them */
    db_u64 local;   /* as requests name them */
    db_u64 credits; /* the sender's word */
    db_u64 scratch; /* a word of the kernel's: leave on its way */
    db_u64 told;    /* 32 bits, 1 when the word behind them holds how many messages the sender completed */
    db_u64 shown;   /* 32 bits: 1 when receives are posted; behind them, messages so far */
    db_u32 lkey;
    db_u32 rkey;
};

struct db_receive_result {
    db_u64 received;
    db_u64 checked;
    db_u64 verified;
    db_u64 torn;
    struct db_kernel_end end;
};

#define CREDITS_OUTSTANDING 16u
#define RECEIVES_A_RECORD 16u

/* What lane 0 keeps. */
struct taker {
    struct db_sq sq;
    struct db_rq rq;
    struct db_cq send_cq;
    struct db_cq cq;
    db_u64 send_released;
    db_u64 released;
    db_u64 credited;
    db_u32 credits_outstanding;
    db_u32 slot;    /* of the next receive to be posted */
    db_u32 pending; /* receives to be posted */
};

/* Posts the pending receives. */
DB_GPU_FN int post_pending(struct taker *taker, const struct db_receive_plan *plan, const struct db_receive_lane *lane) {
    struct db_sge pieces[RECEIVES_A_RECORD];
    struct db_recv_wr wrs[RECEIVES_A_RECORD];
    int error = 0;
    while (taker->pending && !error) {
        db_u32 count = taker->pending < RECEIVES_A_RECORD ? taker->pending : RECEIVES_A_RECORD, bad = 0, i;
        for (i = 0; i < count; i++) {
            db_u64 at = (taker->slot + 1ull) * plan->slot_bytes - plan->payload_bytes;
            struct db_sge piece = {lane->local + at, (db_u32)plan->payload_bytes, lane->lkey};
            struct db_recv_wr wr = {taker->slot, &pieces[i], plan->opcode == DB_WR_SEND ? 1u : 0u};
            pieces[i] = piece;
            wrs[i] = wr;
            taker->slot = db_step(taker->slot, 1, plan->target_slots);
        }
        error = db_post_recv(&taker->rq, wrs, count, &bad);
        taker->pending -= count;
    }
    return error;
}

/* Tells the sender how many messages were looked at: every quarter window, and whenever there is a pause. */
DB_GPU_FN int give_credit(struct taker *taker, const struct db_receive_plan *plan, const struct db_receive_lane *lane,
                          db_u64 next, int pause, struct db_completion *done) {
    db_u32 step = pause || plan->window < 8 ? 1 : plan->window / 4;
    struct db_sge word = {lane->scratch, 8, 0};
    int error;
    if (!plan->has_credits || next - taker->credited < step) return 0;
    while ((error = db_gpu_take(&taker->send_cq, &taker->sq, 0, done, &taker->send_released)) > 0) {
        if (done->status != DB_WC_SUCCESS) return 0;
        taker->credits_outstanding--;
    }
    if (error < 0) return DB_EINVAL;
    if (taker->credits_outstanding == CREDITS_OUTSTANDING) return 0;
    db_store64(lane->scratch, next);
    error = db_try_post_write(&taker->sq, next, word, lane->credits, lane->rkey, DB_SEND_SIGNALED | DB_SEND_INLINE);
    if (error) return error;
    /* The slots were read; its fence stands before the doorbell. */
    db_ring(&taker->sq);
    taker->credits_outstanding++;
    taker->credited = next;
    return 0;
}

/* The low half of a slot's last word, behind which the rest of the message is seen. */
DB_GPU_FN db_u32 sequence_of(const struct db_receive_plan *plan, const struct db_receive_lane *lane, db_u32 slot) {
    return db_load_acquire_sys32(lane->slots + (slot + 1ull) * plan->slot_bytes - 8);
}

/* Whether the slot holds the body of that source slot; all lanes look. */
DB_GPU_FN int is_whole(const struct db_receive_plan *plan, const struct db_receive_lane *lane, db_u32 slot,
                       db_u32 source_slot) {
    db_u64 at = lane->slots + (slot + 1ull) * plan->slot_bytes - plan->payload_bytes;
    db_u64 bytes = plan->payload_bytes - (plan->opcode == DB_WR_RDMA_WRITE_WITH_IMM ? 0 : 8), word;
    int bad = 0;
    for (word = db_lane(); word * 8 < bytes; word += DB_WARP) {
        db_u64 expected = (source_slot + 1ull) * 0x9e3779b97f4a7c15ull ^ (word + 1) * 0xd1b54a32d192ed03ull;
        db_u64 from = at + word * 8, byte;
        if (!(from & 7) && word * 8 + 8 <= bytes) {
            bad |= db_load_relaxed64((const db_u64 *)from) != expected;
        } else {
            for (byte = 0; byte < 8 && word * 8 + byte < bytes; byte++)
                bad |= db_load_owner(from + byte) != (db_u8)(expected >> 8 * byte);
        }
    }
    return db_warp_ballot(bad) == 0;
}

/* Launch: a block of one warp for each queue pair. Lane 0 takes, all compare. */
extern "C" __global__ void generate_receive(const struct db_receive_plan *plans, const struct db_receive_lane *lanes,
                                            struct db_receive_result *results) {
    struct db_receive_plan plan = *plans;
    struct db_receive_lane lane = lanes[blockIdx.x];
    struct db_receive_result result = {0, 0, 0, 0, {0, 0, 0, 0, 0, 0, 0}};
    struct db_completion done = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    struct taker taker;
    db_u32 me = db_lane(), turns = 0, source_slot = 0, target_slot = 0;
    int error = 0;
    if (me == 0) {
        taker.sq = *(struct db_sq *)lane.queue.sq;
        taker.rq = *(struct db_rq *)lane.queue.rq;
        taker.send_cq = *(struct db_cq *)lane.queue.send_cq;
        taker.cq = *(struct db_cq *)lane.queue.receive_cq;
        taker.send_released = taker.send_cq.consumer;
        taker.released = taker.cq.consumer;
        taker.credited = 0;
        taker.credits_outstanding = taker.slot = 0;
        taker.pending = plan.receives;
        error = post_pending(&taker, &plan, &lane);
        db_store_release_sys32(lane.shown, 1);
    }
    for (;;) {
        db_u32 found = 0, looks = 0, over = 0, slot = target_slot, right = 0;
        if (me == 0) {
            if (plan.opcode == DB_WR_RDMA_WRITE) {
                found = right = sequence_of(&plan, &lane, slot) == (db_u32)result.received + 1;
            } else if (!error) {
                int taken = db_gpu_take(&taker.cq, 0, &taker.rq, &done, &taker.released);
                if (taken < 0) error = DB_EINVAL;
                found = taken > 0 && done.status == DB_WC_SUCCESS;
                over = taken > 0 && !found;
                if (found && plan.opcode == DB_WR_SEND) {
                    slot = (db_u32)done.wr_id;
                    right = sequence_of(&plan, &lane, slot) == (db_u32)result.received + 1;
                } else if (found) {
                    right = done.has_imm && db_be32(done.imm_data) == source_slot;
                }
            }
            looks = found && right && plan.sample && result.received % plan.sample == 0;
            if (found && !right) {
                result.checked++;
                result.torn++;
            }
        }
        looks = db_warp_shuffle32(looks, 0);
        if (looks) {
            int whole;
            slot = db_warp_shuffle32(slot, 0);
            source_slot = db_warp_shuffle32(source_slot, 0);
            /* What lane 0 acquired is acquired by all. */
            db_warp_sync();
            whole = is_whole(&plan, &lane, slot, source_slot);
            result.checked++;
            if (whole)
                result.verified++;
            else
                result.torn++;
        }
        if (me == 0) {
            if (found) {
                result.received++;
                source_slot = db_step(source_slot, 1, plan.source_slots);
                target_slot = db_step(target_slot, 1, plan.target_slots);
                if (plan.receives) taker.pending++;
            }
            if (!error && !over && (taker.pending >= RECEIVES_A_RECORD || (!found && taker.pending)))
                error = post_pending(&taker, &plan, &lane);
            if (!error && !over) error = give_credit(&taker, &plan, &lane, result.received, !found, &done);
            over |= done.status != DB_WC_SUCCESS;
            /* Whether messages come or not: the word that ends the kernel is looked at. */
            if ((++turns & 63) == 63) {
                db_store_relaxed64((db_u64 *)(lane.shown + 8), result.received);
                const db_u32 told = db_load_acquire_sys32(lane.told);
                /* A sender that has told its count sends no more: what came is taken before an end. */
                if (db_load_acquire_sys32(plan.cancel)) over |= !told || !found;
                if (told) over |= result.received >= db_load_relaxed64((const db_u64 *)(lane.told + 8));
            }
            over |= error != 0;
        }
        if (db_warp_shuffle32(over, 0)) break;
    }
    if (me) return;
    result.end = db_kernel_end_of(taker.sq.qpn, result.received, error, &done);
    db_release(&taker.send_cq);
    db_release(&taker.cq);
    *(struct db_sq *)lane.queue.sq = taker.sq;
    *(struct db_rq *)lane.queue.rq = taker.rq;
    *(struct db_cq *)lane.queue.send_cq = taker.send_cq;
    *(struct db_cq *)lane.queue.receive_cq = taker.cq;
    results[blockIdx.x] = result;
}
