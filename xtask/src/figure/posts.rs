//! `bench-post --gpu`: what a GPU spends on posting; each row of `generator bench-post-gpu` is a series.
//!
//! The generator prints JSON lines (`apps/generator/README.md`): its provenance, then one per row. Its table
//! lists rows and requirements; `experiments/bench-post-gpu/spec.toml` says what is kept and judged.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::{Experiment, resume};
use measure::{BackgroundLoad, Label, Part, Provenance, json_lines};
use serde_json::Value;

use super::app;
use super::nic::Programs;
use super::options::Options;
use crate::gpu_machine::GpuMachine;
use crate::process::{Ended, run_told};
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::workspace::{self, experiments};

/// Name of the experiment, and of the generator's command.
pub const NAME: &str = "bench-post-gpu";
/// All styles, orders and numbers of producers.
const LIMIT: Duration = Duration::from_secs(9 * 60);

/// Measures all rows. `peer_headers`: device headers of the library that is measured beside the shim.
pub fn run(options: &Options, peer_headers: Option<&Path>) -> Result<()> {
    if let Some(folder) = peer_headers.filter(|folder| !folder.is_dir()) {
        return Err(refused(format!("--peer-headers {}: there is no such folder", folder.display())));
    }
    let machine = GpuMachine::ask()?;
    needs_gpu(&machine)?;
    let experiment = Experiment::read(&experiments(), NAME)?;
    let how = how(options);
    let _locked = app::begin(&experiment.spec, &how, &app::known)?;
    setup::prepare(Purpose::Figure, options.no_install)?;
    Programs::build()?;
    execute(experiment, &how, peer_headers, &machine, &Programs::release())
}

fn how(options: &Options) -> resume::Options {
    let out = options.out.clone().unwrap_or_else(|| workspace::results(NAME));
    let (extent, quick) = (options.extent(), if options.quick { " --quick" } else { "" });
    let again =
        format!("start again with: {} bench-post --gpu{quick} --out {}", workspace::us(), out.display());
    resume::Options { extent, resume: false, record: options.record, out, again }
}

/// Refuses a machine without a GPU, and says what runs there.
fn needs_gpu(machine: &GpuMachine) -> Result<()> {
    machine.has_gpu(|why| {
        format!(
            "bench-post --gpu: no GPU here: {why}; it has no twin, whose times would say nothing: without a GPU, `bench-post` times the \
             posts of a processor"
        )
    })
}

fn execute(
    mut experiment: Experiment,
    how: &resume::Options,
    peer_headers: Option<&Path>,
    machine: &GpuMachine,
    programs: &Programs,
) -> Result<()> {
    let logs = how.out.join("logs");
    let (lines, log) = (logs.join(format!("{NAME}.jsonl")), logs.join(format!("{NAME}.log")));
    // Lines of an earlier run must not be taken for this one's.
    let _ = fs::remove_file(&lines);
    let mut command = Command::new(&programs.generator);
    let quick = how.extent == experiment::spec::Extent::Quick;
    command.args([NAME, "--json"]).arg(&lines).args(quick.then_some("--quick"));
    if let Some(folder) = peer_headers {
        command.arg("--peer-headers").arg(folder);
    }
    command.envs(machine.toolkit.iter().map(|toolkit| (crate::wheels::CUDA.variable, toolkit)));
    let others = BackgroundLoad::watch();
    // A row says what went wrong with it.
    let (ended, last) = run_told(&mut command, &log, LIMIT, &format!("generator {NAME}"))?;
    let others = others.as_ref().and_then(BackgroundLoad::cores);
    let failed = || format!("generator {NAME} {ended}: {last}");
    let (mut provenance, settings, rows) = read(&lines).with_context(failed)?;
    machine.name_in(&mut provenance);
    provenance.gpu = Label::Hardware;
    let mut grid = experiment.spec.grid(how.extent);
    ensure!(grid.repeat == 1, "{NAME}: the generator repeats by itself: `repeat` is 1");
    let point = |row: &Value| point(row, &provenance, &settings, others);
    let points = rows.iter().map(point).collect::<Result<Vec<Point>>>()?;
    grid.series = points.iter().map(|point| point.series.clone()).collect();
    let is_whole = points.iter().all(Point::is_whole);
    let mut rows: BTreeMap<_, _> = points.into_iter().map(|point| (point.series.clone(), point)).collect();
    let mut bench = |key: &Key, _: f64| rows.remove(&key.series).context("it was not measured");
    experiment.spec.keep(|series| grid.series.iter().any(|measured| measured == series));
    let measured = run::measure(&experiment, how, &provenance, &grid, &mut bench, &mut |_, _| ())?;
    // A program that failed beside whole rows left others out.
    ensure!(ended == Ended::Well || !is_whole, failed());
    run::report(&experiment, how, &measured, &Extra::default())
}

/// A row of the generator as a point: times in ns with their spread, ratios, and the ratio's requirement.
fn point(
    row: &Value,
    provenance: &Provenance,
    settings: &BTreeMap<String, u64>,
    others: Option<f64>,
) -> Result<Point> {
    let (mut values, mut spread) = (BTreeMap::new(), BTreeMap::new());
    for side in ["theirs", "early", "strict", "time"] {
        let ns = |name: &str| row[side][name].as_f64();
        if let (Some(p50), Some(least), Some(most)) = (ns("p50_ns"), ns("min_ns"), ns("max_ns")) {
            values.insert(format!("{side}_ns"), p50);
            spread.insert(format!("{side}_ns"), [least, most]);
        }
    }
    let others_of_row = [
        ("nic_ns", &row["early"]["nic_p50_ns"]),
        ("ratio_early", &row["ratio_early"]),
        ("ratio_strict", &row["ratio_strict"]),
        ("at_most", &row["required"]["at_most"]),
        ("at_least", &row["required"]["at_least"]),
    ];
    let others_of_row = others_of_row.iter().filter_map(|(name, value)| Some((*name, value.as_f64()?)));
    values.extend(others_of_row.map(|(name, value)| (name.to_owned(), value)));
    let wrong = || row["error"].as_str().unwrap_or("a ring did not hold what was posted").to_owned();
    let series = row["row"].as_str().context("a row without a name")?.to_owned();
    let key = Key { series, x: 0, at: BTreeMap::new(), repetition: 0 };
    Ok(Point {
        settings: settings.clone(),
        values,
        spread,
        missing: (row["content_ok"] != true).then(wrong),
        others,
        detail: row.clone(),
        ..Point::new(NAME, key, provenance.label(&[Part::Gpu]), provenance.clone())
    })
}

/// The generator's lines: provenance (NIC, link, versions: first line), settings of all rows, the rows.
fn read(lines: &Path) -> Result<(Provenance, BTreeMap<String, u64>, Vec<Value>)> {
    let records = json_lines::read::<Value>(lines)?;
    ensure!(records.torn_bytes == 0, "{}: its last line was cut", lines.display());
    let mut records = records.records.into_iter();
    let first = records.next().filter(|first| first["kind"] == NAME);
    let first = first.with_context(|| format!("{}: its first line is no provenance", lines.display()))?;
    let mut provenance = workspace::provenance()?;
    for (name, label) in [("nic", &mut provenance.nic), ("link", &mut provenance.link)] {
        *label =
            serde_json::from_value(first[name].clone()).with_context(|| format!("its label `{name}`"))?;
    }
    for (name, version) in first["versions"].as_object().into_iter().flatten() {
        let version = version.as_str().map_or_else(|| version.to_string(), str::to_owned);
        provenance.versions.entry(name.clone()).or_insert(version);
    }
    let settings = ["payload_bytes", "rounds", "timer_step_ns"];
    let settings = settings.iter().filter_map(|name| Some(((*name).to_owned(), first[*name].as_u64()?)));
    let rows: Vec<Value> = records.collect();
    ensure!(!rows.is_empty(), "{}: no row behind the provenance", lines.display());
    Ok((provenance, settings.collect(), rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_machine::example;
    use crate::process;
    use crate::refused::Refused;
    use std::path::PathBuf;

    fn tried(name: &str, script: &str) -> (Result<()>, PathBuf) {
        let folder = std::env::temp_dir().join(format!("xtask-bench-gpu-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let generator = folder.join("generator");
        process::script(&generator, &format!("#!/bin/sh\nshift 2; json=$1\n{script}\n"));
        let programs = Programs { generator, softnic: folder.join("softnic") };
        let out = folder.join("out");
        let options = Options { quick: true, out: Some(out.clone()), ..Options::default() };
        let (experiment, how) = (Experiment::read(&experiments(), NAME).unwrap(), how(&options));
        let _locked = resume::lock(&out).unwrap();
        (execute(experiment, &how, None, &example(), &programs), out)
    }

    fn summary(out: &Path) -> Value {
        serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap()
    }

    const FIRST: &str = r#"{"kind":"bench-post-gpu","nic":"none","gpu":"hardware","link":"none","device":"","nic_options":{},
        "machine":"m","cores":1,"versions":{"gpunetio":"3.8.0"},"revision":{"commit":"","dirty":true},"rounds":7}"#;

    fn lines(rows: &[&str]) -> String {
        let first = FIRST.replace('\n', "");
        let line = |line: &str| format!("echo '{line}' >> $json; ");
        line(&first) + &rows.iter().map(|row| line(row)).collect::<String>()
    }

    #[test]
    fn a_machine_without_a_gpu_is_told_what_runs_there() {
        needs_gpu(&example()).unwrap();
        let mut machine = example();
        machine.gpus.clear();
        let error = needs_gpu(&machine).unwrap_err();
        assert!(
            error.is::<Refused>() && error.to_string().contains("without a GPU, `bench-post`"),
            "{error}"
        );
    }

    #[test]
    fn a_row_is_a_series_with_the_gpu_that_gave_it_and_its_requirement_is_judged() {
        let row = r#"{"row":"early","content_ok":true,"early":{"p50_ns":39.5,"min_ns":38,"max_ns":44,"nic_p50_ns":7},"theirs":null,
            "ratio_early":0.36,"required":{"at_most":0.35}}"#;
        let script = lines(&[&row.replace('\n', "")]) + "echo done";
        let (result, out) = tried("good", &script);
        result.unwrap();
        let summary = summary(&out);
        assert_eq!((&summary["label"], &summary["experiment"]), (&"hardware".into(), &NAME.into()));
        let (row, from) = (&summary["rows"][0], &summary["provenance"]);
        assert_eq!(row["values"]["early_ns"], serde_json::json!([39.5, 38.0, 44.0]));
        assert_eq!((&row["settings"]["rounds"], &row["values"]["nic_ns"][0]), (&7.into(), &7.0.into()));
        assert_eq!(from["gpu_device"], "NVIDIA H200, sm_90");
        assert_eq!((&from["versions"]["gpunetio"], &from["nic"]), (&"3.8.0".into(), &"none".into()));
        let verdict = &summary["verdicts"][0];
        assert_eq!((&verdict["verdict"], &verdict["aim"]), (&"not-reproduced".into(), &true.into()));
        assert!(verdict["evidence"][0].as_str().unwrap().contains("early: 0.36, at most 0.35"), "{verdict}");
        fs::remove_dir_all(out.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_row_that_went_wrong_is_kept_and_fails_the_run() {
        let script = lines(&[
            r#"{"row":"a","content_ok":true}"#,
            r#"{"row":"b","content_ok":false,"error":"3 of 64 WQEs"}"#,
        ]) + "exit 1";
        let (result, out) = tried("row", &script);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("1 of 2 points") && error.contains("3 of 64 WQEs"), "{error}");
        assert_eq!(summary(&out)["rows"][1]["content_ok"], false);
        fs::remove_dir_all(out.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_no_result_is_said_so() {
        for (name, script, words, is_refused) in [
            (
                "refused",
                "echo 'generator: no right to register a page' >&2; exit 2".to_owned(),
                "no right",
                true,
            ),
            ("crashed", "echo 'half way'; exit 3".into(), "ended with status 3: half way", false),
            ("failed", "echo 'the context is lost'; exit 1".into(), "context is lost: ", false),
            ("nothing", "true".into(), "first line is no provenance", false),
            (
                "rows",
                "echo '{\"kind\":\"bench-post-gpu-row\"}' > $json".into(),
                "first line is no provenance",
                false,
            ),
            ("empty", lines(&[]), "no row", false),
            ("torn", lines(&[]) + "printf '{\"ro' >> $json", "was cut", false),
            (
                "cut",
                lines(&[r#"{"row":"a","content_ok":true}"#]) + "echo 'lost'; exit 1",
                "ended with status 1: lost",
                false,
            ),
            ("label", lines(&[]).replace("\"nic\":\"none\"", "\"nic\":\"maybe\""), "its label `nic`", false),
        ] {
            let (result, out) = tried(name, &script);
            let error = result.unwrap_err();
            assert!(format!("{error:#}").contains(words), "{name}: {error:#}");
            assert_eq!(error.is::<Refused>(), is_refused, "{name}");
            assert!(!out.join("summary.json").exists(), "{name}");
            fs::remove_dir_all(out.parent().unwrap()).unwrap();
        }
    }
}
