//! Scatters payload that arrives: the receive or READ that it is for names the memory.

use roce::{Access, Fragment, RegionError};

use super::mkey::Mkeys;
use super::rq::ReceiveQueue;
use super::sq::SendRequest;
use crate::carrier::Inbound;
use crate::memory::{Fault, Order, Segment, Segments};

/// The scatter list in use, and the order in which bytes become visible.
///
/// A WRITE's payload is stored in increasing addresses, unless relaxed: a program may poll its last word.
/// Payloads of SENDs and READ answers are stored in any order: only their CQE announces them.
#[derive(Debug)]
pub(super) struct PayloadScatter {
    /// Of the present message.
    segments: Vec<Segment>,
    /// The bytes of one WRITE may become visible in any order.
    relaxed: bool,
}

impl PayloadScatter {
    pub(super) fn new(relaxed: bool) -> PayloadScatter {
        PayloadScatter { segments: Vec::new(), relaxed }
    }

    /// Order of a WRITE's bytes to memory whose key has these rights.
    pub(super) fn order_of_write(&self, rights: Access) -> Order {
        if self.relaxed || rights.contains(Access::RELAXED_ORDERING) {
            Order::Relaxed
        } else {
            Order::Increasing
        }
    }

    /// Where `length` bytes from `offset` of the receive in use go.
    pub(super) fn scatter(
        &mut self,
        mkeys: &Mkeys,
        rq: &ReceiveQueue,
        offset: u32,
        length: u32,
    ) -> Result<&[Segment], RegionError> {
        self.segments.clear();
        rq.scatter(mkeys, offset, length, &mut self.segments)?;
        Ok(&self.segments)
    }

    /// Puts bytes of a READ's answer where the READ wants them: all of a short one into its CQE.
    pub(super) fn place(
        &mut self,
        request: &mut SendRequest,
        scatter: usize,
        Fragment { offset, length: len }: Fragment,
        inbound: &mut impl Inbound,
    ) -> Result<(), Fault> {
        let payload = &mut request.payload;
        if request.wqe.signalled && len as usize <= scatter && (offset, len) == (0, request.length) {
            payload.inline.clear();
            payload.inline.resize(len as usize, 0);
            return inbound.copy_to_buffer(&mut payload.inline);
        }
        if payload.revoked {
            // Its region went away while the answer was on its way.
            return Err(Fault { addr: 0 });
        }
        if offset == 0 {
            // The first piece needs no list of its own.
            return inbound.copy_into(&payload.segments, Order::Relaxed);
        }
        self.segments.clear();
        let mut walk = Segments::new(&payload.segments);
        walk.advance(offset.into());
        let mut left = u64::from(len);
        while let Some(piece) = walk.peek(left) {
            walk.advance(piece.len);
            left -= piece.len;
            self.segments.push(piece);
        }
        inbound.copy_into(&self.segments, Order::Relaxed)
    }
}
