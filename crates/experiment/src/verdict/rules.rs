//! The rules: what each asks of the series that a claim is about, and what it found.

use std::collections::BTreeMap;

use measure::label::Part;

use super::finding::Finding;
use super::series::{self, divisor, expand, named, pairs};
use crate::by_x::{by_x, log_fit, medians};
use crate::paper::{Claim, Rule};
use crate::point::Point;
use crate::statistics::{line, median, number, rank_correlation, spread};
use crate::wire_model::WireModel;

/// What stands in the evidence of what a rule leaves out, before the reason.
pub const NOT_JUDGED: &str = ": not judged: ";

/// Whether a rule only reports.
pub fn asks_nothing(rule: &Rule) -> bool {
    matches!(rule, Rule::Bound { at_least: None, at_most: None, below: None, .. })
}

/// What a claim's rule finds in `points`, thing by thing.
pub fn findings(claim: &Claim, points: &[Point]) -> Vec<Finding> {
    let each = |judge: &dyn Fn(&str) -> Finding| series::each(claim, points, expand, judge);
    let pairs = |judge: &dyn Fn([&str; 2]) -> Vec<Finding>| pairs(claim, points, judge);
    match &claim.rule {
        Rule::Background {} => Vec::new(),
        Rule::Differs { why } => vec![Finding::judged(false, why.clone())],
        Rule::Saturates { at_least } => each(&|series| saturates(points, series, *at_least)),
        Rule::Fills { at_least, payload_bytes, posting } => series::each(claim, points, named, &|series| {
            fills(points, series, *at_least, *payload_bytes, *posting)
        }),
        Rule::Linear { r_squared, below } => each(&|series| linear(points, series, *r_squared, *below)),
        Rule::Equals { field, value } => each(&|series| equals(points, series, field, *value)),
        Rule::Flat { field, at_most } => each(&|series| flat(points, series, field, *at_most)),
        Rule::Falls { field, at_least } => each(&|series| falls(points, series, field, *at_least)),
        Rule::Logarithmic { field, r_squared } => {
            each(&|series| logarithmic(points, series, field, *r_squared))
        }
        Rule::Grows { field, at_least } => each(&|series| grows(points, series, field, *at_least)),
        Rule::Bound { field, by, at_least, at_most, below, unless, resolved, parts } => each(&|series| {
            let by = by.as_ref().map(|by| divisor(claim, series, by));
            let what = by.as_ref().map_or_else(|| series.to_owned(), |by| format!("{series} / {by}"));
            let open = |evidence: String| Finding { holds: None, evidence, needs: Vec::new() };
            if let Some((name, why)) = unless {
                // One repetition is enough: a quotient is taken of each.
                let why_not = |series: &str| {
                    let own = own_values(points, series, name);
                    let is_set = own.values().any(|value| *value != 0.0);
                    let lacks = own.is_empty().then(|| format!("the run has no {name} ({series})"));
                    lacks.or_else(|| is_set.then(|| format!("{why} ({series})")))
                };
                if let Some(why_not) = by.as_deref().into_iter().chain([series]).find_map(why_not) {
                    return open(format!("{what}{NOT_JUDGED}{why_not}"));
                }
            }
            let found: Vec<f64> = match &by {
                None => own_values(points, series, field).into_values().collect(),
                Some(by) => quotients(points, series, by, field),
            };
            let Some([value, least, most]) = spread(&found) else {
                return Finding::missing(series, Vec::new());
            };
            let keeps = |value: f64| {
                let is_small = at_most.is_none_or(|aim| value <= aim) && below.is_none_or(|aim| value < aim);
                [at_least.is_none_or(|aim| value >= aim), is_small]
            };
            let made = by.as_ref().and_then(|by| difference(points, series, by, parts)).unwrap_or_default();
            let is_kept = points.iter().any(|point| point.series == *series && point.is_kept);
            if *resolved && (is_kept || found.len() < 2 || keeps(least) != keeps(most)) {
                let [least, most] = [least, most].map(|value| number(Some(value)));
                let why = match found.len() {
                    _ if is_kept => "the recorded run keeps no quotient of each repetition".to_owned(),
                    1 => format!("not resolved: one repetition alone, {least}"),
                    count => format!("not resolved: {count} repetitions scatter from {least} to {most}"),
                };
                return open(format!("{what}{NOT_JUDGED}{why}"));
            }
            let holds = (!asks_nothing(&claim.rule)).then(|| keeps(value) == [true; 2]);
            Finding { holds, ..open(format!("{what}: {}{made}", number(Some(value)))) }
        }),
        Rule::Stated { field } => {
            let bounds = |series: &str| {
                let own = points.iter().find(|point| point.series == series);
                ["at_least", "at_most"].map(|name| own?.values.get(name).copied())
            };
            let judged = |series: &str| {
                let found: Vec<f64> = own_values(points, series, field).into_values().collect();
                let ([least, most], Some(value)) = (bounds(series), median(&found)) else {
                    return Finding::missing(series, Vec::new());
                };
                let holds = least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most);
                let words = [("at least", least), ("at most", most)];
                let words = words.iter().filter_map(|(word, bound)| Some(format!(", {word} {}", (*bound)?)));
                let words: String = words.collect();
                Finding::judged(holds, format!("{series}: {}{words}", number(Some(value))))
            };
            let mut own = claim.clone();
            own.series = claim.series.iter().flat_map(|pattern| named(pattern, points)).collect();
            own.series.retain(|series| bounds(series) != [None; 2]);
            series::each(&own, points, expand, &judged)
        }
        Rule::Ratio { field, within } => pairs(&|[one, other]| ratio(points, one, other, field, *within)),
        Rule::Order { field, below } => pairs(&|[one, other]| order(points, one, other, field, *below)),
    }
}

/// What the rule asks of each thing it looks at, in words with its bound.
pub fn criterion(rule: &Rule) -> String {
    match rule {
        Rule::Background {} | Rule::Differs { .. } => String::new(),
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
        Rule::Bound { field, by, at_least, at_most, below, unless, resolved, .. } => {
            let mut only =
                unless.as_ref().map_or_else(String::new, |(name, _)| format!(", where {name} is 0"));
            if *resolved {
                only += ", judged where two repetitions or more all lie within the bounds or all beyond one of them";
            }
            let words = [("at least", at_least), ("at most", at_most), ("below", below)];
            let words = words.iter().filter_map(|(word, bound)| Some(format!("{word} {}", (**bound)?)));
            let words: Vec<String> = words.collect();
            let what = by.as_ref().map_or_else(|| field.clone(), |by| format!("{field} ÷ that of {by}"));
            match words.is_empty() {
                true => String::new(),
                false => format!("holds when {what} is {}{only}", words.join(" and ")),
            }
        }
        Rule::Stated { field } => format!("holds when {field} keeps at_most and at_least of its own series"),
        Rule::Falls { field, at_least } => format!(
            "holds when {field} falls with the payload (rank correlation below -0.5), by {:.0} % at least",
            at_least * 100.0
        ),
        Rule::Logarithmic { field, r_squared } => {
            format!("holds when {field} is a·log2(x) + k with R² {r_squared} at least")
        }
        Rule::Grows { field, at_least } => {
            format!(
                "holds when {field} grows with each x, {at_least} times at least from the first to the last"
            )
        }
        Rule::Ratio { field, within: [least, most] } => {
            format!("holds when the ratio of {field} is from {least} to {most}")
        }
        Rule::Order { field, below } if field == "slope" => {
            format!("holds when the first rises faster, below {:.0} % of the plateau", below * 100.0)
        }
        Rule::Order { field, .. } => format!("holds when the first has the larger {field} everywhere"),
    }
}

fn saturates(points: &[Point], series: &str, at_least: f64) -> Finding {
    let mut own = points.iter().filter(|point| point.series == series);
    let line_gbps = own.find_map(|point| point.values.get("link_gbps").copied());
    let Some(line_gbps) = line_gbps else { return Finding::missing(series, vec![Part::Link.to_string()]) };
    let model = WireModel { line_gbps, ..WireModel::PAPER };
    let share = |(payload, gbps): (u64, f64)| (gbps / model.capacity_gbps(payload), payload);
    let shares = medians(points, series, "wire_gbps").into_iter().map(share);
    let (share, payload) = shares.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or_default();
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
    let at = own.iter().map(|point| &point.at).min().cloned().unwrap_or_default();
    let medians = |field| -> BTreeMap<u64, f64> {
        let spreads = by_x(&own, series, field, |point| point.at == at).into_iter();
        spreads.map(|(size, [median, ..])| (size, median)).collect()
    };
    let sizes: Vec<(u64, f64)> =
        medians("wire_gbps").into_iter().filter(|(size, _)| (first..=last).contains(size)).collect();
    if sizes.is_empty() {
        return Finding::missing(&format!("{series} from {first} to {last} B"), Vec::new());
    }
    // A poster that is too slow for a link leaves it idle, however well the link is filled otherwise. A
    // post's time is that of one request, with its share of a list's doorbell.
    let post_ns = medians("post_ns");
    let posts_allow =
        |size: u64| post_ns.get(&size).map_or(f64::INFINITY, |ns| model.posting_gbps(size, *ns));
    let (judged, bound): (Vec<_>, Vec<_>) =
        sizes.into_iter().partition(|(size, _)| posts_allow(*size) >= posting * model.capacity_gbps(*size));
    let said = |(size, gbps): &(u64, f64)| {
        let (allowed, ns) = (posts_allow(*size), post_ns.get(size).copied().unwrap_or_default());
        format!("{size} B ({gbps:.1} Gbit/s; posts of {ns:.0} ns alone allow {allowed:.1})")
    };
    let bound = bound.iter().map(said).collect::<Vec<String>>().join(", ");
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

/// A number of a series by repetition and x.
fn own_values(points: &[Point], series: &str, field: &str) -> BTreeMap<(u32, u64), f64> {
    let own = points.iter().filter(|point| point.series == series && point.is_base());
    own.filter_map(|point| Some(((point.repetition, point.x), *point.values.get(field)?))).collect()
}

/// Quotients within a repetition: both numbers share the machine's mood.
fn quotients(points: &[Point], series: &str, by: &str, field: &str) -> Vec<f64> {
    let below = own_values(points, by, field);
    let of = own_values(points, series, field).into_iter();
    of.filter_map(|(key, value)| Some(value / below.get(&key)?)).collect()
}

/// Parts of a difference that its evidence names.
const NAMED: usize = 2;

/// The parts in which a series differs most from another within a repetition, with their shares of all parts'
/// difference. `None` if no part was measured in both.
fn difference(points: &[Point], series: &str, by: &str, parts: &[String]) -> Option<String> {
    let of = |part: &String| {
        let below = own_values(points, by, part);
        let own = own_values(points, series, part).into_iter();
        let apart: Vec<f64> = own.filter_map(|(key, value)| Some(value - below.get(&key)?)).collect();
        Some((part.clone(), median(&apart)?))
    };
    let mut apart: Vec<(String, f64)> = parts.iter().filter_map(of).collect();
    let all: f64 = apart.iter().map(|(_, part)| part).sum();
    if apart.is_empty() || all == 0.0 {
        return None;
    }
    apart.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
    let named = apart.iter().take(NAMED);
    let words = named.map(|(name, part)| format!("{name} {part:+.1} ({:.0} %)", 100.0 * part / all));
    Some(format!("; of the parts' difference {all:+.1}: {}", words.collect::<Vec<_>>().join(", ")))
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
    let own = points.iter().filter(|point| point.series == series);
    let own: Vec<Option<f64>> = own.map(|point| point.values.get(field).copied()).collect();
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
    let medians: Vec<f64> = medians(points, series, field).into_values().collect();
    let Some([_, least, most]) = spread(&medians).filter(|_| medians.len() > 1) else {
        return Finding::missing(&format!("{series}: {field} at two payload sizes"), Vec::new());
    };
    let quotient = most / least;
    let evidence = format!("{series}: {field} from {least:.1} to {most:.1}, quotient {quotient:.3}");
    Finding::judged(quotient <= at_most, evidence)
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

fn logarithmic(points: &[Point], series: &str, field: &str, at_least: f64) -> Finding {
    let Some(fit) = log_fit(points, series, field) else { return Finding::missing(series, Vec::new()) };
    Finding::judged(fit.r_squared >= at_least, format!("{series}: {fit}"))
}

fn grows(points: &[Point], series: &str, field: &str, at_least: f64) -> Finding {
    let medians: Vec<f64> = medians(points, series, field).into_values().collect();
    let (Some(first), Some(last), true) = (medians.first(), medians.last(), medians.len() > 1) else {
        return Finding::missing(series, Vec::new());
    };
    let grows = medians.windows(2).all(|pair| pair[1] > pair[0]);
    let evidence =
        format!("{series}: {} to {}, {:.1} times", number(Some(*first)), number(Some(*last)), last / first);
    Finding::judged(grows && last / first >= at_least, evidence)
}

/// Quotients of the medians at each payload size that both series have.
fn of_medians(points: &[Point], one: &str, other: &str, field: &str) -> Vec<(u64, f64)> {
    let below = medians(points, other, field);
    let of = medians(points, one, field).into_iter();
    of.filter_map(|(payload, value)| Some((payload, value / below.get(&payload)?))).collect()
}

/// One finding for each payload size that both series have.
fn ratio(points: &[Point], one: &str, other: &str, field: &str, within: [f64; 2]) -> Vec<Finding> {
    let finding = |(payload, ratio): (u64, f64)| {
        let holds = (within[0]..=within[1]).contains(&ratio);
        Finding::judged(holds, format!("{one} / {other} at {payload} B: {ratio:.3}"))
    };
    of_medians(points, one, other, field).into_iter().map(finding).collect()
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
    let common: Vec<f64> =
        of_medians(points, one, other, field).into_iter().map(|(_, ratio)| ratio).collect();
    let Some([_, least, most]) = spread(&common) else {
        return vec![Finding::missing(&format!("{one} / {other}: {field} at one payload size"), Vec::new())];
    };
    let evidence =
        format!("{one} / {other}: {field} {least:.2} to {most:.2} times, at {} payload sizes", common.len());
    vec![Finding::judged(least > 1.0, evidence)]
}
