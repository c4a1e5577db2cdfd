/*! Sends the answer, or tells the CPU to: a turn's last kernel. Waits for nothing.
 *
 * A ring has two blocks for each slot of its client, and no slot is served while its answer is being sent. So
 * there is always room. A refused answer is its prefix alone: the slot's tensors are of an earlier request,
 * perhaps another client's. One completion an answer; the next wait that looks takes an error CQE.
 */
#ifndef DB_SEND_CU
#define DB_SEND_CU

#include "pipeline.h"

/* Word `index` of the answer's prefix. */
DB_GPU_FN db_u64 db_answer_word(const struct db_served *at, const struct db_turn *turn, db_u32 credits, db_u32 index) {
    switch (index) {
    case 0: return DB_SLOT_MAGIC | (db_u64)DB_SLOT_VERSION << 32 | (db_u64)turn->status << 48;
    case DB_SLOT_HEADER_REQUEST_ID / 8: return turn->request_id;
    case DB_SLOT_HEADER_MODEL_ID / 8: return at->model_id | (db_u64)turn->sequence << 32;
    case DB_SLOT_HEADER_COOKIE / 8: return turn->cookie;
    case DB_SLOT_HEADER_SENT_NS / 8: return turn->sent_ns;
    case DB_SLOT_HEADER_BEGUN_NS / 8: return turn->begun_ns;
    case DB_SLOT_HEADER_ENDED_NS / 8: return db_clock_ns();
    case DB_SLOT_HEADER_TENSORS / 8: return at->answer_tensors | (db_u64)(credits & 0xffff) << 16 | (db_u64)turn->slot << 32;
    default: return at->answer_table[index - DB_HEADER_WORDS];
    }
}

/* Marks the client's requests that have come with the served one's number: they are refused in their turn.
 * One that comes between here and the answer's doorbell is not seen. All threads from `first` on. */
DB_GPU_FN void db_mark_twice(const struct db_served *at, const struct db_turn *turn, db_u32 first) {
    const struct db_look look = db_look_of(at, first);
    const db_u32 end = turn->first + turn->count;
    const db_u64 request_id = turn->request_id;
    const db_u32 unreliable = db_client_at(at, turn->client)->place.unreliable;
    db_u32 base, nth;
    for (base = turn->first; base < end; base += DB_SEEN * look.threads) {
        db_u64 flag[DB_SEEN], id[DB_SEEN];
        db_u32 waiting = db_look_at(look, base, end, flag);
        if (!waiting) continue;
        /* Numbers were written before the flags that were seen. */
        db_acquire_cqe();
        DB_UNROLL
        for (nth = 0; nth < DB_SEEN; nth++)
            if (waiting >> nth & 1)
                id[nth] = db_load_relaxed64((const db_u64 *)(db_slot_at(at, db_slot_in_row(look, base, nth)) + DB_SLOT_HEADER_REQUEST_ID));
        /* Not the one that is served: its sequence is taken. */
        waiting = db_whole_of(at, look, base, waiting, flag, unreliable);
        DB_UNROLL
        for (nth = 0; nth < DB_SEEN; nth++) {
            const db_u32 slot = db_slot_in_row(look, base, nth);
            if (waiting >> nth & 1 && id[nth] == request_id)
                db_store_relaxed32(&db_words_at(at, slot)->twice, db_load_awaited(look.awaited, slot));
        }
    }
}

/* Posts an answer's WRITEs, the last with a completion. What they send must be there only at the doorbell. */
DB_GPU_FN int db_post_answer(const struct db_served *at, const struct db_turn *turn, const struct db_place *place, struct db_sq *sq) {
    db_u64 local = at->slots_nic + turn->slot * at->slot_stride + at->answer, remote;
    db_u32 is_whole = turn->status == DB_SLOT_STATUS_OK, nth = turn->slot - place->first;
    struct db_sge all = {local, is_whole ? at->answer_tail + DB_SLOT_FLAG_BYTES : DB_SLOT_PREFIX_BYTES, place->lkey};
    struct db_sge flag = {local + at->answer_tail, DB_SLOT_FLAG_BYTES, place->lkey};
    int error;
    remote = place->answers + nth * at->answer_stride;
    if (at->arrival == DB_ARRIVAL_COMPLETION)
        return db_try_post_write_imm(sq, turn->slot, all, remote, place->answers_rkey, db_be32(turn->slot), DB_SEND_SIGNALED);
    if (at->arrival == DB_ARRIVAL_SEND) return db_try_post_send(sq, turn->slot, all, DB_SEND_SIGNALED);
    if (at->arrival == DB_ARRIVAL_TAIL && is_whole)
        return db_try_post_write(sq, turn->slot, all, remote, place->answers_rkey, DB_SEND_SIGNALED);
    error = db_try_post_write(sq, turn->slot, all, remote, place->answers_rkey, 0);
    if (error) return error;
    if (at->arrival == DB_ARRIVAL_TAIL)
        return db_try_post_write(sq, turn->slot, flag, remote + at->answer_tail, place->answers_rkey, DB_SEND_SIGNALED);
    remote = place->answer_flags + (db_u64)nth * DB_SLOT_FLAG_BYTES;
    return db_try_post_write(sq, turn->slot, flag, remote, place->flags_rkey, DB_SEND_SIGNALED);
}

/* Tells the CPU of an answer. It is in memory before. `number`: of answers before. */
DB_GPU_FN void db_tell(const struct db_served *at, const struct db_turn *turn, db_u64 number) {
    struct db_told *told = (struct db_told *)at->told + number % at->slot_count;
    told->slot = turn->slot;
    told->client = turn->client;
    told->status = turn->status;
    db_store_release_sys64((db_u64)&told->number, number + 1);
}

/* Tells the host when the steps of this answer were taken, behind its doorbell. */
DB_GPU_FN void db_trace(const struct db_served *at, const struct db_turn *turn, db_u32 number) {
    struct db_steps *steps = db_steps_at(at, turn->slot);
    struct db_traced *traced;
    steps->rung = db_clock_ns();
    if (!at->traced) return;
    traced = (struct db_traced *)at->traced + number % at->traced_count;
    traced->steps = *steps;
    traced->slot = turn->slot;
    traced->client = turn->client;
    traced->status = turn->status;
    db_store_release_sys32((db_u64)&traced->number, number + 1);
}

/* Sends a turn's answer, unless its queue has failed: all threads of a block. All is in its shared memory. */
DB_GPU_FN void db_send_outputs(const struct db_served *at, const struct db_turn *turn, struct db_counts *counts) {
    const db_u32 thread = db_block_thread(), credits = db_credits_of(at, turn->count);
    /* The first thread that looks at slots: a block of one warp has no other. */
    const db_u32 first = db_block_threads() > DB_WARP ? DB_WARP : 0;
    const db_u64 answer = db_answer_at(at, turn->slot), answered = counts->answered + 1;
    struct db_client *client = db_client_at(at, turn->client);
    struct db_place place = {};
    struct db_sq sq;
    db_u64 of_client = 0;
    db_u32 index, dead = 0;
    int error = 0;
    if (at->steps && db_works_in_slots(at) && !thread) {
        struct db_steps *steps = db_steps_at(at, turn->slot);
        steps->puts = steps->put = db_clock_ns();
    }
    if (!thread) {
        sq = client->sq;
        place = client->place;
        dead = client->dead;
        of_client = client->answered + 1;
#ifdef DB_DEFECT_SENDS_ANYWAY
        dead = 0;
#endif
        /* Beside the look at the slots, which is the other warps'. */
        if (!at->told && !dead) error = db_post_answer(at, turn, &place, &sq);
    }
    for (index = thread; index < DB_PREFIX_WORDS; index += db_block_threads())
        db_store64(answer + 8ull * index, db_answer_word(at, turn, credits, index));
    /* Else the CPU has seen to it. */
    if (at->flags && turn->status == DB_SLOT_STATUS_OK && thread >= first) db_mark_twice(at, turn, first);
    /* The other threads' stores are the first one's to publish once it has met them. */
#ifndef DB_DEFECT_NO_SEND_SYNC
    db_block_sync();
#endif
    if (thread || dead) return;
    db_store64(answer + at->answer_tail, db_slot_flag(turn->sequence));
    /* Before the answer, since the client may send once it has that. Where the CPU polls, it has done so. */
    if (!error && at->arrival == DB_ARRIVAL_SEND && client->rq.wqes) error = db_post_slot(at, client, turn->slot);
    if (error) {
        db_give_up(at, turn->client, db_kernel_end_of(client->sq.qpn, turn->slot, error, 0));
        return;
    }
    if (at->told) {
        db_store_relaxed32((db_u32 *)db_host_sending(at, turn->slot), 1);
        db_store_relaxed32(&db_words_at(at, turn->slot)->sending, 0);
        db_tell(at, turn, answered - 1);
    } else {
        db_ring(&sq);
        client->sq = sq;
    }
    if (at->steps) db_trace(at, turn, (db_u32)answered - 1);
    client->answered = of_client;
    counts->answered = answered;
    db_store_relaxed64(&((struct db_counts *)at->counts)->answered, answered);
    if (turn->status == DB_SLOT_STATUS_OK) return;
    client->refused++;
    DB_COUNT(at, counts, refused, 1);
}

#ifndef DB_RESIDENT
/* Launch: one block. */
extern "C" __global__ void __launch_bounds__(DB_MOST_THREADS) send_outputs(const struct db_served *served, struct db_turn *turn) {
    __shared__ struct db_own own;
    db_copy_own(own, served, turn);
    if (own.turn.state != DB_TURN_REQUEST) return;
    db_send_outputs(&own.served, &own.turn, &own.turn.counts);
    if (!db_block_thread()) turn->counts = own.turn.counts;
}
#endif

#endif /* DB_SEND_CU */
