//! What the shim reads of CQEs: statuses, indices, receives, and queues that are reset.

use mlx5_layout::CqeSyndrome;
use mlx5_layout::cqe::CqeError;

use super::*;

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
        // Left in the CQ by an earlier life: the second receive, one before the first, one not posted.
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

/// After RESET a shared queue does not take slots of its last life for this one's: the inner block of a WQE
/// of this life has one, and a CQE that names it is of no request.
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
