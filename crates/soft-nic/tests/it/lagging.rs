//! Slow copies, as of a GPU that another process shares: a copy's acknowledgement waits for no other copy.

use soft_nic::testing::{Driver, QpShape, Setup, WorkRequest};

use crate::hostile::checked_memory::{AccessCheck, CheckedMemory};
use crate::operations::{ALL, on_the_wire};

const MESSAGES: u64 = 16;

#[test]
fn a_round_ends_behind_a_copy_that_took_long() {
    for (path, setup) in [("memory", Setup::new("lag")), ("wire", on_the_wire("lag-wire"))] {
        let memory = CheckedMemory { host: setup.memory, accesses: AccessCheck::default(), lags: true };
        let mut driver = Driver::new(setup.with_memory(memory));
        let (a, _) = driver.pair(QpShape::default());
        let (from, to) = (driver.region(4096, ALL), driver.region(4096, ALL));
        for _ in 0..MESSAGES {
            driver.lay(a, &WorkRequest::write(&from, 0, 64, &to, 0));
        }
        driver.ring_doorbell(a);
        let counted = |driver: &Driver<_>| {
            let counters = driver.counters();
            [counters.messages_received, counters.messages_sent]
        };
        let mut before = counted(&driver);
        for _ in 0..10_000 {
            driver.poll();
            let now = counted(&driver);
            assert!(
                now.iter().zip(before).all(|(now, before)| *now <= before + 1),
                "{path}: {before:?} {now:?}"
            );
            before = now;
        }
        assert_eq!(before[0], MESSAGES, "{path}");
    }
}
