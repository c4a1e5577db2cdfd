//! Big-endian fields of a byte slice whose length has been checked.

use super::WireError;

/// `Err` unless `bytes` has at least `need` bytes.
#[inline]
pub(super) fn check(what: &'static str, bytes: &[u8], need: usize) -> Result<(), WireError> {
    if bytes.len() < need { Err(WireError::Truncated { what, need, have: bytes.len() }) } else { Ok(()) }
}

/// `N` bytes at `at`. Panics past the end: callers have checked the length of the structure.
#[inline]
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[inline]
pub(super) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The 24 bits at `at`, the size of QPNs and PSNs.
#[inline]
pub(super) fn be24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = array(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

#[inline]
pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

#[inline]
pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Stores `value` at `at`, same contract as [`array`].
#[inline]
pub(super) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// Stores the low 24 bits of `value` at `at`, same contract as [`array`].
#[inline]
pub(super) fn put24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(bytes, at, [a, b, c]);
}
