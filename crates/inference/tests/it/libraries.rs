//! Steps by cuDNN and cuBLASLt on a GPU: every model by layers against ONNX Runtime, launched by the host or
//! itself; each step's timed ways. A test is a model and batch: a run can name it; formats share references.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::gpu::cublaslt::{self, CublasLt, Product};
use ::gpu::cudnn::Arithmetic;
use ::gpu::{Context, End, Gpu, Toolkit};
use inference::engine::gpu::{By, Chosen, Instance, Libraries, Library, Loaded, start_again};
use inference::engine::onnx_runtime::Runtime;
use inference::engine::{Engine, EngineError};
use inference::graph::{Graph, Op};
use inference::import::import;
use inference::layers::{Layers, Random, distance, tolerance};
use inference::plan::{Format, Layout, Plan, Precision, Step, Task};
use measure::need;
use prost::Message;
use zoo::Architecture;
use zoo::onnx::Attribute;

use crate::files::File;
use crate::models::{MODELS, SUPER_RESOLUTION_1, SUPER_RESOLUTION_3, SUPER_RESOLUTION_4};

pub const FORMATS: [Format; 5] = [
    Format { precision: Precision::Single, layout: Layout::ChannelsFirst },
    Format { precision: Precision::Single, layout: Layout::ChannelsLast },
    Format { precision: Precision::Tf32, layout: Layout::ChannelsFirst },
    Format { precision: Precision::Tf32, layout: Layout::ChannelsLast },
    Format { precision: Precision::Half, layout: Layout::ChannelsLast },
];

/// A file for one batch, inputs of chance, and what ONNX Runtime computes for them.
pub struct Referenced {
    pub name: String,
    pub file: Vec<u8>,
    pub batch: usize,
    pub graph: Graph,
    pub inputs: Vec<Vec<f32>>,
    pub layers: Layers,
}

impl Referenced {
    pub fn new(runtime: &Runtime, name: &str, file: Vec<u8>, batch: usize) -> Referenced {
        let graph = import(&file, batch).expect("it is imported");
        let mut random = Random(3);
        let inputs: Vec<Vec<f32>> =
            graph.inputs.iter().map(|&id| random.tensor(graph.shape(id).count())).collect();
        let views: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let layers = Layers::compute(runtime, &file, &graph, &views).expect("it runs");
        Referenced { name: name.to_owned(), file, batch, graph, inputs, layers }
    }

    pub fn inputs(&self) -> Vec<&[f32]> {
        self.inputs.iter().map(Vec::as_slice).collect()
    }

    /// What is wrong with a plan's comparison: only a load, which writes an input, has no reference.
    fn not_compared(&self, plan: &Plan) -> Vec<String> {
        let lacks = |step: &&Step| self.layers.of(step).is_none() != matches!(step.task, Task::Load { .. });
        let said =
            |step: &Step| format!("{}: its reference is missing, or is one of a load", step.names.join(" "));
        plan.steps.iter().filter(lacks).map(said).collect()
    }
}

/// The model of a file with cuDNN, all ways timed again or as they were kept.
fn load(
    gpu: Gpu,
    file: &[u8],
    batch: usize,
    format: Format,
    again: bool,
) -> Result<Arc<Loaded>, EngineError> {
    let toolkit = Toolkit::find(None).expect("a GPU's machine has a toolkit");
    let graph = import(file, batch).expect("it is imported");
    let plan = Plan::in_format(&graph, format)?;
    let libraries = Libraries::needed(None);
    let libraries = if again { libraries.again() } else { libraries };
    Loaded::new(gpu, toolkit, plan, &libraries).map_err(start_again)
}

/// Whether cuDNN is here.
pub fn cudnn(gpu: Gpu) -> Result<String, String> {
    let file = File::new(&[1, 8, 6, 6]).weights("w", &[8, 8, 3, 3]).node("Conv", &["x", "w"], "y", &[]);
    match load(gpu, &file.bytes("y"), 1, Format::default(), true) {
        Ok(loaded) => Ok(loaded.libraries().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// What was timed for each step, steps that are alike once.
fn print_tried(loaded: &Loaded) {
    let mut printed: Vec<String> = Vec::new();
    for (step, Chosen { by, workspace, tried }) in loaded.plan().steps.iter().zip(loaded.chosen()) {
        let all = format!("{tried:?}");
        if tried.is_empty() || printed.contains(&all) {
            continue;
        }
        println!("STEP {} {} -> {}: {by}, {workspace} B", step.names.join(" "), step.from, step.to);
        for one in tried {
            let said = match &one.time {
                Ok(time) => format!("{:8.2} µs", micros(*time)),
                Err(error) => format!("no: {error}"),
            };
            println!(
                "  TRIED {said}  {:.1e}  {} B, ready in {:.1?}  {}",
                one.distance, one.workspace, one.made_in, one.by
            );
        }
        printed.push(all);
    }
}

/// Everything of one model in one format, printed; problems are collected, so that a run shows all of them.
fn examine(gpu: Gpu, model: &Referenced, format: Format, problems: &mut Vec<String>) {
    let Referenced { name, file, batch, .. } = model;
    let what = format!("{name}, {:?} {:?}, batch {batch}", format.precision, format.layout);
    println!("MODEL {what}");
    let since = Instant::now();
    let loaded = match load(gpu, file, *batch, format, true) {
        Ok(loaded) => loaded,
        Err(error) => return problems.push(format!("{what}: loading: {error}")),
    };
    println!(
        "LOADED in {:.1?}, all ways timed; {}, workspace {} B",
        since.elapsed(),
        loaded.libraries(),
        loaded.workspace()
    );
    print_tried(&loaded);
    if let Err(error) = compare(&loaded, model, &what, problems) {
        problems.push(format!("{what}: {error}"));
    }
    drop(loaded);
    let since = Instant::now();
    let again = load(gpu, file, *batch, format, false).and_then(|loaded| {
        let kept = loaded.chosen().iter().all(|chosen| chosen.tried.is_empty());
        let by_library = loaded.chosen().iter().filter(|chosen| chosen.by != By::Own).count();
        println!("AGAIN in {:.1?}, {by_library} steps by a library, choices kept: {kept}", since.elapsed());
        Instance::new(&loaded).map(|_| kept)
    });
    match again {
        Ok(false) => problems.push(format!("{what}: every way was timed again")),
        Ok(true) => println!("AGAIN with an instance in {:.1?}", since.elapsed()),
        Err(error) => problems.push(format!("{what}: loading again: {error}")),
    }
}

/// Compares every step with the reference, and prints the largest distance beside the tolerance.
fn compare_steps(
    instance: &mut Instance,
    plan: &Plan,
    model: &Referenced,
    what: &str,
    problems: &mut Vec<String>,
) -> Result<(), EngineError> {
    let (precision, limit) = (plan.format.precision, tolerance(plan.format.precision));
    problems.extend(model.not_compared(plan).into_iter().map(|step| format!("{what}: {step}")));
    let (mut worst, mut compared) = ((0.0, "none".to_owned()), 0);
    for (at, step) in plan.steps.iter().enumerate() {
        let written = instance.step(at)?;
        let Some(wanted) = model.layers.of(step) else { continue };
        let (apart, names) = (distance(precision, &written, wanted), step.names.join(" "));
        compared += 1;
        if apart >= limit {
            problems.push(format!("{what}: step {at} {names}: {apart:.1e}, {limit:.0e} is allowed"));
        }
        worst = if apart > worst.0 { (apart, names) } else { worst };
    }
    println!(
        "TABLE {what}: error {:.1e} of {limit:.0e} at most, in {compared} of {} steps ({})",
        worst.0,
        plan.steps.len(),
        worst.1
    );
    Ok(())
}

fn compare(
    loaded: &Arc<Loaded>,
    model: &Referenced,
    what: &str,
    problems: &mut Vec<String>,
) -> Result<(), EngineError> {
    let plan = loaded.plan().clone();
    let inputs = model.inputs();
    let mut instance = Instance::new(loaded)?;
    let found = instance.run(&inputs)?;
    compare_steps(&mut instance, &plan, model, what, problems)?;
    let mut periods = Vec::new();
    for _ in 0..5 {
        let since = Instant::now();
        instance.launch(100)?;
        instance.wait()?;
        periods.push(micros(since.elapsed()) / 100.0);
    }
    println!("PERIOD {} nodes, by the host {periods:.1?} µs", instance.node_count());
    let times = instance.step_times(5)?;
    for (time, step) in times.iter().zip(&plan.steps) {
        println!(
            "  TIME {:8.2} µs  {:24} {:>14} -> {:14} {}",
            micros(*time),
            step.task.to_string(),
            step.from.to_string(),
            step.to.to_string(),
            step.names.join(" ")
        );
    }
    println!("TIMES together {:.1} µs", times.iter().map(|time| micros(*time)).sum::<f64>());
    for (way, looped) in [
        ("by itself", instance.self_launching(100)),
        ("as a WHILE body", Instance::new(loaded)?.while_loop(100)),
    ] {
        let mut looped = match looped {
            Ok(looped) => looped,
            Err(error) => {
                problems.push(format!("{what}: {way}: {error}"));
                continue;
            }
        };
        looped.bring(&inputs)?;
        let mut periods = Vec::new();
        for _ in 0..3 {
            looped.wipe()?;
            let since = Instant::now();
            looped.start()?;
            let end = looped.graph().wait(Duration::from_secs(60))?;
            periods.push(micros(since.elapsed()) / 100.0);
            if end != End::LimitReached || looped.graph().turns() != 100 {
                problems.push(format!("{what}: {way}: {end:?} after {} turns", looped.graph().turns()));
            }
        }
        println!("PERIOD {way} {periods:.1?} µs");
        if looped.outputs()? != found {
            problems.push(format!("{what}: a run {way} leaves another result"));
        }
    }
    // Two side by side leave what each leaves alone.
    let (one, two) = (Instance::new(loaded)?, Instance::new(loaded)?);
    one.bring(&inputs)?;
    two.bring(&inputs)?;
    [&one, &two].into_iter().try_for_each(Instance::wipe)?;
    for _ in 0..20 {
        one.launch(1)?;
        two.launch(1)?;
    }
    for side in [&one, &two] {
        side.wait()?;
        if side.outputs()? != found {
            problems.push(format!("{what}: side by side another result"));
        }
    }
    Ok(())
}

/// The formats of a batch above 1: one of each precision.
const OF_BATCHES: [Format; 3] = [FORMATS[0], FORMATS[3], FORMATS[4]];

/// Fails with all problems.
fn none(problems: &[String]) {
    for problem in problems {
        println!("PROBLEM {problem}");
    }
    assert!(problems.is_empty(), "{} problems", problems.len());
}

fn all_formats(name: &str, file: &[u8], batch: usize) {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let version = need!(cudnn(gpu), reference, "cuDNN");
    let runtime = need!(Runtime::load(None), reference, "ONNX Runtime");
    println!("{name}: {version}");
    let (model, mut problems) = (Referenced::new(&runtime, name, file.to_vec(), batch), Vec::new());
    FORMATS.iter().for_each(|&format| examine(gpu, &model, format, &mut problems));
    none(&problems);
}

fn batch_of(name: &str, architecture: Architecture, batch: usize) {
    batch_in(&OF_BATCHES, name, architecture, batch);
}

/// These formats with a batch above 1: every step, and a run by itself. Choices of an earlier run are used.
fn batch_in(formats: &[Format], name: &str, architecture: Architecture, batch: usize) {
    let gpu = need!(Gpu::first(), "one CUDA device");
    need!(cudnn(gpu), reference, "cuDNN");
    let runtime = need!(Runtime::load(None), reference, "ONNX Runtime");
    let model = Referenced::new(&runtime, name, architecture.build(batch).encode_to_vec(), batch);
    let mut problems = Vec::new();
    for &format in formats {
        let what = format!("{name}, {:?} {:?}, batch {batch}", format.precision, format.layout);
        let mut each = || -> Result<(), EngineError> {
            let since = Instant::now();
            let loaded = load(gpu, &model.file, batch, format, false)?;
            println!("LOADED {what} in {:.1?}", since.elapsed());
            let mut instance = Instance::new(&loaded)?;
            let found = instance.run(&model.inputs())?;
            compare_steps(&mut instance, loaded.plan(), &model, &what, &mut problems)?;
            let mut looped = instance.self_launching(3)?;
            looped.wipe()?;
            looped.start()?;
            let end = looped.graph().wait(Duration::from_secs(60))?;
            if end != End::LimitReached || looped.outputs()? != found {
                problems.push(format!("{what}: a run by itself ends by {end:?} or leaves another result"));
            }
            Ok(())
        };
        if let Err(error) = each() {
            problems.push(format!("{what}: {error}"));
        }
    }
    none(&problems);
}

#[test]
fn gpu_own_kernels_alone_compute_every_model_as_onnx_runtime_does() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let runtime = need!(Runtime::load(None), reference, "ONNX Runtime");
    let toolkit = Toolkit::find(None).expect("a GPU's machine has a toolkit");
    let mut problems = Vec::new();
    for (name, architecture) in MODELS {
        let model = Referenced::new(&runtime, name, architecture.build(1).encode_to_vec(), 1);
        for format in [FORMATS[0], FORMATS[4]] {
            let what = format!("{name}, {:?}, own kernels alone", format.precision);
            let mut each = || -> Result<(), EngineError> {
                let plan = Plan::in_format(&model.graph, format)?;
                let loaded = Loaded::new(gpu, toolkit.clone(), plan, &Libraries::none())?;
                let mut instance = Instance::new(&loaded)?;
                instance.run(&model.inputs())?;
                compare_steps(&mut instance, loaded.plan(), &model, &what, &mut problems)
            };
            if let Err(error) = each() {
                problems.push(format!("{what}: {error}"));
            }
        }
    }
    none(&problems);
}

/// A check without a GPU of what its tests assert: in each format all steps but loads have a reference.
#[test]
fn every_step_but_a_load_has_a_reference_in_each_format() {
    let runtime = need!(Runtime::load(None), reference, "ONNX Runtime");
    let small = |architecture: Architecture| architecture.build(1).encode_to_vec();
    for (name, file, batch) in [
        ("one convolution", one_convolution(), 1),
        ("products", products(8), 8),
        ("pixel shuffle", crate::operators::shuffle(&[0, 1, 4, 2, 5, 3], &[1, 2, 12, 15]).bytes("y"), 1),
        ("squeezenet", small(Architecture::SqueezeNet), 1),
        ("super-resolution-3", small(SUPER_RESOLUTION_3), 1),
        ("mobilenet-v3-small", small(Architecture::MobileNetV3Small), 1),
        ("resnet50", small(Architecture::ResNet50), 1),
    ] {
        let model = Referenced::new(&runtime, name, file, batch);
        for format in FORMATS {
            let plan = Plan::in_format(&model.graph, format).expect("it is planned");
            assert_eq!(model.not_compared(&plan), [""; 0], "{name}: {format:?}");
        }
    }
}

fn one_convolution() -> Vec<u8> {
    let pads = [Attribute::ints("pads", &[1, 1, 1, 1])];
    let file = File::new(&[1, 32, 28, 28]).weights("w", &[64, 32, 3, 3]).weights("b", &[64]);
    let file = file.weights("v", &[64, 64, 1, 1]).weights("u", &[64, 1, 3, 3]);
    let file = file.node("Conv", &["x", "w", "b"], "c", &pads).node("Relu", &["c"], "r", &[]);
    let file = file.node("Conv", &["r", "v", "b"], "d", &[]).node("Add", &["d", "r"], "e", &[]);
    let file = file.node("HardSwish", &["e"], "h", &[]);
    let groups = [Attribute::int("group", 64), pads[0].clone()];
    file.node("Conv", &["h", "u"], "y", &groups).bytes("y")
}

#[test]
fn gpu_one_convolution_by_libraries() {
    all_formats("one convolution", &one_convolution(), 1);
}

/// A Gemm with a Relu, a Gemm with a bias alone, and one without.
fn products(batch: usize) -> Vec<u8> {
    let file = File::new(&[batch, 64]).weights("w", &[48, 64]).weights("b", &[48]);
    let file = file.weights("v", &[40, 48]).weights("a", &[40]).weights("u", &[40, 10]);
    let transposed = [Attribute::int("transB", 1)];
    let file = file.node("Gemm", &["x", "w", "b"], "c", &transposed).node("Relu", &["c"], "r", &[]);
    let file = file.node("Gemm", &["r", "v", "a"], "d", &transposed);
    file.node("MatMul", &["d", "u"], "y", &[]).bytes("y")
}

fn is_product(step: &Step) -> bool {
    matches!(step.task, Task::Compute { op: Op::Linear, .. })
}

#[test]
fn gpu_products_by_libraries() {
    let graph = import(&products(8), 8).expect("it is imported");
    let plan = Plan::in_format(&graph, FORMATS[4]).expect("it is planned");
    assert_eq!(plan.steps.iter().filter(|step| is_product(step)).count(), 3);
    let gpu = need!(Gpu::first(), "one CUDA device");
    let context = Context::new(gpu).expect("a context");
    let found = CublasLt::new(&context, None).map_err(|error| error.to_string());
    need!(found, reference, "cuBLASLt");
    for batch in [1, 8] {
        let file = products(batch);
        all_formats("products", &file, batch);
        for format in FORMATS {
            let loaded = load(gpu, &file, batch, format, true).expect("it was loaded before");
            for (step, chosen) in loaded.plan().steps.iter().zip(loaded.chosen()) {
                let of_cublaslt = |by: &By| matches!(by, By::Library { library: Library::CublasLt, .. });
                let good = chosen.tried.iter().any(|one| of_cublaslt(&one.by) && one.time.is_ok());
                assert!(good || !is_product(step), "{format:?}: no algorithm computes {:?}", step.names);
            }
            let kept = load(gpu, &file, batch, format, false).expect("it was loaded before");
            for (kept, chosen) in kept.chosen().iter().zip(loaded.chosen()) {
                assert!(kept.tried.is_empty(), "{format:?}: {} was timed again", chosen.by);
                assert_eq!((&kept.by, kept.workspace), (&chosen.by, chosen.workspace), "{format:?}");
            }
        }
    }
}

#[test]
fn gpu_algorithms_are_read_as_they_were_written_and_damaged_ones_are_refused() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let context = Context::new(gpu).expect("a context");
    let found = CublasLt::new(&context, None).map_err(|error| error.to_string());
    let cublaslt = need!(found, reference, "cuBLASLt");
    println!("cuBLASLt {} of {}", cublaslt.version().expect("a version"), cublaslt::VARIABLE);
    for arithmetic in [Arithmetic::Single, Arithmetic::Tf32, Arithmetic::Half] {
        let (strides, alignments) = ([64, 48], [16, 16]);
        let product = Product {
            arithmetic,
            rows: 8,
            inputs: 64,
            outputs: 48,
            strides,
            alignments,
            bias: true,
            relu: true,
        };
        let all = cublaslt.candidates(&product, 1 << 20).expect("candidates");
        assert!(!all.is_empty(), "{arithmetic:?}");
        for one in all {
            println!("{arithmetic:?} {}, {} B", one.name(), one.workspace());
            let (text, name) = (one.text(), one.name());
            let read = cublaslt.read(&product, &text).expect("what it wrote");
            assert_eq!((read.text(), read.name(), read.workspace()), (text.clone(), name, one.workspace()));
            for damaged in [&text[..56], &[0xff; 64], &[0x5a; 64]] {
                let said = cublaslt.read(&product, damaged).expect_err("a damaged one").to_string();
                assert!(said.starts_with("cuBLASLt: "), "{said}");
            }
        }
    }
}

#[test]
fn gpu_squeezenet_by_libraries() {
    all_formats("squeezenet", &Architecture::SqueezeNet.build(1).encode_to_vec(), 1);
}

#[test]
fn gpu_super_resolution_1_by_libraries() {
    all_formats("super-resolution-1", &SUPER_RESOLUTION_1.build(1).encode_to_vec(), 1);
}

#[test]
fn gpu_super_resolution_3_by_libraries() {
    all_formats("super-resolution-3", &SUPER_RESOLUTION_3.build(1).encode_to_vec(), 1);
}

#[test]
fn gpu_super_resolution_4_by_libraries() {
    all_formats("super-resolution-4", &SUPER_RESOLUTION_4.build(1).encode_to_vec(), 1);
}

#[test]
fn gpu_mobilenet_by_libraries() {
    all_formats("mobilenet-v3-small", &Architecture::MobileNetV3Small.build(1).encode_to_vec(), 1);
}

#[test]
fn gpu_resnet50_by_libraries() {
    all_formats("resnet50", &Architecture::ResNet50.build(1).encode_to_vec(), 1);
}

#[test]
fn gpu_squeezenet_by_libraries_at_batch_8() {
    batch_of("squeezenet", Architecture::SqueezeNet, 8);
}

#[test]
fn gpu_super_resolution_1_by_libraries_at_batch_8() {
    batch_of("super-resolution-1", SUPER_RESOLUTION_1, 8);
}

#[test]
fn gpu_super_resolution_4_by_libraries_at_batch_8() {
    batch_of("super-resolution-4", SUPER_RESOLUTION_4, 8);
}

#[test]
fn gpu_super_resolution_3_by_libraries_at_batch_8() {
    batch_of("super-resolution-3", SUPER_RESOLUTION_3, 8);
}

#[test]
fn gpu_mobilenet_by_libraries_at_batch_8() {
    batch_of("mobilenet-v3-small", Architecture::MobileNetV3Small, 8);
}

#[test]
fn gpu_resnet50_by_libraries_at_batch_8() {
    batch_of("resnet50", Architecture::ResNet50, 8);
}

#[test]
fn gpu_squeezenet_by_libraries_at_batch_32() {
    batch_of("squeezenet", Architecture::SqueezeNet, 32);
}

#[test]
fn gpu_super_resolution_3_by_libraries_at_batch_32() {
    batch_of("super-resolution-3", SUPER_RESOLUTION_3, 32);
}

#[test]
fn gpu_mobilenet_by_libraries_at_batch_32() {
    batch_of("mobilenet-v3-small", Architecture::MobileNetV3Small, 32);
}

#[test]
fn gpu_resnet50_by_libraries_at_batch_32() {
    batch_of("resnet50", Architecture::ResNet50, 32);
}

// 32 images of 640 × 480 pixels. In single precision a layer of 64 channels has 2.5 GB, the arena 5 GB, and
// the GPU holds four arenas while comparing ways: 20 GB. All reference values are 13 GB (×4: 14 GB), once in
// ONNX Runtime and once in the test. A process runs one precision: all would near the five-minute deadline.

#[test]
fn gpu_super_resolution_1_at_batch_32_in_single_precision_by_libraries() {
    batch_in(&OF_BATCHES[..1], "super-resolution-1", SUPER_RESOLUTION_1, 32);
}

#[test]
fn gpu_super_resolution_1_at_batch_32_in_tf32_by_libraries() {
    batch_in(&OF_BATCHES[1..2], "super-resolution-1", SUPER_RESOLUTION_1, 32);
}

#[test]
fn gpu_super_resolution_1_at_batch_32_in_half_precision_by_libraries() {
    batch_in(&OF_BATCHES[2..], "super-resolution-1", SUPER_RESOLUTION_1, 32);
}

#[test]
fn gpu_super_resolution_4_at_batch_32_in_single_precision_by_libraries() {
    batch_in(&OF_BATCHES[..1], "super-resolution-4", SUPER_RESOLUTION_4, 32);
}

#[test]
fn gpu_super_resolution_4_at_batch_32_in_tf32_by_libraries() {
    batch_in(&OF_BATCHES[1..2], "super-resolution-4", SUPER_RESOLUTION_4, 32);
}

#[test]
fn gpu_super_resolution_4_at_batch_32_in_half_precision_by_libraries() {
    batch_in(&OF_BATCHES[2..], "super-resolution-4", SUPER_RESOLUTION_4, 32);
}
