/*! Waits for a request, reads its prefix once and checks it: the first kernel of a turn.
 *
 * Clients have their turn, and each client's slots: the search begins behind the slots of the client that was served last. A slot is
 * passed while the NIC may still read the answer before; so neither the model nor send_outputs ever has to wait. A wait ends by a
 * request, by the cancel word, by the host's own slot marked as stop, by a queue that fails, or after `wait_ns`. Across PCIe (cancel
 * word, places, completions) it looks each 64th round, after `attend_ns`, and when nothing but a slot that is being sent has a request.
 * Checked: magic, version, status, sequence, slot, model and table of tensors; that the request's number is not outstanding
 * (send_outputs marks those); that no more of the client's requests wait than its credits allow.
 */
#ifndef DB_WAIT_CU
#define DB_WAIT_CU

#include "members.h"

/* A request that a round has found, as one number, of which the least is the nearest: how many slots lie from the begin of the search to
 * its client's, and from that client's turn to it, and in the low half its slot. */
typedef unsigned long long db_near;
#define DB_NOWHERE (~0ull)

/* What the threads of the block tell each other. */
struct db_found {
    db_near nearest;
    db_u32 attend;
    db_u32 faults; /* DB_FAULT_* of its prefix */
    db_u32 over;
    db_u32 passed; /* in the turn before */
    db_u32 sent, strays;
    db_u32 waiting; /* requests of the client that is served, where it may have fewer than slots */
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
        const struct db_place *place = (const struct db_place *)at->places + index;
        /* With the completions' trip: `wanted` is its low half. */
        const db_u64 wanted = db_load_cqe_tail((db_u64)&place->wanted);
        db_u32 sent = db_poll_sends(at, index);
        db_attend_place(at, index, (db_u32)wanted);
        if (sent) atomicAdd(&found->sent, sent);
    }
    db_block_sync();
}

/* Which faults word `index` of a request's prefix shows. */
DB_GPU_FN db_u32 db_faults(const struct db_served *at, db_u32 slot, db_u32 sequence, db_u32 index, db_u64 word) {
    const db_u64 begin = DB_SLOT_MAGIC | (db_u64)DB_SLOT_VERSION << 32;
#ifdef DB_DEFECT_NO_TABLE
    const db_u64 entry = word;
#else
    const db_u64 entry = at->request_table[index < DB_HEADER_WORDS ? 0 : index - DB_HEADER_WORDS];
#endif
    const db_u32 model_id = at->model_id, tensors = at->request_tensors;
    if (index == 0) return word == begin ? 0 : DB_FAULT_HEADER;
    if (index == DB_SLOT_HEADER_MODEL_ID / 8)
        return ((db_u32)word == model_id ? 0 : DB_FAULT_MODEL) | ((db_u32)(word >> 32) == sequence ? 0 : DB_FAULT_SEQUENCE);
    if (index == DB_SLOT_HEADER_TENSORS / 8)
        return ((word & 0xffff) == tensors ? 0 : DB_FAULT_TENSORS) | ((db_u32)(word >> 32) == slot ? 0 : DB_FAULT_SEQUENCE);
    return index >= DB_HEADER_WORDS && word != entry ? DB_FAULT_TENSORS : 0;
}

DB_GPU_FN db_u32 db_status_of_faults(db_u32 faults) {
    if (faults & DB_FAULT_HEADER) return DB_SLOT_STATUS_BAD_HEADER;
    if (faults & DB_FAULT_SEQUENCE) return DB_SLOT_STATUS_BAD_SEQUENCE;
    if (faults & DB_FAULT_MODEL) return DB_SLOT_STATUS_BAD_MODEL;
    return faults ? DB_SLOT_STATUS_BAD_TENSORS : DB_SLOT_STATUS_OK;
}

/* Counts the requests of a client that have come and are not answered, if it may have fewer than slots. All threads. */
DB_GPU_FN void db_count_waiting(const struct db_served *at, db_u32 client, struct db_found *found) {
    const struct db_place *place = &db_client_at(at, client)->place;
    const struct db_words words = db_words_of(at);
    const db_u32 first = place->first, count = place->count;
    db_u32 nth;
    if (db_credits_of(at, count) == count) return;
    for (nth = db_block_thread(); nth < count; nth += db_block_threads())
        if (db_judge(at, first + nth, db_see(words, first + nth)) != DB_SLOT_EMPTY) atomicAdd(&found->waiting, 1u);
}

/* Takes the request of a slot: a thread a word of its prefix, each read once. */
DB_GPU_FN void db_take(const struct db_served *at, struct db_turn *turn, db_u32 slot, struct db_found *found) {
    const db_u32 sequence = db_slot_next(db_load_relaxed32(db_word(at->sequences, slot)));
    const db_u32 client = db_load_relaxed32(db_word(at->owners, slot));
    const db_u32 refuses = at->refuses, spare = at->slot_count;
#ifdef DB_DEFECT_TWICE
    const db_u32 twice = 0;
#else
    const db_u32 twice = at->twice ? db_load_relaxed32(db_word(at->twice, slot)) : 0;
#endif
    db_u32 index, status;
    for (index = db_block_thread(); index < DB_PREFIX_WORDS; index += db_block_threads()) {
        db_u64 word = db_load_relaxed64((const db_u64 *)db_slot_at(at, slot) + index);
        db_u32 faults = db_faults(at, slot, sequence, index, word);
        if (faults) atomicOr(&found->faults, faults);
        if (index == DB_SLOT_HEADER_REQUEST_ID / 8) turn->request_id = word;
        if (index == DB_SLOT_HEADER_COOKIE / 8) turn->cookie = word;
        if (index == DB_SLOT_HEADER_SENT_NS / 8) turn->sent_ns = word;
    }
#ifndef DB_DEFECT_NO_LIMIT
    db_count_waiting(at, client, found);
#endif
    db_block_sync();
    if (db_block_thread()) return;
    status = db_status_of_faults(found->faults);
    /* Only where it was counted. */
    if (status == DB_SLOT_STATUS_OK && found->waiting > at->credits) status = DB_SLOT_STATUS_NO_CREDIT;
    if (status == DB_SLOT_STATUS_OK && twice == sequence) status = DB_SLOT_STATUS_DUPLICATE_ID;
    if (status == DB_SLOT_STATUS_OK && refuses) status = refuses;
    db_store_relaxed32(db_word(at->sequences, slot), sequence);
#ifndef DB_DEFECT_SLOT_NOT_SET
    turn->slot = slot;
#endif
    turn->sequence = sequence;
    turn->client = client;
    turn->status = status;
    turn->model_slot = status == DB_SLOT_STATUS_OK ? turn->slot : spare;
    turn->begun_ns = db_clock_ns();
    turn->state = DB_TURN_REQUEST;
    if (at->steps) {
        struct db_steps *steps = db_steps_at(at, slot);
        steps->looks = found->looks;
        steps->begun = steps->takes = steps->taken = turn->begun_ns;
    }
}

/* How far `at` lies behind `begin` in a ring of `count`. */
DB_GPU_FN db_u32 db_behind(db_u32 at, db_u32 begin, db_u32 count) { return at >= begin ? at - begin : at + count - begin; }

/* Requests whose slots are still being sent: the nearest and the farthest of a thread; of none DB_NOWHERE and 0. */
struct db_blocked {
    db_near near, far;
};

/* One round over all slots: the nearest request of this thread. No two are as near, since each slot is one client's, and a client's slots
 * follow one another. */
DB_GPU_FN db_near db_round(const struct db_served *at, struct db_words words, db_u32 count, db_u32 first, struct db_blocked *blocked) {
    db_near near = DB_NOWHERE;
    db_u32 slot, nth, threads = db_block_threads();
    for (slot = db_block_thread(); slot < count; slot += DB_SEEN * threads) {
        struct db_seen seen[DB_SEEN];
        DB_UNROLL
        for (nth = 0; nth < DB_SEEN; nth++)
            if (slot + nth * threads < count) seen[nth] = db_see(words, slot + nth * threads);
        DB_UNROLL
        for (nth = 0; nth < DB_SEEN; nth++) {
            const db_u32 is = slot + nth * threads;
            const struct db_client *client;
            db_near it;
            int judged = is < count ? db_judge(at, is, seen[nth]) : DB_SLOT_EMPTY;
            if (judged == DB_SLOT_EMPTY) continue;
            client = db_client_at(at, seen[nth].owner);
            it = db_behind(client->place.first, first, count) + db_behind(is - client->place.first, client->turn, client->place.count);
            it = it << 32 | is;
            if (judged == DB_SLOT_READY) {
                if (it < near) near = it;
                continue;
            }
            if (it < blocked->near) blocked->near = it;
            if (it > blocked->far) blocked->far = it;
        }
    }
    return near;
}

/* Whether a request waits for nothing but its slot's completion that is nearer than the one to be served, or another client's: the next
 * wait looks for it. A client's own, behind that one, have time until a round finds nothing. */
DB_GPU_FN int db_passes(const struct db_served *at, const struct db_blocked *blocked, db_near nearest) {
    if (blocked->near == DB_NOWHERE) return 0;
    if (blocked->near < nearest) return 1;
    return db_load_relaxed32(db_word(at->owners, (db_u32)blocked->far)) != db_load_relaxed32(db_word(at->owners, (db_u32)nearest));
}

/* Notes the request's client. Its next turn begins behind the request, and the next search behind that client. One thread. */
DB_GPU_FN void db_pass(const struct db_served *at, struct db_turn *turn, db_u32 slot) {
    struct db_client *client = db_client_at(at, db_load_relaxed32(db_word(at->owners, slot)));
    const db_u32 begin = client->place.first, behind = begin + client->place.count;
#ifndef DB_DEFECT_FROM_SLOT_0
    client->turn = slot + 1 == behind ? 0 : slot + 1 - begin;
#endif
    turn->next = behind == at->slot_count ? 0 : behind;
    turn->first = begin;
    turn->count = client->place.count;
}

/* Takes completions: of requests; and of answers, once a round has found nothing, or the turn before has passed a slot that was being
 * sent, so that a slot is free when its next request comes. All threads, which meet behind it, since a slot's words are another thread's to see. */
DB_GPU_FN void db_poll(const struct db_served *at, int with_sends, struct db_found *found) {
    db_u32 index;
    for (index = db_block_thread(); index < at->client_count; index += db_block_threads()) {
        const struct db_client *client = db_client_at(at, index);
        const db_u64 tail = with_sends ? db_sent_tail(client) : ~0ull;
        db_u32 strays = at->arrival >= DB_ARRIVAL_COMPLETION ? db_poll_receives(at, index) : 0, sent;
        if (strays) atomicAdd(&found->strays, strays);
        if (!db_cqe_is_there(&client->send_cq, 0, tail)) continue;
        sent = db_poll_sends(at, index);
        if (sent) atomicAdd(&found->sent, sent);
    }
    db_block_sync();
}

/* One wait, by all threads of a block, which share `found`. A block of one thread walks over all slots, as the paper's release does. A round
 * looks at all slots side by side, so that its time depends on their number by no more than a load for as many slots as threads. */
DB_GPU_FN void db_wait_inputs(const struct db_served *told, struct db_turn *turn, struct db_found &found) {
    const struct db_served *at = told;
    struct db_wait wait = {0, at->cancel, 0}; /* the first thread's */
    /* What a round needs, before the first barrier: one trip with what stands there. */
    const struct db_words words = db_words_of(at);
    const db_u32 count = at->slot_count, arrival = at->arrival;
    const db_u64 marked = at->host_flag;
    db_u32 thread = db_block_thread(), over = 0;
#ifdef DB_DEFECT_SLOTS_IN_TURN
    db_u32 first = 0;
#else
    db_u32 first = turn->next;
#endif
    struct db_blocked blocked;
    db_near mine, nearest;
    int attend = 0, sends;
    if (thread == 0) {
        const db_u64 now = db_clock_ns();
        struct db_found none = {DB_NOWHERE, 0, 0, 0, turn->passed, 0, 0, 0, now};
        wait.deadline_ns = db_deadline_ns(now, at->wait_ns);
        none.attend = now - turn->attended_ns >= at->attend_ns;
        if (none.attend) turn->attended_ns = now;
        turn->passed = 0;
        found = none;
    }
    /* Across PCIe, and first: a kernel does not end before its stores have arrived. By a thread that seldom finds a request, since the
     * finder's fence waits for the stores of its warp. */
    if (thread == db_block_threads() - 1) DB_COUNT(at, turn, turns, 1);
    db_block_sync();
#ifdef DB_DEFECT_PASSED_FOR_LONG
    sends = 0;
#else
    sends = found.passed != 0;
#endif
    /* Or clients could not come and go while there are requests. */
    if (found.attend) db_attend(at, &found);
    for (;; sends = 1) {
        blocked.near = DB_NOWHERE;
        blocked.far = 0;
        if (sends || arrival >= DB_ARRIVAL_COMPLETION) db_poll(at, sends, &found);
        /* Before the slots' flags, so that all these loads take one trip. */
#ifdef DB_DEFECT_NO_MARK
        const db_u64 host = 0 & marked;
#else
        const db_u64 host = thread ? 0 : db_load_cqe_tail(marked);
#endif
        mine = db_round(at, words, count, first, &blocked);
        if (thread == 0) {
            int now = db_wait_over(&wait);
            if (host == db_slot_flag(0)) {
                db_end_chain(at);
                now = DB_ECANCELED;
            }
            if (now) found.over = (db_u32)now;
            attend |= now || !(wait.turns & 63);
        }
        if (mine != DB_NOWHERE) atomicMin(&found.nearest, mine);
        /* One barrier a round, after which all threads know the same. */
        if (!db_block_any(mine != DB_NOWHERE || blocked.near != DB_NOWHERE || attend)) continue;
        attend = 0;
        nearest = found.nearest;
        /* Here, since the first thread may write it again behind the barrier of db_attend. */
        over = found.over;
        if (nearest != DB_NOWHERE) break;
        db_attend(at, &found);
        if (over) break;
    }
    if (nearest != DB_NOWHERE) {
        /* The request, before all that this and later kernels read of it. */
        if (mine == nearest) db_acquire_cqe();
        if (db_passes(at, &blocked, nearest)) turn->passed = 1;
        db_block_sync();
        db_take(at, turn, (db_u32)nearest, &found);
        /* Behind the barrier in there: all threads have read what says where the search began. */
        if (thread == db_block_threads() - 1) db_pass(at, turn, (db_u32)nearest);
    }
    if (thread) return;
    if (nearest == DB_NOWHERE) {
        turn->state = over == DB_ECANCELED ? DB_TURN_STOP : DB_TURN_NONE;
#ifndef DB_DEFECT_ALWAYS_IN_SLOT
        turn->model_slot = at->slot_count;
#endif
    }
    if (found.sent) DB_COUNT(at, turn, sent, found.sent);
    if (found.strays) DB_COUNT(at, turn, strays, found.strays);
}

#ifndef DB_RESIDENT
/* Launch: one block, by a graph or by the host. */
extern "C" __global__ void __launch_bounds__(DB_MOST_THREADS) wait_inputs(const struct db_served *told, struct db_turn *turn) {
    __shared__ struct db_found found;
    db_wait_inputs(told, turn, found);
}
#endif

#endif /* DB_WAIT_CU */
