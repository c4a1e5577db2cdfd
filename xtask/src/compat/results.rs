//! The rows' results: `xtask/compat/results.json`, and tables of `docs/reference/works-with.md` made from it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::programs::{self, Program, Row};
use crate::files;
use crate::refused::refused;
use crate::shell::quoted;
use crate::workspace::Tree;

pub const RESULTS: &str = "xtask/compat/results.json";

/// What came of a row, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    NotRun,
    Fails,
    InPart,
    Works,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowResult {
    pub program: String,
    pub row: String,
    pub version: String,
    pub ran: String,
    pub verdict: Verdict,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// System and rdma-core that it ran on.
    pub on: String,
    /// Revision of the NIC, and the day of the run.
    #[serde(default)]
    pub revision: String,
    #[serde(default)]
    pub day: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    pub rows: Vec<RowResult>,
}

impl RowResult {
    fn is_of(&self, other: &RowResult) -> bool {
        (&self.program, &self.row) == (&other.program, &other.row)
    }

    pub fn commit(&self) -> &str {
        self.revision.split(',').next().unwrap_or_default()
    }

    pub fn result(&self) -> String {
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
    pub fn read(file: &Path) -> Result<Recorded> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let named = || file.display().to_string();
        match fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text).with_context(named),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(Recorded::default()),
            Err(error) => Err(error).with_context(named),
        }
    }

    /// What another machine's run left. Error: no such file, or a row that is not in the list as it was run.
    pub fn from_elsewhere(file: &Path, all: &[Program]) -> Result<Recorded> {
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

    /// New rows replace old ones, in the order of the list; rows that left the list are gone. What was not
    /// run here replaces nothing that was run elsewhere.
    pub fn with(self, tried: Vec<RowResult>, all: &[Program]) -> Recorded {
        let names =
            all.iter().flat_map(|program| program.rows.iter().map(move |row| (&program.name, &row.name)));
        let rows = names.filter_map(|name| {
            let of = |rows: &[RowResult]| rows.iter().find(|it| (&it.program, &it.row) == name).cloned();
            let (new, old) = (of(&tried), of(&self.rows));
            let is_run_elsewhere = |old: &RowResult| {
                let not_run = new.as_ref().filter(|new| new.verdict == Verdict::NotRun);
                old.verdict != Verdict::NotRun && not_run.is_some_and(|new| new.ran == old.ran)
            };
            old.clone().filter(is_run_elsewhere).or(new.clone()).or(old)
        });
        Recorded { rows: rows.collect() }
    }

    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("results")?;
        files::write(file, &(text + "\n"))
    }
}

/// Rows that came out worse than recorded on such a system, and those that this machine lacks something for.
pub fn faults(tried: &[RowResult], recorded: &Recorded) -> Vec<String> {
    let mut faults = Vec::new();
    for row in tried {
        let is_worse =
            |before: &RowResult| before.is_of(row) && before.on == row.on && row.verdict < before.verdict;
        let words = format!("{}, {}: {}", row.program, row.row, row.result());
        if row.verdict == Verdict::NotRun && row.why.ends_with(" is missing") {
            faults.push(words);
        } else if recorded.rows.iter().any(is_worse) {
            faults.push(format!("{words}; it was recorded better"));
        }
    }
    faults
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
    let systems: BTreeSet<&str> = recorded.rows.iter().map(|row| row.on.as_str()).collect();
    let mut parts = Vec::new();
    for system in systems {
        let rows: Vec<&RowResult> = recorded.rows.iter().filter(|row| row.on == system).collect();
        let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
        let [works, part, fails, not] =
            [Verdict::Works, Verdict::InPart, Verdict::Fails, Verdict::NotRun].map(count);
        let runs = rows.iter().map(|row| format!("{} (revision {})", row.day, row.revision));
        let runs: Vec<String> = runs.collect::<BTreeSet<_>>().into_iter().collect();
        let title = "| program | version | run | result | suite |\n|---|---|---|---|---|";
        let line = |row: &&RowResult| {
            let ran = if row.ran.is_empty() { String::new() } else { format!(": `{}`", shown(&row.ran)) };
            let cells = [&row.program, &row.version, &format!("{}{ran}", row.row), &row.result()]
                .map(|cell| cell.replace('|', "\\|"));
            format!("| {} | {} |", cells.join(" | "), suite(row).unwrap_or("—"))
        };
        let lines: Vec<String> = rows.iter().map(line).collect();
        parts.push(format!(
            "On {system}: {works} work, {part} work in part, {fails} fail, {not} were not run. Recorded on {}.\n\n{title}\n{}",
            runs.join(", "),
            lines.join("\n")
        ));
    }
    Ok(parts.join("\n\n"))
}

/// What was run, for a shell: a list of commands is one to the NIC.
fn shown(ran: &str) -> String {
    let is_list = |command: &str| ["&&", ";", "|", ">"].iter().any(|sign| command.contains(sign));
    match ran.split_once(" -- ") {
        Some((nic, command)) if is_list(&unquoted(command)) => format!("{nic} -- sh -c {}", quoted(command)),
        _ => ran.to_owned(),
    }
}

/// A command without what stands in single quotes.
fn unquoted(command: &str) -> String {
    command.split('\'').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_list_of_commands_is_shown_as_one_to_the_nic() {
        let shown = |command: &str| super::shown(&format!("softnic run -- {command}"));
        assert_eq!(shown("ibv_devinfo -v"), "softnic run -- ibv_devinfo -v");
        assert_eq!(shown("cd source && cargo test"), "softnic run -- sh -c 'cd source && cargo test'");
        let of_quotes = shown("cd source && FLAGS='-a b' cargo test");
        assert_eq!(of_quotes, r"softnic run -- sh -c 'cd source && FLAGS='\''-a b'\'' cargo test'");
        assert_eq!(shown("fi_pingpong -p 'verbs;ofi_rxm'"), "softnic run -- fi_pingpong -p 'verbs;ofi_rxm'");
    }
}
