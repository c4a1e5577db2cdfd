//! What the shim writes for each request: WQEs, records, doorbells, and what it refuses.

use mlx5_layout::send_wqe::{Addressing, DataSegment, SendWqe};

use super::*;

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
            (body.remote.va, body.remote.rkey),
            if matches!(opcode, 2 | 3) { (0, 0) } else { (0x7f00_0000_1000, 0x1234) }
        );
        assert_eq!(
            body.atomic.swap_add,
            match opcode {
                5 => 6,
                6 => 5,
                _ => 0,
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
    // The completion of the WQE at block 2 retires three blocks: its own and the two unsignalled before.
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

/// Singly and as a batch: the same blocks, remembered requests and doorbell. At the end of the ring, and
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

/// In a row only the last request has a slot: the others' hold what an earlier lap or life of the queue left,
/// which is not taken for theirs. A CQE that names the middle of nothing is stale.
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
