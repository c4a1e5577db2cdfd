/*! Post to, ring and poll the queues of an mlx5 NIC: what libmlx5 does behind ibv_post_send, ibv_post_recv and
 * ibv_poll_cq, over plain structs that a GPU kernel can hold as well.
 *
 * Follows `providers/mlx5/{qp,cq}.c` of rdma-core in what it writes, byte for byte (INV-5), and `mlx5dv.h` in where.
 * Offsets and numbers are generated (`mlx5_layout.h`, INV-14); what depends on the machine is in `order.h`.
 *
 * A queue is taken over right after it was created, or after it went to RESET: libmlx5's own indices are private, so a
 * queue is posted to and polled either through libmlx5 or through these routines, never both. One queue has one
 * poster, and its CQ belongs to the same thread; nothing here locks. The QP must have been created with
 * scatter-to-CQE off (MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE): else short messages land in the CQE, not in the buffer.
 *
 * Left out: UD, memory windows, SEND with invalidate, compressed and 128-byte CQEs, shared receive queues.
 */
#ifndef DB_DOORBELL_H
#define DB_DOORBELL_H

#include "mlx5_layout.h"
#include "order.h"

/* ---- Numbers of libibverbs, for callers that do not include it -------------------------------------------------- */

/* What a call returns: 0, or the errno that libibverbs gives in the same place. */
#define DB_ENOMEM 12      /* the queue is full: poll, then try again */
#define DB_EINVAL 22      /* the request can never be posted on this queue */
#define DB_EOPNOTSUPP 95  /* the queue's service has no such operation */

/* enum ibv_wr_opcode */
#define DB_WR_RDMA_WRITE 0u
#define DB_WR_RDMA_WRITE_WITH_IMM 1u
#define DB_WR_SEND 2u
#define DB_WR_SEND_WITH_IMM 3u
#define DB_WR_RDMA_READ 4u
#define DB_WR_ATOMIC_CMP_AND_SWP 5u
#define DB_WR_ATOMIC_FETCH_AND_ADD 6u

/* enum ibv_send_flags */
#define DB_SEND_FENCE 1u
#define DB_SEND_SIGNALED 2u
#define DB_SEND_SOLICITED 4u
#define DB_SEND_INLINE 8u

/* enum ibv_wc_status; from 0x100 on, the shim's own. */
#define DB_WC_SUCCESS 0u
#define DB_WC_LOC_LEN_ERR 1u
#define DB_WC_LOC_QP_OP_ERR 2u
#define DB_WC_LOC_PROT_ERR 4u
#define DB_WC_WR_FLUSH_ERR 5u
#define DB_WC_MW_BIND_ERR 6u
#define DB_WC_BAD_RESP_ERR 7u
#define DB_WC_LOC_ACCESS_ERR 8u
#define DB_WC_REM_INV_REQ_ERR 9u
#define DB_WC_REM_ACCESS_ERR 10u
#define DB_WC_REM_OP_ERR 11u
#define DB_WC_RETRY_EXC_ERR 12u
#define DB_WC_RNR_RETRY_EXC_ERR 13u
#define DB_WC_REM_ABORT_ERR 16u
#define DB_WC_GENERAL_ERR 21u
/* The device put the payload into the CQE: the queue was created with scatter-to-CQE on. The buffer was not written. */
#define DB_WC_SCATTERED_TO_CQE 0x100u
/* A completion of a queue that was not given to the poll, or of a request that is not outstanding. */
#define DB_WC_STALE 0x101u

/* enum ibv_wc_opcode */
#define DB_WC_SEND 0u
#define DB_WC_RDMA_WRITE 1u
#define DB_WC_RDMA_READ 2u
#define DB_WC_COMP_SWAP 3u
#define DB_WC_FETCH_ADD 4u
#define DB_WC_RECV 128u
#define DB_WC_RECV_RDMA_WITH_IMM 129u

/* db_poll: the CQ holds a block of compressed CQEs, which these routines cannot read. The CQ must be made without. */
#define DB_POLL_COMPRESSED (-1)

/* ---- Requests and completions ----------------------------------------------------------------------------------- */

/* struct ibv_sge, field for field. */
struct db_sge {
    db_u64 addr;
    db_u32 length;
    db_u32 lkey;
};

/* struct ibv_send_wr without the list pointer: a list is an array, so that its elements can be written side by side. */
struct db_send_wr {
    db_u64 wr_id;
    const struct db_sge *sg_list;
    db_u32 num_sge;
    db_u32 opcode;     /* DB_WR_* */
    db_u32 send_flags; /* DB_SEND_* */
    db_u32 imm_data;   /* in network order, as in ibv_send_wr */
    db_u64 remote_addr;
    db_u64 compare_add;
    db_u64 swap;
    db_u32 rkey;
};

/* struct ibv_recv_wr without the list pointer. */
struct db_recv_wr {
    db_u64 wr_id;
    const struct db_sge *sg_list;
    db_u32 num_sge;
};

/* What struct ibv_wc says, for the operations above. After an error only wr_id, qpn, is_send, status, syndrome and
 * vendor_syndrome mean anything, as with libibverbs. */
struct db_completion {
    db_u64 wr_id;
    db_u32 status;          /* DB_WC_* */
    db_u32 opcode;          /* DB_WC_* */
    db_u32 byte_len;        /* received bytes, or bytes read; 8 for atomics, else 0 */
    db_u32 imm_data;        /* in network order; valid when has_imm */
    db_u32 has_imm;
    db_u32 qpn;             /* local QP */
    db_u32 wqe_index;       /* 16-bit index of the WQE */
    db_u32 is_send;
    db_u32 syndrome;        /* as the device wrote it, 0 on success */
    db_u32 vendor_syndrome;
};

/* ---- Queues ----------------------------------------------------------------------------------------------------- */

#define DB_ORDER_STRICT 0u /* a fence between doorbell record and register */
#define DB_ORDER_EARLY 1u  /* none: the register write's own index keeps the device right */

/* Always an 8-byte write to the register's first half, as every GPU peer does. Alternating would give the device a second
 * line to fetch: measured as a tenth of a lone post on the software NIC. */
#define DB_DOORBELL_8_BYTES 0u
/* As libmlx5: a lone WQE is pushed through the register as a whole, and each ring, of either kind, takes the other half,
 * so that one may fill while the other drains. */
#define DB_DOORBELL_BLUEFLAME 1u

/* Which requests a service takes (IBTA vol. 1 table 40): bit n stands for DB_WR_ n. */
#define DB_OPCODES_RC 0x7fu
#define DB_OPCODES_UC 0x0fu

/* What the queue remembers of a posted request, at the slot of its first block. Of a row of requests of one block each, whose
 * wr_ids count up, only the last one has a slot that says so; those of the others keep what an earlier lap left there. */
struct __attribute__((aligned(16))) db_slot { /* a GPU stores it as a whole */
    db_u64 wr_id;
    db_u64 end; /* producer index behind its last block, in the low DB_SLOT_BITS; above, how many requests of its row are before it */
};

#define DB_SLOT_BITS 48

/* A send queue. `ring`, `record` and `reg` come from mlx5dv_init_obj; addresses are integers, since host and GPU may
 * see the same memory at different ones. Indices count blocks, never wrap in software, and are cut to 16 bits for the
 * device. */
struct db_sq {
    db_u64 ring;       /* block 0 */
    db_u64 record;     /* send word of the doorbell record */
    db_u64 reg;        /* first half of the doorbell register */
    db_u64 slots;      /* `blocks` struct db_slot, 0 at first, the owner's memory, 16-byte aligned */
    db_u32 blocks;     /* a power of two, at most DB_MAX_BLOCKS */
    db_u32 qpn;
    db_u32 half_bytes; /* of the register; 0 when BlueFlame must not be used */
    db_u32 max_sge;
    db_u32 max_inline;
    db_u32 opcodes;          /* DB_OPCODES_* */
    db_u32 signal_all;       /* sq_sig_all of the create call, 0 or 1 */
    db_u32 order;            /* DB_ORDER_* */
    db_u32 doorbell;         /* DB_DOORBELL_* */
    db_u32 register_offset;  /* half that the next ring uses */
    db_u64 doorbell_word;    /* first 8 bytes of the last WQE, as in memory */
    db_u64 producer;         /* next free block */
    db_u64 rung;             /* what the device has been told */
    db_u64 consumer;         /* blocks given back by completions */
};

/* A receive queue. Indices count WQEs. */
struct db_rq {
    db_u64 ring;
    db_u64 record; /* receive word of the doorbell record */
    db_u64 wr_ids; /* `wqes` 64-bit words, the owner's memory */
    db_u32 wqes;   /* a power of two */
    db_u32 stride; /* bytes */
    db_u32 qpn;
    db_u32 max_sge;
    db_u64 producer;
    db_u64 consumer;
};

/* A completion queue of 64-byte CQEs. */
struct db_cq {
    db_u64 ring;
    db_u64 record;  /* consumer word of the doorbell record */
    db_u32 entries; /* a power of two */
    db_u32 cqn;
    db_u64 consumer;
};

/* More would make the 16-bit index of a completion ambiguous. */
#define DB_MAX_BLOCKS 32768u

DB_FN int db_is_power_of_two(db_u32 value) { return value != 0 && (value & (value - 1)) == 0; }

/* Checks the sizes that the routines below rely on and empties the queue; the caller has filled in everything above
 * `register_offset`. `stride` is what mlx5dv says of the ring. 0 or DB_EINVAL. */
DB_FN int db_sq_init(struct db_sq *sq, db_u32 stride) {
    if (!db_is_power_of_two(sq->blocks) || sq->blocks > DB_MAX_BLOCKS || stride != DB_BLOCK_BYTES) return DB_EINVAL;
    if (!sq->ring || !sq->record || !sq->reg || !sq->slots) return DB_EINVAL;
    /* Segments and slots are stored 16 bytes at a time, which a GPU does not do elsewhere. */
#ifndef DB_DEFECT_NO_ALIGNMENT
    if ((sq->ring & 15) || (sq->record & 3) || (sq->reg & 7) || (sq->slots & 15)) return DB_EINVAL;
#endif
    sq->register_offset = 0;
    sq->producer = sq->rung = sq->consumer = 0;
    sq->doorbell_word = 0;
    return 0;
}

/* Likewise for a receive queue. */
DB_FN int db_rq_init(struct db_rq *rq) {
    if (!db_is_power_of_two(rq->wqes) || rq->wqes > DB_MAX_BLOCKS || !rq->ring || !rq->record || !rq->wr_ids)
        return DB_EINVAL;
    if (!db_is_power_of_two(rq->stride) || rq->stride < DB_SEGMENT_BYTES * rq->max_sge || rq->stride < DB_SEGMENT_BYTES)
        return DB_EINVAL;
    rq->producer = rq->consumer = 0;
    return 0;
}

/* Likewise for a CQ; `cqe_bytes` is what mlx5dv says. */
DB_FN int db_cq_init(struct db_cq *cq, db_u32 cqe_bytes) {
    if (!db_is_power_of_two(cq->entries) || cqe_bytes != DB_CQE_BYTES || !cq->ring || !cq->record) return DB_EINVAL;
    cq->consumer = 0;
    return 0;
}

/* ---- Posting ---------------------------------------------------------------------------------------------------- */

/* Two 32-bit fields side by side, as they lie in memory. */
DB_FN db_u64 db_pair(db_u32 first, db_u32 second) { return db_be64((db_u64)first << 32 | second); }

/* Segments are stored as two 8-byte halves, so their fields must lie in these. */
typedef char db_assert_control[DB_CTRL_OPMOD_IDX_OPCODE == 0 && DB_CTRL_QPN_DS == 4 && DB_CTRL_FM_CE_SE == 11 &&
                                       DB_CTRL_IMMEDIATE == 12 ? 1 : -1];
typedef char db_assert_remote[DB_REMOTE_ADDRESS == 0 && DB_REMOTE_RKEY == 8 ? 1 : -1];
typedef char db_assert_atomic[DB_ATOMIC_SWAP_ADD == 0 && DB_ATOMIC_COMPARE == 8 ? 1 : -1];
typedef char db_assert_data[DB_DATA_BYTE_COUNT == 0 && DB_DATA_LKEY == 4 && DB_DATA_ADDRESS == 8 ? 1 : -1];

/* Where the next segment goes: a WQE that reaches the end of the ring continues at block 0. */
DB_FN db_u64 db_wrap(const struct db_sq *sq, db_u64 at) {
    return at == sq->ring + (db_u64)sq->blocks * DB_BLOCK_BYTES ? sq->ring : at;
}

/* Wire opcode of a request. */
DB_FN db_u32 db_wire_opcode(db_u32 opcode) {
    switch (opcode) {
    case DB_WR_RDMA_WRITE: return DB_OPCODE_RDMA_WRITE;
    case DB_WR_RDMA_WRITE_WITH_IMM: return DB_OPCODE_RDMA_WRITE_IMM;
    case DB_WR_SEND: return DB_OPCODE_SEND;
    case DB_WR_SEND_WITH_IMM: return DB_OPCODE_SEND_IMM;
    case DB_WR_RDMA_READ: return DB_OPCODE_RDMA_READ;
    case DB_WR_ATOMIC_CMP_AND_SWP: return DB_OPCODE_ATOMIC_CS;
    default: return DB_OPCODE_ATOMIC_FA;
    }
}

DB_FN int db_is_atomic(db_u32 opcode) {
    return opcode == DB_WR_ATOMIC_CMP_AND_SWP || opcode == DB_WR_ATOMIC_FETCH_AND_ADD;
}

DB_FN int db_has_remote_address(db_u32 opcode) { return opcode != DB_WR_SEND && opcode != DB_WR_SEND_WITH_IMM; }

/* Bytes of all entries together; more than 32 bits hold are too long for any device, and must not wrap around. */
DB_FN db_u64 db_payload_bytes(const struct db_send_wr *wr) {
    db_u64 bytes = 0;
    db_u32 i;
    for (i = 0; i < wr->num_sge; i++) bytes += wr->sg_list[i].length;
    return bytes;
}

/* Whether no data pointer can say this length: it has 31 bits, of which 0 stands for 2 GiB, and the top one is DB_INLINE_FLAG. */
DB_FN int db_is_no_length(db_u32 length) { return length - 1 >= DB_INLINE_FLAG - 1; }

/* Length of a WQE in 16-byte units, or 0 when the request does not fit this queue's limits. */
DB_FN db_u32 db_wqe_units(const struct db_sq *sq, const struct db_send_wr *wr) {
    db_u32 units = 1 + db_has_remote_address(wr->opcode), i;
    /* An atomic's old value comes back into exactly one word: see db_post_as(). */
    if (db_is_atomic(wr->opcode) || wr->num_sge > sq->max_sge) return 0;
    if (wr->send_flags & DB_SEND_INLINE) {
        db_u64 bytes = db_payload_bytes(wr);
        if (wr->opcode == DB_WR_RDMA_READ || bytes > sq->max_inline) return 0;
        if (bytes) units += ((db_u32)bytes + DB_INLINE_HEADER_BYTES + DB_SEGMENT_BYTES - 1) / DB_SEGMENT_BYTES;
    } else {
        /* Empty entries are skipped. */
        for (i = 0; i < wr->num_sge; i++) {
            if (wr->sg_list[i].length & DB_INLINE_FLAG) return 0;
            units += wr->sg_list[i].length != 0;
        }
    }
    return units <= DB_MAX_DS ? units : 0;
}

/* Inline payload behind its header; entries follow one another without a gap, across the end of the ring if need be.
 * The padding behind the last byte stays as it was, as with libmlx5. */
DB_FN void db_write_inline(const struct db_sq *sq, db_u64 at, const struct db_send_wr *wr) {
    db_u64 end = sq->ring + (db_u64)sq->blocks * DB_BLOCK_BYTES;
    db_u32 bytes = (db_u32)db_payload_bytes(wr), i;
    if (!bytes) return;
    db_store32(at, db_be32(DB_INLINE_FLAG | bytes));
    at += DB_INLINE_HEADER_BYTES;
    for (i = 0; i < wr->num_sge; i++) {
        db_u64 from = wr->sg_list[i].addr;
        db_u32 left = wr->sg_list[i].length;
        if (left > end - at) {
            db_u32 room = (db_u32)(end - at);
            db_copy(at, from, room);
            from += room;
            left -= room;
            at = sq->ring;
        }
        db_copy(at, from, left);
        at += left;
    }
}

/* Data pointers. */
DB_FN void db_write_pointers(const struct db_sq *sq, db_u64 at, const struct db_send_wr *wr) {
    db_u32 i;
    for (i = 0; i < wr->num_sge; i++) {
        const struct db_sge *sge = &wr->sg_list[i];
        if (!sge->length) continue;
        at = db_wrap(sq, at);
        db_store_segment(at, db_pair(sge->length, sge->lkey), db_be64(sge->addr));
        at += DB_SEGMENT_BYTES;
    }
}

/* Remote address and, for atomics, the operands. Both lie in the WQE's first block, so neither can meet the ring's
 * end. Returns where the payload's segments begin. */
DB_FN_INLINED db_u64 db_write_remote(db_u64 at, const struct db_send_wr *wr, db_u32 opcode) {
    if (db_has_remote_address(opcode)) {
        db_store_segment(at, db_be64(wr->remote_addr), db_pair(wr->rkey, 0));
        at += DB_SEGMENT_BYTES;
    }
    if (opcode == DB_WR_ATOMIC_CMP_AND_SWP) {
        db_store_segment(at, db_be64(wr->swap), db_be64(wr->compare_add));
        at += DB_SEGMENT_BYTES;
    }
    if (opcode == DB_WR_ATOMIC_FETCH_AND_ADD) {
        /* It compares nothing, and libmlx5 leaves that half of the segment as it was. */
        db_store64(at, db_be64(wr->compare_add));
        at += DB_SEGMENT_BYTES;
    }
    return at;
}

/* The byte of the control segment that says when to complete, what to wait for, and whether to wake the receiver. */
DB_FN db_u32 db_fm_ce_se(const struct db_sq *sq, db_u32 send_flags) {
    /* Products of single bits: as branches these would be mispredicted once per signalled request. */
    return ((send_flags / DB_SEND_SIGNALED & 1) | sq->signal_all) * DB_CTRL_CE_ALWAYS |
           (send_flags / DB_SEND_SOLICITED & 1) * DB_CTRL_SOLICITED | (send_flags / DB_SEND_FENCE & 1) * DB_CTRL_FENCE;
}

/* Blocks of a WQE of that length. */
DB_FN db_u32 db_blocks(db_u32 units) { return (units + DB_SEGMENTS_PER_BLOCK - 1) / DB_SEGMENTS_PER_BLOCK; }

/* The first 16 bytes of a WQE: what to do, where in the ring it lies, and how long it is; how to complete. */
DB_FN db_u64 db_control_first(const struct db_sq *sq, db_u64 producer, db_u32 opcode, db_u32 units) {
#ifdef DB_DEFECT_RING_INDEX
    producer &= sq->blocks - 1;
#endif
#ifdef DB_DEFECT_LENGTH_IN_BYTES
    units *= DB_SEGMENT_BYTES;
#endif
    return db_pair(((db_u32)producer & 0xffff) << 8 | db_wire_opcode(opcode), sq->qpn << 8 | units);
}
DB_FN db_u64 db_control_second(const struct db_sq *sq, const struct db_send_wr *wr, db_u32 opcode) {
    /* The immediate is in network order already; signature and stream, in front of fm_ce_se, are 0. */
    db_u32 imm = opcode == DB_WR_RDMA_WRITE_WITH_IMM || opcode == DB_WR_SEND_WITH_IMM ? wr->imm_data : 0;
    return db_pair(db_fm_ce_se(sq, wr->send_flags), db_be32(imm));
}

/* Fills the ring from block `producer` on with one WQE of known length, for which there is room. `plain`: its payload is
 * one data pointer, so that it fits in one block. Returns its first 8 bytes, as in memory: what a doorbell register takes. */
DB_FN_INLINED db_u64 db_fill_wqe(const struct db_sq *sq, db_u64 producer, const struct db_send_wr *wr, db_u32 opcode,
                                 db_u32 units, int plain) {
    db_u32 index = (db_u32)producer & (sq->blocks - 1);
    db_u64 wqe = sq->ring + (db_u64)index * DB_BLOCK_BYTES;
    db_u64 payload, first = db_control_first(sq, producer, opcode, units), second = db_control_second(sq, wr, opcode);

    payload = db_write_remote(wqe + DB_SEGMENT_BYTES, wr, opcode);
    if (plain)
        db_store_segment(payload, db_pair(wr->sg_list->length, wr->sg_list->lkey), db_be64(wr->sg_list->addr));
    else if (wr->send_flags & DB_SEND_INLINE)
        db_write_inline(sq, payload, wr);
    else
        db_write_pointers(sq, payload, wr);
    db_store_segment(wqe, first, second);
    return first;
}

/* Remembers whose WQE lies at `producer` and how long it is. */
DB_FN void db_remember(const struct db_sq *sq, db_u64 producer, db_u64 wr_id, db_u32 blocks) {
    db_u32 index = (db_u32)producer & (sq->blocks - 1);
    db_store_segment(sq->slots + (db_u64)index * sizeof(struct db_slot), wr_id, producer + blocks);
}

/* Remembers a row: its last request, and how many are before that. */
DB_FN void db_remember_row(const struct db_sq *sq, db_u64 producer, db_u64 wr_id, db_u32 count) {
    db_u32 index = (db_u32)(producer + count - 1) & (sq->blocks - 1);
    db_store_segment(sq->slots + (db_u64)index * sizeof(struct db_slot), wr_id + count - 1,
                     (producer + count) | (db_u64)(count - 1) << DB_SLOT_BITS);
}

/* Writes one WQE of known length behind those already posted, if there is room. */
DB_FN_INLINED int db_write_wqe(struct db_sq *sq, const struct db_send_wr *wr, db_u32 opcode, db_u32 units, int plain) {
    db_u64 producer = sq->producer, end = producer + db_blocks(units);

    if (!((sq->opcodes >> opcode) & 1)) return DB_EOPNOTSUPP;
    /* Differences of indices fit in 32 bits, and a GPU spends one instruction instead of four on them. */
    if ((db_u32)end - (db_u32)sq->consumer > sq->blocks)
        return (db_u32)end - (db_u32)producer > sq->blocks ? DB_EINVAL : DB_ENOMEM;
    sq->doorbell_word = db_fill_wqe(sq, producer, wr, opcode, units, plain);
    db_remember(sq, producer, wr->wr_id, db_blocks(units));
    sq->producer = end;
    return 0;
}

/* A request whose payload is inline, empty, or in several pieces. */
DB_FN_OUTLINED int db_post_pieces(struct db_sq *sq, const struct db_send_wr *wr) {
    db_u32 units = db_wqe_units(sq, wr);
    return units ? db_write_wqe(sq, wr, wr->opcode, units, 0) : DB_EINVAL;
}

/* One request, its opcode known to the compiler where the caller knows it. */
DB_FN_INLINED int db_post_as(struct db_sq *sq, const struct db_send_wr *wr, db_u32 opcode) {
    if (wr->num_sge != 1 || (wr->send_flags & DB_SEND_INLINE) || db_is_no_length(wr->sg_list->length))
        return db_post_pieces(sq, wr);
    if (db_is_atomic(opcode) && wr->sg_list->length != DB_ATOMIC_BYTES) return DB_EINVAL;
    return db_write_wqe(sq, wr, opcode, 2 + db_has_remote_address(opcode) + db_is_atomic(opcode), 1);
}

/* Writes the WQE of one request; the device hears of it from db_ring(). 0, DB_ENOMEM when the queue has no room (the
 * WQEs before stay as they are: poll and try again), DB_EINVAL or DB_EOPNOTSUPP for a request that it can never take. */
DB_FN_INLINED int db_try_post(struct db_sq *sq, const struct db_send_wr *wr) {
    switch (wr->opcode) {
    case DB_WR_RDMA_WRITE: return db_post_as(sq, wr, DB_WR_RDMA_WRITE);
    case DB_WR_RDMA_WRITE_WITH_IMM: return db_post_as(sq, wr, DB_WR_RDMA_WRITE_WITH_IMM);
    case DB_WR_SEND: return db_post_as(sq, wr, DB_WR_SEND);
    case DB_WR_SEND_WITH_IMM: return db_post_as(sq, wr, DB_WR_SEND_WITH_IMM);
    case DB_WR_RDMA_READ: return db_post_as(sq, wr, DB_WR_RDMA_READ);
    case DB_WR_ATOMIC_CMP_AND_SWP: return db_post_as(sq, wr, DB_WR_ATOMIC_CMP_AND_SWP);
    case DB_WR_ATOMIC_FETCH_AND_ADD: return db_post_as(sq, wr, DB_WR_ATOMIC_FETCH_AND_ADD);
    default: return DB_EINVAL;
    }
}

/* A request of one local entry whose fields are in registers. Each branch has its own structs: one that the outlined
 * routine has seen would have to live in memory on the common path as well. */
DB_FN_INLINED int db_post_entry(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u32 opcode, db_u64 remote_addr,
                                db_u32 rkey, db_u32 imm_data, db_u32 send_flags) {
    if ((send_flags & DB_SEND_INLINE) || db_is_no_length(local.length)) {
        struct db_sge piece = local;
        struct db_send_wr wr = {wr_id, &piece, 1, opcode, send_flags, imm_data, remote_addr, 0, 0, rkey};
        return db_post_pieces(sq, &wr);
    } else {
        struct db_sge whole = local;
        struct db_send_wr wr = {wr_id, &whole, 1, opcode, send_flags, imm_data, remote_addr, 0, 0, rkey};
        return db_write_wqe(sq, &wr, opcode, 2 + db_has_remote_address(opcode), 1);
    }
}

/* The common requests without a struct: one local entry, a constant opcode. */
DB_FN int db_try_post_write(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                            db_u32 send_flags) {
    return db_post_entry(sq, wr_id, local, DB_WR_RDMA_WRITE, remote_addr, rkey, 0, send_flags);
}
/* The segments of a WRITE as words in memory order. A GPU stores each from four registers in a row, of which in a row of WRITEs
 * only one is written anew; two sets, since a store reads its registers late. */
struct db_row_wqe {
    db_u32 control[4], remote[4], data[4];
};

/* What the WQEs of a row differ in: the next one's. */
struct db_row {
    db_u64 at;
    db_u32 remote, local, control;
};

/* The WQE `ahead` of the row's next one. */
DB_FN_INLINED void db_fill_row_wqe(const struct db_row *row, struct db_row_wqe *wqe, db_u32 ahead, db_u32 stride) {
    db_u64 at = row->at + (db_u64)ahead * DB_BLOCK_BYTES;
    wqe->remote[1] = db_be32(row->remote + ahead * stride);
    wqe->data[3] = db_be32(row->local + ahead * stride);
    wqe->control[0] = db_be32(row->control + (ahead << 8));
    db_store_words(at + 16, wqe->remote);
    db_store_words(at + 32, wqe->data);
    db_store_words(at, wqe->control);
}

DB_FN_INLINED void db_row_advance(struct db_row *row, db_u32 by, db_u32 stride) {
    row->at += (db_u64)by * DB_BLOCK_BYTES;
    row->remote += by * stride;
    row->local += by * stride;
    row->control += by << 8;
}

/* Fills `count` consecutive blocks, none across the ring's end, with WRITEs for which db_row_is_plain() holds. Returns the last
 * one's first 8 bytes. */
DB_FN_INLINED db_u64 db_fill_writes(const struct db_sq *sq, db_u64 producer, db_u64 wr_id, struct db_sge local,
                                    db_u64 remote_addr, db_u32 rkey, db_u32 send_flags, db_u32 count, db_u32 stride) {
    db_u32 hidden[4] = {db_hidden_zero(0), db_hidden_zero(1), db_hidden_zero(2), db_hidden_zero(3)}, set;
    struct db_row row = {(sq->ring + ((db_u32)producer & (sq->blocks - 1)) * (db_u64)DB_BLOCK_BYTES) ^ hidden[0],
                         hidden[0] ^ (db_u32)remote_addr, hidden[0] ^ (db_u32)local.addr,
                         hidden[0] ^ (((db_u32)producer & 0xffff) << 8 | DB_OPCODE_RDMA_WRITE)};
    struct db_row_wqe wqe[2];
    for (set = 0; set < 2; set++) {
        db_u32 zero = hidden[2 * set];
        struct db_row_wqe made = {
            {0, zero ^ db_be32(sq->qpn << 8 | 3), zero ^ db_be32(db_fm_ce_se(sq, 0)), hidden[2 * set + 1]},
            {zero ^ db_be32((db_u32)(remote_addr >> 32)), 0, zero ^ db_be32(rkey), zero},
            {zero ^ db_be32(local.length), zero ^ db_be32(local.lkey), zero ^ db_be32((db_u32)(local.addr >> 32)), 0}};
        wqe[set] = made;
    }
    db_remember_row(sq, producer, wr_id, count);
    DB_NO_UNROLL
    for (; count > 4; count -= 4) {
        db_fill_row_wqe(&row, &wqe[0], 0, stride);
        db_fill_row_wqe(&row, &wqe[1], 1, stride);
        db_fill_row_wqe(&row, &wqe[0], 2, stride);
        db_fill_row_wqe(&row, &wqe[1], 3, stride);
        db_row_advance(&row, 4, stride);
    }
    DB_NO_UNROLL
    for (; count > 1; count--) {
        db_fill_row_wqe(&row, &wqe[0], 0, stride);
        db_row_advance(&row, 1, stride);
    }
    wqe[0].control[2] = db_be32(db_fm_ce_se(sq, send_flags));
    db_fill_row_wqe(&row, &wqe[0], 0, stride);
    return (db_u64)wqe[0].control[1] << 32 | wqe[0].control[0];
}

/* Whether the addresses of a row keep their upper halves, and the 16-bit index does not wrap in it. */
DB_FN int db_row_is_plain(db_u64 producer, db_u64 local, db_u64 remote, db_u32 count, db_u32 stride) {
    db_u64 bytes = (db_u64)count * stride;
    return !(((remote ^ (remote + bytes)) | (local ^ (local + bytes))) >> 32) &&
           ((db_u32)producer & 0xffff) + count <= 0x10000;
}

/* `count` RDMA WRITEs in a row, each `stride` bytes further on both sides, the last one with `send_flags`; wr_id counts up.
 * All or none, so that one look for space serves them all. 0, DB_ENOMEM, DB_EINVAL, DB_EOPNOTSUPP. */
DB_FN_INLINED int db_try_post_writes(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                                     db_u32 send_flags, db_u32 count, db_u32 stride) {
    db_u64 end = sq->producer + count;
    db_u32 room_to_end = sq->blocks - ((db_u32)sq->producer & (sq->blocks - 1)), i;
    if (!count || count > sq->blocks || db_is_no_length(local.length) || (send_flags & DB_SEND_INLINE)) return DB_EINVAL;
    if (!((sq->opcodes >> DB_WR_RDMA_WRITE) & 1)) return DB_EOPNOTSUPP;
    if ((db_u32)end - (db_u32)sq->consumer > sq->blocks) return DB_ENOMEM;
    if (count <= room_to_end && db_row_is_plain(sq->producer, local.addr, remote_addr, count, stride)) {
        sq->doorbell_word = db_fill_writes(sq, sq->producer, wr_id, local, remote_addr, rkey, send_flags, count, stride);
    } else {
        for (i = 0; i < count; i++) {
            struct db_send_wr wr = {wr_id + i, &local, 1, DB_WR_RDMA_WRITE, i + 1 == count ? send_flags : 0,
                                    0, remote_addr, 0, 0, rkey};
            sq->doorbell_word = db_fill_wqe(sq, sq->producer + i, &wr, DB_WR_RDMA_WRITE, 3, 1);
            db_remember(sq, sq->producer + i, wr_id + i, 1);
            remote_addr += stride;
            local.addr += stride;
        }
    }
    sq->producer = end;
    return 0;
}
DB_FN int db_try_post_write_imm(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                                db_u32 imm_data, db_u32 send_flags) {
    return db_post_entry(sq, wr_id, local, DB_WR_RDMA_WRITE_WITH_IMM, remote_addr, rkey, imm_data, send_flags);
}
DB_FN int db_try_post_send(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u32 send_flags) {
    return db_post_entry(sq, wr_id, local, DB_WR_SEND, 0, 0, 0, send_flags);
}
DB_FN int db_try_post_send_imm(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u32 imm_data, db_u32 send_flags) {
    return db_post_entry(sq, wr_id, local, DB_WR_SEND_WITH_IMM, 0, 0, imm_data, send_flags);
}
DB_FN int db_try_post_read(struct db_sq *sq, db_u64 wr_id, struct db_sge local, db_u64 remote_addr, db_u32 rkey,
                           db_u32 send_flags) {
    return db_post_entry(sq, wr_id, local, DB_WR_RDMA_READ, remote_addr, rkey, 0, send_flags);
}

/* Pushes a lone WQE through the register as a whole, by libmlx5's rule (`post_send_db`, qp.c); else 8 bytes. */
DB_FN void db_push(const struct db_sq *sq, db_u64 reg) {
    /* The control segment of the last WQE tells its own length; if nothing else is unrung, it is alone. */
    db_u32 units = db_be32((db_u32)(sq->doorbell_word >> 32)) & DB_MAX_DS, blocks = db_blocks(units);
    db_u64 from = sq->ring + (sq->rung & (sq->blocks - 1)) * DB_BLOCK_BYTES;
    if (sq->producer - sq->rung != blocks || units == 1 || units * DB_SEGMENT_BYTES > sq->half_bytes) {
        db_store_register(reg, sq->doorbell_word);
        return;
    }
    for (; blocks; blocks--) {
        db_store_register_chunk(reg, from);
        reg += DB_BLOCK_BYTES;
        from = db_wrap(sq, from + DB_BLOCK_BYTES);
    }
}

/* Tells the device of every WQE posted so far. Three edges: WQE before record, WQE before register, record before
 * register; the last one is weaker in the early order. No effect when nothing was posted since the last ring. */
DB_FN void db_ring(struct db_sq *sq) {
    db_u64 reg = sq->reg + sq->register_offset;
    if (sq->rung == sq->producer) return;
    db_order_wqe_before_record();
    db_store_record(sq->record, db_be32((db_u32)sq->producer & 0xffff));
    if (sq->order == DB_ORDER_STRICT)
        db_order_record_before_register();
    else
        db_order_wqe_before_register();
    if (sq->doorbell == DB_DOORBELL_BLUEFLAME) {
        db_push(sq, reg);
        sq->register_offset ^= sq->half_bytes;
    } else {
        db_store_register(reg, sq->doorbell_word);
    }
    db_flush_register();
    sq->rung = sq->producer;
}

/* ibv_post_send: posts the requests in order, rings once, stops at the first that fails and names it in `bad`. Those
 * before it are posted and rung. */
DB_FN int db_post(struct db_sq *sq, const struct db_send_wr *wrs, db_u32 count, db_u32 *bad) {
    int error = 0;
    db_u32 i;
    for (i = 0; i < count && !error; i++) {
        error = db_try_post(sq, &wrs[i]);
        if (error) *bad = i;
    }
    db_ring(sq);
    return error;
}

/* ibv_post_recv: as many receives as fit, one record update, no register. A receive without buffers is legal: a
 * WRITE with immediate takes one and writes nothing into it. */
DB_FN int db_post_recv(struct db_rq *rq, const struct db_recv_wr *wrs, db_u32 count, db_u32 *bad) {
    int error = 0;
    db_u32 i, j;
    for (i = 0; i < count; i++) {
        const struct db_recv_wr *wr = &wrs[i];
        db_u32 index = (db_u32)rq->producer & (rq->wqes - 1);
        db_u64 at = rq->ring + (db_u64)index * rq->stride;
        db_u32 written = 0;
        if (rq->producer - rq->consumer == rq->wqes) error = DB_ENOMEM;
        if (wr->num_sge > rq->max_sge) error = DB_EINVAL;
        for (j = 0; j < wr->num_sge && !error; j++)
            if (wr->sg_list[j].length & DB_INLINE_FLAG) error = DB_EINVAL;
        if (error) {
            *bad = i;
            break;
        }
        for (j = 0; j < wr->num_sge; j++) {
            const struct db_sge *sge = &wr->sg_list[j];
            if (!sge->length) continue;
            db_store_segment(at + DB_SEGMENT_BYTES * written++, db_pair(sge->length, sge->lkey), db_be64(sge->addr));
        }
        if (written < rq->max_sge) db_store_segment(at + DB_SEGMENT_BYTES * written, db_pair(0, DB_INVALID_LKEY), 0);
        ((db_u64 *)rq->wr_ids)[index] = wr->wr_id;
        rq->producer++;
    }
    if (i) {
        db_order_wqe_before_record();
        db_store_record(rq->record, db_be32((db_u32)rq->producer & 0xffff));
    }
    return error;
}

/* ---- Completions ------------------------------------------------------------------------------------------------ */

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

/* A CQE's last 8 bytes: opcode and QPN of the WQE, its counter, a signature, and what says whose the CQE is. All that a send's
 * completion needs, by one load. */
typedef char db_assert_tail[DB_CQE_WQE_COUNTER == DB_CQE_OPCODE_QPN + 4 && DB_CQE_OP_OWN == DB_CQE_OPCODE_QPN + 7 ? 1 : -1];
DB_FN db_u32 db_tail_owner(db_u64 tail) { return (db_u32)(tail >> 56); }
DB_FN db_u32 db_tail_opcode_qpn(db_u64 tail) { return db_be32((db_u32)tail); }

/* The CQE `ahead` of the next one. */
DB_FN db_u64 db_cqe_at(const struct db_cq *cq, db_u32 ahead) {
    return cq->ring + ((cq->consumer + ahead) & (cq->entries - 1)) * DB_CQE_BYTES;
}

/* Whether it was written. The owner bit flips with each lap; before the first lap the opcode says that nothing was. */
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
    cq->consumer++;
    return 1;
}

/* Takes the next CQE, if there is one: 1, 0 or DB_POLL_COMPRESSED. Fills everything but wr_id, which the queue of
 * `out->qpn` knows: call db_retire_send() or db_retire_recv() next, and db_release() after the last of a batch. */
DB_FN int db_take_cqe(struct db_cq *cq, struct db_completion *out) {
    db_u64 tail = db_load_cqe_tail(db_cqe_at(cq, 0) + DB_CQE_OPCODE_QPN);
    if (!db_cqe_is_there(cq, 0, tail)) return 0;
    db_acquire_cqe();
    return db_read_cqe(cq, tail, out);
}

/* Looks in slots for the request whose WQE begins at block `at`, of which `outstanding` are not given back: 1 with its
 * `wr_id` and the index behind it, or 0 when no request begins there. */
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

/* Gives back the blocks of the WQE that a send completion names and of every WQE before it, which were unsignalled,
 * and fills in wr_id. A completion that names no outstanding WQE turns into DB_WC_STALE and gives back nothing. */
DB_FN void db_retire_send(struct db_sq *sq, struct db_completion *c) {
    db_u64 outstanding = sq->rung - sq->consumer, ahead = (c->wqe_index - (db_u32)sq->consumer) & 0xffff, end;
    if (c->qpn != sq->qpn || ahead >= outstanding ||
        !db_recall(sq, sq->consumer + ahead, outstanding - ahead, &c->wr_id, &end)) {
        c->status = DB_WC_STALE;
        return;
    }
    sq->consumer = end;
}

/* Gives back the receive that a completion names. They complete in order, so that any but the oldest one is of another
 * life of the queue: DB_WC_STALE, and nothing is given back that the device still holds. */
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

/* ibv_poll_cq for a CQ that serves one QP: up to `max` completions with their requests' wr_id; their number, or
 * DB_POLL_COMPRESSED when the first one cannot be read. `sq` or `rq` is null when that queue completes elsewhere. */
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

/* ---- After RESET ------------------------------------------------------------------------------------------------ */

/* The producer index with which a queue's next life begins: the device's 16 bits of it are 0, and no slot of an earlier life
 * can be taken for one of this. */
DB_FN db_u64 db_next_life(db_u64 producer) { return (producer + 0xffff) & ~(db_u64)0xffff; }

/* Empties a send queue whose QP was moved to RESET, which flushes nothing and forgets everything. The register half is
 * kept: it belongs to the register, not to the queue's life. */
DB_FN void db_reset_send(struct db_sq *sq) {
    sq->producer = sq->rung = sq->consumer = db_next_life(sq->producer);
    db_store_record(sq->record, 0);
}

/* Likewise for a receive queue. */
DB_FN void db_reset_recv(struct db_rq *rq) {
    rq->producer = rq->consumer = 0;
    db_store_record(rq->record, 0);
}

/* Drops the CQEs that a QP left behind when it went to RESET: with a CQ that mlx5dv handed out, libmlx5 no longer does
 * it. All of the CQ's QPs must be in RESET. Returns how many, or DB_POLL_COMPRESSED. */
DB_FN int db_drain(struct db_cq *cq) {
    struct db_completion dropped;
    int count = 0, more;
    while ((more = db_take_cqe(cq, &dropped)) > 0) count++;
    db_release(cq);
    return more < 0 ? more : count;
}

#endif /* DB_DOORBELL_H */
