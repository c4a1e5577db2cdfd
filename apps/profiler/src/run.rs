//! `profiler run`: a model again and again, alone or several instances side by side, timed and compared with
//! a run alone.
//!
//! Every instance has inputs of its own. What one computes beside others must be, bit for bit, what it
//! computed alone.

use std::fs;
use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use inference::engine::Engine as _;
use inference::engine::gpu::Instance;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use measure::json_lines::JsonLines;
use measure::{Label, Provenance};

use crate::energy::Meter;
use crate::engine::{Engine, name};
use crate::format::Layout;
use crate::model::{Model, views};
use crate::report::{self, Facts};
use crate::run_options::{Launch, Options};
use crate::start::Start;
use crate::subject::{CalledEngine, Launched, OnGpu, Subject};
use crate::together::{Alone, side_by_side};
use crate::turns::by_themselves;

/// Runs that `--launch graph` puts into a stream before it waits.
const ENQUEUED: usize = 100;
/// Outputs of a GPU's instance are compared after so many waits, and after the last one: to copy them takes
/// time.
const COMPARED_EVERY: u64 = 64;
/// Runs alone that are timed by the GPU, as many as last about so long.
const SPANS: Range<usize> = 10..200;
const SPANNED: Duration = Duration::from_millis(300);

/// Whether every instance computed what it computes alone.
pub fn run(options: &Options) -> Result<bool> {
    let (engine, taken) = options.engine();
    let on_a_gpu = engine.is_on_a_gpu();
    ensure!(
        on_a_gpu || options.launch.is_none(),
        "--launch is for --engine own and cuda: other engines are called"
    );
    ensure!(
        engine == Engine::Cpu || options.threads.is_none(),
        "--threads is for --engine cpu: the twin uses all cores, a GPU none"
    );
    options.gpu.check(engine)?;
    let formats = options.format.formats(engine)?;
    let connections = if on_a_gpu { Some(connections()?) } else { None };
    if let Some(taken) = taken {
        complain!("profiler: {taken}");
    }
    let mut start = Start::of_this_process();
    let model = Model::find(&options.model)?;
    start.part("import_plan");
    let mut provenance = Provenance::collect(&model.root, &[]);
    // Where results go is tried before the measurement, and is no part of the start.
    if let Some(path) = options.json.as_deref().filter(|path| *path != Path::new("-")) {
        JsonLines::append_to(path).with_context(|| format!("--json {}", path.display()))?;
    }
    if let Some(folder) = &options.outputs {
        fs::create_dir_all(folder).with_context(|| format!("--outputs {}", folder.display()))?;
    }
    start.skip();
    let mut plans = model.plans(&formats)?;
    start.part("import_plan");
    if std::io::stderr().is_terminal() {
        let (seconds, engine) = (options.seconds, name(engine));
        complain!("profiler: {} on {engine}: it is loaded, then timed for {seconds} s", model.manifest.name);
    }
    let layout = formats.first().map(|&format| Layout::of(format));
    let mut facts = Facts { layout, connections, ..Facts::default() };
    let no_gpu = Meter::none("no GPU runs the model");
    let together = match engine {
        Engine::Cpu => {
            let runtime = Runtime::load(options.model.onnxruntime.as_deref())?;
            let version = measure::provenance::library_version("libonnxruntime.so");
            let version = version.unwrap_or_else(|| "of unknown version".into());
            facts.libraries = format!("ONNX Runtime {version}");
            provenance.versions.insert("onnxruntime".into(), version);
            let shared = (provenance.cores / usize::from(options.instances)).max(1);
            let threads = options.threads.map_or(shared, usize::from);
            facts.threads = Some(threads);
            let make = |_| Ok(Box::new(runtime.model(&model.file, threads)?) as _);
            side_by_side(called(options, &model, &mut start, make)?, options, 1, &no_gpu)?
        }
        Engine::Twin => {
            provenance.gpu = Label::Emulated;
            facts.libraries = "none".into();
            facts.memory_of(&plans[0], 0);
            let plan = plans.swap_remove(0);
            let make = |_| Ok(Box::new(Twin::new(plan.clone())?) as _);
            side_by_side(called(options, &model, &mut start, make)?, options, 1, &no_gpu)?
        }
        Engine::Own | Engine::Cuda => {
            let on_gpu = OnGpu::load(&options.gpu, engine, plans, &mut start)?;
            (provenance.gpu, provenance.gpu_device) = (Label::Hardware, on_gpu.device.clone());
            provenance.versions.insert("cuda".into(), ::gpu::driver_version()?);
            let loaded = &on_gpu.loaded;
            facts.libraries = loaded.libraries().to_owned();
            facts.layout = Some(Layout::of(loaded.plan().format));
            facts.periods(&on_gpu.periods);
            facts.memory_of(loaded.plan(), loaded.workspace());
            let launch = options.launch.unwrap_or(Launch::ByItself);
            facts.launch = Some(launch);
            let instances = subjects(
                (options, &model, &mut start),
                |_| Ok(Instance::new(loaded)?),
                |instance, inputs| Ok(instance.run(&views(inputs))?),
            )?;
            let (span, turn) = alone(&instances[0].0, options.warmup)?;
            facts.span_ns = Some(span);
            facts.turn_ns = Some(turn).filter(|_| launch == Launch::ByItself);
            // What is found from here on was not left by the runs alone.
            instances.iter().try_for_each(|(instance, _)| instance.wipe())?;
            let meter = Meter::of(on_gpu.gpu);
            match launch {
                Launch::ByItself | Launch::While => by_themselves(instances, launch, options, &meter)?,
                Launch::Host | Launch::Graph => {
                    let times = if launch == Launch::Graph { ENQUEUED } else { 1 };
                    let launched = |(instance, alone): Alone<Instance>| {
                        (Box::new(Launched { instance, times }) as Box<dyn Subject>, alone)
                    };
                    let launched = instances.into_iter().map(launched).collect();
                    side_by_side(launched, options, COMPARED_EVERY, &meter)?
                }
            }
        }
    };
    facts.start_ms = start.ms();
    report::report((options, engine), &model, (facts, &start.line()), provenance, together)
}

/// How many connections CUDA is told to have.
fn connections() -> Result<u32> {
    let (connections, warning) = gpu::connections()?;
    if let Some(warning) = warning {
        complain!("profiler: {warning}");
    }
    Ok(connections)
}

/// The GPU's times in ns of one run alone that the host launches, and of one turn alone of the graph that
/// launches itself, behind a warm-up of so many seconds.
fn alone(instance: &Instance, warmup: f64) -> Result<(u64, u64)> {
    let (_, rough) = instance.spans(SPANS.start)?;
    let count = (SPANNED.as_nanos() / rough.as_nanos().max(1)) as usize;
    let count = count.clamp(SPANS.start, SPANS.end);
    let since = Instant::now();
    loop {
        let is_warm = since.elapsed() >= Duration::from_secs_f64(warmup);
        // One behind the other, so that both have the same clock.
        let (span, _) = instance.spans(count)?;
        let turn = instance.turn(count as u32)?;
        if is_warm {
            return Ok((span.as_nanos() as u64, turn.as_nanos() as u64));
        }
    }
}

/// Every instance with what it computes alone; the first one's answer ends the way from the start. `make` and
/// `compute` are given the seed of the instance's inputs, and these.
fn subjects<T>(
    (options, model, start): (&Options, &Model, &mut Start),
    make: impl Fn(u64) -> Result<T>,
    compute: impl Fn(&mut T, &[Vec<f32>]) -> Result<Vec<Vec<f32>>>,
) -> Result<Vec<Alone<T>>> {
    let mut all = Vec::new();
    for seed in 1..=u64::from(options.instances) {
        let inputs = model.inputs(seed);
        if seed == 1 {
            start.skip();
        }
        let mut subject = make(seed)?;
        if seed == 1 {
            start.part("graph");
        }
        let outputs = compute(&mut subject, &inputs)?;
        if seed == 1 {
            start.part("first_answer");
            let folder = options.outputs.as_deref();
            folder.map_or(Ok(()), |folder| write_all(folder, &inputs, &outputs))?;
        }
        all.push((subject, outputs));
    }
    Ok(all)
}

/// Instances of an engine that is called.
fn called(
    options: &Options,
    model: &Model,
    start: &mut Start,
    make: impl Fn(u64) -> Result<Box<dyn inference::engine::Engine + Send>>,
) -> Result<Vec<Alone<Box<dyn Subject>>>> {
    let made = |seed| Ok(Box::new(CalledEngine::new(make(seed)?, model.inputs(seed))) as Box<dyn Subject>);
    let compute = |called: &mut Box<dyn Subject>, _: &[Vec<f32>]| {
        called.runs()?;
        Ok(called.outputs()?.into_owned())
    };
    subjects((options, model, start), made, compute)
}

/// Writes tensors as `--outputs` says.
fn write_all(folder: &Path, inputs: &[Vec<f32>], outputs: &[Vec<f32>]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        for (name, tensors) in [("input", inputs), ("output", outputs)] {
            for (number, tensor) in tensors.iter().enumerate() {
                let bytes: Vec<u8> = tensor.iter().flat_map(|element| element.to_le_bytes()).collect();
                measure::write_whole(&folder.join(format!("{name}-{number}.f32")), &bytes)?;
            }
        }
        Ok(())
    };
    write().with_context(|| format!("--outputs {}", folder.display()))
}
