/*! What a GPU adds to doorbell.h: waits that end, warps that post together, and queues shared by many warps.
 *
 * The routines of doorbell.h serve one thread with a queue of its own, on a GPU as on a host. Here:
 *
 *   db_gpu_take, db_gpu_wait               one thread, its own CQ: the next completion, or why there is none
 *   db_warp_post, db_warp_ring, db_warp_wait   a warp in lock step, its own queue: 32 WQEs, one doorbell
 *   db_block_post_write, _ring, _wait      a thread block, a queue of its own: a WQE a thread, one doorbell
 *   db_shared_post, db_shared_poll         any number of threads or warps on one queue: doorbell_shared.h
 *
 * Every wait has a deadline and a cancel word, and every failure is a value: nothing here traps, and no error
 * CQE turns into a hang. For CUDA (NVRTC or nvcc) and the host twin.
 */
#ifndef DB_DOORBELL_GPU_H
#define DB_DOORBELL_GPU_H

#include "doorbell.h"

#define DB_EIO 5         /* a request failed: see the completion, or db_shared_failure() */
#define DB_ETIMEDOUT 110 /* the deadline passed */
#define DB_ECANCELED 125 /* the cancel word was set */

#define DB_WARP 32u

/* ---- Waits --------------------------------------------------------------------------------------------- */

/* How long to wait: until the GPU's global timer reads `deadline_ns` (db_clock_ns()), or until the 32-bit
 * word at `cancel` (host memory, 0 for none) is no longer 0. */
struct db_wait {
    db_u64 deadline_ns;
    db_u64 cancel;
    db_u32 turns; /* of the loop so far: start at 0 */
};

/* Called once per turn of a waiting loop: 0, DB_ETIMEDOUT or DB_ECANCELED. Reading the timer takes a few
 * turns and the cancel word lies across PCIe, so they are read every 16th and every 64th turn. */
DB_GPU_FN int db_wait_over(struct db_wait *wait) {
    db_u32 turn = wait->turns++;
    if ((turn & 15) != 15) return 0;
    if (wait->cancel && (turn & 63) == 63 && db_load_acquire_sys32(wait->cancel)) return DB_ECANCELED;
    return db_clock_ns() >= wait->deadline_ns ? DB_ETIMEDOUT : 0;
}

/* Releases CQEs once a quarter of the ring was taken since the last time: each release is a full fence. */
DB_GPU_FN void db_gpu_release(struct db_cq *cq, db_u64 *released) {
    if (cq->consumer - *released < cq->entries / 4 + (cq->entries < 4)) return;
    db_release(cq);
    *released = cq->consumer;
}

/* The next completion of a CQ that serves one queue: 1 with `out` filled, 0 when there is none yet, or
 * DB_POLL_COMPRESSED. `released` is the caller's, 0 at first. */
DB_GPU_FN int db_gpu_take(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out,
                          db_u64 *released) {
    int taken = db_take_cqe(cq, out);
    if (taken <= 0) return taken;
    if (out->is_send && sq)
        db_retire_send(sq, out);
    else if (!out->is_send && rq)
        db_retire_recv(rq, out);
    else
        out->status = DB_WC_STALE;
    db_gpu_release(cq, released);
    return 1;
}

/* CQEs that one look takes in: as many loads across PCIe side by side, so that a trip serves them all. */
#define DB_LOOK 16u

#ifdef DB_DEFECT_NO_OWNER_BIT_BEHIND
#define DB_IS_THERE(cq, ahead, tail) 1
#else
#define DB_IS_THERE(cq, ahead, tail) db_cqe_is_there(cq, ahead, tail)
#endif

/* Takes the queue's successful sends that a look finds: how many, 0, or DB_POLL_COMPRESSED. `out` is the last
 * one, which retires all blocks before (they end in order). Any other CQE is taken alone and ends a row. */
DB_GPU_FN int db_take_sends(struct db_cq *cq, db_u32 qpn, struct db_completion *out) {
    db_u64 tail[DB_LOOK], last;
    db_u32 count = 0, i;
    DB_UNROLL
    for (i = 0; i < DB_LOOK; i++) tail[i] = db_load_cqe_tail(db_cqe_at(cq, i) + DB_CQE_OPCODE_QPN);
    if (!db_cqe_is_there(cq, 0, tail[0])) return 0;
    db_acquire_cqe();
    last = tail[0];
    DB_UNROLL
    for (i = 0; i < DB_LOOK; i++) {
        db_u32 is_send = (db_tail_owner(tail[i]) & ~1u) == DB_CQE_REQUESTER << 4;
        if (count == i && is_send && (db_tail_opcode_qpn(tail[i]) & 0xffffff) == qpn && DB_IS_THERE(cq, i, tail[i])) {
            count = i + 1;
            last = tail[i];
        }
    }
    if (count) cq->consumer += count - 1;
    if (db_read_cqe(cq, last, out) < 0) return DB_POLL_COMPRESSED;
    return count ? (int)count : 1;
}

/* db_gpu_take() for all successful sends that a look finds: their number, the last one in `out`. For a poster
 * that waits for room: single requests are not reported. */
DB_GPU_FN int db_gpu_take_sends(struct db_cq *cq, struct db_sq *sq, struct db_completion *out, db_u64 *released) {
    int taken = db_take_sends(cq, sq->qpn, out);
    if (taken <= 0) return taken;
    if (out->is_send)
        db_retire_send(sq, out);
    else
        out->status = DB_WC_STALE;
    db_gpu_release(cq, released);
    return taken;
}

/* Waits until completions have freed some blocks of a full queue: 0; DB_EIO with the failed request in `out`;
 * else as db_gpu_wait(). The CQ serves this queue's sends alone. */
DB_GPU_FN int db_gpu_make_room(struct db_cq *cq, struct db_sq *sq, struct db_completion *out, db_u64 *released,
                               struct db_wait wait) {
    for (;;) {
        int taken = db_gpu_take_sends(cq, sq, out, released), over;
        if (taken) return taken < 0 ? DB_EINVAL : out->status == DB_WC_SUCCESS ? 0 : DB_EIO;
        over = db_wait_over(&wait);
        if (over) return over;
    }
}

/* Waits for a CQE: 0 with `out` filled (see status), DB_ETIMEDOUT, DB_ECANCELED, DB_EINVAL (compressed). */
DB_GPU_FN int db_gpu_wait(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out,
                          db_u64 *released, struct db_wait wait) {
    for (;;) {
        int taken = db_gpu_take(cq, sq, rq, out, released), over;
        if (taken) return taken < 0 ? DB_EINVAL : 0;
        over = db_wait_over(&wait);
        if (over) return over;
    }
}

/* ---- A warp in lock step, a queue of its own ----------------------------------------------------------- */

/* WQE length of any request, in 16-byte units; 0 when this queue can never take it. */
DB_GPU_FN db_u32 db_gpu_units(const struct db_sq *sq, const struct db_send_wr *wr) {
    if (wr->opcode > DB_WR_ATOMIC_FETCH_AND_ADD || !((sq->opcodes >> wr->opcode) & 1)) return 0;
    if (db_is_atomic(wr->opcode)) {
        if (wr->num_sge != 1 || (wr->send_flags & DB_SEND_INLINE) || wr->sg_list->length != DB_ATOMIC_BYTES) return 0;
        return 4;
    }
    return db_wqe_units(sq, wr);
}

/* Whether the request is the common one, a single data pointer. */
DB_GPU_FN int db_gpu_is_plain(const struct db_send_wr *wr) {
    return wr->num_sge == 1 && !(wr->send_flags & DB_SEND_INLINE) && wr->sg_list->length;
}

/* Blocks of the lanes below this one, and of all lanes. */
DB_GPU_FN db_u32 db_warp_blocks_before(db_u32 blocks, db_u32 *all) {
    db_u32 sum = blocks, by, lane = db_lane();
    for (by = 1; by < DB_WARP; by *= 2) {
        db_u32 below = db_warp_shuffle_up32(sum, by);
        if (lane >= by) sum += below;
    }
    *all = db_warp_shuffle32(sum, DB_WARP - 1);
    return sum - blocks;
}

/* Posts one request a lane, in lane order. All 32 lanes call; a lane without a request gives null. Each lane
 * holds its own copy of `sq`, and the copies stay equal. All or none: 0 or, on every lane alike, DB_ENOMEM or
 * DB_EINVAL with the first offending lane in `bad`. */
DB_GPU_FN int db_warp_post(struct db_sq *sq, const struct db_send_wr *wr, db_u32 *bad) {
    db_u32 units = wr ? db_gpu_units(sq, wr) : 0, blocks = db_blocks(units), before, all, last;
    db_u32 impossible = db_warp_ballot(wr && !units), asked = db_warp_ballot(wr != 0);
    db_u64 word = 0;
    if (impossible) {
        *bad = (db_u32)__ffs((int)impossible) - 1;
        return DB_EINVAL;
    }
    if (!asked) return 0;
    if (db_warp_ballot(blocks == 1) == 0xffffffffu) {
        before = db_lane();
        all = DB_WARP;
    } else {
        before = db_warp_blocks_before(blocks, &all);
    }
    if (sq->producer + all - sq->consumer > sq->blocks) {
        *bad = (db_u32)__ffs((int)asked) - 1;
        return all > sq->blocks ? DB_EINVAL : DB_ENOMEM;
    }
    if (wr) {
        word = db_fill_wqe(sq, sq->producer + before, wr, wr->opcode, units, db_gpu_is_plain(wr));
        db_remember(sq, sq->producer + before, wr->wr_id, blocks);
    }
    last = 31 - (db_u32)__clz((int)asked);
    sq->doorbell_word = db_warp_shuffle64(word, last);
    sq->producer += all;
    return 0;
}

/* Whether calls of one data pointer a lane cannot write a lane's payload: a length that no pointer can state,
 * or inline data, which has no pointer. The same in every lane. */
DB_GPU_FN int db_warp_is_odd(struct db_sge local, db_u32 send_flags) {
    return db_warp_ballot(db_is_no_length(local.length) || (send_flags & DB_SEND_INLINE)) != 0;
}

/* db_warp_post() for a full warp of RDMA WRITEs with one data pointer each, without a struct. 0; DB_ENOMEM;
 * DB_EINVAL for a payload empty, inline or of 2 GiB or more in any lane, or a ring of under 32 blocks. */
DB_GPU_FN int db_warp_post_write(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                                 db_u32 send_flags) {
    struct db_send_wr wr = {wr_id, &local, 1, DB_WR_RDMA_WRITE, send_flags, 0, remote_addr, 0, 0, rkey};
    if (db_warp_is_odd(local, send_flags)) return DB_EINVAL;
    if ((db_u32)(sq->producer + DB_WARP) - (db_u32)sq->consumer > sq->blocks)
        return sq->blocks < DB_WARP ? DB_EINVAL : DB_ENOMEM;
    db_fill_wqe(sq, sq->producer + db_lane(), &wr, DB_WR_RDMA_WRITE, 3, 1);
    db_remember(sq, sq->producer + db_lane(), wr_id, 1);
    /* Every lane can tell the last one's first bytes. */
    sq->doorbell_word = db_control_first(sq, sq->producer + DB_WARP - 1, DB_WR_RDMA_WRITE, 3);
    sq->producer += DB_WARP;
    return 0;
}

/* Rings for what the warp posted. A fence releases what its thread has observed (PTX causality order): the
 * ringer must meet the lanes first, or it has observed none of their stores. */
DB_GPU_FN void db_warp_ring(struct db_sq *sq) {
#ifndef DB_DEFECT_NO_WARP_SYNC
    db_warp_sync();
#endif
    if (db_lane() == 0) {
        db_ring(sq);
    } else if (sq->rung != sq->producer) {
        sq->rung = sq->producer;
        if (sq->doorbell == DB_DOORBELL_BLUEFLAME) sq->register_offset ^= sq->half_bytes;
    }
}

/* Waits for the next completion of the warp's queue. Lane 0 polls; the result (as db_gpu_wait()), `out` and
 * the copies of `cq`, `sq`, `rq` and `released` are then the same in all lanes. A warp that calls
 * db_gpu_wait() on one lane has to shuffle all these, and sync before another lane reads what arrived. */
DB_GPU_FN int db_warp_wait(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out,
                           db_u64 *released, struct db_wait wait) {
    int result = 0;
    if (db_lane() == 0) result = db_gpu_wait(cq, sq, rq, out, released, wait);
    /* What lane 0 acquired is acquired by all: a shuffle orders no memory. */
    db_warp_sync();
    result = (int)db_warp_shuffle32((db_u32)result, 0);
    cq->consumer = db_warp_shuffle64(cq->consumer, 0);
    *released = db_warp_shuffle64(*released, 0);
    if (sq) sq->consumer = db_warp_shuffle64(sq->consumer, 0);
    if (rq) rq->consumer = db_warp_shuffle64(rq->consumer, 0);
    if (result) return result;
    out->wr_id = db_warp_shuffle64(out->wr_id, 0);
    out->timestamp = db_warp_shuffle64(out->timestamp, 0);
    out->status = db_warp_shuffle32(out->status, 0);
    out->opcode = db_warp_shuffle32(out->opcode, 0);
    out->byte_len = db_warp_shuffle32(out->byte_len, 0);
    out->imm_data = db_warp_shuffle32(out->imm_data, 0);
    out->has_imm = db_warp_shuffle32(out->has_imm, 0);
    out->qpn = db_warp_shuffle32(out->qpn, 0);
    out->wqe_index = db_warp_shuffle32(out->wqe_index, 0);
    out->is_send = db_warp_shuffle32(out->is_send, 0);
    out->syndrome = db_warp_shuffle32(out->syndrome, 0);
    out->vendor_syndrome = db_warp_shuffle32(out->vendor_syndrome, 0);
    return 0;
}

/* db_gpu_make_room() for a warp's queue: lane 0 polls, and every lane has its result and the same copies
 * after it. `out` is lane 0's alone, also when a request failed. */
DB_GPU_FN int db_warp_make_room(struct db_cq *cq, struct db_sq *sq, struct db_completion *out, db_u64 *released,
                                struct db_wait wait) {
    int result = 0;
    if (db_lane() == 0) result = db_gpu_make_room(cq, sq, out, released, wait);
    /* What lane 0 acquired is acquired by all: a shuffle orders no memory. */
    db_warp_sync();
    cq->consumer = db_warp_shuffle64(cq->consumer, 0);
    *released = db_warp_shuffle64(*released, 0);
    sq->consumer = db_warp_shuffle64(sq->consumer, 0);
    return (int)db_warp_shuffle32((db_u32)result, 0);
}

/* ---- A thread block, a queue of its own ---------------------------------------------------------------- */

/* What one thread of a block tells the others: in its shared memory, of no particular content. */
struct db_block_news {
    struct db_completion done;
    db_u64 sends, receives, cqes, released; /* consumer indices */
    int result;
};

/* One RDMA WRITE of one data pointer a thread, in thread order. All threads of a one-dimensional block call;
 * each holds its own copy of `sq`, and the copies stay equal. All or none: 0 or, in every thread alike,
 * DB_ENOMEM; DB_EINVAL for an empty or inline payload in any, or a ring of fewer blocks than threads. */
DB_GPU_FN int db_block_post_write(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                                  db_u32 send_flags) {
    struct db_send_wr wr = {wr_id, &local, 1, DB_WR_RDMA_WRITE, send_flags, 0, remote_addr, 0, 0, rkey};
    db_u32 threads = db_block_threads();
    if (db_block_any(db_is_no_length(local.length) || (send_flags & DB_SEND_INLINE))) return DB_EINVAL;
    if ((db_u32)(sq->producer + threads) - (db_u32)sq->consumer > sq->blocks)
        return sq->blocks < threads ? DB_EINVAL : DB_ENOMEM;
    db_fill_wqe(sq, sq->producer + db_block_thread(), &wr, DB_WR_RDMA_WRITE, 3, 1);
    db_remember(sq, sq->producer + db_block_thread(), wr_id, 1);
    sq->doorbell_word = db_control_first(sq, sq->producer + threads - 1, DB_WR_RDMA_WRITE, 3);
    sq->producer += threads;
    return 0;
}

/* Rings for what the block posted: its first thread, after meeting the others, may publish their stores. */
DB_GPU_FN void db_block_ring(struct db_sq *sq) {
#ifndef DB_DEFECT_NO_BLOCK_SYNC
    db_block_sync();
#endif
    if (db_block_thread() == 0) {
        db_ring(sq);
    } else if (sq->rung != sq->producer) {
        sq->rung = sq->producer;
        if (sq->doorbell == DB_DOORBELL_BLUEFLAME) sq->register_offset ^= sq->half_bytes;
    }
}

/* db_warp_wait() for the block: the first thread polls, and `news` carries what it learnt to the others. */
DB_GPU_FN int db_block_wait(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out,
                            db_u64 *released, struct db_wait wait, struct db_block_news *news) {
    int result;
    if (db_block_thread() == 0) {
        news->result = db_gpu_wait(cq, sq, rq, out, released, wait);
        news->cqes = cq->consumer;
        news->released = *released;
        news->sends = sq ? sq->consumer : 0;
        news->receives = rq ? rq->consumer : 0;
        if (!news->result) news->done = *out;
    }
    db_block_sync();
    result = news->result;
    cq->consumer = news->cqes;
    *released = news->released;
    if (sq) sq->consumer = news->sends;
    if (rq) rq->consumer = news->receives;
    if (!result) *out = news->done;
    /* The next news may come now. */
    db_block_sync();
    return result;
}

#include "doorbell_shared.h"

#endif /* DB_DOORBELL_GPU_H */
