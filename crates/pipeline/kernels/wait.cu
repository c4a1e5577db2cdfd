/*! Waits for a request, reads its prefix once and checks it: the first kernel of a turn.
 *
 * Clients have their turn, and each client's slots: the search begins behind the slots of the client served
 * last. A slot is passed while the NIC may still read its last answer: the model and send_outputs never wait.
 * A wait ends by a request, the cancel word, the host's own slot marked as stop, a queue that fails, or after
 * `wait_ns`. It looks across PCIe (cancel word, places, completions) each 64th round, after `attend_ns`, and
 * when only a slot that is being sent has a request. Checked: magic, version, status, sequence, slot, model
 * and table of tensors; that the request's number is not outstanding (send_outputs marks those). No more of a
 * client's requests may wait than its credits allow. Beside a turn that runs (io_block.h) its request is
 * outstanding and takes a credit, unless it was refused. Each DB_BESIDE_ROUNDS-th round then looks for
 * answers' completions, and that turn's end ends the wait.
 */
#ifndef DB_WAIT_CU
#define DB_WAIT_CU

#include "members.h"

/* A request that a round has found, as one number, the least the nearest. High half: slots from the begin of
 * the search to its client's, plus those from that client's turn to it. Low half: its slot. */
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
    db_u32 sequence, client, twice; /* the finder's, of the request: `twice` as in db_slot_words */
    db_u32 busy; /* db_client_beside() */
    db_u32 held; /* that client is to leave: nothing more is looked for before its answer is sent */
    db_u64 looks; /* when the wait began */
};

/* What runs meanwhile, where something does (io_block.h). */
struct db_beside {
    const db_u32 *done;         /* the last turn that is done */
    db_u32 turn;                /* the one that runs */
    const struct db_turn *runs; /* null: nothing runs */
};

/* The client whose request runs, or DB_NO_CLIENT. */
DB_GPU_FN db_u32 db_client_beside(struct db_beside beside) {
    return beside.runs && beside.runs->state == DB_TURN_REQUEST ? beside.runs->client : DB_NO_CLIENT;
}

/* Whether a turn is done. The next one may be too, since it was offered. */
DB_GPU_FN int db_is_done(db_u32 done, db_u32 turn) { return (int)(done - turn) >= 0; }

/* How a wait ends beside what db_wait_over() says: the turn that ran is done. */
#define DB_OVER_DONE 1

#define DB_FAULT_HEADER 1u
#define DB_FAULT_SEQUENCE 2u
#define DB_FAULT_MODEL 4u
#define DB_FAULT_TENSORS 8u

/* What lies across PCIe: places that the host has changed, and completions. All threads, which meet behind
 * it. A client whose request runs stays. */
DB_GPU_FN_OUTLINED void db_attend(const struct db_served *at, struct db_found *found) {
    db_u32 index;
    for (index = db_block_thread(); index < at->client_count; index += db_block_threads()) {
        const struct db_place *place = (const struct db_place *)at->places + index;
        /* With the completions' trip: `wanted` is its low half. */
        const db_u64 wanted = db_load_cqe_tail((db_u64)&place->wanted);
        db_u32 sent = db_poll_sends(at, index);
#ifndef DB_DEFECT_NOT_HELD
        if (index == found->busy) {
            if ((db_u32)wanted != db_client_at(at, index)->acted) found->held = 1;
        } else
#endif
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

/* Counts a client's requests that wait for an answer, if it may have fewer than slots. All threads. */
DB_GPU_FN void db_count_waiting(const struct db_served *at, const struct db_turn *turn, struct db_found *found) {
    const struct db_look look = db_look_of(at, 0);
    const db_u32 end = turn->first + turn->count;
    db_u32 base;
    if (db_credits_of(at, turn->count) == turn->count) return;
    for (base = turn->first; base < end; base += DB_SEEN * look.threads) {
        const db_u32 unreliable = db_client_at(at, found->client)->place.unreliable;
        db_u64 flag[DB_SEEN];
        const db_u32 seen = db_look_at(look, base, end, flag);
        const db_u32 waiting = seen ? db_whole_of(at, look, base, seen, flag, unreliable) : 0;
        if (waiting) atomicAdd(&found->waiting, (db_u32)__popc(waiting));
    }
}

/* Takes the request of a slot: a thread a word of its prefix, each read once. */
DB_GPU_FN void db_take(const struct db_served *at, struct db_turn *turn, db_u32 slot, struct db_found *found, struct db_beside beside) {
    const db_u32 sequence = found->sequence, client = found->client;
    const int is_beside_own = client == found->busy && beside.runs->status == DB_SLOT_STATUS_OK;
#ifdef DB_DEFECT_TWICE
    const db_u32 twice = 0;
#else
    const db_u32 twice = found->twice;
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
    db_count_waiting(at, turn, found);
#endif
    db_block_sync();
    if (db_block_thread()) return;
    status = db_status_of_faults(found->faults);
    /* Only where it was counted. */
    if (status == DB_SLOT_STATUS_OK && found->waiting && found->waiting + is_beside_own > at->credits)
        status = DB_SLOT_STATUS_NO_CREDIT;
    if (status == DB_SLOT_STATUS_OK && twice == sequence) status = DB_SLOT_STATUS_DUPLICATE_ID;
#ifndef DB_DEFECT_TWICE
    if (status == DB_SLOT_STATUS_OK && is_beside_own && turn->request_id == beside.runs->request_id)
        status = DB_SLOT_STATUS_DUPLICATE_ID;
#endif
    if (status == DB_SLOT_STATUS_OK && at->refuses) status = at->refuses;
    /* The client writes there again once it has the answer, which is sent behind this. */
    db_store_relaxed64((db_u64 *)(at->flags + slot * at->flag_stride), 0);
    db_store_relaxed32(db_awaited_at(at, slot), db_slot_next(sequence));
    db_store_relaxed32(&db_words_at(at, slot)->sending, 1);
#ifndef DB_DEFECT_SLOT_NOT_SET
    turn->slot = slot;
#endif
    turn->sequence = sequence;
    turn->client = client;
    turn->status = status;
    turn->model_slot = status == DB_SLOT_STATUS_OK ? turn->slot : at->slot_count;
    turn->begun_ns = db_clock_ns();
    turn->state = DB_TURN_REQUEST;
    if (at->steps) {
        struct db_steps *steps = db_steps_at(at, slot);
        steps->looks = found->looks;
        steps->begun = steps->takes = steps->taken = turn->begun_ns;
    }
}

/* Rounds between two looks for completions while a turn runs. */
#define DB_BESIDE_ROUNDS 8u

/* How far `at` lies behind `begin` in a ring of `count`. */
DB_GPU_FN db_u32 db_behind(db_u32 at, db_u32 begin, db_u32 count) { return at >= begin ? at - begin : at + count - begin; }

/* The nearest request of a thread, if there is one, and what its slot and its client have. */
struct db_mine {
    db_near near;
    struct db_slot_words words;
    db_u32 sequence, first, count;
};

/* The client whose request a thread has considered last. */
struct db_client_slots {
    db_u32 owner, first, count, turn, unreliable;
};

/* Its fields side by side, in one trip. */
DB_GPU_FN struct db_client_slots db_slots_of(const struct db_served *at, db_u32 owner) {
    const struct db_client *client = db_client_at(at, owner);
    const struct db_client_slots loaded = {owner, client->place.first, client->place.count, client->turn, client->place.unreliable};
    return loaded;
}

/* Requests whose slots are still being sent: a thread's nearest and farthest; of none DB_NOWHERE and 0. */
struct db_blocked {
    db_near near, far;
    db_u32 owner; /* of the farthest */
};

/* Compares a request with those that the thread has found in this round. */
DB_GPU_FN void db_consider(const struct db_served *at, struct db_look look, db_u32 slot, db_u32 first, struct db_client_slots *of_client,
                           struct db_mine *mine, struct db_blocked *blocked) {
    const struct db_slot_words words = db_load_words(db_words_at(at, slot));
    const db_u32 sequence = db_load_awaited(look.awaited, slot);
    /* Once more, in the trip of those two. */
    const db_u64 flag = db_flag_of(look, slot);
    db_near near;
    if (!db_is_next(flag, sequence)) return;
    if (words.owner != of_client->owner) *of_client = db_slots_of(at, words.owner);
    near = db_behind(of_client->first, first, at->slot_count) + db_behind(slot - of_client->first, of_client->turn, of_client->count);
    near = near << 32 | slot;
    if (!db_is_whole(at, slot, sequence, of_client->unreliable)) return;
    if (db_is_sending(at, slot, words)) {
        if (near < blocked->near) blocked->near = near;
        if (near >= blocked->far) {
            blocked->far = near;
            blocked->owner = words.owner;
        }
    } else if (near < mine->near) {
        mine->near = near;
        mine->words = words;
        mine->sequence = sequence;
        mine->first = of_client->first;
        mine->count = of_client->count;
    }
}

/* One round over all slots; `last`: the client served last, mostly the next one too. No two requests are as
 * near, since each slot is one client's, and a client's slots follow one another. */
DB_GPU_FN void db_round(const struct db_served *at, struct db_look look, db_u32 count, db_u32 first, db_u32 last,
                        struct db_mine *mine, struct db_blocked *blocked) {
    /* In the trip of the first look. */
    struct db_client_slots of_client = db_slots_of(at, last);
    db_u32 base;
    for (base = 0; base < count; base += DB_SEEN * look.threads) {
        db_u64 flag[DB_SEEN];
        db_u32 found = db_look_at(look, base, count, flag);
        for (; found; found &= found - 1) db_consider(at, look, db_first_of(look, base, found), first, &of_client, mine, blocked);
    }
}

/* Whether a request that waits only for its slot's completion is nearer than the served one, or another
 * client's: the next wait looks for it. A client's own later ones have time until a round finds nothing. */
DB_GPU_FN int db_passes(const struct db_blocked *blocked, db_near nearest, db_u32 client) {
    return blocked->near != DB_NOWHERE && (blocked->near < nearest || blocked->owner != client);
}

/* The finder tells the others of its request, and notes its client: its next turn begins behind the request,
 * the next search behind the client. All threads have read where the search began. */
DB_GPU_FN void db_tell_found(const struct db_served *at, struct db_turn *turn, const struct db_mine *mine, struct db_found *found) {
    const db_u32 behind = mine->first + mine->count;
    db_u32 next = (db_u32)mine->near + 1 - mine->first;
#ifdef DB_DEFECT_FROM_SLOT_0
    next = 0;
#endif
    found->sequence = mine->sequence;
    found->client = mine->words.owner;
    found->twice = mine->words.twice;
    db_client_at(at, found->client)->turn = next == mine->count ? 0 : next;
    turn->next = behind == at->slot_count ? 0 : behind;
    turn->first = mine->first;
    turn->count = mine->count;
}

/* Takes completions of requests. Takes answers' once a round found nothing or the turn before passed a slot
 * being sent, to free it for its next request. All threads, which meet: others see a slot's words. */
DB_GPU_FN_OUTLINED void db_poll(const struct db_served *at, int with_sends, struct db_found *found) {
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

/* One wait, by all threads of a block, in whose shared memory `at`, `turn` and `found` lie. A single thread
 * walks over all slots, as the paper's release does. A round takes one trip for DB_SEEN slots a thread. */
DB_GPU_FN void db_wait_inputs(const struct db_served *at, struct db_turn *turn, struct db_found &found, struct db_beside beside) {
    struct db_wait wait = {0, at->cancel, 0}; /* the first thread's */
    const struct db_look look = db_look_of(at, 0);
    const db_u32 count = at->slot_count, arrival = at->arrival, thread = db_block_thread();
#ifdef DB_DEFECT_SLOTS_IN_TURN
    const db_u32 first = 0;
#else
    const db_u32 first = turn->next;
#endif
    const db_u32 last = turn->client;
    struct db_blocked blocked = {};
    struct db_mine mine = {};
    db_near nearest = DB_NOWHERE;
    db_u32 over = 0, round;
    int attend = 0, sends;
    if (thread == 0) {
        const db_u64 now = db_clock_ns();
        struct db_found none = {DB_NOWHERE, 0, 0, 0, turn->passed, 0, 0, 0, 0, 0, 0, db_client_beside(beside), 0, now};
        wait.deadline_ns = db_deadline_ns(now, at->wait_ns);
        none.attend = now - turn->attended_ns >= at->attend_ns;
        if (none.attend) turn->attended_ns = now;
        turn->passed = 0;
        found = none;
    }
    /* Across PCIe, and first: a kernel does not end before its stores have arrived. By a thread that seldom
     * finds a request, since the finder's fence waits for its warp's stores. */
    if (thread == db_block_threads() - 1) DB_COUNT(at, &turn->counts, turns, 1);
    db_block_sync();
#ifdef DB_DEFECT_PASSED_FOR_LONG
    sends = 0;
#else
    sends = found.passed != 0;
#endif
    /* Or clients could not come and go while there are requests. */
    if (found.attend) db_attend(at, &found);
    for (round = 1; !found.held; round++, sends = !beside.runs || round % DB_BESIDE_ROUNDS == 0) {
        mine.near = blocked.near = DB_NOWHERE;
        blocked.far = 0;
        if (sends || arrival >= DB_ARRIVAL_COMPLETION) db_poll(at, sends, &found);
        /* Before the slots' flags, so that all these loads take one trip. */
#ifdef DB_DEFECT_NO_MARK
        const db_u64 host = 0;
#else
        const db_u64 host = thread ? 0 : db_load_cqe_tail(at->host_flag);
#endif
#ifdef DB_DEFECT_LOOKS_ON
        const db_u32 done = beside.turn - 1;
#else
        const db_u32 done = thread || !beside.runs ? beside.turn - 1 : db_load_relaxed32(beside.done);
#endif
        db_round(at, look, count, first, last, &mine, &blocked);
        if (thread == 0) {
            int now = db_wait_over(&wait);
            if (host == db_slot_flag(0)) {
                db_end_chain(at);
                now = DB_ECANCELED;
            }
            if (!now && db_is_done(done, beside.turn)) now = DB_OVER_DONE;
            if (now) found.over = (db_u32)now;
            attend |= now || !(wait.turns & 63);
        }
        if (mine.near != DB_NOWHERE) atomicMin(&found.nearest, mine.near);
        /* One barrier a round: then all agree. Beside a turn a blocked slot alone is seldom worth a trip. */
        if (!db_block_any(mine.near != DB_NOWHERE || (blocked.near != DB_NOWHERE && (sends || !beside.runs)) || attend)) continue;
        attend = 0;
        nearest = found.nearest;
        /* Here, since the first thread may write it again behind the barrier of db_attend. */
        over = found.over;
        if (nearest != DB_NOWHERE || over == DB_OVER_DONE) break;
        db_attend(at, &found);
        if (thread == 0) turn->attended_ns = db_clock_ns();
        if (over) break;
    }
    if (nearest != DB_NOWHERE) {
        if (mine.near == nearest) {
            /* The request, before all that this and later kernels read of it. */
            db_acquire_cqe();
            db_tell_found(at, turn, &mine, &found);
        }
        db_block_sync();
        if (db_passes(&blocked, nearest, found.client)) turn->passed = 1;
        db_take(at, turn, (db_u32)nearest, &found, beside);
    }
    if (thread) return;
    if (nearest == DB_NOWHERE) {
        turn->state = over == DB_ECANCELED ? DB_TURN_STOP : DB_TURN_NONE;
#ifndef DB_DEFECT_ALWAYS_IN_SLOT
        turn->model_slot = at->slot_count;
#endif
        /* The next wait attends. */
        if (found.held) turn->attended_ns = 0;
    }
    if (found.sent) DB_COUNT(at, &turn->counts, sent, found.sent);
    if (found.strays) DB_COUNT(at, &turn->counts, strays, found.strays);
}

#ifndef DB_RESIDENT
/* Launch: one block, by a graph or by the host. */
extern "C" __global__ void __launch_bounds__(DB_MOST_THREADS) wait_inputs(const struct db_served *served, struct db_turn *turn) {
    __shared__ struct db_found found;
    __shared__ struct db_own own;
    db_copy_own(own, served, turn);
    db_wait_inputs(&own.served, &own.turn, found, {0, 0, 0});
    db_block_sync();
    db_copy_back(own, turn);
}
#endif

#endif /* DB_WAIT_CU */
