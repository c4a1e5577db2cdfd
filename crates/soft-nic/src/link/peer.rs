//! A peer, and the channels from it and to it.

use super::channel::{Consumer, Producer};
use super::fabric::{Process, SlotOwner};

/// A peer that we have a channel with.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) owner: SlotOwner,
    pub(super) process: Process,
}

/// A channel from a peer, or from ourselves.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) consumer: Consumer,
    /// The sender has ended: drop the channel when it is empty.
    pub(super) ended: bool,
    /// It sent a record that cannot be.
    pub(super) closed: bool,
    /// Requests waited in the last round, and none was taken.
    pub(super) neglected: bool,
}

/// A channel to a peer, or to ourselves.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) producer: Producer,
    /// Number of the channel among all that this link has made.
    pub(super) serial: u32,
    /// Whether it is in the link's list of channels to publish.
    pub(super) dirty: bool,
    /// Where each lane ended when it first had too little room for a long piece that waits.
    pub(super) waits_since: [Option<u64>; 2],
}
