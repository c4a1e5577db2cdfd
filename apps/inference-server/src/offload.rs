//! Models that a GPU computes while the CPU waits for requests: `cpu-gpu`, and the baselines of figure 6.

use anyhow::{Context as _, Result};
use pipeline::Mode;
use pipeline::cpu::{Memory, Offload, Served};
use pipeline::gpu::baseline::{Fair, Faithful, Instance};
use pipeline::gpu::by_cpu::{Setting, Turns};
use rdma_shim::kernel::Machine;
use slots::Geometry;
use zoo::Manifest;

use crate::model::Recorded;
use crate::options::{Baseline, Options};

/// The slots of a model, and what computes out of them on the machine.
pub fn served(
    options: &Options,
    machine: &Machine,
    manifest: &Manifest,
    geometry: &Geometry,
) -> Result<Served> {
    let pageable = Memory::new(geometry.clone(), options.slots)?;
    let load = |count| Recorded::load_several(options, machine, manifest, geometry, count);
    let one = || load(1)?.pop().context("no instance of the model");
    let (memory, offload): (Memory, Box<dyn Offload>) = match (options.mode, options.baseline()) {
        (Mode::CpuGpu, _) => {
            let memory = pageable.shown_to(machine)?;
            let Recorded { runs, inputs, outputs } = one()?;
            let copying = if machine.is_gpu() { [8, 256] } else { [1, 32] };
            let setting = Setting {
                slots: &memory,
                slot_count: options.slots,
                clients: options.clients.into(),
                inputs: &inputs,
                outputs: &outputs,
                copying,
            };
            let mut turns = Turns::new(machine, &setting, runs.model()?)?;
            if let Some(credits) = options.credits {
                turns.limit(credits)?;
            }
            (memory, Box::new(turns))
        }
        (_, Baseline::Fair) => {
            let memory = pageable.shown_to(machine)?;
            let mut all = load(2)?.into_iter();
            let [first, second] = [all.next(), all.next()].map(|one| one.context("no instance of the model"));
            let fair = Fair::new(machine, &memory, [instance(first?)?, instance(second?)?])?;
            (memory, Box::new(fair))
        }
        (_, Baseline::Faithful) => {
            let faithful = Faithful::new(machine, &pageable, options.slots, instance(one()?)?)?;
            (pageable, Box::new(faithful))
        }
    };
    Ok(Served::with(memory, options.slots, Some(offload))?)
}

fn instance(Recorded { runs, inputs, outputs }: Recorded) -> Result<Instance> {
    Ok(Instance { inputs, outputs, model: runs.model()? })
}
