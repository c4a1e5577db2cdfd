//! Big-endian fields of a byte slice whose length has been checked.

use crate::LayoutError;

/// `Err` unless `bytes` has at least `need` bytes.
pub(crate) fn check(what: &'static str, bytes: &[u8], need: usize) -> Result<(), LayoutError> {
    if bytes.len() < need { Err(LayoutError::TooShort { what, need, have: bytes.len() }) } else { Ok(()) }
}

/// `N` bytes at `at`. Panics past the end: callers have checked the length of the structure.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Stores `value` at `at`, same contract as [`array`].
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}
