//! Figure 3: a request's way, a function a step, found in the source; and what a turn's graph has on a GPU.
//!
//! `experiments/fig3/spec.toml` names the steps. A missing function is refused: the figure cannot go stale.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use experiment::measured::Entry;
use experiment::point::{Key, Point};
use experiment::run::{self, Extra, write_whole};
use experiment::spec::Extent;
use experiment::{Drawing, Experiment, Picture, Spec, resume, table};
use measure::{Label, Part, Provenance};
use serde::Deserialize;
use serde_json::Value;

use super::app;
use super::judged::judged;
use super::options::Options;
use crate::gpu_machine::GpuMachine;
use crate::process::output;
use crate::refused::refused;
use crate::{carried, progress, wheels, workspace};

/// What the spec calls the points of this figure.
pub const APP: &str = "data-path";
/// The program that records the graph.
pub const PROGRAM: &str = "pipeline-graph";
/// Compiling the kernels for a GPU, and recording the graph or taking all turns.
const LIMIT: Duration = Duration::from_secs(5 * 60);
/// Series of what is read in the source.
const SOURCE: &str = "source";
/// Where steps run, from left to right.
const LANES: [&str; 3] = ["client", "NIC", "GPU"];

/// The figure's own part of the spec.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PathSpec {
    posting: Posting,
    steps: Vec<Step>,
}

/// The routine that builds WQEs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Posting {
    /// What its definition begins with.
    begins: String,
    /// What the CPU's library and the GPU's kernels are compiled of.
    roots: Vec<String>,
    /// Where their headers lie.
    folders: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    lane: String,
    /// Which of the paper's four steps it belongs to, if to one.
    step: Option<String>,
    file: String,
    function: String,
    says: String,
}

impl PathSpec {
    fn of(spec: &Spec) -> Result<PathSpec> {
        let way: PathSpec =
            toml::Value::Table(spec.options.clone()).try_into().context("options of fig3/spec.toml")?;
        for step in &way.steps {
            ensure!(LANES.contains(&step.lane.as_str()), "{}: no lane `{}`", step.function, step.lane);
        }
        Ok(way)
    }
}

impl Step {
    /// The crate that the file is of.
    fn package(&self) -> &str {
        self.file.split('/').nth(1).unwrap_or_default()
    }

    /// The line of its function. Error: the file or the function is gone.
    fn line(&self, root: &Path) -> Result<usize> {
        let gone = |what: &str| {
            refused(format!(
                "experiments/fig3/spec.toml: the step `{}` of {} {what}; name what does now: {}",
                self.function, self.file, self.says
            ))
        };
        let text =
            std::fs::read_to_string(root.join(&self.file)).map_err(|error| gone(&format!("({error})")))?;
        defined_at(&text, &self.function).ok_or_else(|| gone("is not defined there"))
    }
}

/// The line on which a function of Rust, C or CUDA is defined, counted from 1.
fn defined_at(text: &str, function: &str) -> Option<usize> {
    let defines = |line: &str| {
        let begins = |bracket: char| line.find(&format!("{function}{bracket}"));
        let Some(at) = begins('(').or_else(|| begins('<')) else { return false };
        let before = line[..at].trim_start();
        let is_comment = before.starts_with("//") || before.starts_with('*') || before.starts_with("/*");
        let is_rust = before.ends_with("fn ");
        // A definition in C begins a line and has a type in front of its name.
        let is_c = !line.starts_with([' ', '#', '}'])
            && before.ends_with([' ', '*'])
            && !line.trim_end().ends_with(';');
        !is_comment && (is_rust || is_c)
    };
    text.lines().position(defines).map(|index| index + 1)
}

/// Files that define the posting routine, of all that each root includes. Error: a root reaches none.
fn posting_routines(posting: &Posting, root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut all = BTreeSet::new();
    for start in &posting.roots {
        let (mut seen, mut next) = (BTreeSet::new(), vec![root.join(start)]);
        let mut defining = BTreeSet::new();
        while let Some(file) = next.pop() {
            if !seen.insert(file.clone()) {
                continue;
            }
            let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let defines = |line: &str| {
                let begins = line.find(posting.begins.as_str()).map(|at| &line[at + posting.begins.len()..]);
                begins.is_some_and(|rest| rest.starts_with('('))
                    && !line.contains(';')
                    && !line.starts_with([' ', '*'])
            };
            if text.lines().any(defines) {
                defining.insert(file.clone());
            }
            let include = |line| str::trim_start(line).strip_prefix("#include \"")?.split('"').next();
            let beside = |name| posting.folders.iter().map(move |folder| root.join(folder).join(name));
            next.extend(text.lines().filter_map(include).flat_map(beside).filter(|path| path.is_file()));
        }
        ensure!(!defining.is_empty(), "{start} includes no file that defines `{}`", posting.begins);
        all.extend(defining);
    }
    Ok(all)
}

/// Prints, draws, counts, judges.
pub fn run(experiment: Experiment, options: &Options) -> Result<()> {
    let way = PathSpec::of(&experiment.spec)?;
    let root = workspace::root();
    let tree = carried::folder().is_none().then_some(root.as_path());
    let steps = steps(&way, tree)?;
    steps.iter().for_each(|step| say!("{step}"));
    let how = options.how(&experiment);
    if options.dry_run {
        say!("draws: path.svg, path.png in {}", how.out.display());
        say!("counts: nodes of the recorded graph, with a GPU; files that define `{}`", way.posting.begins);
        judged(&experiment, false).iter().for_each(|line| say!("{line}"));
        return Ok(());
    }
    let _locked = app::begin(&experiment.spec, &how, &|old| old.clone())?;
    let machine = GpuMachine::ask()?;
    if machine.gpu().is_some() {
        workspace::build_programs(PROGRAM, &["-p", "pipeline"])?;
    }
    execute(experiment, &way, &how, &machine, tree, &workspace::programs().join(PROGRAM))
}

/// Read from the source alone: the count's entry; each step's lane, crate and function, words, file and line.
pub fn in_source(experiment: &Experiment, root: &Path) -> Result<(Entry, Vec<[String; 4]>)> {
    let way = PathSpec::of(&experiment.spec)?;
    let provenance = Provenance::of(measure::Revision::of(root), &[]);
    let key = Key { series: SOURCE.to_owned(), x: 0, at: BTreeMap::new(), repetition: 0 };
    let points = [count_in_source(&experiment.spec.name, &key, &way, root, &provenance)?];
    let step = |step: &Step| {
        let function = format!("{}::{}", step.package(), step.function);
        let line = step.line(root)?;
        Ok([step.lane.clone(), function, step.says.clone(), format!("{}:{line}", step.file)])
    };
    let steps = way.steps.iter().map(step).collect::<Result<_>>()?;
    let entry = Entry {
        machine: format!("the source, read on {}", provenance.machine),
        label: Label::None,
        extent: Extent::Normal,
        rows: table::rows(&points),
        verdicts: experiment.judge(&points),
        provenance,
        ratios: Value::Null,
        samples: Default::default(),
    };
    Ok((entry, steps))
}

/// The drawing of the way.
pub fn picture(experiment: &Experiment) -> Result<Picture> {
    let svg = svg(&PathSpec::of(&experiment.spec)?.steps);
    Ok(Picture { name: "path".to_owned(), title: experiment.spec.title.clone(), svg })
}

/// The steps as lines; with `tree` each function's line number.
fn steps(way: &PathSpec, tree: Option<&Path>) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (index, step) in way.steps.iter().enumerate() {
        let line =
            tree.map(|root| step.line(root)).transpose()?.map_or_else(String::new, |line| format!(":{line}"));
        let of = step.step.as_ref().map_or_else(String::new, |of| format!(" ({of})"));
        lines.push(format!(
            "{:2}. {:6} {}::{}{of}: {}\n            {}{line}",
            index + 1,
            step.lane,
            step.package(),
            step.function,
            step.says,
            step.file
        ));
    }
    Ok(lines)
}

fn execute(
    experiment: Experiment,
    way: &PathSpec,
    how: &resume::Options,
    machine: &GpuMachine,
    tree: Option<&Path>,
    program: &Path,
) -> Result<()> {
    let mut provenance = workspace::provenance()?;
    let mut left_out = Vec::new();
    if machine.gpu().is_some() {
        machine.name_in(&mut provenance);
    } else {
        say!("without a GPU the graph is not recorded ({})", machine.why_none());
        left_out.push("gpu-graph".to_owned());
    }
    left_out.extend(tree.is_none().then(|| SOURCE.to_owned()));
    let mut grid = experiment.spec.grid(how.extent);
    grid.series.retain(|series| !left_out.contains(series));
    let why = "fig3: there is neither a GPU nor the source here: nothing can be counted";
    ensure!(!grid.series.is_empty(), refused(why));
    let name = &experiment.spec.name;
    let mut bench = |key: &Key, _: f64| {
        if key.series == SOURCE {
            return count_in_source(name, key, way, tree.context("no source here")?, &provenance);
        }
        let line = line_of(program, machine, &[])?;
        let from = Provenance { gpu: Label::Hardware, ..provenance.clone() };
        let mut point = Point::new(name, key.clone(), from.label(&[Part::Gpu]), from);
        for name in ["nodes", "kernels", "host_nodes", "copies", "host_copies"] {
            let count = line[name].as_f64();
            let count = count.with_context(|| format!("{PROGRAM}'s line has no number {name}"))?;
            point.values.insert(name.into(), count);
        }
        Ok(point)
    };
    let earlier = progress::measure(&experiment, how, &provenance, &grid, &mut bench)?;
    let svg = svg(&way.steps);
    write_whole(&how.out.join("path.svg"), svg.as_bytes())?;
    write_whole(&how.out.join("path.png"), &Drawing::read(&svg)?.png(2.0)?)?;
    let extra = Extra { left_out, timers: Value::Array(Vec::new()), ..Extra::default() };
    run::report(&experiment, how, &earlier, &extra)?;
    say!("drawing: {}", how.out.join("path.png").display());
    Ok(())
}

/// What [`PROGRAM`], or a stand-in, says of these words.
pub fn line_of(program: &Path, machine: &GpuMachine, words: &[&str]) -> Result<Value> {
    let mut command = Command::new(program);
    command.args(words).envs(machine.toolkit.iter().map(|toolkit| (wheels::CUDA.variable, toolkit)));
    let name = || [&[PROGRAM], words].concat().join(" ");
    let said = output(&mut command, LIMIT).with_context(name)?;
    serde_json::from_str(said.trim()).with_context(|| format!("{} said `{}`", name(), said.trim()))
}

/// The point of what is counted in the source.
fn count_in_source(
    name: &str,
    key: &Key,
    way: &PathSpec,
    root: &Path,
    provenance: &Provenance,
) -> Result<Point> {
    let files = posting_routines(&way.posting, root)?.len();
    let point = Point::new(name, key.clone(), Label::None, provenance.clone());
    Ok(Point { values: [("posting_routines".to_owned(), files as f64)].into(), ..point })
}

/// Pixels of a lane, of a row, and of a box in them.
const LANE: usize = 330;
const ROW: usize = 78;
const BOX: (usize, usize) = (306, 62);
const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];

/// The steps as boxes in lanes, each with an arrow to the next one.
fn svg(steps: &[Step]) -> String {
    let (width, height) = (LANES.len() * LANE + 20, steps.len() * ROW + 90);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, sans-serif\">\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\
         <defs><marker id=\"a\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"4\" orient=\"auto\">\
         <path d=\"M0,0 L8,4 L0,8 z\" fill=\"#282828\"/></marker></defs>"
    );
    let lane_of = |step: &Step| LANES.iter().position(|lane| *lane == step.lane).unwrap_or_default();
    let text = |out: &mut String, at: (usize, usize), size: usize, fill: &str, words: &str| {
        let escaped = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = write!(
            out,
            "<text x=\"{}\" y=\"{}\" font-size=\"{size}\" fill=\"{fill}\">{escaped}</text>",
            at.0, at.1
        );
    };
    for (index, lane) in LANES.iter().enumerate() {
        text(&mut out, (index * LANE + 22, 34), 17, "#282828", lane);
    }
    let place = |index: usize, step: &Step| (lane_of(step) * LANE + 20, index * ROW + 52);
    for (index, step) in steps.iter().enumerate() {
        let (x, y) = place(index, step);
        let colour = COLOURS[lane_of(step)];
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"#ffffff\" stroke=\"{colour}\" stroke-width=\"1.6\"/>",
            BOX.0, BOX.1
        );
        let of = step.step.as_ref().map_or_else(String::new, |of| format!("  [{of}]"));
        text(&mut out, (x + 8, y + 17), 12, "#282828", &format!("{}. {}{of}", index + 1, step.function));
        text(&mut out, (x + 8, y + 32), 9, "#6e6e6e", &step.file);
        // Two lines of what fits the box.
        let (mut line, mut row) = (String::new(), 0);
        for word in step.says.split(' ').chain([""]) {
            if (word.is_empty() || line.chars().count() + word.chars().count() > 60) && !line.is_empty() {
                text(&mut out, (x + 8, y + 43 + 10 * row), 9, "#282828", line.trim_end());
                (line, row) = (String::new(), row + 1);
            }
            line += word;
            line.push(' ');
        }
        if let Some(next) = steps.get(index + 1) {
            let (to_x, to_y) = place(index + 1, next);
            let _ = write!(
                out,
                "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{to_y}\" stroke=\"#282828\" marker-end=\"url(#a)\"/>",
                x + BOX.0 / 2,
                y + BOX.1,
                to_x + BOX.0 / 2
            );
        }
    }
    let below = "From start to stop the server's CPU has no step. Names are those of the source: the command checks each.";
    text(&mut out, (22, height - 16), 11, "#6e6e6e", below);
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_machine::example;
    use crate::process::script;
    use crate::refused::Refused;
    use crate::workspace::root;
    use std::fs;

    fn fig3() -> (Experiment, PathSpec) {
        let experiment = Experiment::read(&root().join("experiments"), "fig3").unwrap();
        let way = PathSpec::of(&experiment.spec).unwrap();
        (experiment, way)
    }

    #[test]
    fn each_step_of_the_committed_figure_is_in_the_source() {
        let (_, way) = fig3();
        let lines = steps(&way, Some(&root())).unwrap();
        assert!(lines.len() >= 10 && lines.iter().all(|line| line.lines().count() == 2), "{lines:#?}");
        let of: Vec<&str> = way.steps.iter().filter_map(|step| step.step.as_deref()).collect();
        let mut order = of.clone();
        order.dedup();
        assert_eq!(order, ["wait", "model", "send", "relaunch"], "the paper's four steps");
        let drawn = svg(&way.steps);
        assert!(
            way.steps.iter().all(|step| drawn.contains(&step.function))
                && !Drawing::read(&drawn).unwrap().png(1.0).unwrap().is_empty()
        );
    }

    #[test]
    fn a_step_whose_function_is_gone_is_refused_by_name() {
        let (_, mut way) = fig3();
        way.steps[3].function = "wait_outputs".into();
        let error = steps(&way, Some(&root())).unwrap_err();
        assert!(error.is::<Refused>(), "{error:#}");
        for word in ["wait_outputs", "wait.cu", "is not defined there"] {
            assert!(error.to_string().contains(word), "{error:#}");
        }
        way.steps[3].file = "crates/pipeline/kernels/gone.cu".into();
        assert!(steps(&way, Some(&root())).unwrap_err().to_string().contains("gone.cu"));
        assert!(steps(&way, None).is_ok(), "a bundle has no source");
    }

    #[test]
    fn definitions_are_told_from_calls_and_comments() {
        for (text, line) in [
            ("    pub fn poll(&mut self) {", Some(1)),
            ("x\nDB_FN int poll(struct db_sq *sq) {", Some(2)),
            ("extern \"C\" __global__ void poll(int x) {", Some(1)),
            ("    done = poll(sq);", None),
            ("int poll(int x);", None),
            ("// fn poll(x)", None),
            (" * int poll(x)", None),
            ("fn repoll(x) {", None),
        ] {
            assert_eq!(defined_at(text, "poll"), line, "{text}");
        }
    }

    /// CPU and GPU post by one routine: one file defines it, and both include it.
    #[test]
    fn one_routine_posts_on_cpu_and_gpu_and_a_second_one_is_counted() {
        let (_, way) = fig3();
        let found = posting_routines(&way.posting, &root()).unwrap();
        let wanted = root().join("crates/rdma-shim/include/doorbell_post.h");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [wanted]);
        let folder = std::env::temp_dir().join(format!("xtask-posting-{}", std::process::id()));
        fs::create_dir_all(folder.join("h")).unwrap();
        for (file, text) in [
            ("cpu.c", "#include \"post.h\"\n"),
            ("gpu.cu", "#include \"gpu.h\"\n"),
            ("h/post.h", "#include \"post.h\"\nDB_FN int db_try_post(struct db_sq *sq) {\n}\n"),
            ("h/gpu.h", "DB_FN int db_try_post(struct db_sq *sq) {\n}\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let texts = |roots: &[&str]| Posting {
            begins: "int db_try_post".into(),
            roots: roots.iter().map(|root| (*root).to_owned()).collect(),
            folders: vec!["h".into()],
        };
        assert_eq!(posting_routines(&texts(&["cpu.c", "gpu.cu"]), &folder).unwrap().len(), 2);
        fs::write(folder.join("h/gpu.h"), "int other(void) {\n}\n").unwrap();
        let error = posting_routines(&texts(&["gpu.cu"]), &folder).unwrap_err().to_string();
        assert!(error.contains("gpu.cu includes no file"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    /// Runs the figure with a program that says these counts.
    fn verdicts(name: &str, machine: &GpuMachine, counts: &str) -> Vec<(String, Value)> {
        let folder = std::env::temp_dir().join(format!("xtask-fig3-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join(PROGRAM);
        script(&program, &format!("#!/bin/sh\necho '{counts}'\n"));
        let (experiment, way) = fig3();
        let how = resume::Options {
            extent: Extent::Normal,
            resume: false,
            record: false,
            out: folder.join("out"),
            again: String::new(),
        };
        fs::create_dir_all(&how.out).unwrap();
        execute(experiment, &way, &how, machine, Some(&root()), &program).unwrap();
        assert!(how.out.join("path.png").is_file() && how.out.join("path.svg").is_file());
        let summary: Value =
            serde_json::from_str(&fs::read_to_string(how.out.join("summary.json")).unwrap()).unwrap();
        let said = summary["verdicts"].as_array().unwrap().iter();
        let said = said.map(|one| (one["id"].as_str().unwrap().to_owned(), one["verdict"].clone())).collect();
        fs::remove_dir_all(folder).unwrap();
        said
    }

    #[test]
    fn claims_are_judged_by_the_recorded_graph_and_need_a_gpu() {
        let good = r#"{"nodes":4,"kernels":4,"host_nodes":0,"copies":0,"host_copies":0}"#;
        let count =
            |all: &[(String, Value)], which: &str| all.iter().filter(|(_, said)| said == which).count();
        let all = verdicts("good", &example(), good);
        assert_eq!((count(&all, "reproduced"), count(&all, "background"), all.len()), (5, 3, 9), "{all:?}");
        // The release's: copies through host memory, and kernels that take times.
        let bad = r#"{"nodes":25,"kernels":21,"host_nodes":1,"copies":3,"host_copies":2}"#;
        let all = verdicts("bad", &example(), bad);
        let not: Vec<&str> = all
            .iter()
            .filter(|(_, verdict)| verdict == "not-reproduced")
            .map(|(id, _)| id.as_str())
            .collect();
        assert_eq!(
            not,
            ["graph-four", "four-copies", "loop-one-thread", "graph-nothing-else", "no-cpu-node"]
        );
        let none = verdicts("none", &GpuMachine::default(), "");
        let needs =
            |id: &str| none.iter().find(|(one, _)| one == id).map(|(_, verdict)| verdict.clone()).unwrap();
        assert_eq!(needs("graph-four"), serde_json::json!({ "needs-hardware": ["gpu"] }));
        assert_eq!(needs("same-api"), "reproduced");
    }
}
