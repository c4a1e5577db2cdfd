//! The kernel that stays on a machine, with its model, and its launches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpu::ResidentModel;
use rdma_shim::kernel::{Arguments, Kernel, Memory, Running, Source};

use super::error::{ServedError, refuse};
use super::kernel_memory::Core;

/// Longer than any model runs: what blocks wait for one another beside the longest wait for a request.
pub(super) const MODEL: Duration = Duration::from_secs(30);

/// The kernel with its model, ready to be launched again and again.
pub(super) struct Resident {
    kernel: Kernel,
    shape: [u32; 2],
    /// `struct db_resident_words`.
    grid: Memory,
    // Kernels alone use it; the lock is for its one thread at a time.
    model: Mutex<ResidentModel>,
    pub(super) limit: Duration,
}

/// Of `struct db_resident_words`: the grid's barrier, offers, and what is done.
pub(super) const WORDS: usize = 5 * 128;

/// What a launch uses. It is given back when the kernel has ended.
type Held = (Arc<Core>, Arc<Resident>);

impl Resident {
    pub(super) fn new(
        core: &Core,
        source: &Source,
        name: &'static str,
        model: ResidentModel,
    ) -> Result<Resident, ServedError> {
        let machine = &core.machine;
        if machine.is_gpu() != (model.twin_entry() == 0) {
            return refuse(
                "the model was made for a GPU and the pipeline for the twin, or the other way round",
            );
        }
        let kernel = Kernel::prepare_linked(machine, source, model.units(), name)?;
        let (most, threads) = (kernel.resident_blocks(model.threads())?, model.threads());
        // Room for one block of another kernel: the one that reads a GPU's clock.
        let blocks = most.saturating_sub(u32::from(machine.is_gpu()));
        // The last one waits and sends.
        if blocks < 2 {
            return refuse(format!(
                "{most} blocks of {threads} threads run side by side here, which are too few for a kernel that stays: give the model fewer \
                 threads, or take a mode of graphs"
            ));
        }
        let shape = [blocks, threads];
        let limit = core.wait.saturating_add(MODEL);
        Ok(Resident { kernel, shape, grid: machine.own_memory(WORDS)?, model: Mutex::new(model), limit })
    }

    /// Launches the kernel. `alone`: it runs the model so many times and ends; 0: it serves.
    pub(super) fn launch(
        self: &Arc<Resident>,
        core: &Arc<Core>,
        alone: u64,
    ) -> Result<Launched, ServedError> {
        self.grid.fill(0)?;
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let arguments = Arguments::new()
            .u64(core.told.served)
            .u64(core.told.turn)
            .u64(model.address())
            .u64(model.twin_entry())
            .u64(self.grid.kernel_address())
            .u64(u64::try_from(self.limit.as_nanos()).unwrap_or(u64::MAX))
            .u64(alone);
        let held: Held = (Arc::clone(core), Arc::clone(self));
        // SAFETY: the kernel takes these arguments. `held` keeps what they lead to; the pipeline keeps queues
        // and slots until the kernel has ended. It looks at the cancel word, and its waits have an end.
        let running =
            unsafe { self.kernel.launch_cooperative(self.shape, &arguments, core.shared.clone(), held) }?;
        Ok(Launched(running))
    }
}

/// A launch of the kernel.
pub(super) struct Launched(Running<Held>);

impl Launched {
    /// Waits for its end, however long that takes. Error: what went wrong in it.
    pub(super) fn ended(self) -> Result<(), ServedError> {
        self.0.sleep()?;
        let (_, resident) = self.0.end(Duration::MAX)?;
        in_time(&resident.grid, resident.limit)
    }
}

/// Whether nothing has waited too long for another, as `struct db_resident_words` says.
pub(super) fn in_time(words: &Memory, limit: Duration) -> Result<(), ServedError> {
    match words.get::<[u32; 2]>(0)? {
        [_, 0] => Ok(()),
        _ => refuse(format!("blocks that stay on the machine waited longer than {limit:?} for one another")),
    }
}
