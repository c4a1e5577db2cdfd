//! Verdicts: each claim of the paper against our points, by the rule that its `paper.toml` states.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use measure::Label;
use serde::{Deserialize, Serialize};

mod finding;
mod rules;
mod series;
#[cfg(test)]
mod tests;

use self::finding::Finding;
pub use self::rules::shaped_to;
pub use self::series::ensure_named;
use self::series::{matches, needed_parts};
use crate::paper::{Claim, Rule};
use crate::point::{Point, disturbed};

/// What became of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything that it is about was judged, and holds.
    Reproduced,
    /// Some of what it is about holds; the rest does not, or needs something that was not here.
    InPart,
    /// Nothing that was judged holds.
    NotReproduced,
    /// Nothing could be judged; these parts must be hardware.
    NeedsHardware(Vec<String>),
    /// Nothing could be judged: the run has no points for it.
    NeedsData,
    /// It is measured, and nothing was aimed at.
    Reported,
    /// No run of this project can judge it.
    Background,
}

impl Verdict {
    /// Of several verdicts on one claim the greatest counts. Of those that could judge it: the strongest
    /// label, then the furthest from reproducing it. If none could, the one that lacks least.
    pub fn rank(&self, label: Label) -> impl Ord + use<> {
        let (could, worst, lacks) = match self {
            Verdict::NotReproduced => (3, 3, 0),
            Verdict::InPart => (3, 2, 0),
            Verdict::Reproduced | Verdict::Reported => (3, 1, 0),
            Verdict::NeedsHardware(parts) => (2, 0, parts.len()),
            Verdict::NeedsData | Verdict::Background => (1, 0, 0),
        };
        let label = if could == 3 { label } else { Label::None };
        (could, Reverse(label), worst, Reverse(lacks))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Reproduced => f.write_str("reproduced"),
            Verdict::InPart => f.write_str("in part"),
            Verdict::NotReproduced => f.write_str("not reproduced"),
            Verdict::NeedsHardware(parts) => write!(f, "needs hardware ({})", parts.join(", ")),
            Verdict::NeedsData => f.write_str("needs data"),
            Verdict::Reported => f.write_str("reported"),
            Verdict::Background => f.write_str("background"),
        }
    }
}

/// A claim with its verdict and what it rests on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    pub id: String,
    /// The claim in our words.
    pub text: String,
    /// Section and figure of the paper.
    pub source: String,
    pub verdict: Verdict,
    /// Weakest label of the points that it was judged on.
    pub label: Label,
    /// One line for each thing looked at; what does not hold goes first.
    pub evidence: Vec<String>,
    /// What each of them has to fulfil; empty where nothing is judged.
    #[serde(default)]
    pub criterion: String,
    /// Whether it is an aim of our own, no claim of a paper.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aim: bool,
    /// Whether programs of others took so much of the machine that the verdict may show them instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disturbed: bool,
}

impl Judged {
    /// Whether its points could decide it.
    pub fn is_decided(&self) -> bool {
        matches!(self.verdict, Verdict::Reproduced | Verdict::InPart | Verdict::NotReproduced)
    }

    /// Whether it was given by the rule that gave another one, and of all that this one is about.
    pub fn is_by_rule_of(&self, other: &Judged) -> bool {
        let about =
            |judged: &Judged| judged.evidence.iter().map(|line| subject(line).to_owned()).collect::<Vec<_>>();
        let known = about(self);
        (&self.id, &self.text, &self.criterion) == (&other.id, &other.text, &other.criterion)
            && about(other).iter().all(|subject| known.contains(subject))
    }

    /// The verdict as it is printed: an aim is met or not; one measured beside other programs says so.
    pub fn said(&self) -> String {
        let load = if self.disturbed { ", under load" } else { "" };
        match (&self.verdict, self.aim) {
            (Verdict::Reproduced, true) => format!("aim met{load}"),
            (Verdict::InPart, true) if self.evidence.iter().all(|line| holds_or_was_left_out(line)) => {
                format!("aim met where judged{load}")
            }
            // A run of some series says nothing of the others.
            (Verdict::InPart, true) if !self.evidence.iter().any(|line| line.starts_with("fails: ")) => {
                format!("aim open: not all was judged{load}")
            }
            (Verdict::NotReproduced | Verdict::InPart, true) => format!("aim not met{load}"),
            (verdict, false) if self.is_decided() => format!("{verdict}{load}"),
            (verdict, _) => verdict.to_string(),
        }
    }
}

/// What a line of evidence is about.
fn subject(line: &str) -> &str {
    let line = line.strip_prefix("holds: ").or_else(|| line.strip_prefix("fails: ")).unwrap_or(line);
    line.split_once(": ").map_or(line, |(subject, _)| subject)
}

/// Whether a line of evidence is neither of a failure nor of missing points.
fn holds_or_was_left_out(line: &str) -> bool {
    line.starts_with("holds: ") || line.contains(rules::NOT_JUDGED)
}

/// Judges one claim by `points`.
pub fn judge(claim: &Claim, points: &[Point]) -> Judged {
    let mut findings = rules::findings(claim, points);
    let used = used(claim, points).filter(|point| point.has_numbers());
    // A claim that names no parts rests on all that its points used.
    let labels = used.flat_map(|point| {
        let whole = claim.needs.is_empty().then_some(point.label);
        let parts = needed_parts(claim, &point.series).map(|part| point.provenance.label(&[part]));
        whole.into_iter().chain(parts)
    });
    let verdict = verdict(claim, &findings);
    let judged = findings.iter().any(|finding| finding.holds.is_some());
    // What decides against a claim goes first, then what could not be judged.
    findings.sort_by_key(|finding| match finding.holds {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    });
    let mut evidence: Vec<String> = findings.into_iter().map(Finding::line).collect();
    // Above all else, since the verdict rests on it.
    if let (true, Some(warning)) = (judged, not_whole(claim, points)) {
        evidence.insert(0, warning);
    }
    Judged {
        id: claim.id.clone(),
        text: claim.text.clone(),
        source: claim.source.clone(),
        verdict,
        label: Label::weakest(labels),
        evidence,
        criterion: rules::criterion(&claim.rule),
        aim: false,
        disturbed: disturbed(points).is_some(),
    }
}

/// The points that a claim is about.
fn used<'a>(claim: &'a Claim, points: &'a [Point]) -> impl Iterator<Item = &'a Point> {
    let is_used = |point: &&Point| claim.series.iter().any(|pattern| matches(pattern, &point.series));
    points.iter().filter(is_used)
}

/// A line about the points of a claim whose messages were not whole.
fn not_whole(claim: &Claim, points: &[Point]) -> Option<String> {
    let broken: Vec<&Point> = used(claim, points).filter(|point| !point.is_whole()).collect();
    let (count, first) = (broken.len(), broken.first()?.what_is_missing());
    Some(format!("rests on {count} points that are not whole, the first: {first}"))
}

fn verdict(claim: &Claim, findings: &[Finding]) -> Verdict {
    if matches!(claim.rule, Rule::Background {}) {
        return Verdict::Background;
    }
    let holding = findings.iter().filter(|finding| finding.holds == Some(true)).count();
    let failing = findings.iter().filter(|finding| finding.holds == Some(false)).count();
    let needs: BTreeSet<String> = findings.iter().flat_map(|finding| finding.needs.clone()).collect();
    let is_whole = !findings.iter().any(Finding::is_missing);
    match (holding, failing) {
        (0, 0) if !needs.is_empty() => Verdict::NeedsHardware(needs.into_iter().collect()),
        // A number without a bound was found, and that is all.
        (0, 0) if rules::asks_nothing(&claim.rule) && is_whole => Verdict::Reported,
        (0, 0) => Verdict::NeedsData,
        (0, _) => Verdict::NotReproduced,
        _ if holding == findings.len() => Verdict::Reproduced,
        _ => Verdict::InPart,
    }
}
