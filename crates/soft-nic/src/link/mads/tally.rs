//! What became of MADs: how each one ended, and how many of each.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

roce::counters! {
    /// What became of the MADs that came over the wire to a port that we own, and of those that were to leave over it; or of those
    /// within the fabric.
    #[derive(Copy)]
    MadCounters [fields "wire_mads_"] {
        /// Handed on to the process that they are for.
        handed_on,
        /// No process listens, or the one that they are for has ended: refused with an answer.
        refused,
        /// Dropped: no process takes them, and there is nothing to answer.
        unclaimed,
        /// Dropped: of QP1, but no MAD of a connection manager (service, length, Q_Key, version, class).
        malformed,
        /// Dropped: the socket of the process that they are for was full, or too many wait for the wire.
        full,
        /// Not sent: no header says that, or no port has that address.
        unsent,
        /// Dropped: this process lacks a descriptor, memory, or what else the kernel says of our own. No request is refused for that.
        failed,
    }
}

/// [`MadCounters`] while they count, one place for each [`MadOutcome`].
#[derive(Debug, Default)]
pub(crate) struct Tally([AtomicU64; 7]);

/// Place in a [`Tally`], in the order of [`MadCounters`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum MadOutcome {
    HandedOn,
    Refused,
    Unclaimed,
    Malformed,
    Full,
    Unsent,
    Failed,
}

impl MadOutcome {
    /// What became of what was sent to a socket. One that is full loses it, as a wire does: its sender asks again.
    pub fn of(posted: &io::Result<()>) -> MadOutcome {
        match posted.as_ref().map_err(io::Error::kind) {
            Ok(()) => MadOutcome::HandedOn,
            Err(io::ErrorKind::WouldBlock) => MadOutcome::Full,
            Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => MadOutcome::Unclaimed,
            Err(_) => MadOutcome::Failed,
        }
    }
}

impl Tally {
    pub fn count(&self, outcome: MadOutcome) {
        self.add(outcome, 1);
    }

    pub fn add(&self, outcome: MadOutcome, more: u64) {
        self.0[outcome as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub fn counters(&self) -> MadCounters {
        let [handed_on, refused, unclaimed, malformed, full, unsent, failed] =
            self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        MadCounters { handed_on, refused, unclaimed, malformed, full, unsent, failed }
    }
}
