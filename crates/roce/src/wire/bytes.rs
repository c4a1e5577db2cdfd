//! Big-endian fields of a byte slice whose length has been checked.

pub(super) use big_endian::{Field, array, be16, be24, put, put24};

use super::WireError;

/// `Err` unless `bytes` has at least `need` bytes.
#[inline]
pub(super) fn check(what: &'static str, bytes: &[u8], need: usize) -> Result<(), WireError> {
    if bytes.len() < need { Err(WireError::Truncated { what, need, have: bytes.len() }) } else { Ok(()) }
}

/// Declares a header of big-endian numbers with the offset of each, and how it is read and written.
macro_rules! header {
    ($($table:tt)*) => { big_endian::structure! { $crate::wire::bytes::check, $crate::wire::WireError; $($table)* } };
}
pub(super) use big_endian::fields;
pub(super) use header;
