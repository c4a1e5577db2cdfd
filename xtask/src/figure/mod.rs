//! `cargo xtask figure N`: measures what `experiments/figN/spec.toml` says, draws it beside the paper's
//! curves, and judges each of the paper's claims.
//!
//! The harness is crates/experiment. Here: what measures, and transfers (their points: `transfer.rs`).

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use experiment::modelled;
use experiment::paper::Curve;
use experiment::point::needs_gpu;
use experiment::run::{self, Extra};
use experiment::spec::Formula;
use experiment::{Experiment, resume};
use measure::Provenance;

use crate::bench_models;
use crate::bench_nic;
use crate::carried;
use crate::gpu_machine::GpuMachine;
use crate::measured;
use crate::process::{JsonProgram, WAIT};
use crate::progress;
use crate::workspace::{self, experiments};

mod all;
mod app;
mod chosen_nic;
mod cpu;
mod judged;
pub mod models;
mod nic;
mod nodes;
mod options;
pub mod path;
mod place;
pub mod posts;
mod reader;
mod samples;
pub mod serving;
mod smoke;
mod transfer;
pub mod waits;

use app::App;
pub use app::{begin, known};
pub use judged::judged;
pub use nic::{Nic, Probe, Programs};
use nic::{PORT, Peer, Receiver};
pub use options::Options;
use place::HostSetup;
use serving::{clients, time};
use transfer::{Bench, InFlight, Transfer};

/// Options of `figure` that experiments take whose points are measured one by one.
const POINTS: &str = "--quick --full --resume --record --dry-run --out --no-install";
const OF_A_SERVER: &str = "--counters-hook --machine --where --tune --nic";
const OF_A_BENCH: &str = "--quick --record --out --no-install";
const NO_NIC: Option<&str> = Some("it needs no NIC");
/// Everything that measures.
const APPS: [App; 10] = [
    App {
        name: transfer::APP,
        takes: &[POINTS, "--smoke --counters-hook --where --tune --rate-gbps --nic --peer --peer-generator"],
        own_nic: None,
        run: transfers,
    },
    App { name: models::APP, takes: &[POINTS, "--smoke --counters-hook"], own_nic: NO_NIC, run: models::run },
    App { name: path::APP, takes: &[POINTS, "--smoke"], own_nic: NO_NIC, run: path::run },
    App { name: waits::APP, takes: &[POINTS, "--counters-hook"], own_nic: NO_NIC, run: waits::run },
    App { name: serving::APP, takes: &[POINTS, OF_A_SERVER, "--smoke"], own_nic: None, run: serving::run },
    App { name: time::APP, takes: &[POINTS, OF_A_SERVER, "--smoke"], own_nic: None, run: time::run },
    App { name: clients::APP, takes: &[POINTS, OF_A_SERVER], own_nic: None, run: clients::run },
    App {
        name: bench_nic::APP,
        takes: &["--quick --resume --record --out --no-install"],
        own_nic: None,
        run: |experiment, options| bench_nic::run(&experiment.spec.name, &bench_nic::Options::of(options)),
    },
    App { name: bench_models::APP, takes: &[OF_A_BENCH], own_nic: None, run: bench_models::no_figure },
    App {
        name: posts::NAME,
        takes: &[OF_A_BENCH],
        own_nic: None,
        run: |_, options| posts::run(options, None),
    },
];

/// Runs the experiment `name`, or all figures. Says how a figure is looked at beside the recorded ones.
pub fn run(name: &str, options: &Options) -> Result<()> {
    if name == all::NAME {
        return all::run(options);
    }
    run_one(name, options)?;
    shown_by(name, options).iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// The command that shows a figure's results, where a page of them can be made.
fn shown_by(name: &str, options: &Options) -> Option<String> {
    let has_page = name.starts_with("fig") && !options.dry_run && carried::folder().is_none();
    has_page.then(|| workspace::shown_by(options.out.as_deref()))
}

/// Runs an experiment by the function that its `app` names.
fn run_one(name: &str, options: &Options) -> Result<()> {
    let mut experiment = Experiment::read(&experiments(), name)?;
    let of = &experiment.spec.app;
    let app = APPS.iter().find(|app| app.name == of);
    let app = app.with_context(|| format!("{name}: no program `{of}` is known to measure"))?;
    app.refuse_others(name, options)?;
    if options.smoke {
        smoke::shorten(&mut experiment.spec);
    }
    if let Some(command) = &options.counters_hook {
        samples::set_hook(command);
    }
    (app.run)(experiment, options)
}

/// Measures, draws and judges transfers.
fn transfers(mut experiment: Experiment, options: &Options) -> Result<()> {
    if let Some(rate) = options.rate_gbps {
        experiment.spec.nic.insert("rate_gbps".into(), rate.into());
    }
    chosen_nic::prepare(&mut experiment.spec, options)?;
    if options.on_nodes().is_some() {
        let left_out = experiment.spec.grid(options.extent()).without_gpu().join(", ");
        say!("left out: {left_out} (a GPU posts on this machine alone)");
        experiment.spec.keep(|series| !needs_gpu(series));
    }
    // What the user can mend is said before minutes of building.
    let how = check(&experiment, options)?;
    if options.dry_run {
        say!("{}", dry_run(&experiment, options, &how.out)?.trim_end());
        return Ok(());
    }
    let revision = workspace::revision();
    if revision.commit.is_empty() {
        say!("revision {}", workspace::in_words(&revision));
    }
    if options.record {
        measured::allowed(&revision)?;
    }
    if let Some(device) = &options.nic {
        Nic::card(device)?;
    }
    let place = options.place();
    place.allowed(&how.out)?;
    let _locked = resume::lock(&how.out)?;
    place.set_up(options.no_install)?;
    Programs::build()?;
    execute(&experiment, options, &how.out, &Programs::release())
}

/// Refuses an `--out` that cannot be gone on with, as far as that is known before anything is built.
fn check(experiment: &Experiment, options: &Options) -> Result<resume::Options> {
    let (spec, how) = (&experiment.spec, options.how(experiment));
    let transfer = Transfer::of(spec)?;
    let known = |old: &Provenance| chosen_nic::known(old, spec, options);
    resume::check(spec, &how, &known, &|key| transfer.asked(spec, key))?;
    Ok(how)
}

/// Measures, draws and judges; `programs` are stand-ins in tests.
fn execute(experiment: &Experiment, options: &Options, out: &Path, programs: &Programs) -> Result<()> {
    let peer = options.peer.as_deref().map(|host| Peer {
        host,
        generator: &options.peer_generator,
        ssh: Path::new("ssh"),
        port: PORT,
    });
    let setup = HostSetup {
        spec: &experiment.spec,
        out,
        ends: ["sender", "receiver"],
        variables: &[],
        is_shaped: options.rate_gbps.is_some(),
        tune: options.tune,
    };
    chosen_nic::on_nic(options, &setup, &|nic| execute_on(&nic, peer, experiment, options, out, programs))
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
    let how = Options { out: Some(out.to_owned()), ..options.clone() }.how(experiment);
    let transfer = Transfer::of(spec)?;
    let probe = Probe::ask(nic, programs, &logs)?;
    let mut provenance = probe.provenance(nic, &spec.nic, workspace::revision())?;
    let mut grid = spec.grid(how.extent);
    if grid.series.iter().any(|series| needs_gpu(series)) {
        let machine = GpuMachine::ask()?;
        if machine.gpu().is_some() {
            machine.name_in(&mut provenance);
        } else {
            let left_out = grid.without_gpu();
            say!("without a GPU these are left out: {} ({})", left_out.join(", "), machine.why_none());
        }
    }
    let receiver = Receiver::find(nic, peer, &logs)?;
    let link_gbps = probe.link_gbps(nic);
    let logs = logs.as_path();
    let mut bench =
        Bench { spec, transfer, programs, nic, receiver, peer, logs, provenance: &provenance, link_gbps };
    let measure = |bench: &mut dyn run::Bench| samples::measure(experiment, &how, &provenance, &grid, bench);
    let earlier = match nic {
        Nic::Nodes(nodes) => {
            measure(&mut samples::BetweenNodes::start(&mut bench, nodes, true, None, logs)?)?
        }
        _ => measure(&mut bench)?,
    };
    let mut extra =
        if bench.transfer.bench_post { bench_post(nic, programs, logs)? } else { Extra::default() };
    if spec.plots.iter().any(|plot| plot.formulas.contains(&Formula::Modelled)) {
        let recorded = experiments().join(posts::NAME).join("measured.json");
        extra.modelled = modelled::known(&recorded, &workspace::results(posts::NAME).join("summary.json"))?;
    }
    run::report(experiment, &how, &earlier, &extra)
}

/// The posting code of libmlx5 and of the shim side by side in one process.
fn bench_post(nic: &Nic, programs: &Programs, logs: &Path) -> Result<Extra> {
    let mut command = nic.generator(programs)?;
    command.args(["bench-post", "--json", "-"]);
    let mut session = JsonProgram::start(&mut command, &logs.join("bench-post.log"))?;
    let ratios = session.json("bench-post", WAIT * 3).context("comparing the posting code")?;
    session.child.wait(WAIT)?;
    let line = |row: &serde_json::Value| {
        let word = |name: &str| row[name].as_str().unwrap_or("-").to_owned();
        let ratio = experiment::table::number(row["ratio"].as_f64());
        let (list, doorbell, order) = (&row["list"], word("doorbell"), word("order"));
        let other = if row["same_doorbell"] == false { ", libmlx5 by BlueFlame" } else { "" };
        format!("lists of {list:2}, {doorbell:9} {order:6}  shim ÷ libmlx5 {ratio}{other}")
    };
    let lines = ratios["rows"].as_array().into_iter().flatten().map(line).collect();
    Ok(Extra { ratios, lines, ..Extra::default() })
}

/// What would be measured, drawn and judged (INV-10).
fn dry_run(experiment: &Experiment, options: &Options, out: &Path) -> Result<String> {
    let (spec, transfer) = (&experiment.spec, Transfer::of(&experiment.spec)?);
    let mut grid = spec.grid(options.extent());
    // Whether there is one is known when it is measured: nothing is asked here.
    let whole = grid.keys().len();
    let on_a_gpu = grid.without_gpu();
    let keys = grid.keys();
    let lists = |series: &str| -> Vec<u64> { grid.others(series).iter().map(|at| at["list"]).collect() };
    let mut lines = vec![
        format!("{}: {}", spec.name, spec.title),
        format!(
            "{} points: {} series × {} sizes × lists of {:?} × {} repetitions, {} s each; {} after the build",
            keys.len(),
            grid.series.len(),
            grid.xs().len(),
            grid.factors["list"],
            grid.repeat,
            grid.seconds,
            progress::about(Duration::from_secs_f64(all::grid_s(&grid)))
        ),
        format!("nic: {}", options.nic_in_words()),
        format!("results: {}", out.display()),
    ];
    if let Some(rate) = options.rate_gbps {
        lines.push(format!(
            "link: shaped to {rate} Gbit/s of wire bytes; measured.json keeps such a run apart from unshaped ones, and --resume \
             takes no points of another rate"
        ));
    }
    lines.push(windows(&transfer, &grid.xs()));
    for series in grid.series.iter().chain(&on_a_gpu) {
        if Some(series) == on_a_gpu.first() {
            let of = |series: &String| format!("{series} (lists of {:?})", lists(series));
            let all = on_a_gpu.iter().map(of).collect::<Vec<String>>().join(", ");
            lines.push(format!("with a GPU {} points more: {all}", whole - keys.len()));
        }
        let options = transfer.sender_options(spec, series, grid.xs()[0], lists(series)[0], grid.seconds);
        lines.push(format!("sender: generator --connect … {}", options.join(" ")));
    }
    let receiver =
        "receiver: generator --listen …, which takes payload, operation and queues from the sender";
    lines.push(receiver.into());
    lines.extend(spec.plots.iter().map(|plot| format!("draws: {}: {}", plot.name, plot.title)));
    let curve = |curve: &Curve| format!("{} ({} points)", curve.name, curve.points.len());
    for paper in &experiment.papers {
        let curves = paper.series.iter().map(curve).collect::<Vec<String>>().join(", ");
        lines.push(format!("beside figure {} of the paper: {curves}", paper.paper.figure));
    }
    lines.extend(judged(experiment, options.rate_gbps.is_some()));
    Ok(lines.join("\n") + "\n")
}

/// Window and burst by message size, sizes with the same ones together.
fn windows(transfer: &Transfer, sizes: &[u64]) -> String {
    let mut groups: Vec<(Option<InFlight>, u64, u64)> = Vec::new();
    for size in sizes {
        match groups.last_mut() {
            Some((in_flight, _, last)) if *in_flight == transfer.in_flight(*size) => *last = *size,
            _ => groups.push((transfer.in_flight(*size), *size, *size)),
        }
    }
    let group = |(in_flight, first, last): &(Option<InFlight>, u64, u64)| {
        let sizes = if first == last { format!("{first} B") } else { format!("{first} to {last} B") };
        match in_flight {
            Some(InFlight { window, batch }) => format!("{sizes}: {window}, {batch}"),
            None => format!("{sizes}: the generator's own window, {}", transfer.burst()),
        }
    };
    let groups: Vec<String> = groups.iter().map(group).collect();
    format!("outstanding messages, and messages a burst, at most: {}", groups.join("; "))
}

#[cfg(test)]
mod tests;
