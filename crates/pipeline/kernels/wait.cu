/*! Waits for a request, reads its prefix once and checks it: the first kernel of a turn.
 *
 * Slots have their turn: the search begins behind the slot that was served last. A slot is passed while the NIC may still read the
 * answer before; so neither the model nor put_outputs ever has to wait. A wait ends by a request, by the cancel word, or after
 * `wait_ns`. Across PCIe (cancel word, places, completions) it looks each 64th round, each 16th turn, and when nothing but a slot
 * that is being sent has a request.
 * Checked: magic, version, status, sequence, slot, model, table of tensors. Not checked: whether a request number is outstanding
 * twice, which harms only the client that does it. Credits are the client's slots.
 */
#include "members.h"

/* What the threads of the block tell each other. */
struct db_found {
    db_u32 nearest; /* distance of the first request */
    db_u32 faults;  /* DB_FAULT_* of its prefix */
    db_u32 over;
    db_u32 sent, strays;
};

#define DB_FAULT_HEADER 1u
#define DB_FAULT_SEQUENCE 2u
#define DB_FAULT_MODEL 4u
#define DB_FAULT_TENSORS 8u

/* What looking at a slot gives. */
#define DB_SLOT_EMPTY 0
#define DB_SLOT_READY 1
#define DB_SLOT_BLOCKED 2 /* the answer before it is not sent yet */

/* Whether the next request of a slot is whole and may be taken. One load across no more than the GPU's own bus, and no order: the
 * finder acquires. */
DB_GPU_FN int db_look(const struct db_served *at, db_u32 slot) {
    db_u64 flag = db_load_cqe_tail(at->flags + slot * at->flag_stride);
#ifdef DB_DEFECT_ANY_FLAG
    if (!flag) return DB_SLOT_EMPTY;
#else
    if (flag != db_slot_flag(db_slot_next(db_load_relaxed32(db_word(at->sequences, slot))))) return DB_SLOT_EMPTY;
#endif
    if (db_load_relaxed32(db_word(at->owners, slot)) == DB_NO_CLIENT) return DB_SLOT_EMPTY;
#ifndef DB_DEFECT_NO_SENDING
    if (db_load_relaxed32(db_word(at->sending, slot))) return DB_SLOT_BLOCKED;
#endif
    return DB_SLOT_READY;
}

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
    turn->begun_ns = db_clock_ns();
    turn->state = DB_TURN_REQUEST;
}

/* One round over all slots: the distance of this thread's first request, or `slot_count`. */
DB_GPU_FN db_u32 db_round(const struct db_served *at, db_u32 first, int *blocked) {
    db_u32 distance, threads = db_block_threads();
    for (distance = db_block_thread(); distance < at->slot_count; distance += threads) {
        int looked = db_look(at, (first + distance) % at->slot_count);
        if (looked == DB_SLOT_READY) return distance;
        if (looked == DB_SLOT_BLOCKED) *blocked = 1;
    }
    return at->slot_count;
}

/* Launch: one block of any number of threads, by a graph or by the host; one thread walks from slot to slot, as the paper's release
 * does. A round looks at all slots side by side, so that its time depends on their number by no more than a load for as many slots as
 * threads. */
extern "C" __global__ void wait_inputs(const struct db_served *told, struct db_turn *turn) {
    __shared__ struct db_found found;
    const struct db_served *at = told;
    struct db_wait wait = {db_deadline_ns(at->wait_ns), at->cancel, 0};
    db_u32 thread = db_block_thread(), index, nearest;
#ifdef DB_DEFECT_FROM_SLOT_0
    db_u32 first = 0;
#else
    db_u32 first = turn->slot + 1;
#endif
    int attend = 0;
    if (thread == 0) {
        struct db_found none = {at->slot_count, 0, 0, 0, 0};
        found = none;
    }
    db_block_sync();
    /* Or clients could not come and go while there are requests. */
    if (!(turn->counts.turns & 15)) db_attend(at, &found);
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
        db_u32 mine = db_round(at, first, &blocked);
        if (thread == 0) {
            int over = db_wait_over(&wait);
            if (over) found.over = (db_u32)over;
            attend |= over || !(wait.turns & 63);
        }
        /* One barrier a round, after which all threads know the same. */
        if (!db_block_any(mine < at->slot_count || blocked || attend)) continue;
        attend = 0;
        if (mine < at->slot_count) {
            /* The request, before all that this and later kernels read of it. */
            db_acquire_cqe();
            atomicMin(&found.nearest, mine);
        }
        db_block_sync();
        nearest = found.nearest;
        if (nearest < at->slot_count) break;
        db_attend(at, &found);
        if (found.over) break;
    }
    if (nearest < at->slot_count) db_take(at, turn, (first + nearest) % at->slot_count, &found);
    if (thread) return;
    if (nearest >= at->slot_count) turn->state = found.over == DB_ECANCELED ? DB_TURN_STOP : DB_TURN_NONE;
    DB_COUNT(at, turn, turns, 1);
    if (found.sent) DB_COUNT(at, turn, sent, found.sent);
    if (found.strays) DB_COUNT(at, turn, strays, found.strays);
}
