//! Where kernels run, and where the messages lie that they send or receive.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use rdma_shim::kernel::{Machine, Place};

/// A GPU, and the toolkit that compiles its kernels.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Gpu {
    /// Number of the GPU, as CUDA counts [default: the first].
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,
    /// CUDA toolkit that compiles kernels, or a folder of NVIDIA's wheels [default: DOORBELL_CUDA, CUDA_HOME,
    /// CUDA_PATH, /usr/local/cuda].
    #[arg(long, value_name = "FOLDER")]
    pub cuda: Option<PathBuf>,
}

impl Gpu {
    /// Starts it. Errors: no GPU, driver or toolkit, where each was searched, and the remedy `without_a_gpu`.
    pub fn machine(&self, without_a_gpu: &str) -> Result<Machine> {
        let gpu = Machine::gpu(self.gpu, self.cuda.as_deref());
        gpu.map_err(|error| anyhow!("{error}; without a GPU{without_a_gpu}"))
    }
}

/// Memory of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// Host memory.
    Host,
    /// GPU memory, registered by its addresses.
    Gpu,
    /// GPU memory, registered by a dma-buf.
    GpuDmaBuf,
}

impl Memory {
    /// As the shim has it.
    pub fn place(self) -> Place {
        match self {
            Memory::Host => Place::Host,
            Memory::Gpu => Place::Gpu,
            Memory::GpuDmaBuf => Place::GpuDmaBuf,
        }
    }
}
