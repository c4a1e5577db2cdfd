//! Goodput of a connection over a lossy line, on the virtual clock: a table of windows, losses, operations.
//!
//! The line: 25 Gbit/s, 10 µs each way, so that 15 packets of 4 KiB fill it; random loss both ways. Timeout 8
//! (1 ms), path MTU 4096, messages of 64 KiB. Going back to a lost packet resends all behind it, so a loss
//! costs the line time of what was in flight. A large window costs more than it brings until the second loss,
//! which shrinks it. A loss without a NAK (of the repetition, or of the NAK) costs a timeout.

use std::fmt::Write as _;

use crate::testing::{EndpointConfig, Fault, Line, LocalWork, Pair, Pick, Rng, Side, Wire};
use crate::{Now, Opcode, SendWindow, Status};

const GBPS: u64 = 25;
const LATENCY_NS: u64 = 10_000;
const MTU: u32 = 4096;
const MESSAGE_BYTES: usize = 64 << 10;
const MESSAGES: usize = 1000;
/// In a thousand packets.
const LOSSES: [u64; 4] = [0, 1, 10, 50];
const WINDOWS: [u32; 4] = [16, 32, 128, 256];

/// Payload carried, in Gbit/s.
fn goodput(opcode: Opcode, send_window: SendWindow, loss: u64) -> f64 {
    let config = EndpointConfig {
        path_mtu_bytes: MTU,
        memory_bytes: MESSAGE_BYTES,
        timeout: 8,
        retry_count: 7,
        rd_atomic: 16,
        send_window,
        ack_every: 16,
        ..EndpointConfig::default()
    };
    let line = |seed| {
        let far = Box::new(Wire { latency_ns: LATENCY_NS });
        Line::over(Fault::lose(far, Pick::Chance(loss, Rng::new(seed))), GBPS)
    };
    let mut pair = Pair::by_packet(config).with_fault(Side::A, |_| line(7)).with_fault(Side::B, |_| line(77));
    let work = match opcode {
        Opcode::Read => LocalWork::read(0, MESSAGE_BYTES as u32, 0),
        Opcode::Send => LocalWork::send(&vec![7; MESSAGE_BYTES]),
        _ => LocalWork::write(0, &vec![7; MESSAGE_BYTES]),
    };
    for _ in 0..MESSAGES {
        if opcode == Opcode::Send {
            pair.b.post_receive(MESSAGE_BYTES as u64);
        }
        while !pair.a.post(work.clone()) {
            assert!(pair.step_until(Now(u64::MAX)), "a queue that is full and idle");
            pair.trace.clear();
            pair.b.received.clear();
        }
    }
    pair.run_until_idle();
    assert_eq!(
        pair.a.statuses(),
        vec![Status::Success; MESSAGES],
        "{opcode:?}, {send_window:?}, {loss}/1000"
    );
    (MESSAGES * MESSAGE_BYTES * 8) as f64 / pair.now().0 as f64
}

/// A line of the table, and what each loss leaves of the first column.
fn row(opcode: Opcode, send_window: SendWindow) -> (String, Vec<f64>) {
    let rates: Vec<f64> = LOSSES.iter().map(|loss| goodput(opcode, send_window, *loss)).collect();
    let left: Vec<f64> = rates.iter().map(|rate| rate / rates[0]).collect();
    let SendWindow { packets, ack_every } = send_window;
    let mut line = format!("{:<7}{packets:>7}{ack_every:>10}{:>12.1}", format!("{opcode:?}"), rates[0]);
    for part in &left[1..] {
        write!(line, "{part:>8.2}").expect("a string takes all");
    }
    (line, left)
}

#[test]
fn loss_leaves_of_the_goodput_what_the_table_says() {
    let mut table = String::from(
        "operation, window, AckReq every; Gbit/s without loss, part left with 0.1, 1, 5 % lost\n",
    );
    for packets in WINDOWS {
        let (line, _) = row(Opcode::Write, SendWindow::of_bytes(packets * MTU, MTU));
        writeln!(table, "{line}").expect("a string takes all");
    }
    for opcode in [Opcode::Write, Opcode::Send, Opcode::Read] {
        let (line, left) = row(opcode, SendWindow::default());
        writeln!(table, "{line}  (default)").expect("a string takes all");
        assert!(left[1] >= 0.7 && left[2] >= 0.3, "{line}");
    }
    let snapshot = include_str!("snapshots/goodput.txt");
    assert!(table == snapshot, "src/tests/snapshots/goodput.txt says otherwise; now it is\n{table}");
}

/// 4 % loss both ways, round trip 3 ms, 480 packets: what a kernel peer of this requester counted.
#[test]
fn a_lossy_line_with_a_long_way_does_not_get_whole_windows_again_and_again() {
    const SEEDS: u64 = 20;
    const PACKETS: u64 = 480;
    const MESSAGES: u64 = 30;
    let bytes = (PACKETS / MESSAGES * 1024) as usize;
    let (mut transmitted, mut time) = (0, 0);
    for seed in 0..SEEDS {
        let config = EndpointConfig {
            memory_bytes: bytes,
            timeout: 12,
            send_window: SendWindow::of_bytes(256 << 10, 1024),
            ack_every: 32,
            ..EndpointConfig::default()
        };
        let line = |seed| {
            let far = Box::new(Wire { latency_ns: 1_500_000 });
            Line::over(Fault::lose(far, Pick::Chance(40, Rng::new(seed))), GBPS)
        };
        let mut pair = Pair::by_packet(config)
            .with_fault(Side::A, |_| line(seed))
            .with_fault(Side::B, |_| line(seed + 1000));
        for _ in 0..MESSAGES {
            assert!(pair.a.post(LocalWork::write(0, &vec![7; bytes])));
        }
        pair.run_until_idle();
        assert_eq!(pair.a.statuses(), vec![Status::Success; MESSAGES as usize], "seed {seed}");
        transmitted += pair.a.connection.transmitted;
        time += pair.now().0;
    }
    let (each, ms) = (transmitted / SEEDS, time / SEEDS / 1_000_000);
    // With whole windows 4,155 packets; the smaller ones take a quarter more time.
    println!("TABLE {each} packets for {PACKETS} in {ms} ms, 4 % lost both ways at 3 ms");
    assert!(each < 7 * PACKETS / 2, "{each} packets for {PACKETS}");
}
