//! Verdicts: each claim of the paper against our points, by the rule that its `paper.toml` states.

use std::collections::BTreeMap;
use std::fmt;

use measure::Label;
use measure::label::Part;
use serde::{Deserialize, Serialize};

use super::paper::{Claim, Rule};
use super::statistics::{by_payload, line, medians, rank_correlation};
use super::wire_model::WireModel;
use crate::figure::point::Point;

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
    /// No run of ours can judge it.
    Background,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Reproduced => f.write_str("reproduced"),
            Verdict::InPart => f.write_str("in part"),
            Verdict::NotReproduced => f.write_str("not reproduced"),
            Verdict::NeedsHardware(parts) => write!(f, "needs hardware ({})", parts.join(", ")),
            Verdict::NeedsData => f.write_str("needs data"),
            Verdict::Background => f.write_str("background"),
        }
    }
}

/// A claim with its verdict and what it rests on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// Short name of the claim.
    pub id: String,
    /// The claim in our words.
    pub text: String,
    /// Section and figure of the paper.
    pub source: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Weakest label of the points that it was judged on.
    pub label: Label,
    /// One line for each thing looked at; what does not hold goes first.
    pub evidence: Vec<String>,
    /// What each of them has to fulfil; empty where nothing is judged.
    #[serde(default)]
    pub criterion: String,
}

/// One thing that a claim is about.
struct Finding {
    holds: Option<bool>,
    evidence: String,
    /// Parts that must be hardware for it, where it could not be judged.
    needs: Vec<String>,
}

impl Finding {
    fn line(self) -> String {
        let mark = match self.holds {
            Some(true) => "holds: ",
            Some(false) => "fails: ",
            None => "",
        };
        format!("{mark}{}", self.evidence)
    }

    fn judged(holds: bool, evidence: String) -> Finding {
        Finding { holds: Some(holds), evidence, needs: Vec::new() }
    }

    fn missing(what: &str, needs: Vec<String>) -> Finding {
        let evidence = match needs.is_empty() {
            true => format!("{what}: no points to judge it by"),
            false => format!("{what}: needs hardware ({})", needs.join(", ")),
        };
        Finding { holds: None, evidence, needs }
    }
}

/// Judges one claim by `points`.
pub fn judge(claim: &Claim, points: &[Point]) -> Judged {
    let mut findings = match &claim.rule {
        Rule::Background {} => Vec::new(),
        Rule::Saturates { at_least } => each(claim, points, &|series| saturates(points, series, *at_least)),
        Rule::Fills { at_least, payload_bytes, posting } => each_of(claim, points, named, &|series| {
            fills(points, series, *at_least, *payload_bytes, *posting)
        }),
        Rule::Linear { r_squared, below } => {
            each(claim, points, &|series| linear(points, series, *r_squared, *below))
        }
        Rule::Equals { field, value } => each(claim, points, &|series| equals(points, series, field, *value)),
        Rule::Flat { field, at_most } => each(claim, points, &|series| flat(points, series, field, *at_most)),
        Rule::Falls { field, at_least } => {
            each(claim, points, &|series| falls(points, series, field, *at_least))
        }
        Rule::Ratio { field, within } => {
            pairs(claim, points, &|[one, other]| ratio(points, one, other, field, *within))
        }
        Rule::Order { field, below } => {
            pairs(claim, points, &|[one, other]| order(points, one, other, field, *below))
        }
    };
    let used =
        points.iter().filter(|point| claim.series.iter().any(|pattern| matches(pattern, &point.series)));
    let labels =
        used.flat_map(|point| needed_parts(claim, &point.series).map(|part| point.provenance.label(&[part])));
    let verdict = verdict(claim, &findings);
    let judged = findings.iter().any(|finding| finding.holds.is_some());
    // What decides against a claim goes first, then what could not be judged.
    findings.sort_by_key(|finding| match finding.holds {
        Some(false) => 0,
        None => 1,
        Some(true) => 2,
    });
    let mut evidence: Vec<String> = findings.into_iter().map(Finding::line).collect();
    // Above all else: whoever reads the verdict must know.
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
        criterion: criterion(&claim.rule),
    }
}

/// A line about the points of a claim whose messages were not whole.
fn not_whole(claim: &Claim, points: &[Point]) -> Option<String> {
    let used = |point: &&Point| claim.series.iter().any(|pattern| matches(pattern, &point.series));
    let broken: Vec<&Point> = points.iter().filter(used).filter(|point| !point.is_whole()).collect();
    let first = broken.first()?;
    Some(format!(
        "rests on {} points that are not whole, the first: {}",
        broken.len(),
        first.what_is_missing()
    ))
}

/// What the rule asks of each thing it looks at, in words with its bound.
fn criterion(rule: &Rule) -> String {
    match rule {
        Rule::Background {} => String::new(),
        Rule::Saturates { at_least } => {
            format!("holds from {:.0} % of the link's capacity on", at_least * 100.0)
        }
        Rule::Fills { at_least, payload_bytes: [first, last], posting } => format!(
            "holds from {:.0} % of the shaped link's capacity on, at each payload size from {first} to {last} B whose posts \
             alone allow {posting} times that capacity",
            at_least * 100.0
        ),
        Rule::Linear { r_squared, below } => {
            format!("holds from R² {r_squared} on, below {:.0} % of the plateau", below * 100.0)
        }
        Rule::Equals { field, value } => format!("holds when {field} is {value} everywhere"),
        Rule::Flat { field, at_most } => {
            format!("holds when the largest {field} is at most {at_most} times the smallest")
        }
        Rule::Falls { field, at_least } => format!(
            "holds when {field} falls with the payload (rank correlation below -0.5), by {:.0} % at least",
            at_least * 100.0
        ),
        Rule::Ratio { field, within: [least, most] } => {
            format!("holds when the ratio of {field} is from {least} to {most}")
        }
        Rule::Order { field, below } if field == "slope" => {
            format!("holds when the first rises faster, below {:.0} % of the plateau", below * 100.0)
        }
        Rule::Order { field, .. } => format!("holds when the first has the larger {field} everywhere"),
    }
}

fn verdict(claim: &Claim, findings: &[Finding]) -> Verdict {
    if matches!(claim.rule, Rule::Background {}) {
        return Verdict::Background;
    }
    let holding = findings.iter().filter(|finding| finding.holds == Some(true)).count();
    let failing = findings.iter().filter(|finding| finding.holds == Some(false)).count();
    let mut needs: Vec<String> = findings.iter().flat_map(|finding| finding.needs.clone()).collect();
    needs.sort_unstable();
    needs.dedup();
    match (holding, failing) {
        (0, 0) if !needs.is_empty() => Verdict::NeedsHardware(needs),
        (0, 0) => Verdict::NeedsData,
        (0, _) => Verdict::NotReproduced,
        _ if holding == findings.len() => Verdict::Reproduced,
        _ => Verdict::InPart,
    }
}

fn matches(pattern: &str, series: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == series, |start| series.starts_with(start))
}

/// Series of the points that a pattern names; the pattern itself when there is none, to be reported as missing. A series that hands
/// over lists alone is not what the paper measured, and a pattern does not mean it beside one that posts one by one.
fn expand(pattern: &str, points: &[Point]) -> Vec<String> {
    let one_by_one: Vec<Point> = points.iter().filter(|point| point.list == 1).cloned().collect();
    let asked = one_by_one.iter().any(|point| matches(pattern, &point.series));
    named(pattern, if asked { &one_by_one } else { points })
}

/// The same with lists, for what a poster's lists have no part in.
fn named(pattern: &str, points: &[Point]) -> Vec<String> {
    let found = points.iter().filter(|point| matches(pattern, &point.series));
    let mut found: Vec<String> = found.map(|point| point.series.clone()).collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { vec![pattern.to_owned()] } else { found }
}

/// Parts that a claim asks of one series: a CPU's points need no GPU.
fn needed_parts(claim: &Claim, series: &str) -> impl Iterator<Item = Part> {
    let gpu = series.starts_with("gpu-");
    claim.needs.iter().map(|need| need.part).filter(move |part| gpu || *part != Part::Gpu)
}

/// What is missing for `series` to be judged: parts that must be hardware and are not. `None`: nothing.
fn lacks(claim: &Claim, points: &[Point], series: &str) -> Option<Vec<String>> {
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

/// One finding for each series of the claim.
fn each(claim: &Claim, points: &[Point], judge: &dyn Fn(&str) -> Finding) -> Vec<Finding> {
    each_of(claim, points, expand, judge)
}

/// The same for the series that `of` finds behind a pattern.
fn each_of(
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
fn pairs(claim: &Claim, points: &[Point], judge: &dyn Fn([&str; 2]) -> Vec<Finding>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for neighbours in claim.series.windows(2) {
        for one in expand(&neighbours[0], points) {
            for other in expand(&neighbours[1], points) {
                let lacking: Vec<Option<Vec<String>>> =
                    [&one, &other].iter().map(|series| lacks(claim, points, series)).collect();
                if lacking.iter().all(Option::is_none) {
                    findings.extend(judge([&one, &other]));
                } else {
                    let mut needs: Vec<String> = lacking.into_iter().flatten().flatten().collect();
                    needs.sort_unstable();
                    needs.dedup();
                    findings.push(Finding::missing(&format!("{one} against {other}"), needs));
                }
            }
        }
    }
    findings
}

fn saturates(points: &[Point], series: &str, at_least: f64) -> Finding {
    let line_gbps = points.iter().filter(|point| point.series == series).find_map(|point| point.link_gbps);
    let Some(line_gbps) = line_gbps else { return Finding::missing(series, vec![Part::Link.to_string()]) };
    let model = WireModel { line_gbps, ..WireModel::PAPER };
    let share = |(payload, gbps): (u64, f64)| (gbps / model.capacity_gbps(payload), payload);
    let best = medians(points, series, "wire_gbps")
        .into_iter()
        .map(share)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    let (share, payload) = best.unwrap_or((0.0, 0));
    let evidence =
        format!("{series}: {:.1} % of what {line_gbps} Gbit/s carry, at {payload} B", share * 100.0);
    Finding::judged(share >= at_least, evidence)
}

/// Rate in Gbit/s that the software NIC's link was shaped to, if it was.
pub fn shaped_to(points: &[Point]) -> Option<f64> {
    let rate = points.first()?.provenance.nic_options.get("rate_gbps")?;
    rate.as_f64().filter(|rate| *rate > 0.0)
}

fn fills(points: &[Point], series: &str, at_least: f64, [first, last]: [u64; 2], posting: f64) -> Finding {
    let own: Vec<Point> = points.iter().filter(|point| point.series == series).cloned().collect();
    let Some(line_gbps) = shaped_to(&own) else {
        return Finding::missing(&format!("{series} on a shaped link"), Vec::new());
    };
    let model = WireModel { line_gbps, immediate: false, ..WireModel::PAPER };
    // A poster that hands over lists alone is asked by these.
    let list = own.iter().map(|point| point.list).min().unwrap_or(1);
    let medians = |field| -> BTreeMap<u64, f64> {
        let spreads = by_payload(points, series, list, field).into_iter();
        spreads.map(|(size, [median, ..])| (size, median)).collect()
    };
    let sizes: Vec<(u64, f64)> =
        medians("wire_gbps").into_iter().filter(|(size, _)| (first..=last).contains(size)).collect();
    if sizes.is_empty() {
        return Finding::missing(&format!("{series} from {first} to {last} B"), Vec::new());
    }
    // A poster that is too slow for a link leaves it idle, however well the link is filled otherwise. The time of a post is of one
    // request, with its share of a list's doorbell.
    let post_ns = medians("post_ns");
    let posts_allow =
        |size: u64| post_ns.get(&size).map_or(f64::INFINITY, |ns| model.posting_gbps(size, *ns));
    let (judged, bound): (Vec<_>, Vec<_>) =
        sizes.into_iter().partition(|(size, _)| posts_allow(*size) >= posting * model.capacity_gbps(*size));
    let bound: Vec<String> = bound
        .iter()
        .map(|(size, gbps)| {
            let allowed = posts_allow(*size);
            let ns = post_ns.get(size).copied().unwrap_or_default();
            format!("{size} B ({gbps:.1} Gbit/s; posts of {ns:.0} ns alone allow {allowed:.1})")
        })
        .collect();
    let bound = bound.join(", ");
    let count = judged.len();
    let shares = judged.into_iter().map(|(size, gbps)| (gbps / model.capacity_gbps(size), size));
    let Some((share, size)) = shares.min_by(|one, other| one.0.total_cmp(&other.0)) else {
        let evidence = format!("{series}: not judged: bound by posting at {bound}");
        return Finding { holds: None, evidence, needs: Vec::new() };
    };
    let mut evidence = format!(
        "{series}: {:.1} % or more of what {line_gbps} Gbit/s carry at {count} payload sizes, the least at {size} B",
        share * 100.0
    );
    if !bound.is_empty() {
        evidence += &format!("; not judged, bound by posting: {bound}");
    }
    Finding::judged(share >= at_least, evidence)
}

/// Medians of the throughput up to the first one that reaches `below` of the plateau.
fn below_the_knee(points: &[Point], series: &str, below: f64) -> Vec<(f64, f64)> {
    let medians = medians(points, series, "wire_gbps");
    let plateau = medians.values().copied().fold(0.0, f64::max);
    let rising = medians.into_iter().take_while(|(_, gbps)| *gbps < below * plateau);
    rising.map(|(payload, gbps)| (payload as f64, gbps)).collect()
}

fn linear(points: &[Point], series: &str, r_squared: f64, below: f64) -> Finding {
    match line(&below_the_knee(points, series, below)) {
        Some(fit) => {
            Finding::judged(fit.r_squared >= r_squared, format!("{series}: R² {:.4}", fit.r_squared))
        }
        None => Finding::missing(&format!("{series} below the knee"), Vec::new()),
    }
}

fn equals(points: &[Point], series: &str, field: &str, value: f64) -> Finding {
    let own: Vec<Option<f64>> =
        points.iter().filter(|point| point.series == series).map(|point| point.field(field)).collect();
    let known = own.iter().flatten().count();
    match own.iter().flatten().find(|found| **found != value) {
        Some(other) => Finding::judged(false, format!("{series}: {field} {other}")),
        // A point that does not say is no point that agrees.
        None if known == 0 => Finding::missing(&format!("{series}: {field}"), Vec::new()),
        None => {
            let all = format!("{series}: {field} {value}, {known} of {} points say", own.len());
            Finding::judged(true, all)
        }
    }
}

fn flat(points: &[Point], series: &str, field: &str, at_most: f64) -> Finding {
    let medians = medians(points, series, field);
    if medians.len() < 2 {
        return Finding::missing(&format!("{series}: {field} at two payload sizes"), Vec::new());
    }
    let least = medians.values().copied().fold(f64::INFINITY, f64::min);
    let most = medians.values().copied().fold(0.0, f64::max);
    let quotient = most / least;
    Finding::judged(
        quotient <= at_most,
        format!("{series}: {field} from {least:.1} to {most:.1}, quotient {quotient:.3}"),
    )
}

fn falls(points: &[Point], series: &str, field: &str, at_least: f64) -> Finding {
    let medians: Vec<f64> = medians(points, series, field).into_values().collect();
    let (Some(rank), Some(first), Some(last)) = (rank_correlation(&medians), medians.first(), medians.last())
    else {
        return Finding::missing(series, Vec::new());
    };
    let fall = 1.0 - last / first;
    let word = if fall < 0.0 { "more" } else { "less" };
    let percent = fall.abs() * 100.0;
    let evidence =
        format!("{series}: rank correlation {rank:.2}, {percent:.1} % {word} at the largest payload");
    Finding::judged(rank < -0.5 && fall >= at_least, evidence)
}

/// One finding for each payload size that both series have.
fn ratio(points: &[Point], one: &str, other: &str, field: &str, within: [f64; 2]) -> Vec<Finding> {
    let below = medians(points, other, field);
    let common = medians(points, one, field)
        .into_iter()
        .filter_map(|(payload, value)| Some((payload, value / below.get(&payload)?)));
    let finding = |(payload, ratio): (u64, f64)| {
        let holds = (within[0]..=within[1]).contains(&ratio);
        Finding::judged(holds, format!("{one} / {other} at {payload} B: {ratio:.3}"))
    };
    common.map(finding).collect()
}

fn order(points: &[Point], one: &str, other: &str, field: &str, below: f64) -> Vec<Finding> {
    if field == "slope" {
        let slope = |series| line(&below_the_knee(points, series, below)).map(|fit| fit.slope);
        return vec![match (slope(one), slope(other)) {
            (Some(upper), Some(lower)) => {
                let evidence = format!("{one} {:.3}, {other} {:.3} Gbit/s per KB", upper * 1e3, lower * 1e3);
                Finding::judged(upper > lower, evidence)
            }
            _ => Finding::missing(&format!("slopes of {one} and {other}"), Vec::new()),
        }];
    }
    let lower: BTreeMap<u64, f64> = medians(points, other, field);
    let common: Vec<f64> = medians(points, one, field)
        .into_iter()
        .filter_map(|(payload, value)| Some(value / lower.get(&payload)?))
        .collect();
    let least = common.iter().copied().fold(f64::INFINITY, f64::min);
    let most = common.iter().copied().fold(0.0, f64::max);
    if common.is_empty() {
        return vec![Finding::missing(&format!("{one} / {other}: {field} at one payload size"), Vec::new())];
    }
    let evidence =
        format!("{one} / {other}: {field} {least:.2} to {most:.2} times, at {} payload sizes", common.len());
    vec![Finding::judged(least > 1.0, evidence)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::point::example;
    use crate::report::paper::Paper;
    use crate::workspace::root;

    /// The published curves as if we had measured them, on hardware.
    fn published() -> Vec<Point> {
        let mut points = Vec::new();
        for curve in paper(4).series {
            for [payload, gbps, _, _] in curve.points {
                points.push(Point { wire_gbps: gbps, post_ns: 0.0, ..example(&curve.ours, payload as u64) });
            }
        }
        for curve in paper(5).series {
            for [payload, post_ns, _, _] in curve.points {
                match points
                    .iter_mut()
                    .find(|point| point.series == curve.ours && point.payload_bytes == payload as u64)
                {
                    Some(point) => point.post_ns = post_ns,
                    // A size that figure 5 has alone lies on the plateau.
                    None => points.push(Point {
                        wire_gbps: 99.0,
                        post_ns,
                        ..example(&curve.ours, payload as u64)
                    }),
                }
            }
        }
        points.retain(|point| point.post_ns > 0.0);
        points
    }

    fn paper(figure: u32) -> Paper {
        Paper::read(&root().join(format!("experiments/fig{figure}"))).unwrap()
    }

    fn verdict_of(id: &str, points: &[Point]) -> Verdict {
        let claims = [paper(4).claim, paper(5).claim].concat();
        judge(claims.iter().find(|claim| claim.id == id).expect(id), points).verdict
    }

    fn change(points: &[Point], series: &str, change: impl Fn(&mut Point)) -> Vec<Point> {
        let mut points = points.to_vec();
        points.iter_mut().filter(|point| matches(series, &point.series)).for_each(change);
        points
    }

    #[test]
    fn flipping_the_data_flips_the_verdict() {
        use Verdict::{InPart, NotReproduced, Reproduced};
        let all = published();
        // A falling CPU post time is what the paper's figure shows and its re-run does not.
        let falling =
            change(&all, "cpu-*", |point| point.post_ns = 100.0 - point.payload_bytes as f64 / 4000.0);
        let halved = |series: &'static str| change(&all, series, |point| point.wire_gbps /= 2.0);
        let rows: Vec<(&str, &str, Vec<Point>, Verdict)> = vec![
            ("saturate-100g", "as published", all.clone(), Reproduced),
            ("saturate-100g", "one GPU at half the rate", halved("gpu-l40"), InPart),
            ("saturate-100g", "both at half the rate", halved("gpu-*"), NotReproduced),
            ("all-four-saturate", "as published", all.clone(), Reproduced),
            ("all-four-saturate", "CPU at half the rate", halved("cpu-*"), InPart),
            ("all-four-saturate", "all at half the rate", halved("*"), NotReproduced),
            ("gpu-scales-like-cpu", "as published", all.clone(), Reproduced),
            (
                "gpu-scales-like-cpu",
                "growing as a square",
                change(&all, "gpu-*", |p| p.wire_gbps = (p.payload_bytes as f64).powi(3)),
                NotReproduced,
            ),
            ("own-equals-vanilla", "as published: not below the knee", all.clone(), InPart),
            ("own-equals-vanilla", "equal", change(&all, "cpu-*", |p| p.wire_gbps = 50.0), Reproduced),
            (
                "own-equals-vanilla",
                "twice as fast",
                change(&change(&all, "cpu-*", |p| p.wire_gbps = 50.0), "cpu-shim", |p| p.wire_gbps = 100.0),
                NotReproduced,
            ),
            ("single-thread", "one", all.clone(), Reproduced),
            (
                "single-thread",
                "two on the CPU",
                change(&all, "cpu-*", |p| p.posting_threads = Some(2)),
                InPart,
            ),
            ("single-thread", "two", change(&all, "*", |p| p.posting_threads = Some(2)), NotReproduced),
            (
                "slope-by-clock",
                "as published: the A100 is no slower than the CPU's loop",
                all.clone(),
                InPart,
            ),
            (
                "slope-by-clock",
                "a fast CPU",
                change(&all, "cpu-shim", |p| p.wire_gbps = (p.payload_bytes as f64 / 100.0).min(99.0)),
                Reproduced,
            ),
            (
                "slope-by-clock",
                "all reversed",
                change(
                    &change(&all, "gpu-l40", |p| p.wire_gbps = (p.payload_bytes as f64 / 300.0).min(99.0)),
                    "cpu-shim",
                    |p| p.wire_gbps = (p.payload_bytes as f64 / 900.0).min(99.0),
                ),
                NotReproduced,
            ),
            ("post-constant", "as published: one outlier", all.clone(), InPart),
            ("post-constant", "constant", change(&all, "*", |p| p.post_ns = 80.0), Reproduced),
            (
                "post-constant",
                "growing",
                change(&all, "*", |p| p.post_ns = p.payload_bytes as f64),
                NotReproduced,
            ),
            ("post-gpu-slower", "as published", all.clone(), Reproduced),
            ("post-gpu-slower", "a fast L40", change(&all, "gpu-l40", |p| p.post_ns = 10.0), InPart),
            ("post-gpu-slower", "fast GPUs", change(&all, "gpu-*", |p| p.post_ns = 10.0), NotReproduced),
            ("cpu-post-decreases", "as the re-run", all.clone(), NotReproduced),
            ("cpu-post-decreases", "falling", falling, Reproduced),
            ("post-constant-api", "as published", all.clone(), Reproduced),
            (
                "post-constant-api",
                "growing",
                change(&all, "cpu-ibverbs", |p| p.post_ns = p.payload_bytes as f64),
                NotReproduced,
            ),
            ("clock-l40", "anything", all.clone(), Verdict::Background),
            ("clock-a100", "anything", all.clone(), Verdict::Background),
        ];
        let claims = [4, 5].into_iter().flat_map(|number| paper(number).claim);
        let without: Vec<String> =
            claims.map(|claim| claim.id).filter(|id| !rows.iter().any(|row| row.0 == *id)).collect();
        assert!(without.is_empty(), "claims without a row: {without:?}");
        for (id, what, points, verdict) in rows {
            assert_eq!(verdict_of(id, &points), verdict, "{id}: {what}");
        }
    }

    #[test]
    fn a_verdict_on_points_that_are_not_whole_says_so() {
        let claims = [paper(4).claim, paper(5).claim].concat();
        let judged =
            |id: &str, points: &[Point]| judge(claims.iter().find(|claim| claim.id == id).unwrap(), points);
        let all = published();
        let broken = change(&all, "cpu-ibverbs", |p| p.completed = 9);
        let count = broken.iter().filter(|point| !point.is_whole()).count();
        let evidence = &judged("post-constant-api", &broken).evidence;
        assert!(
            evidence[0].starts_with(&format!(
                "rests on {count} points that are not whole, the first: cpu-ibverbs at"
            ))
        );
        for (id, points) in [
            ("post-constant-api", &all),
            // About nobody but GPUs.
            ("gpu-scales-like-cpu", &change(&all, "nobody", |p| p.completed = 9)),
            ("clock-l40", &broken),
        ] {
            assert!(!judged(id, points).evidence.iter().any(|line| line.contains("not whole")), "{id}");
        }
        let nothing_judged = change(&broken, "*", |p| p.provenance.nic = Label::None);
        assert!(
            !judged("post-constant-api", &nothing_judged)
                .evidence
                .iter()
                .any(|line| line.contains("not whole"))
        );
    }

    #[test]
    fn what_needs_hardware_says_which() {
        let cpu: Vec<Point> =
            published().into_iter().filter(|point| point.series.starts_with("cpu-")).collect();
        let emulated = change(&cpu, "*", |point| {
            point.provenance.nic = Label::Emulated;
            point.provenance.link = Label::Emulated;
        });
        let parts =
            |parts: &[&str]| Verdict::NeedsHardware(parts.iter().map(|part| (*part).to_owned()).collect());
        for (id, points, verdict) in [
            ("saturate-100g", &cpu, parts(&["gpu"])),
            ("saturate-100g", &emulated, parts(&["gpu", "link", "nic"])),
            ("all-four-saturate", &cpu, Verdict::InPart),
            ("all-four-saturate", &emulated, parts(&["gpu", "link", "nic"])),
            ("gpu-scales-like-cpu", &emulated, parts(&["gpu"])),
            ("slope-by-clock", &emulated, parts(&["gpu", "link", "nic"])),
            ("post-gpu-slower", &emulated, parts(&["gpu"])),
            ("post-constant-api", &emulated, Verdict::Reproduced),
        ] {
            assert_eq!(verdict_of(id, points), verdict, "{id}");
        }
    }

    #[test]
    fn posts_of_a_gpu_are_judged_on_an_emulated_nic_and_lists_are_not_asked() {
        use Verdict::{InPart, NotReproduced, Reproduced};
        let series = [("cpu-ibverbs", 30.0, 1), ("cpu-shim", 20.0, 1), ("gpu-original", 2600.0, 1)];
        let of = |(series, post_ns, list): (&str, f64, u32)| {
            let point = move |payload| Point { post_ns, list, ..example(series, payload) };
            [64, 4096, 20_000].map(point)
        };
        let points: Vec<Point> = series
            .into_iter()
            .chain([("gpu-thread", 700.0, 1), ("gpu-warp", 15.0, 32)])
            .flat_map(of)
            .collect();
        let emulated = change(&points, "*", |point| {
            point.provenance.nic = Label::Emulated;
            point.provenance.link = Label::Emulated;
        });
        let fast = |series| change(&emulated, series, |point| point.post_ns = 10.0);
        for (id, what, points, verdict) in [
            ("post-gpu-slower", "as measured", emulated.clone(), Reproduced),
            ("post-gpu-slower", "a fast thread", fast("gpu-thread"), InPart),
            ("post-gpu-slower", "fast GPUs", fast("gpu-*"), NotReproduced),
            ("post-constant", "as measured", emulated.clone(), Reproduced),
            (
                "post-constant",
                "a thread that grows",
                change(&emulated, "gpu-thread", |point| point.post_ns += point.payload_bytes as f64),
                InPart,
            ),
            ("single-thread", "as measured", emulated.clone(), Reproduced),
            (
                "saturate-100g",
                "as measured",
                emulated,
                Verdict::NeedsHardware(vec!["link".into(), "nic".into()]),
            ),
        ] {
            assert_eq!(verdict_of(id, &points), verdict, "{id}: {what}");
        }
        let claims = paper(5).claim;
        let slower = claims.iter().find(|claim| claim.id == "post-gpu-slower").unwrap();
        let evidence = judge(slower, &points).evidence.join("\n");
        let times = "gpu-original / cpu-shim: post_ns 130.00 to 130.00 times, at 3 payload sizes";
        assert!(evidence.contains(times) && !evidence.contains("gpu-warp"), "{evidence}");
    }

    #[test]
    fn a_shaped_link_is_full_when_every_poster_fills_it_at_every_large_size() {
        use Verdict::{InPart, NeedsData, NotReproduced, Reproduced};
        let spec = crate::figure::spec::Spec::read(&root().join("experiments/fig4")).unwrap();
        let [claim] = &spec.shaped[..] else { panic!("one claim about shaped links") };
        let sizes = [64, 65_536, 131_072, 262_144, 1_048_576, 2_097_152];
        // 99 of the 99.5 Gbit/s that frames of 4096 bytes carry; what is smaller or larger is not asked.
        let full = |payload| if (131_072..=1_048_576).contains(&payload) { 99.0 } else { 20.0 };
        let of = |series| sizes.map(|payload| Point { wire_gbps: full(payload), ..example(series, payload) });
        let unshaped: Vec<Point> =
            ["cpu-ibverbs", "cpu-shim", "gpu-thread"].into_iter().flat_map(of).collect();
        let shaped = change(&unshaped, "*", |point| {
            point.provenance.nic = Label::Emulated;
            point.provenance.link = Label::Emulated;
            point.provenance.nic_options.insert("rate_gbps".into(), 100.into());
        });
        let at = |series: &'static str, size: u64, gbps: f64| {
            change(&shaped, series, |point| {
                if point.payload_bytes == size {
                    point.wire_gbps = gbps;
                }
            })
        };
        let quarter = change(&shaped, "*", |point| {
            point.provenance.nic_options.insert("rate_gbps".into(), 25.5.into());
            point.wire_gbps /= 4.0;
        });
        let with_a_warp = |points: &[Point]| -> Vec<Point> {
            let warp = points.iter().filter(|point| point.series == "gpu-thread").cloned();
            let warp = warp.map(|point| Point { series: "gpu-warp".into(), list: 32, ..point });
            shaped.iter().cloned().chain(warp).collect()
        };
        for (what, points, verdict) in [
            ("full", shaped.clone(), Reproduced),
            ("full at another rate", quarter, Reproduced),
            ("one poster a little below at one size", at("gpu-thread", 262_144, 94.0), InPart),
            ("another at the first size", at("cpu-shim", 131_072, 83.0), InPart),
            ("all at the last size", at("*", 1_048_576, 83.0), NotReproduced),
            ("a warp, which posts lists, does too", with_a_warp(&shaped), Reproduced),
            ("a warp does not", with_a_warp(&at("gpu-thread", 131_072, 83.0)), InPart),
            ("not shaped", unshaped, NeedsData),
            ("small messages alone", shaped[..2].to_vec(), NeedsData),
        ] {
            assert_eq!(judge(claim, &points).verdict, verdict, "{what}");
        }
        let warp = judge(claim, &with_a_warp(&at("gpu-thread", 131_072, 83.0)));
        assert!(warp.evidence[0].starts_with("fails: gpu-warp: 83.4 % or more of"), "{warp:?}");
        let judged = judge(claim, &at("cpu-shim", 131_072, 83.0));
        assert_eq!(judged.label, Label::Emulated);
        let worst = "fails: cpu-shim: 83.4 % or more of what 100 Gbit/s carry at 3 payload sizes, the least at 131072 B";
        assert_eq!(judged.evidence[0], worst);
        assert!(
            judged.criterion.contains("95 %") && judged.criterion.contains("131072 to 1048576 B"),
            "{judged:?}"
        );
    }

    #[test]
    fn a_poster_is_asked_to_fill_a_shaped_link_where_its_posts_alone_could() {
        use Verdict::{InPart, NeedsData, NotReproduced, Reproduced};
        let spec = crate::figure::spec::Spec::read(&root().join("experiments/fig4")).unwrap();
        let [claim] = &spec.shaped[..] else { panic!("one claim about shaped links") };
        let model = WireModel { immediate: false, ..WireModel::PAPER };
        // One request every `post_ns`, as the original's style posts on an H200 in 9.6 µs. 15 µs are two thirds of a link at 128 KiB.
        let of = |series: &str, post_ns: f64, share: f64| -> Vec<Point> {
            let point = |payload| {
                let wire_gbps = model.throughput_gbps(payload, post_ns) * share;
                let mut point = Point { post_ns, wire_gbps, ..example(series, payload) };
                point.provenance.nic = Label::Emulated;
                point.provenance.link = Label::Emulated;
                point.provenance.nic_options.insert("rate_gbps".into(), 100.into());
                point
            };
            [131_072, 262_144, 524_288, 1_048_576].map(point).to_vec()
        };
        let fast = of("cpu-shim", 30.0, 0.99);
        let at = |mut points: Vec<Point>, size: u64, gbps: f64| {
            points.iter_mut().filter(|point| point.payload_bytes == size).for_each(|p| p.wire_gbps = gbps);
            points
        };
        let slow = of("gpu-original", 15_000.0, 0.99);
        let beside = |other: Vec<Point>| [fast.clone(), other].concat();
        for (what, points, verdict) in [
            ("a slow poster that fills it where it can", beside(slow.clone()), Reproduced),
            (
                "where its posts allow two thirds of it, it is not asked",
                beside(at(slow.clone(), 131_072, 9.0)),
                Reproduced,
            ),
            ("where its posts allow it, it is", beside(at(slow.clone(), 262_144, 83.0)), InPart),
            (
                "a fast one that does not fill it is asked everywhere",
                at(fast.clone(), 131_072, 50.0),
                NotReproduced,
            ),
            ("one that can nowhere", beside(of("gpu-original", 100_000.0, 0.99)), InPart),
            ("nobody can anywhere", of("gpu-original", 100_000.0, 0.99), NeedsData),
            // 8 × (262144 + 62 × 64 + 16) bits in 17500 ns are 121.7 Gbit/s, less than 1.25 of what is carried.
            ("what posting could just fill is left out", beside(of("gpu-original", 17_500.0, 0.8)), InPart),
        ] {
            assert_eq!(judge(claim, &points).verdict, verdict, "{what}");
        }
        let evidence = |points: &[Point]| judge(claim, points).evidence.join("\n");
        let said = evidence(&beside(slow));
        let left_out = "gpu-original: 99.0 % or more of what 100 Gbit/s carry at 3 payload sizes, the least at 262144 B; not judged, \
                        bound by posting: 131072 B (70.3 Gbit/s; posts of 15000 ns alone allow 71.0)";
        assert!(said.contains(left_out), "{said}");
        let said = evidence(&of("gpu-original", 100_000.0, 0.99));
        assert!(said.starts_with("gpu-original: not judged: bound by posting at 131072 B ("), "{said}");
        let said = evidence(&beside(of("gpu-original", 17_500.0, 0.8)));
        assert!(
            said.contains("fails: gpu-original: 80.0 %") && said.contains("at 2 payload sizes"),
            "{said}"
        );
        assert!(said.contains("262144 B (79.6 Gbit/s; posts of 17500 ns alone allow 121.7)"), "{said}");
        assert!(judge(claim, &fast).criterion.contains("posts alone allow 1.25 times"));
    }

    #[test]
    fn the_label_is_the_weakest_that_the_claim_needs() {
        let emulated = change(&published(), "*", |point| point.provenance.nic = Label::Emulated);
        let label = |id: &str| {
            let claims = [paper(4).claim, paper(5).claim].concat();
            judge(claims.iter().find(|claim| claim.id == id).unwrap(), &emulated).label
        };
        assert_eq!(label("post-constant-api"), Label::Emulated);
        assert_eq!(label("post-constant"), Label::Emulated);
        assert_eq!(label("clock-l40"), Label::None);
    }

    #[test]
    fn a_series_that_was_not_run_never_counts_as_holding() {
        assert_eq!(verdict_of("post-constant-api", &[]), Verdict::NeedsHardware(vec!["nic".into()]));
        let without: Vec<Point> =
            published().into_iter().filter(|point| point.series != "cpu-ibverbs").collect();
        assert_eq!(verdict_of("post-constant-api", &without), Verdict::NeedsData);
    }

    #[test]
    fn points_that_say_nothing_of_a_claim_never_hold_it() {
        let all = published();
        // One payload size is level, and so is none.
        let lone: Vec<Point> = all.iter().filter(|point| point.payload_bytes == 10_000).cloned().collect();
        let silent = change(&all, "*", |point| point.posting_threads = None);
        // Lists alone, no posts one by one.
        let lists = change(&all, "*", |point| point.list = 16);
        for (id, what, points) in [
            ("post-constant-api", "one size", &lone),
            ("post-constant", "one size", &lone),
            ("single-thread", "no tick was seen", &silent),
            ("post-constant-api", "lists only", &lists),
            ("own-equals-vanilla", "lists only", &lists),
            ("post-gpu-slower", "lists only", &lists),
            ("cpu-post-decreases", "lists only", &lists),
        ] {
            assert_eq!(verdict_of(id, points), Verdict::NeedsData, "{id}: {what}");
        }
        let one_says = [silent, all[..1].to_vec()].concat();
        assert_eq!(verdict_of("single-thread", &one_says), Verdict::InPart);
    }
}
