//! How fast the link is between two processes. Printed, not asserted: this machine may be busy.

use std::time::Instant;

use mlx5_device::carrier::{Carrier as _, Disposition, Payload};
use mlx5_device::memory::Segment;
use roce::Opcode;

use super::processes::{Peer, config, connect, fabric_name, msn, request, send};
use crate::link::{Inbound, Link};

/// Sends `count` WRITEs with at most `window` unacknowledged; seconds.
fn stream(link: &mut Link, slot: u8, to: u64, bytes: &[u8], count: u32, window: u32) -> f64 {
    let begun = Instant::now();
    let (mut sent, mut acknowledged) = (0, 0);
    let from = [Segment { addr: bytes.as_ptr() as u64, len: bytes.len() as u64 }];
    let qpn = mlx5_device::first_qpn(slot);
    while acknowledged < count {
        let mut burst = 0;
        while sent < count && sent - acknowledged < window && burst < 32 {
            let write = request(link, qpn, Opcode::Write, sent & 0xff_ffff, to, bytes.len() as u32);
            send(link, &write, Payload::Segments(&from), |inbound| note(inbound, &mut acknowledged));
            sent += 1;
            burst += 1;
        }
        link.ring_bells();
        link.poll(64, |inbound| note(inbound, &mut acknowledged));
    }
    begun.elapsed().as_secs_f64()
}

fn note(inbound: &mut Inbound<'_>, acknowledged: &mut u32) -> Disposition {
    *acknowledged = msn(inbound.packet);
    Disposition::Consumed
}

#[test]
fn speed_between_two_processes_is_printed() {
    let fabric = fabric_name();
    let mut link = Link::join(config(&fabric)).unwrap();
    for (bytes, count, window) in
        [(8, 100_000, 512), (4096, 10_000, 64), (16_384, 3_000, 32), (65_536, 1_000, 32), (1 << 20, 100, 8)]
    {
        let mut peer = Peer::start("sink", &fabric);
        let [slot, to] = peer.read_line("sink ")[..] else { panic!("two numbers") };
        connect(&mut link, slot as u8);
        let payload = vec![7u8; bytes];
        let rate = f64::from(count) / stream(&mut link, slot as u8, to, &payload, count, window);
        let (millions, gigabytes) = (rate / 1e6, rate * bytes as f64 / 1e9);
        println!("{bytes:>8} B: {millions:8.3} M messages/s {gigabytes:7.2} GB/s");
        peer.finish();
    }
}
