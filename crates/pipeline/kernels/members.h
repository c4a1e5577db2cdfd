/*! Clients that join and leave while the graph runs, and requests as receive completions: parts of the wait,
 * one thread a client. Only the block that waits and sends uses a client's structs, and it waits here.
 */
#ifndef DB_MEMBERS_H
#define DB_MEMBERS_H

#include "pipeline.h"

/* Receives of one update of the doorbell record, which costs a full fence. */
#define DB_RECEIVES_AT_ONCE 8u

/* Posts receives without buffers, of which a WRITE with immediate data takes one. Once there is at most one a
 * slot, fills up to two a slot. A client has one request a slot at most. So it finds a receive, and the fence
 * is paid once in as many requests as it has slots. */
DB_GPU_FN void db_refill(const struct db_served *at, db_u32 index) {
    const struct db_recv_wr wrs[DB_RECEIVES_AT_ONCE] = {};
    struct db_client *client = db_client_at(at, index);
    db_u32 posted = (db_u32)(client->rq.producer - client->rq.consumer), left, bad;
    int error = 0;
#ifdef DB_DEFECT_LATE_REFILL
    if (posted) return;
#endif
    if (posted > client->place.count) return;
    for (left = 2 * client->place.count - posted; left && !error;) {
        db_u32 count = left < DB_RECEIVES_AT_ONCE ? left : DB_RECEIVES_AT_ONCE;
        error = db_post_recv(&client->rq, wrs, count, &bad);
        left -= count;
    }
    if (error) db_give_up(at, index, db_kernel_end_of(client->rq.qpn, 0, error, 0));
}

/* The words of a slot that begins anew. Where the CPU posts, so does the host's. */
DB_GPU_FN void db_set_words(const struct db_served *at, db_u32 slot, db_u32 awaited, db_u32 owner) {
    struct db_slot_words *words = db_words_at(at, slot);
    db_store_relaxed32(db_awaited_at(at, slot), awaited);
    db_store_relaxed32(&words->owner, owner);
    db_store_relaxed32(&words->sending, 0);
    db_store_relaxed32(&words->twice, 0);
    if (at->told) db_store_relaxed32((db_u32 *)db_host_sending(at, slot), 0);
}

/* Takes a client over: its structs from host memory, and its slots. */
DB_GPU_FN void db_join(const struct db_served *at, db_u32 index) {
    struct db_client *client = db_client_at(at, index);
    db_u32 slot;
    client->place = ((const struct db_place *)at->places)[index];
    client->sq = *(const struct db_sq *)client->place.queue.sq;
    client->rq = *(const struct db_rq *)client->place.queue.rq;
    client->send_cq = *(const struct db_cq *)client->place.queue.send_cq;
    client->receive_cq = *(const struct db_cq *)client->place.queue.receive_cq;
    client->send_released = client->send_cq.consumer;
    client->receive_released = client->receive_cq.consumer;
    client->dead = 0;
    client->turn = 0;
    client->answered = client->refused = 0;
    client->progress_ns = 0;
    for (slot = client->place.first; slot < client->place.first + client->place.count; slot++) {
        /* What a client before has left there is not this one's next request. */
        db_store64(at->flags + slot * at->flag_stride, 0);
        db_set_words(at, slot, db_slot_next(client->place.sequence), index);
    }
    if (at->arrival == DB_ARRIVAL_COMPLETION) db_refill(at, index);
    if (at->arrival == DB_ARRIVAL_SEND) {
        int error = 0;
        for (slot = client->place.first; slot < client->place.first + client->place.count && !error; slot++)
            error = db_post_slot(at, client, slot);
        if (error) db_give_up(at, index, db_kernel_end_of(client->rq.qpn, 0, error, 0));
    }
}

/* Gives a client back: nothing of it is used from here on. */
DB_GPU_FN void db_leave(const struct db_served *at, db_u32 index) {
    struct db_client *client = db_client_at(at, index);
    struct db_place *place = (struct db_place *)at->places + index;
    db_u32 slot;
    for (slot = client->place.first; slot < client->place.first + client->place.count; slot++)
        db_set_words(at, slot, 0, DB_NO_CLIENT);
    *(struct db_sq *)client->place.queue.sq = client->sq;
    *(struct db_rq *)client->place.queue.rq = client->rq;
    *(struct db_cq *)client->place.queue.send_cq = client->send_cq;
    if (client->place.queue.receive_cq != client->place.queue.send_cq)
        *(struct db_cq *)client->place.queue.receive_cq = client->receive_cq;
    place->answered = client->answered;
    place->refused = client->refused;
}

/* Does what the host wants of a place, and tells it. `early`: what it wanted when looked at, unordered. */
DB_GPU_FN void db_attend_place(const struct db_served *at, db_u32 index, db_u32 early) {
    struct db_client *client = db_client_at(at, index);
    struct db_place *place = (struct db_place *)at->places + index;
    db_u32 wanted = early;
    /* Where the CPU posts, it tells so of a queue that has failed. */
    if (at->told && (client->acted & 1) && !client->dead && db_load_acquire_sys32((db_u64)&place->end.code))
        db_give_up(at, index, place->end);
    if (wanted == client->acted) return;
    /* The rest of the place was written before. */
    wanted = db_load_acquire_sys32((db_u64)&place->wanted);
    if (wanted & 1)
        db_join(at, index);
    else
        db_leave(at, index);
    client->acted = wanted;
    db_store_release_sys32((db_u64)&place->done, wanted);
}

/* Takes a client's receive completions: each names a slot, whose flag is set here as by the NIC elsewhere. At
 * most as many as it has slots, since a flood would hold up all clients. How many were strays. */
DB_GPU_FN db_u32 db_poll_receives(const struct db_served *at, db_u32 index) {
    struct db_client *client = db_client_at(at, index);
    struct db_completion done;
    db_u32 strays = 0, slot, left = client->place.count;
    int taken, more = 1;
    if (!(client->acted & 1)) return 0;
#ifdef DB_DEFECT_FLOOD
    left = ~0u;
#endif
    for (; more && left && !client->dead; left--) {
        /* With the load of the one before it: a single completion costs no further trip across PCIe. */
        const db_u64 behind = db_load_cqe_tail(db_cqe_at(&client->receive_cq, 1) + DB_CQE_OPCODE_QPN);
        if (at->arrival == DB_ARRIVAL_COMPLETION) db_refill(at, index);
        taken = db_gpu_take(&client->receive_cq, 0, &client->rq, &done, &client->receive_released);
        if (!taken) break;
        if (taken < 0 || done.status != DB_WC_SUCCESS) {
            /* A send that fails flushes the receives: it is the reason. */
            if (at->told && taken > 0) {
                db_store_release_sys32((db_u64) & ((struct db_place *)at->places + index)->flushed, 1);
                break;
            }
            (void)db_poll_sends(at, index);
            db_give_up(at, index, db_kernel_end_of(client->rq.qpn, 0, taken < 0 ? DB_EINVAL : 0, &done));
            break;
        }
        more = db_cqe_is_there(&client->receive_cq, 0, behind);
        slot = at->arrival == DB_ARRIVAL_SEND ? (db_u32)done.wr_id : done.has_imm ? db_be32(done.imm_data) : DB_NO_CLIENT;
#ifdef DB_DEFECT_ANY_SLOT
        if (slot >= at->slot_count) {
#else
        /* A peer says what it likes: only a slot of its own counts. */
        if (slot >= at->slot_count || db_load_relaxed32(&db_words_at(at, slot)->owner) != index) {
#endif
            strays++;
        } else {
            db_u64 *flag = (db_u64 *)(at->flags + slot * at->flag_stride), whole;
            whole = db_slot_flag(db_load_relaxed32(db_awaited_at(at, slot)));
            if (at->steps) db_steps_at(at, slot)->arrived = done.timestamp;
            if (db_load_relaxed64(flag) == whole) strays++;
            db_store_relaxed64(flag, whole);
        }
    }
    return strays;
}

#endif /* DB_MEMBERS_H */
