//! Why something about a kernel failed, before, around or in place of what the kernel itself says.

use std::time::Duration;

use crate::ShimError;
use host_twin::TwinError;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum KernelError {
    /// The GPU, its driver, or what was asked of them.
    #[error(transparent)]
    Gpu(#[from] gpu::Error),
    /// No compiler for kernels.
    #[error(transparent)]
    Toolkit(#[from] gpu::ToolkitMissing),
    /// A kernel of ours does not compile, or not for this GPU.
    #[error(transparent)]
    Build(#[from] gpu::BuildError),
    /// The host twin.
    #[error(transparent)]
    Twin(#[from] TwinError),
    /// A queue that cannot be taken over.
    #[error(transparent)]
    Shim(#[from] ShimError),
    /// rdma-core refused.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// No memory.
    #[error("{bytes} bytes of memory for kernels: {source}")]
    Memory { bytes: usize, source: std::io::Error },
    /// Bytes that memory does not have.
    #[error("{len} bytes at {offset} leave the {whole} bytes of this memory")]
    Range { offset: usize, len: usize, whole: usize },
    /// What a launch asks for cannot be.
    #[error("{0}")]
    Refused(String),
    /// A kernel was told to end, and did not. What it uses is never freed.
    #[error(
        "kernel {kernel} has not ended {waited:?} after it was told to; its queues and memory are kept for ever"
    )]
    NeverEnds { kernel: &'static str, waited: Duration },
}
