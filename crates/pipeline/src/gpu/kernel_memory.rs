//! All memory that the kernels use, and what is read and written there while they run.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use gpu::{SlotTensor, SlotTensors};
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

impl State {
    pub(super) fn of(turn: &db_turn) -> Result<State, ServedError> {
        match turn.state {
            0 => Ok(State::None),
            1 => Ok(State::Request),
            2 => Ok(State::Stop),
            other => refuse(format!("a turn is in the state {other}")),
        }
    }
}

/// All memory that the kernels use.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) machine: Machine,
    pub(super) place: Place,
    pub(super) geometry: Geometry,
    pub(super) slot_count: u32,
    pub(super) turn: Memory,
    /// `struct db_lanes`.
    pub(super) lanes: Memory,
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

    /// Where a model's tensors lie in the slots, of which the turn at `turn` says which.
    pub(super) fn tensors(self: &Arc<Core>, turn: u64) -> SlotTensors {
        let slot = turn + offset_of!(db_turn, model_slot) as u64;
        let (base, stride) = (self.slots.kernel_address(), self.geometry.server_stride() as u64);
        let of = |message: &slots::Message, begin: usize| {
            let tensor = |entry: &slots::layout::Entry| {
                let words = [base, slot, stride, begin as u64 + u64::from(entry.offset)];
                // SAFETY: the core keeps the slots and the turns, whose slot is one of them.
                unsafe { SlotTensor::new(words, entry.length as usize, self.clone()) }
            };
            message.entries().iter().map(tensor).collect()
        };
        let answers = of(&self.geometry.answer, self.geometry.answer_offset());
        SlotTensors { inputs: of(&self.geometry.request, 0), outputs: answers }
    }

    pub(super) fn turn_now(&self) -> Result<(db_turn, State), ServedError> {
        let turn: db_turn = self.turn.get(0)?;
        let state = State::of(&turn)?;
        Ok((turn, state))
    }
}
