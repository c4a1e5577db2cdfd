//! Points as a table for people and as rows for programs.

use std::collections::{BTreeMap, BTreeSet};

use measure::Provenance;
use serde::{Deserialize, Serialize};

use crate::Spec;
use crate::point::{Point, needs_gpu};
use crate::quantiles::Quantiles;
pub use crate::statistics::number;
use crate::statistics::spread;
use crate::verdict::Judged;

/// Median, least and most of each number of the points that share series and factors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub series: String,
    pub x: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at: BTreeMap<String, u64>,
    /// Settings that every repetition says alike.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, u64>,
    pub repetitions: usize,
    /// Seconds that all of them took, with all that they started, where each says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_s: Option<f64>,
    /// Whether every one of them is whole.
    pub content_ok: bool,
    /// Median, least, most, by the names of the points' numbers.
    pub values: BTreeMap<String, [f64; 3]>,
    /// The distribution of a one-point row, if the experiment draws it: a recorded run keeps no other detail.
    #[serde(default, rename = "quantiles_ns", skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<Quantiles>,
    /// Where the row comes from, if it is of another revision or of other versions than its entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
}

/// What the points of one row share: series, other factors, x.
type Shared<'a> = (&'a str, &'a BTreeMap<String, u64>, u64);

/// All rows, in the order of series, other factors and x.
pub fn rows(points: &[Point]) -> Vec<Row> {
    let mut groups: BTreeMap<Shared<'_>, Vec<&Point>> = BTreeMap::new();
    for point in points {
        groups.entry((&point.series, &point.at, point.x)).or_default().push(point);
    }
    let row = |((series, at, x), own): (Shared<'_>, Vec<&Point>)| {
        let mut settings = own[0].settings.clone();
        settings.retain(|name, value| own.iter().all(|point| point.settings.get(name) == Some(value)));
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (name, value) in own.iter().flat_map(|point| &point.values) {
            values.entry(name.clone()).or_default().push(*value);
        }
        let whole = |(name, all): (String, Vec<f64>)| {
            let [median, least, most] = spread(&all)?;
            let within = own.iter().filter_map(|point| point.spread.get(&name));
            let wider = |[least, most]: [f64; 2], of: &[f64; 2]| [least.min(of[0]), most.max(of[1])];
            let [least, most] = within.fold([least, most], wider);
            Some((name, [median, least, most]))
        };
        Row {
            series: series.to_owned(),
            x,
            at: at.clone(),
            settings,
            repetitions: own.len(),
            took_s: own.iter().map(|point| point.took_s).sum(),
            content_ok: own.iter().all(|point| point.is_whole()),
            values: values.into_iter().filter_map(whole).collect(),
            quantiles: None,
            provenance: None,
        }
    };
    groups.into_iter().map(row).collect()
}

/// The recorded rows, with the distributions that the spec draws. A row of several points has none.
pub fn recorded(spec: &Spec, points: &[Point]) -> Vec<Row> {
    let mut rows = rows(points);
    let is_drawn = |row: &&mut Row| spec.cdfs.iter().any(|cdf| cdf.series.contains(&row.series));
    for row in rows.iter_mut().filter(is_drawn).filter(|row| row.repetitions == 1) {
        let own = |point: &&Point| (&point.series, &point.at, point.x) == (&row.series, &row.at, row.x);
        row.quantiles = points.iter().find(own).and_then(Quantiles::of);
    }
    rows
}

/// The table as cells, titles first: factors, settings, medians of the numbers that the spec declares, and
/// the range of its `range`.
pub fn cells(spec: &Spec, rows: &[Row]) -> Vec<Vec<String>> {
    let names = |of: fn(&Row) -> &BTreeMap<String, u64>| -> BTreeSet<&String> {
        rows.iter().flat_map(|row| of(row).keys()).collect()
    };
    let (factors, settings) = (names(|row| &row.at), names(|row| &row.settings));
    let mut lines = vec![vec!["series".to_owned()]];
    lines[0].extend(factors.iter().copied().chain(&spec.x).chain(settings.iter().copied()).cloned());
    lines[0].extend(spec.values.iter().map(|value| value.replace('_', " ")));
    lines[0].push(format!("range of {}", spec.range));
    let unit = |row: &Row| spec.series.get(&row.series).and_then(|own| own.unit.clone()).unwrap_or_default();
    let has_units = rows.iter().any(|row| !unit(row).is_empty());
    lines[0].extend(has_units.then(|| "unit".to_owned()));
    lines[0].push("content".to_owned());
    for row in rows {
        let said = |table: &BTreeMap<String, u64>, name: &String| {
            table.get(name).map_or("-".to_owned(), u64::to_string)
        };
        let mut line = vec![row.series.clone()];
        line.extend(factors.iter().map(|name| said(&row.at, name)));
        line.extend(spec.x.as_ref().map(|_| row.x.to_string()));
        line.extend(settings.iter().map(|name| said(&row.settings, name)));
        line.extend(spec.values.iter().map(|name| number(row.values.get(name).map(|[median, ..]| *median))));
        line.push(match row.values.get(&spec.range) {
            None => "-".to_owned(),
            Some([_, least, most]) if row.repetitions == 1 && least == most => "one run".to_owned(),
            Some([_, least, most]) => format!("{}–{}", number(Some(*least)), number(Some(*most))),
        });
        line.extend(has_units.then(|| unit(row)));
        line.push(if row.content_ok { "ok".to_owned() } else { "NOT OK".to_owned() });
        lines.push(line);
    }
    lines
}

/// The table, ready to print.
pub fn table(spec: &Spec, rows: &[Row]) -> String {
    let lines = cells(spec, rows);
    let count = lines[0].len();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let written = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("{cell:width$}"),
            last if last == count - 1 => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    lines.iter().map(written).collect::<Vec<_>>().join("\n")
}

/// The line of a series that has no row.
pub fn not_measured(series: &str) -> String {
    let why = if needs_gpu(series) { "it needs a GPU" } else { "no point of it is here" };
    format!("{series:14} not measured: {why}")
}

/// Verdicts, ready to print: one line each, what they rest on below.
pub fn verdicts(judged: &[Judged]) -> String {
    let mut lines = Vec::new();
    for one in judged {
        let (id, label, verdict) = (&one.id, one.label.to_string(), one.said());
        lines.push(format!("{id:22} {label:10} {verdict:24} {}", one.text));
        if !one.criterion.is_empty() {
            lines.push(format!("{:22} {}", "", one.criterion));
        }
        // Long evidence, one line a payload size, is in summary.json; what decides goes first.
        let mut shown: Vec<String> = one.evidence.iter().take(4).cloned().collect();
        if one.evidence.len() > shown.len() {
            shown.push(format!("… {} more in summary.json", one.evidence.len() - shown.len()));
        }
        lines.extend(shown.iter().map(|evidence| format!("{:22} {evidence}", "")));
    }
    lines.join("\n")
}

/// Lines on points measured twice because the first measurement was not whole: both, by the spec's `range`.
pub fn replaced(spec: &Spec, older: &[Point], points: &[Point]) -> Vec<String> {
    let of = |point: &Point| format!("{} {}", spec.range, number(point.values.get(&spec.range).copied()));
    let line = |old: &Point| {
        let new = points.iter().find(|point| point.key() == old.key());
        let now = new.map_or("it was not measured again".to_owned(), |new| format!("now {}", of(new)));
        let missing = old.missing.as_deref().unwrap_or("whole");
        format!("measured twice: {}: first {} ({missing}), {now}", old.key(), of(old))
    };
    older.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::example;

    fn spec() -> Spec {
        Spec::read(&crate::root().join("experiments/fig4")).unwrap()
    }

    #[test]
    fn a_small_number_keeps_its_digits_and_a_missing_one_is_no_zero() {
        for (value, text) in [
            (Some(0.003), "0.0030"),
            (Some(0.0234), "0.023"),
            (Some(23.456), "23.46"),
            (Some(0.0), "0.00"),
            (Some(123_456.7), "123457"),
            (Some(1_234_567.8), "1.235 M"),
            (None, "-"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_range_of_one_repetition_is_one_run() {
        let one = example("cpu-shim", 64).with("wire_gbps", 108.57);
        let other = Point { repetition: 1, ..one.clone() };
        let (alone, twice) = (rows(std::slice::from_ref(&one)), rows(&[one, other]));
        let table = |rows: &[Row]| super::table(&spec(), rows);
        assert!(table(&alone).contains("one run") && !table(&alone).contains("–"), "{}", table(&alone));
        assert!(table(&twice).contains("108.57–108.57"), "{}", table(&twice));
    }

    #[test]
    fn a_row_says_window_and_burst_where_its_points_do() {
        let old = |series: &str| Point { settings: BTreeMap::new(), ..example(series, 64) };
        let mut other = Point { repetition: 1, ..example("cpu-ibverbs", 64) };
        other.settings.insert("window".into(), 128);
        let rows = rows(&[example("cpu-ibverbs", 64), other, old("cpu-shim"), example("gpu-thread", 64)]);
        let found: Vec<_> =
            rows.iter().map(|row| (row.settings.get("window"), row.settings.get("batch"))).collect();
        assert_eq!(found, [(None, Some(&32)), (None, None), (Some(&64), Some(&32))]);
        let table = table(&spec(), &rows);
        let words = |at: usize| -> Vec<&str> { table.lines().nth(at).unwrap().split_whitespace().collect() };
        assert_eq!(&words(0)[..5], ["series", "list", "payload_bytes", "batch", "window"]);
        assert_eq!((&words(2)[3..5], &words(3)[3..5]), (&["-", "-"][..], &["32", "64"][..]));
    }

    #[test]
    fn one_bad_repetition_shows_in_its_row() {
        let points = [
            example("cpu-shim", 64).with("wire_gbps", 20.0),
            Point {
                repetition: 1,
                missing: Some("torn".into()),
                ..example("cpu-shim", 64).with("wire_gbps", 40.0)
            },
            example("cpu-shim", 128),
        ];
        let rows = rows(&points);
        assert_eq!(
            rows.iter().map(|row| (row.x, row.repetitions, row.content_ok)).collect::<Vec<_>>(),
            [(64, 2, false), (128, 1, true)]
        );
        assert_eq!(rows[0].values["wire_gbps"], [30.0, 20.0, 40.0]);
        let table = table(&spec(), &rows);
        assert!(table.contains("NOT OK") && table.contains("20.00–40.00"), "{table}");
    }

    #[test]
    fn a_row_spans_what_its_points_spanned() {
        let mut point = example("cpu-shim", 64).with("post_ns", 20.0);
        point.spread.insert("post_ns".into(), [18.0, 40.0]);
        let other = Point { repetition: 1, ..example("cpu-shim", 64).with("post_ns", 22.0) };
        assert_eq!(rows(&[point, other])[0].values["post_ns"], [21.0, 18.0, 40.0]);
    }

    #[test]
    fn a_point_that_was_measured_twice_is_shown_with_both_numbers() {
        let first =
            Point { missing: Some("1 lost".into()), ..example("cpu-shim", 64).with("wire_gbps", 3.0) };
        let lines = replaced(&spec(), &[first], &[example("cpu-shim", 64).with("wire_gbps", 21.0)]);
        let words =
            "cpu-shim at 64 B, list 1, repetition 0: first wire_gbps 3.00 (1 lost), now wire_gbps 21.00";
        assert_eq!(lines, [format!("measured twice: {words}")]);
    }
}
