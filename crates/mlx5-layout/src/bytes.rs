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
    // Not `copy_from_slice`: with debug assertions on, its look for an overlap costs more than the bytes.
    *bytes[at..].first_chunk().expect("checked by the caller")
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
    *bytes[at..].first_chunk_mut().expect("checked by the caller") = value;
}

/// Declares a structure of big-endian numbers with the offset of each, and how it is read and written.
macro_rules! segment {
    ($(#[$doc:meta])* $name:ident($what:literal, $bytes:literal) {
        $($(#[$field_doc:meta])* $field:ident: $number:ty = $at:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $number,)* }

        impl $name {
            pub const BYTES: usize = $bytes;

            /// Reads so many bytes; reserved ones are not looked at.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::LayoutError> {
                $crate::bytes::check($what, bytes, Self::BYTES)?;
                Ok(Self { $($field: <$number>::from_be_bytes($crate::bytes::array(bytes, $at)),)* })
            }

            /// The bytes; reserved ones are 0.
            pub fn emit(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                $($crate::bytes::put(&mut out, $at, self.$field.to_be_bytes());)*
                out
            }
        }
    };
}
pub(crate) use segment;

#[cfg(test)]
mod tests {
    use crate::send_wqe::RemoteAddress;

    #[test]
    fn reserved_bytes_of_a_segment_are_written_as_zeroes_and_not_looked_at() {
        let segment = RemoteAddress { va: 0x0102, rkey: 0x0304 };
        let mut bytes = segment.emit();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0]);
        bytes[12..].fill(0xff);
        assert_eq!(RemoteAddress::parse(&bytes), Ok(segment));
        assert!(RemoteAddress::parse(&bytes[..15]).is_err());
    }
}
