//! Models that work in slots, and models of a kernel that stays on the GPU. Its blocks call a function, and
//! meet by a barrier.

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
    /// `words`: where slot 0 and the slot's number, 32 bits, lie; bytes from slot to slot, and to the tensor.
    ///
    /// # Safety
    /// For each number there, the tensor of `bytes` lies in what `memory` keeps, and so does the number.
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

/// A model as a function that blocks of a cooperative launch call together, `db_model(unsigned long long,
/// struct db_grid *)`. The grid has their number (`db_grid_blocks`), and in `slot` the model's slot.
pub struct ResidentModel {
    units: Vec<Unit>,
    twin_entry: u64,
    address: u64,
    threads: u32,
    _memory: Box<dyn Any + Send>,
}

impl fmt::Debug for ResidentModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResidentModel { twin_entry, address, threads, .. } = self;
        write!(f, "ResidentModel({twin_entry:#x}, {address:#x}, {threads} threads)")
    }
}

impl ResidentModel {
    /// `units`: for a GPU, sources that define the function. `twin_entry`: for the host twin, which links no
    /// sources, its entry as a kernel (`host_twin::Kernel::entry`); 0: it is a GPU's. `threads`: of a block.
    ///
    /// # Safety
    /// Called with `address` on the machine it was made for, the function keeps to memory that `memory`
    /// keeps, or that it was given for requests and answers, and its waits are the grid's.
    pub unsafe fn new(
        units: Vec<Unit>,
        twin_entry: u64,
        address: u64,
        threads: u32,
        memory: impl Any + Send,
    ) -> ResidentModel {
        ResidentModel { units, twin_entry, address, threads, _memory: Box::new(memory) }
    }

    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    pub fn twin_entry(&self) -> u64 {
        self.twin_entry
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn threads(&self) -> u32 {
        self.threads
    }
}
