//! Between the responder and the memory: what it asks of its device, and what it tells the device to do.
//!
//! The responder decides, the device moves the bytes. Addresses here come from the device's tables, never
//! from the wire.

use crate::{Access, Opcode};

/// Bytes before a received datagram's payload: Global Route Header or stand-in (IBTA Annex A17.4.5.2).
pub const GRH_BYTES: u32 = 40;

/// A piece of registered memory, checked for one access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    /// The rkey that named it.
    pub key: u32,
    /// Address as the requester named it.
    pub va: u64,
    /// Bytes; 0 for a message without payload, whose key and address are not checked.
    pub len: u64,
    /// Where that is in the device's host.
    pub address: u64,
    /// Rights of the key, for the device. Not a `bool` of one right: copying a region with padding in it
    /// waits for its parts to be stored.
    pub rights: Access,
}

/// Why a key does not give the access asked for, and a remedy. Each is a «remote access error» to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    #[error("key {key:#x} names nothing that is registered or bound; take it from the ibv_mr or ibv_mw")]
    UnknownKey { key: u32 },
    #[error("key {key:#x} is of another protection domain or queue; register it with the QP's ibv_pd")]
    ProtectionDomain { key: u32 },
    /// `start` and `length`: what the key names.
    #[error(
        "key {key:#x} names {start:#x}..{:#x}, and {len} bytes at {va:#x} leave that; register more, or move less",
        u128::from(*start) + u128::from(*length)
    )]
    OutOfBounds { key: u32, va: u64, len: u64, start: u64, length: u64 },
    #[error(
        "key {key:#x} lacks access {need:#x} (IBV_ACCESS_*), or the place is not aligned; register it with that"
    )]
    AccessDenied { key: u32, need: u32 },
}

/// A receive work request, taken from the receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Sum of its scatter entries' lengths, in bytes.
    pub capacity: u64,
    /// The device's name for it; the engine only hands it back.
    pub id: u64,
}

/// What a responder needs of the device around it.
pub trait Resources {
    /// Checks that `rkey` grants `need` on `len` bytes at `va` to this QP.
    fn region(&self, rkey: u32, va: u64, len: u64, need: Access) -> Result<Region, RegionError>;
    /// Takes the next receive, or `None` when none is posted.
    fn take_receive(&mut self) -> Option<Receive>;
    /// Whether this QP may invalidate the key (SEND with invalidate). That is done with the message, as
    /// [`Work::Receive`] says: a message that has to come again must find the key as it was.
    fn may_invalidate(&self, rkey: u32) -> bool;
}

/// Bytes to move or an atomic to run, decided by [`crate::Responder::handle_packet`]. Answer with
/// [`crate::Responder::executed`] before the next packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Work {
    /// Scatter the request's payload into a receive.
    Receive {
        receive: Receive,
        /// First byte within the receive's scatter list; includes the 40 bytes of the GRH for datagrams.
        scatter_offset: u32,
        length: u32,
        /// Set when this ends the message: complete the receive after the bytes are visible, and after the
        /// key that a SEND with invalidate names is invalid.
        completion: Option<ReceiveCompletion>,
    },
    /// Write the request's payload to registered memory.
    Write {
        /// The whole message's target.
        region: Region,
        /// First byte within `region`.
        offset: u32,
        length: u32,
        /// WRITE with immediate, last packet: the receive to complete (it takes no bytes), after the bytes
        /// are visible.
        completion: Option<(Receive, ReceiveCompletion)>,
    },
    /// Run an atomic on 8 aligned bytes; answer with [`Outcome::Atomic`].
    Atomic {
        /// The 8 bytes.
        region: Region,
        operation: Atomic,
    },
}

/// An atomic operation on a native-endian 64-bit word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` when the word equals `compare`.
    CompareSwap { compare: u64, swap: u64 },
    /// Adds, wrapping.
    FetchAdd { add: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveCompletion {
    /// The message's operation.
    pub opcode: Opcode,
    /// Payload bytes; 40 more for datagrams.
    pub byte_len: u32,
    /// Immediate data as on the wire, or the invalidated rkey, big-endian; zero for others.
    pub imm: [u8; 4],
    /// Solicited event asked for.
    pub solicited: bool,
    pub src_qpn: u32,
}

/// How the work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Bytes moved.
    Done,
    Atomic {
        old: u64,
    },
    /// Memory of the responder's own process could not be accessed, at this address of it.
    LocalFault {
        addr: u64,
    },
    /// The region that the message's first packet was granted is no longer registered.
    Revoked,
}

/// How a work request ended, on either side: the statuses of `ibv_wc_status` that a transport produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    Success,
    /// Too long: for the receive, or for the service.
    LocalLength,
    /// The QP does not do that.
    LocalQpOperation,
    /// Local memory could not be accessed.
    LocalProtection,
    /// A memory window could not be bound or invalidated.
    WindowBind,
    /// Flushed: the QP was in error.
    Flushed,
    /// A response that fits no request.
    BadResponse,
    /// NAK: invalid request.
    RemoteInvalidRequest,
    /// NAK: remote access error.
    RemoteAccess,
    /// NAK: remote operational error.
    RemoteOperation,
    /// Transport retry counter exceeded.
    RetryExceeded,
    /// RNR retry counter exceeded.
    RnrRetryExceeded,
}
