//! Big-endian fields of a byte slice whose length has been checked.

#[cfg(any(test, feature = "testing"))]
pub(crate) use big_endian::{BitField, bits};
pub(crate) use big_endian::{Field, be16, be24, be32, fields, put};

use crate::LayoutError;

/// `Err` unless `bytes` has at least `need` bytes.
#[inline]
pub(crate) fn check(what: &'static str, bytes: &[u8], need: usize) -> Result<(), LayoutError> {
    if bytes.len() < need { Err(LayoutError::TooShort { what, need, have: bytes.len() }) } else { Ok(()) }
}

/// Declares a structure of big-endian numbers with the offset of each, and how it is read and written.
macro_rules! segment {
    ($($table:tt)*) => { big_endian::structure! { $crate::bytes::check, $crate::LayoutError; $($table)* } };
}
pub(crate) use segment;

/// What is left of a WQE while its segments are taken from the front; a multiple of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest<'a> {
    /// Length field of the WQE.
    pub ds: u8,
    pub bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    #[inline]
    pub(crate) fn take(&mut self, len: usize, segment: &'static str) -> Result<&'a [u8], LayoutError> {
        let (taken, rest) =
            self.bytes.split_at_checked(len).ok_or(LayoutError::WqeEndsEarly { ds: self.ds, segment })?;
        self.bytes = rest;
        Ok(taken)
    }
}
