//! Send and receive requests, in the memory layout of libibverbs, so that posting converts nothing.

use std::io;
use std::marker::PhantomData;

use super::address::AddressHandle;
use crate::result::raw;

/// A piece of registered memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Sge(raw::ibv_sge);

impl Sge {
    /// Any address, length and key: the device checks them.
    pub const fn new(address: u64, length: u32, lkey: u32) -> Self {
        Self(raw::ibv_sge { addr: address, length, lkey })
    }

    pub const fn address(&self) -> u64 {
        self.0.addr
    }

    /// Length in bytes.
    pub const fn length(&self) -> u32 {
        self.0.length
    }

    pub const fn lkey(&self) -> u32 {
        self.0.lkey
    }
}

impl std::fmt::Debug for Sge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:#x} of lkey {:#x}", self.length(), self.address(), self.lkey())
    }
}

/// Bytes that are copied into the request when it is posted.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct InlineSlice<'a>(raw::ibv_sge, PhantomData<&'a [u8]>);

impl<'a> InlineSlice<'a> {
    /// Any bytes. What is beyond 4 GiB is left out, and far above every queue's inline limit.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::of_region(bytes.as_ptr().addr() as u64, u32::try_from(bytes.len()).unwrap_or(u32::MAX))
    }

    /// Bytes of a region that lives for `'a`.
    pub(super) const fn of_region(address: u64, length: u32) -> Self {
        Self(raw::ibv_sge { addr: address, length, lkey: 0 }, PhantomData)
    }

    /// Length in bytes.
    pub const fn length(&self) -> u32 {
        self.0.length
    }
}

/// A place in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remote {
    /// Virtual address there.
    pub address: u64,
    /// Key of the region there.
    pub rkey: u32,
}

/// The operation and what it alone needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendOperation {
    Send,
    /// SEND with immediate, in network order.
    SendImm([u8; 4]),
    /// SEND that invalidates this key of the peer.
    SendInvalidate(u32),
    Write(Remote),
    /// RDMA WRITE with immediate, in network order.
    WriteImm(Remote, [u8; 4]),
    Read(Remote),
    /// Compare 8 bytes and swap.
    CompareSwap {
        /// Aligned target.
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    /// Close the window that has this key and that this queue pair has opened. No payload.
    LocalInvalidate(u32),
    /// Add to 8 bytes.
    FetchAdd {
        /// Aligned target.
        remote: Remote,
        /// Value to add, modulo 2^64.
        add: u64,
    },
}

/// Bits of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags(pub u32);

impl SendFlags {
    pub const NONE: Self = Self(0);
    /// Waits for READs and atomics before it.
    pub const FENCE: Self = Self(raw::IBV_SEND_FENCE);
    /// Gives a completion.
    pub const SIGNALED: Self = Self(raw::IBV_SEND_SIGNALED);
    /// The receiver's completion is solicited.
    pub const SOLICITED: Self = Self(raw::IBV_SEND_SOLICITED);
}

impl std::ops::BitOr for SendFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Local memory of a send request.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// Registered memory: source, or for READ and atomics destination.
    Gather(&'a [Sge]),
    /// Bytes copied at once. SEND and WRITE only.
    Inline(&'a [InlineSlice<'a>]),
}

/// Receiver of a datagram.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// Its port.
    pub handle: &'a AddressHandle,
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

#[derive(Clone, Copy)]
pub struct SendRequest<'a> {
    /// Comes back with the completion.
    pub id: u64,
    pub operation: SendOperation,
    pub flags: SendFlags,
    /// Local memory.
    pub payload: Payload<'a>,
    /// Receiver, on a UD queue pair.
    pub datagram: Option<Datagram<'a>>,
}

impl<'a> SendRequest<'a> {
    /// A signalled request of a connected queue pair.
    pub const fn new(id: u64, operation: SendOperation, payload: Payload<'a>) -> Self {
        Self { id, operation, flags: SendFlags::SIGNALED, payload, datagram: None }
    }

    /// The request as libibverbs takes it, without a successor. Points into `self`'s slices.
    pub(super) fn to_raw(self) -> raw::ibv_send_wr {
        let (list, count, inline) = match self.payload {
            Payload::Gather(list) => (list.as_ptr().cast::<raw::ibv_sge>(), list.len(), 0),
            Payload::Inline(list) => (list.as_ptr().cast(), list.len(), raw::IBV_SEND_INLINE),
        };
        let mut raw = raw::ibv_send_wr {
            wr_id: self.id,
            sg_list: list.cast_mut(),
            // More entries than i32 has become negative, which libmlx5 refuses as too many.
            num_sge: (count as u32).cast_signed(),
            send_flags: self.flags.0 | inline,
            ..Default::default()
        };
        let rdma = |remote: Remote| raw::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr: remote.address,
            rkey: remote.rkey,
        };
        let atomic = |remote: Remote, compare_add, swap| raw::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.address,
            compare_add,
            swap,
            rkey: remote.rkey,
        };
        match self.operation {
            SendOperation::Send => raw.opcode = raw::IBV_WR_SEND,
            SendOperation::SendImm(immediate) => {
                raw.opcode = raw::IBV_WR_SEND_WITH_IMM;
                raw.__bindgen_anon_1.imm_data = u32::from_ne_bytes(immediate);
            }
            SendOperation::SendInvalidate(rkey) => {
                raw.opcode = raw::IBV_WR_SEND_WITH_INV;
                raw.__bindgen_anon_1.invalidate_rkey = rkey;
            }
            SendOperation::LocalInvalidate(rkey) => {
                raw.opcode = raw::IBV_WR_LOCAL_INV;
                raw.__bindgen_anon_1.invalidate_rkey = rkey;
            }
            SendOperation::Write(remote) => {
                raw.opcode = raw::IBV_WR_RDMA_WRITE;
                raw.wr.rdma = rdma(remote);
            }
            SendOperation::WriteImm(remote, immediate) => {
                raw.opcode = raw::IBV_WR_RDMA_WRITE_WITH_IMM;
                raw.__bindgen_anon_1.imm_data = u32::from_ne_bytes(immediate);
                raw.wr.rdma = rdma(remote);
            }
            SendOperation::Read(remote) => {
                raw.opcode = raw::IBV_WR_RDMA_READ;
                raw.wr.rdma = rdma(remote);
            }
            SendOperation::CompareSwap { remote, compare, swap } => {
                raw.opcode = raw::IBV_WR_ATOMIC_CMP_AND_SWP;
                raw.wr.atomic = atomic(remote, compare, swap);
            }
            SendOperation::FetchAdd { remote, add } => {
                raw.opcode = raw::IBV_WR_ATOMIC_FETCH_AND_ADD;
                raw.wr.atomic = atomic(remote, add, 0);
            }
        }
        if let Some(datagram) = self.datagram {
            raw.wr.ud = raw::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
                ah: datagram.handle.raw().as_ptr(),
                remote_qpn: datagram.qpn,
                remote_qkey: datagram.qkey,
            };
        }
        raw
    }
}

/// Requests that are posted together, with one doorbell. Reuse it: posting and refilling allocate nothing.
#[derive(Default)]
pub struct SendList<'a> {
    raw: Vec<raw::ibv_send_wr>,
    _requests: PhantomData<SendRequest<'a>>,
}

impl<'a> SendList<'a> {
    /// An empty list with room for `capacity` requests.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { raw: Vec::with_capacity(capacity), _requests: PhantomData }
    }

    /// Adds a request at the end.
    pub fn push(&mut self, request: &SendRequest<'a>) {
        self.raw.push(request.to_raw());
    }

    /// Empties the list and keeps its room.
    pub fn clear(&mut self) {
        self.raw.clear();
    }

    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Chains the requests; gives the first, null for an empty list.
    pub(super) fn chain(&mut self) -> *mut raw::ibv_send_wr {
        let first = self.raw.as_mut_ptr();
        let count = self.raw.len();
        for (index, request) in self.raw.iter_mut().enumerate() {
            let last = index + 1 == count;
            request.next = if last { std::ptr::null_mut() } else { first.wrapping_add(index + 1) };
        }
        if count == 0 { std::ptr::null_mut() } else { first }
    }

    /// Place in the list of a request that libibverbs named.
    pub(super) fn index_of(&self, raw: *const raw::ibv_send_wr) -> usize {
        let bytes = raw.addr().wrapping_sub(self.raw.as_ptr().addr());
        (bytes / size_of::<raw::ibv_send_wr>()).min(self.raw.len())
    }
}

#[derive(Clone, Copy)]
pub struct ReceiveRequest<'a> {
    /// Comes back with the completion.
    pub id: u64,
    /// Where a message goes; empty is enough for WRITEs with immediate.
    pub scatter: &'a [Sge],
}

impl ReceiveRequest<'_> {
    pub(super) fn to_raw(self) -> raw::ibv_recv_wr {
        raw::ibv_recv_wr {
            wr_id: self.id,
            next: std::ptr::null_mut(),
            sg_list: self.scatter.as_ptr().cast::<raw::ibv_sge>().cast_mut(),
            num_sge: (self.scatter.len() as u32).cast_signed(),
        }
    }
}

/// Why posting stopped, and where. Requests before that one are posted.
#[derive(Debug, thiserror::Error)]
#[error("request {index} of the list: {source}")]
pub struct PostError {
    /// Place of the refused request in the list, from 0.
    pub index: usize,
    /// libibverbs' error: `ENOMEM` when the queue is full (or lacks room for that payload), else `EINVAL`.
    pub source: io::Error,
}

impl PostError {
    /// Whether the queue was full, as far as libibverbs tells it.
    pub fn is_full(&self) -> bool {
        self.source.raw_os_error() == Some(libc::ENOMEM)
    }
}
