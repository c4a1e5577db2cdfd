//! Recording and replay of the device: all that goes into it, and what it does.
//!
//! The device is a pure core: what it does follows from the calls that it gets and from the answers to what it asks of its machine.
//! [`Source`] implements everything that the device asks (memory, registers, the carrier, threads, events), in three ways: live, with
//! each answer noted by a [`Recorder`], or with the answers of a file ([`Replay`]). [`Nic`] records the calls and has the device.
//!
//! In the file are WQEs, doorbell records, register writes, commands, messages, times and results. The payload of messages is not: of
//! it there is where it lay and how long it was, on both sides of every comparison. Inline data and what is scattered to a CQE is part of
//! a WQE or CQE, and so is there.

mod answer;
mod carrier;
mod events;
mod format;
mod nic;
mod recorder;
mod replay;
mod replayer;
mod source;
mod tag;
#[cfg(test)]
mod tests;
mod values;

pub use events::{Event, Events, Transfer};
pub use format::RecordingError;
pub use nic::Nic;
pub use replay::replay;
pub use replayer::{ReplayError, Replayed};
pub use roce::Psn;
pub use roce::psn::Relation;
