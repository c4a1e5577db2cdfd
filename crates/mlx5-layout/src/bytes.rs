//! Big-endian fields of a byte slice whose length has been checked. Inlined across crates: a NIC reads dozens a message.

use crate::LayoutError;

/// `Err` unless `bytes` has at least `need` bytes.
#[inline]
pub(crate) fn check(what: &'static str, bytes: &[u8], need: usize) -> Result<(), LayoutError> {
    if bytes.len() < need { Err(LayoutError::TooShort { what, need, have: bytes.len() }) } else { Ok(()) }
}

/// `N` bytes at `at`. Panics past the end: callers have checked the length of the structure.
#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Stores `value` at `at`, same contract as [`array`].
#[inline]
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}
