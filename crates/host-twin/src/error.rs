//! Why a kernel does not run to its end.

use std::time::Duration;

use crate::Dim3;
use crate::report::Waits;
use crate::shared_memory::MAX_SHARED_BYTES;

/// Why a kernel did not run to its end.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum TwinError {
    /// There are no kernels.
    #[error("no kernel {kernel}: {reason}")]
    NoKernels { kernel: String, reason: &'static str },
    /// No such kernel.
    #[error("no kernel {kernel}; there are: {known}")]
    UnknownKernel { kernel: String, known: String },
    /// The launch has a shape that is not supported.
    #[error("kernel {kernel} on {blocks} blocks of {threads} lanes: {limit}")]
    Shape { kernel: &'static str, blocks: Dim3, threads: Dim3, limit: String },
    /// The arguments are not the kernel's.
    #[error("kernel {kernel} takes arguments of {wanted:?} bytes and was given {given:?}")]
    Arguments { kernel: &'static str, given: Vec<usize>, wanted: Vec<usize> },
    /// No thread could be started.
    #[error("kernel {kernel}: starting its thread: {source}")]
    Thread { kernel: &'static str, source: std::io::Error },
    /// A shared variable does not fit into the block's memory beside the others.
    #[error(
        "kernel {kernel}: no room for the shared {variable}, {bytes} bytes: a block has {MAX_SHARED_BYTES}"
    )]
    SharedMemory { kernel: &'static str, variable: String, bytes: usize },
    /// A lane wrote behind the end of shared memory that it was given.
    #[error("kernel {kernel}: a lane wrote behind the end of the shared {variable}")]
    Overrun {
        kernel: &'static str,
        /// What the declaration declares, and its size.
        variable: String,
    },
    /// No stacks for its lanes.
    #[error("kernel {kernel}: memory for the stacks of its lanes: {system}")]
    Stacks { kernel: &'static str, system: String },
    /// A lane used an intrinsic with a mask that cannot be.
    #[error(
        "kernel {kernel}: a mask does not name the lane that gives it, or names lanes that its warp does not have: {waits}"
    )]
    Mask { kernel: &'static str, waits: Waits },
    /// Lanes wait for lanes that cannot come. All lanes have left the kernel.
    #[error("kernel {kernel}: lanes wait for lanes that cannot come: {waits}")]
    Deadlock { kernel: &'static str, waits: Waits },
    /// The deadline passed. All lanes have left the kernel.
    #[error("kernel {kernel} did not end within {deadline:?}: {waits}")]
    Deadline { kernel: &'static str, deadline: Duration, waits: Waits },
    /// The launch was aborted, and lanes that use none of the twin's calls did not leave the kernel. Their
    /// threads still use the memory that they were given: the process must end.
    #[error("kernel {kernel}: {lanes} of its lanes cannot be stopped, end the process: {waits}")]
    Lost { kernel: &'static str, lanes: usize, waits: Waits },
}
