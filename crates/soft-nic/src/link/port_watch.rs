//! What is known of the owners of UDP ports.

use std::net::IpAddr;
use std::sync::mpsc::Receiver;

/// A socket at an address's port: its inode.
pub(super) type Socket = (IpAddr, u64);

/// What is known of a socket at the port of one of our addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// A process of the fabric had it: it stays its own, and descriptors are not searched for it again.
    Friend,
    /// No process of the fabric had it at the last look: its process may have been about to end.
    Suspect,
    Reported,
}

/// The process that holds this NIC's UDP port.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) socket: Socket,
    pub(super) user: u32,
    pub(super) of_fabric: bool,
    /// Looked for only where it is to be reported.
    pub(super) pid: Option<u32>,
}

/// What is known of the owners of our addresses' ports.
#[derive(Debug, Default)]
pub(super) struct PortWatch {
    /// A look that a thread of its own takes: through every descriptor of a host, it lasts too long for the NIC's.
    pub(super) look: Option<Receiver<Vec<Found>>>,
    pub(super) due_ns: u64,
    pub(super) pause_ns: u64,
    /// The sockets of the last look, behind those that were reported.
    pub(super) known: Vec<(Socket, Standing)>,
}

impl PortWatch {
    pub(super) fn wait(&mut self, now_ns: u64, pause_ns: u64) {
        self.pause_ns = pause_ns;
        self.due_ns = now_ns.saturating_add(pause_ns);
    }
}
