//! Big-endian fields of a byte slice whose length has been checked.

pub(crate) use big_endian::{BitField, Field, be16, be32, bits, fields, put};

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
