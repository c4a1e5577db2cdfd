//! `cargo xtask compat`: runs programs of other projects on the software NIC, and keeps what came of each.
//!
//! The programs stand in `xtask/compat/programs.toml`, recorded results in `xtask/compat/results.json`; `docs/reference/works-with.md`
//! has them as a table. A row proves itself by the program's own words and by the bytes that the NIC received. Left out: rates.

mod bench;
mod kernel;
mod programs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use self::bench::{Bench, Outcome, Verdict};
use self::programs::{Program, Row};
use crate::carried;
use crate::gpu_machine::{Gpu, GpuMachine};
use crate::refused::{nearest, refused};
use crate::setup::{self, Purpose, System};
use crate::workspace::{Tree, build_release, programs as released, results, root};

const RESULTS: &str = "xtask/compat/results.json";

#[derive(Args)]
pub struct Options {
    /// Run this program or this row alone; may be given more than once.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run the rows that need a GPU, and no others.
    #[arg(long)]
    pub gpu: bool,
    /// Run the rows whose other end is a Linux kernel's soft-RoCE, and no others: in a guest under QEMU, minutes.
    #[arg(long, conflicts_with = "gpu")]
    kernel: bool,
    /// Write what came of the rows into xtask/compat/results.json, and the page's tables.
    #[arg(long)]
    record: bool,
    /// Run nothing: record what came of the rows on another machine, from the results.json in its folder of logs.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "only", "gpu", "kernel", "install", "bin", "dry_run"])]
    import: Option<PathBuf>,
    /// Install missing packages; without it, print the command that does, and leave out the programs that need them.
    #[arg(long)]
    install: bool,
    /// End well though packages are missing.
    #[arg(long)]
    allow_missing: bool,
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

/// What came of one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowResult {
    program: String,
    row: String,
    version: String,
    /// What was run.
    ran: String,
    verdict: Verdict,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    why: String,
    /// System and rdma-core that it ran on.
    on: String,
}

/// All results that are recorded.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    rows: Vec<RowResult>,
}

/// Sets up, builds the NIC, and runs what was asked for.
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
    let logs = options.out.clone().unwrap_or_else(|| results("compat"));
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
    let faults = faults(&tried, &Recorded::read(&root().join(RESULTS))?, options.allow_missing);
    Recorded { rows: tried.clone() }.write(&bench.logs.join("results.json"))?;
    if options.record {
        record(tried, &all)?;
    }
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("{}; logs are in {}", faults.join("; "), bench.logs.display()),
    }
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
    for name in &options.only {
        if !rows().any(|(program, row)| [&program.name, &row.name].contains(&name)) {
            // Names have commas.
            let names: Vec<&str> = all.iter().map(|program| program.name.as_str()).collect();
            let both: Vec<&str> = rows().flat_map(|(program, row)| [&*program.name, &*row.name]).collect();
            let nearest = nearest(name, &both);
            let names = names.join("; ");
            return Err(refused(format!(
                "--only {name}: no such program or row{nearest}; programs are: {names}"
            )));
        }
    }
    let is_asked = |(program, row): &(&Program, &Row)| {
        options.only.is_empty() || options.only.iter().any(|name| [&program.name, &row.name].contains(&name))
    };
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

/// What was run, for a shell: a list of commands is one to the NIC.
fn shown(ran: &str) -> String {
    let is_list = |command: &str| ["&&", ";", "|", ">"].iter().any(|sign| command.contains(sign));
    match ran.split_once(" -- ") {
        Some((nic, command)) if is_list(command) && !command.contains('\'') => {
            format!("{nic} -- sh -c '{command}'")
        }
        _ => ran.to_owned(),
    }
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
    let mut prepared: Option<(&str, Result<(), String>)> = None;
    let mut all = Vec::new();
    for (program, row) in chosen {
        let outcome = if let Some(why) = not_run(program, row, gpus.map(<[Gpu]>::len)) {
            Outcome::of(Verdict::NotRun, why)
        } else {
            if prepared.as_ref().is_none_or(|(name, _)| *name != program.name) {
                let result = program.prepare().map_err(|error| format!("{error:#}"));
                prepared = Some((&program.name, result));
            }
            match &prepared {
                Some((_, Err(why))) => Outcome::of(Verdict::Fails, why),
                _ => bench.run(program, row),
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

/// Rows that came out worse than recorded on such a system, and those that this machine lacks something for.
fn faults(tried: &[RowResult], recorded: &Recorded, allow_missing: bool) -> Vec<String> {
    let mut faults = Vec::new();
    for row in tried {
        let before = recorded
            .rows
            .iter()
            .find(|before| before.is_of(row) && before.on == row.on)
            .map(|before| before.verdict);
        let is_missing = row.verdict == Verdict::NotRun && row.why.ends_with(" is missing");
        if is_missing && !allow_missing {
            faults.push(format!("{}, {}: {}", row.program, row.row, row.result()));
        } else if !is_missing && before.is_some_and(|before| row.verdict < before) {
            faults.push(format!("{}, {}: {}; it was recorded better", row.program, row.row, row.result()));
        }
    }
    faults
}

impl RowResult {
    fn is_of(&self, other: &RowResult) -> bool {
        (&self.program, &self.row) == (&other.program, &other.row)
    }

    /// The verdict in words.
    fn result(&self) -> String {
        let words = match self.verdict {
            Verdict::Works => return "works".into(),
            Verdict::InPart => "works in part",
            Verdict::Fails => "fails",
            Verdict::NotRun => "not run",
        };
        format!("{words}: {}", self.why)
    }
}

impl Recorded {
    /// None where there is no such file, as in a bundle, where `xtask` is this program.
    fn read(file: &Path) -> Result<Recorded> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let named = || file.display().to_string();
        match fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).with_context(named),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(Recorded::default()),
            Err(error) => Err(error).with_context(named),
        }
    }

    /// What another machine's run left. Error: no such file, or a row that is not in the list as it was run.
    fn from_elsewhere(file: &Path, all: &[Program]) -> Result<Recorded> {
        let not = |why: String| refused(format!("--import {}: {why}", file.display()));
        let read = Recorded::read(file).map_err(|error| not(format!("{:#}", error.root_cause())))?;
        let is_ours = |tried: &RowResult| {
            let rows = all.iter().filter(|it| it.name == tried.program).flat_map(|program| &program.rows);
            rows.into_iter().any(|row| row.name == tried.row && row.ran() == tried.ran)
        };
        match read.rows.iter().find(|tried| !is_ours(tried)) {
            _ if read.rows.is_empty() => Err(not("no results in it".into())),
            Some(other) => Err(not(format!("{}, {}: no such row is run here", other.program, other.row))),
            None => Ok(read),
        }
    }

    /// With new rows in the place of old ones, in the order of the list; rows that are not in it any more are gone. What was not run
    /// here replaces nothing that was run elsewhere.
    fn with(self, tried: Vec<RowResult>, all: &[Program]) -> Recorded {
        let replaces = |new: &RowResult, old: &RowResult| {
            let is_run_elsewhere = new.verdict == Verdict::NotRun && old.verdict != Verdict::NotRun;
            new.is_of(old) && (new.ran != old.ran || !is_run_elsewhere)
        };
        let is_new = |old: &RowResult| tried.iter().any(|new| replaces(new, old));
        let kept: Vec<RowResult> = self.rows.into_iter().filter(|old| !is_new(old)).collect();
        let added = tried.iter().filter(|new| !kept.iter().any(|old| old.is_of(new))).cloned();
        let both: Vec<RowResult> = kept.iter().cloned().chain(added).collect();
        let names =
            all.iter().flat_map(|program| program.rows.iter().map(move |row| (&program.name, &row.name)));
        let rows = names.filter_map(|(program, row)| {
            both.iter().find(|it| (&it.program, &it.row) == (program, row)).cloned()
        });
        Recorded { rows: rows.collect() }
    }

    fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("results")?;
        fs::create_dir_all(file.parent().unwrap_or(file))
            .with_context(|| format!("making {}", file.display()))?;
        fs::write(file, text + "\n").with_context(|| format!("writing {}", file.display()))
    }
}

/// The tables of the page: for each system a line of counts, and a row for each run.
pub fn table(tree: &Tree) -> Result<String> {
    let text = tree.get(RESULTS).with_context(|| format!("{RESULTS} is missing"))?;
    let recorded: Recorded = serde_json::from_str(text).context(RESULTS)?;
    let all = programs::list()?;
    let suite = |row: &RowResult| {
        let program = all.iter().find(|program| program.name == row.program)?;
        program.rows.iter().find(|it| it.name == row.row).map(Row::suite)
    };
    let mut systems: Vec<&str> = recorded.rows.iter().map(|row| row.on.as_str()).collect();
    systems.sort_unstable();
    systems.dedup();
    let mut parts = Vec::new();
    for system in systems {
        let rows: Vec<&RowResult> = recorded.rows.iter().filter(|row| row.on == system).collect();
        let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        let [works, part, fails, not] =
            [Verdict::Works, Verdict::InPart, Verdict::Fails, Verdict::NotRun].map(count);
        let title = "| program | version | run | result | suite |\n|---|---|---|---|---|";
        let line = |row: &&RowResult| {
            let ran = if row.ran.is_empty() { String::new() } else { format!(": `{}`", shown(&row.ran)) };
            let cells = [&row.program, &row.version, &format!("{}{ran}", row.row), &row.result()]
                .map(|cell| cell.replace('|', "\\|"));
            format!("| {} | {} |", cells.join(" | "), suite(row).unwrap_or("—"))
        };
        let lines: Vec<String> = rows.iter().map(line).collect();
        parts.push(format!(
            "On {system}: {works} work, {part} work in part, {fails} fail, {not} were not run.\n\n{title}\n{}",
            lines.join("\n")
        ));
    }
    Ok(parts.join("\n\n"))
}
