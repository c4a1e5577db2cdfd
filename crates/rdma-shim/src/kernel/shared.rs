//! A queue pair that many threads or warps of a kernel post to: `struct db_shared_sq` of `doorbell_shared.h`.

use super::error::KernelError;
use super::memory::{Memory, Plain};
use super::queue::Queue;
use crate::sys::{db_c_shared_init, db_shared_sq};

/// `DB_RESERVED_FAILED`.
const RESERVED_FAILED: u64 = 1 << 63;

// SAFETY: numbers without padding.
unsafe impl Plain for db_shared_sq {}

/// A queue with what its posters share.
#[derive(Debug)]
pub struct SharedQueue {
    shared: Memory,
    marks: Memory,
    signal_mask: u32,
    queue: Queue,
}

impl SharedQueue {
    /// Shares a queue with nothing outstanding. `signal_every`: blocks between completions, a power of two,
    /// at most half of the queue's. Refuses what `db_shared_init` does.
    pub fn new(queue: Queue, signal_every: u32) -> Result<SharedQueue, KernelError> {
        let blocks = queue.structs()?.0.blocks;
        let machine = queue.machine();
        let shared = machine.own_memory(size_of::<db_shared_sq>())?;
        let marks = machine.own_memory(blocks as usize * size_of::<u32>())?;
        let shared = SharedQueue { shared, marks, signal_mask: signal_every.wrapping_sub(1), queue };
        shared.fill()?;
        Ok(shared)
    }

    fn fill(&self) -> Result<(), KernelError> {
        self.marks.fill(0)?;
        let (sq, cq) = self.queue.structs()?;
        let (filled, signal_mask) = (self.marks.kernel_address(), self.signal_mask);
        let mut shared = db_shared_sq { sq, cq, filled, signal_mask, ..db_shared_sq::default() };
        // SAFETY: the struct is ours alone, and only numbers are looked at.
        if unsafe { db_c_shared_init(&raw mut shared) } != 0 {
            return Err(KernelError::Refused(format!(
                "QP {:#x} of {} blocks, a CQ of {} entries and a completion every {} blocks cannot be shared: it needs 64 to \
                 16384 blocks, a CQ of twice as many entries, a power of two of at most half the blocks, and 8-byte doorbells",
                self.queue.qp().number(),
                shared.sq.blocks,
                shared.cq.entries,
                u64::from(signal_mask) + 1,
            )));
        }
        self.shared.put(0, &shared)
    }

    /// The queue pair, for its states.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Where kernels find `struct db_shared_sq`.
    pub fn kernel_address(&self) -> u64 {
        self.shared.kernel_address()
    }

    /// The queue, emptied and in RESET, whether or not its posters failed.
    pub fn into_queue(self) -> Result<Queue, KernelError> {
        let shared: db_shared_sq = self.shared.get(0)?;
        // The next life begins behind all blocks that were handed out in this one.
        self.queue.set_used(shared.reserved & !RESERVED_FAILED, shared.cq.consumer)?;
        self.queue.emptied()
    }
}
