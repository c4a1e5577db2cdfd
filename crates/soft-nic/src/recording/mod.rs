//! Recording and replay of the device: all that goes into it, and a digest of what it does.
//!
//! The device is a pure core: what it does follows from the calls that it gets and from the answers to what it asks of its host.
//! [`Source`] implements everything that the device asks (memory, registers, the carrier, threads, events), in two ways: with each answer
//! noted by a [`Recorder`], or with the answers of a file ([`Replay`]). A device that is not recorded has its host without a [`Source`]. [`Nic`] records
//! the calls and has the device.
//!
//! In the file are WQEs, doorbell records, register writes, commands, messages that arrived, times and results: what goes in. Of what the
//! device does (packets, CQEs, the place of payload, what it asked) there is a digest for each round. A trace comes from a replay.
//! Payload in memory is in neither: the device hands on its address and length alone, and a digest of the bytes takes longer than their copy.

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
