/*! Polling: CQEs into completions, blocks retired; queues after RESET. A part of doorbell.h, its includer.
 *
 * Follows `providers/mlx5/cq.c` of rdma-core.
 */
#ifndef DB_DOORBELL_POLL_H
#define DB_DOORBELL_POLL_H

#include "doorbell.h"

/* enum ibv_wc_status of a syndrome. */
DB_FN db_u32 db_status_of(db_u32 syndrome) {
    switch (syndrome) {
    case DB_SYNDROME_LOCAL_LENGTH: return DB_WC_LOC_LEN_ERR;
    case DB_SYNDROME_LOCAL_QP_OPERATION: return DB_WC_LOC_QP_OP_ERR;
    case DB_SYNDROME_LOCAL_PROTECTION: return DB_WC_LOC_PROT_ERR;
    case DB_SYNDROME_WR_FLUSH: return DB_WC_WR_FLUSH_ERR;
    case DB_SYNDROME_MW_BIND: return DB_WC_MW_BIND_ERR;
    case DB_SYNDROME_BAD_RESPONSE: return DB_WC_BAD_RESP_ERR;
    case DB_SYNDROME_LOCAL_ACCESS: return DB_WC_LOC_ACCESS_ERR;
    case DB_SYNDROME_REMOTE_INVALID_REQUEST: return DB_WC_REM_INV_REQ_ERR;
    case DB_SYNDROME_REMOTE_ACCESS: return DB_WC_REM_ACCESS_ERR;
    case DB_SYNDROME_REMOTE_OPERATION: return DB_WC_REM_OP_ERR;
    case DB_SYNDROME_TRANSPORT_RETRY_EXCEEDED: return DB_WC_RETRY_EXC_ERR;
    case DB_SYNDROME_RNR_RETRY_EXCEEDED: return DB_WC_RNR_RETRY_EXC_ERR;
    case DB_SYNDROME_REMOTE_ABORTED: return DB_WC_REM_ABORT_ERR;
    default: return DB_WC_GENERAL_ERR;
    }
}

/* enum ibv_wc_opcode of the WQE opcode that a requester's CQE repeats. */
DB_FN db_u32 db_completed_opcode(db_u32 wire_opcode) {
    switch (wire_opcode) {
    case DB_OPCODE_RDMA_WRITE:
    case DB_OPCODE_RDMA_WRITE_IMM: return DB_WC_RDMA_WRITE;
    case DB_OPCODE_RDMA_READ: return DB_WC_RDMA_READ;
    case DB_OPCODE_ATOMIC_CS: return DB_WC_COMP_SWAP;
    case DB_OPCODE_ATOMIC_FA: return DB_WC_FETCH_ADD;
    default: return DB_WC_SEND;
    }
}

/* A CQE's last 8 bytes: opcode and QPN of the WQE, its counter, a signature, and the owner byte. One load
 * gives all that a send's completion needs. */
typedef char db_assert_tail[DB_CQE_WQE_COUNTER == DB_CQE_OPCODE_QPN + 4 && DB_CQE_OP_OWN == DB_CQE_OPCODE_QPN + 7 ? 1 : -1];
DB_FN db_u32 db_tail_owner(db_u64 tail) { return (db_u32)(tail >> 56); }
DB_FN db_u32 db_tail_opcode_qpn(db_u64 tail) { return db_be32((db_u32)tail); }

/* The CQE `ahead` of the next one. */
DB_FN db_u64 db_cqe_at(const struct db_cq *cq, db_u32 ahead) {
    return cq->ring + ((cq->consumer + ahead) & (cq->entries - 1)) * DB_CQE_BYTES;
}

/* Whether it was written. The owner bit flips each lap; before the first lap the opcode marks it invalid. */
DB_FN int db_cqe_is_there(const struct db_cq *cq, db_u32 ahead, db_u64 tail) {
    db_u32 owner = db_tail_owner(tail);
    return owner >> 4 != DB_CQE_INVALID && (owner & 1) == (((cq->consumer + ahead) & cq->entries) != 0);
}

/* Takes the next CQE, which is there with this tail: 1 or DB_POLL_COMPRESSED. After db_acquire_cqe(). */
DB_FN int db_read_cqe(struct db_cq *cq, db_u64 tail, struct db_completion *out) {
    db_u64 cqe = db_cqe_at(cq, 0);
    db_u32 owner = db_tail_owner(tail), opcode = owner >> 4, opcode_qpn = db_tail_opcode_qpn(tail);
    db_u32 format = owner & DB_CQE_FORMAT_MASK;
    if (format == DB_CQE_FORMAT_MASK) return DB_POLL_COMPRESSED;

    out->wr_id = 0;
    out->timestamp = 0;
    out->qpn = opcode_qpn & 0xffffff;
    out->wqe_index = db_be16((db_u16)(tail >> 32));
    out->status = format ? DB_WC_SCATTERED_TO_CQE : DB_WC_SUCCESS;
    out->syndrome = out->vendor_syndrome = 0;
    out->byte_len = 0;
    out->imm_data = 0;
    out->has_imm = 0;
    out->is_send = 0;
    out->opcode = DB_WC_RECV;
    switch (opcode) {
    case DB_CQE_REQUESTER:
        out->is_send = 1;
        out->opcode = db_completed_opcode(opcode_qpn >> 24);
        if (out->opcode == DB_WC_COMP_SWAP || out->opcode == DB_WC_FETCH_ADD) out->byte_len = DB_ATOMIC_BYTES;
        break;
    case DB_CQE_RESPONDER_WRITE_IMM:
        out->opcode = DB_WC_RECV_RDMA_WITH_IMM;
        out->has_imm = 1;
        out->imm_data = db_load32(cqe + DB_CQE_IMMEDIATE);
        break;
    case DB_CQE_RESPONDER_SEND: break;
    case DB_CQE_RESPONDER_SEND_IMM:
        out->has_imm = 1;
        out->imm_data = db_load32(cqe + DB_CQE_IMMEDIATE);
        break;
    case DB_CQE_REQUESTER_ERROR:
    case DB_CQE_RESPONDER_ERROR:
        out->is_send = opcode == DB_CQE_REQUESTER_ERROR;
        out->syndrome = db_load_owner(cqe + DB_CQE_SYNDROME);
        out->vendor_syndrome = db_load_owner(cqe + DB_CQE_VENDOR_SYNDROME);
        out->status = db_status_of(out->syndrome);
        break;
    default: out->status = DB_WC_GENERAL_ERR; break;
    }
    /* A second trip, for what arrived and for what was read. */
    if (!out->is_send || out->opcode == DB_WC_RDMA_READ) out->byte_len = db_be32(db_load32(cqe + DB_CQE_BYTE_COUNT));
    if (!out->is_send)
        out->timestamp = (db_u64)db_be32(db_load32(cqe + DB_CQE_TIMESTAMP)) << 32 | db_be32(db_load32(cqe + DB_CQE_TIMESTAMP + 4));
    cq->consumer++;
    return 1;
}

/* Takes the next CQE, if any: 1, 0 or DB_POLL_COMPRESSED. Fills all but wr_id, which the queue of `out->qpn`
 * knows: call db_retire_send() or db_retire_recv() next, and db_release() after the last of a batch. */
DB_FN int db_take_cqe(struct db_cq *cq, struct db_completion *out) {
    db_u64 tail = db_load_cqe_tail(db_cqe_at(cq, 0) + DB_CQE_OPCODE_QPN);
    if (!db_cqe_is_there(cq, 0, tail)) return 0;
    db_acquire_cqe();
    return db_read_cqe(cq, tail, out);
}

/* Looks in slots for the request whose WQE begins at block `at`, of which `outstanding` blocks are in use: 1
 * with its `wr_id` and the index behind it, or 0 when no request begins there. */
DB_FN int db_recall(const struct db_sq *sq, db_u64 at, db_u64 outstanding, db_u64 *wr_id, db_u64 *end) {
    db_u64 further;
    for (further = 0; further < outstanding; further++) {
        const struct db_slot *slot = (const struct db_slot *)sq->slots + ((at + further) & (sq->blocks - 1));
        db_u64 behind = slot->end & ((1ull << DB_SLOT_BITS) - 1), blocks = behind - (at + further);
        /* A slot of an earlier lap: the request is of a row that ends further on. */
        if (blocks == 0 || blocks > outstanding - further) continue;
        if (further > slot->end >> DB_SLOT_BITS) return 0;
        *wr_id = slot->wr_id - further;
        *end = behind - further;
        return 1;
    }
    return 0;
}

/* Retires the blocks of the WQE that a send completion names and of all before it, which were unsignalled,
 * and fills in wr_id. A completion that names no outstanding WQE becomes DB_WC_STALE and retires nothing. */
DB_FN void db_retire_send(struct db_sq *sq, struct db_completion *c) {
    db_u64 outstanding = sq->rung - sq->consumer, ahead = (c->wqe_index - (db_u32)sq->consumer) & 0xffff, end;
    if (c->qpn != sq->qpn || ahead >= outstanding ||
        !db_recall(sq, sq->consumer + ahead, outstanding - ahead, &c->wr_id, &end)) {
        c->status = DB_WC_STALE;
        return;
    }
    sq->consumer = end;
}

/* Retires the receive that a completion names. Receives complete in order, so any but the oldest is of
 * another life of the queue: DB_WC_STALE, and no receive that the device still holds is retired. */
DB_FN void db_retire_recv(struct db_rq *rq, struct db_completion *c) {
    if (c->qpn != rq->qpn || rq->consumer == rq->producer || c->wqe_index != ((db_u32)rq->consumer & 0xffff)) {
        c->status = DB_WC_STALE;
        return;
    }
    c->wr_id = ((const db_u64 *)rq->wr_ids)[c->wqe_index & (rq->wqes - 1)];
    rq->consumer++;
}

/* Lets the device overwrite the CQEs taken so far: 24 bits of the consumer index. */
DB_FN void db_release(struct db_cq *cq) {
    db_release_cqes();
    db_store_record(cq->record, db_be32((db_u32)cq->consumer & 0xffffff));
}

/* ibv_poll_cq for a CQ of one QP: up to `max` completions with their requests' wr_id; their number, or
 * DB_POLL_COMPRESSED when the first is unreadable. `sq` or `rq` is null if that queue completes elsewhere. */
DB_FN int db_poll(struct db_cq *cq, struct db_sq *sq, struct db_rq *rq, struct db_completion *out, int max) {
    int taken = 0, more = 1;
    while (taken < max) {
        struct db_completion *c = &out[taken];
        more = db_take_cqe(cq, c);
        if (more <= 0) break;
        if (c->is_send && sq)
            db_retire_send(sq, c);
        else if (!c->is_send && rq)
            db_retire_recv(rq, c);
        else
            c->status = DB_WC_STALE;
        taken++;
    }
    if (taken) db_release(cq);
    return taken || more > 0 ? taken : more;
}

/* ---- After RESET --------------------------------------------------------------------------------------- */

/* The producer index with which a queue's next life begins: the device's 16 bits of it are 0, and no slot of
 * an earlier life can pass for one of this. */
DB_FN db_u64 db_next_life(db_u64 producer) { return (producer + 0xffff) & ~(db_u64)0xffff; }

/* Empties a send queue whose QP was moved to RESET, which flushes nothing and forgets everything. The
 * register half is kept: it belongs to the register, not to the queue's life. */
DB_FN void db_reset_send(struct db_sq *sq) {
    sq->producer = sq->rung = sq->consumer = db_next_life(sq->producer);
    db_store_record(sq->record, 0);
}

/* Likewise for a receive queue. */
DB_FN void db_reset_recv(struct db_rq *rq) {
    rq->producer = rq->consumer = 0;
    db_store_record(rq->record, 0);
}

/* Drops the CQEs that a QP left behind when it went to RESET: libmlx5 no longer does so for a CQ that mlx5dv
 * handed out. All of the CQ's QPs must be in RESET. Returns how many, or DB_POLL_COMPRESSED. */
DB_FN int db_drain(struct db_cq *cq) {
    struct db_completion dropped;
    int count = 0, more;
    while ((more = db_take_cqe(cq, &dropped)) > 0) count++;
    db_release(cq);
    return more < 0 ? more : count;
}

#endif /* DB_DOORBELL_POLL_H */
