//! A model with its buffers, and how tensors come from slots to these and back.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use slots::{Geometry, Message};

use super::super::ServedError;
use super::super::by_cpu::Model;
use crate::cpu::CpuError;

/// More than all that a baseline has in flight takes.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A model, and where kernels have its buffers: one for each tensor, at multiples of 16.
pub struct Instance {
    pub inputs: Vec<u64>,
    pub outputs: Vec<u64>,
    pub model: Model,
}

/// Where the tensors of a message in a slot lie, from the first slot on, and how long each is.
pub fn places(
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
pub unsafe fn copy(to: u64, from: u64, bytes: usize) {
    let word = |start: u64, at: usize| std::ptr::with_exposed_provenance_mut::<u32>(start as usize + at);
    for at in (0..bytes).step_by(4) {
        // SAFETY: the caller's.
        let value = unsafe { AtomicU32::from_ptr(word(from, at)) }.load(Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { AtomicU32::from_ptr(word(to, at)) }.store(value, Ordering::Relaxed);
    }
}

pub fn failed(error: impl Into<ServedError>) -> CpuError {
    CpuError::Offload(error.into().to_string())
}
