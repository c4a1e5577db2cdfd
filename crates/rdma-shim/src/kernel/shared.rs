//! A queue pair that many threads or warps of a kernel post to: `struct db_shared_sq` of `doorbell_gpu.h`.

use super::error::KernelError;
use super::memory::{Memory, Plain};
use super::queue::Queue;
use crate::sys::{db_cq, db_sq};

/// `struct db_shared_sq`.
#[repr(C)]
#[derive(Debug)]
struct db_shared_sq {
    sq: db_sq,
    cq: db_cq,
    released: u64,
    filled: u64,
    signal_mask: u32,
    polling: u32,
    failed: u32,
    pad: u32,
    line0: [u64; 9],
    reserved: u64,
    line1: [u64; 15],
    published: u64,
    line2: [u64; 15],
    rung: u64,
    line3: [u64; 15],
    consumed: u64,
    line4: [u64; 15],
}

// SAFETY: numbers without padding.
unsafe impl Plain for db_shared_sq {}

/// The least blocks of a queue that many share.
const LEAST_BLOCKS: u32 = 64;

/// A queue with what its posters share.
#[derive(Debug)]
pub struct SharedQueue {
    shared: Memory,
    marks: Memory,
    signal_mask: u32,
    queue: Queue,
}

impl SharedQueue {
    /// Shares a queue that was never posted to. `signal_every`: blocks between completions, a power of two, less than the
    /// queue has.
    pub fn new(queue: Queue, signal_every: u32) -> Result<SharedQueue, KernelError> {
        let blocks = queue.structs()?.0.blocks;
        if blocks < LEAST_BLOCKS || !signal_every.is_power_of_two() || signal_every > blocks / 2 {
            return Err(KernelError::Refused(format!(
                "QP {:#x} of {blocks} blocks cannot be shared with a completion every {signal_every}: it needs \
                 {LEAST_BLOCKS} blocks, and a power of two of at most half of them",
                queue.qp().number()
            )));
        }
        let machine = queue.machine();
        let (shared, marks) =
            (machine.own_memory(size_of::<db_shared_sq>())?, machine.own_memory(blocks as usize)?);
        let shared = SharedQueue { shared, marks, signal_mask: signal_every - 1, queue };
        shared.fill()?;
        Ok(shared)
    }

    fn fill(&self) -> Result<(), KernelError> {
        self.marks.fill(0)?;
        let (sq, cq) = self.queue.structs()?;
        let shared = db_shared_sq {
            sq,
            released: cq.consumer,
            cq,
            filled: self.marks.kernel_address(),
            signal_mask: self.signal_mask,
            polling: 0,
            failed: 0,
            pad: 0,
            line0: [0; 9],
            reserved: 0,
            line1: [0; 15],
            published: 0,
            line2: [0; 15],
            rung: 0,
            line3: [0; 15],
            consumed: 0,
            line4: [0; 15],
        };
        self.shared.put(0, &shared)
    }

    /// The queue pair, for its states.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Where kernels find it.
    pub(crate) fn kernel_address(&self) -> u64 {
        self.shared.kernel_address()
    }

    /// Any state → RESET, with empty queues and no failure. Its CQ goes on where the kernels stopped.
    pub fn reset(&mut self) -> Result<u32, KernelError> {
        let shared: db_shared_sq = self.shared.get(0)?;
        self.queue.set_consumer(shared.cq.consumer)?;
        let dropped = self.queue.reset()?;
        self.fill()?;
        Ok(dropped)
    }
}
