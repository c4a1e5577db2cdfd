//! Whether a ring holds what the host's shim writes for the same messages (INV-5), compared byte by byte.
//!
//! Message m goes from `LOCAL` + 64 m to `REMOTE` + 64 m, so that a WQE identifies its message. A single
//! producer's queue has them in order; a shared one in any order, each once.

use std::ops::Range;

use rdma_shim::sys::{self, db_sge, db_slot, db_sq};

use super::LENGTH;

/// Where message 0 comes from and goes to: no multiple of 2^32 lies within reach of either.
pub const LOCAL: u64 = 0x11_2200_0000;
pub const REMOTE: u64 = 0x33_4400_0000;
/// Keys whose bytes all differ, so that a swap shows.
pub const LKEY: u32 = 0x0102_0304;
pub const RKEY: u32 = 0x0506_0708;
/// Number of the first queue; the others count up.
pub const QPN: u32 = 0x12_3400;
/// `DB_BLOCK_BYTES`.
pub const BLOCK: usize = 64;
/// Where a WRITE's WQE has its remote address, and the reserved word behind address and key.
const REMOTE_AT: usize = 16;
const RESERVED: Range<usize> = 28..32;
const SIGNALED: u32 = 2;

/// What a run should have left.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// Rings, one behind the other.
    pub queues: u32,
    /// Blocks of each.
    pub blocks: u32,
    /// Index of the first WQE of each ring; a multiple of `blocks`.
    pub start: u64,
    /// WQEs in each.
    pub posts: u32,
    /// Whether a ring's messages lie in order.
    pub in_order: bool,
    /// A WQE after which the queue's index is a multiple of this asks for a completion.
    pub signal_every: u32,
    /// Whether the remote address segment's reserved word may be anything: `doca_gpu_dev_verbs_put` leaves
    /// there what its registers held; mlx5dv.h calls it reserved.
    pub reserved_free: bool,
}

/// A ring is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bad} of {all} WQEs are not what the host's shim writes; the first is block {block} of queue {queue}: {what}"
)]
pub struct Wrong {
    pub bad: u32,
    pub all: u32,
    pub queue: u32,
    pub block: u32,
    pub what: String,
}

#[repr(C, align(64))]
struct Block([u8; BLOCK]);

/// The host shim's WQE of `message` at `index` of queue `queue`; what a WRITE leaves free is 0.
fn written(queue: u32, index: u64, message: u32, signaled: bool) -> [u8; BLOCK] {
    let (mut block, mut record) = (Block([0; BLOCK]), [0_u64; 2]);
    let mut slot = db_slot::default();
    // A ring of one block, at whatever index: room for this WQE.
    let mut sq = db_sq {
        ring: (&raw mut block).expose_provenance() as u64,
        record: record.as_mut_ptr().expose_provenance() as u64,
        reg: record.as_mut_ptr().wrapping_add(1).expose_provenance() as u64,
        slots: (&raw mut slot).expose_provenance() as u64,
        blocks: 1,
        qpn: QPN + queue,
        max_sge: 1,
        opcodes: 1,
        producer: index,
        rung: index,
        consumer: index,
        ..db_sq::default()
    };
    let offset = u64::from(message) * u64::from(LENGTH);
    let local = db_sge { addr: LOCAL + offset, length: LENGTH, lkey: LKEY };
    let flags = if signaled { SIGNALED } else { 0 };
    // SAFETY: the queue's ring, record and slots are the locals above, of the sizes that it says.
    let error = unsafe { sys::db_c_try_post_write(&mut sq, 0, local, REMOTE + offset, RKEY, flags) };
    assert_eq!(error, 0, "a WRITE of one piece into an empty ring");
    block.0
}

/// The first six words of a queue's WQEs: message 0 at index 0 by the host's shim, with index and addresses
/// replaced. For a reader too busy to have each written.
#[derive(Debug, Clone)]
pub struct Pattern([[u64; 6]; 2]);

impl Pattern {
    pub fn of(queue: u32) -> Pattern {
        Pattern([false, true].map(|signaled| {
            let block = written(queue, 0, 0, signaled);
            std::array::from_fn(|word| u64::from_ne_bytes(std::array::from_fn(|byte| block[8 * word + byte])))
        }))
    }

    #[inline]
    pub fn wqe(&self, index: u64, message: u32, signaled: bool) -> [u64; 6] {
        let mut words = self.0[usize::from(signaled)];
        let offset = u64::from(message) * u64::from(LENGTH);
        words[0] |= u64::from((index as u16).swap_bytes()) << 8;
        words[2] = (REMOTE + offset).to_be();
        words[5] = (LOCAL + offset).to_be();
        words
    }
}

/// Compares `rings`, the blocks of every queue one after the other. Errors: [`Wrong`].
pub fn check(rings: &[u8], expected: &Expected) -> Result<(), Wrong> {
    let Expected { queues, blocks, start, posts, in_order, signal_every, reserved_free } = *expected;
    let all = queues * posts;
    let mut seen = vec![false; all as usize];
    let mut wrong: Option<Wrong> = None;
    let mut note = |queue, block, what: String| match &mut wrong {
        Some(wrong) => wrong.bad += 1,
        None => wrong = Some(Wrong { bad: 1, all, queue, block, what }),
    };
    for (queue, ring) in (0..queues).zip(rings.chunks(blocks as usize * BLOCK)) {
        for (block, found) in (0..posts).zip(ring.chunks(BLOCK)) {
            let address =
                found[REMOTE_AT..REMOTE_AT + 8].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            let message = address.wrapping_sub(REMOTE) / u64::from(LENGTH);
            let wanted = u64::from(queue * posts + block);
            if message >= u64::from(all) {
                note(queue, block, format!("remote address {address:#x} is of no message: {}", hex(found)));
                continue;
            }
            if in_order && message != wanted {
                note(queue, block, format!("message {message} where {wanted} should be"));
                continue;
            }
            if std::mem::replace(&mut seen[message as usize], true) {
                note(queue, block, format!("message {message} once more"));
                continue;
            }
            let index = start + u64::from(block);
            let mut host =
                written(queue, index, message as u32, (index + 1).is_multiple_of(u64::from(signal_every)));
            if reserved_free {
                host[RESERVED].copy_from_slice(&found[RESERVED]);
            }
            if found != host {
                note(
                    queue,
                    block,
                    format!("message {message} is {}, the host's shim writes {}", hex(found), hex(&host)),
                );
            }
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// Bytes in groups of four.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .chunks(4)
        .map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: bytes of a good ring that are changed, and what is said.
    #[test]
    fn one_wrong_byte_is_found_and_named() {
        let expected = Expected {
            queues: 2,
            blocks: 8,
            start: 65536,
            posts: 6,
            in_order: true,
            signal_every: 3,
            reserved_free: false,
        };
        let mut rings = vec![0; 2 * 8 * BLOCK];
        for (queue, ring) in (0..2).zip(rings.chunks_mut(8 * BLOCK)) {
            for (block, bytes) in (0..6).zip(ring.chunks_mut(BLOCK)) {
                let signaled = (65536 + u64::from(block) + 1) % 3 == 0;
                bytes.copy_from_slice(&written(queue, 65536 + u64::from(block), queue * 6 + block, signaled));
            }
        }
        assert_eq!(check(&rings, &expected), Ok(()));
        // mlx5dv.h's WRITE: index and opcode, QPN and length, flags; address and key; length, key, address.
        assert_eq!(rings[..12], [0, 0, 0, 8, 0x12, 0x34, 0, 3, 0, 0, 0, 0]);
        assert_eq!(rings[BLOCK + 11], 8, "the second one's end is a multiple of three");
        assert_eq!(rings[16..28], [0, 0, 0, 0x33, 0x44, 0, 0, 0, 5, 6, 7, 8]);
        assert_eq!(rings[32..48], [0, 0, 0, 64, 1, 2, 3, 4, 0, 0, 0, 0x11, 0x22, 0, 0, 0]);
        for (at, bit, words) in [
            (1, 4, "block 0 of queue 0"),
            (BLOCK + 11, 8, "block 1 of queue 0"),
            (8 * BLOCK + 2 * BLOCK + 47, 1, "block 2 of queue 1"),
            (5 * BLOCK + 23, 0x80, "where 5 should be"),
            (4 * BLOCK + 17, 4, "is of no message"),
            (3 * BLOCK + 63, 1, "block 3 of queue 0"),
        ] {
            let mut changed = rings.clone();
            changed[at] ^= bit;
            let wrong = check(&changed, &expected).unwrap_err();
            assert!(wrong.bad == 1 && wrong.to_string().contains(words), "{at}: {wrong}");
        }
        let lax = Expected { reserved_free: true, ..expected };
        for (at, good) in [(27, false), (28, true), (31, true), (32, false)] {
            let mut changed = rings.clone();
            changed[at] ^= 1;
            assert_eq!(
                (check(&changed, &expected).is_ok(), check(&changed, &lax).is_ok()),
                (false, good),
                "{at}"
            );
        }
    }

    #[test]
    fn a_pattern_is_what_the_hosts_shim_writes() {
        for (queue, index, message, signaled) in
            [(0, 0, 0, false), (3, 1, 7, true), (159, 0xffff, 69_631, false), (1, 0x1_0203, 4, true)]
        {
            let words = Pattern::of(queue).wqe(index, message, signaled);
            let block = written(queue, index, message, signaled);
            assert_eq!(words.map(u64::to_ne_bytes).concat(), block[..48], "{queue} {index} {message}");
            assert_eq!(block[48..], [0; 16]);
        }
    }

    #[test]
    fn a_shared_ring_may_be_in_any_order_and_holds_each_message_once() {
        let expected = Expected {
            queues: 1,
            blocks: 4,
            start: 0,
            posts: 4,
            in_order: false,
            signal_every: 4,
            reserved_free: false,
        };
        let ring = |messages: [u32; 4]| {
            let wqes = messages.iter().zip(0..).map(|(message, at)| written(0, at, *message, at == 3));
            wqes.collect::<Vec<_>>().concat()
        };
        assert_eq!(check(&ring([2, 0, 3, 1]), &expected), Ok(()));
        let twice = check(&ring([2, 0, 2, 1]), &expected).unwrap_err();
        assert!(twice.what.contains("message 2 once more"), "{twice}");
        let in_order = Expected { in_order: true, ..expected };
        assert_eq!(check(&ring([2, 0, 3, 1]), &in_order).unwrap_err().bad, 4);
    }
}
