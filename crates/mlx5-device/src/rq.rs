//! Receive queue: reads receive WQEs, once each, and scatters payload into what they name.
//!
//! There is no doorbell: only the record says how many are posted, read when a message needs a receive. Keys
//! are checked when bytes go through them: an entry that no message reaches is no error. Receives from a
//! shared receive queue (`srq.rs`) end up in the same pointer list. Left out: striding queues.

use mlx5_layout::RecvWqe;
use mlx5_layout::send_wqe::DataPointer;
use roce::{Access, Receive, RegionError};

use super::mkey::Mkeys;
use super::ring::Ring;
use crate::memory::{Memory, Segment};

/// Largest entry: `max_recv_descriptor_bytes`.
pub(super) const MAX_ENTRY_BYTES: usize = 512;

/// Four pointers.
const SMALL_ENTRY_BYTES: usize = 64;

/// The receive side of a QP.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    pub ring: Ring,
    /// Place of the CQ that it completes in.
    pub cq: u32,
    /// Largest received payload that goes into the CQE; 0: none.
    pub scatter: usize,
    /// Place of the shared receive queue that receives are taken from instead.
    pub srq: Option<u32>,
    /// Protection domain of the keys in its receives.
    pub pd: u32,
    /// Entries consumed, 16-bit running counter.
    pub taken: u16,
    /// What the record said last. It is read again when that is consumed: the driver writes it per receive,
    /// and a line that moves between two cores per message costs more than the message.
    pub posted: u16,
    /// Bytes before the first pointer of an entry: 16 in queues with signatures.
    pub header: usize,
    /// That a message waited for a receive, or was dropped, was said.
    pub explained: bool,
    /// Pointers of the receive in use.
    pub pointers: Vec<DataPointer>,
}

impl ReceiveQueue {
    /// Receives posted and not consumed. A record further ahead than the ring is long posts nothing.
    pub(super) fn available<M: Memory>(&self, memory: &M) -> u16 {
        let record = if self.ring.entries == 0 { None } else { self.ring.read_record(memory) };
        let posted = record.map_or(0, |record| record.wrapping_sub(self.taken));
        if u32::from(posted) <= self.ring.entries { posted } else { 0 }
    }

    /// Takes the next receive: its pointers are in `self.pointers` afterwards.
    pub(super) fn take<M: Memory>(&mut self, memory: &M) -> Option<Receive> {
        if self.posted == self.taken {
            self.posted = self.taken.wrapping_add(self.available(memory));
            if self.posted == self.taken {
                return None;
            }
        }
        let bytes = (1usize << self.ring.shift).min(MAX_ENTRY_BYTES);
        let at = self.ring.entry(self.taken);
        // Most entries have one to four pointers; zeroes for the largest would cost as much as all else here.
        let capacity = if bytes <= SMALL_ENTRY_BYTES {
            self.read_entry(memory, at, &mut [0; SMALL_ENTRY_BYTES][..bytes])
        } else {
            self.read_entry(memory, at, &mut [0; MAX_ENTRY_BYTES][..bytes])
        };
        let id = u64::from(self.taken);
        self.taken = self.taken.wrapping_add(1);
        memory.prefetch(self.ring.entry(self.taken));
        Some(Receive { capacity, id })
    }

    /// Reads an entry into `self.pointers`; returns the bytes that they hold.
    #[inline]
    fn read_entry<M: Memory>(&mut self, memory: &M, at: u64, entry: &mut [u8]) -> u64 {
        self.pointers.clear();
        let mut capacity = 0;
        // An entry that cannot be read has no room; the message that needs it fails on its length.
        if memory.read(at, entry).is_ok()
            && let Ok(wqe) = RecvWqe::new(&entry[self.header.min(entry.len())..])
        {
            for pointer in wqe.segments() {
                capacity += u64::from(pointer.byte_count & !(1 << 31));
                self.pointers.push(pointer);
            }
        }
        capacity
    }

    /// Application addresses of `len` bytes from `offset` of the receive in use, into `out`. Error: the key,
    /// bound or right that forbids it.
    pub(super) fn scatter(
        &self,
        mkeys: &Mkeys,
        offset: u32,
        len: u32,
        out: &mut Vec<Segment>,
    ) -> Result<(), RegionError> {
        let (mut skip, mut left) = (u64::from(offset), u64::from(len));
        for pointer in &self.pointers {
            if left == 0 {
                break;
            }
            let whole = u64::from(pointer.byte_count & !(1 << 31));
            let from = skip.min(whole);
            skip -= from;
            let piece = left.min(whole - from);
            if piece > 0 {
                let va = pointer.va.wrapping_add(from);
                let addr = mkeys.translate(pointer.lkey, self.pd, va, piece, Access::LOCAL_WRITE)?;
                out.push(Segment { addr, len: piece });
                left -= piece;
            }
        }
        if left > 0 {
            // The responder held the peer's length against the capacity before.
            let DataPointer { byte_count, lkey: key, va: start } =
                self.pointers.last().copied().unwrap_or_default();
            let length = u64::from(byte_count & !(1 << 31));
            let va = start.wrapping_add(length);
            return Err(RegionError::OutOfBounds { key, va, len: left, start, length });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use roce::Access;

    use super::*;
    use crate::mkey::Mkey;
    use crate::mr::MemoryRegion;

    #[test]
    fn bytes_that_a_receive_has_no_room_for_are_refused() {
        let mut mkeys = Mkeys::default();
        let region = MemoryRegion {
            key: 0,
            pd: 7,
            start: 0x1000,
            length: 64,
            iova: 0x1000,
            access: Access::LOCAL_WRITE.0,
        };
        let lkey = mkeys.insert(|key| Mkey::Region(MemoryRegion { key, ..region }));
        let pointer = |va, byte_count| DataPointer { byte_count, lkey, va };
        let rq = ReceiveQueue {
            ring: Ring { address: 0, entries: 0, shift: 6, record: 0 },
            cq: 0,
            scatter: 0,
            srq: None,
            pd: 7,
            taken: 0,
            posted: 0,
            header: 0,
            explained: false,
            pointers: vec![pointer(0x1000, 8), pointer(0x1020, 8)],
        };
        for (name, offset, len, wanted) in [
            ("all of it", 0, 16, Some(&[(0x1000, 8), (0x1020, 8)][..])),
            ("from the first into the second", 4, 8, Some(&[(0x1004, 4), (0x1020, 4)])),
            ("nothing at the end", 16, 0, Some(&[])),
            ("a byte too many", 0, 17, None),
            ("a byte behind the end", 16, 1, None),
        ] {
            let mut out = Vec::new();
            let scattered = rq.scatter(&mkeys, offset, len, &mut out);
            let pieces: Vec<_> = out.iter().map(|segment| (segment.addr, segment.len)).collect();
            assert_eq!(scattered.ok().map(|()| &pieces[..]), wanted, "{name}");
        }
    }
}
