//! A seed is a whole run: traffic of two devices over a wire that loses packets, again and again the same to the last byte.

use mlx5_device::random;
use mlx5_layout::{Cqe, CqeOpcode, SendOpcode};
use roce::Now;

use crate::side::{REGION, Side};
use crate::wire::{Wire, hash_of};

/// Messages of each side.
const MESSAGES: usize = 150;

/// Messages of a side that have no completion yet, at most: its send queue has room for more.
const DEPTH: usize = 16;

/// Longest message, bytes: nine packets.
const LONGEST: u64 = 9_000;

/// What a peer may write is the lower half of a region, what it may be sent lies in the upper.
const UPPER: u64 = REGION as u64 / 2;

/// Where a run is given up: no loss of these takes so long.
const END_NS: u64 = 10_000_000_000;

/// What two runs have in common when one replays the other.
#[derive(PartialEq)]
struct Trace {
    packets: Vec<u64>,
    completions: Vec<u64>,
    memory: [u64; 2],
}

struct Run {
    trace: Trace,
    lost: u64,
    retransmissions: u64,
    errors: usize,
}

/// The traffic of a seed, with losses drawn by another.
fn run(seed: u64, loss: f64, loss_seed: u64) -> Run {
    let wire = Wire::new();
    let mut sides = [0, 1].map(|side| Side::new(side, &wire, (loss, loss_seed)));
    let [a, b] = &mut sides;
    a.connect(b);
    b.connect(a);
    let mut random = seed;
    for side in &sides {
        let bytes: Vec<u8> = (0..UPPER).map(|_| random::draw(&mut random) as u8).collect();
        side.memory.store(side.region + UPPER, &bytes);
    }
    let (mut posted, mut sent, mut completions, mut errors) = ([0; 2], [0; 2], Vec::new(), 0);
    let mut now = 0;
    while sent != [MESSAGES; 2] {
        assert!(now < END_NS, "seed {seed}: {sent:?} of {MESSAGES} messages completed");
        let mut moved = false;
        for at in 0..2 {
            while posted[at] < MESSAGES && posted[at] - sent[at] < DEPTH {
                post(&mut sides, at, &mut random);
                posted[at] += 1;
            }
            let side = &mut sides[at];
            moved |= side.nic.poll(Now(now)) > 0;
            while let Some(slot) = side.poll_cq() {
                let cqe = Cqe::in_slot(&slot[..]).unwrap();
                let opcode = cqe.opcode().unwrap();
                sent[at] += usize::from(matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError));
                errors += usize::from(opcode.is_error());
                completions.push(hash_of((at, &slot)));
            }
        }
        now += if moved { 1_000 } else { 20_000 };
    }
    let memory = [0, 1].map(|at: usize| hash_of(sides[at].memory.load(sides[at].region, REGION)));
    let retransmissions = sides.iter().map(|side| side.nic.counters().retransmissions).sum();
    let lost = |side: &Side| {
        let counters = side.nic.counters();
        counters.injected_lost_requests + counters.injected_lost_replies
    };
    let lost = sides.iter().map(lost).sum();
    let trace = Trace { packets: wire.borrow().hashes.clone(), completions, memory };
    Run { trace, lost, retransmissions, errors }
}

/// Posts a message of any kind from one side to the other.
fn post(sides: &mut [Side; 2], at: usize, random: &mut u64) {
    let mut below = |bound: u64| random::draw(random) % bound;
    let len = 1 + below(LONGEST);
    let (from, to) = (UPPER + below(UPPER - LONGEST), below(UPPER - LONGEST));
    let kind = below(4);
    let (key, region) = (sides[1 - at].key, sides[1 - at].region);
    if kind == 2 {
        sides[1 - at].post_receive(to, LONGEST as u32);
    }
    let own = &mut sides[at];
    let (own_key, own_region) = (own.key, own.region);
    match kind {
        0 => own.post(SendOpcode::RdmaWrite, |wqe| {
            wqe.remote(region + to, key).pointer(len as u32, own_key, own_region + from)
        }),
        1 => own.post(SendOpcode::RdmaRead, |wqe| {
            wqe.remote(region + from, key).pointer(len as u32, own_key, own_region + to)
        }),
        2 => own.post(SendOpcode::Send, |wqe| wqe.pointer(len as u32, own_key, own_region + from)),
        _ => own.post(SendOpcode::AtomicFetchAdd, |wqe| {
            wqe.remote(region + to / 8 * 8, key).atomic(len, 0).pointer(8, own_key, own_region + to)
        }),
    }
}

#[test]
fn a_seed_replays_every_packet_and_completion_with_loss() {
    for seed in [1, 7, 0x0d00_be11] {
        let (first, again) = (run(seed, 0.02, seed), run(seed, 0.02, seed));
        assert!(first.lost > 10 && first.retransmissions > 10, "{} lost", first.lost);
        assert_eq!(first.errors, 0, "losses are made good");
        for (what, one, other) in [
            ("packet", &first.trace.packets, &again.trace.packets),
            ("completion", &first.trace.completions, &again.trace.completions),
        ] {
            let differs = one.iter().zip(other).position(|(one, other)| one != other);
            assert_eq!(
                (differs, one.len()),
                (None, other.len()),
                "seed {seed}: the first {what} that differs"
            );
        }
        assert_eq!(first.trace.memory, again.trace.memory, "seed {seed}");
        let Trace { packets, completions, .. } = &first.trace;
        let whole = hash_of((packets, completions, first.trace.memory));
        println!(
            "seed {seed}: {} packets, {} completions, trace {whole:016x}",
            packets.len(),
            completions.len()
        );
    }
}

#[test]
fn another_seed_of_the_losses_is_another_run_of_the_same_traffic() {
    let [one, other] = [1, 2].map(|loss_seed| run(1, 0.02, loss_seed));
    assert!(one.trace.packets != other.trace.packets);
    assert_eq!((one.errors, other.errors), (0, 0));
}

#[test]
fn without_loss_nothing_is_sent_again() {
    let run = run(5, 0.0, 5);
    assert_eq!((run.lost, run.retransmissions, run.errors), (0, 0, 0));
}
