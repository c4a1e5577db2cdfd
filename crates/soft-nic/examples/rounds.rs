//! What one round of the NIC costs in instructions: run it under `valgrind --tool=callgrind --toggle-collect='rounds::round'`.

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
    let (is_send, batch) = match what.as_str() {
        "idle" => (false, 0),
        "write" => (false, 1),
        "batch" => (false, 32),
        "send" => (true, 1),
        "sends" => (true, 32),
        other => panic!("idle, write, batch, send or sends, not {other:?}"),
    };
    let mut driver = Driver::new(Setup::new("rounds").with(|config| config.record = record));
    let (a, b) = driver.pair(QpShape::default());
    let (from, to) = (driver.region(4096, 0xf), driver.region(4096, 0xf));
    let write = WorkRequest::write(&from, 0, 8, &to, 0);
    // Warm, and the queue is in the list of hot ones.
    driver.post(a, &write).settle();
    let _ = driver.poll_send(a);
    let request = if is_send { WorkRequest::send(&from, 0, 8) } else { write };
    for _ in 0..count {
        if batch == 0 {
            round(&mut driver);
            continue;
        }
        for _ in 0..batch {
            if is_send {
                driver.post_receive(b, &[to.pointer(0, 64)]);
            }
            driver.lay(a, &request);
        }
        driver.ring_doorbell(a);
        for _ in 0..batch {
            while driver.poll_send(a).is_none() {
                round(&mut driver);
            }
            let _ = driver.poll_receive(b);
        }
    }
}
