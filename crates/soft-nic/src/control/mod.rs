//! How `softnic ctl` talks to the NIC of a running process.
//!
//! No program has a listening socket. A client binds an abstract socket of its own, writes its number into the slot on the fabric
//! ([`FabricView::call`](crate::link::FabricView::call)) and rings; the NIC thread finds the call in its round, on a line that it loads anyway, and starts a
//! thread named [`THREAD_NAME`] for this one request: it connects to the client, reads one [`request`], answers ([`server`]),
//! and ends. So no system call is made without a client, and neither end leaves a name or a thread behind. Both look at the
//! other's user (`SO_PEERCRED`), every wait has a deadline, every message a version and a length ([`frame`]). One request goes on
//! after its answer: a [`capture`] lasts as long as its client wants, beside other requests.

mod capture;
mod client;
mod frame;
mod request;
mod server;
#[cfg(test)]
mod tests;

pub use capture::{Blocks, call_for_packets};
pub use client::{CallError, call, printable};
pub use frame::{MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, VERSION, encode};
pub use request::{PortStatus, Request};
pub use server::ControlServer;

use crate::os::system;

pub const THREAD_NAME: &str = "softnic-ctl";
/// Name of the socket at which a client accepts the NIC's connection.
pub fn socket_name(number: u64) -> String {
    format!("softnic-ctl-{}-{number:016x}", system::user())
}
