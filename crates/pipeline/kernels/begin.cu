/*! Begins a turn that the CPU launched: cpu-gpu's first kernel, in place of wait_inputs. Waits for nothing.
 *
 * The CPU has found the request, checked its prefix, and seen the WRITE of the slot's last answer complete.
 * It wrote the record before this launch, which orders the two. It does not write it again before `turns`,
 * stored with release, says that it was read.
 */
#include "asked.h"

/* Takes a client's send queue over. */
DB_GPU_FN void db_begin_join(const struct db_served *at, db_u32 index) {
    struct db_client *client = db_client_at(at, index);
    client->place = ((const struct db_place *)at->places)[index];
    client->sq = *(const struct db_sq *)client->place.queue.sq;
    client->dead = 0;
}

/* Launch: one thread, by the host. `ring`: of struct db_asked. */
extern "C" __global__ void begin_turn(struct db_served *at, struct db_turn *turn, const struct db_asked *ring) {
    const struct db_asked *asked = ring + turn->counts.turns % DB_ASKED_ENTRIES;
    struct db_client *client = db_client_at(at, asked->client);
    turn->state = DB_TURN_NONE;
    if (asked->what == DB_ASKED_JOIN) {
        db_begin_join(at, asked->client);
    } else if (asked->what == DB_ASKED_LEAVE) {
        *(struct db_sq *)client->place.queue.sq = client->sq;
    } else {
        client->sq.consumer = asked->completed;
        at->arrival = asked->arrival;
        turn->slot = asked->slot;
        turn->sequence = asked->sequence;
        turn->client = asked->client;
        turn->status = asked->status;
        turn->request_id = asked->request_id;
        turn->cookie = asked->cookie;
        turn->sent_ns = asked->sent_ns;
        turn->begun_ns = db_clock_ns();
        turn->first = client->place.first;
        turn->count = client->place.count;
        turn->state = DB_TURN_REQUEST;
    }
    /* Behind all reads of the record and the place: the CPU writes both again once it has seen this count. */
    db_store_release_sys64((db_u64) & ((struct db_counts *)at->counts)->turns, ++turn->counts.turns);
}
