//! Points as a table for people and as a summary for programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::point::Point;
use super::session::needs_gpu;
use crate::report::compare::Judged;
use crate::report::statistics::by_payload;

/// Median, least and most of each number of the points that share series, list and payload size.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Who posted.
    pub series: String,
    /// Requests handed over in one call.
    pub list: u32,
    /// Message size.
    pub payload_bytes: u64,
    /// Number of repetitions.
    pub repetitions: usize,
    /// Whether every one of them arrived whole.
    pub content_ok: bool,
    /// Median, least, most, by the names of the points' fields.
    pub values: BTreeMap<String, [f64; 3]>,
}

const FIELDS: [&str; 5] = ["payload_gbps", "wire_gbps", "msgs_per_s", "post_ns", "post_mean_ns"];

/// All rows, in the order of series, list and payload size.
pub fn rows(points: &[Point]) -> Vec<Row> {
    let mut groups: BTreeMap<(&str, u32, u64), Vec<&Point>> = BTreeMap::new();
    for point in points {
        groups.entry((&point.series, point.list, point.payload_bytes)).or_default().push(point);
    }
    let row = |((series, list, payload_bytes), own): ((&str, u32, u64), Vec<&Point>)| Row {
        series: series.to_owned(),
        list,
        payload_bytes,
        repetitions: own.len(),
        content_ok: own.iter().all(|point| point.is_whole()),
        values: FIELDS
            .iter()
            .filter_map(|field| {
                Some(((*field).to_owned(), *by_payload(points, series, list, field).get(&payload_bytes)?))
            })
            .collect(),
    };
    groups.into_iter().map(row).collect()
}

/// The table, ready to print.
pub fn table(rows: &[Row]) -> String {
    let mut lines = vec![format!(
        "{:14} {:>4} {:>9} {:>10} {:>10} {:>12} {:>9} {:>15}  content",
        "series", "list", "payload B", "Gbit/s", "wire", "messages/s", "post ns", "range"
    )];
    for row in rows {
        let median = |field: &str| row.values.get(field).map_or(f64::NAN, |[median, ..]| *median);
        let [_, least, most] = row.values.get("post_ns").copied().unwrap_or([f64::NAN; 3]);
        lines.push(format!(
            "{:14} {:>4} {:>9} {:>10} {:>10} {:>12} {:>9.1} {:>15}  {}",
            row.series,
            row.list,
            row.payload_bytes,
            significant(median("payload_gbps"), 2),
            significant(median("wire_gbps"), 2),
            significant(median("msgs_per_s"), 0),
            median("post_ns"),
            format!("{least:.1}–{most:.1}"),
            if row.content_ok { "ok" } else { "NOT OK" },
        ));
    }
    lines.join("\n")
}

/// The line of a series that has no row.
pub fn not_measured(series: &str) -> String {
    let why = if needs_gpu(series) { "it needs a GPU" } else { "no point of it is here" };
    format!("{series:14} not measured: {why}")
}

/// With so many decimals, or as many more as a small number needs to keep two digits.
fn significant(value: f64, decimals: usize) -> String {
    let needed = if value.is_normal() { 1 - value.abs().log10().floor() as i32 } else { 0 };
    let decimals = decimals.max(usize::try_from(needed).unwrap_or(0).min(9));
    format!("{value:.decimals$}")
}

/// Verdicts, ready to print: one line each, what they rest on below.
pub fn verdicts(judged: &[Judged]) -> String {
    let mut lines = Vec::new();
    for one in judged {
        lines.push(format!(
            "{:22} {:10} {:24} {}",
            one.id,
            one.label.to_string(),
            one.verdict.to_string(),
            one.text
        ));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::point::example;

    #[test]
    fn a_small_number_keeps_its_digits() {
        for (value, decimals, text) in [
            (0.003, 2, "0.0030"),
            (0.0234, 2, "0.023"),
            (0.234, 2, "0.23"),
            (23.456, 2, "23.46"),
            (0.0, 2, "0.00"),
            (1_234_567.8, 0, "1234568"),
            (1.25, 0, "1.2"),
            (f64::NAN, 2, "NaN"),
        ] {
            assert_eq!(significant(value, decimals), text);
        }
        let points = [Point { payload_gbps: 0.003, ..example("cpu-shim", 64) }];
        assert!(table(&rows(&points)).contains(" 0.0030 "));
    }

    #[test]
    fn one_bad_repetition_shows_in_its_row() {
        let points = [
            Point { post_ns: 20.0, ..example("cpu-shim", 64) },
            Point { post_ns: 40.0, repetition: 1, content_ok: false, ..example("cpu-shim", 64) },
            example("cpu-shim", 128),
        ];
        let rows = rows(&points);
        assert_eq!(
            rows.iter().map(|row| (row.payload_bytes, row.repetitions, row.content_ok)).collect::<Vec<_>>(),
            [(64, 2, false), (128, 1, true)]
        );
        assert_eq!(rows[0].values["post_ns"], [30.0, 20.0, 40.0]);
        let table = table(&rows);
        assert!(table.contains("NOT OK") && table.contains("20.0–40.0"), "{table}");
    }
}
