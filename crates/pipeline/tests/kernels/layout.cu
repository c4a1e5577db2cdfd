/*! Tells the offsets and sizes of pipeline.h's structs, in the order of the test in src/gpu/layout.rs. */
#include "asked.h"

#define AT(type, field) __builtin_offsetof(struct type, field)
#define ALL5(t, a, b, c, d, e) AT(t, a), AT(t, b), AT(t, c), AT(t, d), AT(t, e)
#define SIZE(type) sizeof(struct type)

/* Launch: one thread. Writes `count` words at most. */
extern "C" __global__ void layout(db_u32 *words, db_u32 count) {
    const db_u64 all[] = {
        ALL5(db_counts, turns, answered, refused, sent, strays), SIZE(db_counts),
        ALL5(db_turn, state, slot, sequence, client, status), ALL5(db_turn, request_id, cookie, sent_ns, begun_ns, attended_ns),
        AT(db_turn, model_slot), AT(db_turn, next), AT(db_turn, first), AT(db_turn, count), AT(db_turn, counts), SIZE(db_turn),
        AT(db_lane, cancel), AT(db_lane, next), SIZE(db_lane),
        AT(db_lanes, runs), AT(db_lanes, lanes), SIZE(db_lanes),
        ALL5(db_place, queue, answers, answer_flags, answers_rkey, flags_rkey), ALL5(db_place, lkey, first, count, sequence, wanted),
        ALL5(db_place, done, unreliable, flushed, answered, refused), AT(db_place, end), SIZE(db_place),
        ALL5(db_client, place, sq, rq, send_cq, receive_cq), ALL5(db_client, send_released, receive_released, acted, dead, turn),
        AT(db_client, answered), AT(db_client, refused), AT(db_client, progress_ns), SIZE(db_client),
        ALL5(db_served, slots, slots_nic, slot_stride, answer, flags), AT(db_served, flag_stride), AT(db_served, awaited), AT(db_served, words), AT(db_served, sending),
        ALL5(db_served, clients, places, cancel, counts, wait_ns), ALL5(db_served, patience_ns, attend_ns, ends, told, steps),
        ALL5(db_served, traced, host_flag, slot_count, client_count, arrival), AT(db_served, model_id),
        ALL5(db_served, request_tensors, answer_tensors, request_tail, answer_tail, refuses), AT(db_served, traced_count),
        AT(db_served, credits),
        ALL5(db_served, answer_stride, request_table, answer_table, inputs, outputs), SIZE(db_served),
        AT(db_slot_words, owner), AT(db_slot_words, sending), AT(db_slot_words, twice), SIZE(db_slot_words),
        AT(db_told, slot), AT(db_told, client), AT(db_told, status), AT(db_told, number), SIZE(db_told),
        ALL5(db_steps, arrived, looks, begun, takes, taken), ALL5(db_steps, puts, put, rung, have_taken, have_put), SIZE(db_steps),
        ALL5(db_traced, steps, slot, client, status, number), SIZE(db_traced),
        ALL5(db_asked, what, slot, sequence, client, status), ALL5(db_asked, arrival, request_id, cookie, sent_ns, completed),
        SIZE(db_asked)};
    for (db_u32 index = 0; index < sizeof(all) / 8 && index < count; index++) words[index] = (db_u32)all[index];
}
