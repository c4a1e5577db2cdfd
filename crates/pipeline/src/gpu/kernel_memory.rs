//! All memory that the kernels use, and what is read and written there while they run.

use std::time::Duration;

use rdma_shim::kernel::{HostMemory, Machine, Memory, Place};
use slots::Geometry;

use super::error::{ServedError, refuse};
use super::launch;
use super::layout::db_turn;

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    None,
    Request,
    Stop,
}

/// All memory that the kernels use.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) place: Place,
    pub(super) geometry: Geometry,
    pub(super) slot_count: u32,
    pub(super) turn: Memory,
    pub(super) slots: Memory,
    pub(super) flags: Memory,
    pub(super) places: HostMemory,
    /// The cancel word, and the counts on a line of their own.
    pub(super) shared: HostMemory,
    /// What only kernels use: what they are told, clients, and words of each slot.
    pub(super) own: [Memory; 3],
    pub(super) wait: Duration,
    pub(super) told: launch::KernelAddresses,
    /// Steps of each slot's request, and the ring of records, where they are traced.
    pub(super) traced: std::sync::OnceLock<(Memory, HostMemory)>,
}

pub(super) const COUNTS: usize = 128;

impl Core {
    pub(super) fn check(&self, first: u32, count: u32) -> Result<(), ServedError> {
        match count == 0 || first.checked_add(count).is_none_or(|end| end > self.slot_count) {
            true => refuse(format!("slots {first} and {count} more of {}", self.slot_count)),
            false => Ok(()),
        }
    }

    /// Where a field of what the kernels are told lies; no kernel runs.
    pub(super) fn tell(&self, field: usize, bytes: &[u8]) -> Result<(), ServedError> {
        Ok(self.own[0].write(field, bytes)?)
    }

    /// Sets the flag of the host's own slot, which lies behind the words of the others.
    pub(super) fn mark(&self, flag: u64) -> Result<(), ServedError> {
        Ok(self.own[2].write(24 * self.slot_count as usize, &flag.to_le_bytes())?)
    }

    pub(super) fn turn_now(&self) -> Result<(db_turn, State), ServedError> {
        let turn: db_turn = self.turn.get(0)?;
        let state = match turn.state {
            0 => State::None,
            1 => State::Request,
            2 => State::Stop,
            other => return refuse(format!("a turn is in the state {other}")),
        };
        Ok((turn, state))
    }
}
