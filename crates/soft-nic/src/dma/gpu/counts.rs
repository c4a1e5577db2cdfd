//! What was moved to and from GPUs since the process began: the `gpu_*` counters of the `--stats` line.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{host_pages, ranges};

pub struct Count {
    name: &'static str,
    value: AtomicU64,
}

impl Count {
    pub fn add(&self, more: u64) {
        if more > 0 {
            self.value.fetch_add(more, Ordering::Relaxed);
        }
    }
}

macro_rules! counts {
    ($($count:ident = $name:literal,)*) => {
        $(pub static $count: Count = Count { name: $name, value: AtomicU64::new(0) };)*

        static ALL: &[&Count] = &[$(&$count),*];
    };
}

counts! {
    MOVER_COMMANDS = "gpu_mover_commands",
    MOVER_LAUNCHES = "gpu_mover_launches",
    MOVER_LATE = "gpu_mover_late",
    MOVER_SLOW = "gpu_mover_slow",
    MOVER_HELPED = "gpu_mover_helped",
    MOVER_NS = "gpu_mover_ns",
    ENGINE_COPIES = "gpu_engine_copies",
    ENGINE_BYTES = "gpu_engine_bytes",
    ENGINE_NS = "gpu_engine_ns",
    FAULTS = "gpu_faults",
}

/// Every counter with its name; empty in a process without regions in a GPU's memory.
pub fn counters() -> Vec<(&'static str, u64)> {
    let counts = ALL.iter().map(|count| (count.name, count.value.load(Ordering::Relaxed)));
    let all: Vec<_> = counts.chain([("gpu_host_pages", host_pages::registered() as u64)]).collect();
    if all.iter().any(|(_, count)| *count != 0) || ranges::exist() { all } else { Vec::new() }
}
