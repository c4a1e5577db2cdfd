//! What `profiler run` measures of a model: the points of figures 1 and 2.
//!
//! A series is an engine and a model: `gpu-NAME` runs NVIDIA's libraries and our kernels in a self-launching
//! graph, `cpu-NAME` runs ONNX Runtime instead. With a GPU the substitutes are left out, without one the
//! GPU's series. Without cuDNN our kernels alone compute the GPU's series; a message and each point say so.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::spec::Extent;
use experiment::statistics::log_fit;
use experiment::{Experiment, Spec, resume};
use measure::{Label, Part, Provenance, json_lines};
use serde_json::{Map, Value, json};

use super::app;
use super::judged::judged;
use super::options::Options;
use super::samples;
use crate::gpu_machine::GpuMachine;
use crate::process::run_told;
use crate::{setup, wheels, workspace, zoo};

/// What a spec calls points of the profiler, and the program's name.
pub const APP: &str = "profiler";
/// Longest that one point may take: each ends before a machine that is lent for ten minutes does.
const LIMIT: Duration = Duration::from_secs(9 * 60);

/// Measures and reports.
pub fn run(experiment: Experiment, options: &Options) -> Result<()> {
    let how = options.how(&experiment);
    if options.dry_run {
        say!("{}", dry_run(&experiment, &how));
        return Ok(());
    }
    let _locked = app::begin(&experiment.spec, &how, &app::known)?;
    let machine = GpuMachine::ask()?;
    if machine.gpu().is_none() {
        setup::onnx_runtime(options.no_install)?;
    }
    workspace::build_programs("the profiler", &["-p", APP])?;
    execute(experiment, &how, &machine, &workspace::programs().join(APP))
}

/// Measures by a profiler, which is a stand-in in tests.
fn execute(
    mut experiment: Experiment,
    how: &resume::Options,
    machine: &GpuMachine,
    program: &Path,
) -> Result<()> {
    let mut provenance = workspace::provenance()?;
    let mut on_gpu = CUDA;
    let engine = match machine.gpu() {
        Some(_) => {
            measured_on(machine, &mut provenance);
            on_gpu = engine_of(machine);
            "gpu-"
        }
        None => {
            say!("no GPU here ({}): ONNX Runtime on the processor stands in its place", machine.why_none());
            "cpu-"
        }
    };
    let mut grid = experiment.spec.grid(how.extent);
    let left_out = grid.series.extract_if(.., |series| !series.starts_with(engine)).collect();
    if engine == "gpu-" {
        experiment.spec.keep(|series| series.starts_with(engine));
    }
    let logs = how.out.join("logs");
    let profiler = Profiler { program, machine, logs: &logs, limit: LIMIT };
    let spec = &experiment.spec;
    // One run of the profiler a point.
    let mut bench = |key: &Key, seconds: f64| {
        let arguments = arguments(spec, how.extent, on_gpu, key, seconds)?;
        let line = profiler.line(&format!("{}-{}", key.series, key.x), &arguments)?;
        Ok(Point { seconds, ..point(&spec.name, key.clone(), &line, &provenance)? })
    };
    let earlier = samples::measure(&experiment, how, &provenance, &grid, &mut bench)?;
    let mut fits = Map::new();
    let mut extra = Extra { left_out, ..Extra::default() };
    if experiment.spec.plots.iter().any(|plot| plot.log_fit) {
        for series in &grid.series {
            let Some(fit) = log_fit(&earlier.points, series, "runs_per_s") else { continue };
            extra.lines.push(format!("{series}: runs per second = {fit}"));
            fits.insert(series.clone(), json!({ "a": fit.a, "k": fit.k, "r_squared": fit.r_squared }));
        }
    }
    let timed = earlier.points.iter().find(|point| point.has_numbers());
    extra.timers = json!(timed.map(|point| vec![&point.detail["timer"]]));
    extra.ratios = Value::Object(fits);
    run::report(&experiment, how, &earlier, &extra)
}

/// Says that our engine was measured on this machine's GPU. cuDNN's version is part of it: `--resume` refuses
/// points of another one.
pub fn measured_on(machine: &GpuMachine, provenance: &mut Provenance) {
    machine.name_in(provenance);
    provenance.gpu = Label::Hardware;
    provenance.versions.insert("cudnn".into(), machine.cudnn.clone().unwrap_or_else(|| "none".into()));
}

/// The profiler's engine for a GPU's series, and the one without cuDNN.
const CUDA: &str = "cuda";
const OWN: &str = "own";

/// The engine of this machine's GPU; says why, if it is not the usual one.
fn engine_of(machine: &GpuMachine) -> &'static str {
    if machine.cudnn.is_some() {
        return CUDA;
    }
    let why = machine.why_no_cudnn.as_deref().unwrap_or("gpu-probe did not say why");
    say!("no cuDNN here ({why}): our kernels compute every step of gpu-*, --engine {OWN}");
    OWN
}

/// The program, and what it needs of this machine.
pub struct Profiler<'a> {
    /// A stand-in in tests.
    pub program: &'a Path,
    pub machine: &'a GpuMachine,
    /// Folder of its lines and of what it says.
    pub logs: &'a Path,
    /// Longest that a run may take.
    pub limit: Duration,
}

impl Profiler<'_> {
    /// The JSON line of a run; `name`: of the log. Errors: refused, crashed, no line; but not wrong outputs.
    pub fn line(&self, name: &str, arguments: &[String]) -> Result<Value> {
        let (lines, log) = (self.logs.join(format!("{name}.jsonl")), self.logs.join(format!("{name}.log")));
        // A line of an earlier run must not be taken for this one's.
        let _ = fs::remove_file(&lines);
        let mut command = Command::new(self.program);
        command.args(arguments);
        command.arg("--json").arg(&lines).arg("--store").arg(zoo::folder());
        command.arg("--manifests").arg(workspace::root().join("modelzoo/models"));
        command.envs(self.machine.toolkit.iter().map(|toolkit| (wheels::CUDA.variable, toolkit)));
        let reference: Option<PathBuf> = Some(wheels::ONNX_RUNTIME.used()).filter(|folder| folder.is_dir());
        command.envs(reference.map(|folder| (wheels::ONNX_RUNTIME.variable, folder)));
        // Where an output is wrong, the line says how many.
        let (ended, last) = run_told(&mut command, &log, self.limit, APP)?;
        let records = json_lines::read::<Value>(&lines)?.records;
        match <[Value; 1]>::try_from(records) {
            Ok([line]) => Ok(line),
            Err(records) => bail!("{APP} {ended}, and left {} lines of results: {last}", records.len()),
        }
    }
}

/// What the profiler is told of a point.
fn arguments(spec: &Spec, extent: Extent, on_gpu: &str, key: &Key, seconds: f64) -> Result<Vec<String>> {
    let (engine, model) = key.series.split_once('-').context("a series is an engine and a model")?;
    let engine = match engine {
        "gpu" => on_gpu,
        "cpu" => "cpu",
        other => bail!("series {}: there is no engine `{other}`", key.series),
    };
    let warmup = spec.options.get("warmup_seconds").and_then(toml::Value::as_float).unwrap_or(0.5);
    let option = |name| spec.series.get(&key.series).and_then(|own| own.options.get(name));
    let precision = option("precision").and_then(toml::Value::as_str).unwrap_or("fp32");
    let runs =
        option("full_runs").and_then(toml::Value::as_integer).filter(|_| extent == Extent::Full).unwrap_or(0);
    let words = ["run", model, "--engine", engine, "--instances"].map(str::to_owned).into_iter();
    let values =
        [key.x.to_string(), "--seconds".into(), seconds.to_string(), "--warmup".into(), warmup.to_string()];
    let rest = ["--runs".into(), runs.to_string(), "--precision".into(), precision.to_owned()];
    Ok(words.chain(values).chain(rest).collect())
}

/// The profiler's line as a point. Error: it lacks a number, or is of another engine's kind.
fn point(experiment: &str, key: Key, line: &Value, provenance: &Provenance) -> Result<Point> {
    let number = |name: &str| {
        let found = line.pointer(name).and_then(Value::as_f64);
        found.with_context(|| format!("{APP}'s line has no number {name}"))
    };
    let quantiles = line["quantiles_ns"].as_array().map_or(0, Vec::len);
    ensure!(quantiles == 1001, "{APP}'s line has {quantiles} quantiles, not 1001");
    let label: Label = serde_json::from_value(line["label"].clone()).context("its label")?;
    ensure!(label == provenance.gpu, "{APP} says gpu {label}, this machine {}", provenance.gpu);
    let rate = number("/runs_per_s")?;
    let gbps = |bytes: f64| bytes * 8.0 * rate / 1e9;
    let ms = |name: &str| Ok::<f64, anyhow::Error>(number(name)? / 1e6);
    let mut values = BTreeMap::from([
        ("runs_per_s", rate),
        ("runs", number("/runs")?),
        ("least_ms", ms("/quantiles_ns/0")?),
        ("p50_ms", ms("/quantiles_ns/500")?),
        ("p99_ms", ms("/quantiles_ns/990")?),
        ("spread_ms", ms("/quantiles_ns/990")? - ms("/quantiles_ns/10")?),
        ("input_gbps", gbps(number("/input_bytes")?)),
        ("output_gbps", gbps(number("/output_bytes")?)),
    ]);
    if key.x == 1 {
        values.insert("alone_p50_ms", values["p50_ms"]);
    }
    let stamped = ["/outputs_compared_meanwhile", "/overlap/overlapping_share", "/overlap/at_once_mean"];
    let named = |place: &'static str| Some((place.rsplit('/').next()?, number(place).ok()?));
    values.extend(stamped.into_iter().filter_map(named));
    let wrong = number("/outputs_wrong")?;
    let missing = (wrong > 0.0).then(|| format!("{wrong} of {} outputs are wrong", line["outputs_compared"]));
    let missing = missing.or_else(|| without_proof(key.x, label, line));
    let detail = "runs quantiles_ns timer clock batch engine precision layout libraries launch threads connections \
                  overlap no_overlap outputs_compared energy_mj_per_run energy";
    let detail = detail.split(' ').filter_map(|name| Some((name.to_owned(), line.get(name)?.clone())));
    Ok(Point {
        values: values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        missing,
        detail: Value::Object(detail.collect()),
        ..Point::new(experiment, key, provenance.label(&[Part::Gpu]), provenance.clone())
    })
}

/// What a GPU's point lacks: outputs that were compared while it ran, or overlap of its several instances.
/// Substitutes have no stamps.
fn without_proof(instances: u64, label: Label, line: &Value) -> Option<String> {
    if label == Label::Hardware && line["outputs_compared_meanwhile"].as_u64().unwrap_or(0) == 0 {
        return Some("no outputs were compared while the instances ran: a copy waited for their end".into());
    }
    let share = line.pointer("/overlap/overlapping_share").and_then(Value::as_f64);
    let why = line["no_overlap"].as_str().unwrap_or("no run overlaps one of another instance");
    let lacks = instances > 1 && label == Label::Hardware && share.is_none_or(|share| share <= 0.0);
    lacks.then(|| format!("{instances} instances are not shown to run at the same time: {why}"))
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, how: &resume::Options) -> String {
    let spec = &experiment.spec;
    let grid = spec.grid(how.extent);
    let mut lines = vec![
        format!("{}: {}", spec.name, spec.title),
        format!(
            "with a GPU the series gpu-*, without one cpu-*, each with {:?} instances × {} repetitions, {} s each",
            grid.xs(),
            grid.repeat,
            grid.seconds
        ),
        format!("results: {}", how.out.display()),
    ];
    for key in grid.keys().iter().filter(|key| key.repetition == 0 && key.x == grid.xs()[0]) {
        let words = arguments(spec, how.extent, CUDA, key, grid.seconds).map(|words| words.join(" "));
        lines.push(words.map_or_else(|error| error.to_string(), |words| format!("{APP} {words}")));
    }
    lines.extend(spec.pictures().map(|name| format!("draws: {name}")));
    lines.extend(judged(experiment, false));
    lines.push("a point takes less than nine minutes; `timeout 540 … --resume` measures in parts".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::experiments;
    use crate::gpu_machine::example;
    use crate::process;
    use ::zoo::onnx_runtime::Search;
    use experiment::refused::Refused;

    /// A profiler's line; its times grow with the instances, logarithmically, as its rate does.
    const PROFILER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --instances) n=$2 ;; --json) json=$2 ;; --engine) engine=$2 ;; esac
    shift
done
[ $engine = cpu ] && label=none || label=hardware
python3 - $n $label $json $engine <<'EOF'
import json, math, sys
n, label, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
line = {"kind": "profiler-run", "runs": 500 * n, "runs_per_s": 2000 + 1300 * math.log2(n), "input_bytes": 602112, "output_bytes": 4000,
    "timer": {"name": "run_ns"}, "engine": sys.argv[4], "outputs_compared": n, "outputs_wrong": WRONG, "label": label,
    **({"outputs_compared_meanwhile": 7} if label == "hardware" else {}),
    "overlap": {"overlapping_share": SHARE, "at_once_mean": 1.9} if n > 1 and label == "hardware" else None, "connections": 32,
    "quantiles_ns": [480000 * n + 100 * n * n * place for place in range(QUANTILES)]}
open(out, "a").write(json.dumps(line) + "\n")
EOF
"#;

    fn tried(name: &str, figure: &str, machine: &GpuMachine, profiler: &str) -> (Result<()>, PathBuf) {
        let folder = std::env::temp_dir().join(format!("xtask-models-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        process::script(&folder.join(APP), profiler);
        let options = Options { quick: true, out: Some(folder.join("out")), ..Options::default() };
        let experiment = Experiment::read(&experiments(), figure).unwrap();
        let how = options.how(&experiment);
        let _locked = resume::lock(&how.out).unwrap();
        (execute(experiment, &how, machine, &folder.join(APP)), folder.join("out"))
    }

    fn good() -> String {
        PROFILER.replace("WRONG", "0").replace("QUANTILES", "1001").replace("SHARE", "0.9")
    }

    fn summary(out: &Path) -> Value {
        serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap()
    }

    #[test]
    fn a_dry_run_says_series_pictures_and_claims() {
        let experiment = Experiment::read(&experiments(), "fig2").unwrap();
        let text = dry_run(&experiment, &Options::default().how(&experiment));
        for words in
            ["--instances 1 ", "draws: ", "judges 3 claims of experiments/fig2/paper.toml: log-throughput"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn figure_2_on_a_gpu_judges_its_claims_and_without_one_says_that_they_need_it() {
        let mut none = example();
        none.gpus.clear();
        let without = GpuMachine { cudnn: None, ..example() };
        for (name, machine, verdict, label, engine, by) in [
            ("gpu", example(), json!("reproduced"), "hardware", "gpu-", "cuda"),
            ("own", without, json!("reproduced"), "hardware", "gpu-", "own"),
            ("cpu", none, json!({ "needs-hardware": ["gpu"] }), "none", "cpu-", "cpu"),
        ] {
            let (result, out) = tried(name, "fig2", &machine, &good());
            result.unwrap();
            let summary = summary(&out);
            assert_eq!(
                (&summary["label"], &summary["timers"]),
                (&label.into(), &json!([{ "name": "run_ns" }]))
            );
            let points = json_lines::read::<Point>(&out.join("results.jsonl")).unwrap().records;
            let cudnn = points[0].provenance.versions.get("cudnn").map(String::as_str);
            assert!(points.iter().all(|point| point.detail["engine"] == by), "{name}");
            let value = |point: &Point, name: &str| point.values.get(name).copied();
            let proven = |point: &&Point| {
                point.detail["overlap"]["overlapping_share"] == 0.9
                    && ["overlapping_share", "at_once_mean"].map(|name| value(point, name))
                        == [Some(0.9), Some(1.9)]
            };
            let count = if label == "hardware" { 4 } else { 0 };
            assert_eq!(points.iter().filter(proven).count(), count, "{name}: levels 4 and 16 of two models");
            let compared = (label == "hardware").then_some(7.0);
            assert!(points.iter().all(|point| value(point, "outputs_compared_meanwhile") == compared));
            assert_eq!(
                cudnn,
                [("cuda", "9.19.0"), ("own", "none")]
                    .into_iter()
                    .find_map(|(engine, version)| (engine == by).then_some(version))
            );
            // An import asks for all other series.
            let other = if engine == "gpu-" { "cpu-" } else { "gpu-" };
            let left_out = [format!("{other}squeezenet-1.1"), format!("{other}resnet50-v1.5")];
            assert_eq!(summary["left_out"], json!(left_out), "{name}");
            let verdicts = summary["verdicts"].as_array().unwrap();
            assert_eq!(verdicts.len(), 3);
            assert!(verdicts.iter().all(|one| one["verdict"] == verdict), "{name}: {verdicts:?}");
            let rows = summary["rows"].as_array().unwrap();
            assert!(
                rows.len() == 6 && rows.iter().all(|row| row["series"].as_str().unwrap().starts_with(engine))
            );
            let fit = &summary["ratios"][format!("{engine}squeezenet-1.1")];
            assert!(
                (fit["a"].as_f64().unwrap() - 1300.0).abs() < 1e-6
                    && fit["r_squared"].as_f64().unwrap() > 0.999
            );
            for plot in ["throughput.svg", "cdf-squeezenet.svg", "cdf-resnet50.svg"] {
                assert!(out.join(plot).is_file(), "{plot}");
            }
            let cdf = fs::read_to_string(out.join("cdf-squeezenet.svg")).unwrap();
            assert!(cdf.contains("16 at once, 8000 runs"), "each curve says its count");
            fs::remove_dir_all(out.parent().unwrap()).unwrap();
        }
    }

    #[test]
    fn figure_2_goes_on_from_results_that_were_brought_to_another_machine() {
        let (result, out) = tried("brought", "fig2", &example(), &good());
        result.unwrap();
        let folder = out.parent().unwrap();
        let all = fs::read_to_string(out.join("results.jsonl")).unwrap();
        // As a machine leaves it that goes away: two whole lines and a torn one, without summary and logs.
        let brought = folder.join("brought");
        let whole: usize = all.split_inclusive('\n').take(2).map(str::len).sum();
        fs::create_dir(&brought).unwrap();
        fs::write(brought.join("results.jsonl"), &all[..whole + 40]).unwrap();
        let calls = folder.join("calls");
        let counted = format!("#!/bin/sh\necho \"$*\" >> {}", calls.display());
        process::script(&folder.join(APP), &good().replacen("#!/bin/sh", &counted, 1));
        let options = Options { quick: true, resume: true, out: Some(brought.clone()), ..Options::default() };
        let experiment = || Experiment::read(&experiments(), "fig2").unwrap();
        let how = options.how(&experiment());
        let locked = app::begin(&experiment().spec, &how, &app::known).unwrap();
        execute(experiment(), &how, &example(), &folder.join(APP)).unwrap();
        assert_eq!(fs::read_to_string(&calls).unwrap().lines().count(), 4, "two of six points were there");
        let keys = |out: &Path| -> Vec<Key> {
            let points = json_lines::read::<Point>(&out.join("results.jsonl")).unwrap().records;
            points.iter().map(Point::key).collect()
        };
        assert_eq!(keys(&brought), keys(&out));
        // Not whether other programs disturbed a run: that is the machine's, and not the points'.
        let verdicts = |out: &Path| -> Vec<[Value; 3]> {
            let verdicts = summary(out)["verdicts"].as_array().unwrap().clone();
            verdicts.into_iter().map(|one| ["id", "verdict", "evidence"].map(|of| one[of].clone())).collect()
        };
        assert!(
            verdicts(&out).len() == 3 && verdicts(&brought) == verdicts(&out),
            "{:?}",
            verdicts(&brought)
        );
        // What was measured with another library is no part of it.
        let other = GpuMachine { cudnn: Some("9.14.0".into()), ..example() };
        let error = execute(experiment(), &how, &other, &folder.join(APP)).unwrap_err().to_string();
        assert!(error.contains("another version of cudnn: `9.19.0` there, `9.14.0` in this run"), "{error}");
        drop(locked);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn figure_1_multiplies_the_manifests_bytes_by_the_rate() {
        let (result, out) = tried("bytes", "fig1", &example(), &good());
        result.unwrap();
        assert!(summary(&out)["rows"][0]["content_ok"] == true);
        let row = &summary(&out)["rows"][0];
        let found = row["values"]["input_gbps"][0].as_f64().unwrap();
        assert!((found - 602_112.0 * 8.0 * 2000.0 / 1e9).abs() < 1e-9, "{row}");
        let bars = fs::read_to_string(out.join("bandwidth.svg")).unwrap();
        assert!(
            ["PCIe 5.0", "input, one instance", "output, best concurrency"]
                .iter()
                .all(|word| bars.contains(word))
        );
        fs::remove_dir_all(out.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_result_is_said_so() {
        let script = |text: &str| format!("#!/bin/sh\n{text}\n");
        for (name, profiler, words, is_refused) in [
            ("refused", script("echo 'profiler: no model'; exit 2"), "no model", true),
            ("crashed", script("echo 'half way'; exit 3"), "ended with status 3: half way", false),
            ("nothing", script("true"), "left 0 lines", false),
            ("quantiles", good().replace("1001", "7"), "7 quantiles, not 1001", false),
            ("label", good().replace("=hardware", "=emulated"), "says gpu emulated", false),
            (
                "alone",
                good().replace("0.9", "0.0"),
                "4 instances are not shown to run at the same time",
                false,
            ),
            (
                "unseen",
                good().replace("meanwhile\": 7", "meanwhile\": 0"),
                "no outputs were compared while the instances ran",
                false,
            ),
            ("wrong", good().replace("_wrong\": 0", "_wrong\": 3"), "3.0 of 1 outputs are wrong", false),
        ] {
            let (result, out) = tried(name, "fig2", &example(), &profiler);
            let error = result.unwrap_err();
            let said = format!("{error:#}").replace("3 of 1", "3.0 of 1");
            assert!(said.contains(words), "{name}: {said}");
            assert_eq!(error.is::<Refused>(), is_refused, "{name}");
            fs::remove_dir_all(out.parent().unwrap()).unwrap();
        }
    }

    /// The profiler that cargo has built, where it finds ONNX Runtime.
    fn built() -> std::result::Result<PathBuf, String> {
        Search::here(None).find()?;
        let profiles = ["debug", "release"].map(|profile| workspace::target_dir().join(profile).join(APP));
        let found = profiles.into_iter().find(|program| program.is_file());
        found.ok_or_else(|| format!("no {APP} in {}", workspace::target_dir().display()))
    }

    /// The real profiler runs both models by ONNX Runtime, at the levels of the spec for a tenth of its time.
    #[test]
    fn a_real_quick_run_on_the_processor_is_imported_drawn_and_needs_a_gpu_for_its_claims() {
        let profiler = measure::need!(built(), reference, "`cargo build -p profiler` and ONNX Runtime");
        let folder = std::env::temp_dir().join(format!("xtask-models-{}-real", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let (from, to) = (experiments().join("fig2"), folder.join("experiments/fig2"));
        fs::create_dir_all(&to).unwrap();
        fs::copy(from.join("paper.toml"), to.join("paper.toml")).unwrap();
        let mut spec = fs::read_to_string(from.join("spec.toml")).unwrap();
        for (own, short) in
            [("seconds = 3.0", "seconds = 0.3"), ("warmup_seconds = 1.0", "warmup_seconds = 0.1")]
        {
            assert!(spec.contains(own), "{own}");
            spec = spec.replace(own, short);
        }
        fs::write(to.join("spec.toml"), spec).unwrap();
        let experiments = folder.join("experiments");
        let options = Options { quick: true, out: Some(folder.join("out")), ..Options::default() };
        let how = options.how(&Experiment::read(&experiments, "fig2").unwrap());
        let locked = resume::lock(&how.out).unwrap();
        let mut none = example();
        none.gpus.clear();
        execute(Experiment::read(&experiments, "fig2").unwrap(), &how, &none, &profiler).unwrap();
        drop(locked);

        let (name, mut entry, _) = experiment::import::imported(&experiments, &how.out, None).unwrap();
        assert_eq!((&*name, entry.label, entry.extent), ("fig2", Label::None, Extent::Quick));
        let rows: Vec<(&str, u64)> = entry.rows.iter().map(|row| (&*row.series, row.x)).collect();
        let both = ["cpu-resnet50-v1.5", "cpu-squeezenet-1.1"];
        let wanted: Vec<(&str, u64)> =
            both.into_iter().flat_map(|series| [1, 4, 16].map(|x| (series, x))).collect();
        assert_eq!(rows, wanted);
        for row in &entry.rows {
            let kept = row.quantiles.as_ref().expect("the figure draws its distribution");
            let value = |name: &str| row.values[name][0];
            assert_eq!((kept.ns().len(), kept.ns()[500] as f64 / 1e6), (1001, value("p50_ms")), "{row:?}");
            assert!(value("runs") >= 1.0 && value("runs_per_s") > 0.0 && row.content_ok, "{row:?}");
        }
        let verdicts = serde_json::to_value(&entry.verdicts).unwrap();
        let verdicts = verdicts.as_array().unwrap();
        let needs_a_gpu = |one: &Value| one["verdict"] == json!({ "needs-hardware": ["gpu"] });
        assert!(verdicts.len() == 3 && verdicts.iter().all(needs_a_gpu), "{verdicts:?}");

        // It is recorded, read and drawn as a committed file is.
        entry.provenance.revision = measure::Revision { commit: "0123456789".repeat(4), dirty: false };
        let path = experiments.join("fig2/measured.json");
        experiment::measured::record(&path, entry).unwrap();
        let read = experiment::measured::Measured::read(&path).unwrap().entries.remove(0);
        let pictures = Experiment::read(&experiments, "fig2").unwrap();
        let pictures = experiment::pictures(&pictures, &read.points("fig2"), &[], &[]).unwrap();
        let cdf = pictures.iter().find(|picture| picture.name == "cdf-squeezenet").unwrap();
        assert!(
            cdf.svg.contains("16 at once, ") && !cdf.svg.contains("without a distribution"),
            "{}",
            cdf.svg
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
