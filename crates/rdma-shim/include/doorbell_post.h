/*! Posting: WQEs into the ring, doorbell record, doorbell register. A part of doorbell.h, which includes it.
 *
 * Follows `providers/mlx5/qp.c` of rdma-core in what it writes, byte for byte (INV-5).
 */
#ifndef DB_DOORBELL_POST_H
#define DB_DOORBELL_POST_H

#include "doorbell.h"

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

/* Bytes of all entries together. A sum over 32 bits is too long for any device, and must not wrap around. */
DB_FN db_u64 db_payload_bytes(const struct db_send_wr *wr) {
    db_u64 bytes = 0;
    db_u32 i;
    for (i = 0; i < wr->num_sge; i++) bytes += wr->sg_list[i].length;
    return bytes;
}

/* Whether no data pointer can state this length: of its 31 bits 0 is 2 GiB; the top bit is DB_INLINE_FLAG. */
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

/* Inline payload behind its header; entries follow one another without a gap, across the end of the ring if
 * need be. The padding behind the last byte stays as it was, as with libmlx5. */
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

/* Remote address and, for atomics, the operands. Both lie in the WQE's first block, so neither can meet the
 * ring's end. Returns where the payload's segments begin. */
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

/* The control segment's byte that says when to complete, what to wait for, whether to wake the receiver. */
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

/* Fills the ring from block `producer` on with one WQE of known length, for which there is room. `plain`: its
 * payload is one data pointer, so it fits in one block. Returns its first 8 bytes as in memory. */
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

/* Writes one request's WQE; db_ring() tells the device. 0, DB_ENOMEM when the queue has no room (earlier WQEs
 * stay: poll and try again), DB_EINVAL or DB_EOPNOTSUPP for a request that it can never take. */
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

/* A request of one local entry whose fields are in registers. Each branch has its own structs: one that the
 * outlined routine has seen would have to live in memory on the common path as well. */
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
/* The segments of a WRITE as words in memory order. A GPU stores each from four registers in a row, of which
 * a row of WRITEs rewrites only one; two sets, since a store reads its registers late. */
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

/* Fills `count` consecutive blocks, none across the ring's end, with WRITEs for which db_row_is_plain()
 * holds. Returns the last one's first 8 bytes. */
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

/* `count` RDMA WRITEs in a row, each `stride` bytes further on both sides, the last with `send_flags`; wr_id
 * counts up. All or none, so one look for space serves all. 0, DB_ENOMEM, DB_EINVAL, DB_EOPNOTSUPP. */
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

/* Pushes a lone WQE through the register as a whole, as libmlx5 (`post_send_db`, qp.c) does; else 8 bytes. */
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

/* Tells the device of all WQEs posted so far. Three edges: WQE before record, WQE before register, record
 * before register (weaker in the early order). No effect when nothing was posted since the last ring. */
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

/* ibv_post_send: posts the requests in order, rings once, stops at the first that fails and names it in
 * `bad`. Those before it are posted and rung. */
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

/* ibv_post_recv: as many receives as fit, one record update, no register. A receive without buffers is legal:
 * a WRITE with immediate takes one and writes nothing into it. */
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

#endif /* DB_DOORBELL_POST_H */
