//! The models that are served, each on an engine of its own.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use cli::{sentence, speaks_to_people};
use gpu::{Gpu, ResidentModel, SlotTensors, Toolkit};
use inference::engine::Engine;
use inference::engine::gpu::{Instance, Libraries, Loaded, fastest, start_again};
use inference::engine::onnx_runtime::Runtime;
use inference::engine::resident::TwinResident;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::plan::{Format, Layout, Plan, Precision};
use pipeline::Mode;
use rdma_shim::kernel::{HostMemory, Machine};
use slots::{Geometry, Message};
use zoo::{Manifest, Store};

use crate::options::{self, Options};

/// A model that is ready to run.
pub struct Model {
    pub name: String,
    pub geometry: Geometry,
    /// None where it is computed elsewhere.
    engine: Option<Box<dyn Engine>>,
}

impl Model {
    /// The geometry of each model that was asked for, numbered in the order of the command line.
    pub fn geometries(options: &Options) -> Result<Vec<(Manifest, Geometry)>> {
        let one = |(number, name): (u32, &String)| {
            let (manifest, _) = Manifest::find(name, options.manifests.as_deref())?;
            let geometry = serving::model::geometry(&manifest, number)?;
            Ok((manifest, geometry))
        };
        (0..).zip(&options.models).map(one).collect()
    }

    /// Loads a model and runs it as often as was asked for.
    pub fn load(options: &Options, manifest: &Manifest, geometry: Geometry) -> Result<Model> {
        let (file, weights) = file(options, manifest)?;
        let mut engine: Box<dyn Engine> = match options.engine {
            options::Engine::Onnx => {
                let runtime = Runtime::load(options.onnxruntime.as_deref())
                    .context("--engine onnx; --engine twin needs no library, and is slow")?;
                Box::new(runtime.model(&file, options.threads.into())?)
            }
            options::Engine::Twin => Box::new(Twin::new(plan(&file, &weights)?)?),
            options::Engine::Gpu => anyhow::bail!("--engine gpu computes beside this thread"),
        };
        warm_up(options, &manifest.name, &geometry, &mut *engine)?;
        Ok(Model { name: manifest.name.clone(), geometry, engine: Some(engine) })
    }

    /// A model whose requests are offloaded.
    pub fn elsewhere(name: String, geometry: Geometry) -> Model {
        Model { name, geometry, engine: None }
    }

    /// As a pipeline wants it.
    pub fn run(&mut self, inputs: &[Vec<f32>], outputs: &mut Vec<Vec<f32>>) -> Result<(), String> {
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let engine = self.engine.as_mut().ok_or("it is computed elsewhere")?;
        engine.run_into(&inputs, outputs).map_err(|error| error.to_string())
    }
}

/// The model's ONNX file, and where its weights are from.
fn file(options: &Options, manifest: &Manifest) -> Result<(Vec<u8>, String)> {
    let (_, folder) = Manifest::find(&manifest.name, options.manifests.as_deref())?;
    let store = options.store.as_ref().map_or_else(|| Store::beside(&folder), Store::at);
    Ok(store.seeded(manifest)?)
}

/// The model's plan for each order of an image's axes; a slot's tensors stay as clients know them.
fn plans(file: &[u8], weights: &str, layouts: &[Layout]) -> Result<Vec<Plan>> {
    let graph = import(file, 1).with_context(|| weights.to_owned())?;
    let format = |&layout| Format { precision: Precision::Single, layout };
    let plan = |layout| Plan::in_format(&graph, format(layout)).with_context(|| weights.to_owned());
    layouts.iter().map(plan).collect()
}

/// The plan in NCHW, for the host twin and the kernel that stays.
fn plan(file: &[u8], weights: &str) -> Result<Plan> {
    Ok(plans(file, weights, &[Layout::ChannelsFirst])?.remove(0))
}

fn warm_up(options: &Options, name: &str, geometry: &Geometry, engine: &mut dyn Engine) -> Result<()> {
    let zeros = |entry: &slots::layout::Entry| vec![0.0; entry.length as usize / size_of::<f32>()];
    let inputs: Vec<Vec<f32>> = geometry.request.entries().iter().map(zeros).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    for _ in 0..options.warmup {
        engine.run(&inputs).with_context(|| format!("--warmup of {name}"))?;
    }
    Ok(())
}

/// A model between other kernels: what runs it, and its inputs' and outputs' addresses, as kernels see them.
pub struct Recorded {
    pub runs: Runs,
    pub inputs: Vec<u64>,
    pub outputs: Vec<u64>,
}

pub enum Runs {
    Gpu(Box<Instance>),
    Twin(Box<dyn FnMut() -> Result<(), String> + Send>),
    /// It works in the slots.
    InSlots(InSlots),
}

/// A model that needs to know where the slots lie: for a graph that launches itself, or a resident kernel.
pub enum InSlots {
    Gpu(Arc<Loaded>),
    Twin(Box<Plan>),
}

impl InSlots {
    /// The model in a resident kernel, with these slot tensors. Errors: a library's step; no memory.
    pub fn resident(&self, slots: &SlotTensors) -> Result<ResidentModel> {
        Ok(match self {
            InSlots::Gpu(loaded) => inference::engine::gpu::Resident::new(loaded, Some(slots))?.into(),
            InSlots::Twin(plan) => TwinResident::new((**plan).clone(), Some(slots), 1)?.into(),
        })
    }

    /// The model for a graph; the twin has none. Warmed up as often as `options` say, in the spare slot.
    pub fn recorded(&self, options: &Options, slots: &SlotTensors) -> Result<Box<Instance>> {
        let InSlots::Gpu(loaded) = self else { anyhow::bail!("the host twin has no graphs") };
        let instance = Instance::in_slots(loaded, slots)?;
        instance.launch(options.warmup as usize)?;
        instance.wait()?;
        Ok(Box::new(instance))
    }
}

impl Runs {
    /// As what is offloaded takes it.
    pub fn model(self) -> Result<pipeline::gpu::by_cpu::Model> {
        match self {
            Runs::Gpu(instance) => Ok(pipeline::gpu::by_cpu::Model::Recorded(instance)),
            Runs::Twin(run) => Ok(pipeline::gpu::by_cpu::Model::Called(run)),
            Runs::InSlots(_) => anyhow::bail!("a model in the slots is of a mode whose kernels wait"),
        }
    }
}

impl Recorded {
    /// Loads a model for kernels that wait. On a GPU, or in a resident kernel, it works in the slots.
    /// Elsewhere it is warmed up as often as `options` say.
    pub fn load(
        options: &Options,
        machine: &Machine,
        manifest: &Manifest,
        geometry: &Geometry,
    ) -> Result<Recorded> {
        let (file, weights) = file(options, manifest)?;
        let stays = options.mode == Mode::GpuPersistent;
        let in_slots = match (machine.is_gpu(), stays) {
            (false, false) => {
                return Recorded::on_twin(options, machine, manifest, geometry, plan(&file, &weights)?);
            }
            (false, true) => InSlots::Twin(Box::new(plan(&file, &weights)?)),
            (true, true) => {
                let plans = vec![plan(&file, &weights)?];
                InSlots::Gpu(loaded(options, manifest, plans, &Libraries::none())?)
            }
            (true, false) => InSlots::Gpu(loaded_fastest(options, manifest, &file, &weights)?),
        };
        Ok(Recorded { runs: Runs::InSlots(in_slots), inputs: Vec::new(), outputs: Vec::new() })
    }

    /// Loads so many instances of it with buffers of their own, which share the weights on a GPU.
    pub fn load_several(
        options: &Options,
        machine: &Machine,
        manifest: &Manifest,
        geometry: &Geometry,
        count: usize,
    ) -> Result<Vec<Recorded>> {
        let (file, weights) = file(options, manifest)?;
        if machine.is_gpu() {
            let loaded = loaded_fastest(options, manifest, &file, &weights)?;
            return Recorded::on_gpu(options, manifest, geometry, &loaded, count);
        }
        let one = |_| Recorded::on_twin(options, machine, manifest, geometry, plan(&file, &weights)?);
        (0..count).map(one).collect()
    }

    fn on_twin(
        options: &Options,
        machine: &Machine,
        manifest: &Manifest,
        geometry: &Geometry,
        plan: Plan,
    ) -> Result<Recorded> {
        let mut twin = Twin::new(plan)?;
        warm_up(options, &manifest.name, geometry, &mut twin)?;
        let memories = |message: &Message| {
            let memory = |entry: &slots::layout::Entry| machine.host_memory(entry.length as usize);
            message.entries().iter().map(memory).collect::<Result<Vec<_>, _>>()
        };
        let (inputs, outputs) = (memories(&geometry.request)?, memories(&geometry.answer)?);
        let addresses = |all: &[HostMemory]| all.iter().map(HostMemory::kernel_address).collect();
        let (input_addresses, output_addresses) = (addresses(&inputs), addresses(&outputs));
        let lengths = |message: &Message| -> Vec<usize> {
            message.entries().iter().map(|entry| entry.length as usize).collect()
        };
        let (taken, made) = (lengths(&geometry.request), lengths(&geometry.answer));
        let run = move || {
            run_twin(&mut twin, (&inputs, &taken), (&outputs, &made)).map_err(|error| sentence(&error))
        };
        Ok(Recorded { runs: Runs::Twin(Box::new(run)), inputs: input_addresses, outputs: output_addresses })
    }

    fn on_gpu(
        options: &Options,
        manifest: &Manifest,
        geometry: &Geometry,
        loaded: &Arc<Loaded>,
        count: usize,
    ) -> Result<Vec<Recorded>> {
        let one = |_| {
            let mut instance = Instance::new(loaded)?;
            warm_up(options, &manifest.name, geometry, &mut instance)?;
            let [inputs, outputs] = instance.addresses();
            Ok(Recorded { runs: Runs::Gpu(Box::new(instance)), inputs, outputs })
        };
        (0..count).map(one).collect()
    }
}

/// The model by the libraries that are found, in the faster order of an image's axes.
fn loaded_fastest(options: &Options, manifest: &Manifest, file: &[u8], weights: &str) -> Result<Arc<Loaded>> {
    let plans = plans(file, weights, &[Layout::ChannelsFirst, Layout::ChannelsLast])?;
    loaded(options, manifest, plans, &Libraries::if_found(None))
}

fn loaded(
    options: &Options,
    manifest: &Manifest,
    plans: Vec<Plan>,
    libraries: &Libraries,
) -> Result<Arc<Loaded>> {
    let gpu = options.gpu.gpu.map_or_else(Gpu::first, Gpu::of_ordinal)?;
    let toolkit = Toolkit::find(options.gpu.cuda.as_deref())?;
    let fastest = fastest(gpu, &toolkit, plans, libraries)
        .map_err(start_again)
        .with_context(|| format!("{} on the GPU", manifest.name))?;
    if speaks_to_people(options.json.as_deref()) {
        for (Format { layout, .. }, period) in &fastest.periods {
            say!("{}, {layout:?}: {period:.1?} a run; the fastest serves", manifest.name);
        }
    }
    Ok(fastest.loaded)
}

fn run_twin(
    twin: &mut Twin,
    (inputs, taken): (&[HostMemory], &[usize]),
    (outputs, made): (&[HostMemory], &[usize]),
) -> Result<()> {
    let read = |(memory, length): (&HostMemory, &usize)| {
        let mut bytes = vec![0; *length];
        memory.read(0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    };
    let tensors: Vec<Vec<f32>> = inputs.iter().zip(taken).map(read).collect::<Result<_>>()?;
    let tensors: Vec<&[f32]> = tensors.iter().map(Vec::as_slice).collect();
    let results = twin.run(&tensors)?;
    for ((memory, length), result) in outputs.iter().zip(made).zip(results) {
        let bytes: Vec<u8> = result.iter().flat_map(|value| value.to_le_bytes()).collect();
        memory.write(0, bytes.get(..*length).context("an output is too short")?)?;
    }
    Ok(())
}
