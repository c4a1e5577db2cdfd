//! `figure bench-wait`: what waiting and sending add to a GPU's turn. A point: `pipeline-graph wait DRIVER`.
//!
//! `experiments/bench-wait/README.md` says what each number is. It needs a GPU and no NIC.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use experiment::point::{Key, Point};
use experiment::run::{self, Extra};
use experiment::{Experiment, resume};
use measure::{Label, Part};
use serde_json::{Value, json};

use super::app;
use super::judged::judged;
use super::options::Options;
use super::path::{PROGRAM, line_of};
use super::samples;
use crate::gpu_machine::GpuMachine;
use crate::workspace;

/// What the spec calls the points.
pub const APP: &str = "pipeline-wait";
/// Slots of the pipelines that the program times, and which of them it also times while steps are noted.
const SLOTS: [&str; 3] = ["2", "64", "4096"];
const TRACED: usize = 1;

/// Measures and reports.
pub fn run(experiment: Experiment, options: &Options) -> Result<()> {
    let name = &experiment.spec.name;
    let how = options.how(&experiment);
    if options.dry_run {
        dry_run(&experiment, &how).iter().for_each(|line| say!("{line}"));
        return Ok(());
    }
    let _locked = app::begin(&experiment.spec, &how, &app::known)?;
    let machine = GpuMachine::ask()?;
    needs_gpu(name, &machine)?;
    workspace::build_programs(PROGRAM, &["-p", "pipeline"])?;
    execute(&experiment, &how, &machine, &workspace::programs().join(PROGRAM))
}

fn needs_gpu(name: &str, machine: &GpuMachine) -> Result<()> {
    machine.has_gpu(|why| {
        format!("{name}: it needs a GPU, and there is none: {why}; the twin's times say nothing")
    })
}

/// What would be measured and judged (INV-10).
fn dry_run(experiment: &Experiment, how: &resume::Options) -> Vec<String> {
    let grid = experiment.spec.grid(how.extent);
    let mut lines = vec![
        format!("{}: {}", experiment.spec.name, experiment.spec.title),
        format!("{} points: {} series × {} repetitions", grid.keys().len(), grid.series.len(), grid.repeat),
        "needs a GPU and no NIC".to_owned(),
        format!("results: {}", how.out.display()),
    ];
    let command = |series: &String| format!("{series}: {PROGRAM} wait {}", driver(series));
    lines.extend(grid.series.iter().map(command));
    lines.extend(judged(experiment, false));
    lines
}

/// What the program is told of a series.
fn driver(series: &str) -> &str {
    series.strip_prefix("gpu-").unwrap_or(series)
}

fn execute(
    experiment: &Experiment,
    how: &resume::Options,
    machine: &GpuMachine,
    program: &Path,
) -> Result<()> {
    let mut provenance = workspace::provenance()?;
    machine.name_in(&mut provenance);
    provenance.gpu = Label::Hardware;
    let grid = experiment.spec.grid(how.extent);
    // One run of the program a point.
    let mut bench = |key: &Key, _: f64| {
        let line = line_of(program, machine, &["wait", driver(&key.series)])?;
        let label = provenance.label(&[Part::Gpu]);
        let point = Point::new(&experiment.spec.name, key.clone(), label, provenance.clone());
        Ok(Point { values: values(&line)?, detail: line, ..point })
    };
    let earlier = samples::measure(experiment, how, &provenance, &grid, &mut bench)?;
    let timers = json!([{
        "name": "period", "start": "the begin of a request, by the GPU's timer", "stop": "the begin of the next request",
    }]);
    run::report(experiment, how, &earlier, &Extra { timers, ..Extra::default() })
}

/// The numbers of a point, out of the program's line. Error: it lacks one.
fn values(line: &Value) -> Result<BTreeMap<String, f64>> {
    let number = |pointer: &str| {
        let found = line.pointer(pointer).and_then(Value::as_f64);
        found.with_context(|| format!("{PROGRAM}'s line has no number {pointer}"))
    };
    let (alone, traced) = (number("/alone_us")?, number("/traced_us")?);
    let mut values = BTreeMap::from([("alone_us".to_owned(), alone)]);
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for (at, slots) in SLOTS.into_iter().enumerate() {
        let period = number(&format!("/period_us/{slots}"))?;
        values.insert(format!("added_{slots}_us"), period - alone);
        (least, most) = (least.min(period), most.max(period));
        if at == TRACED {
            values.insert("trace_us".to_owned(), traced - period);
        }
    }
    values.insert("added_us".to_owned(), most - alone);
    values.insert("apart_us".to_owned(), most - least);
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use experiment::spec::Extent;

    use super::*;
    use crate::gpu_machine::example;
    use crate::process::script;
    use crate::refused::Refused;
    use crate::workspace::root;

    /// A graph that misses no aim; with 4,096 slots a WHILE node adds 12 µs, a kernel that stays 4.5.
    const PROGRAM_TEXT: &str = r#"#!/bin/sh
echo "$@" >> FOLDER/calls
case "$2" in
graph) two=24 many=25 ;;
while) two=25 many=32 ;;
ahead) two=19 many=20 ;;
persistent) two=24 many=24.5 ;;
walk) two=26 many=1026 ;;
esac
echo "{\"kind\":\"pipeline-wait\",\"alone_us\":20,\"period_us\":{\"2\":$two,\"64\":24,\"4096\":$many},\"traced_us\":24.5}"
"#;

    fn bench_wait() -> Experiment {
        Experiment::read(&root().join("experiments"), "bench-wait").unwrap()
    }

    fn how(out: std::path::PathBuf) -> resume::Options {
        let (resume, record) = (true, false);
        resume::Options { extent: Extent::Quick, resume, record, out, again: "again".into() }
    }

    #[test]
    fn aims_that_are_missed_are_said_to_be() {
        let folder = std::env::temp_dir().join(format!("xtask-waits-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("out")).unwrap();
        let program = folder.join(PROGRAM);
        script(&program, &PROGRAM_TEXT.replace("FOLDER", &folder.display().to_string()));
        let how = how(folder.join("out"));
        execute(&bench_wait(), &how, &example(), &program).unwrap();
        let summary: Value =
            serde_json::from_slice(&fs::read(how.out.join("summary.json")).unwrap()).unwrap();
        let said = |id: &str| {
            let all = summary["verdicts"].as_array().unwrap();
            let one = all.iter().find(|one| one["id"] == id).unwrap();
            (one["verdict"].as_str().unwrap().to_owned(), one["evidence"][0].as_str().unwrap().to_owned())
        };
        for (id, verdict, evidence) in [
            ("adds-graph", "in-part", "fails: gpu-while: 12.00"),
            ("adds-persistent", "not-reproduced", "fails: gpu-persistent: 4.50"),
            ("same-for-all-slots", "in-part", "fails: gpu-while: 8.00"),
            ("walk", "reported", "gpu-walk: 1006.00"),
            ("trace-adds", "reported", "gpu-graph: 0.50"),
        ] {
            assert_eq!(said(id), (verdict.to_owned(), evidence.to_owned()), "{id}");
        }
        let calls = fs::read_to_string(folder.join("calls")).unwrap();
        assert_eq!(calls, "wait graph\nwait while\nwait ahead\nwait persistent\nwait walk\n");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_point_has_every_number_of_the_spec_and_a_line_that_lacks_one_is_an_error() {
        let mut line = json!({
            "alone_us": 1.0, "period_us": { "2": 3.0, "64": 2.0, "4096": 4.5 }, "traced_us": 2.25,
        });
        let found = values(&line).unwrap();
        assert!(bench_wait().spec.values.iter().all(|name| found.contains_key(name)), "{found:?}");
        assert_eq!((found["added_us"], found["apart_us"], found["trace_us"]), (3.5, 2.5, 0.25));
        line["period_us"].as_object_mut().unwrap().remove("4096");
        assert!(values(&line).unwrap_err().to_string().ends_with("no number /period_us/4096"));
    }

    #[test]
    fn without_a_gpu_it_is_refused_and_a_dry_run_says_what_would_run() {
        let error = needs_gpu("bench-wait", &GpuMachine::default()).unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains("needs a GPU"), "{error}");
        needs_gpu("bench-wait", &example()).unwrap();
        let lines = dry_run(&bench_wait(), &how("out".into()));
        for words in ["5 points", "needs a GPU", "pipeline-graph wait walk", "judges 5 claims"] {
            assert!(lines.iter().any(|line| line.contains(words)), "{words}: {lines:?}");
        }
    }
}
