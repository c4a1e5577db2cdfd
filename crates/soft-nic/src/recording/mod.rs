//! Recording and replay of the device: all that goes into it, and a digest of what it does.
//!
//! The device is a pure core: what it does follows from the calls it gets and the answers to what it asks of
//! its host. [`Source`] implements all that the device asks (memory, registers, the carrier, threads, events)
//! in two ways: with each answer noted by a [`Recorder`], or with the answers of a file ([`Replay`]). Without
//! a recording the device has its host without a [`Source`]. [`Nic`] records the calls and has the device.
//!
//! The file has what goes in: WQEs, doorbell records, register writes, commands, messages, times, results.
//! What the device does (packets, CQEs, payload places, questions) has a digest a round; a replay traces it.
//! Payload in memory is in neither: the device passes address and length, and a digest is slower than a copy.

mod answer;
mod carrier;
mod entry;
mod events;
mod format;
mod message;
mod nic;
mod recorder;
mod replay;
mod replayer;
mod source;
#[cfg(test)]
mod tests;

pub use events::{Event, Observer, Transfer};
pub use format::RecordingError;
pub use nic::Nic;
pub use replay::{observe, replay, start_ns};
pub use replayer::{ReplayError, Replayed};
pub use roce::Psn;
pub use roce::psn::Relation;
