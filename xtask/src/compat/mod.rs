//! `cargo xtask compat`: runs programs of other projects on the software NIC, and keeps what came of each.
//!
//! Rows: `xtask/compat/programs.toml`. Results: `xtask/compat/results.json`, `docs/reference/works-with.md`.
//! A row proves itself by the program's own words and by the bytes that the NIC received. Left out: rates.

mod bench;
mod kernel;
mod programs;
pub mod results;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::bench::{Bench, Outcome};
use self::programs::{Program, Row};
use self::results::{RESULTS, Recorded, RowResult, Verdict, faults};
use crate::carried;
use crate::gpu_machine::{Gpu, GpuMachine};
use crate::process::said;
use crate::refused::{nearest, refused};
use crate::setup::{self, Purpose, System};
use crate::workspace::{self, build_release, programs as released, root};

#[derive(Args)]
pub struct Options {
    /// Run this program or this row alone; may be given more than once.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run the rows that need a GPU, and no others.
    #[arg(long)]
    pub gpu: bool,
    /// Run only the rows whose other end is a Linux kernel's soft-RoCE: in a guest under QEMU, minutes.
    #[arg(long, conflicts_with = "gpu")]
    kernel: bool,
    /// Write what came of the rows into xtask/compat/results.json, and the page's tables.
    #[arg(long)]
    record: bool,
    /// Run nothing: record the rows' results of another machine, from the results.json in its folder of logs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "only", "gpu", "kernel", "install", "bin", "dry_run"])]
    import: Option<PathBuf>,
    /// Install missing packages; else print the command that does, and leave out programs that need them.
    #[arg(long)]
    install: bool,
    /// Folder of softnic and its library, built before.
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// Say what would be run, and stop.
    #[arg(long)]
    dry_run: bool,
    /// Where logs go [default: results/compat].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(options: &Options) -> Result<()> {
    let all = programs::list()?;
    if let Some(file) = &options.import {
        return record(Recorded::from_elsewhere(file, &all)?.rows, &all);
    }
    if options.record && carried::folder().is_some() {
        let why = "--record: there is no page in a bundle; bring results.json home and give it to `compat --import`";
        return Err(refused(why));
    }
    let chosen = chosen(&all, options)?;
    let logs = options.out.clone().unwrap_or_else(|| workspace::results("compat"));
    if options.dry_run {
        say!("{}", dry_run(&chosen, options, &logs));
        return Ok(());
    }
    setup::prepare(Purpose::Figure, !options.install)?;
    fetch(&chosen, options.install)?;
    if options.bin.is_none() && carried::folder().is_none() {
        build_release(&["-p", "softnic"])?;
    }
    let folder = options.bin.as_ref().map_or_else(|| Ok(released()), std::path::absolute)?;
    let logs = std::path::absolute(&logs).context("the folder of logs")?;
    let bench = Bench::new(folder.join("softnic"), logs);
    let gpus = if options.gpu { Some(GpuMachine::ask()?.gpus) } else { None };
    let tried = tried(&bench, &chosen, gpus.as_deref());
    let faults = faults(&tried, &Recorded::read(&root().join(RESULTS))?);
    Recorded { rows: tried.clone() }.write(&bench.logs.join("results.json"))?;
    if options.record {
        record(tried, &all)?;
    }
    ensure!(faults.is_empty(), "{}; logs are in {}", faults.join("; "), bench.logs.display());
    Ok(())
}

/// Puts these rows into the recorded ones, and those into the page.
fn record(tried: Vec<RowResult>, all: &[Program]) -> Result<()> {
    let file = root().join(RESULTS);
    Recorded::read(&file)?.with(tried, all).write(&file)?;
    crate::docs::write_tables()
}

/// Rows that were asked for, with their programs. Error: a name is unknown.
fn chosen<'a>(all: &'a [Program], options: &Options) -> Result<Vec<(&'a Program, &'a Row)>> {
    let rows = || all.iter().flat_map(|program| program.rows.iter().map(move |row| (program, row)));
    let is = |(program, row): (&Program, &Row), name: &String| [&program.name, &row.name].contains(&name);
    for name in &options.only {
        if !rows().any(|one| is(one, name)) {
            let both: Vec<&str> = rows().flat_map(|(program, row)| [&*program.name, &*row.name]).collect();
            let what = format!("--only {name}: no such program or row{}", nearest(name, &both));
            // Names have commas.
            let names = all.iter().map(|program| program.name.as_str()).collect::<Vec<_>>().join("; ");
            return Err(refused(format!("{what}; programs are: {names}")));
        }
    }
    let is_asked =
        |one: &(&Program, &Row)| options.only.is_empty() || options.only.iter().any(|name| is(*one, name));
    // A guest takes minutes: without --kernel such rows are no part of a run.
    let is_here = |(_, row): &(&Program, &Row)| {
        row.kernel.is_some() == options.kernel && (!options.gpu || row.gpus > 0)
    };
    let chosen: Vec<_> = rows().filter(is_asked).filter(is_here).collect();
    match chosen.is_empty() {
        true => Err(refused(format!(
            "--only {}: none of these rows is run so; rows of a kernel are run with --kernel, and with nothing else",
            options.only.join(", ")
        ))),
        false => Ok(chosen),
    }
}

/// What would be run, and which rows would not.
fn dry_run(chosen: &[(&Program, &Row)], options: &Options, logs: &Path) -> String {
    // How many GPUs there are is known when rows are run: nothing is asked here.
    let gpus = options.gpu.then_some(usize::MAX);
    let other_end = if options.kernel { "a Linux kernel's soft-RoCE in a guest" } else { "another process" };
    let programs: BTreeSet<&str> = chosen.iter().map(|(program, _)| &*program.name).collect();
    let runs = chosen.iter().filter(|(program, row)| not_run(program, row, gpus).is_none()).count();
    let mut lines = vec![
        "compat: programs of others, each judged by its output and by the bytes that the NIC received".into(),
        format!("{runs} of {} rows, {} programs", chosen.len(), programs.len()),
        format!("nic: the software NIC; at the other end {other_end}"),
        format!("results: {}", logs.display()),
    ];
    for (program, row) in chosen {
        let what = match not_run(program, row, gpus) {
            Some(why) => format!("not run: {why}"),
            None => row.ran(),
        };
        lines.push(format!("{}, {}: {what}", program.name, row.name));
    }
    if options.record {
        lines.push(format!("records: {RESULTS}, and the tables of docs/reference/works-with.md"));
    }
    lines.join("\n")
}

/// Why a row is not run on a machine with so many GPUs, or without --gpu.
fn not_run(program: &Program, row: &Row, gpus: Option<usize>) -> Option<String> {
    row.not_run.clone().or_else(|| row.lacks(gpus)).or_else(|| program.lacks())
}

/// Installs what the rows need and this machine lacks, or prints the commands that do.
fn fetch(chosen: &[(&Program, &Row)], install: bool) -> Result<()> {
    let missing: BTreeSet<&str> = chosen.iter().flat_map(|(program, _)| program.missing()).collect();
    let missing: Vec<&str> = missing.into_iter().collect();
    let packages = if missing.is_empty() { Ok(()) } else { setup::install(&missing, !install) };
    let mut wheels: Vec<_> = chosen.iter().filter_map(|(program, _)| program.wheels()).collect();
    wheels.dedup_by_key(|wheels| wheels.what);
    let fetched = wheels.into_iter().map(|wheels| setup::fetched(wheels, !install));
    for result in [packages].into_iter().chain(fetched) {
        match result {
            Err(error) if !install => say!("compat: {error:#}"),
            result => result?,
        }
    }
    Ok(())
}

/// Runs the rows, and says what came of each.
fn tried(bench: &Bench, chosen: &[(&Program, &Row)], gpus: Option<&[Gpu]>) -> Vec<RowResult> {
    let version = |package| setup::version(package).unwrap_or_else(|| "unknown".into());
    let on = format!("{}, rdma-core {}{}", System::read().name, version("libibverbs1"), in_words(gpus));
    let revision = workspace::in_words(&workspace::revision());
    let day = said(Command::new("date").args(["-u", "+%F"])).unwrap_or_default().trim().to_owned();
    let mut prepared: BTreeMap<&str, Result<(), String>> = BTreeMap::new();
    let mut all = Vec::new();
    for (program, row) in chosen {
        let outcome = if let Some(why) = not_run(program, row, gpus.map(<[Gpu]>::len)) {
            Outcome::of(Verdict::NotRun, why)
        } else {
            let prepare = || program.prepare().map_err(|error| format!("{error:#}"));
            match prepared.entry(&program.name).or_insert_with(prepare) {
                Err(why) => Outcome::of(Verdict::Fails, why.as_str()),
                Ok(()) => bench.run(program, row),
            }
        };
        let tried = RowResult {
            program: program.name.clone(),
            row: row.name.clone(),
            version: program.version(),
            ran: row.ran(),
            verdict: outcome.verdict,
            why: outcome.why,
            on: on.clone(),
            revision: revision.clone(),
            day: day.clone(),
        };
        say!("{:<12} {:<22} {}", tried.program, tried.row, tried.result());
        all.push(tried);
    }
    all
}

/// GPUs as the end of a system's name: `, 2 NVIDIA H200`.
fn in_words(gpus: Option<&[Gpu]>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in gpus.unwrap_or_default() {
        *counts.entry(&gpu.name).or_default() += 1;
    }
    counts.iter().map(|(name, count)| format!(", {count} {name}")).collect()
}
