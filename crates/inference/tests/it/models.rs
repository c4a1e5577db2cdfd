//! The zoo's models: their plans, and the twin's results layer by layer against ONNX Runtime's.

use std::collections::HashMap;
use std::path::PathBuf;

use inference::engine::Engine;
use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::plan::Plan;
use prost::Message;
use zoo::Architecture;
use zoo::onnx::{Model, ValueInfo};

use crate::files::Random;
use crate::operators::distance;

const SUPER_RESOLUTION_3: Architecture = Architecture::SuperResolution { factor: 3, height: 224, width: 224 };

/// The largest difference of a layer relative to the root mean square of the reference's: each sum is of up to 5,000 products.
const TOLERANCE: f64 = 1e-4;

#[test]
fn plans_are_those_that_are_kept() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plans"));
    for (name, architecture) in [
        ("squeezenet", Architecture::SqueezeNet),
        ("resnet50", Architecture::ResNet50),
        ("super-resolution-1", Architecture::SuperResolution { factor: 1, height: 640, width: 480 }),
        ("super-resolution-3", SUPER_RESOLUTION_3),
        ("super-resolution-4", Architecture::SuperResolution { factor: 4, height: 640, width: 480 }),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small),
    ] {
        let graph = import(&architecture.build(1).encode_to_vec(), 1).expect("the zoo's models are imported");
        let plan = Plan::new(&graph).expect("the zoo's models are planned");
        let (arena, bound) = (plan.arena.bytes, plan.arena.bound);
        assert!(
            arena as f64 <= 1.05 * bound as f64,
            "{name}: an arena of {arena}, of which {bound} live at once"
        );
        let (text, kept) = (plan.to_string(), folder.join(format!("{name}.txt")));
        if std::env::var_os("WRITE_PLANS").is_some() {
            std::fs::write(&kept, &text).expect("the folder is there");
        }
        let kept = std::fs::read_to_string(&kept).unwrap_or_default();
        assert!(
            text == kept,
            "{name}: the plan changed; look at it, then write it by WRITE_PLANS=1 cargo test:\n{text}"
        );
    }
}

/// Every node's result becomes an output, so that layers can be compared.
fn with_all_outputs(mut model: Model) -> (Model, Vec<String>) {
    let graph = model.graph.as_mut().expect("the zoo's models have one");
    let output = &graph.output[0].name.clone();
    let names: Vec<String> =
        graph.node.iter().map(|node| node.output[0].clone()).filter(|name| name != output).collect();
    graph.output.extend(names.iter().map(|name| ValueInfo { name: name.clone(), r#type: None }));
    let all = [output.clone()].into_iter().chain(names).collect();
    (model, all)
}

/// How far each step of the twin is from what ONNX Runtime computes for its last node, the worst step first.
fn compare(runtime: &Runtime, model: Model, batch: usize) -> Vec<(f64, String)> {
    let graph = import(&model.encode_to_vec(), batch).expect("it is imported");
    let mut random = Random(3);
    let inputs: Vec<Vec<f32>> =
        graph.inputs.iter().map(|&id| random.tensor(graph.shape(id).count())).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let (model, names) = with_all_outputs(model);
    let mut reference = runtime.model(&model.encode_to_vec(), 2).expect("it is taken");
    let wanted: HashMap<String, Vec<f32>> =
        names.into_iter().zip(reference.run(&inputs).expect("it runs")).collect();
    let values: HashMap<&str, &str> = graph
        .nodes
        .iter()
        .map(|node| (node.names[0].as_str(), graph.value(node.output).name.as_str()))
        .collect();
    let mut twin = Twin::new(Plan::new(&graph).expect("it is planned")).expect("there is a compiler");
    let mut worst = Vec::new();
    let ran = twin.trace(&inputs, |step, written| {
        let last = step.names.last().expect("a step has a name").as_str();
        let name = values.get(last).copied().unwrap_or(last);
        if let Some(wanted) = wanted.get(name) {
            worst.push((distance(written, wanted), step.names.join(" ")));
        }
    });
    ran.expect("it runs");
    assert_eq!(worst.len() + 1, twin.plan().steps.len(), "every step but the load is compared");
    worst.sort_by(|one, two| two.0.total_cmp(&one.0));
    worst
}

#[test]
fn every_layer_of_small_models_is_that_of_onnx_runtime() {
    let runtime = measure::need!(Runtime::load(None).map_err(|error| error.to_string()), "ONNX Runtime");
    for (name, architecture, batch) in [
        ("squeezenet", Architecture::SqueezeNet, 1),
        ("super-resolution-3", SUPER_RESOLUTION_3, 1),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small, 2),
    ] {
        let since = std::time::Instant::now();
        let worst = compare(&runtime, architecture.build(batch), batch);
        println!(
            "TABLE {name}: batch {batch}, {} layers, worst {:.1e} ({}), {:.1?}",
            worst.len(),
            worst[0].0,
            worst[0].1,
            since.elapsed()
        );
        assert!(worst[0].0 < TOLERANCE, "{name}: {:?}", &worst[..3]);
    }
}
