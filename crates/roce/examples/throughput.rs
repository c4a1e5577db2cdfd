//! How many packets a second both ends of a connection take on one core, without memory and without a wire.
//!
//! `cargo run --release -p roce --example throughput`. Both ends run in turn on this thread, so a core that has one end only takes more.
//! What a message costs in shared memory, the example `device` of soft-nic tells.

use std::time::Instant;

use roce::testing::{Arrival, Connection, EndpointConfig, WorkRequest};
use roce::{
    Access, Now, Opcode, Outcome, PostedMessage, Receive, Region, RegionError, Resources, SendWindow, Verdict,
};

const ROUNDS: usize = 7;
/// Packets of a round.
const PACKETS: u64 = 2_000_000;
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

/// Messages of one kind and length without end, until [`PACKETS`] have gone one way or the other; returns the ns of one.
fn round(opcode: Opcode, length: u32) -> f64 {
    let config = EndpointConfig {
        path_mtu_bytes: PATH_MTU_BYTES,
        timeout: 14,
        rd_atomic: 16,
        window_messages: 128,
        ..EndpointConfig::default()
    };
    let connection =
        |peer| Connection::new(config.requester(), SendWindow::default(), config.responder(peer), 16);
    let (mut a, mut b) = (connection(2), connection(1));
    let message = PostedMessage { opcode, length, fence: false };
    let work =
        WorkRequest { message, remote_va: 0x1000, rkey: 1, src_qpn: 1, dst_qpn: 2, ..WorkRequest::default() };
    let (mut carried, mut now, began) = (0, Now(0), Instant::now());
    while carried < PACKETS {
        while a.requester.can_post(opcode, false) {
            a.post(work);
        }
        now = now.after(1000);
        for forth in [true, false] {
            let (from, to) = if forth { (&mut a, &mut b) } else { (&mut b, &mut a) };
            while let Some(outgoing) = from.poll_transmit(now) {
                carried += 1;
                let arrival = to.handle_packet(now, &outgoing.packet, &mut UnlimitedHost);
                if matches!(arrival, Arrival::Request(Verdict::Execute(_))) {
                    to.responder.executed(Outcome::Done);
                }
            }
            while to.poll_event().is_some() {}
        }
    }
    assert_eq!(a.retransmitted, 0);
    began.elapsed().as_nanos() as f64 / carried as f64
}

fn main() {
    println!("both ends on one thread, path MTU {PATH_MTU_BYTES}, median and best of {ROUNDS} rounds");
    for (opcode, length) in [
        (Opcode::Write, 1 << 20),
        (Opcode::Send, 1 << 20),
        (Opcode::Read, 1 << 20),
        (Opcode::Write, 64),
        (Opcode::Send, 64),
    ] {
        let mut ns = [(); ROUNDS].map(|()| round(opcode, length));
        ns.sort_by(f64::total_cmp);
        let [median, best] = [ns[ROUNDS / 2], ns[0]];
        println!(
            "{opcode} of {length} bytes: {median:.0} ns, {:.1} M packets/s; best {best:.0} ns",
            1e3 / median
        );
    }
}
