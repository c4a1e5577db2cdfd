//! Figure 4's modelled line: what a 100 Gbit/s link would carry of requests at a GPU's measured post rate.
//!
//! Label `modelled`: the time of a post is measured (`experiments/bench-post-gpu`, no NIC), the rest is the
//! wire model. It assumes a NIC that keeps up with every doorbell and a link that is never idle while a
//! request is there. So it is an upper bound: a card's own limit on messages a second is not in it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use measure::{Label, Provenance};
use serde::{Deserialize, Serialize};

use crate::measured::Measured;
use crate::spec::Extent;
use crate::table::Row;
use crate::wire_model::WireModel;

/// What our generator sends: WRITEs without immediate, path MTU 4096, over the paper's link.
const LINK: WireModel = WireModel { immediate: false, ..WireModel::PAPER };
/// Payload sizes that the numbers are written down for.
const SIZES: std::ops::RangeInclusive<u32> = 6..=20;

/// Which posts are drawn: row of `bench-post-gpu`, whose time in it, and the label beside the line.
const LINES: [(&str, &str, &str); 4] = [
    ("exclusive/1-thread/per-1/one/first-lap/host", "early", "GPU thread, early"),
    ("exclusive/1-thread/per-16/list/first-lap/host", "early", "GPU thread, 16 a call, early"),
    ("exclusive/1-warp/per-32/one/first-lap/host", "early", "GPU warp, 32 a call, early"),
    ("exclusive/1-thread/per-1/one/first-lap/host/original-volatile", "theirs", "GPU, original's style"),
];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Modelled {
    pub name: &'static str,
    /// Always `modelled`.
    pub label: Label,
    /// Row whose posts it is made of.
    pub row: &'static str,
    /// `early`, or `theirs` for the other side of the row.
    pub side: &'static str,
    /// ns a request, measured.
    pub post_ns: f64,
    pub gpu_device: String,
    pub line_gbps: f64,
    /// From this payload size on, in bytes, posting is fast enough to fill the link; none up to 1 MiB: null.
    pub fills_from_bytes: Option<u64>,
    /// Payload size in bytes and Gbit/s with headers, as a port counts them.
    pub points: Vec<(u64, f64)>,
}

impl Modelled {
    fn new(line: (&'static str, &'static str, &'static str), post_ns: f64, gpu_device: &str) -> Modelled {
        let (row, side, name) = line;
        let point = |payload| (payload, LINK.throughput_gbps(payload, post_ns));
        Modelled {
            name,
            label: Label::Modelled,
            row,
            side,
            post_ns,
            gpu_device: gpu_device.to_owned(),
            line_gbps: LINK.line_gbps,
            fills_from_bytes: fills_from(post_ns),
            points: SIZES.map(|power| point(1 << power)).collect(),
        }
    }

    /// Gbit/s with headers at a payload size.
    pub fn throughput_gbps(&self, payload_bytes: f64) -> f64 {
        LINK.throughput_gbps(payload_bytes as u64, self.post_ns)
    }

    /// What such lines stand on, below a plot.
    pub fn caption(&self) -> String {
        format!(
            "modelled — posts in the `early` order and, where it says so, one call for 16 or 32 requests, measured on {} without a NIC; \
             measured lines use `strict`; link of {} Gbit/s without a limit of the NIC's own",
            self.gpu_device, self.line_gbps
        )
    }

    pub fn text(&self) -> String {
        let fills = match self.fills_from_bytes {
            Some(bytes) => format!("fills {} Gbit/s from {bytes} B on", self.line_gbps),
            None => format!("does not fill {} Gbit/s up to 1 MiB", self.line_gbps),
        };
        format!(
            "modelled, not measured in this run: {} ({:.1} ns a post on {} without a NIC): {fills}; label: {}",
            self.name, self.post_ns, self.gpu_device, self.label
        )
    }
}

/// The smallest payload from which on posts every `post_ns` fill the link, whatever the size.
fn fills_from(post_ns: f64) -> Option<u64> {
    let fills = |payload: u64| LINK.throughput_gbps(payload, post_ns) >= LINK.capacity_gbps(payload);
    // A longer message takes the link longer, so that it fills it too: halve between the two.
    let (mut too_short, mut long) = (0, 1 << SIZES.end());
    if !fills(long) {
        return None;
    }
    while long - too_short > 1 {
        let middle = too_short.midpoint(long);
        if fills(middle) {
            long = middle;
        } else {
            too_short = middle;
        }
    }
    Some(long)
}

/// The lines of the posts that were recorded, else of those of the last run here, as far as a file has them.
pub fn known(recorded: &Path, last: &Path) -> Result<Vec<Modelled>> {
    let measured = Measured::read(recorded)?;
    // The newest that is no quick one, else the newest.
    let whole = measured.entries.iter().rfind(|entry| entry.extent != Extent::Quick);
    let reading = |file: &Path| format!("reading {}", file.display());
    if let Some(entry) = whole.or(measured.entries.last()) {
        return lines(&entry.provenance.gpu_device, &entry.rows).with_context(|| reading(recorded));
    }
    let Ok(text) = std::fs::read(last) else { return Ok(Vec::new()) };
    let summary: PostSummary = serde_json::from_slice(&text).with_context(|| reading(last))?;
    lines(&summary.provenance.gpu_device, &summary.rows).with_context(|| reading(last))
}

/// What `summary.json` of a run says of its posts.
#[derive(Deserialize)]
struct PostSummary {
    provenance: Provenance,
    rows: Vec<Row>,
}

/// The lines whose posts the rows have: a run may lack rows, or the side. Error: a time that is not above 0.
fn lines(gpu_device: &str, rows: &[Row]) -> Result<Vec<Modelled>> {
    let mut lines = Vec::new();
    for line @ (row, side, _) in LINES {
        let name = format!("{side}_ns");
        let found = rows.iter().find(|found| found.series == row);
        let Some([post_ns, ..]) = found.and_then(|found| found.values.get(&name)) else { continue };
        ensure!(post_ns.is_finite() && *post_ns > 0.0, "{row}: its `{name}` is no time");
        lines.push(Modelled::new(line, *post_ns, gpu_device));
    }
    Ok(lines)
}

#[cfg(test)]
pub use tests::like_an_h200 as example;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::measured::Entry;
    use crate::point::example;

    /// Something like what an H200 gives.
    pub fn like_an_h200() -> Vec<Modelled> {
        let lines = LINES.iter().zip([700.0, 70.0, 25.0, 2600.0]);
        lines.map(|(line, ns)| Modelled::new(*line, ns, "NVIDIA H200, sm_90")).collect()
    }

    /// Rows: ns a post, payload, and Gbit/s worked out by hand: 78 bytes of headers and RETH, 62 for each
    /// further packet; the link carries 20 bytes a packet beside.
    #[test]
    fn slow_posts_bound_small_messages_and_the_link_large_ones() {
        for (post_ns, payload, gbps) in [
            (1000.0, 64, 142.0 * 8.0 / 1000.0),
            (100.0, 64, 142.0 * 8.0 / 100.0),
            (1.0, 64, 100.0 * 142.0 / 162.0),
            (1000.0, 8192, (8192.0 + 78.0 + 62.0) * 8.0 / 1000.0),
            (10.0, 8192, 100.0 * 8332.0 / 8372.0),
        ] {
            let found = Modelled::new(LINES[0], post_ns, "").throughput_gbps(f64::from(payload));
            assert!((found - gbps).abs() < 1e-9, "{post_ns} ns, {payload} B: {found}, not {gbps}");
        }
    }

    #[test]
    fn the_payload_from_which_the_link_is_full_is_where_both_bounds_meet() {
        // One packet: payload + 78 + 20 bytes take post_ns at 12.5 bytes a ns.
        for (post_ns, from) in [(100.0, Some(1152)), (50.0, Some(527)), (5.0, Some(1)), (1e6, None)] {
            assert_eq!(fills_from(post_ns), from, "{post_ns} ns");
        }
        let model = Modelled::new(LINES[0], 700.0, "NVIDIA H200, sm_90");
        let from = model.fills_from_bytes.unwrap();
        let is_full = |payload| LINK.throughput_gbps(payload, 700.0) >= LINK.capacity_gbps(payload);
        assert!(is_full(from) && !is_full(from - 1));
        assert_eq!((model.label, model.points.len(), model.points[0].0), (Label::Modelled, 15, 64));
        assert!(
            model
                .text()
                .starts_with("modelled, not measured in this run: GPU thread, early (700.0 ns a post on")
                && model.text().ends_with("label: modelled"),
            "{}",
            model.text()
        );
    }

    fn entry(extent: Extent, ns: f64) -> Entry {
        let row = |series: &str, values: &[(&str, f64)]| {
            let point = values.iter().fold(example("a", 1), |point, (name, ns)| point.with(name, *ns));
            Row { series: series.to_owned(), ..crate::table::rows(&[point]).remove(0) }
        };
        let rows = vec![
            row(LINES[0].0, &[("early_ns", ns), ("strict_ns", 2.0 * ns)]),
            row(LINES[3].0, &[("theirs_ns", 4.0 * ns), ("early_ns", ns)]),
            row(LINES[2].0, &[]),
        ];
        let mut provenance = example("a", 1).provenance;
        provenance.gpu_device = "NVIDIA H200, sm_90".into();
        let (verdicts, ratios, samples) = Default::default();
        Entry {
            machine: "m".to_owned(),
            label: Label::Hardware,
            extent,
            provenance,
            rows,
            verdicts,
            ratios,
            samples,
        }
    }

    fn file(name: &str, text: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("experiment-modelled-{}-{name}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn lines_are_made_of_the_rows_that_were_measured_and_a_quick_run_takes_no_whole_ones_place() {
        let nothing = Path::new("/no/such/file.json");
        let of = |entries: Vec<Entry>| {
            let file = file("recorded", &serde_json::to_string(&Measured { entries }).unwrap());
            let lines = known(&file, nothing).unwrap();
            std::fs::remove_file(file).unwrap();
            lines
        };
        let found =
            of(vec![entry(Extent::Full, 600.0), entry(Extent::Full, 700.0), entry(Extent::Quick, 1.0)]);
        let times: Vec<(&str, f64)> = found.iter().map(|line| (line.name, line.post_ns)).collect();
        assert_eq!(times, [("GPU thread, early", 700.0), ("GPU, original's style", 2800.0)]);
        assert_eq!(of(vec![entry(Extent::Quick, 3.0)])[0].post_ns, 3.0);
        assert_eq!(of(vec![]), []);
        // A run that was not recorded has the same rows and provenance in its summary.json.
        let run = file("summary", &serde_json::to_string(&entry(Extent::Full, 600.0)).unwrap());
        assert_eq!(known(nothing, &run).unwrap()[0].post_ns, 600.0);
        std::fs::remove_file(run).unwrap();
    }

    #[test]
    fn no_file_is_no_line_and_a_damaged_one_is_an_error() {
        let nothing = Path::new("/no/such/file.json");
        assert_eq!(known(nothing, nothing).unwrap(), []);
        let entries = vec![entry(Extent::Full, 0.0)];
        let no_time = serde_json::to_string(&Measured { entries }).unwrap();
        for (text, words) in [("{", "EOF"), ("{}", "entries"), (&no_time, "its `early_ns` is no time")] {
            let file = file("damaged", text);
            let error = format!("{:#}", known(&file, nothing).unwrap_err());
            assert!(error.contains(words) && error.contains("experiment-modelled"), "{error}");
            std::fs::remove_file(file).unwrap();
        }
    }
}
