//! The client's side: calls one process's NIC, checks the process that connects, and sends one request.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::frame::{self, MAX_ANSWER_BYTES, encode};
use super::{Request, socket_name};
use crate::link::{FabricMember, FabricView};
use crate::os::system;
use crate::os::unix_stream::{Listener, Stream};

/// Deadline for a NIC to connect and to answer: far above a busy machine's scheduling.
const TIMEOUT: Duration = Duration::from_secs(3);
/// An unanswered call is made again: the NIC may have been serving another client.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The process ended, or became another program.
    #[error("process {0} has ended, or its NIC has")]
    Ended(u32),
    #[error("process {pid} did not answer within {seconds} s; is it stopped?")]
    TimedOut { pid: u32, seconds: u64 },
    #[error("process {pid}: {reason}")]
    Malformed { pid: u32, reason: String },
    #[error("process {pid}: {reason}")]
    Refused { pid: u32, reason: String },
    #[error("talking to process {pid}: {error}")]
    Kernel { pid: u32, error: io::Error },
}

/// Text that came from another process, on one line and without what a terminal takes for a command.
pub fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// A number that no other client has: our process, and a count.
fn fresh_call() -> u64 {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    u64::from(std::process::id()) << 32 | u64::from(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Sends a request to the NIC in `member`. Returns its answer and the connection, on which a capture follows.
pub fn call<T: DeserializeOwned>(
    view: &FabricView,
    member: &FabricMember,
    request: &Request,
) -> Result<(T, Stream), CallError> {
    let pid = member.pid;
    let number = fresh_call();
    let kernel = |error| CallError::Kernel { pid, error };
    let listener = Listener::bind(&socket_name(number)).map_err(kernel)?;
    let until = Instant::now() + TIMEOUT;
    let timed_out = || CallError::TimedOut { pid, seconds: TIMEOUT.as_secs() };
    loop {
        view.call(member, number);
        let came = listener.accept(RETRY_INTERVAL);
        if let Some((stream, peer)) = came.map_err(kernel)? {
            // Any process may connect to an abstract name.
            if (peer.pid, peer.user) == (pid, system::user()) {
                let asked = stream.send(&encode(request), until);
                let answered = asked.and_then(|()| frame::receive(&stream, MAX_ANSWER_BYTES, until));
                let answer: Result<T, String> = answered.map_err(|error| match error.kind() {
                    io::ErrorKind::TimedOut => timed_out(),
                    io::ErrorKind::InvalidData => CallError::Malformed { pid, reason: error.to_string() },
                    _ => CallError::Ended(pid),
                })?;
                let refused = |reason: String| CallError::Refused { pid, reason: printable(&reason) };
                return answer.map(|value| (value, stream)).map_err(refused);
            }
        } else if !view.is_taken(member) {
            return Err(CallError::Ended(pid));
        }
        if Instant::now() >= until {
            view.withdraw_call(member, number);
            return Err(timed_out());
        }
    }
}
