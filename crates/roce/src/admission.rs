//! What a message's first fragment is granted or refused, and what the later fragments are held against.
//!
//! IBTA vol. 1 §9.7.4 (validating a request). Keys and receives are the device's; see [`crate::Resources`].

use crate::message::MAX_MESSAGE_BYTES;
use crate::{Fragment, Receive, Refusal, Region, Request, ResponderConfig};

/// A message of which fragments are missing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Assembly {
    /// Its first fragment.
    pub(crate) first: Request,
    /// What it was granted; nothing for SENDs.
    pub(crate) region: Region,
    /// Bytes that came.
    pub(crate) next_offset: u32,
}

impl Assembly {
    /// Whether `request` is a fragment of this message: all of its header is the same.
    pub(crate) fn is_part(&self, request: &Request) -> bool {
        Request { fragment: self.first.fragment, ..*request } == self.first
    }

    /// Whether `request` is the fragment to come next.
    pub(crate) fn is_continued_by(&self, request: &Request) -> bool {
        let Fragment { offset, length } = request.fragment;
        let end = u64::from(offset) + u64::from(length);
        offset == self.next_offset
            && length > 0
            && end <= u64::from(self.first.length)
            && self.is_part(request)
    }
}

/// What a first fragment was granted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Grant {
    Receive(Receive),
    Write(Region),
    Read(Region),
    Atomic(Region),
}

/// Whether the request can be meant at all, apart from keys and receives.
pub(crate) fn check_shape(config: &ResponderConfig, request: &Request) -> Result<(), Refusal> {
    let Request { opcode, length, fragment, .. } = *request;
    let (granted, need) = (config.access, opcode.remote_access());
    let bounded = length <= MAX_MESSAGE_BYTES
        && u64::from(fragment.offset) + u64::from(fragment.length) <= u64::from(length);
    // READs and atomics carry nothing to split; a fragment without bytes would not advance its message.
    let whole = request.is_whole();
    let split_well = whole || (opcode.carries_payload() && fragment.length > 0);
    let atomic_well = !opcode.is_atomic() || (length == 8 && request.remote_va.is_multiple_of(8));
    match () {
        () if !opcode.allowed_on(config.service) || !bounded || !split_well => Err(Refusal::Shape),
        () if !granted.contains(need) => Err(Refusal::Operation { granted: granted.0, need: need.0 }),
        () if !atomic_well => Err(Refusal::Unaligned),
        () => Ok(()),
    }
}
