//! Carries messages between NICs. This path: memfd rings between processes of one host; the wire comes next.

use crate::dma::Segment;

/// Where a payload is, on the sending side.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Travels in the record (at most [`MAX_INLINE`] bytes), gathered by the caller.
    Inline(&'a [u8]),
    /// Stays in the sender's memory; the receiving side copies it once from there (SEND, WRITE), or writes to it (READ,
    /// atomics: where the answer goes).
    Segments(&'a [Segment]),
}

/// Largest payload that travels in a record.
pub const MAX_INLINE: usize = 4096;
