//! The table of claims: one line for each claim of the paper, with the verdict of every entry that judges it.

use std::collections::BTreeMap;
use std::fmt;

use experiment::paper::{Claim, Rule};
use experiment::verdict::{Judged, Verdict, judge};

use super::figures::{Figure, Shown};

/// What became of a claim over all entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimStatus {
    Reproduced,
    InPart,
    NotReproduced,
    NeedsHardware,
    NotRecorded,
    Background,
}

impl ClaimStatus {
    /// As style and script name it.
    pub fn key(self) -> String {
        self.to_string().replace(' ', "-")
    }

    pub fn of(verdict: &Verdict) -> ClaimStatus {
        match verdict {
            Verdict::Reproduced => ClaimStatus::Reproduced,
            Verdict::InPart => ClaimStatus::InPart,
            Verdict::NotReproduced => ClaimStatus::NotReproduced,
            Verdict::NeedsHardware(_) => ClaimStatus::NeedsHardware,
            Verdict::NeedsData => ClaimStatus::NotRecorded,
            // Nothing was aimed at.
            Verdict::Background | Verdict::Reported => ClaimStatus::Background,
        }
    }
}

impl fmt::Display for ClaimStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimStatus::Reproduced => "reproduced",
            ClaimStatus::InPart => "in part",
            ClaimStatus::NotReproduced => "not reproduced",
            ClaimStatus::NeedsHardware => "needs hardware",
            ClaimStatus::NotRecorded => "not recorded",
            ClaimStatus::Background => "background",
        })
    }
}

/// One claim of the paper.
pub struct Line<'a> {
    pub figure: &'a Figure,
    pub claim: &'a Claim,
    pub standing: ClaimStatus,
    /// The verdict in words.
    pub said: String,
    /// The recorded entry that the verdict is of.
    pub by: Option<&'a Shown>,
    /// Every entry that judges it, with its verdict.
    pub judged: Vec<(&'a Shown, &'a Judged)>,
    /// Why there is no measured evidence, where that is so.
    pub reason: Option<String>,
}

impl Line<'_> {
    /// The claim's note, unless it is the reason.
    pub fn note(&self) -> Option<&String> {
        self.claim.note.as_ref().filter(|note| self.reason.as_ref() != Some(note))
    }

    /// Names of the figures whose entries judge it.
    pub fn judges(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.judged.iter().map(|(shown, _)| shown.figure.as_str()).collect();
        names.dedup();
        names
    }
}

/// The claims of all figures.
pub struct Claims<'a> {
    /// Figure by figure; those that no run can judge last.
    pub lines: Vec<Line<'a>>,
    /// How many claims stand how.
    pub counts: BTreeMap<ClaimStatus, usize>,
}

impl Claims<'_> {
    pub fn of(figures: &[Figure]) -> Claims<'_> {
        let claims =
            figures.iter().flat_map(|figure| figure.paper.claim.iter().map(move |one| (figure, one)));
        let mut lines: Vec<Line<'_>> = claims.map(|(figure, claim)| line(figures, figure, claim)).collect();
        lines.sort_by_key(|line| line.standing == ClaimStatus::Background);
        let mut counts = BTreeMap::new();
        lines.iter().for_each(|line| *counts.entry(line.standing).or_default() += 1);
        Claims { lines, counts }
    }

    /// A claim of a figure.
    pub fn line(&self, figure: &Figure, id: &str) -> Option<&Line<'_>> {
        self.lines.iter().find(|line| line.figure.number() == figure.number() && line.claim.id == id)
    }

    /// How many claims stand how, in words.
    pub fn counted(&self) -> String {
        let counts = self.counts.iter().map(|(standing, count)| format!("{count} {standing}"));
        counts.collect::<Vec<_>>().join(", ")
    }
}

fn line<'a>(figures: &'a [Figure], figure: &'a Figure, claim: &'a Claim) -> Line<'a> {
    let judges =
        |other: &&Figure| other.experiment.spec.judges.iter().any(|judges| judges.paper == figure.paper.name);
    let shown = figures.iter().filter(judges).flat_map(|other| &other.shown);
    let judged = shown.flat_map(|shown| shown.judged.iter().map(move |one| (shown, one)));
    let judged: Vec<(&Shown, &Judged)> = judged.filter(|(_, one)| one.id == claim.id && !one.aim).collect();
    // What no run can change needs none.
    if matches!(claim.rule, Rule::Background {} | Rule::Differs { .. }) {
        let by_rule = judge(claim, &[]);
        let reason = by_rule.evidence.first().map(|why| why.trim_start_matches("fails: ").to_owned());
        return Line {
            figure,
            claim,
            standing: ClaimStatus::of(&by_rule.verdict),
            said: by_rule.said(),
            by: None,
            judged: Vec::new(),
            reason: reason.or_else(|| claim.note.clone()),
        };
    }
    let by = deciding(&judged);
    let standing = by.map_or(ClaimStatus::NotRecorded, |(_, judged)| ClaimStatus::of(&judged.verdict));
    let said = match (standing, by) {
        (ClaimStatus::NotRecorded, _) | (_, None) => ClaimStatus::NotRecorded.to_string(),
        (_, Some((_, judged))) => judged.said(),
    };
    let reason = (standing == ClaimStatus::NotRecorded).then(|| figure.missing());
    Line { figure, claim, standing, said, by: by.map(|(shown, _)| shown), judged, reason }
}

/// The recorded entry whose verdict is the claim's.
fn deciding<'a>(judged: &[(&'a Shown, &'a Judged)]) -> Option<(&'a Shown, &'a Judged)> {
    let recorded = judged.iter().filter(|(shown, _)| !shown.is_added);
    recorded.max_by_key(|(_, judged)| judged.verdict.rank(judged.label)).copied()
}
