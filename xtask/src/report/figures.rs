//! The figures of a report: each with the paper's numbers and claims, its entries, and their drawings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use experiment::measured::{Entry, Measured};
use experiment::modelled::{self, Modelled};
use experiment::spec::Extent;
use experiment::verdict::Judged;
use experiment::{Experiment, Paper, Picture, pictures};

use super::side_by_side::side_by_side;
use crate::figure::path;
use crate::process::said;

/// One figure of the paper.
pub struct Figure {
    pub paper: Paper,
    pub experiment: Experiment,
    /// What was measured where: recorded entries first, then added ones.
    pub shown: Vec<Shown>,
    /// Drawings of the published series alone, for a figure without an entry.
    pub alone: Vec<Drawn>,
    /// Figure 3's steps: where, crate and function, what it does, file and line.
    pub steps: Vec<[String; 4]>,
}

/// One entry as the page shows it.
pub struct Shown {
    /// `4b`: figure, and a letter for the entry.
    pub id: String,
    /// Name of its figure.
    pub figure: String,
    pub entry: Entry,
    /// The file that holds it.
    pub from: String,
    /// Whether `--add` named it; its verdicts are no claim's.
    pub is_added: bool,
    /// Its verdicts, of every claim that its experiment judges.
    pub judged: Vec<Judged>,
    pub pictures: Vec<Drawn>,
    /// Day of its revision's commit; none where this repository does not know the revision.
    pub day: Option<String>,
}

/// A drawing, and the stem of its files.
pub struct Drawn {
    pub stem: String,
    pub picture: Picture,
}

/// What is said of a verdict that no run gave.
const NEWER: &str = "judged by the kept medians: claim or rule is newer than the run";

impl Shown {
    /// A recorded `entry` of `experiment`; id and drawings come with [`finish`].
    pub fn new(experiment: &Experiment, entry: Entry, from: String) -> Shown {
        let marked = |(judged, is_of_run)| if is_of_run { judged } else { by_medians(judged, NEWER) };
        let judged = experiment.judge_recorded(&entry).map(marked).collect();
        Shown { judged, is_added: false, ..Shown::added(experiment, entry, from) }
    }

    /// An `entry` of `experiment` that `--add` named, with the verdicts that it holds; a smoke run has none.
    pub fn added(experiment: &Experiment, entry: Entry, from: String) -> Shown {
        let judged = if entry.extent == Extent::Smoke { Vec::new() } else { entry.verdicts.clone() };
        let figure = experiment.spec.name.clone();
        let (id, pictures) = (String::new(), Vec::new());
        Shown { id, figure, entry, from, is_added: true, judged, pictures, day: None }
    }

    /// Makes its drawings.
    fn draw(&mut self, experiment: &Experiment, modelled: &[Modelled]) -> Result<()> {
        let name = &self.figure;
        let all = match experiment.spec.app == path::APP {
            true => vec![path::picture(experiment)?],
            false => pictures(experiment, &self.entry.points(name), modelled, &[])
                .with_context(|| format!("drawing {name} of {}", self.from))?,
        };
        let stem = |picture: &Picture| format!("{name}-{}-{}", picture.name, self.id.replace('\'', "_"));
        self.pictures = all.into_iter().map(|picture| Drawn { stem: stem(&picture), picture }).collect();
        Ok(())
    }

    /// What stands beside the verdicts of an added entry: `added, quick`.
    pub fn mark(&self) -> Option<String> {
        self.is_added.then(|| format!("added, {}", self.entry.extent.name()))
    }

    /// Whether it shows only that its command works.
    pub fn is_smoke(&self) -> bool {
        self.entry.extent == Extent::Smoke
    }
}

impl Figure {
    pub fn number(&self) -> u32 {
        self.paper.paper.figure
    }

    /// Name of its folder.
    pub fn name(&self) -> &str {
        &self.paper.name
    }

    pub fn entries(&self) -> Vec<&Entry> {
        self.shown.iter().map(|shown| &shown.entry).collect()
    }

    /// Whether there is anything to put into its CSV.
    pub fn has_numbers(&self) -> bool {
        !self.shown.is_empty() || self.paper.has_curves()
    }

    /// Stems and SVGs of all its drawings.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.shown.iter().flat_map(|shown| &shown.pictures).chain(&self.alone);
        all.map(|drawn| (drawn.stem.as_str(), drawn.picture.svg.as_str()))
    }

    /// Whether it has an entry that `--add` did not name.
    pub fn is_recorded(&self) -> bool {
        self.shown.iter().any(|shown| !shown.is_added)
    }

    /// Where its numbers come from, or the command that records them.
    pub fn standing(&self) -> String {
        let added = self.shown.iter().filter(|shown| shown.is_added).count();
        let recorded = match self.shown.len() - added {
            0 => format!("not recorded yet: {}", self.missing()),
            1 => "1 entry".to_owned(),
            count => format!("{count} entries"),
        };
        if added == 0 { recorded } else { format!("{recorded}; {added} added") }
    }

    /// The command that records it, and the parts that must be hardware for some claim of it.
    pub fn missing(&self) -> String {
        let needs = self.paper.claim.iter().flat_map(|claim| &claim.needs).filter(|need| need.hardware);
        let parts: BTreeSet<String> = needs.map(|need| need.part.to_string()).collect();
        let parts = parts.into_iter().collect::<Vec<_>>().join(", ");
        let needs = if parts.is_empty() { parts } else { format!(", with hardware: {parts}") };
        format!("`cargo xtask figure {} --record` measures and records it{needs}", self.number())
    }
}

/// A verdict that no run gave says `how` it came.
pub fn by_medians(mut judged: Judged, how: &str) -> Judged {
    judged.evidence.extend(judged.is_decided().then(|| how.to_owned()));
    judged
}

/// Every figure that has a `paper.toml`, with the entries of its `measured.json`.
pub fn recorded(root: &Path) -> Result<Vec<Figure>> {
    let experiments = root.join("experiments");
    let figure = |paper: Paper| {
        let experiment = Experiment::read(&experiments, &paper.name)?;
        let file = format!("experiments/{}/measured.json", paper.name);
        let entries = Measured::read(&root.join(&file))?.entries.into_iter();
        let shown = entries.map(|entry| Shown::new(&experiment, entry, file.clone()));
        let mut shown: Vec<Shown> = shown.collect();
        let mut steps = Vec::new();
        if experiment.spec.app == path::APP {
            let (entry, found) = path::in_source(&experiment, root)?;
            let from = "this tree's source, read for this page".to_owned();
            shown.push(Shown::new(&experiment, entry, from));
            steps = found;
        }
        Ok(Figure { paper, experiment, shown, alone: Vec::new(), steps })
    };
    side_by_side(Paper::all(&experiments)?, figure)
}

/// Names every entry, and draws it.
pub fn finish(figures: &mut [Figure], root: &Path) -> Result<()> {
    let posts = root.join("experiments/bench-post-gpu/measured.json");
    let modelled = modelled::known(&posts, Path::new(""))?;
    let mut days: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut undrawn = Vec::new();
    for figure in figures {
        let number = figure.number();
        if figure.shown.is_empty() {
            let name = &figure.paper.name;
            let all = pictures(&figure.experiment, &[], &[], &[])?.into_iter();
            let alone = |picture: Picture| Drawn { stem: format!("{name}-{}", picture.name), picture };
            figure.alone = all.map(alone).collect();
        }
        for (at, shown) in figure.shown.iter_mut().enumerate() {
            let letter = char::from_u32('a' as u32 + at as u32 % 26).unwrap_or('a');
            shown.id = format!("{number}{letter}{}", "'".repeat(at / 26));
            let commit = &shown.entry.provenance.revision.commit;
            shown.day = days.entry(commit.clone()).or_insert_with(|| day(root, commit)).clone();
            undrawn.push((&figure.experiment, shown));
        }
    }
    side_by_side(undrawn, |(experiment, shown)| shown.draw(experiment, &modelled))?;
    Ok(())
}

/// Day of a commit, if this repository has it.
fn day(root: &Path, commit: &str) -> Option<String> {
    let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["show", "-s", "--format=%cs", commit]);
    Some(said(is_hash.then_some(&mut git)?).ok()?.trim().to_owned())
}
