//! A message that arrived: its header as one checked copy, its payload still where the sender left it.

use std::cell::Cell;
use std::net::IpAddr;
#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use roce::{Packet, Reply, Request};

use super::loan::Hold;
use super::loopback::{self, Side};
use super::record::Form;
use super::{LinkCounters, PathAddress};
use crate::dma::{Fault, Host, Order, PeerError, PeerMemory, RingMemory, Segment};

/// A call to the kernel, of 4 MiB at most, that takes so long waits for a page of the sender's: one of a file system in user space or on a network, or one that the program
/// serves by itself (`userfaultfd`). The NIC's thread waits with it, so that the sender's has to reach such memory from then on.
const SLOW: Duration = Duration::from_millis(500);

/// How long the calls of one copy took.
struct Calls {
    begun: Cell<Instant>,
    slow: Cell<bool>,
}

impl Calls {
    fn new(now: Instant) -> Calls {
        Calls { begun: Cell::new(now), slow: Cell::new(false) }
    }

    /// One call has ended, and the next begins. Whether one was slow so far.
    fn next(&self, now: Instant) -> bool {
        let took = now.saturating_duration_since(self.begun.replace(now));
        self.slow.set(self.slow.get() || took >= SLOW);
        self.slow.get()
    }
}

/// What arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// A request, whole or a fragment; for the responder.
    Request(Request),
    /// A reply; for the requester.
    Reply {
        /// The reply. A READ response may come in pieces: it counts with the last one.
        reply: Reply,
        /// Where the bytes that come with it belong, in the READ's answer.
        offset: u32,
        /// Whether all bytes of the answer are there.
        last: bool,
    },
    /// A packet of the wire, for either.
    Packet {
        /// What it says.
        packet: Packet,
        /// Address of the sender.
        from: IpAddr,
        /// Address of ours that it was sent to.
        at: IpAddr,
    },
}

/// What the handler did with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Done with it.
    Consumed,
    /// Done with it, and no other is to follow in this round: it took long, and its acknowledgement is due.
    ConsumedLate,
    /// Cannot take it now: it stays first in its ring, and so does all behind it. Never for replies.
    NotNow,
}

/// Why a payload was not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// Memory of this process, as named by the call, cannot be accessed or is too short.
    #[error("{0} (receiving side)")]
    Local(#[from] Fault),
    /// Memory that the sender named cannot be accessed, or the kernel could not copy just now.
    #[error("memory that the sender named cannot be accessed")]
    Sender,
    /// The sender has ended.
    #[error("the sender has ended")]
    Gone,
    /// The sender has taken the payload back: the message counts as lost on the way.
    #[error("the sender has taken its payload back")]
    TakenBack,
    /// The kernel refuses, though it did not when the channel was made; what is sent from now on will be staged.
    #[error("the kernel no longer allows copies between the two processes")]
    Refused,
}

/// Whose memory a channel's segments lie in.
#[derive(Debug, Clone, Copy)]
pub(super) enum SenderMemory {
    /// This process's.
    Own,
    /// A peer's.
    Peer(PeerMemory),
}

/// Where the payload of a message is.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// Here: a packet was received.
    Here(&'a [u8]),
    /// In a channel's record, or named by it.
    Record {
        form: Form,
        ring: &'a RingMemory,
        /// Position of the inline bytes, or of the word of state.
        payload_at: u64,
        /// What the sender named.
        segments: &'a [Segment],
        memory: &'a SenderMemory,
    },
}

/// A message and the way to its payload; lives as long as the handler's call.
#[derive(Debug)]
pub struct Inbound<'a> {
    /// The message.
    pub message: &'a Message,
    /// Where a datagram came from; `None` for connected services.
    pub path: Option<PathAddress>,
    /// The port, from 1, of our device that its address names; packets of a wire name an address, and none here.
    pub to_port: Option<u8>,
    pub(super) body: Body<'a>,
    /// Bytes of payload.
    pub(super) len: u32,
    pub(super) host: &'a Host,
    pub(super) counters: &'a mut LinkCounters,
    /// Set when the kernel refused a copy, or took long for one: what comes next is to be staged.
    pub(super) to_stage: bool,
    /// Set when a copy out of the ring was given up and may still be under way.
    pub(super) given_up: bool,
}

impl Inbound<'_> {
    /// Bytes of payload that came with this message, in the record or by reference.
    pub fn payload_len(&self) -> u32 {
        self.len
    }

    /// Copies the payload to memory of this process, whose segments must hold [`Inbound::payload_len`] bytes.
    ///
    /// Errors: see [`CopyError`]; a part may have been copied.
    pub fn copy_into(&mut self, to: &[Segment], order: Order) -> Result<(), CopyError> {
        let len = u64::from(self.payload_len());
        if len == 0 {
            return Ok(());
        }
        if order == Order::Relaxed {
            self.counters.relaxed_bytes += len;
        }
        let (form, ring, payload_at, segments, memory) = match self.body {
            Body::Here(bytes) => {
                let from = [Segment { addr: bytes.as_ptr() as u64, len }];
                return Ok(self.host.copy(to, &from, len, order)?);
            }
            Body::Record { form, ring, payload_at, segments, memory } => {
                (form, ring, payload_at, segments, memory)
            }
        };
        if let Form::Inline(_) = form {
            self.counters.inline_bytes += len;
            let copied = ring.scatter(self.host, payload_at, to, len as usize, order);
            self.given_up |= copied.is_err() && ring.may_still_change();
            return Ok(copied?);
        }
        let Some(hold) = Hold::take(ring.word(payload_at)) else {
            return Err(CopyError::TakenBack);
        };
        let copied = match *memory {
            SenderMemory::Own => own(loopback::copy(self.host, to, segments, len, order, segments)),
            SenderMemory::Peer(peer) => {
                let calls = Calls::new(Instant::now());
                let granted = || {
                    calls.next(Instant::now());
                    hold.is_granted()
                };
                let read = peer.read(self.host, to, segments, len, order, &granted);
                self.to_stage |= calls.next(Instant::now());
                self.judge(read)
            }
        };
        // Taken back in the middle: what was copied may be anything, so it counts for nothing.
        if !hold.release(copied.is_ok()) {
            return Err(CopyError::TakenBack);
        }
        self.counters.direct_bytes += if copied.is_ok() { len } else { 0 };
        copied
    }

    /// Copies the payload into a buffer of the NIC's own (scatter to CQE); `out` has [`Inbound::payload_len`] bytes.
    ///
    /// Errors: see [`CopyError`]; `Local` also for another length.
    pub fn copy_to_buffer(&mut self, out: &mut [u8]) -> Result<(), CopyError> {
        if out.len() != self.payload_len() as usize {
            return Err(CopyError::Local(Fault { addr: 0 }));
        }
        match self.body {
            Body::Here(bytes) => {
                out.copy_from_slice(bytes);
                return Ok(());
            }
            Body::Record { form: Form::Inline(len), ring, payload_at, .. } => {
                self.counters.inline_bytes += u64::from(len);
                return Ok(ring.take(self.host, payload_at, out)?);
            }
            Body::Record { .. } => {}
        }
        let to = [Segment { addr: out.as_mut_ptr() as u64, len: out.len() as u64 }];
        self.copy_into(&to, Order::Relaxed)
    }

    /// Holds the payload and never lets go, as a receiver that was stopped or means harm.
    #[cfg(test)]
    pub fn hold_for_ever(&self) {
        let held = Hold::take(self.state_word());
        assert!(held.is_some(), "nobody else holds it");
    }

    /// The word of state of a payload by reference.
    #[cfg(test)]
    pub(super) fn state_word(&self) -> &AtomicU64 {
        match self.body {
            Body::Record { ring, payload_at, .. } => ring.word(payload_at),
            Body::Here(_) => panic!("a packet has no word of state"),
        }
    }

    fn judge(&mut self, result: Result<(), PeerError>) -> Result<(), CopyError> {
        result.map_err(|error| match error {
            PeerError::LocalFault(fault) => CopyError::Local(fault),
            // The record was checked to name enough of the sender's memory, so what is short is ours.
            PeerError::TooShort { .. } => CopyError::Local(Fault { addr: 0 }),
            // A kernel short of memory costs this message, not the channel its direct copies.
            PeerError::PeerFault { .. } | PeerError::Kernel { .. } => CopyError::Sender,
            PeerError::Gone { .. } => CopyError::Gone,
            PeerError::Stopped => CopyError::TakenBack,
            PeerError::Refused { .. } => {
                self.to_stage = true;
                CopyError::Refused
            }
        })
    }
}

fn own(result: Result<(), Side>) -> Result<(), CopyError> {
    result.map_err(|side| match side {
        Side::Requester => CopyError::Sender,
        Side::Responder(fault) => CopyError::Local(fault),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_many_calls_is_slow_by_one_call_and_not_by_all() {
        let begun = Instant::now();
        for (last, slow) in [(SLOW, true), (SLOW / 2, false)] {
            let calls = Calls::new(begun);
            let called = (1..=256).any(|call| calls.next(begun + call * SLOW / 4));
            assert!(!called, "256 calls of a quarter each");
            assert_eq!(calls.next(begun + 256 * SLOW / 4 + last), slow);
            assert_eq!(calls.next(begun + 256 * SLOW / 4 + last), slow, "and stays so");
        }
    }
}
