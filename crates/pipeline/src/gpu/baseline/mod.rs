//! The baselines of the paper's figure 6: the CPU waits, drives a model on a GPU, and posts. [`Faithful`] does it as the paper's release,
//! [`Fair`] as well as a CPU can. Both are an [`Offload`](crate::cpu::Offload) of [`cpu::Served`](crate::cpu::Served) over the same
//! slots, whose answers are posted by libibverbs.
//!
//! On the host twin copies are made by the CPU when they are asked for, and nothing runs side by side: that shows the answers, and no
//! time.

mod fair;
mod faithful;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slots::{Geometry, Message};

pub use super::by_cpu::Model;
pub use fair::Fair;
pub use faithful::Faithful;

use super::ServedError;
use crate::cpu::CpuError;

/// More than all that a baseline has in flight takes.
const LIMIT: Duration = Duration::from_secs(60);

/// A model, and where kernels have its buffers: one for each tensor, at multiples of 16.
pub struct Instance {
    pub inputs: Vec<u64>,
    pub outputs: Vec<u64>,
    pub model: Model,
}

/// Which baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Baseline {
    Fair,
    Faithful,
}

impl Baseline {
    pub const ALL: [Baseline; 2] = [Baseline::Fair, Baseline::Faithful];

    /// The name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Baseline::Fair => "fair",
            Baseline::Faithful => "faithful",
        }
    }
}

/// Where the tensors of a message in a slot lie, from the first slot on, and how long each is.
fn places(
    geometry: &Geometry,
    slot: u32,
    message: &Message,
    start: usize,
) -> impl Iterator<Item = (usize, usize)> {
    let start = slot as usize * geometry.server_stride() + start;
    message.entries().iter().map(move |entry| (start + entry.offset as usize, entry.length as usize))
}

/// Copies words of 32 bits on the CPU, for the host twin.
///
/// # Safety
/// Both ranges are there, exposed, aligned, and not ordinary memory of Rust's while this runs.
unsafe fn copy(to: u64, from: u64, bytes: usize) {
    let word = |start: u64, at: usize| std::ptr::with_exposed_provenance_mut::<u32>(start as usize + at);
    for at in (0..bytes).step_by(4) {
        // SAFETY: the caller's.
        let value = unsafe { AtomicU32::from_ptr(word(from, at)) }.load(Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { AtomicU32::from_ptr(word(to, at)) }.store(value, Ordering::Relaxed);
    }
}

fn failed(error: impl Into<ServedError>) -> CpuError {
    CpuError::Offload(error.into().to_string())
}
