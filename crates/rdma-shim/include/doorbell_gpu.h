/*! What a GPU adds to doorbell.h: waits that end, a warp that posts together, and a queue that many warps share.
 *
 * The routines of doorbell.h serve one thread with a queue of its own, on a GPU as on a host. Here:
 *
 *   db_gpu_take, db_gpu_wait               one thread, its own CQ: the next completion, or why there is none
 *   db_warp_post, db_warp_ring             a warp in lock step, a queue of its own: 32 WQEs at once, one doorbell
 *   db_shared_post, db_shared_poll         any number of threads or warps on one queue
 *
 * Every wait has a deadline and a cancel word, and every failure is a value: nothing here traps, and no error CQE turns
 * into a hang. For CUDA (NVRTC or nvcc) and the host twin.
 */
#ifndef DB_DOORBELL_GPU_H
#define DB_DOORBELL_GPU_H

#include "doorbell.h"

#define DB_EIO 5         /* the queue has failed: see db_shared_sq.failed */
#define DB_ETIMEDOUT 110 /* the deadline passed */
#define DB_ECANCELED 125 /* the cancel word was set */

#define DB_WARP 32u

/* ---- Waits ------------------------------------------------------------------------------------------------------ */

/* How long to wait: until the GPU's global timer reads `deadline_ns` (db_clock_ns()), or until the 32-bit word at `cancel`
 * (host memory, 0 for none) is no longer 0. */
struct db_wait {
    db_u64 deadline_ns;
    db_u64 cancel;
    db_u32 turns; /* of the loop so far: start at 0 */
};

/* Called once a turn of a waiting loop: 0, DB_ETIMEDOUT or DB_ECANCELED. Reading the timer takes as long as a few turns,
 * and the cancel word lies across PCIe: every 16th and every 64th turn will do. */
DB_GPU_FN int db_wait_over(struct db_wait *wait) {
    db_u32 turn = wait->turns++;
    if ((turn & 15) != 15) return 0;
    if (wait->cancel && (turn & 63) == 63 && db_load_acquire_sys32(wait->cancel)) return DB_ECANCELED;
    return db_clock_ns() >= wait->deadline_ns ? DB_ETIMEDOUT : 0;
}

/* Gives CQEs back when a quarter of the ring has been taken since the last time: each giving back is a full fence. */
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

/* Waits for it: 0 with `out` filled (look at its status), DB_ETIMEDOUT, DB_ECANCELED, or DB_EINVAL for a compressed CQE. */
DB_GPU_FN int db_gpu_wait(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out,
                          db_u64 *released, struct db_wait wait) {
    for (;;) {
        int taken = db_gpu_take(cq, sq, rq, out, released), over;
        if (taken) return taken < 0 ? DB_EINVAL : 0;
        over = db_wait_over(&wait);
        if (over) return over;
    }
}

/* ---- A warp in lock step, a queue of its own -------------------------------------------------------------------- */

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

/* Posts one request a lane, in the order of the lanes; all 32 lanes call, a lane without a request gives null. Each lane
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

/* A full warp of RDMA WRITEs with one data pointer each: the same without a struct. 0 or DB_ENOMEM. */
DB_GPU_FN int db_warp_post_write(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                                 db_u32 send_flags) {
    struct db_send_wr wr = {wr_id, &local, 1, DB_WR_RDMA_WRITE, send_flags, 0, remote_addr, 0, 0, rkey};
    if ((db_u32)(sq->producer + DB_WARP) - (db_u32)sq->consumer > sq->blocks) return DB_ENOMEM;
    db_fill_wqe(sq, sq->producer + db_lane(), &wr, DB_WR_RDMA_WRITE, 3, 1);
    db_remember(sq, sq->producer + db_lane(), wr_id, 1);
    /* Every lane can tell the last one's first bytes. */
    sq->doorbell_word = db_control_first(sq, sq->producer + DB_WARP - 1, DB_WR_RDMA_WRITE, 3);
    sq->producer += DB_WARP;
    return 0;
}

/* Rings for what the warp posted. The lanes' stores are the ringer's to publish once it has met them: a fence releases
 * what its thread has observed (PTX causality order), and without the meeting it has observed nothing of theirs. */
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

/* ---- A queue that many share ------------------------------------------------------------------------------------ */

/* How it works. A poster takes blocks by one atomic add (`reserved`), fills them, marks each as filled in this lap
 * (`filled`), and adds them to `published`, whose low bits count the publications that no ringer has seen: who finds these
 * 0 is the ringer. It walks the marks from where the last ring ended to the first gap and rings for that. Posters
 * neither wait for one another nor for the ringer, and nobody locks anything while filling.
 *
 * Why no request is left unrung. A ringer leaves when everything published is rung, or when blocks are reserved that are
 * not published: then their poster is still to come, and will find the low bits 0. Until it comes it either fills, or
 * waits for room, and who waits for room rings first (db_shared_help). If everything reserved is published and yet a
 * mark is missing, the mark is on its way: it was written before its poster's atomic, though nothing orders the two. */

/* One for all posters, in GPU memory. Filled by the host: `sq` and `cq` as for one thread, `filled`, `signal_mask`, and 0. */
struct db_shared_sq {
    struct db_sq sq; /* addresses, sizes, order: constant while shared; its indices are not used; at least 64 blocks */
    struct db_cq cq; /* owned by whoever holds `polling` */
    db_u64 released; /* CQEs given back, likewise */
    db_u64 filled;   /* `blocks` bytes, 16-byte aligned, 0 at first: lap in which each block was filled last, from 1, modulo 256 */
    db_u32 signal_mask; /* a WQE that crosses a multiple of signal_mask + 1 blocks is signalled, whoever posts it */
    db_u32 polling;     /* 1 while someone polls */
    db_u32 failed;      /* 0, DB_FAILED_*, or 1 + the syndrome of the first error CQE; sticky until the host resets the queue */
    db_u32 pad;
    db_u64 line0[9]; /* each word below is fought over by itself: a line of its own */
    db_u64 reserved; /* blocks handed out */
    db_u64 line1[15];
    db_u64 published; /* blocks filled, in any order, << 16 | publications that no ringer has seen */
    db_u64 line2[15];
    db_u64 rung; /* the ringer's: blocks that the device has been told of */
    db_u64 line3[15];
    db_u64 consumed; /* blocks that completions gave back */
    db_u64 line4[15];
};

#define DB_PUBLISHED_SHIFT 16
#define DB_UNSEEN 0xffffu

/* `failed` of a queue in which blocks were handed out that nobody filled, because whoever should have gave up waiting; and
 * of one whose CQ held a compressed CQE. */
#define DB_FAILED_HOLE 0xffffu
#define DB_FAILED_COMPRESSED 0xfffeu

/* What a poster holds in registers: made by db_poster_of(), one a thread (or a warp, the same in every lane). */
struct db_poster {
    struct db_sq sq; /* a copy: after each fence, a field of the shared one would have to come from L2 again */
    db_u64 filled;
    db_u32 signal_mask;
    db_u32 lap_shift; /* log2 of blocks */
    db_u64 consumed;  /* its last look at shared->consumed */
    db_u64 rung;      /* up to where it rang itself, last time it did */
};

DB_GPU_FN struct db_poster db_poster_of(const struct db_shared_sq *shared) {
    struct db_poster poster = {shared->sq, shared->filled, shared->signal_mask, 31u - (db_u32)__clz((int)shared->sq.blocks),
                               0, 0};
    return poster;
}

/* Takes the CQEs that are there, at most `most`: their number; 0 as well when another thread is polling. The caller's
 * wr_ids are not reported: with many posters on one queue, they learn by `consumed` and `failed`. */
DB_GPU_FN db_u32 db_shared_poll(struct db_shared_sq *shared, const struct db_poster *poster, db_u32 most) {
    struct db_completion done;
    struct db_sq sq = poster->sq;
    db_u32 count = 0;
    if (db_load_relaxed32(&shared->polling) || db_exchange_acquire32(&shared->polling, 1)) return 0;
    sq.consumer = db_load_relaxed64(&shared->consumed);
    while (count < most) {
        int taken = db_take_cqe(&shared->cq, &done);
        if (taken == 0) break;
        count++;
        /* Any block may have been rung by now. */
        sq.rung = sq.consumer + sq.blocks;
        /* A receive that completes on this CQ frees no send block. */
        if (taken > 0 && done.is_send) db_retire_send(&sq, &done);
        if ((taken < 0 || done.status != DB_WC_SUCCESS) && !db_load_relaxed32(&shared->failed))
            db_store_relaxed32(&shared->failed,
                               taken < 0 ? DB_FAILED_COMPRESSED : 1 + (done.syndrome ? done.syndrome : done.status));
        if (taken < 0) break;
    }
    if (count) {
        db_gpu_release(&shared->cq, &shared->released);
        db_store_release64(&shared->consumed, sq.consumer);
    }
    db_store_release32(&shared->polling, 0);
    return count;
}

/* The lap that a block's number tells. One lap on, a mark is stale; 256 laps on, no block is still at rest. */
DB_GPU_FN db_u32 db_lap(const struct db_poster *poster, db_u64 block) {
    return ((db_u32)(block >> poster->lap_shift) + 1) & 0xff;
}

/* Says that a block is filled. After db_order_wqe_before_mark(). */
DB_GPU_FN void db_shared_mark(const struct db_poster *poster, db_u64 block) {
    db_store_relaxed8(poster->filled + ((db_u32)block & (poster->sq.blocks - 1)), db_lap(poster, block));
}

/* The first block at or behind `from` that is not filled yet. */
DB_GPU_FN db_u64 db_shared_filled(const struct db_poster *poster, db_u64 from) {
    for (;;) {
        db_u32 index = (db_u32)from & (poster->sq.blocks - 1), ahead = index & 63;
        db_u32 gap = db_first_other_mark(poster->filled + (index - ahead), ahead, db_lap(poster, from));
        from += gap - ahead;
        if (gap < 64) return from;
    }
}

/* Tells the device of every block below `end`, as db_ring() does; the register carries the next free block. */
DB_GPU_FN void db_shared_tell(const struct db_sq *sq, db_u64 end, int fenced) {
    if (!fenced) db_order_wqe_before_record();
    db_store_record(sq->record, db_be32((db_u32)end & 0xffff));
    if (sq->order == DB_ORDER_STRICT)
        db_order_record_before_register();
    else
        db_order_wqe_before_register();
    db_store_register(sq->reg, db_pair(((db_u32)end & 0xffff) << 8, sq->qpn << 8));
    db_flush_register();
}

/* The ringer's work, once elected with `seen` publications: rings up to `end` and further for who comes meanwhile.
 * `fenced`: all up to `end` is this thread's own, and a fence of system scope lies behind it. */
DB_GPU_FN int db_shared_ring(struct db_shared_sq *shared, struct db_poster *poster, db_u64 end, db_u64 seen, int fenced,
                             struct db_wait *wait) {
    for (;; fenced = 0) {
        db_u64 word, total, reserved;
        if (end != poster->rung) {
            db_shared_tell(&poster->sq, end, fenced);
            db_store_relaxed64(&shared->rung, end);
            poster->rung = end;
        }
        word = db_fetch_add_acq_rel64(&shared->published, (db_u64)0 - seen) - seen;
        seen = word & DB_UNSEEN;
        total = word >> DB_PUBLISHED_SHIFT;
        if (!seen && total == end) return 0;
        reserved = db_load_relaxed64(&shared->reserved);
        if (reserved != total && seen) {
            /* Whoever still has to publish may ring for these: nobody rings for the others for ever. */
            word = db_fetch_add_acq_rel64(&shared->published, (db_u64)0 - seen) - seen;
            seen = word & DB_UNSEEN;
            total = word >> DB_PUBLISHED_SHIFT;
        }
        if (!seen) {
            if (reserved > total) return 0;
            /* Nobody is bound to come: back into the role, unless someone has taken it by now. */
            word = db_fetch_add_acq_rel64(&shared->published, 1);
            if (word & DB_UNSEEN) return 0;
            seen = 1;
        }
        end = db_shared_filled(poster, end);
        if (db_wait_over(wait)) {
            if (!db_load_relaxed32(&shared->failed)) db_store_relaxed32(&shared->failed, DB_FAILED_HOLE);
            return DB_ETIMEDOUT;
        }
    }
}

/* Rings for what is published and not rung, if nobody else is at it. */
DB_GPU_FN int db_shared_help(struct db_shared_sq *shared, struct db_poster *poster, struct db_wait *wait) {
    db_u64 word = db_load_relaxed64(&shared->published);
    if ((word & DB_UNSEEN) || word >> DB_PUBLISHED_SHIFT == db_load_relaxed64(&shared->rung)) return 0;
    if (db_fetch_add_acq_rel64(&shared->published, 1) & DB_UNSEEN) return 0;
    poster->rung = db_load_relaxed64(&shared->rung);
    return db_shared_ring(shared, poster, db_shared_filled(poster, poster->rung), 1, 0, wait);
}

/* Waits until the blocks below `end` have room: 0, DB_EIO, DB_ETIMEDOUT, DB_ECANCELED. Who waits polls and rings. While the
 * poster's last look at `consumed` suffices, nothing is loaded. */
DB_GPU_FN int db_shared_room(struct db_shared_sq *shared, struct db_poster *poster, db_u64 end, struct db_wait *wait) {
    for (;;) {
        int over;
        if (end - poster->consumed <= poster->sq.blocks) return 0;
        poster->consumed = db_load_acquire64(&shared->consumed);
        if (end - poster->consumed <= poster->sq.blocks) return 0;
        over = db_load_relaxed32(&shared->failed) ? DB_EIO : 0;
        if (!over && !db_shared_poll(shared, poster, DB_WARP)) {
            over = db_shared_help(shared, poster, wait);
            if (!over) over = db_wait_over(wait);
        }
        if (over) {
            /* Blocks were handed out that nobody will fill: the queue is dead for everyone behind. */
            if (!db_load_relaxed32(&shared->failed)) db_store_relaxed32(&shared->failed, DB_FAILED_HOLE);
            return over;
        }
    }
}

/* Whether everything before `begin` was rung by this thread: then it is likely to ring for the next ones as well, and one
 * fence, of system scope, serves mark and doorbell both. */
DB_GPU_FN int db_shared_is_alone(const struct db_poster *poster, db_u64 begin) { return poster->rung == begin; }

/* WQEs before their marks. */
DB_GPU_FN void db_shared_fence(int alone) {
    if (alone)
        db_order_wqe_before_record();
    else
        db_order_wqe_before_mark();
}

/* Adds filled and marked blocks to what is published; rings if elected. `begin` is the first of them. */
DB_GPU_FN int db_shared_publish(struct db_shared_sq *shared, struct db_poster *poster, db_u64 begin, db_u64 end,
                                struct db_wait *wait) {
    /* Who is elected takes over `rung` and the doorbell from the ringer before, whose last atomic released them. */
    db_u64 word = db_fetch_add_acquire64(&shared->published, (end - begin) << DB_PUBLISHED_SHIFT | 1), rung;
    if (word & DB_UNSEEN) return 0;
    /* Marks are seen before their publication, so that another may have rung for these already, and for more. */
    rung = db_load_relaxed64(&shared->rung);
    if (db_shared_is_alone(poster, begin) && rung == begin) return db_shared_ring(shared, poster, end, 1, 1, wait);
    poster->rung = rung;
    return db_shared_ring(shared, poster, db_shared_filled(poster, poster->rung), 1, 0, wait);
}

/* Posts one request of one thread and sees to the doorbell. 0; DB_EINVAL; DB_EIO when the queue has failed; DB_ETIMEDOUT or
 * DB_ECANCELED when there was no room in time. `poster` is the caller's own. */
DB_GPU_FN int db_shared_post(struct db_shared_sq *shared, const struct db_send_wr *wr, struct db_poster *poster,
                             struct db_wait wait) {
    db_u32 units = db_gpu_units(&poster->sq, wr), blocks = db_blocks(units), i;
    struct db_send_wr mine = *wr;
    db_u64 begin;
    int error;
    if (!units || blocks > poster->sq.blocks) return DB_EINVAL;
    begin = db_fetch_add64(&shared->reserved, blocks);
    error = db_shared_room(shared, poster, begin + blocks, &wait);
    if (error) return error;
    if ((begin ^ (begin + blocks)) & ~(db_u64)poster->signal_mask) mine.send_flags |= DB_SEND_SIGNALED;
    db_fill_wqe(&poster->sq, begin, &mine, mine.opcode, units, db_gpu_is_plain(&mine));
    db_remember(&poster->sq, begin, mine.wr_id, blocks);
    db_shared_fence(db_shared_is_alone(poster, begin));
    for (i = 0; i < blocks; i++) db_shared_mark(poster, begin + i);
    return db_shared_publish(shared, poster, begin, begin + blocks, &wait);
}

/* The same for a full warp of RDMA WRITEs of one data pointer each; every lane returns the same. */
DB_GPU_FN int db_shared_warp_post_write(struct db_shared_sq *shared, db_u64 wr_id, struct db_sge local,
                                        db_u64 remote_addr, db_u32 rkey, db_u32 send_flags, struct db_poster *poster,
                                        struct db_wait wait) {
    struct db_send_wr wr = {wr_id, &local, 1, DB_WR_RDMA_WRITE, send_flags, 0, remote_addr, 0, 0, rkey};
    db_u64 begin = 0;
    int error = 0;
    if (db_lane() == 0) {
        begin = db_fetch_add64(&shared->reserved, DB_WARP);
        error = db_shared_room(shared, poster, begin + DB_WARP, &wait);
    }
    begin = db_warp_shuffle64(begin, 0);
    error = (int)db_warp_shuffle32((db_u32)error, 0);
    if (error) return error;
    /* What lane 0 acquired with `consumed` is acquired by all: a shuffle orders no memory. */
    db_warp_sync();
    /* The last lane's WQE is the one that crosses a multiple, if any does. */
    if (db_lane() == DB_WARP - 1 && ((begin ^ (begin + DB_WARP)) & ~(db_u64)poster->signal_mask))
        wr.send_flags |= DB_SEND_SIGNALED;
    db_fill_wqe(&poster->sq, begin + db_lane(), &wr, DB_WR_RDMA_WRITE, 3, 1);
    db_remember(&poster->sq, begin + db_lane(), wr_id, 1);
    /* The lanes meet before the fence: so lane 0's covers the WQEs of all, and each lane's stands before its own mark. */
#ifndef DB_DEFECT_NO_WARP_SYNC
    db_warp_sync();
#endif
    /* Lane 0 knows; two kinds of fence in one warp would be waited for one after the other. */
    db_shared_fence((int)db_warp_shuffle32((db_u32)db_shared_is_alone(poster, begin), 0));
    db_shared_mark(poster, begin + db_lane());
    if (db_lane() == 0) error = db_shared_publish(shared, poster, begin, begin + DB_WARP, &wait);
    return (int)db_warp_shuffle32((db_u32)error, 0);
}

#endif /* DB_DOORBELL_GPU_H */
