//! Models that work in slots, and those that a kernel runs which stays on the GPU: a function that its blocks call, and the barrier by
//! which they meet.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::compile::Unit;

/// Name and text of a header with a barrier of all blocks of a cooperative launch.
pub const GRID_HEADER: (&str, &str) = ("grid.h", include_str!("../../kernels/grid.h"));

/// Where a tensor of a slot lies, for a model that works there; clones keep the memory too.
#[derive(Clone)]
pub struct SlotTensor {
    words: [u64; 4],
    bytes: usize,
    _memory: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for SlotTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotTensor({:x?}, {} bytes)", self.words, self.bytes)
    }
}

impl SlotTensor {
    /// `words`: where slot 0 begins; where the slot's number lies, 32 bits; bytes from slot to slot, and to the tensor.
    ///
    /// # Safety
    /// With each number that lies there, the tensor of so many bytes lies in what `memory` keeps, and so does the number.
    pub unsafe fn new(words: [u64; 4], bytes: usize, memory: Arc<dyn Any + Send + Sync>) -> SlotTensor {
        SlotTensor { words, bytes, _memory: memory }
    }

    pub fn words(&self) -> [u64; 4] {
        self.words
    }

    /// The tensor's length: of single precision, channel by channel.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The tensors of requests and answers, in the order of a model's inputs and outputs.
#[derive(Debug, Clone, Default)]
pub struct SlotTensors {
    pub inputs: Vec<SlotTensor>,
    pub outputs: Vec<SlotTensor>,
}

/// A model as a function that all blocks of a cooperative launch call together, `db_model(unsigned long long, struct db_grid *)`.
///
/// # Safety
/// Called with [`Self::address`] on the machine that it was made for, the function keeps to memory that this value keeps, or that it was
/// given for requests and answers, and its waits are the grid's.
pub unsafe trait ResidentModel: Send {
    /// For a GPU: sources that define the function.
    fn units(&self) -> Vec<Unit>;
    /// For the host twin, which links no sources: where the function lies as a kernel (`host_twin::Kernel::entry`). 0: it is a GPU's.
    fn twin_entry(&self) -> u64;
    /// What it is called with.
    fn address(&self) -> u64;
    /// Threads of a block.
    fn threads(&self) -> u32;
}
