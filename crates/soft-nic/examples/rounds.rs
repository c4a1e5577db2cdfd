//! What one round of the NIC costs in instructions: run it under `valgrind --tool=callgrind --toggle-collect='rounds::round'`.

use mlx5_layout::SendOpcode;
use soft_nic::dma::Host;
use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

/// One round, under a name that the profiler can find.
#[inline(never)]
fn round(driver: &mut Driver<Host>) -> usize {
    driver.poll()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let count: u32 = args.next().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    // A third argument is the file of a recording, which must be there and empty.
    let record = args.next();
    let mut driver = Driver::new(Setup::new("rounds").with(|config| config.record = record));
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(4096, 0xf), driver.region(4096, 0xf));
    let write = WorkRequest::write(&from, 0, 8, &to, 0);
    let send = WorkRequest::new(SendOpcode::Send).pointer(&from, 0, 8);
    // Warm, and the queue is in the list of hot ones.
    driver.post(a, &write).settle();
    let _ = driver.poll_send(a);
    for _ in 0..count {
        match what.as_str() {
            "idle" => _ = round(&mut driver),
            "write" => {
                driver.post(a, &write);
                while driver.poll_send(a).is_none() {
                    round(&mut driver);
                }
            }
            "send" => {
                driver.post_receive(b, &[to.pointer(0, 64)]);
                driver.post(a, &send);
                while driver.poll_send(a).is_none() {
                    round(&mut driver);
                }
                let _ = driver.poll_receive(b);
            }
            "batch" => {
                for i in 0..32 {
                    if i == 31 {
                        driver.post(a, &write);
                    } else {
                        driver.lay(a, &WorkRequest { signalled: true, ..write.clone() });
                    }
                }
                for _ in 0..32 {
                    while driver.poll_send(a).is_none() {
                        round(&mut driver);
                    }
                }
            }
            "sends" => {
                for _ in 0..32 {
                    driver.post_receive(b, &[to.pointer(0, 64)]);
                }
                for i in 0..32 {
                    if i == 31 {
                        driver.post(a, &send);
                    } else {
                        driver.lay(a, &send);
                    }
                }
                for _ in 0..32 {
                    while driver.poll_send(a).is_none() {
                        round(&mut driver);
                    }
                    let _ = driver.poll_receive(b);
                }
            }
            other => panic!("idle, write, send or batch, not {other:?}"),
        }
    }
}
