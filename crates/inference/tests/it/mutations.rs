//! One weight tensor at a time, changed by 5 % of its norm: its step's comparison with ONNX Runtime shows it.

use ::gpu::{Gpu, Toolkit};
use inference::engine::gpu::{Instance, Libraries, Loaded, start_again};
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::layers::{Random, distance, tolerance};
use inference::plan::{Plan, Source};
use measure::need;
use prost::Message;
use zoo::Architecture;

use crate::libraries::{FORMATS, Referenced, cudnn};
use crate::models::{FEW_PIXELS, SUPER_RESOLUTION_1, SUPER_RESOLUTION_3, SUPER_RESOLUTION_4};
use crate::operators::compiler;

/// Share of a tensor's norm by which it is changed.
const SHARE: f64 = 0.05;

/// An engine with a plan and inputs: runs the step of a number after those before it; returns its output.
type Steps = Box<dyn FnMut(usize) -> Vec<f32>>;

/// The steps with weights of their own, and the numbers of these.
fn layers(plan: &Plan) -> Vec<(usize, usize)> {
    let weights = |(at, step): (usize, &inference::plan::Step)| match step.reads.get(1) {
        Some(&Source::Constant(number)) => Some((at, number)),
        _ => None,
    };
    plan.steps.iter().enumerate().filter_map(weights).collect()
}

/// Changes one tensor after the other. The changed step must be at least ten tolerances away from the
/// reference, and each step before it within one.
fn every_change_is_seen(
    model: &Referenced,
    chosen: &[(usize, usize)],
    plan: &Plan,
    engine: &dyn Fn(Plan) -> Steps,
) {
    let limit = tolerance(plan.format.precision);
    let mut least = (f64::INFINITY, String::new());
    for &(at, number) in chosen {
        let mut changed = plan.clone();
        changed.constants[number] = Random(at as u64).perturb(&plan.constants[number], SHARE);
        let mut run = engine(changed);
        for (before, step) in plan.steps[..at].iter().enumerate() {
            let (found, names) = (run(before), step.names.join(" "));
            let Some(wanted) = model.layers.of(step) else { continue };
            let apart = distance(plan.format.precision, &found, wanted);
            assert!(apart < limit, "{}: {names} before the change: {apart:.1e}", model.name);
        }
        let names = plan.steps[at].names.join(" ");
        let wanted = model.layers.of(&plan.steps[at]).expect("a layer with weights has a reference");
        let apart = distance(plan.format.precision, &run(at), wanted);
        assert!(
            apart >= 10.0 * limit,
            "{}: a change in {names} would hardly be seen: {apart:.1e}",
            model.name
        );
        least = if apart < least.0 { (apart, names) } else { least };
    }
    println!(
        "TABLE {}: {:?}, batch {}: {} changed tensors seen, the least {:.1e} ({}), {limit:.0e} is allowed",
        model.name,
        plan.format.precision,
        model.batch,
        chosen.len(),
        least.0,
        least.1
    );
}

fn referenced(runtime: &Runtime, name: &str, architecture: Architecture) -> (Referenced, Plan) {
    let model = Referenced::new(runtime, name, architecture.build(1).encode_to_vec(), 1);
    let plan = Plan::in_format(&model.graph, FORMATS[0]).expect("it is planned");
    (model, plan)
}

/// The steps of a model on the GPU, by libraries where they are faster.
fn on_gpu(gpu: Gpu, model: &Referenced, plan: Plan) -> Steps {
    let toolkit = Toolkit::find(None).expect("a GPU's machine has a toolkit");
    let loaded = Loaded::new(gpu, toolkit, plan, &Libraries::needed(None)).map_err(start_again);
    let loaded = loaded.expect("it is loaded");
    let mut instance = Instance::new(&loaded).expect("there is memory");
    instance.bring(&model.inputs()).expect("they are the model's");
    Box::new(move |at| instance.step(at).expect("it runs"))
}

/// `tensors`: how many weights the model has.
fn all_of(name: &str, architecture: Architecture, tensors: usize) {
    let gpu = need!(Gpu::first(), "one CUDA device");
    need!(cudnn(gpu), reference, "cuDNN");
    let runtime = need!(Runtime::load(None), reference, "ONNX Runtime");
    let (model, plan) = referenced(&runtime, name, architecture);
    let chosen = layers(&plan);
    assert_eq!(chosen.len(), tensors, "{name}");
    every_change_is_seen(&model, &chosen, &plan, &|plan| on_gpu(gpu, &model, plan));
}

#[test]
fn gpu_squeezenet_by_libraries_with_changed_weights_of_each_layer_is_seen() {
    all_of("squeezenet", Architecture::SqueezeNet, 26);
}

#[test]
fn gpu_super_resolution_3_by_libraries_with_changed_weights_of_each_layer_is_seen() {
    all_of("super-resolution-3", SUPER_RESOLUTION_3, 4);
}

// A process each: libraries may lose its context, and loading a model fifty times takes long
// (`xtask/src/test/gpu/programs.rs` has the rule).

#[test]
fn gpu_super_resolution_1_with_changed_weights_of_each_layer_by_libraries_is_seen() {
    all_of("super-resolution-1", SUPER_RESOLUTION_1, 4);
}

#[test]
fn gpu_super_resolution_4_with_changed_weights_of_each_layer_by_libraries_is_seen() {
    all_of("super-resolution-4", SUPER_RESOLUTION_4, 4);
}

#[test]
fn gpu_mobilenet_with_changed_weights_of_each_layer_by_libraries_is_seen() {
    all_of("mobilenet-v3-small", Architecture::MobileNetV3Small, 54);
}

#[test]
fn gpu_resnet50_with_changed_weights_of_each_layer_by_libraries_is_seen() {
    all_of("resnet50", Architecture::ResNet50, 54);
}

/// The same without a GPU: the twin in its place.
#[test]
fn changed_weights_of_each_layer_of_a_small_model_are_seen() {
    need!(compiler(), "a C++ compiler");
    let runtime = need!(Runtime::load(None), reference, "ONNX Runtime");
    let (model, plan) = referenced(&runtime, "super-resolution-1, 24x20", FEW_PIXELS);
    let chosen = layers(&plan);
    assert_eq!(chosen.len(), 4);
    every_change_is_seen(&model, &chosen, &plan, &|plan| {
        let mut twin = Twin::new(plan).expect("there is a compiler");
        twin.bring(&model.inputs()).expect("they are the model's");
        Box::new(move |at| twin.step(at).expect("it runs"))
    });
}
