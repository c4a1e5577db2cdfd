//! The device: rung doorbell → validated work → completion.
//!
//! [`nic::Nic`] is the whole; one file an object, named as in the manual. Nothing here is `unsafe`: application memory is
//! reached through [`crate::dma::Memory`], peers through [`crate::link::Link`].
#![forbid(unsafe_code)]

mod ah;
pub mod command;
pub mod commands;
mod completion;
mod context;
mod core;
pub mod counters;
mod cq;
mod deliver;
pub mod doorbell;
pub mod faults;
mod flush;
pub mod model;
mod modify;
pub mod mr;
pub mod nic;
mod packets;
mod poll;
pub mod qp;
mod qpn;
mod reregister;
mod resize;
mod response;
mod route;
mod rq;
mod schedule;
mod send;
mod sq;
mod srq;
mod table;
mod unreached;
mod watch;
mod window;
mod wire;

pub use self::core::LogSink;
pub use commands::{Answer, Commands};
pub use counters::Counters;
pub use doorbell::{UarKind, Violation};
pub use nic::Nic;
pub use reregister::change as rereg_change;
pub use srq::mask as srq_mask;
