//! Big-endian fields of a byte slice of checked length, and structures of them as tables of offsets.
//!
//! Inlined across crates: a NIC reads dozens a message. Knows no structure or error: those are its users'.

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

/// A value that takes whole bytes of a structure.
pub trait Field: Sized {
    /// Reads it at `at`, same contract as [`array`].
    fn read(bytes: &[u8], at: usize) -> Self;
    /// Stores it at `at`, same contract as [`array`].
    fn write(&self, bytes: &mut [u8], at: usize);
}

impl<const N: usize> Field for [u8; N] {
    #[inline]
    fn read(bytes: &[u8], at: usize) -> Self {
        array(bytes, at)
    }

    #[inline]
    fn write(&self, bytes: &mut [u8], at: usize) {
        put(bytes, at, *self);
    }
}

/// A value that takes some bits of a structure.
pub trait BitField {
    /// The value of these bits, which are the lowest ones.
    fn of_bits(bits: u32) -> Self;
    /// Its bits; some beyond its place in the structure may be set.
    fn to_bits(&self) -> u32;
}

impl BitField for bool {
    fn of_bits(bits: u32) -> bool {
        bits != 0
    }

    fn to_bits(&self) -> u32 {
        (*self).into()
    }
}

macro_rules! numbers {
    ($($number:ty: $($bits:ident)?;)*) => { $(
        impl Field for $number {
            #[inline]
            fn read(bytes: &[u8], at: usize) -> Self {
                Self::from_be_bytes(array(bytes, at))
            }

            #[inline]
            fn write(&self, bytes: &mut [u8], at: usize) {
                put(bytes, at, self.to_be_bytes());
            }
        }

        $(impl $bits for $number {
            fn of_bits(bits: u32) -> Self {
                bits as $number
            }

            fn to_bits(&self) -> u32 {
                (*self).into()
            }
        })?
    )* };
}

numbers! { u8: BitField; u16: BitField; u32: BitField; u64: ; }

/// Reads `width` bits of the number at `at`, from bit `shift` on (0 is the lowest). The number has as many
/// bytes as those bits need. Same contract as [`array`].
#[inline]
pub fn bits(bytes: &[u8], at: usize, shift: u32, width: u32) -> u32 {
    let place = at..at + (shift + width).div_ceil(8) as usize;
    let number = bytes[place].iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    number >> shift & (u32::MAX >> (32 - width))
}

/// Stores the low bits of `value` where [`bits`] reads them; other bits stay. Same contract as [`array`].
#[inline]
pub fn put_bits(bytes: &mut [u8], at: usize, shift: u32, width: u32, value: u32) {
    let len = (shift + width).div_ceil(8) as usize;
    let mask = (u32::MAX >> (32 - width)) << shift;
    let [mask, parts] = [mask, value << shift & mask].map(u32::to_be_bytes);
    for (byte, (mask, part)) in bytes[at..at + len].iter_mut().zip(mask.iter().zip(parts).skip(4 - len)) {
        *byte = *byte & !mask | part;
    }
}

/// Declares a structure of so many bytes with each field's place, and how it is read and written. Whole bytes
/// stand at their offset, `at`; some bits at `at[shift, width]`, see [`bits`].
#[macro_export]
macro_rules! fields {
    (@read $bytes:ident, $start:expr, $type:ty, $at:literal) => {
        <$type as $crate::Field>::read($bytes, $start + $at)
    };
    (@read $bytes:ident, $start:expr, $type:ty, $at:literal, $shift:literal, $width:literal) => {
        <$type as $crate::BitField>::of_bits($crate::bits($bytes, $start + $at, $shift, $width))
    };
    (@write $bytes:ident, $start:expr, $value:expr, $at:literal) => {
        $crate::Field::write(&$value, $bytes, $start + $at)
    };
    (@write $bytes:ident, $start:expr, $value:expr, $at:literal, $shift:literal, $width:literal) => {
        $crate::put_bits($bytes, $start + $at, $shift, $width, $crate::BitField::to_bits(&$value))
    };
    ($(#[$doc:meta])* $name:ident($size:literal) {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $at:literal $([$shift:literal, $width:literal])?,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $crate::Field for $name {
            #[inline]
            fn read(bytes: &[u8], start: usize) -> Self {
                Self { $($field: $crate::fields!(@read bytes, start, $type, $at $(, $shift, $width)?),)* }
            }

            #[inline]
            fn write(&self, bytes: &mut [u8], start: usize) {
                $($crate::fields!(@write bytes, start, self.$field, $at $(, $shift, $width)?);)*
            }
        }

        impl $name {
            pub const BYTES: usize = $size;

            /// The bytes; reserved ones are 0, and of a value wider than its place there are the low bits.
            #[inline]
            pub fn emit(&self) -> [u8; Self::BYTES] {
                let mut out = [0; Self::BYTES];
                $crate::Field::write(self, &mut out, 0);
                out
            }
        }
    };
}

/// [`fields!`], and reading them from bytes that may be too few. In front stand the user's check of a length,
/// called as `check(what, bytes, need)?`, and its error.
#[macro_export]
macro_rules! structure {
    ($check:path, $error:path; $(#[$doc:meta])* $name:ident($what:literal, $size:literal) { $($fields:tt)* }) => {
        $crate::fields! { $(#[$doc])* #[derive(Default)] $name($size) { $($fields)* } }

        impl $name {
            /// Reads so many bytes; reserved ones are not looked at.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, $error> {
                $check($what, bytes, Self::BYTES)?;
                Ok($crate::Field::read(bytes, 0))
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

    fields! {
        /// Bits below, above and across the ends of bytes, and a structure in a structure.
        Packed(24) {
            low: u8 = 0[0, 3],
            high: bool = 0[7, 1],
            across: u16 = 1[4, 9],
            qpn: u32 = 3[0, 24],
            name: [u8; 2] = 6,
            remote: Remote = 8,
        }
    }

    #[test]
    fn bits_have_their_places_and_what_is_too_wide_stays_out_of_the_neighbours() {
        let remote = Remote { va: 1, key: 2 };
        let packed = Packed { low: 5, high: true, across: 0x123, qpn: 0xa1_b2c3, name: *b"ab", remote };
        let bytes = packed.emit();
        assert_eq!(bytes[..8], [0x85, 0x12, 0x30, 0xa1, 0xb2, 0xc3, b'a', b'b']);
        assert_eq!(bytes[8..], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(Packed::read(&bytes, 0), packed);
        let wide = Packed { low: 0xff, high: false, across: 0xffff, qpn: u32::MAX, ..packed };
        assert_eq!(wide.emit()[..6], [0x07, 0x1f, 0xf0, 0xff, 0xff, 0xff]);
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
        assert_eq!((be32(&bytes, 1), u64::read(&bytes, 1)), (0x0203_0405, 0x0203_0405_0607_0809));
        put24(&mut bytes, 0, 0xff0a_0b0c);
        assert_eq!(bytes[..4], [0x0a, 0x0b, 0x0c, 4]);
    }
}
