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

/// Declares a header of big-endian numbers with the offset of each, and how it is read and written.
macro_rules! header {
    ($(#[$doc:meta])* $name:ident($what:literal, $bytes:literal) {
        $($(#[$field_doc:meta])* $field:ident: $number:ty = $at:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $number,)* }

        impl $name {
            pub const BYTES: usize = $bytes;

            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::wire::WireError> {
                $crate::wire::bytes::check($what, bytes, Self::BYTES)?;
                Ok(Self { $($field: <$number>::from_be_bytes($crate::wire::bytes::array(bytes, $at)),)* })
            }

            #[inline]
            pub fn emit(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                $($crate::wire::bytes::put(&mut out, $at, self.$field.to_be_bytes());)*
                out
            }
        }
    };
}
pub(super) use header;
