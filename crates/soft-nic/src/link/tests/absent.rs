//! A page that never comes: it stops the process that names it, and no other.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use mlx5_device::carrier::{Carrier as _, Inbound as _};
use mlx5_device::carrier::{Disposition, PathAddress, Payload};
use mlx5_device::memory::{Order, Segment};
use roce::Opcode;

use super::processes::{MTU, config, connect, fabric_name, go_on, request};
use crate::dma::testing::Absent;
use crate::link::{Link, Room};

const LEN: usize = 1 << 20;

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves the pages when the test ends, also where it fails: the thread that waits for them ends too.
struct Served<'a>(&'a Absent);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        let _ = self.0.serve();
    }
}

/// Takes messages until one of this length has come.
fn take(b: &mut Link, target: &[u8], len: u32) {
    let (mut came, mut arrived) = (false, 0);
    let begun = Instant::now();
    while !came {
        assert!(begun.elapsed() < PATIENCE, "a message of {len} bytes");
        b.poll(1, |inbound| {
            let position = inbound.packet.content.position();
            arrived = if position.starts() { 0 } else { arrived };
            let to = &target[arrived..][..inbound.packet.payload.length as usize];
            arrived += to.len();
            let to = [Segment { addr: to.as_ptr() as u64, len: to.len() as u64 }];
            inbound.copy_into(&to, Order::Increasing).unwrap();
            came |= position.ends() && arrived == len as usize;
            Disposition::Consumed
        });
        b.ring_bells();
    }
}

#[test]
fn a_page_that_never_comes_stops_its_own_process_and_not_the_receiver() {
    let absent = measure::need!(
        Absent::new(LEN),
        "the right to userfaultfd(2) for the kernel's accesses, as root has"
    );
    let fabric = fabric_name();
    let mut b = Link::join(config(&fabric)).unwrap();
    let slot = b.slot();
    let target = vec![1; LEN];
    let (tell, told) = mpsc::channel();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let served = Served(&absent);
        // One peer sends from pages that nobody serves.
        scope.spawn(|| {
            let mut a = Link::join(config(&fabric)).unwrap();
            connect(&mut a, slot);
            let mut write = request(&a, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, LEN as u32);
            let from = [Segment { addr: absent.address(), len: LEN as u64 }];
            tell.send(()).unwrap();
            while write.payload.length > 0 && begun.elapsed() < 2 * PATIENCE {
                if let Ok(sent) =
                    a.send_record(&write, MTU, &PathAddress::default(), Payload::Segments(&from))
                {
                    go_on(&mut write, sent.carried);
                }
                a.ring_bells();
            }
        });
        // Another one is served meanwhile, as often as it likes.
        let mut c = Link::join(config(&fabric)).unwrap();
        while c.room(slot) != Room::Yes || told.try_recv().is_err() {
            assert!(begun.elapsed() < PATIENCE, "two peers and their channels");
            b.poll(1, |_| Disposition::NotNow);
            c.poll(1, |_| Disposition::NotNow);
        }
        let source = [7u8; 40_000];
        let from = [Segment { addr: source.as_ptr() as u64, len: 40_000 }];
        for _ in 0..100 {
            let write = request(&c, mlx5_device::first_qpn(slot), Opcode::Write, 0, 0, 40_000);
            c.send_record(&write, MTU, &PathAddress::default(), Payload::Segments(&from)).unwrap();
            c.ring_bells();
            take(&mut b, &target, 40_000);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(target[40_000..].iter().all(|byte| *byte == 1), "nothing of the other one");
        drop(served);
        take(&mut b, &target, LEN as u32);
    });
    assert!(target.iter().all(|byte| *byte == 0), "it came in the end");
}
