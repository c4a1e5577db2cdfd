//! Recorded and published numbers as one table in CSV (RFC 4180), a line for each number: what other programs plot.

use crate::Paper;
use crate::measured::Entry;
use crate::point::revision;

/// Titles of the columns.
const TITLES: [&str; 15] = [
    "source",
    "machine",
    "label",
    "nic",
    "gpu",
    "link",
    "revision",
    "series",
    "factors",
    "x",
    "number",
    "median",
    "least",
    "most",
    "repetitions",
];

/// All rows of `entries`, then the curves, distributions and stacks of `paper`.
pub fn csv(entries: &[&Entry], paper: &Paper) -> String {
    let mut out = line(&TITLES.map(str::to_owned));
    for entry in entries {
        for row in &entry.rows {
            let from = entry.of(row);
            let factors = row.at.iter().map(|(name, value)| format!("{name}={value}"));
            let factors = factors.collect::<Vec<_>>().join(" ");
            for (number, [median, least, most]) in &row.values {
                out += &line(&[
                    "measured".to_owned(),
                    entry.machine.clone(),
                    entry.label.to_string(),
                    from.nic.to_string(),
                    from.gpu.to_string(),
                    from.link.to_string(),
                    revision(from),
                    row.series.clone(),
                    factors.clone(),
                    row.x.to_string(),
                    number.clone(),
                    median.to_string(),
                    least.to_string(),
                    most.to_string(),
                    row.repetitions.to_string(),
                ]);
            }
        }
    }
    let mut published = |series: &str, x: String, number: &str, [median, least, most]: [f64; 3]| {
        let numbers = [median, least, most].map(|value| value.to_string());
        let start = ["published", "", "hardware", "hardware", "hardware", "hardware", ""].map(str::to_owned);
        let what = [series.to_owned(), String::new(), x, number.to_owned()];
        out += &line(&[&start[..], &what, &numbers, &[String::new()]].concat());
    };
    for curve in &paper.series {
        curve.points.iter().for_each(|[x, y, least, most]| {
            published(&curve.name, x.to_string(), &paper.paper.y, [*y, *least, *most]);
        });
    }
    for one in &paper.cdf {
        let name = format!("distribution at {}", one.at);
        one.points.iter().for_each(|[ms, share]| {
            published(&name, ms.to_string(), "share of runs that took at most x ms", [*share; 3]);
        });
    }
    for stack in &paper.stack {
        stack.values.iter().for_each(|(number, value)| {
            published(&format!("{}: {}", stack.ours, stack.label), String::new(), number, [*value; 3]);
        });
    }
    out
}

fn line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Measured;
    use crate::root;

    #[test]
    fn each_recorded_and_each_published_number_is_a_line_of_the_same_columns() {
        let folder = root().join("experiments/fig5");
        let entries = Measured::read(&folder.join("measured.json")).unwrap().entries;
        let paper = Paper::read(&folder).unwrap();
        let text = csv(&entries.iter().collect::<Vec<_>>(), &paper);
        let rows = entries.iter().flat_map(|entry| &entry.rows).map(|row| row.values.len()).sum::<usize>();
        let published = paper.series.iter().map(|curve| curve.points.len()).sum::<usize>();
        assert_eq!(text.lines().count(), 1 + rows + published);
        // `AMD EPYC, 2 cores` holds a comma.
        assert!(text.contains("measured,\"AMD EPYC, 2 cores\",emulated,"));
        assert!(text.contains("published,,hardware,hardware,hardware,hardware,,gpu-l40,,"));
    }

    #[test]
    fn a_cell_that_would_break_the_line_is_quoted() {
        assert_eq!(line(&["a".into(), "b,\"c\"\n".into()]), "a,\"b,\"\"c\"\"\n\"\n");
    }
}
