//! The zoo's models: their plans, and the twin's results layer by layer against ONNX Runtime's.

use std::path::PathBuf;

use inference::engine::onnx_runtime::Runtime;
use inference::engine::twin::Twin;
use inference::import::import;
use inference::layers::{Layers, Random, distance};
use inference::plan::{Format, Layout, Plan, Precision, Source, Step, Task};
use prost::Message;
use zoo::onnx::{Attribute, Model, Node, Tensor};
use zoo::{Architecture, Digest, Manifest, Seeded};

use crate::libraries::Referenced;
use crate::operators::FORMATS;

pub const SUPER_RESOLUTION_1: Architecture =
    Architecture::SuperResolution { factor: 1, height: 640, width: 480 };
/// As the one above, of fewer pixels.
pub const FEW_PIXELS: Architecture = Architecture::SuperResolution { factor: 1, height: 24, width: 20 };
pub const SUPER_RESOLUTION_3: Architecture =
    Architecture::SuperResolution { factor: 3, height: 224, width: 224 };
pub const SUPER_RESOLUTION_4: Architecture =
    Architecture::SuperResolution { factor: 4, height: 640, width: 480 };

/// The zoo's models.
pub const MODELS: [(&str, Architecture); 6] = [
    ("squeezenet", Architecture::SqueezeNet),
    ("resnet50", Architecture::ResNet50),
    ("super-resolution-1", SUPER_RESOLUTION_1),
    ("super-resolution-3", SUPER_RESOLUTION_3),
    ("super-resolution-4", SUPER_RESOLUTION_4),
    ("mobilenet-v3-small", Architecture::MobileNetV3Small),
];

/// Formats of values on any engine, with the endings of the plan's snapshot. The first whose file exists is
/// its own, or that of the format with the same plan.
const KEPT: [(Precision, Layout, &[&str]); 5] = [
    (Precision::Single, Layout::ChannelsFirst, &[""]),
    (Precision::Tf32, Layout::ChannelsFirst, &["-tf32-first", ""]),
    (Precision::Single, Layout::ChannelsLast, &["-last", ""]),
    (Precision::Tf32, Layout::ChannelsLast, &["-tf32", "-last", ""]),
    (Precision::Half, Layout::ChannelsLast, &["-half", ""]),
];

#[test]
fn plans_are_those_that_are_kept() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/plans"));
    for (name, architecture) in MODELS {
        let file = architecture.build(1).encode_to_vec();
        let graph = import(&file, 1).expect("the zoo's models are imported");
        for (precision, layout, endings) in KEPT {
            let plan = Plan::in_format(&graph, Format { precision, layout });
            let plan = plan.expect("the zoo's models are planned");
            let (arena, bound, own) = (plan.arena.bytes, plan.arena.bound, endings[0]);
            assert!(
                arena as f64 <= 1.05 * bound as f64,
                "{name}{own}: an arena of {arena}, of which {bound} live at once"
            );
            let path = |ending: &str| folder.join(format!("{name}{ending}.txt"));
            let kept = |endings: &[&str]| {
                endings
                    .iter()
                    .find_map(|ending| std::fs::read_to_string(path(ending)).ok())
                    .unwrap_or_default()
            };
            let text = plan.to_string();
            if std::env::var_os("WRITE_PLANS").is_some() {
                let _ = std::fs::remove_file(path(own));
                if kept(endings) != text {
                    std::fs::write(path(own), &text).expect("the folder is there");
                }
            }
            let kept = kept(endings);
            assert!(
                text == kept,
                "{name}{own}: the plan changed; look at it, then write it by WRITE_PLANS=1 cargo test:\n{text}"
            );
        }
    }
}

#[test]
fn a_pixel_shuffle_of_older_exporters_has_the_plan_of_a_depth_to_space() {
    let steps = |model: &Model, format| {
        let graph = import(&model.encode_to_vec(), 1).expect("it is imported");
        let plan = Plan::in_format(&graph, format).expect("it is planned");
        plan.steps.iter().map(|step| format!("{} {} {}", step.task, step.from, step.to)).collect::<Vec<_>>()
    };
    let (model, mut older) = (SUPER_RESOLUTION_3.build(1), SUPER_RESOLUTION_3.build(1));
    let graph = older.graph.as_mut().expect("it has one");
    let shuffle = graph.node.pop().expect("it is the last node");
    for (name, extents) in [("blocks", &[1, 1, 3, 3, 224, 224][..]), ("pixels", &[1, 1, 672, 672])] {
        graph.initializer.push(Tensor::ints(name, extents));
    }
    for (op, input, output, attribute) in [
        ("Reshape", &[&*shuffle.input[0], "blocks"][..], "a", None),
        ("Transpose", &["a"], "b", Some(Attribute::ints("perm", &[0, 1, 4, 2, 5, 3]))),
        ("Reshape", &["b", "pixels"], &*shuffle.output[0], None),
    ] {
        graph.node.push(Node {
            op_type: op.to_owned(),
            input: input.iter().map(|&name| name.to_owned()).collect(),
            output: vec![output.to_owned()],
            attribute: attribute.into_iter().collect(),
            ..Node::default()
        });
    }
    for (precision, layout, _) in KEPT {
        let format = Format { precision, layout };
        assert_eq!(steps(&older, format), steps(&model, format));
    }
}

/// The example of `docs/models.md`, «Add a model», by its steps 1 to 5.
#[test]
fn the_how_tos_model_is_built_verified_imported_and_planned() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("it is committed");
    let (page, copied) = (read("docs/models.md"), read("modelzoo/models/super-resolution-x3.toml"));
    let (kept, _) = copied.split_once("[weights]").expect("those of x3 are published");
    let mut text = kept.replace("-x3\"", "-x2\"").replace("×3", "×2");
    for (from, to) in [
        ("factor = 3", "factor = 2"),
        ("shape = [1, 1, 672, 672]", "shape = [1, 1, 448, 448]"),
        ("bytes = 1806336", "bytes = 802816"),
        ("parameters = 59657", "parameters = 58212"),
        ("macs = 2984869888", "macs = 2912616448"),
    ] {
        assert!(page.contains(&format!("`{to}`")) && text.contains(from), "{from}, {to}");
        text = text.replace(from, to);
    }
    let parsed = Manifest::parse(&text, "super-resolution-x2.toml".as_ref());
    let mut manifest = parsed.expect("a manifest of the page's numbers");
    let file = manifest.build();
    let (sha256, bytes) = (Digest::of(&file), file.len() as u64);
    let refused = manifest.verify(&file).expect_err("it still has the hash of x3").to_string();
    assert!(refused.contains(&format!("SHA-256 {sha256} and {bytes} bytes")), "{refused}");
    manifest.seeded = Seeded { sha256, bytes };
    let counted = manifest.verify(&file).expect("it has its own hash");
    assert_eq!((counted.parameters, counted.macs), (manifest.counts.parameters, Ok(manifest.counts.macs)));
    let graph = import(&file, 1).expect("it is imported");
    for (precision, layout, _) in KEPT {
        Plan::in_format(&graph, Format { precision, layout }).expect("it is planned");
    }
}

/// How far a model on the twin is from ONNX Runtime.
struct Compared {
    /// Each step's distance from what ONNX Runtime computes for its last node, the worst step first.
    steps: Vec<(f64, String)>,
    /// The same of each convolution or product with its weights changed by 5 % of their norm, the least
    /// change first.
    changed: Vec<(f64, String)>,
}

fn compare(runtime: &Runtime, model: Model, batch: usize, format: Format) -> Compared {
    let file = model.encode_to_vec();
    let graph = import(&file, batch).expect("it is imported");
    let mut random = Random(3);
    let inputs: Vec<Vec<f32>> =
        graph.inputs.iter().map(|&id| random.tensor(graph.shape(id).count())).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let layers = Layers::compute(runtime, &file, &graph, &inputs).expect("it runs");
    let mut twin =
        Twin::new(Plan::in_format(&graph, format).expect("it is planned")).expect("there is a compiler");
    twin.bring(&inputs).expect("they are the model's");
    let mut compared = Compared { steps: Vec::new(), changed: Vec::new() };
    for at in 0..twin.plan().steps.len() {
        let step = twin.plan().steps[at].clone();
        let wanted = layers.of(&step);
        if let (Some(wanted), Some(&Source::Constant(number))) = (wanted, step.reads.get(1)) {
            let weights = random.perturb(&twin.plan().constants[number], 0.05);
            let right = twin.replace(number, weights);
            let found = twin.step(at).expect("it runs");
            compared.changed.push((distance(format.precision, &found, wanted), step.names.join(" ")));
            twin.replace(number, right);
        }
        let written = twin.step(at).expect("it runs");
        if let Some(wanted) = wanted {
            compared.steps.push((distance(format.precision, &written, wanted), step.names.join(" ")));
        }
    }
    let is_load = |step: &&Step| matches!(step.task, Task::Load { .. });
    let loads = twin.plan().steps.iter().filter(is_load).count();
    assert_eq!(compared.steps.len() + loads, twin.plan().steps.len(), "every step but a load is compared");
    compared.steps.sort_by(|one, two| two.0.total_cmp(&one.0));
    compared.changed.sort_by(|one, two| one.0.total_cmp(&two.0));
    compared
}

/// Every layer is right, and would be seen to be wrong if its weights were.
#[test]
fn every_layer_of_small_models_is_that_of_onnx_runtime() {
    let found = Runtime::load(None).map_err(|error| error.to_string());
    let runtime = measure::need!(found, reference, "ONNX Runtime");
    let [(first, tolerance), _, (half, of_half)] = FORMATS;
    for (name, architecture, batch, format, tolerance) in [
        ("squeezenet", Architecture::SqueezeNet, 1, first, tolerance),
        ("super-resolution-3", SUPER_RESOLUTION_3, 1, first, tolerance),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small, 2, first, tolerance),
        ("mobilenet-v3-small", Architecture::MobileNetV3Small, 1, half, of_half),
    ] {
        let Compared { steps, changed } = compare(&runtime, architecture.build(batch), batch, format);
        let (worst, least) = (&steps[0], &changed[0]);
        println!(
            "TABLE {name}: {:?}, batch {batch}, {} layers, the worst {:.1e} ({}); {} with weights changed by 5 %, the least {:.1e} ({})",
            format.precision,
            steps.len(),
            worst.0,
            worst.1,
            changed.len(),
            least.0,
            least.1
        );
        assert!(worst.0 < tolerance, "{name}: {worst:?}");
        // In half precision a change may hide in the rounding.
        let hidden = format == first && least.0 < 10.0 * tolerance;
        assert!(!hidden, "{name}: a change of {least:?} would hardly be seen");
    }
}

/// Seeded weights keep the numbers of all layers near one. Where they vanish or grow, rounding or infinities
/// would hide a wrong layer. The bounds are twice as wide as what is printed.
#[test]
fn numbers_of_every_layer_stay_near_one() {
    let found = Runtime::load(None).map_err(|error| error.to_string());
    let runtime = measure::need!(found, reference, "ONNX Runtime");
    for (name, architecture) in MODELS {
        let model = Referenced::new(&runtime, name, architecture.build(1).encode_to_vec(), 1);
        let plan = Plan::new(&model.graph).expect("it is planned");
        let size = |step: &Step| {
            let layer = model.layers.of(step)?;
            let squares: f64 = layer.iter().map(|&number| f64::from(number).powi(2)).sum();
            Some(((squares / layer.len() as f64).sqrt(), step.names.join(" ")))
        };
        let mut sizes: Vec<(f64, String)> = plan.steps.iter().filter_map(size).collect();
        sizes.sort_by(|one, two| one.0.total_cmp(&two.0));
        let [(least, smallest), .., (most, largest)] = &sizes[..] else { panic!("{name}: {sizes:?}") };
        println!(
            "TABLE {name}: root mean squares of {} layers from {least:.1e} ({smallest}) to {most:.1e} ({largest})",
            sizes.len()
        );
        assert!(*least > 0.05 && *most < 5.0, "{name}: {sizes:?}");
    }
}
