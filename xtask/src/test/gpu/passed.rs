//! Tests that passed in one process, with programs and GPU, a line each at once: `--resume` leaves them out.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use measure::{JsonLines, json_lines};
use serde::{Deserialize, Serialize};
use zoo::Digest;

use super::super::outcome::Outcome;
use crate::carried::TestProgram;
use crate::packages::LIBRARY;
use crate::{files, workspace};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Suite and test program.
    pub program: String,
    pub tests: Vec<String>,
    pub mark: Mark,
    pub passed: usize,
    pub skips: Vec<String>,
    pub minutes: f64,
}

/// What must be the same for a result to stand: by their bytes, since a revision with changes names nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Revision of the source, for the reader.
    commit: String,
    /// Of the test programs and, where it runs on one, of the software NIC.
    programs: String,
    gpu: String,
}

pub fn mark(programs: &[&TestProgram], on_nic: bool, gpu: &str) -> Result<Mark> {
    let folder = workspace::programs();
    let nic = ["softnic", LIBRARY].map(|name| folder.join(name));
    let nic = nic.iter().filter(|_| on_nic).map(std::path::PathBuf::as_path);
    let digest = |path: &Path| {
        let file = fs::File::open(path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Digest::of_reader(file)?.to_string())
    };
    let all = programs.iter().map(|program| program.path.as_path()).chain(nic);
    let digests = all.map(digest).collect::<Result<Vec<String>>>()?;
    Ok(Mark { commit: workspace::revision().commit, programs: digests.join(" "), gpu: gpu.to_owned() })
}

pub struct Passed {
    before: Vec<Process>,
    file: JsonLines,
}

impl Passed {
    /// Opens the list at `path`; without `resume` it begins anew.
    pub fn open(path: &Path, resume: bool) -> Result<Passed> {
        if !resume {
            files::remove(path)?;
        }
        let before = json_lines::read::<Process>(path)?.records;
        Ok(Passed { before, file: JsonLines::append_to(path)? })
    }

    /// What these tests of a program gave, which passed with this mark in one process; minutes that it took.
    pub fn before(&self, program: &str, tests: &[String], mark: &Mark) -> Option<(Outcome, f64)> {
        let is_it = |one: &&Process| one.program == program && one.tests == tests && one.mark == *mark;
        let found = self.before.iter().rfind(is_it)?;
        let outcome = Outcome { passed: found.passed, skips: found.skips.clone(), ..Outcome::default() };
        Some((outcome, found.minutes))
    }

    pub fn push(&mut self, process: &Process) -> Result<()> {
        Ok(self.file.push(process)?)
    }
}
