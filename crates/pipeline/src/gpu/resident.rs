//! A pipeline in one kernel that stays on the GPU (`kernels/serve.cu`), with a model that works in the slots: mode `gpu-persistent`.

use std::mem::offset_of;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpu::{ResidentModel, SlotTensor, SlotTensors};
use rdma_shim::kernel::{Arguments, Kernel, Memory, Running, Source};

use super::chain::Runs;
use super::launch::{HEADERS, KERNELS};
use super::layout::db_turn;
use super::{Core, Served, ServedError, refuse};

/// The kernel. It includes the sources of the kernels that wait and send.
pub(super) const SOURCE: Source = Source {
    name: "serve.cu",
    text: include_str!("../../kernels/serve.cu"),
    headers: &[
        HEADERS[0],
        HEADERS[1],
        HEADERS[2],
        ("resident.h", include_str!("../../kernels/resident.h")),
        ("wait.cu", include_str!("../../kernels/wait.cu")),
        ("put.cu", include_str!("../../kernels/put.cu")),
        ("send.cu", include_str!("../../kernels/send.cu")),
        gpu::GRID_HEADER,
    ],
    twin: &KERNELS,
};
/// Longer than any model runs: what blocks wait for one another beside the longest wait for a request.
const MODEL: Duration = Duration::from_secs(30);

/// The kernel with its model, ready to be launched again and again.
pub(super) struct Resident {
    kernel: Kernel,
    shape: [u32; 2],
    /// Of the grid's barrier.
    grid: Memory,
    // Kernels alone use it; the lock is for its one thread at a time.
    model: Mutex<ResidentModel>,
    limit: Duration,
}

/// What a launch uses. It is given back when the kernel has ended.
type Held = (Arc<Core>, Arc<Resident>);

impl Resident {
    fn new(
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
        // Room for one block of another kernel: the one that reads the clock.
        let blocks = kernel.resident_blocks(model.threads())?.saturating_sub(1).max(1);
        let shape = [blocks, model.threads()];
        let limit = core.wait.saturating_add(MODEL);
        Ok(Resident { kernel, shape, grid: machine.own_memory(8)?, model: Mutex::new(model), limit })
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
        // SAFETY: the kernel takes these arguments. `held` keeps what they lead to; queues and slots are the pipeline's, which is not
        // dropped before the kernel has ended. It looks at the cancel word, and its waits have an end.
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
        let mut words = [0; 8];
        resident.grid.read(0, &mut words)?;
        match words[4..] {
            [0, 0, 0, 0] => Ok(()),
            _ => refuse(format!(
                "blocks of the resident kernel waited longer than {:?} for one another",
                resident.limit
            )),
        }
    }
}

impl Served {
    /// Where the model's tensors lie in the slots.
    pub fn tensors(&self) -> SlotTensors {
        let core = &self.core;
        let slot = core.told.turn + offset_of!(db_turn, model_slot) as u64;
        let (base, stride) = (core.slots.kernel_address(), core.geometry.server_stride() as u64);
        let of = |message: &slots::Message, begin: usize| {
            let tensor = |entry: &slots::layout::Entry| {
                let words = [base, slot, stride, begin as u64 + u64::from(entry.offset)];
                // SAFETY: the core keeps the slots and the turn, whose slot is one of them.
                unsafe { SlotTensor::new(words, entry.length as usize, core.clone()) }
            };
            message.entries().iter().map(tensor).collect()
        };
        let answers = of(&core.geometry.answer, core.geometry.answer_offset());
        SlotTensors { inputs: of(&core.geometry.request, 0), outputs: answers }
    }

    fn resident(&self, model: ResidentModel) -> Result<Arc<Resident>, ServedError> {
        let kernel = (SOURCE, "serve");
        #[cfg(test)]
        let kernel = self.planted.map_or(kernel, |(_, source, name)| (source, name));
        let (source, name) = kernel;
        Ok(Arc::new(Resident::new(&self.core, &source, name, model)?))
    }

    /// Has its turns in one kernel that stays on the machine, with a model of that machine that works in [`Self::tensors`]. Threads that
    /// wait are the model's; what the setting says of threads is not used. Error also: the setting has buffers of the model's.
    pub fn start_resident(&mut self, model: ResidentModel) -> Result<(), ServedError> {
        self.prepare_resident(model)?;
        self.start()
    }

    /// As [`Self::start_resident`], and does not start.
    pub fn prepare_resident(&mut self, model: ResidentModel) -> Result<(), ServedError> {
        self.is_new()?;
        if !self.core.told.in_slots {
            return refuse(
                "the setting has inputs and outputs of the model's own, and the kernel that stays has none",
            );
        }
        let kernel = self.resident(model)?;
        self.ends(self.core.shared.kernel_address())?;
        self.runs = Runs::Resident { kernel, thread: None, has_ended: Arc::default() };
        Ok(())
    }

    /// Runs a model alone so many times by the same kernel, which waits for nothing and sends nothing: how long a run took by the GPU's
    /// clock, for measurements. The slot of the turn before is the model's, or the spare one. Error also: the pipeline has its turns.
    pub fn run_alone(&mut self, model: ResidentModel, runs: u64) -> Result<Duration, ServedError> {
        if runs == 0 || self.may_run() {
            return refuse("no run, or the pipeline has its turns");
        }
        self.resident(model)?.launch(&self.core, runs)?.ended()?;
        let turn: db_turn = self.core.turn.get(0)?;
        Ok(Duration::from_nanos(turn.sent_ns.saturating_sub(turn.begun_ns) / runs))
    }
}
