//! The routines over plain memory: no NIC, no libibverbs. What libmlx5 writes for the same requests is compared by the
//! parity tests (`tests/it/parity.rs`), which need a device.

use mlx5_layout::cqe::CqeError;
use mlx5_layout::send_wqe::{Addressing, DataSegment, SendWqe};
use mlx5_layout::{CqeFields, CqeOpcode, CqeSyndrome, SendOpcode};

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
        // SAFETY: every address in the queue leads into a vector of `self`, and inline entries into live test memory.
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
fn each_operation_reads_back_as_what_was_asked() {
    let (entries, word) = ([entry(64), entry(0), entry(32)], [entry(8)]);
    // Opcode as in ibv_wr_opcode, entries, wire opcode, 16-byte units: facts of IBTA vol. 1 and mlx5dv.h.
    for (opcode, sges, wire, units) in [
        (0, &entries[..], 0x08, 4),
        (1, &entries[..1], 0x09, 3),
        (2, &entries[..], 0x0a, 3),
        (3, &[][..], 0x0b, 1),
        (4, &entries[..1], 0x10, 3),
        (5, &word[..], 0x11, 4),
        (6, &word[..], 0x12, 4),
    ] {
        let mut queues = Queues::new(16, 16);
        let request =
            db_send_wr { opcode, imm_data: u32::to_be(42), compare_add: 5, swap: 6, ..write(sges, SIGNALED) };
        assert_eq!(queues.post(&request), 0, "opcode {opcode}");
        let bytes = queues.wqe(0);
        let wqe = SendWqe::new(&bytes[..]).unwrap();
        let control = wqe.control();
        assert_eq!((control.opcode, control.ds, control.qpn, control.wqe_index), (wire, units, QPN, 0));
        assert!(control.is_signalled() && !control.is_solicited());
        let carries_imm = matches!(opcode, 1 | 3);
        assert_eq!(control.immediate, if carries_imm { [0, 0, 0, 42] } else { [0; 4] });
        let body = wqe.body(Addressing::Connected).unwrap();
        assert_eq!(
            body.remote.map(|r| (r.va, r.rkey)),
            (!matches!(opcode, 2 | 3)).then_some((0x7f00_0000_1000, 0x1234))
        );
        assert_eq!(
            body.atomic.map(|a| a.swap_add),
            match opcode {
                5 => Some(6),
                6 => Some(5),
                _ => None,
            }
        );
    }
}

#[test]
fn requests_that_can_never_be_posted_are_invalid_and_leave_no_trace() {
    let (entries, long) = (vec![entry(1); 9], [entry(401)]);
    for (name, opcodes, request, error) in [
        ("unknown opcode", 0x7f, db_send_wr { opcode: 7, ..write(&[], 0) }, EINVAL),
        ("a bind of a memory window", 0x7f, db_send_wr { opcode: 8, ..write(&[], 0) }, EINVAL),
        ("READ on UC", 0x0f, db_send_wr { opcode: 4, ..write(&entries[..1], 0) }, EOPNOTSUPP),
        ("too many entries", 0x7f, write(&entries, 0), EINVAL),
        ("inline above the limit", 0x7f, write(&long, INLINE), EINVAL),
        ("a length that is the inline flag", 0x7f, write(&[entry(1 << 31)], 0), EINVAL),
        ("the longest length that cannot be", 0x7f, write(&[entry(8), entry(u32::MAX)], 0), EINVAL),
        ("inline READ", 0x7f, db_send_wr { opcode: 4, ..write(&entries[..1], INLINE) }, EINVAL),
        ("atomic of 1 byte", 0x7f, db_send_wr { opcode: 5, ..write(&entries[..1], 0) }, EINVAL),
        ("atomic without a buffer", 0x7f, db_send_wr { opcode: 6, ..write(&[], 0) }, EINVAL),
    ] {
        let mut queues = Queues::new(16, 16);
        queues.sq.opcodes = opcodes;
        let before = queues.ring.clone();
        assert_eq!(queues.post(&request), error, "{name}");
        queues.ring_doorbell();
        assert_eq!((queues.ring == before, queues.sq.producer, queues.register[0]), (true, 0, 0), "{name}");
    }
}

#[test]
fn a_full_queue_says_so_and_never_laps_the_device() {
    let (one, wide) = ([entry(64)], [entry(64); 6]);
    let mut queues = Queues::new(8, 16);
    for _ in 0..6 {
        assert_eq!(queues.post(&write(&one, 0)), 0);
    }
    // Six entries: 2 + 6 units, two blocks, which fit exactly; then nothing does.
    assert_eq!(queues.post(&write(&wide, SIGNALED)), 0);
    let full = queues.ring.clone();
    assert_eq!(queues.post(&write(&one, 0)), ENOMEM);
    assert!(queues.ring == full);
    queues.ring_doorbell();
    assert_eq!(queues.send_record(), 8);
    // The completion of the WQE at block 2 gives back three blocks: its own and those of the two unsignalled before.
    queues.complete_send(2);
    let (taken, completion) = queues.poll();
    assert_eq!((taken, completion.status, completion.wr_id, queues.sq.consumer), (1, 0, 7, 3));
    for expected in [0, 0, 0, ENOMEM] {
        assert_eq!(queues.post(&write(&one, 0)), expected);
    }
}

#[test]
fn a_request_longer_than_the_ring_is_invalid_not_full() {
    let wide = [entry(1); 8];
    let mut queues = Queues::new(2, 16);
    assert_eq!(queues.post(&write(&wide, 0)), EINVAL);
}

#[test]
fn wqes_continue_at_block_zero_when_the_ring_ends() {
    let payload: Vec<u8> = (0..200).collect();
    let inline = [db_sge { addr: payload.as_ptr() as u64, length: 200, lkey: 0 }];
    let several: Vec<_> = (1..=7).map(entry).collect();
    for (name, request) in [("inline", write(&inline, INLINE)), ("pointers", write(&several, 0))] {
        let mut queues = Queues::new(8, 16);
        let one = [entry(64)];
        for _ in 0..7 {
            assert_eq!(queues.post(&write(&one, 0)), 0);
        }
        queues.ring_doorbell();
        queues.sq.consumer = 7;
        assert_eq!(queues.post(&request), 0, "{name}");
        let bytes = queues.wqe(7);
        let wqe = SendWqe::new(&bytes[..]).unwrap();
        let body = wqe.body(Addressing::Connected).unwrap();
        if name == "inline" {
            assert!(bytes.windows(200).any(|window| window == payload), "{name}");
            assert_eq!(bytes.len(), 16 * (2 + 13));
        } else {
            let lengths: Vec<_> = body
                .data
                .map(|segment| match segment.unwrap() {
                    DataSegment::Pointer(pointer) => pointer.byte_count,
                    DataSegment::Inline(_) => panic!("inline"),
                })
                .collect();
            assert_eq!(lengths, [1, 2, 3, 4, 5, 6, 7], "{name}");
        }
    }
}

/// One by one and as a batch: the same blocks, the same remembered requests, the same doorbell. At the end of the ring, and
/// where an address or a wr_id crosses a multiple of 2^32, the batch takes its slower way.
#[test]
fn a_batch_of_writes_leaves_the_bytes_of_single_ones() {
    const STRIDE: u32 = 64;
    let far = u64::from(u32::MAX) - 100;
    for (name, skipped, wr_id, local, remote) in [
        ("straight", 0, 7, 0x1000, 0x2000),
        ("across the end of the ring", 12, 7, 0x1000, 0x2000),
        ("local address across 4 GiB", 0, 7, far, 0x2000),
        ("remote address across 4 GiB", 0, 7, 0x1000, far),
        ("wr_id across 2^32", 0, u64::from(u32::MAX) - 3, 0x1000, 0x2000),
    ] {
        let (mut single, mut batch) = (Queues::new(16, 16), Queues::new(16, 16));
        for queues in [&mut single, &mut batch] {
            for _ in 0..skipped {
                assert_eq!(queues.post(&write(&[entry(64)], 0)), 0);
            }
            queues.ring_doorbell();
            queues.sq.consumer = skipped;
        }
        for index in 0..9 {
            let entry = [db_sge { addr: local + index * u64::from(STRIDE), length: 64, lkey: 5 }];
            let flags = if index == 8 { SIGNALED } else { 0 };
            let request = db_send_wr {
                wr_id: wr_id + index,
                remote_addr: remote + index * u64::from(STRIDE),
                rkey: 9,
                ..write(&entry, flags)
            };
            assert_eq!(single.post(&request), 0, "{name}");
        }
        let entry = db_sge { addr: local, length: 64, lkey: 5 };
        assert_eq!(batch.post_writes(wr_id, entry, remote, SIGNALED, 9), 0, "{name}");
        single.ring_doorbell();
        batch.ring_doorbell();
        assert_eq!(single.ring, batch.ring, "{name}");
        assert_eq!((single.sq.producer, single.sq.rung), (batch.sq.producer, batch.sq.rung), "{name}");
        assert_eq!((&single.record, &single.register), (&batch.record, &batch.register), "{name}");
        for index in 0..9 {
            let recalled = |queues: &mut Queues| {
                queues.complete_send((skipped + index) as u16);
                (queues.poll().1, queues.sq.consumer)
            };
            let (of_single, of_batch) = (recalled(&mut single), recalled(&mut batch));
            assert_eq!(of_single, of_batch, "{name}, request {index}");
            assert_eq!((of_batch.0.status, of_batch.0.wr_id), (0, wr_id + index), "{name}");
        }
    }
}

/// Of a row only the last request has a slot: what the others' hold is of an earlier lap, or of an earlier life of the queue,
/// and is not taken for theirs. A CQE that names the middle of nothing is stale.
#[test]
fn requests_inside_a_row_are_told_from_those_that_had_their_slots_before() {
    let entry = db_sge { addr: 0x1000, length: 64, lkey: 5 };
    // A request points to its list.
    let entries = [entry];
    let mut queues = Queues::new(16, 16);
    for life in 0..3_u64 {
        // Singles first, whose slots stay.
        for index in 0..16 {
            let request = db_send_wr { wr_id: 900 + index, ..write(&entries, SIGNALED) };
            assert_eq!(queues.post(&request), 0);
        }
        queues.ring_doorbell();
        if life == 0 {
            queues.complete_send(15);
            assert_eq!(queues.poll().1.wr_id, 915);
        } else {
            // SAFETY: as in `post`.
            unsafe { db_c_reset_send(&raw mut queues.sq) };
        }
        assert_eq!(queues.post_writes(100 * life, entry, 0x2000, SIGNALED, 9), 0);
        queues.ring_doorbell();
        let first = queues.sq.producer - 9;
        for (index, wr_id) in [(3, 3), (7, 7), (8, 8)] {
            queues.complete_send((first + index) as u16);
            let (_, found) = queues.poll();
            assert_eq!((found.status, found.wr_id), (0, 100 * life + wr_id), "life {life}");
            assert_eq!(queues.sq.consumer, first + index + 1, "life {life}");
        }
        queues.complete_send((first + 9) as u16);
        assert_eq!(queues.poll().1.status, 0x101, "life {life}: nothing was posted there");
        // SAFETY: as in `post`.
        unsafe { db_c_reset_send(&raw mut queues.sq) };
        assert_eq!(queues.sq.producer % (1 << 16), 0);
    }
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let entry = db_sge { addr: 0x1000, length: 64, lkey: 5 };
    let mut queues = Queues::new(8, 16);
    assert_eq!(queues.post_writes(0, entry, 0, 0, 5), 0);
    let before = (queues.ring.clone(), queues.sq.producer);
    assert_eq!(queues.post_writes(0, entry, 0, 0, 4), ENOMEM, "three blocks are left");
    assert_eq!(queues.post_writes(0, entry, 0, 0, 9), EINVAL, "longer than the ring");
    assert_eq!(queues.post_writes(0, entry, 0, 0, 0), EINVAL, "nothing to post");
    assert_eq!(queues.post_writes(0, db_sge { length: 0, ..entry }, 0, 0, 1), EINVAL, "no payload");
    assert_eq!(queues.post_writes(0, db_sge { length: 1 << 31, ..entry }, 0, 0, 1), EINVAL, "2 GiB");
    assert_eq!(queues.post_writes(0, entry, 0, INLINE, 1), EINVAL, "inline");
    queues.sq.opcodes = 1 << 2;
    assert_eq!(queues.post_writes(0, entry, 0, 0, 1), EOPNOTSUPP, "a queue that only sends");
    assert_eq!((queues.ring.clone(), queues.sq.producer), before);
}

#[test]
fn indices_wrap_at_16_bits_on_the_wire_and_nowhere_else() {
    let one = [entry(64)];
    let mut queues = Queues::new(32, 64);
    for index in 0..140_000u32 {
        assert_eq!(queues.post(&write(&one, SIGNALED)), 0);
        queues.ring_doorbell();
        assert_eq!(queues.send_record(), (index + 1) & 0xffff);
        queues.complete_send(index as u16);
        let (taken, completion) = queues.poll();
        assert_eq!((taken, completion.status, completion.wqe_index), (1, 0, index & 0xffff));
    }
    assert_eq!((queues.sq.producer, queues.sq.consumer), (140_000, 140_000));
}

#[test]
fn the_consumer_index_of_a_cq_has_24_bits() {
    let mut queues = Queues::new(16, 16);
    for start in [0xffffu32, 0xff_ffff] {
        (queues.cq.consumer, queues.device_index) = (u64::from(start), start);
        // A completion that nobody waits for is stale, but it is consumed all the same.
        queues.complete_send(0);
        let (taken, completion) = queues.poll();
        assert_eq!((taken, completion.status), (1, 0x101));
        assert_eq!(u32::from_be(queues.cq_record[0] as u32), (start + 1) & 0xff_ffff);
    }
}

#[test]
fn a_cqe_of_the_lap_before_is_not_taken_again() {
    let one = [entry(64)];
    let mut queues = Queues::new(64, 4);
    for lap in 0..3u16 {
        for slot in 0..4u16 {
            assert_eq!(queues.poll().0, 0, "lap {lap}, slot {slot}: nothing written yet");
            assert_eq!(queues.post(&write(&one, SIGNALED)), 0);
            queues.ring_doorbell();
            queues.complete_send(lap * 4 + slot);
            assert_eq!(queues.poll().0, 1);
        }
    }
}

#[test]
fn every_syndrome_has_the_status_that_libibverbs_gives() {
    // Right: enum ibv_wc_status of verbs.h.
    for (syndrome, status) in [
        (CqeSyndrome::LocalLength, 1),
        (CqeSyndrome::LocalQpOperation, 2),
        (CqeSyndrome::LocalProtection, 4),
        (CqeSyndrome::WrFlush, 5),
        (CqeSyndrome::MwBind, 6),
        (CqeSyndrome::BadResponse, 7),
        (CqeSyndrome::LocalAccess, 8),
        (CqeSyndrome::RemoteInvalidRequest, 9),
        (CqeSyndrome::RemoteAccess, 10),
        (CqeSyndrome::RemoteOperation, 11),
        (CqeSyndrome::TransportRetryExceeded, 12),
        (CqeSyndrome::RnrRetryExceeded, 13),
        (CqeSyndrome::RemoteAborted, 16),
    ] {
        let mut queues = Queues::new(16, 16);
        let one = [entry(64)];
        queues.post(&write(&one, 0));
        queues.post(&write(&one, 0));
        queues.ring_doorbell();
        let error = CqeError { syndrome: syndrome.to_u8(), vendor: 0x88, ..CqeError::default() };
        queues.complete(CqeFields { opcode: CqeOpcode::RequesterError, error, ..CqeFields::default() });
        let (taken, completion) = queues.poll();
        assert_eq!((taken, completion.status, completion.wr_id), (1, status, 7), "{syndrome:?}");
        assert_eq!((completion.syndrome, completion.vendor_syndrome), (u32::from(syndrome.to_u8()), 0x88));
        // An error completes its own WQE; the one behind it is flushed by a CQE of its own.
        assert_eq!(queues.sq.consumer, 1);
    }
}

#[test]
fn payload_in_a_cqe_is_refused_by_name_and_compressed_blocks_stop_the_poll() {
    // Formats of mlx5dv.h: 0x4 and 0x8 carry payload, both bits mark a compressed block.
    for (format, taken, status) in [(0x4u8, 1, 0x100), (0x8, 1, 0x100), (0xc, -1, 0)] {
        let mut queues = Queues::new(16, 16);
        let one = [entry(64)];
        queues.post(&write(&one, SIGNALED));
        queues.ring_doorbell();
        let mut bytes = CqeFields { qpn: QPN, ..CqeFields::default() }.emit();
        bytes[63] |= format;
        queues.write_cqe(bytes);
        let (count, completion) = queues.poll();
        assert_eq!((count, completion.status), (taken, status), "format {format:#x}");
    }
}

#[test]
fn completions_of_requests_that_are_not_outstanding_give_nothing_back() {
    let wide = [entry(64); 6];
    for (name, qpn, counter) in
        [("another queue", QPN + 1, 0), ("not posted", QPN, 2), ("inside a WQE", QPN, 1)]
    {
        let mut queues = Queues::new(16, 16);
        queues.post(&write(&wide, SIGNALED));
        queues.ring_doorbell();
        let mut bytes = CqeFields { qpn, wqe_counter: counter, ..CqeFields::default() }.emit();
        bytes[63] &= !1;
        queues.write_cqe(bytes);
        let (taken, completion) = queues.poll();
        assert_eq!((taken, completion.status, queues.sq.consumer), (1, 0x101, 0), "{name}");
    }
}

#[test]
fn blueflame_alternates_between_the_halves_and_pushes_a_lone_wqe() {
    let (one, wide, too_wide) = ([entry(64)], [entry(64); 4], [entry(64); 8]);
    for (doorbell, order) in [(EIGHT_BYTES, STRICT), (BLUEFLAME, STRICT), (BLUEFLAME, EARLY)] {
        let mut queues = Queues::new(64, 16);
        (queues.sq.doorbell, queues.sq.order) = (doorbell, order);
        let mut half = 0;
        for (requests, pushed_words) in [(&[&one[..]][..], 8), (&[&wide[..]], 16), (&[&one[..], &one], 0)] {
            queues.register.fill(0);
            let first = queues.sq.producer as usize * 8;
            for sges in requests {
                assert_eq!(queues.post(&write(sges, 0)), 0);
            }
            let last = first + (requests.len() - 1) * 8;
            queues.ring_doorbell();
            let pushed = if doorbell == BLUEFLAME { pushed_words } else { 0 }.max(1);
            assert_eq!(queues.register[half..half + pushed], queues.ring[last..last + pushed]);
            assert!(
                queues
                    .register
                    .iter()
                    .enumerate()
                    .all(|(i, w)| (half..half + pushed).contains(&i) || *w == 0)
            );
            half ^= if doorbell == BLUEFLAME { 32 } else { 0 };
        }
        // A WQE that does not fit half a register is announced by its first 8 bytes, whatever was asked.
        queues.sq.half_bytes = 64;
        queues.sq.register_offset = 0;
        queues.register.fill(0);
        assert_eq!(queues.post(&write(&too_wide, 0)), 0);
        queues.ring_doorbell();
        assert_eq!(queues.register.iter().filter(|word| **word != 0).count(), 1);
        queues.register.fill(0);
        queues.ring_doorbell();
        assert!(queues.register.iter().all(|word| *word == 0), "nothing was posted since");
    }
}

#[test]
fn a_list_stops_at_the_first_bad_request_and_rings_the_ones_before_it() {
    let (one, long) = ([entry(64)], [entry(401)]);
    let mut queues = Queues::new(16, 16);
    let list = [write(&one, 0), write(&one, 0), write(&long, INLINE), write(&one, 0)];
    let mut bad = u32::MAX;
    // SAFETY: as in `Queues::post`; the list has four requests.
    let error = unsafe { db_c_post(&raw mut queues.sq, list.as_ptr(), 4, &raw mut bad) };
    assert_eq!((error, bad, queues.send_record()), (EINVAL, 2, 2));
}

#[test]
fn receives_end_at_the_invalid_key_and_fill_up() {
    let (two, gap) = ([entry(5), entry(6)], [entry(0), entry(6)]);
    let mut queues = Queues::new(16, 16);
    let receive =
        |sges: &[db_sge], wr_id| db_recv_wr { wr_id, sg_list: sges.as_ptr(), num_sge: sges.len() as u32 };
    let list: Vec<_> =
        [&two[..], &gap, &[]].iter().cycle().take(9).zip(10..).map(|(s, id)| receive(s, id)).collect();
    let mut bad = u32::MAX;
    // SAFETY: as in `Queues::post`; the list has nine receives.
    let error = unsafe { db_c_post_recv(&raw mut queues.rq, list.as_ptr(), 9, &raw mut bad) };
    assert_eq!((error, bad, queues.record[0] & 0xffff_ffff), (ENOMEM, 8, u64::from(8u32.to_be())));
    let long = [entry(1 << 31)];
    queues.rq.consumer = 1;
    // SAFETY: as above; one receive.
    let error = unsafe { db_c_post_recv(&raw mut queues.rq, &receive(&long, 0), 1, &raw mut bad) };
    assert_eq!((error, bad, queues.rq.producer), (EINVAL, 0, 8), "2 GiB");
    queues.rq.consumer = 0;
    let bytes: Vec<u8> = queues.receive_ring.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let lengths = |wqe: usize| -> Vec<u32> {
        let wqe = mlx5_layout::RecvWqe::new(&bytes[wqe * 32..(wqe + 1) * 32]).unwrap();
        wqe.segments().map(|pointer| pointer.byte_count).collect()
    };
    assert_eq!((lengths(0), lengths(1), lengths(2)), (vec![5, 6], vec![6], vec![]));

    queues.complete(CqeFields {
        opcode: CqeOpcode::ResponderSendImm,
        byte_count: 11,
        immediate: [1, 2, 3, 4],
        timestamp: 0x1122_3344_5566_7788,
        ..CqeFields::default()
    });
    let (_, completion) = queues.poll();
    assert_eq!((completion.wr_id, completion.byte_len, completion.has_imm), (10, 11, 1));
    assert_eq!(completion.timestamp, 0x1122_3344_5566_7788);
    assert_eq!(completion.imm_data.to_ne_bytes(), [1, 2, 3, 4]);
    assert_eq!(queues.rq.consumer, 1);
}

#[test]
fn a_receive_completion_gives_back_the_oldest_receive_or_none() {
    let mut queues = Queues::new(16, 16);
    let receives = queues.rq.wqes;
    let scatter = [entry(8)];
    let list: Vec<_> = (0..receives)
        .map(|i| db_recv_wr { wr_id: i.into(), sg_list: scatter.as_ptr(), num_sge: 1 })
        .collect();
    // Near the place where the index on the wire wraps, and at the start.
    for start in [0u64, 0xffff, 0x1_fffe] {
        (queues.rq.producer, queues.rq.consumer) = (start, start);
        let mut bad = u32::MAX;
        // SAFETY: as in `Queues::post`; the list has as many receives as it says.
        assert_eq!(unsafe { db_c_post_recv(&raw mut queues.rq, list.as_ptr(), 3, &raw mut bad) }, 0);
        // What an earlier life of the queue left in the CQ: the second receive, one before the first, one not posted.
        for (ahead, status, given_back) in [
            (1u16, 0x101, 0),
            (u16::MAX, 0x101, 0),
            (3, 0x101, 0),
            (0, 0, 1),
            (0, 0x101, 1),
            (1, 0, 2),
            (2, 0, 3),
        ] {
            let wqe_counter = (start as u16).wrapping_add(ahead);
            queues.complete(CqeFields {
                opcode: CqeOpcode::ResponderSend,
                wqe_counter,
                ..CqeFields::default()
            });
            let (_, completion) = queues.poll();
            assert_eq!(
                (completion.status, queues.rq.consumer - start),
                (status, given_back),
                "{start:#x}: {ahead}"
            );
            if status == 0 {
                assert_eq!(completion.wr_id, u64::from(ahead), "{start:#x}");
            }
        }
    }
}

#[test]
fn reset_empties_the_queues_and_drain_drops_what_the_device_left() {
    let one = [entry(64)];
    let mut queues = Queues::new(16, 16);
    for index in 0..3 {
        queues.post(&write(&one, SIGNALED));
        queues.ring_doorbell();
        queues.complete_send(index);
    }
    // SAFETY: as in `Queues::post`.
    unsafe { db_c_reset_send(&raw mut queues.sq) };
    // SAFETY: as in `Queues::post`.
    unsafe { db_c_reset_recv(&raw mut queues.rq) };
    // SAFETY: as in `Queues::post`.
    let dropped = unsafe { db_c_drain(&raw mut queues.cq) };
    // The device's index begins at 0 again, the queue's own behind all that it has used.
    assert_eq!((dropped, queues.sq.producer, queues.record[0]), (3, 1 << 16, 0));
    assert_eq!((queues.sq.rung, queues.sq.consumer), (1 << 16, 1 << 16));
    assert_eq!(queues.poll().0, 0);
    assert_eq!(queues.post(&write(&one, SIGNALED)), 0);
    queues.ring_doorbell();
    queues.complete_send(0);
    assert_eq!(queues.poll().1.status, 0);
}

/// A shared queue that goes on after RESET does not take slots of its last life for those of this one: the inner block of a WQE of
/// this life has one, and a CQE that names it is of no request.
#[test]
fn a_shared_queue_after_reset_forgets_the_slots_of_its_last_life() {
    let (blocks, wide) = (64, [entry(64); 6]);
    let mut queues = Queues::new(blocks, 4 * blocks);
    queues.sq.doorbell = EIGHT_BYTES;
    let mut marks = vec![0_u128; blocks as usize / 4];
    let mut shared = db_shared_sq {
        sq: queues.sq.clone(),
        cq: queues.cq,
        filled: marks.as_mut_ptr().expose_provenance() as u64,
        signal_mask: 15,
        ..db_shared_sq::default()
    };
    // SAFETY: the struct is ours alone.
    assert_eq!(unsafe { db_c_shared_init(&raw mut shared) }, 0);
    // A life in which each of the first blocks was a request, as posters would have left it.
    for _ in 0..4 {
        assert_eq!(queues.post(&write(&[entry(64)], SIGNALED)), 0);
    }
    shared.reserved = 4 | 1 << 63;
    // SAFETY: record and CQ are `queues`', and no device looks at them.
    assert_eq!(unsafe { db_c_shared_reset(&raw mut shared) }, 0);
    assert_eq!(
        [shared.reserved, shared.rung, shared.consumed, shared.published >> DB_PUBLISHED_SHIFT],
        [1 << 16; 4]
    );
    // The next life's first WQE has two blocks.
    queues.sq = shared.sq.clone();
    assert_eq!(queues.post(&write(&wide, SIGNALED)), 0);
    queues.ring_doorbell();
    queues.complete_send(1);
    assert_eq!((queues.poll().1.status, queues.sq.consumer), (0x101, 1 << 16), "inside the WQE");
    queues.complete_send(0);
    assert_eq!((queues.poll().1.status, queues.sq.consumer), (0, (1 << 16) + 2));
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
