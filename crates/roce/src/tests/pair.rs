//! Two ends on a virtual clock: every operation over every single fault, exact times, replay from a seed.

use crate::testing::{A_QPN, EndpointConfig, Fault, Kind, LocalWork, Pair, Pick, Side, VA};
use crate::{AsyncEvent, Now, Opcode, Psn, ServiceType, Status};

fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|i| (i as u8).wrapping_mul(7).wrapping_add(salt)).collect()
}

/// One of each operation, on places of its own.
fn everything() -> Vec<LocalWork> {
    vec![
        LocalWork::write(0, &pattern(5000, 1)),
        LocalWork::send(&pattern(3071, 2)),
        LocalWork::fetch_add(16_384, 2),
        LocalWork::read(0, 5000, 32_768),
        LocalWork::write_imm(8_192, &pattern(64, 3), [1, 2, 3, 4]),
        LocalWork::compare_swap(16_392, 0, 77),
        LocalWork::send(&[]),
    ]
}

/// Posts one of each, runs, and checks that each took effect exactly once and in order.
fn run_everything(name: &str, mut pair: Pair) -> Pair {
    for _ in 0..3 {
        pair.b.post_receive(8192);
    }
    for work in everything() {
        assert!(pair.a.post(work), "{name}");
    }
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success; 7], "{name}");
    assert_eq!(&pair.b.memory()[..5000], pattern(5000, 1), "{name}");
    assert_eq!(&pair.b.memory()[8192..8256], pattern(64, 3), "{name}");
    assert_eq!(pair.b.memory()[16_384..16_392], 2u64.to_ne_bytes(), "{name}: added once");
    assert_eq!(pair.b.memory()[16_392..16_400], 77u64.to_ne_bytes(), "{name}");
    assert_eq!(&pair.a.memory()[32_768..37_768], pattern(5000, 1), "{name}: READ");
    let old: Vec<_> = pair.a.completions.iter().filter_map(|completion| completion.atomic_old).collect();
    assert_eq!(old, [0, 0], "{name}");
    let received: Vec<_> = pair.b.received.iter().map(|r| (r.id, r.bytes.clone())).collect();
    assert_eq!(received, [(0, pattern(3071, 2)), (1, vec![]), (2, vec![])], "{name}");
    let imm = pair.b.received[1]
        .completion
        .map(|completion| (completion.opcode, completion.imm, completion.byte_len));
    assert_eq!(imm, Some((Opcode::WriteImm, [1, 2, 3, 4], 64)), "{name}");
    assert_eq!(pair.b.connection.responder.msn(), 7, "{name}");
    assert!(pair.b.established, "{name}");
    pair
}

#[test]
fn every_operation_survives_every_single_loss_duplicate_and_delay() {
    let run = |name: &str, fragment_bytes: u32, stack: &dyn Fn(Pair) -> Pair| {
        let config = EndpointConfig { fragment_bytes, ..EndpointConfig::default() };
        run_everything(name, stack(Pair::new(config)))
    };
    for fragment_bytes in [u32::MAX, 4096, 1000] {
        let clean = run("no fault", fragment_bytes, &|pair| pair);
        assert_eq!(clean.a.connection.requester.counters().retransmitted, 0);
        for n in 1..=16 {
            for kind in [Kind::Request, Kind::Reply] {
                let side = if kind == Kind::Request { Side::A } else { Side::B };
                run(&format!("{kind:?} {n} lost"), fragment_bytes, &|pair| {
                    pair.with_fault(side, |below| Fault::lose(below, Pick::Nth(kind, n)))
                });
                // Just behind the next frames, after the replies, and after the time-out.
                for late_ns in [1, 3_000, 2_000_000] {
                    run(&format!("{kind:?} {n} twice"), fragment_bytes, &|pair| {
                        pair.with_fault(side, |below| Fault::duplicate(below, Pick::Nth(kind, n), late_ns))
                    });
                    run(&format!("{kind:?} {n} late by {late_ns}"), fragment_bytes, &|pair| {
                        pair.with_fault(side, |below| Fault::delay(below, Pick::Nth(kind, n), late_ns))
                    });
                }
            }
        }
    }
}

#[test]
fn every_operation_survives_the_wrap_of_its_psns() {
    for first in 0xff_fff0..=0xff_ffff {
        let config = EndpointConfig { first_psn: Psn::new(first), ..EndpointConfig::default() };
        run_everything(
            &format!("first PSN {first:#x}"),
            Pair::new(config).lose_nth_request(3).lose_nth_reply(2),
        );
    }
}

/// INV-7: the same seed gives the same packets.
#[test]
fn replay_gives_the_same_trace_for_the_same_seed_and_another_for_another() {
    let trace = |seed: u64| {
        let config = EndpointConfig { fragment_bytes: 1500, ..EndpointConfig::default() };
        run_everything("noise", Pair::new(config).with_noise(seed, 30, 100, 200, 4_000)).trace
    };
    for seed in 0..50 {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
    assert_ne!(trace(1), trace(2));
}

#[test]
fn a_dead_peer_is_a_retry_error_at_the_configured_time() {
    for (timeout, retry_count) in [(1, 0), (8, 3), (14, 7), (31, 7)] {
        let config = EndpointConfig { timeout, retry_count, ..EndpointConfig::default() };
        let mut pair =
            Pair::new(config).with_fault(Side::A, |below| Fault::lose(below, Pick::From(Kind::Request, 2)));
        pair.a.post(LocalWork::write(0, &[1; 8]));
        pair.a.post(LocalWork::write(8, &[2; 8]));
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), [Status::Success, Status::RetryExceeded]);
        // The first ACK comes after a round trip of 2 µs, unless the shortest time-out is over sooner.
        let since = 2_000;
        let whole = (4096u64 << timeout) * (u64::from(retry_count) + 1);
        assert_eq!(pair.now(), Now(since + whole), "time-out {timeout}, {retry_count} retries");
        assert_eq!(pair.b.memory()[8], 0, "the lost one never arrived");
    }
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for() {
    let mut pair = Pair::new(EndpointConfig::default());
    pair.a.post(LocalWork::send(&[5; 100]));
    pair.a.post(LocalWork::write(0, &[6; 8]));
    pair.run_until(Now(3_000_000));
    assert_eq!(pair.a.statuses(), []);
    assert!(pair.b.connection.responder.counters().rnr_naks >= 4);
    pair.b.post_receive(100);
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success; 2]);
    assert_eq!(pair.b.received[0].bytes, [5; 100]);
}

#[test]
fn a_receiver_that_stays_unready_is_an_rnr_error_after_the_configured_tries() {
    let config = EndpointConfig { rnr_retry: 3, ..EndpointConfig::default() };
    let mut pair = Pair::new(config);
    pair.a.post(LocalWork::send(&[5]));
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::RnrRetryExceeded]);
    assert_eq!(pair.b.connection.responder.counters().rnr_naks, 4);
    // Four round trips of 2 µs, three waits of 0.64 ms (code 12).
    assert_eq!(pair.now(), Now(4 * 2_000 + 3 * 640_000));
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
fn unreliable_connections_lose_what_the_link_loses_and_nothing_else() {
    let config =
        EndpointConfig { service: ServiceType::Uc, fragment_bytes: 1000, ..EndpointConfig::default() };
    // Messages of three fragments: frame 5 lies in the second message.
    let mut pair = Pair::new(config).lose_nth_request(5);
    for i in 0..4 {
        pair.b.post_receive(4096);
        pair.a.post(LocalWork::send(&pattern(3000, i)));
    }
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success; 4], "complete when sent");
    let received: Vec<_> = pair.b.received.iter().map(|received| received.bytes.clone()).collect();
    assert_eq!(received, [pattern(3000, 0), pattern(3000, 2), pattern(3000, 3)]);
    assert_eq!(pair.b.received[1].id, 1, "the receive of the lost message serves the next");
}

#[test]
fn datagrams_arrive_with_room_for_the_grh() {
    let config = EndpointConfig { service: ServiceType::Ud, ..EndpointConfig::default() };
    let mut pair = Pair::new(config);
    pair.b.post_receive(140);
    pair.a.post(LocalWork::send(&pattern(100, 9)));
    pair.a.post(LocalWork::send(&pattern(100, 10)));
    pair.run_until_idle();
    assert_eq!(pair.a.statuses(), [Status::Success; 2], "the second finds no receive, and nobody says so");
    assert_eq!(pair.b.received.len(), 1);
    assert_eq!(pair.b.received[0].bytes, pattern(100, 9));
    let completion = pair.b.received[0].completion.expect("a completion");
    assert_eq!((completion.byte_len, completion.src_qpn), (140, A_QPN));
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
