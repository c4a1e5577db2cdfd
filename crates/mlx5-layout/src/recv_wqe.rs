//! Receive WQE: data pointers and nothing else.
//!
//! Follows `mlx5_post_recv` (`qp.c`): an entry is as many data pointers as its stride has room for. A shorter
//! list ends with a pointer of length 0 and the invalid key. There is no control segment and no doorbell
//! register, only the record. Left out: queues with signatures, whose entries start with one more segment.
//! Entries of shared receive queues start with a link: `srq_wqe`.

use crate::LayoutError;
use crate::bytes::check;
use crate::send_wqe::DataPointer;

/// Key that ends the list early (`MLX5_INVALID_LKEY`).
pub const INVALID_LKEY: u32 = 0x100;

/// Smallest size of an entry.
pub const MIN_STRIDE: usize = 16;

/// Entry size in libmlx5 for `max_sge` pointers: the next power of two (`mlx5_calc_rcv_wqe`, `verbs.c`).
pub const fn stride(max_sge: usize) -> usize {
    let bytes = max_sge * DataPointer::BYTES;
    if bytes < MIN_STRIDE { MIN_STRIDE } else { bytes.next_power_of_two() }
}

/// One entry of a receive queue, copied out of the ring.
#[derive(Debug, Clone, Copy)]
pub struct RecvWqe<B>(B);

impl<B: AsRef<[u8]>> RecvWqe<B> {
    /// Checks that at least one pointer fits; bytes beyond the last whole pointer are ignored.
    pub fn new(entry: B) -> Result<Self, LayoutError> {
        check("a receive WQE", entry.as_ref(), MIN_STRIDE)?;
        Ok(Self(entry))
    }

    /// The pointers before the terminator or the end of the entry.
    pub fn segments(&self) -> impl Iterator<Item = DataPointer> + '_ {
        self.0
            .as_ref()
            .chunks_exact(DataPointer::BYTES)
            .filter_map(|bytes| DataPointer::parse(bytes).ok())
            .take_while(|pointer| pointer.lkey != INVALID_LKEY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::emit_receive;

    /// libmlx5 44: one pointer of 256 bytes posted to a queue of two pointers an entry, lkey 0x15a.
    const ONE_OF_TWO: [u8; 32] = [
        0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x5a, 0x00, 0x00, 0x55, 0xfd, 0x8f, 0xc0, 0x50,
        0x00, //
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    ];
    const POINTER: DataPointer = DataPointer { byte_count: 256, lkey: 0x15a, va: 0x55fd_8fc0_5000 };

    #[test]
    fn the_invalid_key_ends_the_list() {
        let wqe = RecvWqe::new(&ONE_OF_TWO).unwrap();
        assert_eq!(wqe.segments().collect::<Vec<_>>(), [POINTER]);
    }

    #[test]
    fn the_end_of_the_entry_ends_the_list_too() {
        let wqe = RecvWqe::new(&ONE_OF_TWO[..16]).unwrap();
        assert_eq!(wqe.segments().collect::<Vec<_>>(), [POINTER]);
    }

    #[test]
    fn a_receive_that_starts_with_the_invalid_key_is_empty() {
        assert_eq!(RecvWqe::new(&ONE_OF_TWO[16..]).unwrap().segments().count(), 0);
    }

    #[test]
    fn emitted_bytes_are_the_library_s() {
        let mut entry = [0xee; 32];
        emit_receive(&mut entry, &[POINTER]).unwrap();
        assert_eq!(entry, ONE_OF_TWO);
    }

    #[test]
    fn a_full_entry_carries_no_terminator() {
        let mut entry = [0xee; 32];
        emit_receive(&mut entry, &[POINTER, POINTER]).unwrap();
        assert_eq!(RecvWqe::new(&entry).unwrap().segments().count(), 2);
    }

    #[test]
    fn one_byte_short_is_an_error() {
        let short = LayoutError::TooShort { what: "a receive WQE", need: 16, have: 15 };
        assert_eq!(RecvWqe::new(&ONE_OF_TWO[..15]).unwrap_err(), short);
        assert_eq!(emit_receive(&mut [0; 15], &[]).unwrap_err(), short);
        assert!(emit_receive(&mut [0; 31], &[POINTER, POINTER]).is_err());
    }

    #[test]
    fn strides_are_powers_of_two() {
        // libmlx5 44 reported 32 for two pointers; the others follow its rounding rule.
        for (sge, bytes) in [(0, 16), (1, 16), (2, 32), (3, 64), (4, 64), (5, 128), (30, 512)] {
            assert_eq!(stride(sge), bytes, "{sge} pointers");
        }
    }
}
