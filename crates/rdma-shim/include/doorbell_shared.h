/*! A send queue that many threads and warps of a GPU share: the host's part (needs no GPU) and the kernels'.
 *
 *   db_shared_init, db_shared_reset     the host: checks the numbers; empties a queue whose QP went to RESET
 *   db_shared_post, db_shared_warp_post_write, db_shared_poll, db_shared_failure   kernels, any thread count
 *
 * How it works. A poster takes blocks by one atomic add (`reserved`), fills them, marks each as filled in
 * this lap (`filled`), and adds them to `published`, whose low bits are 0 while there is no ringer. The
 * poster that finds them 0 changes them by the same atomic and becomes the ringer. It walks the marks from
 * where the last ring ended to the first gap, rings once for all, and yields the role even if others have
 * published meanwhile: the next poster that publishes becomes the ringer. Posters wait neither for one
 * another nor for the ringer, and fill without a lock.
 *
 * A poster that finds no ringer when it reserves blocks becomes the ringer. If it rang last, no other can
 * have rung since: the block before its own was the last rung, and its own has no mark. It needs neither
 * marks nor `rung`, and one system-scope fence serves WQE and doorbell: a lone poster pays for two atomics.
 *
 * Why no request is left unrung. A ringer yields the role by the atomic that tells it what is published by
 * then. It leaves if all of that is rung, or if reserved blocks are unpublished: later posters find the low
 * bits 0, and the others' are still to come. Until then such a poster fills, or waits for room; if it waits,
 * it does not keep the role, and rings first (db_shared_help). Else all reserved is published and some not
 * rung, as its mark came after the ringer's look: the ringer retakes the role unless another poster has.
 *
 * How it fails. The first error CQE, or a poster that times out or is cancelled with blocks in hand, fails
 * the queue for all: `failure` says whose request it was (later ones do not overwrite it), and each later
 * post gets DB_EIO, room or not. The top bit of `reserved`, a word that posters read anyway, tells them. The
 * device flushes what it was told of (below `rung`). What was published but not rung may stay so although its
 * poster got 0, as refused posters count as bound to come: neither executed nor flushed, it ends with the
 * queue's life. The host recovers the queue: QP to RESET, db_shared_reset(), QP to RTS; other queues go on.
 */
#ifndef DB_DOORBELL_SHARED_H
#define DB_DOORBELL_SHARED_H

#include "doorbell.h"

/* Why it has. */
#define DB_FAILED_CQE 1u        /* an error CQE */
#define DB_FAILED_HOLE 2u       /* a poster that had taken blocks gave up waiting for room, so that they are never filled; or a mark
                                 * never came */
#define DB_FAILED_COMPRESSED 3u /* a CQE that cannot be read: DB_POLL_COMPRESSED */

/* The first thing that went wrong on a queue. */
struct db_failure {
    db_u64 wr_id;  /* the request that failed, or the one that its poster abandoned; 0 for a compressed CQE and for a mark that never came */
    db_u32 why;    /* DB_FAILED_* */
    db_u32 qpn;
    db_u32 status; /* of the error CQE: DB_WC_*, else 0 */
    db_u32 syndrome;
    db_u32 vendor_syndrome;
    db_u32 wqe_index;
};

/* Blocks hold a lap of what every poster may fill; the doorbell's 16 bits tell indices apart. */
#define DB_SHARED_MIN_BLOCKS 64u
#define DB_SHARED_MAX_BLOCKS 16384u

/* One for all posters, in GPU memory: the host fills `sq` and `cq` as for one thread, `filled` and
 * `signal_mask`, has db_shared_init() check them, and copies it there. */
struct db_shared_sq {
    struct db_sq sq; /* addresses, sizes, order: constant while shared; of its indices db_shared_init() takes where to go on */
    struct db_cq cq; /* owned by the thread that holds `polling` */
    db_u64 released; /* CQEs given back, likewise */
    db_u64 filled;   /* `blocks` 32-bit words, 16-byte aligned, 0 at first: lap in which each block was filled last, from 1. Laps go
                      * on after RESET, so that no mark of an earlier life is taken for one of this */
    db_u32 signal_mask; /* a WQE that crosses a multiple of signal_mask + 1 blocks is signalled, whichever poster it has */
    db_u32 polling;     /* 1 while someone polls */
    db_u32 failing;     /* 1 once someone has a failure to note: the first one does */
    db_u32 failed;      /* 1 once it is noted, until the host resets the queue */
    struct db_failure failure;
    db_u64 line0[7]; /* each word below is fought over by itself: a line of its own */
    db_u64 reserved; /* blocks handed out; from DB_RESERVED_FAILED on, none any more */
    db_u64 line1[15];
    db_u64 published; /* blocks filled, in any order, their 32 low bits << DB_PUBLISHED_SHIFT | 0 while nobody is the ringer */
    db_u64 line2[15];
    db_u64 rung; /* the ringer's: blocks that the device has been told of */
    db_u64 line3[15];
    db_u64 consumed; /* blocks that completions gave back */
    db_u64 line4[15];
};

/* Between yields of the role, each thread that takes blocks adds 1 to the low half, room or not, and each
 * that publishes 1 more: some hundred thousand threads and two rings of blocks, of 2^32. The high half has
 * the blocks' low 32 bits, compared by differences: under half of that is ever in flight. */
#define DB_PUBLISHED_SHIFT 32
#define DB_ROLE 0xffffffffu
#define DB_RESERVED_FAILED (1ull << 63)

typedef char db_assert_lines[sizeof(struct db_shared_sq) == 256 + 4 * 128 ? 1 : -1];

/* ---- The host's part ----------------------------------------------------------------------------------- */

/* Checks what the routines below rely on and empties the rest: the queue goes on at `sq.producer`. `filled`
 * must be 0 already. Takes a copy that the host can write. 0, or DB_EINVAL:
 * - the queue: empty, with nothing posted that has not completed;
 * - blocks: a power of two, 64 to 16384;
 * - signal_mask + 1: a power of two, at most half the blocks. Else a full ring might hold no signalled WQE:
 *   signal_mask blocks may follow the last one, and a post takes up to 32 (a warp, two longest WQEs);
 * - the CQ: a CQE a block beside the quarter released late, as after an error each WQE has one;
 * - the doorbell: 8 bytes, as a shared queue has no lone WQE. */
DB_FN int db_shared_init(struct db_shared_sq *shared) {
    const struct db_sq *sq = &shared->sq;
    db_u32 blocks = sq->blocks, period = shared->signal_mask + 1;
    if (!db_is_power_of_two(blocks) || blocks < DB_SHARED_MIN_BLOCKS || blocks > DB_SHARED_MAX_BLOCKS) return DB_EINVAL;
    if (!db_is_power_of_two(period) || period > blocks / 2) return DB_EINVAL;
    if (sq->rung != sq->producer || sq->consumer != sq->producer) return DB_EINVAL;
    if (!shared->filled || (shared->filled & 15) || !sq->ring || !sq->record || !sq->reg || !sq->slots) return DB_EINVAL;
    if (!shared->cq.ring || !shared->cq.record || !db_is_power_of_two(shared->cq.entries)) return DB_EINVAL;
    if (shared->cq.entries - shared->cq.entries / 4 < blocks || sq->doorbell != DB_DOORBELL_8_BYTES) return DB_EINVAL;
    shared->released = shared->cq.consumer;
    shared->polling = shared->failing = shared->failed = 0;
    shared->failure.wr_id = 0;
    shared->failure.why = shared->failure.qpn = shared->failure.status = 0;
    shared->failure.syndrome = shared->failure.vendor_syndrome = shared->failure.wqe_index = 0;
    shared->reserved = shared->rung = shared->consumed = sq->producer;
    shared->published = sq->producer << DB_PUBLISHED_SHIFT;
    return 0;
}

/* Empties a shared queue whose QP was moved to RESET and on which no kernel works: takes a copy of it, whose
 * addresses of CQ and doorbell records are the host's. Drops the queue's leftover CQEs, so all QPs of its CQ
 * must be in RESET. Goes on at the next multiple of 65,536, where no slot or mark of this life passes for one
 * of the next. The caller copies the struct back before the next kernel. How many CQEs were dropped,
 * DB_POLL_COMPRESSED, or -DB_EINVAL as db_shared_init() says. */
DB_FN int db_shared_reset(struct db_shared_sq *shared) {
    int dropped = db_drain(&shared->cq);
    if (dropped < 0) return dropped;
    shared->sq.producer = shared->reserved & ~DB_RESERVED_FAILED;
    db_reset_send(&shared->sq);
    return db_shared_init(shared) ? -DB_EINVAL : dropped;
}

/* ---- The kernels' part --------------------------------------------------------------------------------- */

#ifdef DB_DOORBELL_GPU_H

/* db_shared_ring(): the queue has failed. */
#define DB_RING_FAILED (~(db_u64)0)

/* How long a mark may be on its way after its poster's atomic has arrived: it is some hundred nanoseconds. */
#define DB_MARK_PATIENCE_NS 1000000000ull

/* What a poster holds in registers: made by db_poster_of(), one a thread (or a warp, equal in every lane). */
struct db_poster {
    struct db_sq sq; /* a copy: after each fence, a field of the shared one would have to come from L2 again */
    db_u64 filled;
    db_u32 signal_mask;
    db_u32 lap_shift; /* log2 of blocks */
    db_u64 consumed;  /* its last look at shared->consumed */
    db_u64 rung;      /* up to where the queue was rung when it last was the ringer */
    db_u32 rings;     /* 1 while it is, from its reservation on */
    db_u32 zero;      /* of which the compiler does not know that it is 0: it would gather the lanes' atomics into one, and a thread
                       * that is alone would wait for votes and shuffles at each */
};

DB_GPU_FN struct db_poster db_poster_of(const struct db_shared_sq *shared) {
    struct db_poster poster = {shared->sq, shared->filled, shared->signal_mask, 31u - (db_u32)__clz((int)shared->sq.blocks),
                               0, 0, 0, db_hidden_zero(0)};
    return poster;
}

/* Fails the queue, unless it has failed already: the first failure stays. */
DB_GPU_FN void db_shared_fail(struct db_shared_sq *shared, db_u32 why, db_u64 wr_id, const struct db_completion *done) {
    if (db_load_relaxed32(&shared->failing) || db_compare_swap32(&shared->failing, 0, 1)) return;
    db_store_relaxed64(&shared->failure.wr_id, wr_id);
    db_store_relaxed32(&shared->failure.why, why);
    db_store_relaxed32(&shared->failure.qpn, shared->sq.qpn);
    db_store_relaxed32(&shared->failure.status, done ? done->status : 0);
    db_store_relaxed32(&shared->failure.syndrome, done ? done->syndrome : 0);
    db_store_relaxed32(&shared->failure.vendor_syndrome, done ? done->vendor_syndrome : 0);
    db_store_relaxed32(&shared->failure.wqe_index, done ? done->wqe_index : 0);
    db_store_release32(&shared->failed, 1);
    db_fetch_add64(&shared->reserved, DB_RESERVED_FAILED);
}

/* Whether the queue has failed: 1 with the first failure in `out`. A poster that got DB_EIO finds it here. */
DB_GPU_FN int db_shared_failure(struct db_shared_sq *shared, struct db_failure *out) {
    if (!db_load_acquire32(&shared->failed)) return 0;
    out->wr_id = db_load_relaxed64(&shared->failure.wr_id);
    out->why = db_load_relaxed32(&shared->failure.why);
    out->qpn = db_load_relaxed32(&shared->failure.qpn);
    out->status = db_load_relaxed32(&shared->failure.status);
    out->syndrome = db_load_relaxed32(&shared->failure.syndrome);
    out->vendor_syndrome = db_load_relaxed32(&shared->failure.vendor_syndrome);
    out->wqe_index = db_load_relaxed32(&shared->failure.wqe_index);
    return 1;
}

/* A post that is refused: DB_EIO, once the failure can be read, which is being noted right now. */
DB_GPU_FN int db_shared_refuse(struct db_shared_sq *shared, struct db_wait *wait) {
    while (!db_load_acquire32(&shared->failed))
        if (db_wait_over(wait)) break;
    return DB_EIO;
}

/* Takes CQEs until a look has room for more or there are `most`: their number; 0 also while another thread
 * polls. The caller's wr_ids are not reported: with many posters on one queue, they learn from `consumed` and
 * db_shared_failure(). */
DB_GPU_FN db_u32 db_shared_poll(struct db_shared_sq *shared, const struct db_poster *poster, db_u32 most) {
    struct db_completion done;
    struct db_sq sq = poster->sq;
    struct db_cq cq;
    db_u32 count = 0;
    int taken;
    if (db_load_relaxed32(&shared->polling) || db_exchange_acquire32(&shared->polling, 1)) return 0;
    cq = shared->cq;
    sq.consumer = db_load_relaxed64(&shared->consumed);
    do {
        taken = db_take_sends(&cq, sq.qpn, &done);
        if (taken == 0) break;
        if (taken < 0) {
            db_shared_fail(shared, DB_FAILED_COMPRESSED, 0, 0);
            break;
        }
        count += (db_u32)taken;
        /* Any block may have been rung by now. */
        sq.rung = sq.consumer + sq.blocks;
        /* A receive that completes on this CQ frees no send block. */
        if (done.is_send) db_retire_send(&sq, &done);
        if (done.status != DB_WC_SUCCESS) db_shared_fail(shared, DB_FAILED_CQE, done.wr_id, &done);
        /* A row that ends within a look ends there: another look is a trip across PCIe. */
    } while (taken == (int)DB_LOOK && count < most);
    if (count) {
        db_gpu_release(&cq, &shared->released);
        shared->cq.consumer = cq.consumer;
        db_store_release64(&shared->consumed, sq.consumer);
    }
    db_store_release32(&shared->polling, 0);
    return count;
}

/* The lap that a block's number tells. */
DB_GPU_FN db_u32 db_lap(const struct db_poster *poster, db_u64 block) { return (db_u32)(block >> poster->lap_shift) + 1; }

/* Says that a block is filled. After db_order_wqe_before_mark(). */
DB_GPU_FN void db_shared_mark(const struct db_poster *poster, db_u64 block) {
    db_u64 marks = poster->filled;
    db_store_relaxed32((db_u32 *)marks + ((db_u32)block & (poster->sq.blocks - 1)), db_lap(poster, block));
}

/* The first block at or behind `from` that is not filled yet. */
DB_GPU_FN db_u64 db_shared_filled(const struct db_poster *poster, db_u64 from) {
    for (;;) {
        db_u32 index = (db_u32)from & (poster->sq.blocks - 1), ahead = index % DB_MARKS;
        db_u32 gap = db_first_other_mark(poster->filled + 4 * (db_u64)(index - ahead), ahead, db_lap(poster, from), DB_MARKS);
        from += gap - ahead;
        if (gap < DB_MARKS) return from;
    }
}

/* The same by a warp: each lane looks at a few. */
DB_GPU_FN db_u64 db_shared_filled_by_warp(const struct db_poster *poster, db_u64 from) {
    for (;;) {
        db_u32 ahead = db_lane() ? 0 : (db_u32)from % DB_LANE_MARKS, gap, gaps;
        db_u64 first = from - (db_u32)from % DB_LANE_MARKS, mine = first + DB_LANE_MARKS * db_lane();
        gap = db_first_other_mark(poster->filled + 4 * (mine & (poster->sq.blocks - 1)), ahead, db_lap(poster, mine),
                                  DB_LANE_MARKS);
        gaps = db_warp_ballot(gap < DB_LANE_MARKS);
        if (gaps) {
            db_u32 lane = (db_u32)__ffs((int)gaps) - 1;
            return first + DB_LANE_MARKS * lane + db_warp_shuffle32(gap, lane);
        }
        from = first + DB_LANE_MARKS * DB_WARP;
    }
}

/* Tells the device of all blocks below `end`: db_ring() after its first fence; the register carries `end`. */
DB_GPU_FN void db_shared_tell(struct db_shared_sq *shared, const struct db_sq *sq, db_u64 end) {
    db_store_record(sq->record, db_be32((db_u32)end & 0xffff));
    if (sq->order == DB_ORDER_STRICT)
        db_order_record_before_register();
    else
        db_order_wqe_before_register();
    db_store_register(sq->reg, db_pair(((db_u32)end & 0xffff) << 8, sq->qpn << 8));
    db_flush_register();
    db_store_relaxed64(&shared->rung, end);
}

/* Blocks that are published, with all their bits. */
DB_GPU_FN db_u64 db_shared_published(const struct db_shared_sq *shared) {
    db_u64 consumed = db_load_relaxed64(&shared->consumed);
    db_u32 ahead = (db_u32)(db_load_relaxed64(&shared->published) >> DB_PUBLISHED_SHIFT) - (db_u32)consumed;
    /* Either may be the older one: the difference has a sign. */
    return consumed + ahead - ((db_u64)(ahead >> 31) << 32);
}

/* Whether more blocks are reserved than `total`, the low bits of what is published. */
DB_GPU_FN int db_shared_is_more(db_u64 reserved, db_u32 total) { return (total - (db_u32)reserved) >> 31 != 0; }

/* Yields the ringer's role once all below `end` is rung. 1: retaken; there is more, no poster to come. */
DB_GPU_FN int db_shared_leave(struct db_shared_sq *shared, db_u64 end) {
    /* Read before, while the doorbell goes: blocks unpublished by then have a poster to come. */
    db_u64 reserved = db_load_relaxed64(&shared->reserved), word;
    db_u32 total;
    word = db_fetch_and_release64(&shared->published, ~(db_u64)DB_ROLE) & ~(db_u64)DB_ROLE;
    total = (db_u32)(word >> DB_PUBLISHED_SHIFT);
    if (total == (db_u32)end || db_shared_is_more(reserved, total)) return 0;
    /* Nothing orders this load behind that atomic, which only releases: it may see as little as the first
     * did. Any value was reserved at some time. More than `total` has a poster to come; an older count, below
     * `total`, must not pass for that, and costs only a role retaken in vain. */
    if (db_shared_is_more(db_load_relaxed64(&shared->reserved), total)) return 0;
    return db_compare_swap_acquire64(&shared->published, word, word + 1) == word;
}

/* What the ringer does: rings for what is marked, and leaves. Its caller's deadline does not apply: what is
 * published must be rung. By one thread or all lanes of a warp. Up to where is rung, or DB_RING_FAILED. */
DB_GPU_FN db_u64 db_shared_ring_as(struct db_shared_sq *shared, int by_warp) {
    struct db_poster poster = db_poster_of(shared);
    struct db_wait mark = {0, 0, 0};
    int first = !by_warp || db_lane() == 0, again, late;
    db_u64 rung, end;
    do {
        /* Asked before looking at the marks: a ringer stopped for long (debugger, another context) fails no
         * queue for a mark that has come meanwhile. Only lane 0 has a deadline. */
        late = mark.deadline_ns && db_wait_over(&mark);
        rung = db_load_relaxed64(&shared->rung);
        if (by_warp) rung = db_warp_shuffle64(rung, 0);
        end = by_warp ? db_shared_filled_by_warp(&poster, rung) : db_shared_filled(&poster, rung);
        if (end != rung) {
            /* Each lane takes over what the marks that it saw hand over; lane 0 tells the device of all. */
            db_order_wqe_before_record();
            if (by_warp) db_warp_sync();
            if (first) db_shared_tell(shared, &poster.sq, end);
            mark.deadline_ns = 0;
        }
        again = first && db_shared_leave(shared, end);
        if (again && end == rung && !mark.deadline_ns) mark.deadline_ns = db_clock_ns() + DB_MARK_PATIENCE_NS;
        if (again && end == rung && late) {
            db_shared_fail(shared, DB_FAILED_HOLE, 0, 0);
            again = -1;
        }
        if (by_warp) again = (int)db_warp_shuffle32((db_u32)again, 0);
    } while (again > 0);
    return again ? DB_RING_FAILED : end;
}

/* Apart from their callers: a poster that is alone on a queue jumps over less. */
DB_GPU_FN_OUTLINED db_u64 db_shared_ring(struct db_shared_sq *shared) { return db_shared_ring_as(shared, 0); }
DB_GPU_FN_OUTLINED db_u64 db_shared_ring_by_warp(struct db_shared_sq *shared) { return db_shared_ring_as(shared, 1); }

/* Rings for what is published and not rung, if there is no other ringer. 0, or DB_EIO. */
DB_GPU_FN int db_shared_help(struct db_shared_sq *shared) {
    db_u64 word = db_load_relaxed64(&shared->published);
    if ((word & DB_ROLE) || (db_u32)(word >> DB_PUBLISHED_SHIFT) == (db_u32)db_load_relaxed64(&shared->rung)) return 0;
    if (db_compare_swap_acquire64(&shared->published, word, word + 1) != word) return 0;
    return db_shared_ring(shared) == DB_RING_FAILED ? DB_EIO : 0;
}

/* Takes blocks, and the ringer's role if it is vacant: their first. A thread that does not post next has to
 * call db_shared_give_up(). */
DB_GPU_FN db_u64 db_shared_take(struct db_shared_sq *shared, struct db_poster *poster, db_u32 blocks) {
    /* Side by side: neither waits for the other. */
    db_u64 begin = db_fetch_add64(&shared->reserved, blocks + poster->zero);
    poster->rings = !(db_fetch_add_acquire64(&shared->published, 1 + poster->zero) & DB_ROLE);
    return begin;
}

/* Gives the role back that came with the blocks. 0, or DB_EIO. */
DB_GPU_FN int db_shared_give_up(struct db_shared_sq *shared, struct db_poster *poster) {
    if (!poster->rings) return 0;
    poster->rings = 0;
    return db_shared_ring(shared) == DB_RING_FAILED ? DB_EIO : 0;
}

/* db_shared_room() when full: blocks that completions have retired, or DB_RESERVED_FAILED plus the error. */
DB_GPU_FN_OUTLINED db_u64 db_shared_wait(struct db_shared_sq *shared, db_u64 end, db_u64 wr_id, struct db_wait wait) {
    struct db_poster poster = db_poster_of(shared);
    for (;;) {
        /* All that a turn goes by, side by side: one trip to L2 instead of one for each word. */
        db_u64 consumed = db_load_relaxed64(&shared->consumed), word = db_load_relaxed64(&shared->published);
        db_u32 failing = db_load_relaxed32(&shared->failing), polling = db_load_relaxed32(&shared->polling);
        db_u32 rung = (db_u32)db_load_relaxed64(&shared->rung);
        int over = 0;
        if (!failing && end - consumed <= poster.sq.blocks) {
            db_acquire_room();
            /* A failure is noted before the room that its CQE gives back, so it is looked for behind that. */
            failing = db_load_relaxed32(&shared->failing);
            if (!failing) return consumed;
        }
        if (end >= DB_RESERVED_FAILED || failing) return DB_RESERVED_FAILED + (db_u32)db_shared_refuse(shared, &wait);
        if (!polling && db_shared_poll(shared, &poster, DB_WARP)) continue;
        if (!(word & DB_ROLE) && (db_u32)(word >> DB_PUBLISHED_SHIFT) != rung) over = db_shared_help(shared);
        if (!over) over = db_wait_over(&wait);
        if (over) {
            /* Blocks were handed out that no poster will fill: the queue is dead for every later poster. */
            db_shared_fail(shared, DB_FAILED_HOLE, wr_id, 0);
            return DB_RESERVED_FAILED + (db_u32)over;
        }
    }
}

/* Waits until the blocks below `end`, `wr_id`'s, have room: 0, DB_EIO, DB_ETIMEDOUT, DB_ECANCELED. A waiting
 * poster polls; it takes the role to ring alone (db_shared_help). Its last look at `consumed` may do. */
DB_GPU_FN int db_shared_room(struct db_shared_sq *shared, struct db_poster *poster, db_u64 end, db_u64 wr_id,
                             struct db_wait wait) {
    db_u64 consumed;
    int error;
    if (end - poster->consumed <= poster->sq.blocks) return 0;
    poster->consumed = db_load_acquire64(&shared->consumed);
    if (end - poster->consumed <= poster->sq.blocks && !db_load_relaxed32(&shared->failing)) return 0;
    error = db_shared_give_up(shared, poster);
    if (error) return error;
    consumed = db_shared_wait(shared, end, wr_id, wait);
    if (consumed >= DB_RESERVED_FAILED) return (int)(consumed - DB_RESERVED_FAILED);
    poster->consumed = consumed;
    return 0;
}

/* Whether all before `begin` was rung by this poster, which is the ringer. */
DB_GPU_FN int db_shared_is_alone(const struct db_poster *poster, db_u64 begin) {
    return poster->rings && poster->rung == begin;
}

/* WQEs before their marks; before the doorbell at once for a poster that is alone. */
DB_GPU_FN void db_shared_fence(int alone) {
    if (alone)
        db_order_wqe_before_record();
    else
        db_order_wqe_before_mark();
}

/* Adds filled blocks, marked or `alone`, to what is published, and rings for them if it is alone. Whether it
 * is the ringer, with more to ring. */
DB_GPU_FN int db_shared_publish(struct db_shared_sq *shared, struct db_poster *poster, db_u64 begin, db_u64 end, int alone) {
    db_u64 blocks = ((end - begin) << DB_PUBLISHED_SHIFT) + poster->zero;
    /* The new ringer takes over `rung` and the doorbell, which the last ringer's atomic released. */
    if (!poster->rings) return !(db_fetch_add_acquire64(&shared->published, blocks | 1) & DB_ROLE);
    db_fetch_add64(&shared->published, blocks);
    if (!alone) return 1;
    db_shared_tell(shared, &poster->sq, end);
    poster->rung = end;
    return db_shared_leave(shared, end);
}

/* Takes completions before the ring is full, so that not every poster waits while one looks across PCIe: by
 * the poster whose blocks end a quarter of the ring, once over half of it may be in use. */
DB_GPU_FN void db_shared_look_ahead(struct db_shared_sq *shared, const struct db_poster *poster, db_u64 begin, db_u64 end) {
    db_u32 blocks = poster->sq.blocks;
    if (!((begin ^ end) & ~(db_u64)(blocks / 4 - 1)) || end - poster->consumed <= blocks / 2) return;
    db_shared_poll(shared, poster, DB_WARP);
}

/* Posts one request of one thread and sees to the doorbell. 0; DB_EINVAL; DB_EIO when the queue has failed;
 * DB_ETIMEDOUT or DB_ECANCELED without room in time, which fails the queue for all: the blocks taken stay
 * unfilled. So the deadline should exceed any stall of the link. `poster` is the caller's own. */
DB_GPU_FN int db_shared_post(struct db_shared_sq *shared, const struct db_send_wr *wr, struct db_poster *poster,
                             struct db_wait wait) {
    db_u32 units = db_gpu_units(&poster->sq, wr), blocks = db_blocks(units), i;
    struct db_send_wr mine = *wr;
    db_u64 begin, rung;
    int error, alone;
    if (!units || blocks > poster->sq.blocks) return DB_EINVAL;
    begin = db_shared_take(shared, poster, blocks);
    error = db_shared_room(shared, poster, begin + blocks, mine.wr_id, wait);
    if (error) return error;
    if ((begin ^ (begin + blocks)) & ~(db_u64)poster->signal_mask) mine.send_flags |= DB_SEND_SIGNALED;
    db_fill_wqe(&poster->sq, begin, &mine, mine.opcode, units, db_gpu_is_plain(&mine));
    db_remember(&poster->sq, begin, mine.wr_id, blocks);
    alone = db_shared_is_alone(poster, begin);
    db_shared_fence(alone);
    for (i = 0; i < blocks && !alone; i++) db_shared_mark(poster, begin + i);
    if (db_shared_publish(shared, poster, begin, begin + blocks, alone)) {
        rung = db_shared_ring(shared);
        if (rung == DB_RING_FAILED) return DB_EIO;
        poster->rung = rung;
    }
    db_shared_look_ahead(shared, poster, begin, begin + blocks);
    return 0;
}

/* Publishes a warp's one-block WQEs, at most one a lane, `count` from `begin` on, and rings: 0, or DB_EIO. */
DB_GPU_FN int db_shared_warp_publish(struct db_shared_sq *shared, struct db_poster *poster, db_u64 begin, db_u32 count) {
    db_u64 rung;
    int alone, rings = 0;
    /* The lanes meet before the fence: lane 0's covers all lanes' WQEs, each lane's precedes its own mark. */
#ifndef DB_DEFECT_NO_WARP_SYNC
    db_warp_sync();
#endif
    /* Lane 0 knows; two kinds of fence in one warp would be waited for one after the other. */
    alone = (int)db_warp_shuffle32((db_u32)db_shared_is_alone(poster, begin), 0);
    db_shared_fence(alone);
    if (!alone && db_lane() < count) db_shared_mark(poster, begin + db_lane());
    if (db_lane() == 0) rings = db_shared_publish(shared, poster, begin, begin + count, alone);
    if (!db_warp_shuffle32((db_u32)rings, 0)) return 0;
    rung = db_shared_ring_by_warp(shared);
    if (rung == DB_RING_FAILED) return DB_EIO;
    poster->rung = rung;
    return 0;
}

/* db_shared_post() for a full warp of RDMA WRITEs of one data pointer each; every lane returns the same.
 * DB_EINVAL for an empty or an inline payload in any lane. */
DB_GPU_FN int db_shared_warp_post_write(struct db_shared_sq *shared, db_u64 wr_id, struct db_sge local,
                                        db_u64 remote_addr, db_u32 rkey, db_u32 send_flags, struct db_poster *poster,
                                        struct db_wait wait) {
    struct db_send_wr wr = {wr_id, &local, 1, DB_WR_RDMA_WRITE, send_flags, 0, remote_addr, 0, 0, rkey};
    db_u64 begin = 0;
    int error = 0;
    if (db_warp_is_odd(local, send_flags)) return DB_EINVAL;
    if (db_lane() == 0) {
        begin = db_shared_take(shared, poster, DB_WARP);
        error = db_shared_room(shared, poster, begin + DB_WARP, wr_id, wait);
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
    error = db_shared_warp_publish(shared, poster, begin, DB_WARP);
    if (!error && db_lane() == 0) db_shared_look_ahead(shared, poster, begin, begin + DB_WARP);
    return error;
}

#endif /* DB_DOORBELL_GPU_H */

#endif /* DB_DOORBELL_SHARED_H */
