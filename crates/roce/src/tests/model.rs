//! Random conversations over bad links against a simple model: every byte once, in order, or the right error.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::testing::{EndpointConfig, Fault, Kind, LocalWork, Pair, Pick, Side};
use crate::{Opcode, Psn, SendWindow, Status};

/// Bytes that WRITEs, and words that atomics, may touch. READs have their own part: a READ executed again may
/// see later WRITEs (IBTA §9.7.4: the data is that of the last execution).
const WRITES: u64 = 2048;
const WORDS: u64 = 8;
const READS_AT: usize = 8192;
const READ_INTO: usize = 16_384;

#[derive(Debug, Clone)]
enum Operation {
    Write(u64, Vec<u8>),
    WriteImm(u64, Vec<u8>, [u8; 4]),
    Send(Vec<u8>),
    Read(u64, u32),
    FetchAdd(u64, u64),
    CompareSwap(u64, u64, u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..600);
    prop_oneof![
        (0..WRITES, bytes()).prop_map(|(at, bytes)| Operation::Write(at, bytes)),
        (0..WRITES, bytes(), any::<[u8; 4]>())
            .prop_map(|(at, bytes, imm)| Operation::WriteImm(at, bytes, imm)),
        bytes().prop_map(Operation::Send),
        (0..1024u64, 0..700u32).prop_map(|(at, length)| Operation::Read(at, length)),
        (0..WORDS, any::<u64>()).prop_map(|(word, add)| Operation::FetchAdd(word, add)),
        (0..WORDS, 0..3u64, 0..3u64).prop_map(|(word, old, new)| Operation::CompareSwap(word, old, new)),
    ]
}

/// The peer as it should be: memory, and what its receives got.
struct Model {
    memory: Vec<u8>,
    received: Vec<(Opcode, Vec<u8>)>,
    reads: Vec<(usize, Vec<u8>)>,
    old: Vec<u64>,
}

const WORDS_AT: usize = 4096;

impl Model {
    fn word(&mut self, word: u64) -> &mut [u8] {
        let at = WORDS_AT + word as usize * 8;
        &mut self.memory[at..at + 8]
    }

    fn apply(&mut self, index: usize, operation: &Operation) {
        match operation {
            Operation::Write(at, bytes) => self.write(*at, bytes),
            Operation::WriteImm(at, bytes, _) => {
                self.write(*at, bytes);
                self.received.push((Opcode::WriteImm, vec![]));
            }
            Operation::Send(bytes) => self.received.push((Opcode::Send, bytes.clone())),
            Operation::Read(at, length) => {
                let from = READS_AT + *at as usize;
                self.reads.push((index, self.memory[from..from + *length as usize].to_vec()));
            }
            Operation::FetchAdd(word, add) => self.update(*word, |old| old.wrapping_add(*add)),
            Operation::CompareSwap(word, compare, swap) => {
                self.update(*word, |old| if old == *compare { *swap } else { old });
            }
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        self.memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn update(&mut self, word: u64, change: impl Fn(u64) -> u64) {
        let bytes = self.word(word);
        let old = u64::from_ne_bytes((&*bytes).try_into().unwrap());
        bytes.copy_from_slice(&change(old).to_ne_bytes());
        self.old.push(old);
    }
}

fn work(index: usize, operation: &Operation) -> LocalWork {
    match operation.clone() {
        Operation::Write(at, bytes) => LocalWork::write(at, &bytes),
        Operation::WriteImm(at, bytes, imm) => LocalWork::write_imm(at, &bytes, imm),
        Operation::Send(bytes) => LocalWork::send(&bytes),
        Operation::Read(at, length) => LocalWork::read(READS_AT as u64 + at, length, READ_INTO + index * 700),
        Operation::FetchAdd(word, add) => LocalWork::fetch_add(WORDS_AT as u64 + word * 8, add),
        Operation::CompareSwap(word, compare, swap) => {
            LocalWork::compare_swap(WORDS_AT as u64 + word * 8, compare, swap)
        }
    }
}

#[derive(Debug, Clone)]
struct Setting {
    operations: Vec<(Operation, bool)>,
    seed: u64,
    noise: (u64, u64, u64),
    late_ns: u64,
    first_psn: u32,
    path_mtu_bytes: u32,
    fragment_bytes: u32,
    send_window: SendWindow,
    ack_every: u32,
    window_messages: u32,
    rd_atomic: u8,
    receives_late: bool,
    dies_after: Option<u64>,
}

fn setting() -> impl Strategy<Value = Setting> {
    let operations = prop::collection::vec((operation(), prop::bool::weighted(0.1)), 1..40);
    let noise = (0..200u64, 0..200u64, 0..200u64);
    let sizes =
        (prop::sample::select(vec![256u32, 1024, 4096]), prop::sample::select(vec![100u32, 300, u32::MAX]));
    let depths = (1..20u32, 1..5u8, (1..40u32, 1..20u32, 1..20u32));
    let ends = (any::<bool>(), prop::option::weighted(0.2, 0..60u64));
    let psn = prop_oneof![0..0x100_0000u32, 0xff_ffd0..0x100_0000u32];
    (operations, any::<u64>(), noise, 1..5_000_000u64, psn, sizes, depths, ends).prop_map(
        |(operations, seed, noise, late_ns, first_psn, sizes, depths, ends)| Setting {
            operations,
            seed,
            noise,
            late_ns,
            first_psn,
            path_mtu_bytes: sizes.0,
            fragment_bytes: sizes.1,
            window_messages: depths.0,
            rd_atomic: depths.1,
            send_window: SendWindow { packets: depths.2.0, ack_every: depths.2.1 },
            ack_every: depths.2.2,
            receives_late: ends.0,
            dies_after: ends.1,
        },
    )
}

fn pair(setting: &Setting, by_packet: bool) -> Pair {
    let config = EndpointConfig {
        first_psn: Psn::new(setting.first_psn),
        path_mtu_bytes: setting.path_mtu_bytes,
        fragment_bytes: setting.fragment_bytes,
        window_messages: setting.window_messages,
        rd_atomic: setting.rd_atomic,
        send_window: setting.send_window,
        ack_every: setting.ack_every,
        ..EndpointConfig::default()
    };
    let (lose, duplicate, delay) = setting.noise;
    let pair = if by_packet { Pair::by_packet(config) } else { Pair::new(config) };
    let pair = pair.with_noise(setting.seed, lose, duplicate, delay, setting.late_ns);
    match setting.dies_after {
        Some(n) => pair.with_fault(Side::A, |below| Fault::lose(below, Pick::From(Kind::Request, n + 1))),
        None => pair,
    }
}

fn run(setting: &Setting, by_packet: bool) -> (Pair, Vec<u8>) {
    let mut pair = pair(setting, by_packet);
    for (i, byte) in pair.b.memory_mut()[READS_AT..READS_AT + 2048].iter_mut().enumerate() {
        *byte = (i as u8) ^ (i >> 8) as u8;
    }
    let before = pair.b.memory().to_vec();
    if !setting.receives_late {
        (0..40).for_each(|_| pair.b.post_receive(600));
    }
    for (index, (operation, fence)) in setting.operations.iter().enumerate() {
        while !pair.a.post(LocalWork { fence: *fence, ..work(index, operation) }) {
            if setting.receives_late && pair.now().0 > 1_000_000 {
                pair.b.post_receive(600);
            }
            if !pair.step_until(crate::Now(u64::MAX)) {
                break;
            }
        }
    }
    (0..40).for_each(|_| pair.b.post_receive(600));
    pair.run_until_idle();
    (pair, before)
}

fn check(setting: &Setting, by_packet: bool) -> Result<Pair, TestCaseError> {
    let (pair, before) = run(setting, by_packet);
    let statuses = statuses(&pair);
    let succeeded = statuses.iter().take_while(|status| **status == Status::Success).count();
    // The right error: a link that lost too much in a row, and nothing else; then the rest is flushed.
    if let Some((first, rest)) = statuses[succeeded..].split_first() {
        prop_assert_eq!(*first, Status::RetryExceeded);
        prop_assert!(rest.iter().all(|status| *status == Status::Flushed));
    } else {
        prop_assert_eq!(succeeded, setting.operations.len());
    }
    // What the peer executed is a prefix of what was posted, each message once, at least all that succeeded.
    let executed = pair.b.connection.responder.counters().messages as usize;
    prop_assert!(succeeded <= executed && executed <= setting.operations.len());
    let mut model = Model { memory: before, received: vec![], reads: vec![], old: vec![] };
    for (index, (operation, _)) in setting.operations.iter().take(executed).enumerate() {
        model.apply(index, operation);
    }
    // A message cut short by the end may have left bytes of a WRITE, so memory is compared where all came.
    let at_once = setting.path_mtu_bytes.max(if by_packet { 0 } else { setting.fragment_bytes });
    if succeeded == setting.operations.len() || at_once >= 700 {
        prop_assert!(pair.b.memory() == model.memory, "memory differs");
    }
    let well = pair.b.received.iter().filter(|received| received.status == Status::Success);
    let received: Vec<_> =
        well.map(|r| (r.completion.map(|completion| completion.opcode), r.bytes.clone())).collect();
    let expected: Vec<_> =
        model.received.iter().map(|(opcode, bytes)| (Some(*opcode), bytes.clone())).collect();
    prop_assert_eq!(received, expected);
    for (index, bytes) in model.reads.iter().filter(|(index, _)| *index < succeeded) {
        let at = READ_INTO + index * 700;
        prop_assert_eq!(&pair.a.memory()[at..at + bytes.len()], &bytes[..]);
    }
    let old: Vec<_> = pair.a.completions.iter().filter_map(|completion| completion.atomic_old).collect();
    prop_assert_eq!(&model.old[..old.len()], &old[..]);
    Ok(pair)
}

fn statuses(pair: &Pair) -> Vec<Status> {
    pair.a.statuses()
}

/// A fixed seed, so that a failure in CI repeats here. The counts of full successes and of resends show that
/// the links are bad, but not only bad.
fn hold_conversations(by_packet: bool) {
    let config = ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(2),
        ..ProptestConfig::default()
    };
    let (whole, resent) = (Cell::new(0), Cell::new(0));
    let outcome = TestRunner::new(config).run(&setting(), |setting| {
        let pair = check(&setting, by_packet)?;
        whole.set(whole.get() + u32::from(statuses(&pair).iter().all(|status| *status == Status::Success)));
        resent.set(resent.get() + pair.a.connection.retransmitted);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    println!(
        "{} of 3000 conversations succeeded as a whole, {} packets were sent again",
        whole.get(),
        resent.get()
    );
    assert!(whole.get() > 1000 && resent.get() > 10_000, "{whole:?} {resent:?}");
}

#[test]
fn every_byte_arrives_once_and_in_order_or_the_right_error_comes() {
    hold_conversations(false);
}

#[test]
fn every_byte_in_packets_arrives_once_and_in_order_or_the_right_error_comes() {
    hold_conversations(true);
}
