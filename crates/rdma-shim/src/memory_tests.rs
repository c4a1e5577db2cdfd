//! The routines over plain memory: no NIC, no libibverbs. The parity tests (`tests/it/parity.rs`), which need
//! a device, compare with what libmlx5 writes for the same requests.

mod completions;
mod posting;

use mlx5_layout::{CqeFields, CqeOpcode, SendOpcode};

use crate::sys::*;

const QPN: u32 = 0x47;
const STRICT: u32 = 0;
const EARLY: u32 = 1;
const EIGHT_BYTES: u32 = 0;
const BLUEFLAME: u32 = 1;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const SIGNALED: u32 = 2;
const INLINE: u32 = 8;

/// Queues in plain memory, and the part of a device that writes CQEs. 64-bit words keep the alignment.
struct Queues {
    ring: Vec<u64>,
    receive_ring: Vec<u64>,
    cqes: Vec<u64>,
    record: Vec<u64>,
    cq_record: Vec<u64>,
    register: Vec<u64>,
    _slots: Vec<db_slot>,
    _wr_ids: Vec<u64>,
    sq: db_sq,
    rq: db_rq,
    cq: db_cq,
    device_index: u32,
}

fn address<T>(memory: &[T]) -> u64 {
    memory.as_ptr() as u64
}

impl Queues {
    fn new(blocks: u32, entries: u32) -> Queues {
        let ring = vec![0xa5a5_a5a5_a5a5_a5a5; blocks as usize * 8];
        let receive_ring = vec![0; 8 * 4];
        let cqes = vec![u64::MAX / 255 * 0xf0; entries as usize * 8];
        let (record, cq_record, register) = (vec![0; 1], vec![0; 1], vec![0; 64]);
        let slots = vec![db_slot::default(); blocks as usize];
        let wr_ids = vec![0; 8];
        let mut queues = Queues {
            sq: db_sq {
                ring: address(&ring),
                record: address(&record) + 4,
                reg: address(&register),
                slots: address(&slots),
                blocks,
                qpn: QPN,
                half_bytes: 256,
                max_sge: 8,
                max_inline: 400,
                opcodes: 0x7f,
                ..db_sq::default()
            },
            rq: db_rq {
                ring: address(&receive_ring),
                record: address(&record),
                wr_ids: address(&wr_ids),
                wqes: 8,
                stride: 32,
                qpn: QPN,
                max_sge: 2,
                ..db_rq::default()
            },
            cq: db_cq { ring: address(&cqes), record: address(&cq_record), entries, ..db_cq::default() },
            ring,
            receive_ring,
            cqes,
            record,
            cq_record,
            register,
            _slots: slots,
            _wr_ids: wr_ids,
            device_index: 0,
        };
        // SAFETY: the struct is ours alone.
        assert_eq!(unsafe { db_c_sq_init(&raw mut queues.sq, 64) }, 0);
        // SAFETY: likewise.
        assert_eq!(unsafe { db_c_rq_init(&raw mut queues.rq) }, 0);
        // SAFETY: likewise.
        assert_eq!(unsafe { db_c_cq_init(&raw mut queues.cq, 64) }, 0);
        queues
    }

    fn post(&mut self, wr: &db_send_wr) -> i32 {
        // SAFETY: the queue's addresses lead into vectors of `self`, inline entries into live test memory.
        unsafe { db_c_try_post(&raw mut self.sq, wr) }
    }

    /// As `db_try_post_writes`, 64 bytes further each.
    fn post_writes(&mut self, wr_id: u64, local: db_sge, remote: u64, flags: u32, count: u32) -> i32 {
        // SAFETY: as in `post`.
        unsafe { db_c_try_post_writes(&raw mut self.sq, wr_id, local, remote, 9, flags, count, 64) }
    }

    fn ring_doorbell(&mut self) {
        // SAFETY: as in `post`.
        unsafe { db_c_ring(&raw mut self.sq) }
    }

    fn poll(&mut self) -> (i32, db_completion) {
        let mut completion = db_completion::default();
        // SAFETY: as in `post`; one completion has room in `completion`.
        let taken = unsafe {
            db_c_poll(&raw mut self.cq, &raw mut self.sq, &raw mut self.rq, &raw mut completion, 1)
        };
        (taken, completion)
    }

    /// What the device does: the next CQE, owner bit of its lap, last byte last.
    fn complete(&mut self, fields: CqeFields) {
        let owner = mlx5_layout::cqe::owner_bit(self.device_index, self.cq.entries);
        let bytes = CqeFields { qpn: QPN, owner, ..fields }.emit();
        self.write_cqe(bytes);
    }

    fn write_cqe(&mut self, bytes: [u8; 64]) {
        let at = (self.device_index & (self.cq.entries - 1)) as usize * 8;
        for (word, bytes) in self.cqes[at..at + 8].iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
        self.device_index = self.device_index.wrapping_add(1);
    }

    fn complete_send(&mut self, wqe_counter: u16) {
        self.complete(CqeFields {
            opcode: CqeOpcode::Requester,
            wqe_counter,
            send_opcode: SendOpcode::RdmaWrite.to_u8(),
            ..CqeFields::default()
        });
    }

    /// The WQE that starts at this block, in one piece although the ring may end inside it.
    fn wqe(&self, block: usize) -> Vec<u8> {
        let words = self.ring.len();
        let mut bytes: Vec<u8> =
            (0..words).flat_map(|w| self.ring[(block * 8 + w) % words].to_ne_bytes()).collect();
        bytes.truncate(usize::from(bytes[7] & 0x3f) * 16);
        bytes
    }

    fn send_record(&self) -> u32 {
        u32::from_be((self.record[0] >> 32) as u32)
    }
}

fn write(sges: &[db_sge], flags: u32) -> db_send_wr {
    db_send_wr {
        wr_id: 7,
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as u32,
        opcode: 0,
        send_flags: flags,
        imm_data: 0,
        remote_addr: 0x7f00_0000_1000,
        compare_add: 0,
        swap: 0,
        rkey: 0x1234,
    }
}

fn entry(length: u32) -> db_sge {
    db_sge { addr: 0x5000, length, lkey: 0x99 }
}

#[test]
fn queues_of_another_shape_are_refused() {
    let fresh = Queues::new(16, 16);
    for (name, sq, stride) in [
        ("blocks that are no power of two", db_sq { blocks: 12, ..fresh.sq.clone() }, 64),
        ("more blocks than 16 bits can tell apart", db_sq { blocks: 65536, ..fresh.sq.clone() }, 64),
        ("another stride", fresh.sq.clone(), 128),
        ("no register", db_sq { reg: 0, ..fresh.sq.clone() }, 64),
    ] {
        let mut sq = sq;
        // SAFETY: the struct is ours alone; a refused queue is not touched further.
        assert_eq!(unsafe { db_c_sq_init(&raw mut sq, stride) }, EINVAL, "{name}");
    }
    let mut cq = fresh.cq;
    // SAFETY: the struct is ours alone.
    assert_eq!(unsafe { db_c_cq_init(&raw mut cq, 128) }, EINVAL, "CQEs of 128 bytes");
}
