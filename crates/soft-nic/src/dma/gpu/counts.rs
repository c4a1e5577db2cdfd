//! What was moved to and from GPUs since the process began: the `gpu_*` counters of the `--stats` line.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{host_pages, ranges};

pub struct Count {
    name: &'static str,
    value: AtomicU64,
}

impl Count {
    const fn new(name: &'static str) -> Count {
        Count { name, value: AtomicU64::new(0) }
    }

    pub fn add(&self, more: u64) {
        if more > 0 {
            self.value.fetch_add(more, Ordering::Relaxed);
        }
    }
}

pub static MOVER_COMMANDS: Count = Count::new("gpu_mover_commands");
pub static MOVER_LAUNCHES: Count = Count::new("gpu_mover_launches");
pub static MOVER_LATE: Count = Count::new("gpu_mover_late");
pub static MOVER_SLOW: Count = Count::new("gpu_mover_slow");
pub static MOVER_HELPED: Count = Count::new("gpu_mover_helped");
pub static MOVER_NS: Count = Count::new("gpu_mover_ns");
pub static ENGINE_COPIES: Count = Count::new("gpu_engine_copies");
pub static ENGINE_BYTES: Count = Count::new("gpu_engine_bytes");
pub static ENGINE_NS: Count = Count::new("gpu_engine_ns");
pub static FAULTS: Count = Count::new("gpu_faults");

static ALL: [&Count; 10] = [
    &MOVER_COMMANDS,
    &MOVER_LAUNCHES,
    &MOVER_LATE,
    &MOVER_SLOW,
    &MOVER_HELPED,
    &MOVER_NS,
    &ENGINE_COPIES,
    &ENGINE_BYTES,
    &ENGINE_NS,
    &FAULTS,
];

/// Every counter with its name; empty in a process without regions in a GPU's memory.
pub fn counters() -> Vec<(&'static str, u64)> {
    let counts = ALL.iter().map(|count| (count.name, count.value.load(Ordering::Relaxed)));
    let all: Vec<_> = counts.chain([("gpu_host_pages", host_pages::registered() as u64)]).collect();
    if all.iter().any(|(_, count)| *count != 0) || ranges::exist() { all } else { Vec::new() }
}
