//! What a message's first packet is granted or refused, and what the later ones are held against.
//!
//! IBTA vol. 1 §9.7.4 (validating a request). Keys and receives are the device's; see [`crate::Resources`].

use crate::message::MAX_MESSAGE_BYTES;
use crate::{Receive, Refusal, Region, Request, ResponderConfig};

/// A message of which packets are missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Assembly {
    /// Its first packet.
    pub(crate) first: Request,
    /// What it was granted; nothing for SENDs.
    pub(crate) region: Region,
    /// Bytes that came.
    pub(crate) next_offset: u32,
}

/// What a first packet was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Grant {
    Receive(Receive),
    Write(Region),
    Read(Region),
    Atomic(Region),
}

/// Whether the request can be meant at all, apart from keys and receives.
#[inline(always)]
pub(crate) fn check_shape(config: &ResponderConfig, request: &Request) -> Result<(), Refusal> {
    let Request { opcode, length, .. } = *request;
    let (granted, need) = (config.access, opcode.remote_access());
    let atomic_well = !opcode.is_atomic() || request.remote_va.is_multiple_of(8);
    match () {
        () if !opcode.allowed_on(config.service) || length > MAX_MESSAGE_BYTES => Err(Refusal::Shape),
        () if !granted.contains(need) => Err(Refusal::Operation { granted: granted.0, need: need.0 }),
        () if !atomic_well => Err(Refusal::Unaligned),
        () => Ok(()),
    }
}
