//! Slots of requests and answers: their layout, and the state machines of the client and of the server.
//!
//! A client writes a request into a slot of the server's memory by RDMA. The server writes the answer into
//! the client's memory likewise. The client owns a slot that it was granted from an answer to the next
//! request, the server from a request to its answer.
//!
//! The layout is stated once, in [`layout`]; `include/slots.h` is made from it. Nothing here does I/O: memory
//! is a slice of bytes that was read once, time is a number of nanoseconds that the caller passes.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod client;
pub mod geometry;
pub mod header;
pub mod layout;
pub mod server;

pub use client::{Answer, Client};
pub use geometry::{Geometry, Message, Tensor};
pub use layout::{Arrival, Header, Status, TensorKind};
pub use server::{Server, SlotOrder, Work};
