//! What the link says of itself: errors, events and counters.

use std::net::IpAddr;

use super::fabric::FabricError;
use super::record::RecordError;
use crate::os::system::refusal;

/// Why a link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error("installing the handler for SIGSEGV and SIGBUS: {0}")]
    Guard(std::io::Error),
    #[error(
        "UDP port 4791 of {address}: {error}; name an address of this host (option --ipv4, key `ipv4`), or use --path shm"
    )]
    Wire { address: IpAddr, error: std::io::Error },
    #[error(
        "{count} addresses: a process has at most {} on a fabric; use fewer --devices or --ports, or one --ipv4 and no --ipv6",
        super::fabric::PORTS
    )]
    Addresses { count: usize },
    #[error("waiting for packets (epoll): {0}")]
    OneShotEpoll(std::io::Error),
    #[error("rings of {ring_bytes} bytes: a power of two of at least 524288 is needed")]
    RingBytes { ring_bytes: usize },
}

/// Why there is no channel with the process in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPeer {
    #[error("no process has slot {0} of the fabric")]
    Empty(u8),
    #[error("the process in slot {0} of the fabric has ended, or cannot be watched")]
    Gone(u8),
    /// The peer could not attach to the channel, closed it, or wrote nonsense into it; or a GPU's copy may
    /// still write or read there.
    #[error("the channel to slot {0} of the fabric is refused or closed")]
    Closed(u8),
    /// An errno.
    #[error("{}", refusal(*.0))]
    Kernel(i32),
    #[error("a fork child cannot use its parent's link")]
    Forked,
    #[error("it is no channel between these two processes: {0}")]
    Foreign(&'static str),
}

impl From<std::io::Error> for NoPeer {
    fn from(error: std::io::Error) -> NoPeer {
        error.raw_os_error().map_or(NoPeer::Foreign("not a memfd"), NoPeer::Kernel)
    }
}

/// Things that happened which no call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LinkEvent {
    /// A peer ended, or became another program, without leaving. One that left is no event.
    #[error("the process in slot {slot} (pid {pid}) ended without leaving the fabric")]
    PeerLost { slot: u8, pid: u32 },
    #[error("slot {slot} sent {error}; its channel is closed")]
    BadRecord { slot: u8, error: RecordError },
    #[error(
        "a copy between a GPU and the channel with slot {slot} did not end in time, and may go on: the channel is closed, so that no other \
         message lies there; messages between the two processes fail until one of them begins anew"
    )]
    CopyGivenUp { slot: u8 },
    /// A process outside the fabric has the port of an address of ours, and hands nothing on.
    #[error(
        "UDP port 4791 of {address} belongs to a process of user {user} that is not of this fabric (`ss -lunp` names it), or to the \
         kernel's soft-RoCE (rdma_rxe; see `rdma link`); nothing that is sent to this address comes to this NIC: end that, or give this \
         NIC another address (--ipv4, --ipv6) or that one's --fabric"
    )]
    PortTaken { address: IpAddr, user: u32 },
    /// The kernel would not send packets: said once, and again when it is for another reason.
    #[error("packets from {address} are lost: the kernel does not send them ({})", std::io::Error::from_raw_os_error(*.errno))]
    Unsent { address: IpAddr, errno: i32 },
    /// A running peer cannot be watched: nothing is sent to it or taken from it.
    #[error(
        "process {pid} of the fabric cannot be reached: pidfd_open, by which its end is noticed: {}",
        std::io::Error::from_raw_os_error(*.errno)
    )]
    Unwatched { pid: u32, errno: i32 },
    /// The kernel gave no memory or descriptor for a channel: said once.
    #[error("no channel to slot {slot} of the fabric, messages to it are lost: {} (said once)", refusal(*.errno))]
    NoChannel { slot: u8, errno: i32 },
    #[error("the channel that slot {slot} published cannot be used, messages from it are lost: {why}")]
    AttachFailed { slot: u8, why: NoPeer },
}

roce::counters! {
    /// What the link carried.
    #[derive(Copy)]
    LinkCounters [fields "link_"] {
        /// Requests and fragments of requests sent.
        requests_sent,
        /// Replies and pieces of replies sent.
        replies_sent,
        /// Records handed to the handler and consumed.
        received,
        /// Payload bytes copied out of records.
        payload_bytes,
        /// Of the payload bytes copied to where the device said, those for which it asked for no order.
        relaxed_bytes,
        /// Records that could not be; each closed a channel.
        bad_records,
        /// Channels that could not be attached.
        attach_failures,
        /// Peers that ended or left.
        peers_lost,
        /// Sleeping peers woken.
        bells,
        /// Times this NIC slept.
        sleeps,
    }
}
