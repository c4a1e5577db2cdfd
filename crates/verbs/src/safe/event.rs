//! Asynchronous events of a device: errors of queues, changes of ports.

use std::time::Duration;

use super::completion::wait_readable;
use super::device::Context;
use crate::result::code::EventType;
use crate::result::raw;
use crate::result::{Result, object};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    Qp(u32),
    /// Number that was given to the CQ, see [`super::Cq::with_channel`].
    Cq(usize),
    Srq,
    Port(i32),
    Device,
}

/// An event, acknowledged already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: EventType,
    pub element: Element,
}

impl Context {
    /// Waits for an asynchronous event, at most `timeout`.
    pub fn wait_async_event(&self, timeout: Duration) -> Result<Option<AsyncEvent>> {
        // SAFETY: the context is live.
        let fd = unsafe { (*self.raw().as_ptr()).async_fd };
        if !wait_readable(fd, timeout)? {
            return Ok(None);
        }
        // SAFETY: the context is live.
        let mut raw = match unsafe { object::get_async_event(self.raw()) } {
            Ok(raw) => raw,
            Err(error) if error.errno() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) => return Err(error),
        };
        let kind = EventType::from_raw(raw.event_type);
        // SAFETY: the event is as libibverbs filled it, and not acknowledged yet.
        let element = unsafe { element_of(kind, &raw) };
        // SAFETY: got above, acknowledged once.
        unsafe { object::ack_async_event(&mut raw) }?;
        Ok(Some(AsyncEvent { kind, element }))
    }
}

/// # Safety
/// `event` is from libibverbs and not acknowledged: its object cannot be destroyed.
unsafe fn element_of(kind: EventType, event: &raw::ibv_async_event) -> Element {
    use EventType as E;
    match kind {
        E::CqError => {
            // SAFETY: the union holds a CQ for this kind (`ibv_get_async_event(3)`).
            let cq = unsafe { event.element.cq };
            // SAFETY: the caller's promise.
            Element::Cq(unsafe { (*cq).cq_context }.addr())
        }
        E::QpFatal
        | E::QpRequestError
        | E::QpAccessError
        | E::CommunicationEstablished
        | E::SqDrained
        | E::PathMigrated
        | E::PathMigrationError
        | E::QpLastWqeReached => {
            // SAFETY: the union holds a QP for these kinds.
            let qp = unsafe { event.element.qp };
            // SAFETY: the caller's promise.
            Element::Qp(unsafe { (*qp).qp_num })
        }
        E::SrqError | E::SrqLimitReached => Element::Srq,
        E::DeviceFatal | E::Other(_) => Element::Device,
        E::PortActive
        | E::PortError
        | E::LidChange
        | E::PkeyChange
        | E::SmChange
        | E::ClientReregister
        | E::GidChange => {
            // SAFETY: the union holds a number for these kinds.
            Element::Port(unsafe { event.element.port_num })
        }
    }
}
