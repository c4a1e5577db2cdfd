//! Own kernels on a GPU, beside the host twin; and NVIDIA's compiler takes them where there is no GPU.

use ::gpu::cache::Cache;
use ::gpu::{Arch, End, Form, Gpu, ImageBuilder, Stamp, Toolkit};
use inference::engine::Engine;
use inference::engine::gpu::{Instance, Libraries, Loaded, fastest, units};
use inference::engine::twin::Twin;
use inference::import::import;
use inference::layers::{Random, distance};
use inference::plan::{Format, Plan};
use measure::need;
use prost::Message;
use std::sync::Arc;
use std::time::Duration;
use zoo::Architecture;

use crate::models::SUPER_RESOLUTION_3;
use crate::operators::{FORMATS, files_of_every_operator};

#[test]
fn every_kernel_compiles() {
    let toolkit = need!(Toolkit::find(None), toolkit, "a CUDA toolkit");
    // Products of half precision have instructions of their own from sm_80 on: the newer GPU comes first.
    for arch in [90, 75].into_iter().take(if need::is_full() { 2 } else { 1 }) {
        let image =
            ImageBuilder::new(toolkit.clone(), Cache::off()).image(&units(), Arch::sm(arch), Form::Cubin);
        let functions = image.unwrap_or_else(|error| panic!("sm_{arch}: {error}")).facts.functions;
        for name in [
            "conv_tiled",
            "conv_grouped",
            "depthwise",
            "pointwise",
            "linear",
            "pool",
            "mean",
            "elementwise",
            "excite",
            "depth_to_space",
            "load",
            "store",
            "conv_tiled_half",
            "conv_load_half",
            "preprocess",
        ] {
            assert!(functions.contains(name), "sm_{arch}: no {name} in {functions:?}");
        }
    }
}

/// A model of an ONNX file on the first GPU.
fn loaded(gpu: Gpu, file: &[u8], batch: usize, format: Format) -> Result<Arc<Loaded>, String> {
    let toolkit = Toolkit::find(None).map_err(|error| error.to_string())?;
    let graph = import(file, batch).map_err(|error| error.to_string())?;
    let plan = Plan::in_format(&graph, format).map_err(|error| error.to_string())?;
    Loaded::new(gpu, toolkit, plan, &Libraries::none()).map_err(|error| error.to_string())
}

fn inputs(plan: &Plan, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    plan.inputs.iter().map(|shape| random.tensor(shape.count())).collect()
}

fn views(inputs: &[Vec<f32>]) -> Vec<&[f32]> {
    inputs.iter().map(Vec::as_slice).collect()
}

#[test]
fn gpu_operators_are_those_of_the_twin() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    for (what, file, batch) in files_of_every_operator() {
        for (format, tolerance) in FORMATS {
            let loaded = loaded(gpu, &file, batch, format).unwrap_or_else(|error| panic!("{what}: {error}"));
            let inputs = inputs(loaded.plan(), 7);
            let wanted = Twin::new(loaded.plan().clone()).unwrap().run(&views(&inputs)).unwrap();
            let found = Instance::new(&loaded).unwrap().run(&views(&inputs)).unwrap();
            for (found, wanted) in found.iter().zip(&wanted) {
                let distance = distance(format.precision, found, wanted);
                assert!(distance < tolerance, "{what}: {format:?}: {distance}");
            }
        }
    }
}

#[test]
fn gpu_models_are_those_of_the_twin_and_launch_themselves() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let [first, last, half] = FORMATS;
    for (name, architecture, batch, (format, tolerance)) in [
        ("squeezenet", Architecture::SqueezeNet, 1, first),
        ("super-resolution-3", SUPER_RESOLUTION_3, 1, last),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small, 2, first),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small, 1, half),
        ("resnet50", Architecture::ResNet50, 1, first),
    ] {
        let loaded = loaded(gpu, &architecture.build(batch).encode_to_vec(), batch, format).unwrap();
        let inputs = inputs(loaded.plan(), 3);
        let wanted = Twin::new(loaded.plan().clone()).unwrap().run(&views(&inputs)).unwrap();
        let mut instance = Instance::new(&loaded).unwrap();
        let found = instance.run(&views(&inputs)).unwrap();
        let apart = distance(format.precision, &found[0], &wanted[0]);
        assert!(apart < tolerance, "{name}: {format:?}: {apart}");

        let since = std::time::Instant::now();
        instance.launch(100).unwrap();
        instance.wait().unwrap();
        let by_host = since.elapsed() / 100;
        let mut by_itself = instance.self_launching(100).unwrap();
        by_itself.wipe().unwrap();
        assert!(by_itself.outputs().unwrap().concat().iter().all(|element| element.is_nan()));
        let since = std::time::Instant::now();
        by_itself.start().unwrap();
        assert_eq!(by_itself.graph().wait(Duration::from_secs(60)).unwrap(), End::LimitReached);
        let by_gpu = since.elapsed() / 100;
        assert!(by_itself.outputs().unwrap() == found, "{name}: a run by itself leaves another result");
        println!(
            "TABLE {name}: {:?}, batch {batch}, {apart:.1e} from the twin; by the host {by_host:.1?}, by itself {by_gpu:.1?} a run",
            format.precision
        );
    }
}

#[test]
fn gpu_instances_share_weights_and_nothing_else() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let loaded =
        loaded(gpu, &Architecture::SqueezeNet.build(1).encode_to_vec(), 1, Format::default()).unwrap();
    let many: Vec<(Instance, Vec<Vec<f32>>)> =
        (0..8).map(|seed| (Instance::new(&loaded).unwrap(), inputs(loaded.plan(), seed))).collect();
    let mut alone = Instance::new(&loaded).unwrap();
    for (instance, inputs) in &many {
        instance.bring(&views(inputs)).unwrap();
    }
    // All of them at once, several times.
    many.iter().for_each(|(instance, _)| instance.wipe().unwrap());
    for _ in 0..20 {
        many.iter().for_each(|(instance, _)| instance.launch(1).unwrap());
    }
    for (number, (instance, inputs)) in many.iter().enumerate() {
        instance.wait().unwrap();
        assert!(instance.outputs().unwrap() == alone.run(&views(inputs)).unwrap(), "instance {number}");
    }
}

#[test]
fn gpu_instances_that_launch_themselves_overlap_and_are_right_meanwhile() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let file = Architecture::SqueezeNet.build(1).encode_to_vec();
    let loaded = loaded(gpu, &file, 1, Format::default()).unwrap();
    for by_while in [false, true] {
        let mut both = [1, 2].map(|seed| {
            let mut instance = Instance::new(&loaded).unwrap();
            let alone = instance.run(&views(&inputs(loaded.plan(), seed))).unwrap();
            let (span, stamped) = instance.spans(5).unwrap();
            assert!(Duration::ZERO < span && span < stamped, "{span:?} of {stamped:?}");
            instance.stamp(1 << 16).unwrap();
            instance.wipe().unwrap();
            let graph = if by_while { instance.while_loop(0) } else { instance.self_launching(0) };
            (graph.unwrap(), alone)
        });
        both.iter_mut().for_each(|(graph, _)| graph.start().unwrap());
        let since = std::time::Instant::now();
        while both.iter().any(|(graph, _)| graph.graph().turns() < 100) {
            assert!(since.elapsed() < Duration::from_secs(30), "an instance waits for the other one");
        }
        for (graph, alone) in &both {
            assert!(graph.stamps(0..1).is_err(), "it runs");
            let found = graph.outputs_meanwhile(Duration::from_secs(5)).unwrap();
            assert!(found.expect("a copy goes on beside graphs") == *alone, "WHILE: {by_while}");
        }
        both.iter().for_each(|(graph, _)| graph.graph().cancel());
        let [one, two] = both.each_ref().map(|(graph, alone)| {
            assert_eq!(graph.graph().wait(Duration::from_secs(10)).unwrap(), End::Cancelled);
            assert!(graph.outputs().unwrap() == *alone);
            graph.stamps(0..u64::MAX).unwrap().0
        });
        assert!(one.len() >= 100 && one.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
        let meets =
            |run: &Stamp| two.iter().any(|two| run.start_ns < two.end_ns && two.start_ns < run.end_ns);
        assert!(one.iter().any(meets), "WHILE: {by_while}: no run overlaps one of the other instance");
    }
}

#[test]
fn gpu_of_several_formats_the_one_with_the_shortest_period_is_kept() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let toolkit = Toolkit::find(None).unwrap();
    let graph = import(&Architecture::SqueezeNet.build(1).encode_to_vec(), 1).unwrap();
    let plans = |count| FORMATS[..count].iter().map(|(format, _)| Plan::in_format(&graph, *format).unwrap());
    let both = fastest(gpu, &toolkit, plans(2).collect(), &Libraries::none()).unwrap();
    let least = both.periods.iter().min_by_key(|(_, period)| *period).unwrap();
    assert_eq!((both.periods.len(), both.loaded.plan().format), (2, least.0));
    let alone = fastest(gpu, &toolkit, plans(1).collect(), &Libraries::none()).unwrap();
    assert!(alone.periods.is_empty() && alone.loaded.plan().format == FORMATS[0].0);
    let none = fastest(gpu, &toolkit, Vec::new(), &Libraries::none()).unwrap_err();
    assert!(none.to_string().contains("no plan"), "{none}");
}

#[test]
fn gpu_memory_that_is_not_there_is_said_and_nothing_is_lost() {
    let gpu = need!(Gpu::first(), "one CUDA device");
    let file = Architecture::SqueezeNet.build(1).encode_to_vec();
    let small = loaded(gpu, &file, 1, Format::default()).unwrap();
    let inputs = inputs(small.plan(), 1);
    let mut before = Instance::new(&small).unwrap();
    let found = before.run(&views(&inputs)).unwrap();
    // More than any GPU has. To fill this one would take memory from other programs.
    let mut plan = small.plan().clone();
    plan.arena.bytes = 1 << 46;
    let large = Loaded::new(gpu, Toolkit::find(None).unwrap(), plan, &Libraries::none()).unwrap();
    let said = Instance::new(&large).map(|_| ()).expect_err("no GPU has so much").to_string();
    assert!(said.starts_with("squeezenet-1.1: the arena: "), "{said}");
    assert!(said.contains("70368744177664 bytes") && said.contains("a smaller batch"), "{said}");
    assert!(before.run(&views(&inputs)).unwrap() == found, "the instance that was there goes on");
}
