//! Two ends on a virtual clock, in shared memory and on a wire: every operation over every single fault,
//! exact times, replay from a seed, and what goes over the wire.

use crate::testing::{A_QPN, EndpointConfig, Fault, Kind, LocalWork, OnWire, Pair, Pick, Rng, Side, VA};
use crate::{AsyncEvent, Now, Opcode, Psn, SendWindow, ServiceType, Status};

/// How packets are carried.
type Way = fn(EndpointConfig) -> Pair;

/// Several in one, or one by one.
const WAYS: [Way; 2] = [Pair::new, Pair::by_packet];

pub(super) fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(7).wrapping_add(salt)).collect()
}

/// One of each operation, on places of its own; `unit` sets their sizes.
fn everything(unit: usize) -> Vec<LocalWork> {
    vec![
        LocalWork::write(0, &pattern(5 * unit, 1)),
        LocalWork::send(&pattern(3 * unit - 1, 2)),
        LocalWork::fetch_add(49_152, 2),
        LocalWork::read(0, 5 * unit as u32, 65_536),
        LocalWork::write_imm(24_576, &pattern(unit + 1, 3), [1, 2, 3, 4]),
        LocalWork::compare_swap(49_160, 0, 77),
        LocalWork::send(&[]),
    ]
}

fn config(path_mtu_bytes: u32) -> EndpointConfig {
    EndpointConfig { path_mtu_bytes, memory_bytes: 128 << 10, ..EndpointConfig::default() }
}

/// Posts one of each, runs, and checks that each took effect exactly once and in order.
fn run_everything(name: &str, unit: usize, mut pair: Pair) -> Pair {
    for _ in 0..3 {
        pair.b.post_receive(16_384);
    }
    for work in everything(unit) {
        assert!(pair.a.post(work), "{name}");
    }
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success; 7], "{name}");
    assert_eq!(&pair.b.memory()[..5 * unit], pattern(5 * unit, 1), "{name}");
    assert_eq!(&pair.b.memory()[24_576..24_577 + unit], pattern(unit + 1, 3), "{name}");
    assert_eq!(pair.b.memory()[49_152..49_160], 2u64.to_ne_bytes(), "{name}: added once");
    assert_eq!(pair.b.memory()[49_160..49_168], 77u64.to_ne_bytes(), "{name}");
    assert_eq!(&pair.a.memory()[65_536..65_536 + 5 * unit], pattern(5 * unit, 1), "{name}: READ");
    assert_eq!(pair.b.atomics(), 2, "{name}");
    let old: Vec<_> = pair.a.completions.iter().filter_map(|completion| completion.atomic_old).collect();
    assert_eq!(old, [0, 0], "{name}");
    let received: Vec<_> = pair.b.received.iter().map(|r| (r.id, r.bytes.clone())).collect();
    assert_eq!(received, [(0, pattern(3 * unit - 1, 2)), (1, vec![]), (2, vec![])], "{name}");
    let imm = pair.b.received[1].completion.map(|done| (done.opcode, done.imm, done.byte_len));
    assert_eq!(imm, Some((Opcode::WriteImm, [1, 2, 3, 4], unit as u32 + 1)), "{name}");
    assert_eq!(pair.b.connection.responder.msn(), 7, "{name}");
    assert!(pair.b.established, "{name}");
    pair
}

#[test]
fn every_operation_survives_every_single_loss_duplicate_and_delay() {
    for (way, fragment_bytes, frames) in
        [(WAYS[0], u32::MAX, 16), (WAYS[0], 4096, 16), (WAYS[0], 1000, 16), (WAYS[1], 0, 30)]
    {
        let run = |name: String, stack: &dyn Fn(Pair) -> Pair| {
            let config = EndpointConfig { fragment_bytes, ..config(1024) };
            run_everything(&format!("{name}, {fragment_bytes} bytes at once"), 1024, stack(way(config)))
        };
        let clean = run("no fault".into(), &|pair| pair);
        assert_eq!(clean.a.connection.retransmitted, 0);
        for n in 1..=frames {
            for (side, kind) in [(Side::A, Kind::Request), (Side::B, Kind::Reply)] {
                let pick = || Pick::Nth(kind, n);
                run(format!("{kind:?} {n} lost"), &|pair| {
                    pair.with_fault(side, |below| Fault::lose(below, pick()))
                });
                // Just behind the next frames, after the replies, and after the time-out.
                for late_ns in [1, 3_000, 2_000_000] {
                    run(format!("{kind:?} {n} twice"), &|pair| {
                        pair.with_fault(side, |below| Fault::duplicate(below, pick(), late_ns))
                    });
                    run(format!("{kind:?} {n} late by {late_ns}"), &|pair| {
                        pair.with_fault(side, |below| Fault::delay(below, pick(), late_ns))
                    });
                }
            }
        }
    }
}

#[test]
fn every_operation_survives_the_wrap_of_its_psns() {
    for (way, lost) in WAYS.into_iter().zip([3, 6]) {
        for first in 0xff_ffe0..=0xff_ffff {
            let config = EndpointConfig { first_psn: Psn::new(first), ..config(256) };
            let pair = way(config).lose_nth_request(lost).lose_nth_reply(2).lose_nth_reply(9);
            run_everything(&format!("first PSN {first:#x}"), 256, pair);
        }
    }
}

/// INV-7: the same seed gives the same packets.
#[test]
fn replay_gives_the_same_trace_for_the_same_seed_and_another_for_another() {
    for way in WAYS {
        let trace = |seed: u64| {
            let config = EndpointConfig { fragment_bytes: 600, ..config(256) };
            let pair = way(config).with_noise(seed, 30, 100, 200, 4_000);
            run_everything(&format!("seed {seed}"), 256, pair).trace
        };
        for seed in 0..50 {
            assert_eq!(trace(seed), trace(seed), "seed {seed}");
        }
        assert_ne!(trace(1), trace(2));
    }
}

/// IBTA §9.7.6: the first timeout and one for each retry, exact to the nanosecond, whatever was in flight.
#[test]
fn a_peer_that_dies_is_a_retry_error_at_exactly_the_configured_time() {
    let works = [
        LocalWork::write(8, &[2; 5 * 256]),
        LocalWork::send(&[3; 700]),
        LocalWork::read(0, 1000, 4096),
        LocalWork::fetch_add(0, 1),
    ];
    for (timeout, retry_counts) in [(1, 0..=7), (8, 0..=7), (14, 0..=7), (31, 7..=7)] {
        for retry_count in retry_counts {
            for (work, by_packet) in works.iter().flat_map(|work| [(work, false), (work, true)]) {
                let config =
                    EndpointConfig { timeout, retry_count, path_mtu_bytes: 256, ..EndpointConfig::default() };
                // From the second message's third packet on all is lost; from its only one, if it has one.
                let several = by_packet && matches!(work.opcode, Opcode::Write | Opcode::Send);
                let lost = Pick::From(Kind::Request, if several { 4 } else { 2 });
                let pair = WAYS[usize::from(by_packet)](config);
                let mut pair = pair.with_fault(Side::A, |below| Fault::lose(below, lost));
                pair.b.post_receive(1000);
                pair.a.post(LocalWork::write(0, &[1; 8]));
                pair.a.post(work.clone());
                let name = format!(
                    "{:?}, by packet: {by_packet}, time-out {timeout}, {retry_count} retries",
                    work.opcode
                );
                // The ACK of the first message comes after a round trip of 2 µs.
                let end = Now(2_000 + (4096u64 << timeout) * (u64::from(retry_count) + 1));
                pair.run_until(Now(end.0 - 1));
                assert_eq!(pair.a.statuses(), [Status::Success], "{name}");
                pair.run_until_idle();
                assert_eq!(pair.a.statuses(), [Status::Success, Status::RetryExceeded], "{name}");
                assert_eq!(pair.now(), end, "{name}");
                assert!(several || pair.b.memory()[8] == 0, "{name}: the lost one never arrived");
            }
        }
    }
}

#[test]
fn a_receiver_that_stays_unready_is_an_rnr_error_after_the_configured_tries() {
    for way in WAYS {
        let mut pair = way(EndpointConfig { rnr_retry: 3, ..config(256) });
        pair.a.post(LocalWork::send(&[5; 700]));
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::RnrRetryExceeded]);
        assert_eq!(pair.b.naks_sent, 4);
        // Four round trips of 2 µs, three waits of 0.64 ms (code 12).
        assert_eq!(pair.now(), Now(4 * 2_000 + 3 * 640_000));
    }
}

#[test]
fn unreliable_connections_lose_what_the_link_loses_and_nothing_else() {
    for way in WAYS {
        let config = EndpointConfig { service: ServiceType::Uc, fragment_bytes: 1000, ..config(1024) };
        // Messages of three packets: packet 5 lies in the second message.
        let mut pair = way(config).lose_nth_request(5);
        for i in 0..4 {
            pair.b.post_receive(4096);
            assert!(pair.a.post(LocalWork::send(&pattern(3000, i))));
        }
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success; 4], "complete when sent");
        let received: Vec<_> = pair.b.received.iter().map(|received| received.bytes.clone()).collect();
        assert_eq!(received, [pattern(3000, 0), pattern(3000, 2), pattern(3000, 3)]);
        assert_eq!(pair.b.received[1].id, 1, "the receive of the lost message serves the next");
    }
}

#[test]
fn datagrams_arrive_with_room_for_the_grh_or_not_at_all() {
    for way in WAYS {
        let config = EndpointConfig { service: ServiceType::Ud, ..config(1024) };
        let mut pair = way(config).lose_nth_request(2);
        (0..3).for_each(|_| pair.b.post_receive(140));
        for i in 0..5 {
            assert!(pair.a.post(LocalWork::send(&pattern(100, i))));
        }
        assert!(pair.a.post(LocalWork::send(&pattern(1025, 9))));
        pair.run_until_idle();
        let mut statuses = vec![Status::Success; 5];
        statuses.push(Status::LocalLength);
        assert_eq!(pair.a.statuses(), statuses, "complete when sent; one is longer than a packet");
        let received: Vec<_> = pair.b.received.iter().map(|received| received.bytes.clone()).collect();
        assert_eq!(received, [pattern(100, 0), pattern(100, 2), pattern(100, 3)]);
        let completion = pair.b.received[0].completion.expect("a completion");
        assert_eq!((completion.byte_len, completion.src_qpn), (140, A_QPN));
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::new(EndpointConfig::default());
    pair.a.post(LocalWork::send(&[5; 100]));
    pair.a.post(LocalWork::write(0, &[6; 8]));
    pair.run_until(Now(3_000_000));
    assert_eq!(pair.a.statuses(), []);
    assert!(pair.b.naks_sent >= 4);
    pair.b.post_receive(100);
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success; 2]);
    assert_eq!(pair.b.received[0].bytes, [5; 100]);
}

#[test]
fn a_refused_message_fails_here_and_ends_the_qp_there() {
    let wrong_key = LocalWork { rkey: 1, ..LocalWork::write(0, &[9; 8]) };
    let out_of_bounds = LocalWork::write(65_536 - 4, &[9; 8]);
    let below = LocalWork { remote_offset: 0u64.wrapping_sub(VA), ..LocalWork::write(0, &[9; 8]) };
    let unaligned = LocalWork::fetch_add(4, 1);
    let too_long = LocalWork::send(&[9; 33]);
    for (name, bad, status, event, receive) in [
        ("wrong key", wrong_key, Status::RemoteAccess, Some(AsyncEvent::AccessError), Status::Flushed),
        (
            "out of bounds",
            out_of_bounds,
            Status::RemoteAccess,
            Some(AsyncEvent::AccessError),
            Status::Flushed,
        ),
        ("below the region", below, Status::RemoteAccess, Some(AsyncEvent::AccessError), Status::Flushed),
        (
            "unaligned atomic",
            unaligned,
            Status::RemoteInvalidRequest,
            Some(AsyncEvent::RequestError),
            Status::Flushed,
        ),
        ("send too long", too_long, Status::RemoteInvalidRequest, None, Status::LocalLength),
    ] {
        let mut pair = Pair::new(EndpointConfig::default());
        pair.b.post_receive(32);
        pair.b.post_receive(32);
        for work in [LocalWork::write(100, &[1; 8]), bad, LocalWork::write(200, &[2; 8])] {
            pair.a.post(work);
        }
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success, status, Status::Flushed], "{name}");
        assert_eq!(pair.b.failure.and_then(|failure| failure.event), event, "{name}");
        let received: Vec<_> =
            pair.b.received.iter().map(|received| (received.id, received.status)).collect();
        assert_eq!(received, [(0, receive), (1, Status::Flushed)], "{name}");
        assert_eq!(pair.b.memory()[200], 0, "{name}: nothing after the error is executed");
        assert!(pair.b.connection.requester.is_failed(), "{name}");
    }
}

#[test]
fn a_lost_nak_ends_in_a_retry_error_since_the_peer_is_silent_in_error() {
    let mut pair =
        Pair::new(EndpointConfig { retry_count: 2, ..EndpointConfig::default() }).lose_nth_reply(1);
    pair.a.post(LocalWork { rkey: 1, ..LocalWork::write(0, &[9; 8]) });
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::RetryExceeded]);
}

#[test]
fn both_directions_are_independent() {
    let mut pair = Pair::new(EndpointConfig::default()).with_noise(11, 50, 50, 50, 10_000);
    for i in 0..50u8 {
        assert!(pair.a.post(LocalWork::write(u64::from(i) * 8, &[i + 1; 8])));
        assert!(pair.b.post(LocalWork::write(u64::from(i) * 8, &[i + 101; 8])));
    }
    pair.run_until_idle();
    for i in 0..50 {
        assert_eq!(pair.b.memory()[i * 8], i as u8 + 1);
        assert_eq!(pair.a.memory()[i * 8], i as u8 + 101);
    }
}

#[test]
fn a_send_with_invalidate_invalidates_before_it_completes() {
    let mut pair = Pair::new(EndpointConfig::default());
    pair.b.post_receive(64);
    pair.a.post(LocalWork {
        opcode: Opcode::SendInvalidate,
        imm: [0, 0, 0x55, 0xaa],
        ..LocalWork::send(&[1])
    });
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success]);
    assert_eq!(pair.b.invalidated(), [0x55aa]);
}

#[test]
fn every_operation_takes_effect_once_at_every_path_mtu() {
    for mtu in crate::testing::PATH_MTU_BYTES {
        let pair = run_everything(&format!("path MTU {mtu}"), mtu as usize, Pair::by_packet(config(mtu)));
        let sent = &pair.a.connection;
        // 5 + 3 + 1 + 1 + 2 + 1 + 1 request packets.
        assert_eq!((sent.transmitted, sent.retransmitted), (14, 0), "path MTU {mtu}");
        assert_eq!(pair.b.naks_sent, 0);
    }
}

/// The lines of what side `A` or `B` sent, without times.
fn sent(pair: &Pair, side: char) -> Vec<String> {
    let mark = format!("{side} sends ");
    pair.trace.iter().filter_map(|line| Some(line.split_once(&mark)?.1.to_owned())).collect()
}

#[test]
fn a_lost_packet_is_sent_again_from_its_own_psn_after_one_nak() {
    let config = EndpointConfig { first_psn: Psn::new(0), ..config(256) };
    let mut pair = Pair::by_packet(config).lose_nth_request(3);
    pair.a.post(LocalWork::write(0, &pattern(256 * 6, 1)));
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success]);
    let sender = &pair.a.connection;
    // Packet 2 is lost; 2, 3, 4, 5 go again.
    assert_eq!((sender.transmitted, sender.retransmitted, pair.b.naks_sent), (10, 4, 1));
    assert_eq!(sent(&pair, 'B').len(), 2, "one NAK, one ACK: {:?}", sent(&pair, 'B'));
    assert!(sent(&pair, 'B')[0].contains("Nak(PsnSequence)") && sent(&pair, 'B')[0].contains("0x000002"));
}

#[test]
fn a_read_is_asked_for_again_from_its_first_missing_packet() {
    let config = EndpointConfig { first_psn: Psn::new(0), ..config(256) };
    let mut pair = Pair::by_packet(config).lose_nth_reply(3);
    pair.b.memory_mut()[..1500].copy_from_slice(&pattern(1500, 5));
    pair.a.post(LocalWork::read(0, 1500, 4096));
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success]);
    assert_eq!(&pair.a.memory()[4096..5596], pattern(1500, 5));
    let requests = sent(&pair, 'A');
    assert_eq!(requests.len(), 2);
    assert!(requests[0].contains("dma_bytes: 1500") && requests[0].contains("0x000000"), "{}", requests[0]);
    let va = crate::testing::VA + 512;
    assert!(requests[1].contains("dma_bytes: 988") && requests[1].contains("0x000002"), "{}", requests[1]);
    assert!(requests[1].contains(&format!("va: {va}")), "{}", requests[1]);
}

#[test]
fn acknowledgements_gather_and_each_covers_all_before_it() {
    let config = EndpointConfig { ack_every: 8, ..config(256) };
    let mut pair = Pair::by_packet(config);
    pair.a.post(LocalWork::write(0, &pattern(256 * 64, 1)));
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success]);
    // All 64 arrive at one moment here, each at a step of its own.
    assert_eq!(sent(&pair, 'B').len(), 8);
    // On the same wire, an acknowledgement only where the requester asks: every 32nd packet and the last.
    let config =
        EndpointConfig { ack_every: 1000, send_window: SendWindow { packets: 100, ack_every: 32 }, ..config };
    let mut pair = Pair::by_packet(config);
    pair.a.post(LocalWork::write(0, &pattern(256 * 70, 1)));
    pair.run_until_idle();
    assert_eq!(sent(&pair, 'B').len(), 3);
}

#[test]
fn no_more_packets_are_in_flight_than_the_window_allows() {
    for packets in [1, 2, 7] {
        let send_window = SendWindow { packets, ack_every: 1000 };
        let mut pair = Pair::by_packet(EndpointConfig { send_window, ack_every: 1000, ..config(256) });
        pair.a.post(LocalWork::write(0, &pattern(256 * 20, 1)));
        pair.transmit();
        assert_eq!(sent(&pair, 'A').len(), packets as usize);
        assert!(
            sent(&pair, 'A').last().is_some_and(|line| line.ends_with("AckReq")),
            "or it would wait for ever"
        );
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success]);
        assert_eq!(pair.a.connection.retransmitted, 0);
        assert!(pair.now() < Now(1_000_000), "no time-out was needed");
    }
}

/// Ten thousand QPs of which one is used: the others cost their two states and nothing behind them.
#[test]
fn a_connection_that_was_never_used_is_small_and_has_allocated_nothing() {
    let pair = Pair::by_packet(EndpointConfig { window_messages: 128, rd_atomic: 16, ..config(4096) });
    let connection = &pair.a.connection;
    assert_eq!(connection.requester.held() + connection.responder.held(), 0);
    let bytes = size_of::<crate::Requester>() + size_of::<crate::Responder>();
    assert!(bytes <= 1024, "{bytes}");
}

#[test]
fn a_window_of_bytes_is_as_many_packets_and_asks_four_times_in_it() {
    for (bytes, mtu, packets, ack_every) in [
        (262_144, 4096, 64, 16),
        (262_144, 1024, 256, 16),
        (65_536, 4096, 16, 4),
        (1, 256, 1, 1),
        (257, 256, 2, 1),
    ] {
        assert_eq!(SendWindow::of_bytes(bytes, mtu), SendWindow { packets, ack_every }, "{bytes} / {mtu}");
    }
    assert_eq!(SendWindow::default(), SendWindow { packets: 64, ack_every: 16 });
}

/// The PSNs of a READ's response are the peer's packets, not ours: what is posted behind it goes at once.
#[test]
fn a_long_read_takes_one_place_in_the_window() {
    for ack_every in [1, 1000] {
        let send_window = SendWindow { packets: 6, ack_every };
        let mut pair = Pair::by_packet(EndpointConfig { send_window, ..config(256) });
        pair.b.post_receive(4096);
        assert!(pair.a.post(LocalWork::read(0, 256 * 100, 65_536)));
        assert!(pair.a.post(LocalWork::send(&pattern(256 * 3, 1))));
        assert!(pair.a.post(LocalWork::write(0, &pattern(256 * 9, 1))));
        pair.transmit();
        // The READ, three packets of the SEND, two of the WRITE.
        assert_eq!(sent(&pair, 'A').len(), 6, "{:?}", sent(&pair, 'A'));
        // Half of the response makes no room: its request is still in flight.
        while pair.trace.iter().filter(|line| line.contains("A gets")).count() < 50 {
            assert!(pair.step_until(Now(u64::MAX)));
        }
        pair.transmit();
        assert_eq!(sent(&pair, 'A').len(), 6);
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success; 3]);
        assert_eq!(pair.a.connection.retransmitted, 0);
        assert!(pair.now() < Now(1_000_000), "no time-out was needed");
    }
}

/// Or a lost one of many would cost the responses to all.
#[test]
fn no_further_read_is_sent_while_a_window_of_response_packets_is_to_come() {
    for (packets, first) in [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 4)] {
        let send_window = SendWindow { packets, ack_every: 1000 };
        let mut pair = Pair::by_packet(EndpointConfig { send_window, ..config(256) });
        for index in 0..4 {
            assert!(pair.a.post(LocalWork::read(0, 256 * 4, 65_536 + 1024 * index)));
        }
        pair.transmit();
        assert_eq!(sent(&pair, 'A').len(), first, "window {packets}");
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success; 4]);
        assert_eq!(pair.a.connection.transmitted, 4);
    }
}

#[test]
fn a_window_with_reads_in_it_survives_every_single_loss() {
    for n in 1..=40 {
        for (side, kind) in [(Side::A, Kind::Request), (Side::B, Kind::Reply)] {
            for packets in [1, 2, 3] {
                let send_window = SendWindow { packets, ack_every: 1000 };
                let pair = Pair::by_packet(EndpointConfig { send_window, ..config(256) });
                let pair = pair.with_fault(side, |below| Fault::lose(below, Pick::Nth(kind, n)));
                run_everything(&format!("{kind:?} {n} lost, window {packets}"), 1024, pair);
            }
        }
    }
}

fn on_wire(pair: Pair, seed: u64, flip: u64, cut: u64) -> Pair {
    pair.with_fault(Side::A, |below| OnWire::over(below, flip, cut, Rng::new(seed)))
        .with_fault(Side::B, |below| OnWire::over(below, flip, cut, Rng::new(seed + 1)))
}

/// The bytes say all that the values do.
#[test]
fn a_conversation_in_bytes_is_the_same_conversation() {
    for mtu in crate::testing::PATH_MTU_BYTES {
        let values = run_everything("values", 1024.min(mtu as usize), Pair::by_packet(config(mtu)));
        let pair = on_wire(Pair::by_packet(config(mtu)), 0, 0, 0);
        let bytes = run_everything("bytes", 1024.min(mtu as usize), pair);
        assert_eq!(values.trace, bytes.trace, "path MTU {mtu}");
    }
}

#[test]
fn damaged_bytes_are_lost_packets_and_nothing_worse() {
    let mut resent = 0;
    for seed in 0..100 {
        let pair = on_wire(Pair::by_packet(config(256)), seed, 50, 20);
        let pair = run_everything(&format!("seed {seed}"), 256, pair);
        resent += pair.a.connection.retransmitted;
    }
    assert!(resent > 300, "{resent}");
}
