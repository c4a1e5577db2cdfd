//! A seed is a whole run: two devices' traffic over a lossy, reordering wire repeats to the last byte.

use mlx5_device::command::ModifyQp;
use mlx5_device::config::{LinkLayer, LinkPath};
use mlx5_device::testing::{CqId, CqShape, QpId, QpShape, Region, WorkRequest};
use mlx5_device::{Counters, random};
use mlx5_layout::CqeOpcode;
use roce::Now;

use crate::fabric::hash_of;
use crate::machine::{Driver, Setup};

/// Messages of each side.
const MESSAGES: usize = 150;

/// Messages of a side that have no completion yet, at most: its send queue has room for more.
const DEPTH: usize = 16;

/// Longest message, bytes: nine packets.
const LONGEST: u64 = 9_000;

/// Bytes of the registered region of each side.
const REGION: usize = 1 << 20;

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
    overtaken: u64,
    retransmissions: u64,
    errors: usize,
}

/// A program on a device: one queue pair, and the region that it shares.
struct Side {
    driver: Driver,
    qp: QpId,
    cq: CqId,
    region: Region,
}

impl Side {
    fn new(setup: Setup) -> Side {
        let mut driver = Driver::new(setup);
        let cq = driver.create_cq(CqShape::default());
        let qp = driver.create_qp(QpShape { send_cq: Some(cq), recv_cq: Some(cq), ..QpShape::default() });
        let region = driver.region(REGION, 0xf);
        Side { driver, qp, cq, region }
    }

    /// Brings the queue pair to RTS, towards that of `peer`.
    fn connect(&mut self, peer: &Side) {
        let mut attributes = ModifyQp {
            rq_psn: 0xff_fff0,
            sq_psn: 0xff_fff0,
            timeout: 8,
            min_rnr_timer: 1,
            ..self.driver.attributes(peer.driver.qp(peer.qp).qpn)
        };
        attributes.address.dgid = peer.driver.address().dgid;
        self.driver.bring_up(self.qp, &attributes);
    }
}

/// The traffic of a seed over a wire that impairs so much, drawn by another.
fn run(seed: u64, loss: f64, reorder: f64, loss_seed: u64) -> Run {
    let on_wire = Setup::new("replay");
    let mut sides = [0, 1].map(|side| {
        let setup = Setup { fabric: on_wire.fabric.clone(), ..Setup::new("replay") };
        Side::new(setup.with(|config| {
            (config.link_layer, config.path, config.mtu) = (LinkLayer::Roce, LinkPath::Wire, 1024);
            (config.loss, config.reorder, config.seed) = (loss, reorder, loss_seed);
            config.ipv4 = [10, 0, 0, 1 + side].into();
        }))
    });
    let [a, b] = &mut sides;
    a.connect(b);
    b.connect(a);
    let mut random = seed;
    for side in &sides {
        let bytes: Vec<u8> = (0..UPPER).map(|_| random::draw(&mut random) as u8).collect();
        side.region.block.write(UPPER as usize, &bytes);
    }
    let (mut posted, mut sent, mut completions, mut errors) = ([0; 2], [0; 2], Vec::new(), 0);
    let mut now = 1_000_000;
    while sent != [MESSAGES; 2] {
        assert!(now < END_NS, "seed {seed}: {sent:?} of {MESSAGES} messages completed");
        let mut moved = false;
        for at in 0..2 {
            while posted[at] < MESSAGES && posted[at] - sent[at] < DEPTH {
                post(&mut sides, at, &mut random);
                posted[at] += 1;
            }
            let Side { driver, cq, .. } = &mut sides[at];
            moved |= driver.nic.poll(Now(now)) > 0;
            while let Some(cqe) = driver.poll_cq(*cq) {
                let opcode = cqe.opcode().unwrap();
                sent[at] += usize::from(matches!(opcode, CqeOpcode::Requester | CqeOpcode::RequesterError));
                errors += usize::from(opcode.is_error());
                // All bytes of it.
                completions.push(hash_of((at, format!("{cqe:?}"))));
            }
        }
        now += if moved { 1_000 } else { 20_000 };
    }
    for side in &sides {
        assert_eq!(side.driver.sinks.take_lines(), [""; 0], "nothing fails, and nothing is said");
    }
    let memory = [0, 1].map(|at: usize| hash_of(sides[at].region.block.bytes(0, REGION)));
    let counters = sides.each_ref().map(|side| side.driver.counters());
    let total = |of: fn(&Counters) -> u64| counters.iter().map(of).sum();
    Run {
        trace: Trace { packets: on_wire.fabric.borrow().hashes.clone(), completions, memory },
        lost: total(|counters| counters.injected_lost_requests + counters.injected_lost_replies),
        overtaken: total(|counters| counters.injected_overtaken),
        retransmissions: total(|counters| counters.retransmissions),
        errors,
    }
}

/// Posts a message of any kind from one side to the other.
fn post(sides: &mut [Side; 2], at: usize, random: &mut u64) {
    let mut below = |bound: u64| random::draw(random) % bound;
    let len = 1 + below(LONGEST);
    let (from, to) = (UPPER + below(UPPER - LONGEST), below(UPPER - LONGEST));
    let kind = below(4);
    let [a, b] = sides;
    let (own, peer) = if at == 0 { (a, b) } else { (b, a) };
    let (here, there, len32) = (&own.region, &peer.region, len as u32);
    let request = match kind {
        0 => WorkRequest::write(here, from, len32, there, to),
        1 => WorkRequest::read(here, to, len32, there, from),
        2 => {
            peer.driver.post_receive(peer.qp, &[there.pointer(to, LONGEST as u32)]);
            WorkRequest::send(here, from, len32)
        }
        _ => WorkRequest::fetch_add(here, to, (there, to / 8 * 8), len),
    };
    own.driver.post(own.qp, &request);
}

#[test]
fn a_seed_replays_every_packet_and_completion_with_loss_and_reorder() {
    for seed in [1, 7, 0x0d00_be11] {
        let (first, again) = (run(seed, 0.02, 0.02, seed), run(seed, 0.02, 0.02, seed));
        assert!(first.lost > 10 && first.retransmissions > 10, "{} lost", first.lost);
        assert!(first.overtaken > 10, "{} overtaken", first.overtaken);
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
    let [one, other] = [1, 2].map(|loss_seed| run(1, 0.02, 0.0, loss_seed));
    assert!(one.trace.packets != other.trace.packets);
    assert_eq!((one.errors, other.errors), (0, 0));
}

#[test]
fn without_loss_nothing_is_sent_again() {
    let run = run(5, 0.0, 0.0, 5);
    assert_eq!((run.lost, run.retransmissions, run.errors), (0, 0, 0));
}
