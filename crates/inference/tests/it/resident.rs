//! Whole models in one resident kernel: the results are those of a launch a step, bit for bit.

use ::gpu::cache::Cache;
use ::gpu::{Arch, Form, Gpu, ImageBuilder, Toolkit, Unit};
use inference::engine::gpu::{Instance, Libraries, Loaded, Resident};
use inference::engine::resident::{TwinResident, units};
use inference::engine::twin::Twin;
use inference::engine::{Engine, has_twin};
use inference::import::import;
use inference::layers::Random;
use inference::plan::Plan;
use measure::need;
use prost::Message;
use zoo::Architecture;

use crate::models::{FEW_PIXELS, SUPER_RESOLUTION_1};
use crate::operators::{FORMATS, files_of_every_operator};

fn inputs(plan: &Plan, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    plan.inputs.iter().map(|shape| random.tensor(shape.count())).collect()
}

fn views(inputs: &[Vec<f32>]) -> Vec<&[f32]> {
    inputs.iter().map(Vec::as_slice).collect()
}

fn bits(outputs: &[Vec<f32>]) -> Vec<u32> {
    outputs.iter().flatten().map(|value| value.to_bits()).collect()
}

#[test]
fn operators_in_a_resident_kernel_compute_what_launches_do() {
    need!(has_twin(), "a C++ compiler");
    for (nth, (what, file, batch)) in files_of_every_operator().into_iter().enumerate() {
        let graph = import(&file, batch).unwrap();
        let format = FORMATS[nth % FORMATS.len()].0;
        let plan = Plan::in_format(&graph, format).unwrap();
        let inputs = inputs(&plan, 7);
        let wanted = Twin::new(plan.clone()).unwrap().run(&views(&inputs)).unwrap();
        let found = TwinResident::new(plan, None, 1 + nth as u32 % 3).unwrap().run(&views(&inputs)).unwrap();
        assert_eq!(bits(&found), bits(&wanted), "{what}: {format:?}");
    }
}

#[test]
fn a_model_is_not_made_for_slots_of_other_lengths() {
    need!(has_twin(), "a C++ compiler");
    let graph = import(&FEW_PIXELS.build(1).encode_to_vec(), 1).unwrap();
    let plan = Plan::in_format(&graph, FORMATS[0].0).unwrap();
    let error = TwinResident::new(plan, Some(&gpu::SlotTensors::default()), 1).unwrap_err().to_string();
    assert_eq!(error, "slots have [] bytes of inputs, the model [1920]");
}

/// A resident kernel of another crate.
const CALLER: &str = "#include \"grid.h\"
extern \"C\" __device__ void db_model(unsigned long long model, struct db_grid *grid);
extern \"C\" __global__ void caller(unsigned long long model, unsigned int *words) {
    struct db_grid grid = {words, 1000, 0, 0};
    db_model(model, &grid);
}
";

#[test]
fn the_resident_kernel_compiles_and_another_may_call_its_model() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    let (name, text) = ::gpu::GRID_HEADER;
    let caller = Unit::new("caller.cu", CALLER).header(name, text);
    // Each takes nine seconds of the compiler: `--full` alone asks the newer ones.
    for arch in [80, 90, 100].into_iter().take(if need::is_full() { 3 } else { 1 }) {
        let builder = ImageBuilder::new(toolkit.clone(), Cache::off());
        let all = [caller.clone()].into_iter().chain(units()).collect::<Vec<_>>();
        let image = builder.image(&all, Arch::sm(arch), Form::Cubin);
        let functions = image.unwrap_or_else(|error| panic!("sm_{arch}: {error}")).facts.functions;
        for name in ["resident", "caller", "db_model"] {
            assert!(functions.contains(name), "sm_{arch}: no {name} in {functions:?}");
        }
        let alone = builder.image(&all[..1], Arch::sm(arch), Form::Cubin).map(|_| ());
        assert!(alone.is_err_and(|error| error.to_string().contains("db_model")), "sm_{arch}");
    }
}

#[test]
fn gpu_models_in_a_resident_kernel_compute_what_launches_do() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    for (name, architecture, format) in [
        ("super-resolution-1, 24x20", FEW_PIXELS, FORMATS[0].0),
        ("super-resolution-1", SUPER_RESOLUTION_1, FORMATS[0].0),
        ("squeezenet", Architecture::SqueezeNet, FORMATS[0].0),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small, FORMATS[2].0),
    ] {
        let graph = import(&architecture.build(1).encode_to_vec(), 1).unwrap();
        let plan = Plan::in_format(&graph, format).unwrap();
        let inputs = inputs(&plan, 3);
        let loaded = Loaded::new(gpu, Toolkit::find(None).unwrap(), plan, &Libraries::none()).unwrap();
        let mut instance = Instance::new(&loaded).unwrap();
        let wanted = instance.run(&views(&inputs)).unwrap();
        let mut alone = Resident::new(&loaded, None).unwrap().alone().unwrap();
        for run in 0..3 {
            let found = alone.run(&views(&inputs)).unwrap();
            assert_eq!(bits(&found), bits(&wanted), "{name}, run {run}");
        }
        let by_graph = instance.period(50).unwrap();
        alone.launch(5).unwrap();
        let since = std::time::Instant::now();
        alone.launch(50).unwrap();
        let resident = since.elapsed() / 50;
        println!(
            "TABLE {name}: {:?}; resident, {} blocks, {resident:.1?} a run; a graph {by_graph:.1?}",
            format.precision,
            alone.blocks()
        );
    }
}

#[test]
fn gpu_a_model_with_a_librarys_step_is_refused_with_its_name() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let toolkit = Toolkit::find(None).unwrap();
    let graph = import(&Architecture::SqueezeNet.build(1).encode_to_vec(), 1).unwrap();
    let plan = Plan::in_format(&graph, FORMATS[0].0).unwrap();
    let loaded = Loaded::new(gpu, toolkit, plan, &Libraries::needed(None));
    let loaded = need!(loaded.map_err(|error| error.to_string()), "cuDNN");
    match Resident::new(&loaded, None) {
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("is computed by") && error.contains("without libraries"), "{error}");
        }
        Ok(_) => assert!(loaded.chosen().iter().all(|chosen| chosen.by.to_string() == "own")),
    }
}
