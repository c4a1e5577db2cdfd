//! What is known of the owners of UDP ports.

use std::net::IpAddr;
use std::sync::mpsc::Receiver;

use super::udp::Holder;

/// A socket at an address's port: its inode.
pub(super) type Socket = (IpAddr, u64);

/// The process that holds this NIC's UDP port.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) socket: Socket,
    pub(super) holder: Holder,
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
    /// Sockets that no process of the fabric had at the last look: it may have been about to end.
    pub(super) suspects: Vec<Socket>,
    /// Sockets that a process of the fabric had: they stay its own, and descriptors are not searched for them again.
    pub(super) friends: Vec<Socket>,
    /// Those that were reported.
    pub(super) reported: Vec<Socket>,
    /// The epoll could not be told of a socket yet.
    pub(super) refused_by_epoll: bool,
}

impl PortWatch {
    pub(super) fn wait(&mut self, now_ns: u64, pause_ns: u64) {
        self.pause_ns = pause_ns;
        self.due_ns = now_ns.saturating_add(pause_ns);
    }
}
