//! What became of MADs: how each one ended, and how many of each.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of the MADs that came over the wire to a port that we own, and of those that were to leave over it; or of those
/// within the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MadCounters {
    /// Handed on to the process that they are for.
    pub handed_on: u64,
    /// No process listens, or the one that they are for has ended: refused with an answer.
    pub refused: u64,
    /// Dropped: no process takes them, and there is nothing to answer.
    pub unclaimed: u64,
    /// Dropped: of QP1, but no MAD of a connection manager (service, length, Q_Key, version, class).
    pub malformed: u64,
    /// Dropped: the socket of the process that they are for was full, or too many wait for the wire.
    pub full: u64,
    /// Not sent: no header says that, or no port has that address.
    pub unsent: u64,
    /// Dropped: this process lacks a descriptor, memory, or what else the kernel says of our own. No request is refused for that.
    pub failed: u64,
}

/// [`MadCounters`] while they count, one place for each [`Fate`].
#[derive(Debug, Default)]
pub(super) struct Tally([AtomicU64; 7]);

/// Place in a [`Tally`], in the order of [`MadCounters`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    HandedOn,
    Refused,
    Unclaimed,
    Malformed,
    Full,
    Unsent,
    Failed,
}

impl Fate {
    /// What became of what was sent to a socket. One that is full loses it, as a wire does: its sender asks again.
    pub fn of(posted: &io::Result<()>) -> Fate {
        match posted.as_ref().map_err(io::Error::kind) {
            Ok(()) => Fate::HandedOn,
            Err(io::ErrorKind::WouldBlock) => Fate::Full,
            Err(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Fate::Unclaimed,
            Err(_) => Fate::Failed,
        }
    }
}

impl Tally {
    pub fn count(&self, fate: Fate) {
        self.add(fate, 1);
    }

    pub fn add(&self, fate: Fate, more: u64) {
        self.0[fate as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub fn counters(&self) -> MadCounters {
        let [handed_on, refused, unclaimed, malformed, full, unsent, failed] =
            self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        MadCounters { handed_on, refused, unclaimed, malformed, full, unsent, failed }
    }
}
