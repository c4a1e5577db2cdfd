//! Loss × operation × size on the virtual clock: tables that a person can read and a change must explain.
//!
//! A cell is twenty messages on one connection of path MTU 1024, posted as fast as the queue takes them:
//! request packets, resent ones, NAKs. `!n`: retries ran out after n messages. INV-7: every cell runs twice.

use std::fmt::Write as _;

use super::pair::pattern;
use crate::testing::{EndpointConfig, LocalWork, Pair};
use crate::{Opcode, Status};

const MTU: usize = 1024;
const MESSAGES: usize = 20;
const SIZES: [usize; 6] = [0, 1, MTU - 1, MTU, MTU + 1, 5 * MTU + 3];
/// In a thousand packets, each way.
const LOSSES: [u64; 4] = [0, 10, 50, 200];
const OPERATIONS: [Opcode; 7] = [
    Opcode::Send,
    Opcode::SendImm,
    Opcode::Write,
    Opcode::WriteImm,
    Opcode::Read,
    Opcode::CompareSwap,
    Opcode::FetchAdd,
];
/// Room for each message.
const STRIDE: usize = 8192;
/// Where the words of atomics lie.
const WORD: u64 = (MESSAGES * STRIDE) as u64;

fn work(opcode: Opcode, index: usize, size: usize) -> LocalWork {
    let (at, bytes, imm) = (index * STRIDE, pattern(size, index as u8), [index as u8; 4]);
    match opcode {
        Opcode::Send => LocalWork::send(&bytes),
        Opcode::SendImm => LocalWork { opcode: Opcode::SendImm, imm, ..LocalWork::send(&bytes) },
        Opcode::Write => LocalWork::write(at as u64, &bytes),
        Opcode::WriteImm => LocalWork::write_imm(at as u64, &bytes, imm),
        Opcode::Read => LocalWork::read(at as u64, size as u32, at),
        Opcode::CompareSwap => LocalWork::compare_swap(WORD, index as u64, index as u64 + 1),
        _ => LocalWork::fetch_add(WORD, 3),
    }
}

/// What a conversation came to.
#[derive(Debug, PartialEq, Eq)]
struct Cell {
    text: String,
    trace: Vec<String>,
}

fn converse(opcode: Opcode, size: usize, loss: u64, disorder: bool) -> Cell {
    let config = EndpointConfig {
        path_mtu_bytes: MTU as u32,
        memory_bytes: MESSAGES * STRIDE + 8,
        retry_count: 7,
        ..EndpointConfig::default()
    };
    let seed = (opcode as u64) << 40 | (size as u64) << 16 | loss << 1 | u64::from(disorder);
    let (twice, late) = if disorder { (100, 200) } else { (0, 0) };
    let mut pair = Pair::by_packet(config).with_noise(seed, loss, twice, late, 4_000);
    for index in 0..MESSAGES {
        pair.b.post_receive(STRIDE as u64);
        let here = index * STRIDE..index * STRIDE + size;
        if opcode == Opcode::Read {
            pair.b.memory_mut()[here].copy_from_slice(&pattern(size, index as u8));
        }
    }
    for index in 0..MESSAGES {
        while !pair.a.post(work(opcode, index, size)) && pair.step_until(crate::Now(u64::MAX)) {}
    }
    pair.run_until_idle();
    let well = pair.a.statuses().iter().take_while(|status| **status == Status::Success).count();
    let error = pair.a.statuses().get(well).copied();
    assert!(matches!(error, None | Some(Status::RetryExceeded)), "{opcode:?} {size} {loss}: {error:?}");
    check(&format!("{opcode:?} of {size} bytes, {loss}/1000 lost"), &pair, opcode, size, well);
    let sent = &pair.a.connection;
    let mut text = format!("{}/{}/{}", sent.transmitted, sent.retransmitted, pair.b.naks_sent);
    if well < MESSAGES {
        write!(text, "!{well}").expect("a string takes all");
    }
    Cell { text, trace: pair.trace }
}

/// Every message that succeeded took effect, once and in order; of the atomics, none ran that was not posted.
fn check(name: &str, pair: &Pair, opcode: Opcode, size: usize, well: usize) {
    for index in 0..well {
        let expected = pattern(size, index as u8);
        let here = index * STRIDE..index * STRIDE + size;
        match opcode {
            Opcode::Write | Opcode::WriteImm => {
                assert_eq!(pair.b.memory()[here], expected, "{name}: {index}")
            }
            Opcode::Read => assert_eq!(pair.a.memory()[here], expected, "{name}: {index}"),
            Opcode::CompareSwap => {
                assert_eq!(pair.a.completions[index].atomic_old, Some(index as u64), "{name}");
            }
            Opcode::FetchAdd => {
                assert_eq!(pair.a.completions[index].atomic_old, Some(3 * index as u64), "{name}");
            }
            _ => assert_eq!(pair.b.received[index].bytes, expected, "{name}: {index}"),
        }
    }
    let good = pair.b.received.iter().filter(|received| received.status == Status::Success);
    let imms: Vec<_> = good.filter_map(|received| Some(received.completion?.imm[0] as usize)).collect();
    if matches!(opcode, Opcode::SendImm | Opcode::WriteImm) {
        assert_eq!(imms, (0..imms.len()).collect::<Vec<_>>(), "{name}: each receive once, in order");
    }
    let executed = pair.b.connection.responder.counters().messages;
    assert!((well as u64..=MESSAGES as u64).contains(&executed), "{name}: {executed} executed");
    assert_eq!(pair.b.atomics(), if opcode.is_atomic() { executed } else { 0 }, "{name}");
}

fn table(disorder: bool) -> String {
    let mut lines = String::from("packets sent/of these again/NAKs, twenty messages a cell; path MTU 1024\n");
    write!(lines, "{:<12}{:>6}", "operation", "loss").expect("a string takes all");
    for size in SIZES {
        write!(lines, "{:>15}", format!("{size} B")).expect("a string takes all");
    }
    for opcode in OPERATIONS {
        for loss in LOSSES {
            write!(lines, "\n{:<12}{:>6}", format!("{opcode:?}"), format!("{} %", loss / 10))
                .expect("a string takes all");
            // An atomic has 8 bytes, whatever the column says.
            for size in if opcode.is_atomic() { &[8][..] } else { &SIZES[..] } {
                let cell = converse(opcode, *size, loss, disorder);
                assert_eq!(cell, converse(opcode, *size, loss, disorder), "INV-7");
                write!(lines, "{:>15}", cell.text).expect("a string takes all");
            }
        }
    }
    lines + "\n"
}

#[test]
fn loss_by_operation_by_size_is_as_in_the_tables() {
    for (disorder, name, snapshot) in [
        (false, "in_order.txt", include_str!("snapshots/in_order.txt")),
        (true, "disorder.txt", include_str!("snapshots/disorder.txt")),
    ] {
        let table = table(disorder);
        assert!(table == snapshot, "src/tests/snapshots/{name} says otherwise; now it is\n{table}");
    }
}
