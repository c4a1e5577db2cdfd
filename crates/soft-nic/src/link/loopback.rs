//! The process's channel to itself: the same rings and records, both ends here, payloads copied without the kernel.
//!
//! A message from a queue to another queue of the same process takes the same way as to a peer: same responder, same
//! order, same back pressure. Only the copy differs: plain guarded copies, in increasing addresses at every size.

use super::shared_memory::{AttachError, ChannelState, Consumer, Ends, Producer};
use crate::dma::{Fault, Host, Order, Segment};

/// Makes the channel with both ends.
///
/// Errors: the kernel's.
pub fn open(slot: u8, generation: u32, capacity: usize) -> Result<(Producer, Consumer), AttachError> {
    let ends = Ends { from: slot, to: slot, from_generation: generation, to_generation: generation };
    let producer = Producer::create(ends, capacity)?;
    let consumer = Consumer::attach(producer.fd(), ends)?;
    consumer.set_state(ChannelState::Direct);
    Ok((producer, consumer))
}

/// Whose side of a copy inside one process faulted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Memory that the work request of the requester named.
    Requester,
    /// Memory that the responder's queues and keys named.
    Responder(Fault),
}

/// Copies between two queues' memory. `requester`: the segments among the two that the requester named.
pub fn copy(
    host: &Host,
    to: &[Segment],
    from: &[Segment],
    len: u64,
    order: Order,
    requester: &[Segment],
) -> Result<(), Side> {
    host.copy(to, from, len, order).map_err(|fault| {
        let named = |s: &Segment| fault.addr.wrapping_sub(s.addr) < s.len;
        if requester.iter().any(named) { Side::Requester } else { Side::Responder(fault) }
    })
}
