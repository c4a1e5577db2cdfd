//! The callers' side of serving: how a client and a server meet ([`setup`]), where a model's tensors lie in a
//! slot ([`model`]), and a client's end ([`Connection`]).
//! Knows no engine, no CUDA, and no NIC in particular.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod connection;
pub mod model;
pub mod setup;

pub use connection::{Answered, Connection, ConnectionError, Found};
pub use setup::{ARRIVALS, Arrival, Grant, Reply, SetupError, SetupRequest, TRANSPORTS, Transport};
