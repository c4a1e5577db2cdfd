//! Big-endian fields of a byte slice whose length has been checked, and structures of them as tables of offsets.
//!
//! Inlined across crates: a NIC reads dozens a message. Knows no structure and no error: those are of its users.

#![forbid(unsafe_code)]

/// `N` bytes at `at`. Panics past the end: callers have checked the length of the structure.
#[inline]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    // Not `copy_from_slice`: in the dev profile its look for an overlap costs more than the bytes.
    *bytes[at..].first_chunk().expect("checked by the caller")
}

/// The 16 bits at `at`, same contract as [`array`].
#[inline]
pub fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The 24 bits at `at`, the size of QPNs and PSNs.
#[inline]
pub fn be24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = array(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// The 32 bits at `at`, same contract as [`array`].
#[inline]
pub fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// The 64 bits at `at`, same contract as [`array`].
#[inline]
pub fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Stores `value` at `at`, same contract as [`array`].
#[inline]
pub fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    *bytes[at..].first_chunk_mut().expect("checked by the caller") = value;
}

/// Stores the low 24 bits of `value` at `at`, same contract as [`array`].
#[inline]
pub fn put24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(bytes, at, [a, b, c]);
}

/// Declares a structure of big-endian numbers with the offset of each, and how it is read and written. In front: the user's check of
/// a length, as `check(what, bytes, need)?`, and its error.
#[macro_export]
macro_rules! structure {
    ($check:path, $error:path; $(#[$doc:meta])* $name:ident($what:literal, $bytes:literal) {
        $($(#[$field_doc:meta])* $field:ident: $number:ty = $at:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
        pub struct $name { $($(#[$field_doc])* pub $field: $number,)* }

        impl $name {
            pub const BYTES: usize = $bytes;

            /// Reads so many bytes; reserved ones are not looked at.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, $error> {
                $check($what, bytes, Self::BYTES)?;
                Ok(Self { $($field: <$number>::from_be_bytes($crate::array(bytes, $at)),)* })
            }

            /// The bytes; reserved ones are 0.
            #[inline]
            pub fn emit(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                $($crate::put(&mut out, $at, self.$field.to_be_bytes());)*
                out
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(what: &'static str, bytes: &[u8], need: usize) -> Result<(), String> {
        if bytes.len() < need { Err(format!("{what}: {}", bytes.len())) } else { Ok(()) }
    }

    structure! { check, String;
        /// An address and a key.
        Remote("a remote", 16) {
            va: u64 = 0,
            key: u32 = 8,
        }
    }

    #[test]
    fn a_table_of_offsets_is_read_and_written_and_reserved_bytes_are_zero_and_not_looked_at() {
        let remote = Remote { va: 0x0102, key: 0x0304 };
        let mut bytes = remote.emit();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0, 0, 0]);
        bytes[12..].fill(0xff);
        assert_eq!(Remote::parse(&bytes), Ok(remote));
        assert_eq!(Remote::parse(&bytes[..15]), Err("a remote: 15".to_owned()));
    }

    #[test]
    fn numbers_of_each_width_are_big_endian() {
        let mut bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!((be16(&bytes, 1), be24(&bytes, 1)), (0x0203, 0x02_0304));
        assert_eq!((be32(&bytes, 1), be64(&bytes, 1)), (0x0203_0405, 0x0203_0405_0607_0809));
        put24(&mut bytes, 0, 0xff0a_0b0c);
        assert_eq!(bytes[..4], [0x0a, 0x0b, 0x0c, 4]);
    }
}
