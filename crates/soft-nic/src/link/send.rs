//! Room for messages on their way out, and their payload's bytes; `carrier.rs` lays them into the ring of the peer's channel.

use mlx5_device::carrier::{Payload, Unsent};
use mlx5_device::memory::{Fault, Segment};

use super::channel::{ChannelState, Lane};
use super::peer::Outgoing;
use super::record::{MAX_FRAGMENT, MAX_GPU_FRAGMENT};
use super::{Link, LinkEvent, MAX_INLINE, Room};
use crate::dma::{Host, RingMemory, gpu};

/// A payload that is not as long as announced.
pub(super) const NO_SUCH_PAYLOAD: Unsent = Unsent::Fault(Fault { addr: 0 });

impl Link {
    /// A payload was not laid into the ring. A GPU may do so later, over whatever lies there then: so nothing does.
    #[cold]
    pub(super) fn copy_failed(&mut self, slot: u8, lane: Lane, fault: Fault) -> Unsent {
        if let Some(outgoing) = &mut self.outgoing[usize::from(slot)]
            && outgoing.producer.next(lane).0.may_still_change()
        {
            outgoing.producer.closed = true;
            self.happened(LinkEvent::CopyGivenUp { slot });
        }
        Unsent::Fault(fault)
    }

    #[inline]
    pub(super) fn need_room(&mut self, slot: u8, lane: Lane) -> Result<(), Unsent> {
        match self.lane_room(slot, lane) {
            Room::Yes => Ok(()),
            Room::Full => Err(Unsent::Full),
            Room::NoPeer(_) => Err(Unsent::Unreachable),
        }
    }
}

/// How many of `rest` bytes the next record takes: all of a short payload, of a long one what there is room for. The ring is given
/// time to empty, since long pieces are faster; until other queues' records have taken as much room as the
/// shortest piece needs.
#[inline]
pub(super) fn room_for(
    outgoing: &mut Outgoing,
    lane: Lane,
    head: usize,
    from: &[Segment],
    rest: u32,
) -> Result<u32, Unsent> {
    if rest as usize <= MAX_INLINE {
        return Ok(rest);
    }
    let most = if gpu::touched_by(from) { MAX_GPU_FRAGMENT } else { MAX_FRAGMENT };
    let most = most.min(rest as usize);
    let Some(free) = outgoing.producer.free(lane, head + most.next_multiple_of(8)).checked_sub(head) else {
        // There was room a moment ago, and a closer look at the receiver's tail found none: it wrote one that cannot be.
        return Err(match outgoing.producer.state() {
            ChannelState::Closed => Unsent::Unreachable,
            _ => Unsent::Full,
        });
    };
    let stretch = most.min(MAX_FRAGMENT / 2).min(outgoing.producer.next(lane).0.capacity() / 4);
    let head = outgoing.producer.next(lane).1;
    let since = &mut outgoing.waits_since[lane as usize];
    if free < stretch && head.wrapping_sub(*since.get_or_insert(head)) < MAX_INLINE as u64 {
        return Err(Unsent::Full);
    }
    *since = None;
    Ok(most.min(free & !7) as u32)
}

/// Lays the bytes from `offset` on into a record.
#[inline]
pub(super) fn fill(
    ring: &RingMemory,
    host: &Host,
    at: u64,
    payload: Payload<'_>,
    offset: u32,
    len: u32,
) -> Result<(), Fault> {
    match payload {
        Payload::Segments(from) | Payload::Mixed(from) => {
            ring.gather(host, at, from, offset.into(), len as usize)
        }
        Payload::Inline(bytes) => {
            match bytes.get(offset as usize..).and_then(|rest| rest.get(..len as usize)) {
                Some(bytes) => ring.put(host, at, bytes),
                None => Err(Fault { addr: 0 }),
            }
        }
        Payload::Nothing => Ok(()),
    }
}
