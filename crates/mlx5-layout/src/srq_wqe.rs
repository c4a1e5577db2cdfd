//! WQE of a shared receive queue: a link, then data pointers.
//!
//! Follows `struct mlx5_wqe_srq_next_seg` (`mlx5dv.h`), `mlx5_post_srq_recv` and `mlx5_alloc_srq_buf`
//! (`srq.c`). The ring is a linked list: entries are consumed in posting order, freed in completion order,
//! and entry 0 is first. There is no doorbell register, as in a receive queue. The record is one word, the
//! count of posts (16 bits); the list of pointers ends with the invalid key. Left out: signatures.

use crate::LayoutError;
use crate::bytes::{be16, check};
use crate::recv_wqe::RecvWqe;
use crate::send_wqe::DataPointer;

/// Bytes of the link in front of the pointers.
pub const NEXT_BYTES: usize = 16;

/// Smallest size of an entry.
pub const MIN_STRIDE: usize = 32;

/// Place of the link's index, 16 bits.
pub(crate) const NEXT_INDEX: usize = 2;

/// Entry size in libmlx5 and the kernel for `max_sge` pointers: the next power of two, link included
/// (`mlx5_alloc_srq_buf`; `mlx5_ib_create_srq` of Linux).
pub const fn stride(max_sge: usize) -> usize {
    let bytes = (NEXT_BYTES + max_sge * DataPointer::BYTES).next_power_of_two();
    if bytes < MIN_STRIDE { MIN_STRIDE } else { bytes }
}

/// One entry, copied out of the ring.
#[derive(Debug, Clone, Copy)]
pub struct SrqWqe<B>(B);

impl<B: AsRef<[u8]>> SrqWqe<B> {
    /// Checks that there is room for the link and one pointer at least.
    pub fn new(entry: B) -> Result<Self, LayoutError> {
        check("a shared receive WQE", entry.as_ref(), MIN_STRIDE)?;
        Ok(Self(entry))
    }

    /// Entry that is consumed after this one.
    pub fn next_index(&self) -> u16 {
        be16(self.0.as_ref(), NEXT_INDEX)
    }

    /// The pointers before the terminator or the end of the entry.
    pub fn pointers(&self) -> Result<RecvWqe<&[u8]>, LayoutError> {
        RecvWqe::new(&self.0.as_ref()[NEXT_BYTES..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{emit_shared_receive, link_shared_receive};

    /// libmlx5 44: first entry of a fresh queue, 3 pointers an entry, 1 of 256 bytes posted, lkey 0x1000.
    const FIRST: [u8; 64] = [
        0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x55, 0xd8, 0x1c, 0x4c, 0x10,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];
    /// libmlx5 44: the entry behind it, full.
    const SECOND: [u8; 64] = [
        0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, //
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x55, 0xd8, 0x1c, 0x4c, 0x10,
        0x00, //
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x55, 0xd8, 0x1c, 0x4c, 0x11,
        0x00, //
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x55, 0xd8, 0x1c, 0x4c, 0x12, 0x00,
    ];

    fn pointer(piece: u64) -> DataPointer {
        DataPointer { byte_count: 256, lkey: 0x1000, va: 0x55d8_1c4c_1000 + 256 * piece }
    }

    fn read(entry: &[u8]) -> (u16, Vec<DataPointer>) {
        let wqe = SrqWqe::new(entry).unwrap();
        (wqe.next_index(), wqe.pointers().unwrap().segments().collect())
    }

    #[test]
    fn an_entry_is_a_link_and_pointers() {
        assert_eq!(read(&FIRST), (1, vec![pointer(0)]));
        assert_eq!(read(&SECOND), (2, (0..3).map(pointer).collect()));
        assert_eq!(read(&[0xff; 32]).0, 0xffff, "whatever it says: the queue knows how many entries it has");
    }

    #[test]
    fn emitted_bytes_are_the_library_s() {
        for (golden, next, count) in [(FIRST, 1, 1), (SECOND, 2, 3)] {
            let mut entry = [0; 64];
            link_shared_receive(&mut entry, next).unwrap();
            emit_shared_receive(&mut entry, &(0..count).map(pointer).collect::<Vec<_>>()).unwrap();
            assert_eq!(entry, golden);
        }
    }

    #[test]
    fn one_byte_short_is_an_error() {
        let short = LayoutError::TooShort { what: "a shared receive WQE", need: 32, have: 31 };
        assert_eq!(SrqWqe::new(&FIRST[..31]).unwrap_err(), short);
        assert_eq!(link_shared_receive(&mut [0; 31], 0).unwrap_err(), short);
        assert_eq!(emit_shared_receive(&mut [0; 31], &[]).unwrap_err(), short);
        assert!(emit_shared_receive(&mut [0; 32], &[pointer(0), pointer(1)]).is_err());
    }

    #[test]
    fn strides_hold_the_link_too() {
        // libmlx5 44 reported 64 for three pointers; the others follow its rounding rule.
        for (sge, bytes) in [(0, 32), (1, 32), (2, 64), (3, 64), (4, 128), (7, 128), (31, 512)] {
            assert_eq!(stride(sge), bytes, "{sge} pointers");
        }
    }
}
