//! Doorbell records in memory, and the registers of a UAR page.
//!
//! Records follow `MLX5_RCV_DBR`, `MLX5_SND_DBR` (`mlx5dv.h`), `MLX5_CQ_SET_CI` and `MLX5_CQ_ARM_DB`
//! (`mlx5.h`). Registers follow `post_send_db` (`qp.c`), `mlx5_arm_cq` (`cq.c`), `MLX5_BF_OFFSET` (`mlx5.h`)
//! and `MLX5_CQ_DOORBELL` (`mlx5dv.h`). Left out: the record-less doorbell at 0x600 of newer cards.

use crate::bytes::{Field, fields};
use crate::send_wqe::{MAX_DS, blocks};

/// Size of a doorbell record, of QPs and of CQs: two words.
pub const RECORD_BYTES: usize = 8;
/// Word of a QP's record that counts posted receives.
pub const RECEIVE_WORD: usize = 0;
/// Word of a QP's record that counts posted send blocks.
pub const SEND_WORD: usize = 1;
/// Word of a CQ's record that counts consumed CQEs.
pub const CONSUMER_WORD: usize = 0;
/// Bits of a CQ's consumer index that count.
pub const CONSUMER_MASK: u32 = 0xff_ffff;

/// The counter in a word of a QP's record; upper bits are ignored.
pub const fn counter_of(word: [u8; 4]) -> u16 {
    u32::from_be_bytes(word) as u16
}

/// The 24-bit consumer index in a CQ's record.
pub const fn consumer_of(word: [u8; 4]) -> u32 {
    u32::from_be_bytes(word) & CONSUMER_MASK
}

fields! {
    /// What is written to a send doorbell register: the first 8 bytes of a control segment, real or made up.
    ///
    /// Two conventions are in use, and both work on cards. libmlx5 stores the last WQE's own first words: its
    /// index and its `ds`. NVSHMEM, DeepEP, UCX and gpunetio store the *next* index and leave opcode and `ds`
    /// 0. [`Doorbell::next_index`] reads both.
    #[derive(Default)]
    Doorbell(8) {
        opmod: u8 = 0,
        /// Index of the last WQE's first block, or with `ds` 0 the next free block.
        index: u16 = 1,
        /// Opcode byte.
        opcode: u8 = 3,
        /// QP number, 24 bits.
        qpn: u32 = 4[0, 24],
        /// Length of the last WQE in 16-byte units, or 0.
        ds: u8 = 7,
    }
}

impl Doorbell {
    /// Reads what was stored, in either convention.
    pub fn parse(stored: [u8; Self::BYTES]) -> Self {
        Self::read(&stored, 0)
    }

    /// Producer index that the doorbell announces: the block behind the last WQE.
    pub const fn next_index(&self) -> u16 {
        self.index.wrapping_add(blocks(self.ds & MAX_DS))
    }
}

/// Which completions an armed CQ reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArmFor {
    /// The next one (`MLX5_CQ_DB_REQ_NOT`).
    Any,
    /// The next solicited one, or error (`MLX5_CQ_DB_REQ_NOT_SOL`).
    Solicited,
}

/// A request for one completion event: in the CQ record's arm word, and with the CQN in the UAR register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arm {
    /// Number of events so far, modulo 4.
    pub sequence: u8,
    /// Which completions count.
    pub what: ArmFor,
    /// Consumer index at the time, 24 bits.
    pub consumer_index: u32,
}

impl Arm {
    /// Reads an arm word; bits 27:25 and 31:30 are ignored.
    pub const fn of_word(word: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(word);
        let what = if word & 1 << 24 != 0 { ArmFor::Solicited } else { ArmFor::Any };
        Self { sequence: (word >> 28 & 3) as u8, what, consumer_index: word & CONSUMER_MASK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{consumer_word, counter_word};

    /// libmlx5 44: record of a send queue after its ninth post, the one before last having taken two blocks.
    const SEND_RECORD: [u8; 8] = [0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a];
    /// libmlx5 44: register after one inline WRITE at block 7, ds 6, QP 0x40.
    const LAST_WQE: [u8; 8] = [0x00, 0x00, 0x07, 0x08, 0x00, 0x00, 0x40, 0x06];
    /// gpunetio's `doca_gpu_dev_verbs_prepare_db` by hand: BE32(index << 8), BE32(qpn << 8), 0x1234 and 0xa7.
    const NEXT_INDEX: [u8; 8] = [0x00, 0x12, 0x34, 0x00, 0x00, 0x00, 0xa7, 0x00];
    /// libmlx5 44: UAR + 0x20 after `ibv_req_notify_cq(cq, 1)` on the unused CQ 0x401.
    const ARM_SOLICITED: [u8; 8] = [0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x01];

    #[test]
    fn record_words_keep_16_and_24_bits() {
        assert_eq!(counter_word(0x1_0005), [0, 0, 0, 5]);
        assert_eq!(counter_of([0xff, 0xff, 0x12, 0x34]), 0x1234);
        assert_eq!(consumer_word(0x1ff_ffff), [0, 0xff, 0xff, 0xff]);
        assert_eq!(consumer_of([0xaa, 1, 2, 3]), 0x01_0203);
        assert_eq!(counter_of([SEND_RECORD[4], SEND_RECORD[5], SEND_RECORD[6], SEND_RECORD[7]]), 10);
    }

    #[test]
    fn both_conventions_announce_the_next_index() {
        for (name, stored, qpn, next) in [
            ("libmlx5: index 7, ds 6, so two blocks", LAST_WQE, 0x40, 9),
            ("gpunetio: next index, ds 0", NEXT_INDEX, 0xa7, 0x1234),
            ("libmlx5 at the 16-bit wrap", [0, 0xff, 0xff, 0x0a, 0, 0, 0x40, 0x02], 0x40, 0),
        ] {
            let doorbell = Doorbell::parse(stored);
            assert_eq!((doorbell.qpn, doorbell.next_index()), (qpn, next), "{name}");
            assert_eq!(doorbell.emit(), stored, "{name}");
        }
    }

    #[test]
    fn a_doorbell_may_name_the_next_index_alone() {
        assert_eq!(Doorbell::of_next_index(0x1234, 0xa7).emit(), NEXT_INDEX);
    }

    #[test]
    fn arm_requests_read_back() {
        let arm = Arm { sequence: 0, what: ArmFor::Solicited, consumer_index: 0 };
        assert_eq!(Arm::of_word(*ARM_SOLICITED.first_chunk().unwrap()), arm);
        assert_eq!(arm.register(0x401), ARM_SOLICITED);
        let later = Arm { sequence: 6, what: ArmFor::Any, consumer_index: 0x100_0007 };
        assert_eq!(later.word(), [0x20, 0, 0, 7]);
        assert_eq!(Arm::of_word(later.word()), Arm { sequence: 2, consumer_index: 7, ..later });
    }
}
