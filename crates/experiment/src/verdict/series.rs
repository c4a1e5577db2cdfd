//! Which series of a run a claim is about, and what they lack to be judged.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use measure::Label;
use measure::label::Part;

use super::finding::Finding;
use crate::paper::{Claim, Curve, Rule};
use crate::point::Point;

pub fn matches(pattern: &str, series: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == series, |start| series.starts_with(start))
}

/// The series that a pattern names, or the pattern itself if there is none, to be reported as missing. A
/// series that posts only lists is left out beside one that posts one by one: the paper measured no lists.
pub fn expand(pattern: &str, points: &[Point]) -> Vec<String> {
    let one_by_one: Vec<Point> = points.iter().filter(|point| point.is_base()).cloned().collect();
    let asked = one_by_one.iter().any(|point| matches(pattern, &point.series));
    named(pattern, if asked { &one_by_one } else { points })
}

/// Like [`expand`], but lists count too: for numbers that a poster's lists do not change.
pub fn named(pattern: &str, points: &[Point]) -> Vec<String> {
    let found = points.iter().filter(|point| matches(pattern, &point.series));
    let found: BTreeSet<String> = found.map(|point| point.series.clone()).collect();
    if found.is_empty() { vec![pattern.to_owned()] } else { found.into_iter().collect() }
}

/// The series that one is divided by: a star stands for what that of the claim's own pattern does.
pub fn divisor(claim: &Claim, series: &str, by: &str) -> String {
    let starts = claim.series.iter().filter_map(|pattern| pattern.strip_suffix('*'));
    let tail = starts.filter_map(|start| series.strip_prefix(start)).min_by_key(|tail| tail.len());
    match (by.strip_suffix('*'), tail) {
        (Some(start), Some(tail)) => format!("{start}{tail}"),
        _ => by.to_owned(),
    }
}

/// Refuses a claim that cannot be judged: a pattern names no series of the grid, or a baseline is missing.
///
/// A claim may name the series of a published curve, which needs that very GPU. An empty grid is not checked.
pub fn ensure_named(claim: &Claim, grid: &[String], published: &[Curve]) -> Result<()> {
    if grid.is_empty() {
        return Ok(());
    }
    let (id, there) = (&claim.id, || format!("`{}`", grid.join("`, `")));
    for pattern in &claim.series {
        let mut all = grid.iter().chain(published.iter().map(|curve| &curve.ours));
        ensure!(
            all.any(|series| matches(pattern, series)),
            "claim `{id}`: `{pattern}` of its `series` names no series of the grid; there are {}",
            there()
        );
    }
    let Rule::Bound { by: Some(by), .. } = &claim.rule else { return Ok(()) };
    let is_judged = |series: &&String| claim.series.iter().any(|pattern| matches(pattern, series));
    for series in grid.iter().filter(is_judged) {
        let baseline = divisor(claim, series, by);
        ensure!(
            grid.contains(&baseline),
            "claim `{id}`: by = \"{by}\" means `{baseline}` for `{series}`, which is no series of the grid; the star of `by` stands for \
             the same text as the star of `series`; there are {}",
            there()
        );
    }
    Ok(())
}

/// Parts that a claim asks of one series: a CPU's points need no GPU.
pub fn needed_parts(claim: &Claim, series: &str) -> impl Iterator<Item = Part> {
    let gpu = series.starts_with("gpu-");
    claim.needs.iter().map(|need| need.part).filter(move |part| gpu || *part != Part::Gpu)
}

/// What is missing for `series` to be judged: parts that must be hardware and are not. `None`: nothing.
pub fn lacks(claim: &Claim, points: &[Point], series: &str) -> Option<Vec<String>> {
    let own: Vec<&Point> = points.iter().filter(|point| point.series == series).collect();
    let mut lacking = Vec::new();
    for need in claim.needs.iter().filter(|need| needed_parts(claim, series).any(|part| part == need.part)) {
        // Of a series that is not there, the other series tell what the NIC and the link were.
        let looked_at: Vec<&Point> = if own.is_empty() { points.iter().collect() } else { own.clone() };
        let absent = own.is_empty() && need.part == Part::Gpu;
        let weakest = Label::weakest(looked_at.iter().map(|point| point.provenance.label(&[need.part])));
        let enough = if need.hardware { weakest == Label::Hardware } else { weakest != Label::None };
        if absent || looked_at.is_empty() || !enough {
            lacking.push(need.part.to_string());
        }
    }
    (own.is_empty() || !lacking.is_empty()).then_some(lacking)
}

/// One finding for each series that `of` finds behind a pattern of the claim.
pub fn each(
    claim: &Claim,
    points: &[Point],
    of: fn(&str, &[Point]) -> Vec<String>,
    judge: &dyn Fn(&str) -> Finding,
) -> Vec<Finding> {
    let series = claim.series.iter().flat_map(|pattern| of(pattern, points));
    let finding = |series: String| match lacks(claim, points, &series) {
        Some(needs) => Finding::missing(&series, needs),
        None => judge(&series),
    };
    series.map(finding).collect()
}

/// Findings for each series of the claim with each series of the next pattern.
pub fn pairs(claim: &Claim, points: &[Point], judge: &dyn Fn([&str; 2]) -> Vec<Finding>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for neighbours in claim.series.windows(2) {
        for one in expand(&neighbours[0], points) {
            for other in expand(&neighbours[1], points) {
                let lacking = [&one, &other].map(|series| lacks(claim, points, series));
                if lacking == [None, None] {
                    findings.extend(judge([&one, &other]));
                } else {
                    let needs: BTreeSet<String> = lacking.into_iter().flatten().flatten().collect();
                    let needs = needs.into_iter().collect();
                    findings.push(Finding::missing(&format!("{one} against {other}"), needs));
                }
            }
        }
    }
    findings
}
