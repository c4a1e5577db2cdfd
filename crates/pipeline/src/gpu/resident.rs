//! A pipeline in one kernel that stays on the GPU (`kernels/serve.cu`), model in the slots: `gpu-persistent`.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use gpu::{ResidentModel, SlotTensor, SlotTensors};
use rdma_shim::kernel::Source;

use super::launch::{HEADERS, KERNELS};
use super::layout::db_turn;
use super::resident_kernel::Resident;
use super::runs::{Runs, Threaded};
use super::{Served, ServedError, refuse};

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
}
