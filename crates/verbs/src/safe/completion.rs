//! Completion channels and completion queues that libmlx5 polls.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::device::Context;
use crate::result::code::{WcOpcode, WcStatus};
use crate::result::raw;
use crate::result::{Error, Result, object};

/// Waits until `fd` is readable, at most `timeout`.
pub(crate) fn wait_readable(fd: RawFd, timeout: Duration) -> Result<bool> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Rounded up, so that a wait of less than a millisecond is not a busy loop of the caller.
    let milliseconds = timeout.as_micros().div_ceil(1000).min(c_int::MAX as u128) as c_int;
    // SAFETY: one entry, writable.
    match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
        -1 => match io::Error::last_os_error() {
            interrupted if interrupted.kind() == io::ErrorKind::Interrupted => Ok(false),
            source => Err(Error::Call { call: "poll", what: String::new(), source }),
        },
        ready => Ok(ready > 0),
    }
}

/// Makes reads of `fd` fail with `EAGAIN` instead of waiting: two threads may race for one event.
pub(super) fn set_nonblocking(fd: RawFd) -> Result<()> {
    let error = || Error::Call { call: "fcntl", what: String::new(), source: io::Error::last_os_error() };
    // SAFETY: no pointer is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags == -1 {
        return Err(error());
    }
    // SAFETY: no pointer is passed.
    if unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } == -1 {
        return Err(error());
    }
    Ok(())
}

#[derive(Debug)]
struct ChannelHandle {
    channel: NonNull<raw::ibv_comp_channel>,
    fd: RawFd,
    context: Context,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for ChannelHandle {}
// SAFETY: as above.
unsafe impl Sync for ChannelHandle {}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        // SAFETY: every CQ keeps its channel, so that none is left.
        let _ = unsafe { object::destroy_comp_channel(self.channel) };
    }
}

/// Where armed completion queues send their events. Clones are the same channel.
#[derive(Debug, Clone)]
pub struct CompChannel(Arc<ChannelHandle>);

impl CompChannel {
    pub fn new(context: &Context) -> Result<Self> {
        // SAFETY: the context is live.
        let channel =
            unsafe { object::create_comp_channel(context.raw()) }.map_err(|e| e.of(context.name()))?;
        // SAFETY: libibverbs filled the channel in.
        let fd = unsafe { (*channel.as_ptr()).fd };
        let handle = ChannelHandle { channel, fd, context: context.clone() };
        set_nonblocking(fd)?;
        Ok(Self(Arc::new(handle)))
    }

    /// Waits for an event, at most `timeout`, and acknowledges it. Returns its CQ's number (see
    /// [`Cq::with_channel`]), or `None` on timeout or a signal, or if another thread took the event.
    pub fn wait(&self, timeout: Duration) -> Result<Option<usize>> {
        if !wait_readable(self.0.fd, timeout)? {
            return Ok(None);
        }
        // SAFETY: the channel is live.
        match unsafe { object::get_cq_event(self.0.channel) } {
            Ok((cq, number)) => {
                // SAFETY: the event was got above; until it is acknowledged, the CQ's destruction cannot end.
                unsafe { object::ack_cq_event(cq) }?;
                Ok(Some(number))
            }
            Err(error) if error.errno() == Some(libc::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl std::os::fd::AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: libibverbs keeps the descriptor open as long as the channel lives.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl AsRawFd for CompChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd
    }
}

/// The CQ itself: kept by the queue pairs that complete into it.
#[derive(Debug)]
pub(super) struct CqHandle {
    pub(super) cq: NonNull<raw::ibv_cq>,
    pub(super) context: Context,
    _channel: Option<CompChannel>,
}

// SAFETY: libibverbs' objects may be used from any thread.
unsafe impl Send for CqHandle {}
// SAFETY: as above.
unsafe impl Sync for CqHandle {}

impl Drop for CqHandle {
    fn drop(&mut self) {
        // SAFETY: every queue pair keeps its CQs, so that none is left.
        let _ = unsafe { object::destroy_cq(self.cq) };
    }
}

/// A completion queue that libmlx5 polls. [`super::DirectCq`] takes it over for other means of polling:
/// ```compile_fail,E0382
/// # fn take_over(mut cq: verbs::Cq) -> verbs::Result<()> {
/// let direct = cq.into_direct()?;
/// cq.poll(&mut [verbs::WorkCompletion::default()])?;
/// # Ok(())
/// # }
/// ```
/// ```
/// # fn take_over(mut cq: verbs::Cq) -> verbs::Result<()> {
/// cq.poll(&mut [verbs::WorkCompletion::default()])?;
/// let direct = cq.into_direct()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Cq {
    pub(super) handle: Arc<CqHandle>,
}

impl Cq {
    /// Makes a CQ for at least `entries` completions.
    pub fn new(context: &Context, entries: u32) -> Result<Self> {
        Self::create(context, entries, None, 0)
    }

    /// Makes a CQ whose events go to `channel`, and carry `number`.
    pub fn with_channel(
        context: &Context,
        entries: u32,
        channel: &CompChannel,
        number: usize,
    ) -> Result<Self> {
        if !Arc::ptr_eq(&channel.0.context.0, &context.0) {
            return Err(Error::Refused("the channel belongs to another open of the device".into()));
        }
        Self::create(context, entries, Some(channel), number)
    }

    fn create(context: &Context, entries: u32, channel: Option<&CompChannel>, number: usize) -> Result<Self> {
        let raw_channel = channel.map(|channel| channel.0.channel);
        // SAFETY: context and channel are live.
        let cq = unsafe { object::create_cq(context.raw(), entries, number, raw_channel, 0) };
        let cq = cq.map_err(|e| e.of(&format!("{entries} entries on {}", context.name())))?;
        let handle = CqHandle { cq, context: context.clone(), _channel: channel.cloned() };
        Ok(Self { handle: Arc::new(handle) })
    }

    /// Completions that the CQ has room for.
    pub fn entries(&self) -> u32 {
        // SAFETY: the CQ is live.
        unsafe { (*self.handle.cq.as_ptr()).cqe }.cast_unsigned()
    }

    /// Asks for one event at the next completion, or the next solicited one.
    pub fn request_notify(&mut self, solicited_only: bool) -> Result<()> {
        // SAFETY: the CQ is live.
        unsafe { object::req_notify_cq(self.handle.cq, solicited_only) }
    }

    /// Takes up to `out.len()` completions; returns how many.
    pub fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize> {
        let room = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the CQ is live; `WorkCompletion` is an `ibv_wc`, of which there are `room`.
        unsafe { object::poll_cq(self.handle.cq, room, out.as_mut_ptr().cast()) }
    }
}

/// How one work request ended.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WorkCompletion(raw::ibv_wc);

impl Default for WorkCompletion {
    fn default() -> Self {
        // SAFETY: zeroes are valid: numbers only.
        Self(unsafe { MaybeUninit::zeroed().assume_init() })
    }
}

impl WorkCompletion {
    /// The number that was given with the request.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Success, or what went wrong.
    pub fn status(&self) -> WcStatus {
        WcStatus::from_raw(self.0.status)
    }

    /// Whether it ended well.
    pub fn is_success(&self) -> bool {
        self.0.status == raw::IBV_WC_SUCCESS
    }

    /// The device's own word on an error.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }

    /// What ended. Not valid when the status is an error.
    pub fn opcode(&self) -> WcOpcode {
        WcOpcode::from_raw(self.0.opcode)
    }

    /// Bytes received or read.
    pub fn byte_count(&self) -> u32 {
        self.0.byte_len
    }

    pub fn qpn(&self) -> u32 {
        self.0.qp_num
    }

    /// Sender of a datagram.
    pub fn source_qpn(&self) -> u32 {
        self.0.src_qp
    }

    /// Immediate data, in network order, if some came.
    pub fn immediate(&self) -> Option<[u8; 4]> {
        if self.0.wc_flags & raw::IBV_WC_WITH_IMM == 0 {
            return None;
        }
        // SAFETY: both members of the union are 32-bit numbers.
        Some(unsafe { self.0.__bindgen_anon_1.imm_data }.to_ne_bytes())
    }

    /// The key that a SEND with invalidate named, if one came.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        if self.0.wc_flags & raw::IBV_WC_WITH_INV == 0 {
            return None;
        }
        // SAFETY: both members of the union are 32-bit numbers.
        Some(unsafe { self.0.__bindgen_anon_1.invalidated_rkey })
    }
}

impl std::fmt::Debug for WorkCompletion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkCompletion")
            .field("id", &self.id())
            .field("status", &self.status())
            .field("opcode", &self.opcode())
            .field("byte_count", &self.byte_count())
            .field("qpn", &self.qpn())
            .field("vendor_error", &self.vendor_error())
            .finish()
    }
}
