//! Points as a table for people and as a summary for programs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::point::Point;
use super::point::needs_gpu;
use crate::statistics::by_payload;
use crate::verdict::Judged;

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
    /// Messages outstanding at most, and posted and timed together; `None` where not every repetition says the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// See `window`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
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
        window: common(own.iter().map(|point| point.window)),
        batch: common(own.iter().map(|point| point.batch)),
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

/// What all say.
fn common(mut values: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    let first = values.next()??;
    values.all(|value| value == Some(first)).then_some(first)
}

/// The table, ready to print.
pub fn table(rows: &[Row]) -> String {
    let mut lines = vec![format!(
        "{:14} {:>4} {:>9} {:>6} {:>5} {:>10} {:>10} {:>12} {:>9} {:>15}  content",
        "series", "list", "payload B", "window", "burst", "Gbit/s", "wire", "messages/s", "post ns", "range"
    )];
    for row in rows {
        let said = |count: Option<u32>| count.map_or("-".to_owned(), |count| count.to_string());
        let median = |field: &str| row.values.get(field).map_or(f64::NAN, |[median, ..]| *median);
        let [_, least, most] = row.values.get("post_ns").copied().unwrap_or([f64::NAN; 3]);
        lines.push(format!(
            "{:14} {:>4} {:>9} {:>6} {:>5} {:>10} {:>10} {:>12} {:>9.1} {:>15}  {}",
            row.series,
            row.list,
            row.payload_bytes,
            said(row.window),
            said(row.batch),
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
    use crate::point::example;

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
    fn a_row_says_window_and_burst_where_its_points_do() {
        let old = |series: &str| Point { window: None, batch: None, ..example(series, 64) };
        let other = Point { window: Some(128), repetition: 1, ..example("cpu-ibverbs", 64) };
        let rows = rows(&[example("cpu-ibverbs", 64), other, old("cpu-shim"), example("gpu-thread", 64)]);
        let found: Vec<_> = rows.iter().map(|row| (row.window, row.batch)).collect();
        assert_eq!(found, [(None, Some(32)), (None, None), (Some(64), Some(32))]);
        let table = table(&rows);
        let words = |at: usize| -> Vec<&str> { table.lines().nth(at).unwrap().split_whitespace().collect() };
        assert_eq!((words(0)[3], words(0)[4]), ("B", "window"));
        assert_eq!((&words(2)[3..5], &words(3)[3..5]), (&["-", "-"][..], &["64", "32"][..]));
        // A row of an earlier revision has neither, and is read.
        let text = serde_json::to_string(&rows[1]).unwrap();
        assert!(!text.contains("window") && serde_json::from_str::<Row>(&text).unwrap().batch.is_none());
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
        assert_eq!((rows[0].window, rows[0].batch), (Some(64), Some(32)));
        let table = table(&rows);
        assert!(table.contains("NOT OK") && table.contains("20.0–40.0"), "{table}");
    }
}
