//! What backs a memory region: host memory, a mapped dma-buf, or GPU memory. Also where queues may lie.

use mlx5_device::Answer;
use mlx5_device::command::{CommandError, refuse_if};

use super::attributes::refuse;
use super::reasons::Reasons;
use crate::dma::dma_buf::Recognise;
use crate::dma::gpu::is_gpu_address;
use crate::dma::{DmaBuf, DmaBufError, GpuError, GpuRegion, HostPages};

/// Held as long as the device has the region, and dropped after.
#[derive(Debug)]
pub enum Backing {
    /// A buffer, mapped for it.
    DmaBuf(DmaBuf),
    Gpu(GpuRegion),
    /// The program's own pages.
    Host(HostPages),
}

/// What a region of the program's addresses has beneath it; `None`: pages that nothing need be known of.
///
/// Errors: a GPU's memory that no NIC may reach; its errno, and a line on stderr, once.
pub fn of_addresses(reasons: &Reasons, start: u64, length: u64) -> Answer<Option<Backing>> {
    match GpuRegion::find(start, length) {
        Ok(Some(region)) => Ok(Some(Backing::Gpu(region))),
        Ok(None) => Ok(HostPages::note(start, length).map(Backing::Host)),
        Err(error) => Err(refuse_memory(reasons, "REG_MR", &error)),
    }
}

/// A mapped piece of a dma-buf or, where its exporter allows no mapping, the GPU memory at `iova`.
///
/// The driver neither imports such a descriptor nor tells what it is of (H200, CUDA 13.0: each export has its
/// own inode). So the allocation of this process at `iova` is registered, when the buffer fits in it there: a
/// descriptor of anything else gives no access to it. Returns the address too.
pub fn of_dma_buf(
    reasons: &Reasons,
    recognise: Recognise,
    fd: i32,
    (offset, length, iova): (u64, u64, u64),
    write: bool,
) -> Answer<(u64, Backing)> {
    let refused = match DmaBuf::map(fd, offset, length, write, recognise) {
        Ok(buffer) => return Ok((buffer.address(), Backing::DmaBuf(buffer))),
        Err(error) => error,
    };
    if let DmaBufError::NotMappable { size, .. } = refused
        && let Some(start) = iova.checked_sub(offset)
        && let Some(region) = GpuRegion::find(start, size)
            .map_err(|error| refuse_memory(reasons, "MR.REG_DMABUF_MR", &error))?
    {
        return Ok((iova, Backing::Gpu(region)));
    }
    Err(refuse(refused.errno(), format!("MR.REG_DMABUF_MR: {refused}")))
}

/// An error where a queue's ring or record lies in a GPU's memory.
pub fn check_queue(what: &str, places: &[u64]) -> Answer<()> {
    let on_gpu = places.iter().any(|addr| is_gpu_address(*addr));
    refuse_if!(on_gpu, EOPNOTSUPP, "{what} with ring or record in a GPU's memory (queues there need DEVX)");
    Ok(())
}

fn refuse_memory(reasons: &Reasons, command: &str, error: &GpuError) -> CommandError {
    let sentence = format!("{command}: {error}");
    reasons.count_refusal(&format!("{command} of a GPU's memory"), &sentence);
    refuse(error.errno(), sentence)
}
