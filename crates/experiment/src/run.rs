//! A run: every missing point of the grid, each on disk before the next starts; then table, plots, verdicts
//! and, if asked for, the entry of `measured.json`. Nothing is filtered (INV-10).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use measure::{BackgroundLoad, JsonLines, Label, Provenance};
use serde::Serialize;

pub use crate::measured::write_whole;
use crate::measured::{self, Entry};
use crate::modelled::Modelled;
use crate::point::{self, Key, Point, crowded, disturbed, label_of, poster, provenance_of};
use crate::refused::Refused;
use crate::resume::{self, Earlier, Options};
use crate::spec::{Extent, Grid};
use crate::verdict::Judged;
use crate::{Drawing, Experiment, Picture, Samples, pictures, table};

/// So many failures in a row end a run, or as many as it has series. A series that always fails hides no
/// other one, and a run of which every point fails ends soon.
const FAILED_AT_MOST: usize = 3;

/// Pixels of a PNG per unit of its SVG: fit for print at a column's width.
const PNG_SCALE: f32 = 3.0;

/// What measures a point: the one thing that an experiment adds to its folder.
pub trait Bench {
    /// Settings that the program of a point is told, where they may differ from those of an earlier run.
    fn asked(&self, _key: &Key) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// Measures one point, and waits for all that it started.
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point>;
    /// Whether that runs on this machine, so that programs of others on it matter.
    fn is_here(&self) -> bool {
        true
    }
}

/// What needs no more than a function.
impl<F: FnMut(&Key, f64) -> Result<Point>> Bench for F {
    fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
        self(key, seconds)
    }
}

/// What a run adds to its points.
#[derive(Default)]
pub struct Extra {
    /// Compared within one run, by name.
    pub ratios: serde_json::Value,
    /// The same as lines to print.
    pub lines: Vec<String>,
    /// Lines of a link that carries posts which were measured without a NIC.
    pub modelled: Vec<Modelled>,
    /// The definitions of the points' timers, where they are not those of transfers.
    pub timers: serde_json::Value,
    /// Series of the spec that this machine cannot measure.
    pub left_out: Vec<String>,
}

/// What `summary.json` holds.
#[derive(Serialize)]
struct Summary<'a> {
    experiment: &'a str,
    title: &'a str,
    extent: Extent,
    label: Label,
    provenance: &'a Provenance,
    timers: serde_json::Value,
    rows: &'a [table::Row],
    verdicts: &'a [Judged],
    ratios: &'a serde_json::Value,
    repeat: u32,
    #[serde(skip_serializing_if = "Samples::is_empty")]
    samples: &'a Samples,
    left_out: &'a [String],
    #[serde(skip_serializing_if = "<[Modelled]>::is_empty")]
    modelled: &'a [Modelled],
    /// Lines of `results.jsonl` that count no more: their points were not whole and were measured again.
    #[serde(skip_serializing_if = "<[Point]>::is_empty")]
    replaced: &'a [Point],
}

/// Measures what is missing of `grid`. `progress`: how many points are there, and which is measured next. A
/// point whose measurement fails is missing, and the others are measured.
/// Errors: a refusal, a results file that cannot be written, too many failures in a row.
pub fn measure(
    experiment: &Experiment,
    options: &Options,
    provenance: &Provenance,
    grid: &Grid,
    bench: &mut dyn Bench,
    progress: &mut dyn FnMut(u64, &str),
) -> Result<Earlier> {
    let mut earlier = resume::earlier(experiment, options, provenance, grid, &|key| bench.asked(key))?;
    earlier.said.iter().for_each(|line| say!("{line}"));
    let file = options.out.join("results.jsonl");
    let again = || format!("make room or mend it, then {}", options.again);
    let mut lines = JsonLines::append_to(&file).with_context(again)?;
    let done: BTreeSet<Key> = earlier.points.iter().map(Point::key).collect();
    let since = Instant::now();
    let mut failed = 0;
    for key in grid.keys().iter().filter(|key| !done.contains(key)) {
        let count = earlier.points.len();
        progress(count as u64, &key.to_string());
        let others = bench.is_here().then(BackgroundLoad::watch).flatten();
        let begun = Instant::now();
        let seconds = grid.seconds_of(&key.series);
        let measured = bench.measure(key, seconds);
        let place = || format!("{key} ({count} points are in {}; {})", file.display(), options.again);
        let mut point = match measured {
            Ok(point) => point,
            Err(error) if error.is::<Refused>() => return Err(error).with_context(place),
            Err(error) => {
                let point = missing(&experiment.spec.name, key, provenance, &format!("{error:#}"));
                Point { seconds, settings: bench.asked(key), ..point }
            }
        };
        point.took_s = Some(begun.elapsed().as_millis() as f64 / 1e3);
        if point.others.is_none() {
            point.others = others.as_ref().and_then(BackgroundLoad::cores);
        }
        lines.push(&point).with_context(again)?;
        failed = if point.has_numbers() { 0 } else { failed + 1 };
        let why = point.missing.clone().unwrap_or_default();
        earlier.points.push(point);
        ensure!(
            failed < FAILED_AT_MOST.max(grid.series.len()),
            "{}: the run stops, as {failed} points in a row failed, the last: {why}",
            place()
        );
    }
    let count = earlier.points.len();
    let points = if count == 1 { "point" } else { "points" };
    say!("{count} {points} in {:.0} s", since.elapsed().as_secs_f64());
    Ok(earlier)
}

/// A point without numbers, and why it has none.
fn missing(experiment: &str, key: &Key, provenance: &Provenance, why: &str) -> Point {
    let mut provenance = provenance.clone();
    if provenance.gpu == Label::None {
        provenance.gpu = poster(&key.series);
    }
    let parts = [provenance.nic, provenance.gpu, provenance.link].into_iter();
    let label = Label::weakest(parts.filter(|part| *part != Label::None));
    Point { missing: Some(why.to_owned()), ..Point::new(experiment, key.clone(), label, provenance) }
}

/// Writes `summary.json` and the plots, prints table and verdicts, records.
/// Errors: points that are not whole, after all of that.
pub fn report(experiment: &Experiment, options: &Options, earlier: &Earlier, extra: &Extra) -> Result<()> {
    let (spec, out, points) = (&experiment.spec, &options.out, &earlier.points);
    let rows = table::rows(points);
    // Two points a series show that a command works, and no more.
    let is_judged = options.extent != Extent::Smoke;
    let verdicts = if is_judged { experiment.judge(points) } else { Vec::new() };
    let (label, provenance) = (label_of(points), provenance_of(points).context("the grid is empty")?);
    let samples = Samples::of_run(points);
    let mut unmeasured: Vec<String> = spec.grid(options.extent).series;
    unmeasured.retain(|series| !rows.iter().any(|row| row.series == *series));
    let summary = Summary {
        experiment: &spec.name,
        title: &spec.title,
        extent: options.extent,
        label,
        provenance: &provenance,
        timers: match &extra.timers {
            serde_json::Value::Null => serde_json::json!([measure::timer::POST, measure::timer::TRANSFER]),
            own => own.clone(),
        },
        rows: &rows,
        verdicts: &verdicts,
        ratios: &extra.ratios,
        repeat: points.iter().map(|point| point.repetition + 1).max().unwrap_or_default(),
        samples: &samples,
        left_out: &extra.left_out,
        modelled: &extra.modelled,
        replaced: &earlier.replaced,
    };
    let again = || format!("make room or mend it, then {}", options.again);
    let text = serde_json::to_string_pretty(&summary)? + "\n";
    write_whole(&out.join("summary.json"), text.as_bytes()).with_context(again)?;
    for Picture { name, svg, .. } in pictures(experiment, points, &extra.modelled, &unmeasured)? {
        let path = |kind: &str| out.join(format!("{name}.{kind}"));
        write_whole(&path("png"), &Drawing::read(&svg)?.png(PNG_SCALE)?).with_context(again)?;
        write_whole(&path("svg"), svg.as_bytes()).with_context(again)?;
    }
    say!("\n{}", table::table(spec, &rows));
    unmeasured.iter().for_each(|series| say!("{}", table::not_measured(series)));
    table::replaced(spec, &earlier.replaced, points).iter().for_each(|line| say!("{line}"));
    disturbed(points).into_iter().chain(crowded(points)).for_each(|line| say!("{line}"));
    samples.line().iter().for_each(|line| say!("{line}"));
    say!();
    extra.lines.iter().for_each(|line| say!("{line}"));
    extra.modelled.iter().for_each(|line| say!("{}", line.text()));
    say!("\n{}\n", if is_judged { said_verdicts(provenance.nic, &verdicts) } else { NOT_JUDGED.to_owned() });
    say!("{}", point::standing(label, &provenance));
    for name in spec.pictures().filter(|name| out.join(format!("{name}.png")).is_file()) {
        say!("plot: {}", out.join(format!("{name}.png")).display());
    }
    say!("results in {}", out.display());
    let broken = points.iter().filter(|point| !point.is_whole());
    broken.for_each(|point| say!("not whole: {}", point.what_is_missing()));
    if let Some(why) = not_whole(points, &options.again) {
        bail!("{why}");
    }
    if options.record {
        let path = experiment.folder.join("measured.json");
        let (machine, extent, ratios) = (provenance.machine.clone(), options.extent, extra.ratios.clone());
        let rows = table::recorded(spec, points);
        let entry = Entry { machine, label, extent, provenance, rows, verdicts, ratios, samples };
        measured::record(&path, entry)?;
        say!("recorded in {}", path.display());
    }
    Ok(())
}

/// In the place of a smoke run's verdicts.
const NOT_JUDGED: &str = "no verdicts: --smoke measures two points a series at most; --quick is judged";

/// Verdicts, below a line on what an emulated NIC means for them.
fn said_verdicts(nic: Label, verdicts: &[Judged]) -> String {
    let is_of_nic = |one: &Judged| one.label == Label::Emulated && one.is_decided();
    let heading = "verdicts labelled `emulated` are about the software NIC, where a doorbell is a store to memory; a card may give others\n";
    let is_told = nic == Label::Emulated && verdicts.iter().any(is_of_nic);
    format!("{}{}", if is_told { heading } else { "" }, table::verdicts(verdicts))
}

/// What is missing where points are not whole, on which machine, and how these points are measured again.
fn not_whole(points: &[Point], again: &str) -> Option<String> {
    let broken: Vec<&Point> = points.iter().filter(|point| !point.is_whole()).collect();
    let first = broken.first()?;
    let from = &first.provenance;
    let load = from.load.map_or_else(String::new, |load| {
        format!("; load in the minute before the run: {load:.1} on {} cores", from.cores)
    });
    Some(format!(
        "{} of {} points are not whole, the first: {}{load}; nothing was recorded; to measure these again, {again}",
        broken.len(),
        points.len(),
        first.what_is_missing()
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::point::example;
    use crate::refused::Refused;

    /// Says numbers of its own, or fails.
    struct Fake {
        calls: usize,
        dies: fn(&Key) -> bool,
        label: fn(&Key) -> Label,
    }

    impl Bench for Fake {
        fn measure(&mut self, key: &Key, seconds: f64) -> Result<Point> {
            self.calls += 1;
            ensure!(!(self.dies)(key), "its program died at {key}");
            let (at, repetition) = (key.at.clone(), key.repetition);
            let provenance = provenance();
            let label = (self.label)(key);
            Ok(Point { at, repetition, seconds, label, provenance, ..example(&key.series, key.x) })
        }
    }

    fn provenance() -> Provenance {
        example("cpu-shim", 64).provenance
    }

    fn options(name: &str) -> Options {
        let out = std::env::temp_dir().join(format!("experiment-run-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&out);
        Options {
            extent: Extent::Normal,
            resume: false,
            record: false,
            out,
            again: "go on with: figure 4 --resume".into(),
        }
    }

    fn run(options: &Options, fake: &mut Fake) -> Result<Earlier> {
        let experiment = Experiment::small("fig4");
        let grid = experiment.spec.grid(options.extent);
        let _locked = resume::lock(&options.out)?;
        let earlier = measure(&experiment, options, &provenance(), &grid, fake, &mut |_, _| ())?;
        report(&experiment, options, &earlier, &Extra::default())?;
        Ok(earlier)
    }

    const HARDWARE: fn(&Key) -> Label = |_| Label::Hardware;
    const NEVER: fn(&Key) -> bool = |_| false;

    /// Says to the test below that it is the run.
    const DIES: &str = "EXPERIMENT_TEST_DIES";

    #[test]
    fn a_series_that_always_dies_hides_no_other_and_is_measured_again() {
        let mut options = options("dies");
        let mut fake = Fake { calls: 0, dies: |key| key.series == "cpu-ibverbs", label: HARDWARE };
        if std::env::var_os(DIES).is_some() {
            say!("{:#}", run(&options, &mut fake).unwrap_err());
            fs::remove_dir_all(&options.out).unwrap();
            return;
        }
        let said = of_one_test("a_series_that_always_dies_hides_no_other_and_is_measured_again", DIES, "1");
        let named = said.lines().filter(|line| line.starts_with("not whole: cpu-ibverbs at ")).count();
        let last = "4 of 8 points are not whole, the first: cpu-ibverbs at 64 B, list 1, repetition 0: its program died at";
        assert!(named == 4 && said.contains(last) && said.contains("figure 4 --resume"), "{said}");
        assert!(run(&options, &mut fake).is_err());
        let summary = fs::read_to_string(options.out.join("summary.json")).unwrap();
        assert!(summary.contains("\"label\": \"hardware\""), "{summary}");
        options.resume = true;
        let mut fake = Fake { calls: 0, dies: NEVER, label: HARDWARE };
        assert_eq!((run(&options, &mut fake).unwrap().points.len(), fake.calls), (8, 4));
        fs::remove_dir_all(&options.out).unwrap();
    }

    #[test]
    fn a_run_of_which_every_point_fails_stops_and_says_so() {
        let mut options = options("stops");
        for resume in [false, true] {
            options.resume = resume;
            let mut fake = Fake { calls: 0, dies: |_| true, label: HARDWARE };
            let error = format!("{:#}", run(&options, &mut fake).unwrap_err());
            let words = [
                "cpu-ibverbs at 4096 B, list 1, repetition 0 (2 points are in",
                "3 points in a row failed, the last: its program died",
            ];
            assert!(fake.calls == 3 && words.iter().all(|words| error.contains(words)), "{error}");
        }
        // One that succeeds in between is a new beginning.
        let mut fake = Fake { calls: 0, dies: |key| key.x == 4096, label: HARDWARE };
        options.resume = false;
        assert!(run(&options, &mut fake).unwrap_err().to_string().contains("4 of 8 points are not whole"));
        assert_eq!(fake.calls, 8);
        fs::remove_dir_all(&options.out).unwrap();
    }

    /// What the test of that name says in its own process.
    fn of_one_test(name: &str, variable: &str, value: &str) -> String {
        let mut us = std::process::Command::new(std::env::current_exe().unwrap());
        let name = format!("run::tests::{name}");
        let said = us.args(["--exact", &name, "--nocapture"]).env(variable, value).output().unwrap();
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    #[test]
    fn the_weakest_label_is_the_runs() {
        let options = options("label");
        let label = |key: &Key| if key.x == 64 { Label::Emulated } else { Label::Hardware };
        run(&options, &mut Fake { calls: 0, dies: NEVER, label }).unwrap();
        let summary = fs::read(options.out.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
        assert_eq!(summary["label"], "emulated");
        let [weak, strong] =
            [Label::Emulated, Label::Hardware].map(|label| Point { label, ..example("a", 1) });
        let said = point::standing(label_of(&[strong, weak]), &provenance());
        assert!(said.starts_with("label: emulated (nic: hardware, "), "{said}");
        fs::remove_dir_all(&options.out).unwrap();
    }

    #[test]
    fn two_runs_do_not_share_a_folder() {
        let options = options("lock");
        let first = resume::lock(&options.out).unwrap();
        let error = run(&options, &mut Fake { calls: 0, dies: NEVER, label: HARDWARE }).unwrap_err();
        assert!(error.is::<Refused>() && error.to_string().contains("another run writes there"), "{error:#}");
        drop(first);
        run(&options, &mut Fake { calls: 0, dies: NEVER, label: HARDWARE }).unwrap();
        fs::remove_dir_all(&options.out).unwrap();
    }

    /// Says to the test below that its files may not grow.
    const FULL: &str = "EXPERIMENT_TEST_FULL";

    #[test]
    fn a_file_that_cannot_grow_says_once_why_and_how_to_go_on() {
        if std::env::var_os(FULL).is_some() {
            let options = options("full");
            let error = run(&options, &mut Fake { calls: 0, dies: NEVER, label: HARDWARE }).unwrap_err();
            say!("{error:#}");
            fs::remove_dir_all(&options.out).unwrap();
            return;
        }
        // A file that may have a few hundred bytes is a disk without room.
        let mut us = std::process::Command::new("sh");
        us.args(["-c", r#"trap "" XFSZ; ulimit -f 1; exec "$0" "$@""#]).arg(std::env::current_exe().unwrap());
        us.args([
            "--exact",
            "run::tests::a_file_that_cannot_grow_says_once_why_and_how_to_go_on",
            "--nocapture",
        ]);
        let said = us.env(FULL, "1").output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let error = said.lines().find(|line| line.contains("os error")).expect(&said);
        assert!(
            error.contains("go on with: figure 4 --resume") && error.contains("results.jsonl"),
            "{error}"
        );
        assert_eq!(error.matches("os error").count(), 1, "{error}");
    }

    /// Says to the test below that it is the run, of this extent.
    const EXTENT: &str = "EXPERIMENT_TEST_EXTENT";

    #[test]
    fn the_end_of_a_run_names_its_pictures_and_a_smoke_run_has_no_verdict() {
        if let Ok(extent) = std::env::var(EXTENT) {
            let options =
                Options { extent: serde_json::from_value(extent.into()).unwrap(), ..options("pictures") };
            run(&options, &mut Fake { calls: 0, dies: NEVER, label: HARDWARE }).unwrap();
            return;
        }
        for (extent, is_judged) in [("normal", true), ("smoke", false)] {
            let name = "the_end_of_a_run_names_its_pictures_and_a_smoke_run_has_no_verdict";
            let said = of_one_test(name, EXTENT, extent);
            let plots: Vec<&Path> =
                said.lines().filter_map(|line| line.strip_prefix("plot: ")).map(Path::new).collect();
            assert!(plots.len() == 2 && plots.iter().all(|plot| plot.is_file()), "{said}");
            let folder = plots[0].parent().unwrap();
            let summary = fs::read_to_string(folder.join("summary.json")).unwrap();
            let judged = [
                said.contains("post-constant "),
                !said.contains(NOT_JUDGED),
                !summary.contains("\"verdicts\": []"),
            ];
            assert_eq!(judged, [is_judged; 3], "{extent}: {said}");
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn verdicts_on_an_emulated_nic_are_said_to_be_about_it() {
        use crate::verdict::Verdict::{NeedsData, NotReproduced, Reproduced};
        let experiment = Experiment::small("fig4");
        let any = experiment.judge(&[example("cpu-shim", 64)]).remove(0);
        for (nic, label, verdict, is_said) in [
            (Label::Emulated, Label::Emulated, Reproduced, true),
            (Label::Emulated, Label::Emulated, NotReproduced, true),
            (Label::Emulated, Label::Emulated, NeedsData, false),
            (Label::Emulated, Label::None, Reproduced, false),
            (Label::Hardware, Label::Emulated, Reproduced, false),
        ] {
            let said = said_verdicts(nic, &[Judged { label, verdict, ..any.clone() }]);
            assert_eq!(said.starts_with("verdicts labelled `emulated` are about the software NIC"), is_said);
        }
    }

    #[test]
    fn a_damaged_line_comes_with_advice() {
        let mut options = options("damaged");
        run(&options, &mut Fake { calls: 0, dies: NEVER, label: HARDWARE }).unwrap();
        let file = options.out.join("results.jsonl");
        let text = fs::read_to_string(&file).unwrap().replacen("\"series\"", "\"serie\"", 1);
        fs::write(&file, text).unwrap();
        options.resume = true;
        let error = run(&options, &mut Fake { calls: 0, dies: NEVER, label: HARDWARE }).unwrap_err();
        let words = ["line 1", "remove that line", "leave --resume out"];
        assert!(
            error.is::<Refused>() && words.iter().all(|word| error.to_string().contains(word)),
            "{error:#}"
        );
        fs::remove_dir_all(&options.out).unwrap();
    }

    #[test]
    fn a_file_is_written_whole_or_left_as_it_was() {
        let folder = std::env::temp_dir().join(format!("experiment-whole-{}", std::process::id()));
        fs::create_dir_all(folder.join("taken")).unwrap();
        write_whole(&folder.join("plot.png"), b"whole").unwrap();
        assert!(write_whole(&folder.join("taken"), b"whole").is_err());
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["plot.png", "taken"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
