//! INV-13: a driver that does anything it likes. The NIC does not crash, hang, or read or write past the
//! registrations, and a well-behaved program next to it gets its data.
//!
//! Seeded and structure-aware: a mutant is a right work request, doorbell, record, receive or command with
//! something changed. Some changes leave it right (lengths, entries, flags, places in the ring): those must
//! succeed, and every byte is checked. All rings, records and regions lie between guard pages, and what the
//! NIC reads or writes by itself is compared with the list of what it was given.

pub mod checked_memory;
mod commands;
mod mutants;
pub mod rng;
mod traffic;

use std::collections::BTreeMap;

use mlx5_layout::{CqeSyndrome, SendOpcode};

use rng::Rng;
use traffic::Traffic;

/// Mutants of one run: all rows of the table are reached by a fifth of what `SOFTNIC_TEST_FULL=1` runs.
fn mutants() -> u64 {
    if measure::need::is_full() { 1_000_000 } else { 200_000 }
}

/// What a row of the table must reach: one of 10,000 mutants.
fn at_least() -> u64 {
    mutants() / 10_000
}

/// Syndromes that no work request on this NIC can end with: a WRITE with immediate has no receive buffer, and
/// there is no on-demand paging (docs/soft-nic.md, «Not as on silicon»).
const ABSENT: [CqeSyndrome; 2] = [CqeSyndrome::LocalAccess, CqeSyndrome::RemoteAborted];

/// What happened, by name.
#[derive(Debug, Default)]
struct Tally {
    mutants: u64,
    succeeded: u64,
    syndromes: BTreeMap<u8, u64>,
    opcodes: BTreeMap<u8, u64>,
    kinds: BTreeMap<&'static str, u64>,
    refused: BTreeMap<(&'static str, i32), u64>,
    accepted: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// `cargo xtask test` shows lines that begin so.
    fn print(&self) {
        println!("TABLE {} mutants, {} succeeded with their data checked", self.mutants, self.succeeded);
        self.kinds.iter().for_each(|(kind, n)| println!("TABLE {n:>9}  mutant    {kind}"));
        for syndrome in CqeSyndrome::ALL {
            let n = self.syndromes.get(&syndrome.to_u8()).copied().unwrap_or(0);
            println!("TABLE {n:>9}  syndrome  {:#04x} {syndrome:?}", syndrome.to_u8());
        }
        for opcode in SendOpcode::ALL {
            let n = self.opcodes.get(&opcode.to_u8()).copied().unwrap_or(0);
            println!("TABLE {n:>9}  opcode    {:#04x} {opcode:?}", opcode.to_u8());
        }
        self.refused
            .iter()
            .for_each(|((command, errno), n)| println!("TABLE {n:>9}  refused   {command}, errno {errno}"));
        self.accepted.iter().for_each(|(command, n)| println!("TABLE {n:>9}  accepted  {command}"));
    }

    fn check(&self) {
        assert!(self.mutants >= mutants());
        assert!(self.succeeded * 5 >= self.mutants, "only {} of {} succeeded", self.succeeded, self.mutants);
        for syndrome in CqeSyndrome::ALL.iter().filter(|s| !ABSENT.contains(s)) {
            let n = self.syndromes.get(&syndrome.to_u8()).copied().unwrap_or(0);
            assert!(n >= at_least(), "{syndrome:?} was reached {n} times");
        }
        for syndrome in ABSENT {
            assert_eq!(self.syndromes.get(&syndrome.to_u8()), None, "{syndrome:?} is said never to come");
        }
        for opcode in SendOpcode::ALL {
            let n = self.opcodes.get(&opcode.to_u8()).copied().unwrap_or(0);
            assert!(n >= at_least(), "{opcode:?} was posted {n} times");
        }
        for (command, errno) in commands::REFUSALS {
            let n = self.refused.get(&(command, errno)).copied().unwrap_or(0);
            assert!(n >= at_least(), "{command} was refused with errno {errno} {n} times");
        }
        for kind in traffic::KINDS {
            let n = self.kinds.get(kind).copied().unwrap_or(0);
            assert!(n >= at_least(), "{kind}: {n} mutants");
        }
    }
}

#[test]
fn hostile_driver_gets_errors_and_nobody_else_does() {
    let seed = 0x5eed_2026_1121;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut tally = Tally::default();
    let mut traffic = Traffic::new(&mut rng);
    let mut commands = commands::Commands::new();
    let mutants = mutants();
    while tally.mutants < mutants {
        traffic.round(&mut rng, &mut tally);
        if rng.one_in(4) {
            commands.round(&mut rng, &mut tally);
        }
    }
    tally.print();
    traffic.finish();
    tally.check();
}
