//! How `softnic ctl` talks to the NIC of a running process.
//!
//! No program has a listening socket. A client binds an abstract socket, writes its number into the slot on
//! the fabric ([`FabricView::call`](crate::link::FabricView::call)) and rings. The NIC thread finds the call
//! on a line that it loads anyway, and starts a thread named [`THREAD_NAME`], which connects to the client,
//! reads one [`request`], answers ([`server`]) and ends. Without a client no system call is made; neither end
//! leaves a name or thread. Both check the other's user (`SO_PEERCRED`). Waits have deadlines, messages a
//! version and a length ([`frame`]). A [`capture`] lasts as long as its client wants, beside other requests.

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
