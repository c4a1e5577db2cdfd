//! Pipelines with a block that stays on the GPU: with the model in its kernel, which works in the slots
//! (`kernels/serve.cu`, `gpu-persistent`), or beside graphs that launch themselves (`gpu-ahead`).

use std::sync::Arc;
use std::time::Duration;

use gpu::{ResidentModel, SlotTensors};
use rdma_shim::kernel::Source;

use super::ahead_kernel::{Ahead, turn_address};
use super::launch::{IO_BLOCK, KERNELS};
use super::layout::db_turn;
use super::resident_kernel::Resident;
use super::runs::{Runs, Threaded};
use super::{Served, ServedError, by_cpu, refuse};

/// The kernel.
pub(super) const SOURCE: Source = Source {
    name: "serve.cu",
    text: include_str!("../../kernels/serve.cu"),
    headers: IO_BLOCK,
    twin: &KERNELS,
};

impl Served {
    /// Where the model's tensors lie in the slots.
    pub fn tensors(&self) -> SlotTensors {
        self.core.tensors(self.core.told.turn)
    }

    fn resident(&self, model: ResidentModel) -> Result<Arc<Resident>, ServedError> {
        let kernel = (SOURCE, "serve");
        #[cfg(test)]
        let kernel = self.planted.map_or(kernel, |(_, source, name)| (source, name));
        let (source, name) = kernel;
        Ok(Arc::new(Resident::new(&self.core, &source, name, model)?))
    }

    /// Has its turns in one kernel that stays on the machine, from [`Self::start`] on, with a model of that
    /// machine that works in [`Self::tensors`]. Threads that wait are the model's; the setting's are not
    /// used. Error also: the setting has buffers of the model's.
    pub fn prepare_resident(&mut self, model: ResidentModel) -> Result<(), ServedError> {
        self.is_new()?;
        if !self.core.told.in_slots {
            return refuse(
                "the setting has inputs and outputs of the model's own, and the kernel that stays has none",
            );
        }
        let kernel = self.resident(model)?;
        self.ends(self.core.shared.kernel_address())?;
        self.runs = Runs::by_thread(Threaded::Resident(kernel));
        Ok(())
    }

    /// Runs a model alone so many times by the same kernel, without waits or sends: a run's time by the GPU's
    /// clock. The slot of the turn before is the model's, or the spare one. Error also: it has its turns.
    pub fn run_alone(&mut self, model: ResidentModel, runs: u64) -> Result<Duration, ServedError> {
        if runs == 0 || self.may_run() {
            return refuse("no run, or the pipeline has its turns");
        }
        self.resident(model)?.launch(&self.core, runs)?.ended()?;
        let turn: db_turn = self.core.turn.get(0)?;
        Ok(Duration::from_nanos(turn.sent_ns.saturating_sub(turn.begun_ns) / runs))
    }

    /// Where the model's tensors lie in the slots that [`Self::prepare_ahead`] takes.
    pub fn tensors_ahead(&self) -> SlotTensors {
        self.core.tensors(turn_address(&self.core))
    }

    /// Has its turns by one block that looks ahead and two graphs, from [`Self::start`] on. A GPU's model
    /// without buffers works in [`Self::tensors_ahead`]; the host twin's has buffers, and a thread its turns.
    pub fn prepare_ahead(&mut self, model: by_cpu::Model) -> Result<(), ServedError> {
        self.is_new()?;
        let core = &*self.core;
        let ahead = match model {
            by_cpu::Model::Recorded(model) if core.machine.is_gpu() => Ahead::on_gpu(core, model)?,
            by_cpu::Model::Called(model) if !core.machine.is_gpu() && !core.told.in_slots => {
                Ahead::on_twin(core, model)?
            }
            by_cpu::Model::Called(_) if core.told.in_slots => {
                return refuse("the host twin's model copies from and to buffers, and the setting has none");
            }
            _ => {
                return refuse("a model of another kind of machine: one that is called is the twin's");
            }
        };
        self.ends(self.core.shared.kernel_address())?;
        self.runs = Runs::by_thread(Threaded::Ahead(Arc::new(ahead)));
        Ok(())
    }
}
