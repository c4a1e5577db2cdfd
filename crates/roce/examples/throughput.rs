//! How many messages, and how many packets, a second both ends of a connection take on one core, without memory and without a link.
//!
//! `cargo run --release -p roce --example throughput`. Both ends run in turn on this thread, so a core that has one end only
//! takes more. Time is this thread's own on a core (`/proc/self/schedstat`; without it the clock's), so that other programs cost it
//! caches and clock rate, not turns; the machine's load is printed before and after.
//! With a number behind it (`-- 3`) it ends with 1 when a median of packets is below so
//! many million a second.

use std::process::ExitCode;
use std::time::Instant;

use roce::packet::Reth;
use roce::testing::{Arrival, Connection, EndpointConfig, WorkRequest};
use roce::{
    Access, Content, Fragment, Now, Opcode, Outcome, Packet, PostedMessage, Receive, Region, RegionError,
    Requester, Resources, Responder, SendWindow, Verdict,
};

const ROUNDS: usize = 7;
const PATH_MTU_BYTES: u32 = 4096;

/// A process that has everything.
struct UnlimitedHost;

impl Resources for UnlimitedHost {
    fn region(&self, key: u32, va: u64, len: u64, _: Access) -> Result<Region, RegionError> {
        Ok(Region { key, va, len, address: va, rights: Access(0) })
    }

    fn take_receive(&mut self) -> Option<Receive> {
        Some(Receive { capacity: 1 << 20, id: 0 })
    }

    fn may_invalidate(&self, _: u32) -> bool {
        true
    }
}

fn config() -> EndpointConfig {
    EndpointConfig {
        path_mtu_bytes: PATH_MTU_BYTES,
        timeout: 14,
        rd_atomic: 16,
        window_messages: 128,
        ..EndpointConfig::default()
    }
}

/// `messages` of 8 bytes in bursts of 32, as shared memory carries them; returns how many completed.
fn shared(opcode: Opcode, messages: u64) -> u64 {
    let (mut requester, mut responder) =
        (Requester::new(config().requester()), Responder::new(config().responder(1)));
    let reth = Reth { va: 0x1000, rkey: 1, dma_bytes: 8 };
    let mut packet = Packet {
        dst_qpn: 2,
        content: Content::request(opcode, [0; 4], reth, [1, 0]),
        payload: Fragment { offset: 0, length: if opcode.carries_payload() { 8 } else { 0 } },
        ..Packet::default()
    };
    let (mut completed, mut now) = (0, Now(0));
    while completed < messages {
        for _ in 0..32 {
            if !requester.can_post(opcode, false) {
                break;
            }
            requester.post(PostedMessage { opcode, length: 8, fence: false });
        }
        now = now.after(1000);
        while let Some(transmit) = requester.next_packet(u32::MAX) {
            (packet.psn, packet.ack_requested) = (transmit.psn, transmit.ack_requested);
            if let Verdict::Execute(_) = responder.handle_packet(&packet, &mut UnlimitedHost) {
                let done = if opcode.is_atomic() { Outcome::Atomic { old: 1 } } else { Outcome::Done };
                responder.executed(done);
            }
            requester.sent_packet(now, &transmit, transmit.fragment.length);
        }
        while let Some(answer) = responder.next_packet(u32::MAX) {
            responder.sent_packet(answer.packet.payload.length);
            requester.handle_packet(now, &answer.packet);
        }
        while responder.poll_event().is_some() {}
        completed += std::iter::from_fn(|| requester.poll_completion()).count() as u64;
    }
    completed
}

/// Messages of one kind and length without end, until `packets` have gone one way or the other; returns how many have.
fn by_packet(opcode: Opcode, length: u32, packets: u64) -> u64 {
    let connection =
        |peer| Connection::new(config().requester(), SendWindow::default(), config().responder(peer), 16);
    let (mut a, mut b) = (connection(2), connection(1));
    let (mut carried, mut now) = (0, Now(0));
    while carried < packets {
        while a.requester.can_post(opcode, false) {
            a.post(WorkRequest {
                message: PostedMessage { opcode, length, fence: false },
                remote_va: 0x1000,
                rkey: 1,
                src_qpn: 1,
                dst_qpn: 2,
                ..WorkRequest::default()
            });
        }
        now = now.after(1000);
        for forth in [true, false] {
            let (from, to) = if forth { (&mut a, &mut b) } else { (&mut b, &mut a) };
            while let Some(outgoing) = from.poll_transmit(now) {
                carried += 1;
                if let Arrival::Request(Verdict::Execute(_)) =
                    to.handle_packet(now, &outgoing.packet, &mut UnlimitedHost)
                {
                    to.executed(Outcome::Done);
                }
            }
            while to.poll_event().is_some() {}
        }
    }
    assert_eq!(a.retransmitted, 0);
    carried
}

/// What this thread has run on a core so far, in ns.
fn on_core_ns(since: Instant) -> u64 {
    let schedstat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let first = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
    first.unwrap_or_else(|| u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Prints how fast it went: the median of some rounds, which it returns in millions a second, and the best.
fn report(name: &str, mut round: impl FnMut() -> u64) -> f64 {
    let began = Instant::now();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = on_core_ns(began);
            let done = round();
            done as f64 * 1e3 / (on_core_ns(began) - start).max(1) as f64
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let (median, best) = (rates[ROUNDS / 2], rates[ROUNDS - 1]);
    println!("{name:<44} {median:>6.1} M/s, {:>4.0} ns; best {best:.1} M/s", 1e3 / median);
    median
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let mut given = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let least = match given.next().map(|least| least.parse::<f64>()) {
        None => 0.0,
        Some(Ok(least)) => least,
        Some(Err(_)) => {
            eprintln!(
                "throughput: the argument is how many million packets a second there are at least, as in 3"
            );
            return ExitCode::from(2);
        }
    };
    println!("load before: {}; both ends on one thread, median of {ROUNDS} rounds", load());
    for (opcode, messages) in
        [(Opcode::Write, 2_000_000), (Opcode::Send, 2_000_000), (Opcode::FetchAdd, 500_000)]
    {
        report(&format!("messages, {opcode:?} of 8 bytes"), || shared(opcode, messages));
    }
    let mut slowest = f64::INFINITY;
    for (opcode, length) in [
        (Opcode::Write, 1 << 20),
        (Opcode::Send, 1 << 20),
        (Opcode::Read, 1 << 20),
        (Opcode::Write, 64),
        (Opcode::Send, 64),
    ] {
        let rate =
            report(&format!("packets, {opcode:?} of {length} bytes, path MTU {PATH_MTU_BYTES}"), || {
                by_packet(opcode, length, 2_000_000)
            });
        slowest = slowest.min(rate);
    }
    println!("load after: {}", load());
    if slowest < least {
        eprintln!("throughput: {slowest:.1} M packets/s, at least {least} were asked for");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
