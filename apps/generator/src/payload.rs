//! What messages contain: a body that tells its source slot, and a sequence word at the end.
//!
//! A message ends at the end of its slot, so that its last 8 bytes are an aligned word whatever its length.
//! The device makes a WRITE visible in increasing addresses: a reader that sees that word sees all of the
//! message. Two messages that share a target slot come from different source slots
//! ([`crate::plan::Plan::source_slots`]), so a mixture of the two shows in the body.

use std::sync::atomic::{AtomicU64, Ordering};

use verbs::{Addressable, Mr};

use crate::plan::{Plan, SEQUENCE_BYTES};

/// Body word `index` of messages from this source slot. Odd multipliers keep neighbours apart in every bit.
fn body_word(source_slot: u64, index: u64) -> u64 {
    (source_slot + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index + 1).wrapping_mul(0xd1b5_4a32_d192_ed03)
}

/// Fills `out` with the body of that slot.
pub fn fill_body(source_slot: u64, out: &mut [u8]) {
    for (index, piece) in (0..).zip(out.chunks_mut(8)) {
        piece.copy_from_slice(&body_word(source_slot, index).to_le_bytes()[..piece.len()]);
    }
}

/// All source slots of a queue pair, filled, without message numbers: what kernels' memory is filled with.
pub fn image(plan: &Plan) -> Vec<u8> {
    let (stride, payload, body) = (plan.slot_bytes(), plan.payload_bytes as usize, plan.body_bytes());
    let mut bytes = vec![0; stride * plan.source_slots() as usize];
    for (slot, bytes) in (0..).zip(bytes.chunks_exact_mut(stride)) {
        fill_body(slot, &mut bytes[stride - payload..][..body]);
    }
    bytes
}

/// Whether `body` is that slot's.
pub fn is_body_of(source_slot: u64, body: &[u8]) -> bool {
    (0..)
        .zip(body.chunks(8))
        .all(|(index, piece)| body_word(source_slot, index).to_le_bytes()[..piece.len()] == *piece)
}

/// Slots in a region, as source of messages or as their target.
pub struct Slots<'m, M: Addressable> {
    region: &'m Mr<M>,
    /// Offset of slot 0 in the region.
    base: usize,
    stride: usize,
    payload_bytes: usize,
    body_bytes: usize,
}

impl<'m, M: Addressable> Slots<'m, M> {
    /// The slots of `plan` that begin at `base`.
    pub fn new(region: &'m Mr<M>, base: usize, plan: &Plan) -> Self {
        Self {
            region,
            base,
            stride: plan.slot_bytes(),
            payload_bytes: plan.payload_bytes as usize,
            body_bytes: plan.body_bytes(),
        }
    }

    /// Offset of a slot's message in the region.
    pub fn message_at(&self, slot: u64) -> usize {
        self.base + (slot as usize + 1) * self.stride - self.payload_bytes
    }

    /// The word that tells which message lies in the slot: its number, counted from 1; 0: none written.
    pub fn sequence(&self, slot: u64) -> &'m AtomicU64 {
        self.region.word64(self.base + (slot as usize + 1) * self.stride - SEQUENCE_BYTES)
    }

    /// Writes the body of source slot `slot` there, and no message number.
    pub fn fill(&self, slot: u64) {
        let mut bytes = vec![0; self.payload_bytes];
        fill_body(slot, &mut bytes[..self.body_bytes]);
        self.region.write(self.message_at(slot), &bytes);
    }

    /// Whether the slot holds the body of that source slot. `scratch` is reused from call to call.
    pub fn holds(&self, slot: u64, source_slot: u64, scratch: &mut Vec<u8>) -> bool {
        scratch.resize(self.body_bytes, 0);
        self.region.read(self.message_at(slot), scratch);
        is_body_of(source_slot, scratch)
    }

    /// Number of the message in the slot, counted from 0. Acquires what was written before it.
    pub fn message(&self, slot: u64) -> Option<u64> {
        self.sequence(slot).load(Ordering::Acquire).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_known_by_its_slot_at_every_length() {
        for len in [0, 1, 7, 8, 9, 56, 4088] {
            let mut body = vec![0; len];
            fill_body(3, &mut body);
            assert!(is_body_of(3, &body), "{len}");
            assert!(len == 0 || !is_body_of(4, &body), "{len}");
        }
    }

    #[test]
    fn one_changed_byte_anywhere_is_seen() {
        let mut body = vec![0; 100];
        fill_body(9, &mut body);
        for at in 0..body.len() {
            body[at] ^= 1;
            assert!(!is_body_of(9, &body), "{at}");
            body[at] ^= 1;
        }
    }
}
