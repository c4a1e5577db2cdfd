//! Two ends that exchange packets: every operation at every size, what goes over the wire, and one fault at a time.

use crate::testing::{EndpointConfig, Fault, Kind, LocalWork, OnWire, PacketEnd, Pair, Pick, Rng, Side};
use crate::{Now, Opcode, Psn, SendWindow, Status};

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
fn run_everything(name: &str, unit: usize, mut pair: Pair<PacketEnd>) -> Pair<PacketEnd> {
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
fn every_operation_takes_effect_once_at_every_path_mtu() {
    for mtu in crate::packet::PATH_MTU_BYTES {
        let pair = run_everything(&format!("path MTU {mtu}"), mtu as usize, Pair::by_packet(config(mtu)));
        let counters = pair.a.connection.requester.counters();
        // 5 + 3 + 1 + 1 + 2 + 1 + 1 request packets.
        assert_eq!((counters.transmitted, counters.retransmitted), (14, 0), "path MTU {mtu}");
        assert_eq!(pair.b.naks_sent, 0);
    }
}

#[test]
fn every_operation_survives_every_single_loss_duplicate_and_delay_of_a_packet() {
    for n in 1..=30 {
        for (side, kind) in [(Side::A, Kind::Request), (Side::B, Kind::Reply)] {
            let run = |name: &str, stack: &dyn Fn(Pair<PacketEnd>) -> Pair<PacketEnd>| {
                run_everything(&format!("{kind:?} {n} {name}"), 1024, stack(Pair::by_packet(config(1024))))
            };
            run("lost", &|pair| pair.with_fault(side, |below| Fault::lose(below, Pick::Nth(kind, n))));
            // Just behind the next packets, after the replies, and after the time-out.
            for late_ns in [1, 3_000, 2_000_000] {
                run("twice", &|pair| {
                    pair.with_fault(side, |below| Fault::duplicate(below, Pick::Nth(kind, n), late_ns))
                });
                run("late", &|pair| {
                    pair.with_fault(side, |below| Fault::delay(below, Pick::Nth(kind, n), late_ns))
                });
            }
        }
    }
}

#[test]
fn every_operation_survives_the_wrap_of_its_packets_psns() {
    for first in 0xff_ffe0..=0xff_ffff {
        let config = EndpointConfig { first_psn: Psn::new(first), ..config(256) };
        let pair = Pair::by_packet(config).lose_nth_request(6).lose_nth_reply(2).lose_nth_reply(9);
        run_everything(&format!("first PSN {first:#x}"), 256, pair);
    }
}

/// INV-7: the same seed gives the same packets.
#[test]
fn replay_by_packet_gives_the_same_trace_for_the_same_seed_and_another_for_another() {
    let trace = |seed: u64| {
        let pair = Pair::by_packet(config(256)).with_noise(seed, 30, 100, 200, 4_000);
        run_everything(&format!("seed {seed}"), 256, pair).trace
    };
    for seed in 0..50 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
    assert_ne!(trace(1), trace(2));
}

/// The lines of what side `A` or `B` sent, without times.
fn sent(pair: &Pair<PacketEnd>, side: char) -> Vec<String> {
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
    let counters = pair.a.connection.requester.counters();
    // Packet 2 is lost; 2, 3, 4, 5 go again.
    assert_eq!((counters.transmitted, counters.retransmitted, counters.sequence_naks), (10, 4, 1));
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
    assert_eq!(pair.a.connection.requester.counters().implied_naks, 1);
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
fn no_more_packets_are_under_way_than_the_window_allows() {
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
        assert_eq!(pair.a.connection.requester.counters().retransmitted, 0);
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
        // Half of the response makes no room: its request is still under way.
        while pair.trace.iter().filter(|line| line.contains("A gets")).count() < 50 {
            assert!(pair.step_until(Now(u64::MAX)));
        }
        pair.transmit();
        assert_eq!(sent(&pair, 'A').len(), 6);
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success; 3]);
        assert_eq!(pair.a.connection.requester.counters().retransmitted, 0);
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
        assert_eq!(pair.a.connection.requester.counters().transmitted, 4);
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

fn on_wire(pair: Pair<PacketEnd>, seed: u64, flip: u64, cut: u64) -> Pair<PacketEnd> {
    pair.with_fault(Side::A, |below| OnWire::over(below, flip, cut, Rng::new(seed)))
        .with_fault(Side::B, |below| OnWire::over(below, flip, cut, Rng::new(seed + 1)))
}

/// The bytes say all that the values do.
#[test]
fn a_conversation_in_bytes_is_the_same_conversation() {
    for mtu in crate::packet::PATH_MTU_BYTES {
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
        resent += pair.a.connection.requester.counters().retransmitted;
    }
    assert!(resent > 300, "{resent}");
}
