//! The profiler as its users start it: exit codes, messages, lines of JSON.
// Helpers of tests are tests: clippy's `allow-unwrap-in-tests` sees only functions with `#[test]`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use inference::engine::Engine as _;
use inference::engine::onnx_runtime::Runtime;
use measure::need;
use prost::Message;
use serde_json::Value;
use zoo::Manifest;
use zoo::onnx::{Extent, Model};
use zoo::postprocess::Answer;
use zoo::preprocess::{Image, test_image};

/// The variable that says how many streams run side by side.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// The program, where the tests were built or carried to.
fn command(arguments: &[&str]) -> Command {
    let program = std::env::var("CARGO_BIN_EXE_profiler");
    let mut command = Command::new(program.unwrap_or_else(|_| env!("CARGO_BIN_EXE_profiler").to_owned()));
    command.args(arguments).env_remove(CONNECTIONS);
    command
}

fn profiler(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// Standard output of one that ends with this exit code.
fn said(code: i32, arguments: &[&str]) -> String {
    let output = profiler(arguments);
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{error}");
    out.into_owned()
}

fn reference() -> Result<Runtime, String> {
    Runtime::load(None).map_err(|error| error.to_string())
}

/// An empty folder of this process.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("profiler-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Files of SqueezeNet that are wrong, each with words of what is said.
fn wrong_files(folder: &Path) -> Vec<(String, Vec<&'static str>)> {
    let whole = manifest("squeezenet-1.1").build();
    let changed = |change: fn(&mut Model)| {
        let mut model = Model::decode(&whole[..]).unwrap();
        change(&mut model);
        model.encode_to_vec()
    };
    let no_onnx = ["not an ONNX model, or only a part of one", "export or fetch it again"];
    let corrupt = [&[whole[0] ^ 0xff], &whole[1..]].concat();
    let opset = changed(|model| model.opset_import[0].version = 99);
    let dynamic = changed(|model| {
        let of = model.graph.as_mut().unwrap().input[0].r#type.as_mut().unwrap().tensor_type.as_mut();
        of.unwrap().shape.as_mut().unwrap().dim[2].extent = Some(Extent::Parameter("height".into()));
    });
    // 9 channels of windows of 3 x 1, where the image has 3.
    let chain = changed(|model| model.graph.as_mut().unwrap().initializer[0].dims = vec![64, 9, 3, 1]);
    let nan = changed(|model| {
        let weights = &mut model.graph.as_mut().unwrap().initializer[0].raw_data;
        weights[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let files = [
        ("cut", whole[..whole.len() / 2].to_vec(), no_onnx.to_vec()),
        ("corrupt", corrupt, no_onnx.to_vec()),
        ("opset", opset, vec!["version 99", "export the model with opset 17"]),
        ("dynamic", dynamic, vec!["axis 2 is dynamic (height)", "export the model with fixed shapes"]),
        ("chain", chain, vec!["node features.0 (Conv)", "64x9x3x1", "onnxsim"]),
        (
            "nan",
            nan,
            vec!["of node features.0 (Conv)", "element 0 is NaN", "export or fetch the model again"],
        ),
    ];
    let written = files.into_iter().map(|(name, file, words)| {
        let path = folder.join(format!("{name}.onnx"));
        std::fs::write(&path, file).unwrap();
        (path.to_str().unwrap().to_owned(), words)
    });
    written.collect()
}

/// The command that is given such a file, and what it says.
fn given<'a>((path, words): &'a (String, Vec<&'static str>)) -> (Vec<&'a str>, Vec<&'a str>) {
    (vec!["check", "squeezenet-1.1", "--model-file", path], [&[&**path], &words[..]].concat())
}

#[test]
fn bad_input_is_one_line_that_says_what_to_do() {
    let folder = folder("bad");
    let wrong_files = wrong_files(&folder);
    let (text, store, short) = (folder.join("text.onnx"), folder.join("store"), folder.join("short.ppm"));
    std::fs::write(&short, "P6 2 2 255 eleven byte").unwrap();
    std::fs::write(&text, "no model").unwrap();
    std::fs::create_dir_all(&store).unwrap();
    std::fs::write(store.join("squeezenet-1.1.seeded.onnx"), "cut").unwrap();
    let [text, store, short, folder_word] =
        [&text, &store, &short, &folder].map(|path| path.to_str().unwrap());
    let run = ["run", "squeezenet-1.1", "--engine"];
    for (arguments, words) in [
        (vec!["check", "alexnet"], vec!["no model alexnet", "squeezenet-1.1, super-resolution-x1"]),
        (
            vec!["check", "squeezenet-1.1", "--model-file", "/no/such/file"],
            vec!["--model-file /no/such/file", "No such file"],
        ),
        (
            vec!["check", "squeezenet-1.1", "--model-file", text],
            vec![text, "not an ONNX model", "export or fetch it again"],
        ),
        (
            vec!["check", "squeezenet-1.1", "--store", store],
            vec![store, "the file was changed", "make it again"],
        ),
        (
            vec!["check", "squeezenet-1.1", "--manifests", "/no/such/folder"],
            vec!["/no/such/folder", "No such file"],
        ),
        (
            vec!["check", "squeezenet-1.1", "--perturb", "input"],
            vec!["--perturb", "called input", "features.0,"],
        ),
        (
            vec!["check", "squeezenet-1.1", "--onnxruntime", folder_word],
            vec![
                "not found",
                folder_word,
                "cargo xtask setup",
                "pip install onnxruntime",
                "cargo xtask doctor",
            ],
        ),
        ([&run[..], &["cpu", "--onnxruntime", text]].concat(), vec![text]),
        ([&run[..], &["cpu", "--launch", "self"]].concat(), vec!["--launch is for --engine own and cuda"]),
        ([&run[..], &["cpu", "--layout", "nhwc"]].concat(), vec!["--layout are for our plans"]),
        ([&run[..], &["own", "--precision", "tf32"]].concat(), vec!["tf32 is for --engine cuda"]),
        (
            vec!["check", "squeezenet-1.1", "--precision", "fp16", "--layout", "nchw"],
            vec!["fp16 has --layout nhwc alone"],
        ),
        (
            vec!["check", "squeezenet-1.1", "--image", "1x8000"],
            vec!["--image 1x8000", "resized to 2048000 × 256 pixels", "crop it first"],
        ),
        (
            vec!["answer", "squeezenet-1.1", text, "--engine", "twin"],
            vec![text, "no PPM file", "P6", "ffmpeg -i"],
        ),
        (vec!["answer", "squeezenet-1.1", "/no/such/file"], vec!["/no/such/file", "No such file"]),
        (vec!["answer", "squeezenet-1.1", short, "--engine", "twin"], vec![short, "has 12 bytes, not 11"]),
        (
            vec!["answer", "squeezenet-1.1", short, "--engine", "twin", "--batch", "2"],
            vec!["leave --batch out"],
        ),
        (
            vec![
                "answer",
                "super-resolution-x3",
                short,
                "--engine",
                "twin",
                "--out",
                "/no/such/folder/a.ppm",
            ],
            vec!["there is no folder /no/such/folder", "make it"],
        ),
        (vec!["layers", "squeezenet-1.1", "--layout", "auto"], vec!["--layout auto", "name one"]),
        ([&run[..], &["twin", "--threads", "2"]].concat(), vec!["--threads is for --engine cpu"]),
        ([&run[..], &["twin", "--gpu", "3"]].concat(), vec!["--gpu is for --engine own and cuda"]),
        ([&run[..], &["cpu", "--cuda", "/opt"]].concat(), vec!["--cuda is for --engine own and cuda", "cpu"]),
        ([&run[..], &["own", "--cudnn", "/opt"]].concat(), vec!["--cudnn is for --engine cuda"]),
    ]
    .into_iter()
    .chain(wrong_files.iter().map(given))
    {
        let output = profiler(&arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{arguments:?}: {error}");
        assert!(words.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
        assert!(error.starts_with("profiler: ") && output.stdout.is_empty(), "{arguments:?}: {error}");
    }
    for arguments in
        [&["--batch", "0"][..], &["--instances", "0"], &["--seconds", "-1"], &["--engine", "tpu"]]
    {
        let output = profiler(&[&["run", "squeezenet-1.1", "--engine", "cpu"][..], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_machine_without_a_gpu_is_told_which_engine_runs_there() {
    let none = gpu::Gpu::first().map_or(true, |_| false);
    need!(none, "a machine without a GPU");
    for (command, engine) in
        [("check", "own"), ("run", "own"), ("run", "cuda"), ("layers", "own"), ("layers", "cuda")]
    {
        let output = profiler(&[command, "squeezenet-1.1", "--engine", engine]);
        let error = String::from_utf8_lossy(&output.stderr);
        let without_reference = error.contains("ONNX Runtime was not found");
        assert!(error.contains("--engine twin") || without_reference, "{error}");
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    }
}

#[test]
fn release_s14_a_check_passes_and_fails_when_the_weights_of_one_layer_differ() {
    need!(reference(), reference, "ONNX Runtime");
    let whole = said(0, &["check", "squeezenet-1.1"]);
    assert!(whole.contains("31 of 32 compared: all within 1e-4"), "{whole}");
    // The twin is slow at SqueezeNet in half precision: a full run has it. With channels last two of its
    // convolutions of one input are one step, and no step loads the input.
    let halves = [("mobilenet-v3-small", "65 of 65"), ("squeezenet-1.1", "23 of 23")];
    for (model, count) in halves.into_iter().take(if need::is_full() { 2 } else { 1 }) {
        let half = said(0, &["check", model, "--precision", "fp16"]);
        assert!(half.contains(&format!("{count} compared: all within 2e-2")), "{half}");
    }
    // The last layer with weights: it, and the mean and the output behind it.
    let wrong = said(1, &["check", "squeezenet-1.1", "--perturb", "classifier.1"]);
    assert!(wrong.contains("31 of 32 compared: 3 beyond"), "{wrong}");
    let first = wrong.lines().find(|line| line.contains("Conv+Relu")).unwrap();
    assert!(first.contains("classifier.1"), "{wrong}");
}

#[test]
fn a_check_of_an_image_runs_the_pre_processing_of_the_manifest() {
    need!(reference(), reference, "ONNX Runtime");
    let said = said(0, &["check", "squeezenet-1.1", "--image", "48x64", "--batch", "2"]);
    let first = said.lines().next().unwrap();
    assert!(
        first.starts_with("pre-processing on the twin of 2 images") && first.contains("48 x 64"),
        "{said}"
    );
    assert!(first.contains(", 1e-5 is allowed") && said.contains("31 of 32 compared: all within"), "{said}");
}

#[test]
fn gpu_a_check_of_an_image_runs_the_pre_processing_of_the_manifest() {
    need!(gpu::Gpu::first(), gpu, "one CUDA device");
    need!(reference(), reference, "ONNX Runtime");
    for engine in engines_of_a_gpu() {
        let said = said(0, &["check", "super-resolution-x3", "--engine", engine, "--image", "480x640"]);
        assert!(said.starts_with("pre-processing on the GPU of 1 image of 480 x 640"), "{said}");
    }
}

#[test]
fn a_file_of_the_users_is_compared_with_the_batch_that_it_has() {
    need!(reference(), reference, "ONNX Runtime");
    let file = folder("file").join("squeezenet.onnx");
    std::fs::write(&file, manifest("squeezenet-1.1").build()).unwrap();
    let path = file.to_str().unwrap();
    let run =
        ["run", "squeezenet-1.1", "--engine", "cpu", "--seconds", "0", "--warmup", "0", "--model-file", path];
    assert!(said(0, &run).contains(path));
    let output = profiler(&[&run[..], &["--batch", "2"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("leave --batch out"), "{error}");
    let other = profiler(&["run", "mobilenet-v3-small", "--engine", "cpu", "--model-file", path]);
    let error = String::from_utf8_lossy(&other.stderr);
    assert!(other.status.code() == Some(2) && error.contains("is no MobileNetV3-Small"), "{error}");
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

/// A model of the zoo.
fn manifest(name: &str) -> Manifest {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../modelzoo/models");
    Manifest::find(name, Some(&folder)).unwrap().0
}

/// What ONNX Runtime and the manifest make of an image.
fn wanted_answer(runtime: &Runtime, manifest: &Manifest, image: &Image) -> Answer {
    let input = manifest.preprocess.run(image).unwrap();
    let outputs = runtime.model(&manifest.build(), 1).unwrap().run(&[&input]).unwrap();
    manifest.answer(image, &outputs[0]).unwrap()
}

/// A PPM file of an image whose pixels are blue, green and red, as manifests have them.
fn ppm(image: &Image) -> Vec<u8> {
    let mut file = format!("P6 {} {} 255\n", image.width, image.height).into_bytes();
    file.extend(image.pixels.as_chunks().0.iter().flat_map(|&[blue, green, red]| [red, green, blue]));
    file
}

#[test]
fn an_image_is_answered_with_its_likeliest_classes() {
    let runtime = need!(reference(), reference, "ONNX Runtime");
    let (folder, manifest) = (folder("classes"), manifest("squeezenet-1.1"));
    let (path, image) = (folder.join("image.ppm"), test_image("answered", 300, 260));
    std::fs::write(&path, ppm(&image)).unwrap();
    let path = path.to_str().unwrap();
    let said = said(0, &["answer", "squeezenet-1.1", path]);
    let Answer::Classes(wanted) = wanted_answer(&runtime, &manifest, &image) else { panic!("no classes") };
    let rows: Vec<(f64, usize)> = said
        .lines()
        .skip(2)
        .map(|line| {
            let (probability, class) = line.trim().split_once("  ").unwrap();
            (probability.parse().unwrap(), class.parse().unwrap())
        })
        .collect();
    assert_eq!(rows.len(), 5, "{said}");
    for ((probability, number), wanted) in rows.iter().zip(&wanted) {
        assert!(
            *number == wanted.number && (probability - wanted.probability).abs() < 1e-4,
            "{said}{wanted:?}"
        );
    }
    let output = profiler(&["answer", "squeezenet-1.1", path, "--out", path]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("SqueezeNet 1.1 prints classes"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_image_is_answered_with_a_larger_image_in_its_colours() {
    let runtime = need!(reference(), reference, "ONNX Runtime");
    let (folder, manifest) = (folder("larger"), manifest("super-resolution-x3"));
    let [path, out] = ["image.ppm", "out.ppm"].map(|name| folder.join(name));
    let image = test_image("answered", 224, 224);
    std::fs::write(&path, ppm(&image)).unwrap();
    let [path, out_word] = [&path, &out].map(|path| path.to_str().unwrap());
    let command = ["answer", "super-resolution-x3", path];
    let said = said(0, &[&command[..], &["--out", out_word]].concat());
    assert!(said.contains("672 x 672 pixels in") && said.lines().count() == 1, "{said}");
    let Answer::Image(wanted) = wanted_answer(&runtime, &manifest, &image) else { panic!("no image") };
    let (found, wanted) = (std::fs::read(&out).unwrap(), ppm(&wanted));
    assert_eq!((found.len(), &found[..15]), (wanted.len(), &b"P6\n672 672\n255\n"[..]));
    // Threads may sum in another order, which may turn a half.
    assert!(found[15..].iter().zip(&wanted[15..]).all(|(byte, wanted)| byte.abs_diff(*wanted) <= 1));
    let output = profiler(&command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("name its file by --out"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn fewer_connections_than_streams_need_are_said() {
    for (set, words, lines) in
        [("8", "CUDA_DEVICE_MAX_CONNECTIONS is 8, not 32", 2), ("many", "=many is no number; unset it", 1)]
    {
        let output = command(&["run", "alexnet", "--engine", "own"]).env(CONNECTIONS, set).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), lines), "{error}");
        assert!(error.lines().next().unwrap().contains(words), "{error}");
    }
}

#[test]
fn without_an_engine_a_gpu_with_its_libraries_runs_the_model_or_else_the_processor() {
    need!(reference(), reference, "ONNX Runtime");
    let output = profiler(&["run", "squeezenet-1.1", "--seconds", "0", "--warmup", "0", "--json", "-"]);
    let error = String::from_utf8_lossy(&output.stderr);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}"));
    let taken = error.lines().next().unwrap();
    match taken.strip_prefix("profiler: --engine cpu, in the place of a GPU: ") {
        Some(why) => assert!(line["engine"] == "cpu" && !why.is_empty(), "{error}"),
        None => assert!(line["engine"] == "cuda" && taken.contains("cuDNN 9"), "{error}"),
    }
}

/// What a line says in any case.
fn check_line(line: &Value, instances: u64) {
    assert_eq!(line["kind"], "profiler-run");
    assert_eq!((&line["instances"], &line["outputs_wrong"]), (&instances.into(), &0.into()), "{line}");
    let quantiles: Vec<u64> =
        line["quantiles_ns"].as_array().unwrap().iter().map(|ns| ns.as_u64().unwrap()).collect();
    assert_eq!(quantiles.len(), 1001);
    assert!(quantiles.is_sorted() && quantiles[0] > 0, "{quantiles:?}");
    assert_eq!(line["run"]["count"], line["runs"]);
    assert_eq!(quantiles[500], line["run"]["p50_ns"].as_u64().unwrap());
    assert!(
        line["runs"].as_u64().unwrap() >= instances && line["runs_per_s"].as_f64().unwrap() > 0.0,
        "{line}"
    );
    for name in ["weights", "timer", "clock", "provenance", "label", "precision", "libraries"] {
        assert!(!line[name].is_null(), "{name}: {line}");
    }
    assert!(
        line.get("overlap").is_some_and(|overlap| overlap.is_null() == line["no_overlap"].is_string()),
        "{line}"
    );
    let why = line["energy"].as_str();
    assert!(line["energy_mj_per_run"].is_f64() || why.is_some_and(|why| why.starts_with("n/a: ")), "{line}");
    let parts = line["start_ms"].as_object().unwrap();
    let ms = |name: &str| parts[name].as_f64().unwrap();
    let sum: f64 = parts.keys().filter(|name| *name != "total").map(|name| ms(name)).sum();
    assert!((sum - ms("total")).abs() < 1e-3 && ms("first_answer") > 0.0, "{parts:?}");
}

#[test]
fn instances_on_the_processor_give_a_line_each_run_and_right_outputs() {
    need!(reference(), reference, "ONNX Runtime");
    let file = folder("cpu").join("runs.jsonl");
    let json = file.to_str().unwrap();
    let run =
        ["run", "squeezenet-1.1", "--engine", "cpu", "--seconds", "0.2", "--warmup", "0", "--json", json];
    said(0, &run);
    said(0, &[&run[..], &["--instances", "3", "--batch", "2", "--threads", "1"]].concat());
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    check_line(&lines[0], 1);
    check_line(&lines[1], 3);
    assert_eq!((&lines[0]["label"], &lines[0]["provenance"]["gpu"]), (&"none".into(), &"none".into()));
    let why = [&lines[0], &lines[1]].map(|line| line["no_overlap"].as_str().unwrap());
    assert!(why[0].contains("runs alone") && why[1].contains("no stamps"), "{why:?}");
    assert!(lines[0]["substitute"].as_str().unwrap().contains("in the place of a GPU"));
    // The manifest's bytes, for one image and for two.
    let bytes =
        |line: &Value| [line["input_bytes"].as_u64().unwrap(), line["output_bytes"].as_u64().unwrap()];
    assert_eq!((bytes(&lines[0]), bytes(&lines[1])), ([602_112, 4000], [1_204_224, 8000]));
    assert_eq!((&lines[1]["batch"], &lines[1]["threads"]), (&2.into(), &1.into()));
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

#[test]
fn the_twin_is_labelled_as_a_substitute() {
    let out = said(
        0,
        &["run", "squeezenet-1.1", "--engine", "twin", "--seconds", "0", "--warmup", "0", "--json", "-"],
    );
    let line: Value = serde_json::from_str(&out).unwrap();
    check_line(&line, 1);
    assert_eq!((&line["label"], &line["provenance"]["gpu"]), (&"emulated".into(), &"emulated".into()));
    assert_eq!((&line["layout"], &line["precision"]), (&"nchw".into(), &"fp32".into()));
    let bytes = |name: &str| line[name].as_u64().unwrap();
    assert!(bytes("arena_bytes") >= bytes("arena_bound_bytes") && bytes("arena_bound_bytes") > 600_000);
    assert!(bytes("arena_sum_bytes") > 2 * bytes("arena_bytes"), "many values share it: {line}");
}

/// Values of a file that `--outputs` wrote.
fn values(folder: &Path, name: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder.join(name)).unwrap();
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

#[test]
fn tensors_of_the_first_instance_are_written_as_little_endian_values() {
    need!(reference(), reference, "ONNX Runtime");
    let folder = folder("tensors");
    let of = |engine: &str, instances: &str| {
        let folder = folder.join(engine);
        let path = folder.to_str().unwrap();
        let run = ["run", "squeezenet-1.1", "--engine", engine, "--seconds", "0", "--warmup", "0"];
        let said = said(0, &[&run[..], &["--instances", instances, "--outputs", path]].concat());
        assert_eq!(said.contains("sum "), engine == "twin", "the memory of a plan: {said}");
        assert!(said.contains("overlap: none: "), "{said}");
        (values(&folder, "input-0.f32"), values(&folder, "output-0.f32"))
    };
    let ((input, wanted), (same_input, found)) = (of("cpu", "2"), of("twin", "1"));
    assert_eq!((input.len(), wanted.len()), (3 * 224 * 224, 1000));
    assert_eq!(input, same_input, "the first instance has the same input on each engine");
    let far = wanted.iter().zip(&found).map(|(wanted, found)| (wanted - found).abs()).fold(0.0, f32::max);
    assert!(far < 1e-4 && wanted.iter().any(|value| value.abs() > 1e-3), "{far}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn layers_have_the_work_that_was_counted_in_the_file() {
    let out = said(0, &["layers", "squeezenet-1.1", "--repeat", "1"]);
    let last = out.lines().last().unwrap();
    // zoo counts 349,152,000 multiply-accumulates; shares are of the whole.
    assert!(last.contains("349.152") && last.ends_with("32 steps"), "{out}");
    let shares =
        out.lines().filter_map(|line| line.split_once('%')?.0.split_whitespace().last()?.parse::<f64>().ok());
    let whole: f64 = shares.filter(|share| *share < 100.0).sum();
    assert!((whole - 100.0).abs() < 2.0, "{whole}: {out}");
}

/// Engines of a GPU that are here: our own, and cuDNN's where there is one.
fn engines_of_a_gpu() -> Vec<&'static str> {
    let tried = profiler(&["layers", "squeezenet-1.1", "--engine", "cuda", "--repeat", "1"]);
    let error = String::from_utf8_lossy(&tried.stderr);
    if tried.status.code() == Some(2) && error.contains("nvidia-cudnn") {
        println!("no cuDNN: {error}");
        return vec!["own"];
    }
    assert_eq!(tried.status.code(), Some(0), "{error}");
    vec!["own", "cuda"]
}

#[test]
fn gpu_instances_are_right_and_timed_however_they_are_launched() {
    need!(gpu::Gpu::first(), gpu, "one CUDA device");
    for engine in engines_of_a_gpu() {
        for (launch, precision) in [
            ("host", "fp32"),
            ("graph", "fp32"),
            ("self", "fp32"),
            ("while", "fp32"),
            ("self", "fp16"),
            ("while", "fp16"),
        ] {
            let run = ["run", "squeezenet-1.1", "--engine", engine, "--seconds", "0.3", "--json", "-"];
            let how = ["--instances", "4", "--launch", launch, "--precision", precision];
            let line: Value = serde_json::from_str(&said(0, &[&run[..], &how].concat())).unwrap();
            check_line(&line, 4);
            assert_eq!((&line["label"], &line["launch"]), (&"hardware".into(), &launch.into()));
            assert_eq!((&line["engine"], &line["precision"]), (&engine.into(), &precision.into()));
            let (span, turn) = (line["span_ns"].as_u64().unwrap(), line["turn_ns"].as_u64());
            assert_eq!(
                turn.map(|turn| turn > span && span > 0),
                (launch == "self").then_some(true),
                "{line}"
            );
            if matches!(launch, "self" | "while") {
                let number = |name: &str| line.pointer(name).and_then(Value::as_f64).unwrap();
                assert_eq!(line["clock"], "the GPU's global timer");
                // Of the order of stamps alone: some run began before another instance's ended, and ended
                // after.
                assert!(number("/overlap/overlapping_share") > 0.0, "{line}");
                assert!(number("/outputs_compared_meanwhile") >= 4.0, "{line}");
                assert!(number("/period/p50_ns") >= number("/run/min_ns"), "{line}");
            }
            let of_library = line["libraries"].as_str().unwrap().starts_with("cuDNN");
            assert_eq!(of_library, engine == "cuda", "{line}");
            let timed = line["layout_periods_us"].as_object().map_or(0, |periods| periods.len());
            assert_eq!(timed, if engine == "cuda" && precision == "fp32" { 2 } else { 0 }, "{line}");
        }
    }
}

#[test]
fn gpu_energy_and_connections_are_in_the_line() {
    let gpu = need!(gpu::Gpu::first(), gpu, "one CUDA device");
    let run =
        ["run", "squeezenet-1.1", "--engine", "own", "--seconds", "1.2", "--instances", "4", "--json", "-"];
    let line: Value = serde_json::from_str(&said(0, &run)).unwrap();
    check_line(&line, 4);
    assert_eq!(line["connections"], 32, "{line}");
    match gpu::nvml::EnergyCounter::of(gpu) {
        Ok(_) => {
            let joule = line["energy_mj_per_run"].as_f64().unwrap_or_else(|| panic!("{line}")) / 1e3;
            let watt = joule * line["runs_per_s"].as_f64().unwrap();
            assert!((5.0..2000.0).contains(&watt), "{watt} W: {line}");
        }
        Err(error) => assert!(line["energy"].as_str().unwrap().contains(&error.to_string()), "{line}"),
    }
}

#[test]
fn gpu_memory_that_is_full_ends_with_one_line_and_what_to_do() {
    let gpu = need!(gpu::Gpu::first(), gpu, "one CUDA device");
    let context = gpu::Context::new(gpu).unwrap();
    // Room for a context and kernels, not for an arena of 5 GB.
    let spare = gpu::DeviceMemory::new(&context, 2 << 30).unwrap();
    let (mut all, mut bytes) = (Vec::new(), 1 << 36);
    while bytes >= 1 << 24 {
        match gpu::DeviceMemory::new(&context, bytes) {
            Ok(memory) => all.push(memory),
            Err(_) => bytes /= 2,
        }
    }
    let run = ["run", "super-resolution-x1", "--engine", "own", "--batch", "32", "--seconds", "0"];
    let refused = |word: &str| {
        let output = profiler(&run);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
        let words = [word, "CUDA_ERROR_OUT_OF_MEMORY", "a smaller batch", "end what else uses that GPU"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused("profiler: ");
    drop(spare);
    refused("the arena: ");
}

#[test]
fn gpu_without_cudnn_is_told_where_it_comes_from_and_what_runs_without() {
    need!(gpu::Gpu::first(), gpu, "one CUDA device");
    let run = ["run", "squeezenet-1.1", "--engine", "cuda", "--cudnn", "/nowhere/libcudnn.so.9"];
    let output = profiler(&run);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    let words = ["--engine cuda", "/nowhere/libcudnn.so.9", "pip install", "DOORBELL_CUDNN", "own kernels"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn gpu_layers_are_timed_beside_the_graphs_period() {
    need!(gpu::Gpu::first(), gpu, "one CUDA device");
    for engine in engines_of_a_gpu() {
        let out = said(0, &["layers", "squeezenet-1.1", "--engine", engine, "--repeat", "1"]);
        let last = out.lines().last().unwrap();
        assert!(last.contains("349.152") && last.contains("period") && last.ends_with(" steps"), "{out}");
        // As many in the layout that has fewer.
        assert!(out.lines().filter(|line| line.contains("Conv+Relu")).count() >= 18, "{out}");
    }
}
