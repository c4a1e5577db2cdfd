//! The device without I/O: rung doorbell → validated work → completion, above the interface to its host.
//!
//! [`Nic`] is the whole; a file for each object, named as in the manual, and for each step. [`memory`] and
//! [`carrier`] are its host: application memory through [`memory::Memory`], peers through
//! [`carrier::Carrier`]. Time is an argument, except the clock of [`Nic::stamp_by`]. No socket, thread or
//! clock of its own (INV-2), no command encoding.

#![allow(missing_docs, reason = "a name that says it all has no comment")]
#![forbid(unsafe_code)]

mod ah;
mod answer;
pub mod carrier;
pub mod command;
pub mod commands;
mod completion;
pub mod config;
mod context;
mod core;
pub mod counters;
mod cq;
mod deliver;
pub mod doorbell;
pub mod errno;
mod explain;
pub mod faults;
mod fetch;
mod flush;
mod framing;
mod host;
mod impairment;
pub mod memory;
mod mkey;
pub mod model;
pub mod mr;
pub mod nic;
mod payload_scatter;
mod poll;
mod ports;
pub mod qp;
mod qp_commands;
mod qpn;
mod qps;
pub mod random;
pub mod reason;
mod response;
mod ring;
mod route;
mod rq;
mod schedule;
mod send;
pub mod span;
mod sq;
mod srq;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token_bucket;
mod uar;
mod unreachable;
mod window;

pub use command::Answer;
pub use commands::Commands;
pub use counters::Counters;
pub use doorbell::Violation;
pub use host::LogSink;
pub use mr::change as rereg_change;
pub use nic::Nic;
pub use qpn::{first_qpn, slot_of};
pub use reason::{About, Reason};
pub use span::Span;
pub use srq::mask as srq_mask;
pub use uar::UarKind;
