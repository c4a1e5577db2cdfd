//! The whole of `bench-models` with stand-ins for the profiler and for the peers, which speak by the real
//! protocol.

use std::fs;
use std::path::Path;
use std::process::Command;

use experiment::measured::Entry;
use experiment::paper::Rule;
use experiment::table::Row;
use serde_json::Value;

use super::turns::difference;
use super::*;
use crate::gpu_machine::example;
use crate::process;
use crate::refused::Refused;

/// Says a line, writes outputs of ones, and adds what it was told to a list.
const PROFILER: &str = r#"#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
exec python3 - "$@" <<'EOF'
import json, os, struct, sys
words = sys.argv[1:]
option = lambda name: words[words.index(name) + 1] if name in words else None
if option("--outputs"):
    os.makedirs(option("--outputs"), exist_ok=True)
    for name in ["input-0.f32", "output-0.f32"]:
        open(os.path.join(option("--outputs"), name), "wb").write(struct.pack("<4f", 1, 1, 1, 1))
by_itself = {"period": {"p50_ns": 107000}} if option("--launch") == "self" else {}
# The first start of a model compiles.
total = 5900 if option("--outputs") else 1900
line = {**by_itself, "run": {"p50_ns": 100000}, "outputs_wrong": WRONG, "outputs_compared": 7,
    "arena_bytes": 104, "arena_bound_bytes": 100, "start_ms": {"context": 1500, "total": total},
    "timer": {"name": "run_ns"}, "provenance": {"versions": {"onnxruntime": "1.31.1"}}MORE}
open(option("--json"), "a").write(json.dumps(line) + "\n")
EOF
"#;

/// Each way has a time of its own. A way that FAILS cannot be prepared, and one that DIES ends the process.
/// One that SLEEPS over a request needs longer than a point may take.
/// From the second request STICKS on, the first process fails requests, as after an error of CUDA.
const PEER: &str = r#"
import os, struct, sys, time
sys.path.insert(0, PROTOCOL)
from line_protocol import serve
turns = 0
times = {"eager-nchw": 160.0, "eager-nhwc": 80.0, "compiled-nchw": 125.0, "compiled-nhwc": 200.0}
times["python"] = 100.0
known = set()
marker, requests, broken = __file__ + ".broken", [], False
def answer(asked):
    global turns, broken
    way = asked.get("way")
    if (asked["do"], way) == SLEEPS:
        time.sleep(40)
    requests.append(asked["do"])
    if requests.count(STICKS) == 2 and not os.path.exists(marker):
        open(marker, "w").close()
        broken = True
    if broken and asked["do"] in ("prepare", "output", "time", STICKS):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if asked["do"] == "prepare":
        if way == FAILS:
            raise RuntimeError("no such layout\nmore")
        if way == DIES:
            os._exit(3)
        known.add(way)
        return {"prepare_s": 1.0}
    if asked["do"] == "forget":
        return {}
    if way not in known:
        raise ValueError("it was not prepared")
    if asked["do"] == "output":
        given = open(asked["input"], "rb").read()
        open(asked["output"], "wb").write(given[:12] + struct.pack("<f", OTHERS.get(way, LAST)))
        return {}
    print("for people")
    # The first of two repetitions is slower for this one.
    turns += way == "eager-nchw"
    period = times[way] + 20 * (way == "eager-nchw" and turns == 1)
    period = LAST_PERIODS.get(way, period) if turns == 2 else period
    return {"period_us": period, "alone_us": ALONE.get(way, period + 10)}
serve({"versions": {"torch": "2.9", "onnxruntime-python": "PYTHONS"}, "error": HELLO}, answer)
"#;

struct Stage {
    folder: PathBuf,
    gpu: bool,
    limit: Duration,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Names of all models.
fn models() -> Vec<String> {
    let files = workspace::names_in(&workspace::root().join("modelzoo/models"));
    files.iter().filter_map(|name| Some(name.strip_suffix(".toml")?.to_owned())).collect()
}

/// `changes`: of the scripts' words.
fn stage(name: &str, gpu: bool, changes: &[(&str, &str)]) -> Stage {
    let folder = std::env::temp_dir().join(format!("xtask-bench-models-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let protocol = format!("{:?}", workspace::root().join("experiments/peers").display().to_string());
    let words = [("PROTOCOL", &*protocol), ("WRONG", "0"), ("MORE", ""), ("FAILS", "0"), ("DIES", "0")];
    let more = [
        ("STICKS", "None"),
        ("SLEEPS", "None"),
        ("OTHERS", "{}"),
        ("LAST_PERIODS", "{}"),
        ("ALONE", "{}"),
        ("PYTHONS", "1.31.1"),
    ];
    let words = words.into_iter().chain(more).chain([("LAST", "1.00001"), ("HELLO", "None")]);
    let filled = |text: &str| {
        let changed =
            |(word, usual)| (word, changes.iter().find(|(of, _)| *of == word).map_or(usual, |to| to.1));
        words.clone().map(changed).fold(text.to_owned(), |text, (word, to)| text.replace(word, to))
    };
    process::script(&folder.join("profiler"), &filled(PROFILER));
    for script in ["compiled_graph.py", "onnxruntime_cpu.py"] {
        fs::write(folder.join(script), filled(PEER)).unwrap();
    }
    for model in models() {
        fs::write(folder.join(format!("{model}.seeded.onnx")), "").unwrap();
    }
    Stage { folder, gpu, limit: turns::POINT }
}

impl Stage {
    fn run(&self, resume: bool) -> Result<()> {
        self.run_on(&if self.gpu { example() } else { GpuMachine::default() }, resume)
    }

    fn run_on(&self, machine: &GpuMachine, resume: bool) -> Result<()> {
        let only = self.gpu.then(|| "fp16/resnet".to_owned());
        let out = Some(self.folder.join("out"));
        let options = Options { gpu: self.gpu, quick: true, only, out, resume, ..Options::default() };
        let mut experiment = Experiment::read(&workspace::root().join("experiments"), APP).unwrap();
        let (others, how) = (options.series(&mut experiment).unwrap(), options.how());
        let _locked = resume::lock(&how.out).unwrap();
        let [profiler, peers, store] = ["profiler", "", ""].map(|name| self.folder.join(name));
        execute(
            &experiment,
            (&options, &how),
            others,
            machine,
            &Programs { profiler, peers, store, limit: self.limit },
        )
    }

    fn summary(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.join("out/summary.json")).unwrap()).unwrap()
    }

    fn points(&self) -> Vec<Point> {
        measure::json_lines::read(&self.folder.join("out/results.jsonl")).unwrap().records
    }

    fn asked(&self) -> Vec<String> {
        let asked = fs::read_to_string(self.folder.join("asked")).unwrap();
        asked.lines().map(str::to_owned).collect()
    }
}

fn verdict<'a>(summary: &'a Value, id: &str) -> &'a Value {
    let verdicts = summary["verdicts"].as_array().unwrap();
    &verdicts.iter().find(|verdict| verdict["id"] == id).unwrap()["verdict"]
}

#[test]
fn the_fastest_of_four_ways_is_the_peer_and_a_missed_aim_is_no_failure() {
    let stage = stage("gpu", true, &[]);
    stage.run(false).unwrap();
    let point = stage.points().remove(0);
    let value = |name: &str| point.values[name];
    assert_eq!((value("ratio"), value("peer_us"), value("eager_nchw_us")), (1.25, 80.0, 170.0));
    assert_eq!(point.spread["eager_nchw_us"], [160.0, 180.0]);
    assert_eq!((value("self_ratio"), value("arena_ratio")), (107.0 / 90.0, 1.04));
    assert_eq!(
        (value("start_s"), value("first_start_s")),
        (3.9, 5.9),
        "of two repetitions, and of the first"
    );
    assert_eq!((value("start_ms/context"), value("start_ms/total")), (1500.0, 3900.0), "the parts too");
    assert!(value("difference") > 0.0 && !point.values.contains_key("over_span_us"));
    assert_eq!(point.detail["rounds"].as_array().unwrap().len(), 2);
    let summary = stage.summary();
    assert_eq!(summary["provenance"]["versions"]["torch"], "2.9");
    assert_eq!(
        summary["left_out"].as_array().map(Vec::len),
        Some(models().len()),
        "cpu/*: import asks for none"
    );
    // SqueezeNet and MobileNet were left out: one model that misses decides, one that holds is a part.
    for (id, said) in [("fp16-classifiers-aim", "not-reproduced"), ("fp16-classifiers", "in-part")] {
        assert_eq!(verdict(&summary, id), said, "{id}");
    }
    let said = lines(&point, &["over_span_us".to_owned()]).join("\n");
    for words in ["compiled-nhwc 200", "fastest \"eager-nhwc\"", "context 1500", "over_span_us: n/a"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let asked = stage.asked();
    assert_eq!(asked.len(), 4, "two launches a repetition");
    assert!(
        asked[0].contains("--precision fp16 --launch graph --outputs") && asked[1].contains("--launch self")
    );
    stage.run(true).unwrap();
    assert_eq!(stage.asked().len(), 4, "a finished point is kept");
    let other = GpuMachine { cudnn: Some("9.14.0".into()), ..example() };
    let error = stage.run_on(&other, true).unwrap_err().to_string();
    assert!(error.contains("another version of cudnn: `9.19.0` there, `9.14.0` in this run"), "{error}");
}

#[test]
fn rows_recorded_without_a_version_of_cudnn_stay_beside_a_part_with_one() {
    let stage = stage("part", true, &[]);
    stage.run(false).unwrap();
    let (experiments, file) = (workspace::root().join("experiments"), stage.folder.join("measured.json"));
    let imported = || {
        let part = |_: &str| file.clone();
        experiment::import::imported(&experiments, &stage.folder.join("out"), Some(&part)).unwrap().1
    };
    let mut before = imported();
    before.provenance.versions.remove("cudnn");
    before.rows[0].series = "gpu-fp32/resnet50-v1.5".into();
    experiment::measured::record(&file, before).unwrap();
    let entry = imported();
    let of: Vec<(&str, Option<&str>)> =
        entry.rows.iter().map(|row| (&*row.series, cudnn(&entry, row))).collect();
    assert_eq!(of, [("gpu-fp16/resnet50-v1.5", Some("9.19.0")), ("gpu-fp32/resnet50-v1.5", None)]);
}

fn cudnn<'a>(entry: &'a Entry, row: &'a Row) -> Option<&'a str> {
    entry.of(row).versions.get("cudnn").map(String::as_str)
}

#[test]
fn the_fastest_way_has_the_least_median_and_a_round_trip_is_the_least_of_all_ways() {
    let changes = [("LAST_PERIODS", "{\"compiled-nchw\": 70.0}"), ("ALONE", "{\"compiled-nhwc\": 60.0}")];
    let stage = stage("least", true, &changes);
    stage.run(false).unwrap();
    let point = stage.points().remove(0);
    assert_eq!(point.detail["fastest"], "eager-nhwc", "80 and 80 µs; another way has 125 and 70");
    assert_eq!((point.values["peer_us"], point.values["compiled_nchw_us"]), (75.0, 97.5));
    assert_eq!((point.values["peer_alone_us"], point.values["self_ratio"]), (60.0, 107.0 / 60.0));
}

#[test]
fn a_process_in_which_every_request_fails_costs_one_point_at_most() {
    for (request, missing) in [("forget", 0), ("prepare", 1), ("time", 1)] {
        let stage = stage(request, false, &[("STICKS", &format!("\"{request}\""))]);
        assert_eq!(stage.run(false).is_err(), missing > 0, "{request}");
        let points = stage.points();
        let broken: Vec<_> = points.iter().filter(|point| !point.is_whole()).collect();
        assert_eq!((points.len(), broken.len()), (models().len(), missing), "{request}: {broken:?}");
    }
}

#[test]
fn two_versions_of_onnx_runtime_leave_no_number() {
    let stage = stage("versions", false, &[("PYTHONS", "1.20.0")]);
    let error = format!("{:#}", stage.run(false).unwrap_err());
    for words in ["1.31.1 in our engine", "1.20.0 in the peer's Python", "--python", "DOORBELL_ONNXRUNTIME"] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert!(stage.points().iter().all(|point| point.values.is_empty() && !point.is_whole()));
}

/// What a Python says on stdout.
fn python(words: &[&str], variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new("python3");
    command.args(words).envs(variables.iter().copied()).env("PYTHONDONTWRITEBYTECODE", "1");
    process::output(&mut command, Duration::from_secs(60)).unwrap()
}

#[test]
fn the_fetched_wheel_is_preferred_and_the_pythons_own_stands_in_for_it() {
    let script = workspace::root().join("experiments/peers/onnxruntime_cpu.py").display().to_string();
    for (name, wheel, wanted) in [
        ("wheel", "__version__ = '1.31.1'", "1.31.1"),
        ("own", "from . import made_for_another_python", "1.20.0"),
    ] {
        let stage = stage(name, false, &[]);
        let [own, fetched] = ["own", "fetched"].map(|folder| stage.folder.join(folder));
        for (package, text) in [
            (own.join("numpy"), ""),
            (own.join("onnxruntime"), "__version__ = '1.20.0'"),
            (fetched.join("onnxruntime"), wheel),
        ] {
            fs::create_dir_all(&package).unwrap();
            fs::write(package.join("__init__.py"), text).unwrap();
        }
        let said = python(&[&script], &[("PYTHONPATH", &own), ("DOORBELL_WHEEL", &fetched)]);
        let hello: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(hello["versions"]["onnxruntime-python"], wanted, "{hello}");
    }
}

/// Reads attributes of an ONNX file by the peer's script, without PyTorch. Bytes as onnx.proto3 has them:
/// `name` is field 1, `f` field 2, `type` field 20, and FLOAT is 1.
const ATTRIBUTES: &str = r#"
import sys, types
class Absent(types.ModuleType):
    def __getattr__(self, name):
        return sys.modules.get(f"{self.__name__}.{name}", object)
for name in ["", "._dynamo", "._inductor", "._inductor.config", ".nn", ".nn.functional"]:
    sys.modules["torch" + name] = Absent("torch" + name)
sys.path.insert(0, sys.argv[1])
from compiled_graph import attribute
print(attribute(b"\x0a\x05alpha\xa0\x01\x01"), attribute(b"\x0a\x03min\x15\0\0\0\x3f\xa0\x01\x01"))
"#;

#[test]
fn an_attribute_of_zero_which_a_file_leaves_out_is_read() {
    let peers = workspace::root().join("experiments/peers").display().to_string();
    assert_eq!(python(&["-c", ATTRIBUTES, &peers], &[]).trim(), "('alpha', 0.0) ('min', 0.5)");
}

#[test]
fn a_spec_that_the_profiler_measures_names_its_sources() {
    for name in [APP, "fig1", "fig2"] {
        let sources = Experiment::read(&workspace::root().join("experiments"), name).unwrap().spec.sources;
        for part in ["gpu/kernels", "gpu/src", "inference/kernels", "inference/src", "zoo/src"] {
            assert!(sources.contains(&format!("crates/{part}")), "{name}: {part}");
        }
    }
}

#[test]
fn a_span_by_the_gpus_clock_gives_what_a_launch_costs() {
    let stage = stage("span", true, &[("MORE", ", \"span_ns\": 98000, \"turn_ns\": 107000")]);
    stage.run(false).unwrap();
    assert_eq!(stage.points()[0].values["over_span_us"], 9.0);
    assert_eq!(verdict(&stage.summary(), "over-span"), "not-reproduced");
}

#[test]
fn a_way_that_fails_is_printed_and_the_rest_is_measured() {
    for (name, change, words) in [
        ("fails", ("FAILS", "\"eager-nhwc\""), "RuntimeError: no such layout (whole log"),
        ("dies", ("DIES", "\"eager-nhwc\""), "ended with status 3"),
    ] {
        let stage = stage(name, true, &[change]);
        stage.run(false).unwrap();
        let point = stage.points().remove(0);
        assert_eq!((point.values["ratio"], point.values["peer_us"]), (0.8, 125.0), "{name}");
        let said = lines(&point, &[]).join("\n");
        assert!(said.contains(words) && said.contains("eager-nhwc: n/a"), "{name}: {said}");
    }
}

#[test]
fn a_point_ends_in_its_time_without_the_way_that_would_take_it_all() {
    let late = |request: &str, seconds| {
        let mut stage = stage(
            &format!("late-{request}"),
            true,
            &[("SLEEPS", &format!("(\"{request}\", \"compiled-nhwc\")"))],
        );
        stage.limit = Duration::from_secs(seconds);
        let _ = stage.run(false);
        stage.points().remove(0)
    };
    let point = late("prepare", 16);
    let why = point.detail["failed"]["compiled-nhwc"].as_str().unwrap_or_default();
    assert!(point.is_whole() && why.ends_with("half of what a point had left"), "{:?}", point.detail);
    assert_eq!(point.values["peer_us"], 80.0, "of the ways that a new process prepared again");
    let point = late("time", 16);
    let missing = point.missing.unwrap_or_default();
    assert!(missing.contains("compiled-nhwc: it did not say `answer` within"), "{missing}");
}

#[test]
fn outputs_that_are_not_the_peers_or_not_our_own_leave_no_number() {
    for (name, change, words) in [
        ("peer", ("LAST", "1.2"), "outputs differ from those of each way of the peer: eager-nchw by 9."),
        ("nan", ("LAST", "float('nan')"), "is no number"),
        ("own", ("WRONG", "3"), "3 of 7 outputs of ours are wrong"),
    ] {
        let stage = stage(name, true, &[change]);
        let error = format!("{:#}", stage.run(false).unwrap_err());
        let point = stage.points().remove(0);
        assert!(error.contains(words) && point.values.is_empty() && !point.is_whole(), "{name}: {error}");
    }
}

#[test]
fn one_way_with_other_outputs_is_named_and_judged_and_the_point_is_kept() {
    let stage = stage("other", true, &[("OTHERS", "{\"compiled-nchw\": 1.2}")]);
    stage.run(false).unwrap();
    let point = stage.points().remove(0);
    let apart = |name: &str| point.values[name];
    assert!(point.is_whole() && apart("compiled_nchw_difference") > 4e-2);
    assert_eq!(apart("difference"), apart("compiled_nchw_difference"));
    assert!(apart("eager_nchw_difference") < 1e-5 && apart("compiled_nhwc_difference") < 1e-5);
    assert_eq!(verdict(&stage.summary(), "fp16-outputs"), "not-reproduced");
    let said = lines(&point, &[]).join("\n");
    assert!(said.contains("compiled-nchw: its outputs differ from ours by 9."), "{said}");
    assert_eq!(said.matches("its outputs differ").count(), 1, "{said}");
}

#[test]
fn the_spec_allows_the_differences_that_a_run_allows() {
    let experiment = Experiment::read(&workspace::root().join("experiments"), APP).unwrap();
    let stage = stage("allowed", true, &[]);
    let path = stage.folder.join("one");
    fs::write(&path, 1f32.to_le_bytes()).unwrap();
    for precision in ["fp32", "tf32", "fp16"] {
        let id = format!("{precision}-outputs");
        let claim = experiment.spec.claims.iter().find(|claim| claim.id == id).unwrap();
        let allowed = difference(precision, &path, &path).unwrap().1;
        assert_eq!(claim.series, [format!("gpu-{precision}/*")]);
        assert!(
            matches!(&claim.rule, Rule::Bound { field, at_most, .. } if field == "difference" && *at_most == Some(allowed))
        );
    }
}

#[test]
fn a_number_that_is_none_is_a_difference_on_either_side() {
    let stage = stage("difference", true, &[]);
    let write = |name: &str, values: [f32; 2]| {
        let path = stage.folder.join(name);
        fs::write(&path, values.map(f32::to_le_bytes).concat()).unwrap();
        path
    };
    let (good, bad) = (write("good", [1.0, 2.0]), write("bad", [1.0, f32::NAN]));
    for precision in ["fp32", "tf32", "fp16"] {
        assert_eq!(difference(precision, &good, &good).unwrap().0, 0.0);
        for (ours, theirs) in [(&good, &bad), (&bad, &good)] {
            assert!(difference(precision, ours, theirs).unwrap_err().to_string().contains("is no number"));
        }
    }
}

#[test]
fn on_the_processor_the_peer_is_onnx_runtime_from_python_and_the_results_can_be_imported() {
    let stage = stage("cpu", false, &[]);
    stage.run(false).unwrap();
    let (point, summary) = (stage.points().remove(0), stage.summary());
    assert_eq!((point.values["ratio"], summary["label"].as_str()), (1.0, Some("none")));
    assert_eq!(verdict(&summary, "cpu"), "reproduced");
    assert_eq!(verdict(&summary, "fp32"), &json!({ "needs-hardware": ["gpu"] }));
    let asked = &stage.asked()[0];
    assert!(asked.contains("--engine cpu") && asked.contains("--threads"), "{asked}");
    let experiments = workspace::root().join("experiments");
    let (name, entry, _) =
        experiment::import::imported(&experiments, &stage.folder.join("out"), None).unwrap();
    assert_eq!((name.as_str(), entry.rows.len()), (APP, models().len()));
}

#[test]
fn what_is_missing_is_refused_with_a_remedy() {
    let refused = |stage: Stage, words: &[&str]| {
        let error = stage.run(false).unwrap_err();
        let said = format!("{error:#}");
        assert!(error.is::<Refused>() && words.iter().all(|word| said.contains(word)), "{said}");
    };
    refused(
        stage("hello", true, &[("HELLO", "\"torch finds no GPU\"")]),
        &["torch finds no GPU", "--python"],
    );
    refused(stage("torch", true, &[("PROTOCOL", "nothing")]), &["NameError", "--python"]);
    let empty = stage("empty", true, &[]);
    fs::remove_file(empty.folder.join("resnet50-v1.5.seeded.onnx")).unwrap();
    refused(empty, &["resnet50-v1.5.seeded.onnx: not built", "zoo build"]);
    let options = Options { only: Some("cpu/squeznet-1.1".into()), ..Options::default() };
    let mut experiment = Experiment::read(&workspace::root().join("experiments"), APP).unwrap();
    let error = options.series(&mut experiment).unwrap_err().to_string();
    assert!(error.contains("the nearest is `cpu/squeezenet-1.1`; there are: "), "{error}");
}

#[test]
fn every_model_of_the_zoo_is_measured_in_every_precision() {
    let series = Experiment::read(&workspace::root().join("experiments"), APP).unwrap();
    let series = series.spec.grid(Extent::Normal).series;
    for model in models() {
        for kind in ["gpu-fp32", "gpu-tf32", "gpu-fp16", "cpu"] {
            assert!(series.contains(&format!("{kind}/{model}")), "{kind}/{model}");
        }
    }
}
