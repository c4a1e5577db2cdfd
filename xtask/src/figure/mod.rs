//! `cargo xtask figure N`: measures what `experiments/figN/spec.toml` says, draws it beside the paper's curves, and gives
//! a verdict for each of the paper's claims.
//!
//! Every finished point is on disk before the next one starts, so that a cut run resumes. Nothing is filtered (INV-10).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use experiment::modelled::{self, Modelled};
use experiment::point::{Key, crowded, gpu_named, label_of, load, needs_gpu, provenance_of};
use experiment::record::Entry;
use experiment::spec::{Extent, Grid, InFlight, Plot};
use experiment::verdict::{Judged, judge, shaped_to};
use experiment::{Paper, Point, Spec, figures, png, table};
use indicatif::ProgressBar;
use measure::{JsonLines, Label};
use serde::Serialize;

use crate::bench_post_gpu;
use crate::carried;
use crate::gpu_machine::GpuMachine;
use crate::measured;
use crate::process::{Speaking, WAIT};
use crate::progress::Progress;
use crate::refused::refused;
use crate::setup::{self, Purpose};
use crate::stop;
use crate::workspace::{self, root};

mod earlier;
mod import;
mod nic;
mod session;

use earlier::Earlier;
pub use import::imported;
pub use nic::{Nic, Probe, Programs};
use nic::{PORT, Peer, Receiver};
use session::Bench;

/// Pixels of a PNG per unit of its SVG: fit for print at a column's width.
const PNG_SCALE: f32 = 3.0;
/// Names of the plots' files.
const PLOTS: [&str; 2] = ["throughput", "post-time"];

/// Options of `figure`, and of the short names of figures.
#[derive(Args, Clone)]
pub struct Options {
    /// Fewer and shorter points: at most a minute after the build.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Every published size, more and longer repetitions.
    #[arg(long)]
    full: bool,
    /// Keep the points of a run that was cut, and measure the others, and those again whose messages were not whole.
    #[arg(long)]
    resume: bool,
    /// Update the committed `measured.json`; refuses a tree with changes.
    #[arg(long)]
    record: bool,
    /// Say what would be measured, and stop.
    #[arg(long)]
    dry_run: bool,
    /// Where results go.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Shape the software NIC's link to this many Gbit/s of wire bytes, as the paper's 100; measured.json keeps such a run apart, so give it another --out.
    #[arg(long, value_name = "X", conflicts_with = "nic", value_parser = rate_gbps)]
    rate_gbps: Option<f64>,
    /// A card of this host instead of the software NIC, e.g. mlx5_0.
    #[arg(long, value_name = "DEVICE")]
    nic: Option<String>,
    /// Host with the receiver for --nic; started there over ssh.
    #[arg(long, value_name = "HOST", requires = "nic")]
    peer: Option<String>,
    /// The generator on that host: a path there, or a name in its PATH.
    #[arg(long, value_name = "PATH", requires = "peer", default_value = "generator")]
    peer_generator: String,
    /// Install nothing; what is missing ends the run with exit status 2.
    #[arg(long)]
    no_install: bool,
}

impl Options {
    /// Whether the committed `measured.json` is to be changed.
    pub fn records(&self) -> bool {
        self.record
    }

    /// What of it `bench-post --gpu` takes.
    pub fn for_gpu<'a>(&'a self, peer_headers: Option<&'a Path>) -> bench_post_gpu::Options<'a> {
        bench_post_gpu::Options {
            quick: self.quick,
            out: self.out.as_deref(),
            peer_headers,
            no_install: self.no_install,
        }
    }

    fn extent(&self) -> Extent {
        match (self.quick, self.full) {
            (true, _) => Extent::Quick,
            (_, true) => Extent::Full,
            _ => Extent::Normal,
        }
    }
}

/// Folder of all experiments.
fn experiments() -> PathBuf {
    root().join("experiments")
}

/// As `softnic run --rate-gbps` takes it.
fn rate_gbps(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    if (0.001..=1000.0).contains(&rate) {
        Ok(rate)
    } else {
        Err(format!("{rate} is not within 0.001 to 1000"))
    }
}

/// What `summary.json` holds.
#[derive(Serialize)]
struct Summary<'a> {
    figure: u32,
    title: &'a str,
    extent: String,
    label: Label,
    provenance: &'a measure::Provenance,
    timers: [measure::Timer; 2],
    rows: &'a [table::Row],
    verdicts: &'a [Judged],
    ratios: &'a serde_json::Value,
    /// Of figure 4: what a link would carry of posts that were measured without a NIC.
    #[serde(skip_serializing_if = "<[Modelled]>::is_empty")]
    modelled: &'a [Modelled],
    /// Lines of `results.jsonl` that count no more: their points were not whole and were measured again.
    replaced: usize,
}

/// One experiment with the papers that its points are held against.
struct Experiment {
    spec: Spec,
    folder: PathBuf,
    fig4: Paper,
    fig5: Paper,
    claims: Vec<Paper>,
}

impl Experiment {
    fn read(number: u32) -> Result<Experiment> {
        let experiments = experiments();
        let folder = experiments.join(format!("fig{number}"));
        if !folder.join("spec.toml").exists() {
            let entries = fs::read_dir(&experiments).context("reading experiments/")?.flatten();
            let mut known: Vec<String> = entries
                .filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("fig")?.to_owned()))
                .collect();
            known.sort_unstable();
            return Err(refused(format!(
                "no experiment for figure {number}; there are: {}",
                known.join(", ")
            )));
        }
        let paper = |name: &str| Paper::read(&experiments.join(name));
        let spec = Spec::read(&folder)?;
        let claims = spec.judges.iter().map(|name| paper(name)).collect::<Result<_>>()?;
        Ok(Experiment { spec, folder, fig4: paper("fig4")?, fig5: paper("fig5")?, claims })
    }

    /// Figure 5's claims are about the time of a post, which is that of whole bursts.
    fn judge(&self, points: &[Point]) -> Vec<Judged> {
        let timed = self.timed(points);
        let mut judged = Vec::new();
        for paper in &self.claims {
            let points = if paper.paper.figure == 5 { &timed } else { points };
            judged.extend(paper.claim.iter().map(|claim| judge(claim, points)));
        }
        // Of a link that nobody shaped there is nothing to say.
        if shaped_to(points).is_some() {
            judged.extend(self.spec.shaped.iter().map(|claim| judge(claim, points)));
        }
        judged
    }

    /// Points whose time of a post may stand beside one another's.
    fn timed(&self, points: &[Point]) -> Vec<Point> {
        points.iter().filter(|point| self.spec.has_whole_bursts(point.payload_bytes)).cloned().collect()
    }
}

/// Runs figure `number`.
pub fn run(number: u32, options: &Options) -> Result<()> {
    let mut experiment = Experiment::read(number)?;
    if let Some(rate) = options.rate_gbps {
        experiment.spec.nic.insert("rate_gbps".into(), rate.into());
    }
    let out = options.out.clone().unwrap_or_else(|| workspace::results(&format!("fig{number}")));
    // What the user can mend is said before minutes of building.
    earlier::check(&out, &experiment.spec, options)?;
    if options.dry_run {
        say!("{}", dry_run(&experiment, options, &out).trim_end());
        return Ok(());
    }
    let revision = workspace::revision();
    if options.record {
        measured::allowed(&revision)?;
    }
    if let Some(device) = &options.nic {
        Nic::card(device)?;
    }
    fs::create_dir_all(out.join("logs"))
        .map_err(|error| refused(format!("--out {}: {error}", out.display())))?;
    setup::prepare(Purpose::Figure, options.no_install)?;
    build()?;
    execute(&experiment, options, &out, &Programs::release())
}

/// Release builds of the generator and of the software NIC; a bundle carries them.
pub fn build() -> Result<()> {
    if carried::folder().is_some() {
        return Ok(());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Without a terminal there is no bar, and a first build is long.
    say!("building the release programs, some minutes the first time");
    let bar =
        ProgressBar::new_spinner().with_message("building the generator and the software NIC (release) …");
    bar.enable_steady_tick(Duration::from_millis(120));
    let output = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--locked", "-p", "generator", "-p", "softnic"])
        .current_dir(root())
        .output()
        .context("starting cargo build")?;
    bar.finish_and_clear();
    if !output.status.success() {
        bail!("cargo build --release failed:\n{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Measures, draws and judges; `programs` are stand-ins in tests.
fn execute(experiment: &Experiment, options: &Options, out: &Path, programs: &Programs) -> Result<()> {
    let logs = out.join("logs");
    fs::create_dir_all(&logs).map_err(|error| refused(format!("--out {}: {error}", out.display())))?;
    let nic = match &options.nic {
        None => Nic::software(&experiment.spec, out)?,
        Some(device) => Nic::card(device)?,
    };
    let peer = options.peer.as_deref().map(|host| Peer {
        host,
        generator: &options.peer_generator,
        ssh: Path::new("ssh"),
        port: PORT,
    });
    execute_on(&nic, peer, experiment, options, out, programs)
}

fn execute_on(
    nic: &Nic,
    peer: Option<Peer<'_>>,
    experiment: &Experiment,
    options: &Options,
    out: &Path,
    programs: &Programs,
) -> Result<()> {
    let (spec, logs) = (&experiment.spec, out.join("logs"));
    let probe = Probe::ask(nic, programs, &logs)?;
    let mut provenance = probe.provenance(nic, &spec.nic, workspace::revision());
    provenance.versions.insert("profile".into(), workspace::profile()?);
    let file = out.join("results.jsonl");
    let mut grid = spec.grid(options.extent());
    if grid.series.iter().any(|series| needs_gpu(series)) {
        let machine = GpuMachine::ask()?;
        if machine.gpu().is_some() {
            machine.name_in(&mut provenance);
        } else {
            let left_out = grid.without_gpu();
            say!("without a GPU these are left out: {} ({})", left_out.join(", "), machine.why_none());
        }
    }
    let earlier = earlier::earlier(out, options, &provenance, spec, &grid)?;
    earlier.said.iter().for_each(|line| say!("{line}"));
    let receiver = Receiver::find(nic, peer, &logs)?;
    let link_gbps = probe.link_gbps(nic);
    let bench =
        Bench { spec, programs, nic, receiver: &receiver, logs: &logs, provenance: &provenance, link_gbps };
    stop::goes_on_with(format!(
        "; finished points are in {}, go on with: {}",
        file.display(),
        resuming(spec.figure, options, out)
    ));
    let Earlier { points, replaced, .. } = earlier;
    let points = measure_all(&bench, &grid, points, &file)?;
    let ratios = if spec.bench_post { bench_post(nic, programs, &logs)? } else { serde_json::Value::Null };
    report(experiment, options, out, &points, replaced, &ratios)
}

/// The command that goes on with a cut run.
fn resuming(figure: u32, options: &Options, out: &Path) -> String {
    let mut words = vec![workspace::us(), "figure".to_owned(), figure.to_string()];
    let switches = [
        ("--quick", options.quick),
        ("--full", options.full),
        ("--record", options.record),
        ("--no-install", options.no_install),
    ];
    words.extend(switches.iter().filter(|(_, given)| *given).map(|(name, _)| (*name).to_owned()));
    words.extend(options.rate_gbps.map(|rate| format!("--rate-gbps {rate}")));
    let generator = options.peer.is_some().then(|| options.peer_generator.clone());
    for (name, value) in
        [("--nic", &options.nic), ("--peer", &options.peer), ("--peer-generator", &generator)]
    {
        words.extend(value.iter().flat_map(|value| [name.to_owned(), quoted(value)]));
    }
    words.extend(["--resume --out".to_owned(), quoted(&out.display().to_string())]);
    words.join(" ")
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:=@%,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Every point of the grid that is not there yet, each one on disk before the next starts.
fn measure_all(bench: &Bench<'_>, grid: &Grid, earlier: Vec<Point>, file: &Path) -> Result<Vec<Point>> {
    let mut lines = JsonLines::append_to(file)?;
    let done: BTreeSet<Key> = earlier.iter().map(Point::key).collect();
    let keys = grid.keys();
    let template = "{bar:30} {pos}/{len}  {msg}  {elapsed} of about {duration}";
    let mut progress = Progress::new(keys.len() as u64, template)?;
    let mut points = earlier;
    let since = Instant::now();
    for key in keys.iter().filter(|key| !done.contains(key)) {
        progress.reach(points.len() as u64);
        progress.say(&format!("{} {} B", key.0, key.1));
        let point = bench.measure(key, grid.seconds).with_context(|| {
            format!(
                "{} at {} B, repetition {} ({} points are in {})",
                key.0,
                key.1,
                key.3,
                points.len(),
                file.display()
            )
        })?;
        lines.push(&point)?;
        points.push(point);
    }
    progress.end();
    say!("{} points in {:.0} s", points.len(), since.elapsed().as_secs_f64());
    Ok(points)
}

/// The posting code of libmlx5 and of the shim side by side in one process.
fn bench_post(nic: &Nic, programs: &Programs, logs: &Path) -> Result<serde_json::Value> {
    let mut command = nic.generator(programs);
    command.args(["bench-post", "--json", "-"]);
    let mut session = Speaking::start(&mut command, &logs.join("bench-post.log"))?;
    let answer = session.json("bench-post", WAIT * 3).context("comparing the posting code")?;
    session.child.wait(WAIT)?;
    Ok(answer)
}

fn report(
    experiment: &Experiment,
    options: &Options,
    out: &Path,
    points: &[Point],
    replaced: usize,
    ratios: &serde_json::Value,
) -> Result<()> {
    let spec = &experiment.spec;
    let rows = table::rows(points);
    let verdicts = experiment.judge(points);
    let extent = options.extent().name().to_owned();
    let modelled = match spec.plots.contains(&Plot::Throughput) {
        true => modelled::known(
            &experiments().join(format!("{}/measured.json", bench_post_gpu::NAME)),
            &workspace::results(bench_post_gpu::NAME).join(format!("{}.json", bench_post_gpu::NAME)),
        )?,
        false => Vec::new(),
    };
    let (label, provenance) = (label_of(points), provenance_of(points).context("the grid is empty")?);
    let unmeasured: Vec<String> = spec.grid(options.extent()).series;
    let unmeasured: Vec<String> =
        unmeasured.into_iter().filter(|series| !rows.iter().any(|row| row.series == *series)).collect();
    let summary = Summary {
        figure: spec.figure,
        title: &spec.title,
        extent: extent.clone(),
        label,
        provenance: &provenance,
        timers: [measure::timer::POST, measure::timer::TRANSFER],
        rows: &rows,
        verdicts: &verdicts,
        ratios,
        modelled: &modelled,
        replaced,
    };
    write(&out.join("summary.json"), (serde_json::to_string_pretty(&summary)? + "\n").as_bytes())?;
    for plot in &spec.plots {
        let (name, svg) = match plot {
            Plot::Throughput => (
                PLOTS[0],
                figures::throughput(points, &experiment.fig4, &experiment.fig5, &modelled, &unmeasured)?,
            ),
            Plot::PostTime => {
                (PLOTS[1], figures::post_time(&experiment.timed(points), &experiment.fig5, &unmeasured)?)
            }
        };
        write(&out.join(format!("{name}.png")), &png(&svg, PNG_SCALE)?)?;
        write(&out.join(format!("{name}.svg")), svg.as_bytes())?;
    }
    say!("\n{}", table::table(&rows));
    unmeasured.iter().for_each(|series| say!("{}", table::not_measured(series)));
    crowded(points).iter().for_each(|line| say!("{line}"));
    say!();
    for row in ratios["rows"].as_array().into_iter().flatten() {
        let word = |name: &str| row[name].as_str().unwrap_or("-").to_owned();
        let ratio = row["ratio"].as_f64().unwrap_or(f64::NAN);
        say!(
            "lists of {:2}, {:9} {:6}  shim ÷ libmlx5 {ratio:.3}",
            row["list"],
            word("doorbell"),
            word("order")
        );
    }
    modelled.iter().for_each(|line| say!("{}", line.text()));
    say!("{}\n", table::verdicts(&verdicts));
    say!(
        "label: {label} (nic: {}, gpu: {}, link: {}); {}{}{}",
        provenance.nic,
        provenance.gpu,
        provenance.link,
        gpu_named(&provenance),
        provenance.machine,
        load(&provenance)
    );
    say!("results in {}", out.display());
    if replaced > 0 {
        say!(
            "{replaced} older lines in results.jsonl are of points that were not whole and were measured again"
        );
    }
    if let Some(why) = not_whole(points, &resuming(spec.figure, options, out)) {
        bail!("{why}");
    }
    if options.record {
        let path = experiment.folder.join("measured.json");
        let machine = provenance.machine.clone();
        measured::record(
            &path,
            Entry {
                machine,
                label,
                extent,
                provenance,
                rows: rows.clone(),
                verdicts,
                ratios: ratios.clone(),
            },
        )?;
        say!("recorded in {}", path.display());
    }
    Ok(())
}

/// What is missing where messages were not whole, on which machine, and how these points are measured again.
fn not_whole(points: &[Point], again: &str) -> Option<String> {
    let broken: Vec<&Point> = points.iter().filter(|point| !point.is_whole()).collect();
    let first = broken.first()?;
    let from = &first.provenance;
    let load = from.load.map_or_else(String::new, |load| {
        format!("; load in the minute before the run: {load:.1} on {} cores", from.cores)
    });
    let shown = format!(
        "{} of {} points are not whole, the first: {}{load}; nothing was recorded; measure these again with: {again}",
        broken.len(),
        points.len(),
        first.what_is_missing()
    );
    Some(shown)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, options: &Options, out: &Path) -> String {
    let spec = &experiment.spec;
    let mut grid = spec.grid(options.extent());
    // Whether there is one is known when it is measured: nothing is asked here.
    let whole = grid.keys().len();
    let on_a_gpu = grid.without_gpu();
    let keys = grid.keys();
    let mut lines = vec![
        format!("figure {}: {}", spec.figure, spec.title),
        format!(
            "{} points: {} series × {} sizes × lists of {:?} × {} repetitions, {} s each",
            keys.len(),
            grid.series.len(),
            grid.payload_bytes.len(),
            grid.list,
            grid.repeat,
            grid.seconds
        ),
        format!("nic: {}", options.nic.as_deref().unwrap_or("the software NIC, two processes")),
        format!("results: {}", out.display()),
    ];
    if let Some(rate) = options.rate_gbps {
        lines.push(format!(
            "link: shaped to {rate} Gbit/s of wire bytes; measured.json keeps such a run apart from unshaped ones, and --resume \
             takes no points of another rate"
        ));
    }
    lines.push(windows(spec, &grid));
    for series in grid.series.iter().chain(&on_a_gpu) {
        if Some(series) == on_a_gpu.first() {
            let lists = on_a_gpu.iter().map(|series| format!("{series} (lists of {:?})", grid.lists(series)));
            let lists: Vec<String> = lists.collect();
            lines.push(format!("with a GPU {} points more: {}", whole - keys.len(), lists.join(", ")));
        }
        let options =
            session::sender_options(spec, series, grid.payload_bytes[0], grid.lists(series)[0], grid.seconds);
        lines.push(format!("sender: generator --connect … {}", options.join(" ")));
    }
    lines.push(
        "receiver: generator --listen …, which takes payload, operation and queues from the sender".into(),
    );
    for plot in &spec.plots {
        lines.push(format!("draws: {plot:?}"));
    }
    for paper in &experiment.claims {
        for curve in &paper.series {
            lines.push(format!(
                "beside figure {}: {} ({} points)",
                paper.paper.figure,
                curve.name,
                curve.points.len()
            ));
        }
        for claim in &paper.claim {
            let note = claim
                .note
                .as_ref()
                .map_or_else(String::new, |note| format!(" ({})", note.replace('\n', " ")));
            lines.push(format!("judges: {}: {}{note}", claim.id, claim.text));
        }
    }
    let shaped = spec.shaped.iter().filter(|_| options.rate_gbps.is_some());
    lines.extend(shaped.map(|claim| format!("judges: {}: {}", claim.id, claim.text)));
    lines.push(String::new());
    lines.join("\n")
}

/// Window and burst by message size, sizes with the same ones together.
fn windows(spec: &Spec, grid: &Grid) -> String {
    let mut groups: Vec<(Option<InFlight>, u64, u64)> = Vec::new();
    for size in &grid.payload_bytes {
        match groups.last_mut() {
            Some((in_flight, _, last)) if *in_flight == spec.in_flight(*size) => *last = *size,
            _ => groups.push((spec.in_flight(*size), *size, *size)),
        }
    }
    let group = |(in_flight, first, last): &(Option<InFlight>, u64, u64)| {
        let sizes = if first == last { format!("{first} B") } else { format!("{first} to {last} B") };
        match in_flight {
            Some(InFlight { window, batch }) => format!("{sizes}: {window}, {batch}"),
            None => format!("{sizes}: the generator's own window, {}", spec.burst()),
        }
    };
    let groups: Vec<String> = groups.iter().map(group).collect();
    format!("outstanding messages, and messages a burst, at most: {}", groups.join("; "))
}

#[cfg(test)]
mod tests;
