//! How `softnic ctl` talks to the NIC of a running process.
//!
//! Nothing listens in a program. A caller binds an abstract socket of its own, writes its number into the slot on the fabric
//! ([`FabricView::call`](crate::link::FabricView::call)) and rings; the NIC thread finds the call in its round, on a line that it loads anyway, and starts a
//! thread named [`THREAD_NAME`] for this one conversation: it connects to the caller, reads one [`request`], answers ([`answer`]),
//! and ends. So no system call is made without a caller, and neither end leaves a name or a thread behind. Both look at the
//! other's user (`SO_PEERCRED`), every wait has a deadline, every message a version and a length ([`frame`]). One request goes on
//! after its answer: a [`capture`] lasts as long as its caller wants, beside the other conversations.

mod answer;
mod caller;
mod capture;
mod frame;
mod request;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use caller::{CallError, call};
pub use capture::{Blocks, call_for_packets};
pub use frame::{Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, VERSION, encode};
pub use request::Request;

use super::server::Server;
use crate::Nic;
use crate::link::capture::Captured;
use crate::os::unix_stream::Stream;
use crate::os::{log, log_enabled, system};

/// Name of the thread that answers a caller.
pub const THREAD_NAME: &str = "softnic-ctl";
/// Longest conversation, seen from the NIC: a caller that is silent or slow is left alone.
const PATIENCE: Duration = Duration::from_secs(1);

/// Name of the socket that a caller waits at.
pub fn socket_name(call: u64) -> String {
    format!("softnic-ctl-{}-{call:016x}", system::user())
}

/// Set while this process answers a caller: one at a time.
#[derive(Debug, Default)]
pub(super) struct Talking(AtomicBool);

/// Ends the conversation however its thread ends.
struct Turn(Arc<Talking>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

/// Calls back. The thread inherits the NIC thread's mask: signals of the program do not reach it.
pub(super) fn take_call(server: &Arc<Server<Nic>>, talking: &Arc<Talking>, call: u64) {
    if talking.0.swap(true, Ordering::AcqRel) {
        // The caller calls again.
        return;
    }
    let (turn, server) = (Turn(talking.clone()), server.clone());
    let thread = std::thread::Builder::new().name(THREAD_NAME.to_owned());
    let spawned = thread.spawn(move || {
        let ended = converse(&server, call);
        // Others may talk while a capture goes on.
        drop(turn);
        let ended = match ended {
            Ok((stream, Some(captured))) => capture::stream(&stream, captured)
                .map_err(|error| format!("the caller of a capture went away: {error}")),
            Ok((_, None)) => Ok(()),
            Err(why) => Err(why),
        };
        if let Err(why) = ended
            && log_enabled()
        {
            log(&format!("softnic ctl: {why}"));
        }
    });
    if let Err(error) = spawned {
        log(&format!("softnic ctl calls, and there is no thread to answer: {error}"));
    }
}

/// One request, one answer, and what is to follow it. The error says why there was none.
fn converse(server: &Server<Nic>, call: u64) -> Result<(Stream, Option<Captured>), String> {
    let until = Instant::now() + PATIENCE;
    let (stream, peer) = Stream::connect(&socket_name(call), PATIENCE)
        .map_err(|error| format!("the caller cannot be reached: {error}"))?;
    if peer.user != system::user() {
        return Err(format!("process {} of user {} is refused", peer.pid, peer.user));
    }
    let request = match frame::receive(&stream, MAX_REQUEST_BYTES, until) {
        Ok(text) => Request::parse(&text),
        Err(frame::FrameError::Kernel(error)) => return Err(format!("the caller went away: {error}")),
        Err(error) => Err(error.to_string()),
    };
    let mut captured = None;
    let answer = request.and_then(|request| match request {
        Request::Capture { packets } => {
            captured = Some(answer::begin_capture(server, packets)?);
            Ok(Vec::new())
        }
        request => answer::answer(server, &request),
    });
    let text = frame::text_of(&answer);
    stream.send(&encode(&text), until).map_err(|error| format!("the answer was not taken: {error}"))?;
    Ok((stream, captured))
}
