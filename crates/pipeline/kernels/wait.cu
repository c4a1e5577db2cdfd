/*! Waits for a request, reads its prefix once and checks it: the first kernel of a turn.
 *
 * Clients have their turn, and each client's slots: the search begins behind the slots of the client that was served last. A slot is
 * passed while the NIC may still read the answer before; so neither the model nor put_outputs ever has to wait. A wait ends by a
 * request, by the cancel word, by a queue that fails, or after `wait_ns`. Across PCIe (cancel word, places, completions) it looks each
 * 64th round, after `attend_ns`, and when nothing but a slot that is being sent has a request.
 * Checked: magic, version, status, sequence, slot, model, table of tensors, and that the request's number is not outstanding
 * (put_outputs marks those). Credits are the client's slots.
 */
#ifndef DB_WAIT_CU
#define DB_WAIT_CU

#include "members.h"

/* What the threads of the block tell each other. */
struct db_found {
    db_u32 nearest; /* distance of the first client with a request */
    db_u32 nth;     /* its request: slots behind the one whose turn it is */
    db_u32 attend;
    db_u32 faults;  /* DB_FAULT_* of its prefix */
    db_u32 over;
    db_u32 sent, strays;
    db_u64 looks; /* when the wait began */
};

#define DB_FAULT_HEADER 1u
#define DB_FAULT_SEQUENCE 2u
#define DB_FAULT_MODEL 4u
#define DB_FAULT_TENSORS 8u

/* What lies across PCIe: places that the host has changed, and completions. All threads, which meet behind it. */
DB_GPU_FN void db_attend(const struct db_served *at, struct db_found *found) {
    db_u32 index;
    for (index = db_block_thread(); index < at->client_count; index += db_block_threads()) {
        db_u32 sent = db_poll_sends(at, index);
        db_attend_place(at, index);
        if (sent) atomicAdd(&found->sent, sent);
    }
    db_block_sync();
}

/* Which faults word `index` of a request's prefix shows. */
DB_GPU_FN db_u32 db_faults(const struct db_served *at, db_u32 slot, db_u32 sequence, db_u32 index, db_u64 word) {
    const db_u64 begin = DB_SLOT_MAGIC | (db_u64)DB_SLOT_VERSION << 32;
    if (index == 0) return word == begin ? 0 : DB_FAULT_HEADER;
    if (index == DB_SLOT_HEADER_MODEL_ID / 8)
        return ((db_u32)word == at->model_id ? 0 : DB_FAULT_MODEL) | ((db_u32)(word >> 32) == sequence ? 0 : DB_FAULT_SEQUENCE);
    if (index == DB_SLOT_HEADER_TENSORS / 8)
        return ((word & 0xffff) == at->request_tensors ? 0 : DB_FAULT_TENSORS) |
               ((db_u32)(word >> 32) == slot ? 0 : DB_FAULT_SEQUENCE);
#ifndef DB_DEFECT_NO_TABLE
    if (index >= DB_HEADER_WORDS && word != at->request_table[index - DB_HEADER_WORDS]) return DB_FAULT_TENSORS;
#endif
    return 0;
}

DB_GPU_FN db_u32 db_status_of_faults(db_u32 faults) {
    if (faults & DB_FAULT_HEADER) return DB_SLOT_STATUS_BAD_HEADER;
    if (faults & DB_FAULT_SEQUENCE) return DB_SLOT_STATUS_BAD_SEQUENCE;
    if (faults & DB_FAULT_MODEL) return DB_SLOT_STATUS_BAD_MODEL;
    return faults ? DB_SLOT_STATUS_BAD_TENSORS : DB_SLOT_STATUS_OK;
}

/* Takes the request of a slot: a thread a word of its prefix, each read once. */
DB_GPU_FN void db_take(const struct db_served *at, struct db_turn *turn, db_u32 slot, struct db_found *found) {
    db_u32 *last = db_word(at->sequences, slot), sequence = db_slot_next(db_load_relaxed32(last)), index;
    for (index = db_block_thread(); index < DB_PREFIX_WORDS; index += db_block_threads()) {
        db_u64 word = db_load_relaxed64((const db_u64 *)db_slot_at(at, slot) + index);
        db_u32 faults = db_faults(at, slot, sequence, index, word);
        if (faults) atomicOr(&found->faults, faults);
        if (index == DB_SLOT_HEADER_REQUEST_ID / 8) turn->request_id = word;
        if (index == DB_SLOT_HEADER_COOKIE / 8) turn->cookie = word;
        if (index == DB_SLOT_HEADER_SENT_NS / 8) turn->sent_ns = word;
    }
    db_block_sync();
    if (db_block_thread()) return;
    db_store_relaxed32(last, sequence);
#ifndef DB_DEFECT_SLOT_NOT_SET
    turn->slot = slot;
#endif
    turn->sequence = sequence;
    turn->client = db_load_relaxed32(db_word(at->owners, slot));
    turn->status = db_status_of_faults(found->faults);
#ifndef DB_DEFECT_TWICE
    if (turn->status == DB_SLOT_STATUS_OK && db_load_relaxed32(db_word(at->twice, slot)) == sequence)
        turn->status = DB_SLOT_STATUS_DUPLICATE_ID;
#endif
    if (turn->status == DB_SLOT_STATUS_OK && at->refuses) turn->status = at->refuses;
    turn->begun_ns = db_clock_ns();
    turn->state = DB_TURN_REQUEST;
    if (at->steps) {
        struct db_steps *steps = db_steps_at(at, slot);
        steps->looks = found->looks;
        steps->begun = turn->begun_ns;
    }
}

/* Where a request lies: how far behind the begin of the search its client's slots begin, and how far in these behind its turn. */
struct db_near {
    db_u32 distance, nth;
};

/* One round over all slots: the nearest request of this thread; `slot_count` as distance: none. */
DB_GPU_FN struct db_near db_round(const struct db_served *at, db_u32 first, int *blocked) {
    struct db_near near = {at->slot_count, 0};
    db_u32 slot, threads = db_block_threads();
    for (slot = db_block_thread(); slot < at->slot_count; slot += threads) {
        const struct db_client *client;
        db_u32 owner, distance, nth;
        int looked = db_look(at, slot);
        if (looked == DB_SLOT_BLOCKED) *blocked = 1;
        if (looked != DB_SLOT_READY) continue;
        owner = db_load_relaxed32(db_word(at->owners, slot));
        client = db_client_at(at, owner);
        distance = (client->place.first + at->slot_count - first) % at->slot_count;
        nth = (slot - client->place.first + client->place.count - client->turn) % client->place.count;
        if (distance > near.distance || (distance == near.distance && nth >= near.nth)) continue;
        near.distance = distance;
        near.nth = nth;
    }
    return near;
}

/* The slot that `found` tells of; its client's next turn begins behind it, and so does the next search behind that client. */
DB_GPU_FN db_u32 db_chosen(const struct db_served *at, struct db_turn *turn, db_u32 first, const struct db_found *found) {
    db_u32 base = (first + found->nearest) % at->slot_count;
    struct db_client *client = db_client_at(at, db_load_relaxed32(db_word(at->owners, base)));
    db_u32 nth = (client->turn + found->nth) % client->place.count;
    /* All threads have read the turn. */
    db_block_sync();
    if (db_block_thread() == 0) {
#ifndef DB_DEFECT_FROM_SLOT_0
        client->turn = (nth + 1) % client->place.count;
#endif
        turn->next = (base + client->place.count) % at->slot_count;
    }
    return base + nth;
}

/* One wait, by all threads of a block, which share `found`. One thread walks from slot to slot, as the paper's release does. A round
 * looks at all slots side by side, so that its time depends on their number by no more than a load for as many slots as threads. */
DB_GPU_FN void db_wait_inputs(const struct db_served *told, struct db_turn *turn, struct db_found &found) {
    const struct db_served *at = told;
    struct db_wait wait = {db_deadline_ns(at->wait_ns), at->cancel, 0};
    db_u32 thread = db_block_thread(), index, nearest, over = 0;
#ifdef DB_DEFECT_SLOTS_IN_TURN
    db_u32 first = 0;
#else
    db_u32 first = turn->next % at->slot_count;
#endif
    struct db_near mine;
    int attend = 0;
    if (thread == 0) {
        const db_u64 now = db_clock_ns();
        struct db_found none = {at->slot_count, ~0u, 0, 0, 0, 0, 0, now};
        none.attend = now - turn->attended_ns >= at->attend_ns;
        if (none.attend) turn->attended_ns = now;
        found = none;
    }
    db_block_sync();
    /* Or clients could not come and go while there are requests. */
    if (found.attend) db_attend(at, &found);
    for (;;) {
        int blocked = 0;
        if (at->arrival == DB_ARRIVAL_COMPLETION) {
            for (index = thread; index < at->client_count; index += db_block_threads()) {
                db_u32 strays = db_poll_receives(at, index);
                if (strays) atomicAdd(&found.strays, strays);
            }
            /* A slot's flag is another thread's to see. */
            db_block_sync();
        }
        mine = db_round(at, first, &blocked);
        if (thread == 0) {
            int now = db_wait_over(&wait);
            if (now) found.over = (db_u32)now;
            attend |= now || !(wait.turns & 63);
        }
        /* One barrier a round, after which all threads know the same. */
        if (!db_block_any(mine.distance < at->slot_count || blocked || attend)) continue;
        attend = 0;
        if (mine.distance < at->slot_count) {
            /* The request, before all that this and later kernels read of it. */
            db_acquire_cqe();
            atomicMin(&found.nearest, mine.distance);
        }
        db_block_sync();
        nearest = found.nearest;
        /* Here, since the first thread may write it again behind the barrier of db_attend. */
        over = found.over;
        if (nearest < at->slot_count) break;
        db_attend(at, &found);
        if (over) break;
    }
    if (nearest < at->slot_count) {
        if (mine.distance == nearest) atomicMin(&found.nth, mine.nth);
        db_block_sync();
        db_take(at, turn, db_chosen(at, turn, first, &found), &found);
    }
    if (thread) return;
    if (nearest >= at->slot_count) turn->state = over == DB_ECANCELED ? DB_TURN_STOP : DB_TURN_NONE;
    DB_COUNT(at, turn, turns, 1);
    if (found.sent) DB_COUNT(at, turn, sent, found.sent);
    if (found.strays) DB_COUNT(at, turn, strays, found.strays);
}

#ifndef DB_RESIDENT
/* Launch: one block of any number of threads, by a graph or by the host. */
extern "C" __global__ void wait_inputs(const struct db_served *told, struct db_turn *turn) {
    __shared__ struct db_found found;
    db_wait_inputs(told, turn, found);
}
#endif

#endif /* DB_WAIT_CU */
