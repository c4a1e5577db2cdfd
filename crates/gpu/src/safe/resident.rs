//! Models that a kernel runs which stays on the GPU: a function that its blocks call, and the barrier by which they meet.

use super::compile::Unit;

/// Name and text of a header with a barrier of all blocks of a cooperative launch.
pub const GRID_HEADER: (&str, &str) = ("grid.h", include_str!("../../kernels/grid.h"));

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
