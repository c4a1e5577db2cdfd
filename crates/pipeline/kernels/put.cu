/*! Copies the model's outputs into the answer of the slot: the kernel behind the model, which waits for nothing. The WRITE of the
 * answer before has completed, or wait_inputs had passed the slot.
 */
#ifndef DB_PUT_CU
#define DB_PUT_CU

#include "pipeline.h"

/* Marks the client's requests that have come with the number of the one that is served: they are refused in their turn. A request that
 * comes between here and the answer's doorbell is not seen. */
DB_GPU_FN void db_mark_twice(const struct db_served *at, const struct db_turn *turn, db_u32 me, db_u32 all) {
    const struct db_place *place = &db_client_at(at, turn->client)->place;
    db_u32 nth;
    for (nth = me; nth < place->count; nth += all) {
        db_u32 slot = place->first + nth;
        if (slot == turn->slot || db_look(at, slot) == DB_SLOT_EMPTY) continue;
        /* The request's number lies in the same memory as its flag and was written before. */
        db_acquire_cqe();
        if (db_load_relaxed64((const db_u64 *)(db_slot_at(at, slot) + DB_SLOT_HEADER_REQUEST_ID)) != turn->request_id) continue;
        db_store_relaxed32(db_word(at->twice, slot), db_slot_next(db_load_relaxed32(db_word(at->sequences, slot))));
    }
}

#ifndef DB_RESIDENT
/* Launch: any number of blocks and threads. */
extern "C" __global__ void put_outputs(const struct db_served *at, const struct db_turn *turn) {
    db_u32 me = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x, tensor;
    if (turn->state != DB_TURN_REQUEST || turn->status != DB_SLOT_STATUS_OK) return;
#ifdef DB_DEFECT_ONE_THREAD
    if (me) return;
#endif
    if (at->steps && me == 0) db_steps_at(at, turn->slot)->puts = db_clock_ns();
    /* Else the CPU has seen to it. */
    if (at->twice) db_mark_twice(at, turn, me, all);
    for (tensor = 0; tensor < at->answer_tensors; tensor++) {
        db_u64 to = db_answer_at(at, turn->slot) + db_tensor_offset(at->answer_table, tensor);
#ifdef DB_DEFECT_REVERSED_COPY
        DB_COPY_SHARE(at->outputs[tensor], to, db_tensor_bytes(at->answer_table, tensor), me, all, db_store_segment);
#else
        DB_COPY_SHARE(to, at->outputs[tensor], db_tensor_bytes(at->answer_table, tensor), me, all, db_store_segment);
#endif
    }
    if (at->steps) db_note_end(&db_steps_at(at, turn->slot)->put, &db_steps_at(at, turn->slot)->have_put);
}
#endif

#endif /* DB_PUT_CU */
