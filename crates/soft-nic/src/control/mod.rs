//! How `softnic ctl` talks to the NIC of a running process.
//!
//! Nothing listens in a program. A caller binds an abstract socket of its own, writes its number into the slot on the fabric
//! ([`FabricView::call`](crate::link::FabricView::call)) and rings; the NIC thread finds the call in its round, on a line that it loads anyway, and starts a
//! thread named [`THREAD_NAME`] for this one conversation: it connects to the caller, reads one [`request`], answers ([`callee`]),
//! and ends. So no system call is made without a caller, and neither end leaves a name or a thread behind. Both look at the
//! other's user (`SO_PEERCRED`), every wait has a deadline, every message a version and a length ([`frame`]). One request goes on
//! after its answer: a [`capture`] lasts as long as its caller wants, beside the other conversations.

mod callee;
mod caller;
mod capture;
mod frame;
mod request;
#[cfg(test)]
mod tests;

pub use callee::Callee;
pub use caller::{CallError, call};
pub use capture::{Blocks, call_for_packets};
pub use frame::{Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, VERSION, encode};
pub use request::Request;

use crate::os::system;

/// Name of the thread that answers a caller.
pub const THREAD_NAME: &str = "softnic-ctl";
/// Name of the socket that a caller waits at.
pub fn socket_name(number: u64) -> String {
    format!("softnic-ctl-{}-{number:016x}", system::user())
}
