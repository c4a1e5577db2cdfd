//! Recorded and published numbers as one CSV table (RFC 4180), a line a number, for other plotting programs.

use crate::Paper;
use crate::measured::Entry;
use crate::point::revision;

/// Titles of the columns.
const TITLES: &str =
    "source,machine,label,nic,gpu,link,revision,series,factors,x,number,median,least,most,repetitions\n";

/// All rows of `entries`, then the curves, distributions and stacks of `paper`.
pub fn csv(entries: &[&Entry], paper: &Paper) -> String {
    let mut out = TITLES.to_owned();
    for (entry, row) in entries.iter().flat_map(|entry| entry.rows.iter().map(move |row| (entry, row))) {
        let (from, machine, series) = (entry.of(row), cell(&entry.machine), cell(&row.series));
        let origin = format!("{},{},{},{},{}", entry.label, from.nic, from.gpu, from.link, revision(from));
        let factors: Vec<String> = row.at.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let what = format!("{series},{},{}", cell(&factors.join(" ")), row.x);
        for (number, [median, least, most]) in &row.values {
            let (number, count) = (cell(number), row.repetitions);
            out += &format!("measured,{machine},{origin},{what},{number},{median},{least},{most},{count}\n");
        }
    }
    let mut published =
        |series: &str, x: &dyn std::fmt::Display, number: &str, [y, least, most]: [f64; 3]| {
            let (series, number) = (cell(series), cell(number));
            let origin = "published,,hardware,hardware,hardware,hardware,";
            out += &format!("{origin},{series},,{x},{number},{y},{least},{most},\n");
        };
    for curve in &paper.series {
        let y = &paper.paper.y;
        curve.points.iter().for_each(|[x, rest @ ..]| published(&curve.name, x, y, *rest));
    }
    for one in &paper.cdf {
        let (name, y) = (format!("distribution at {}", one.at), "share of runs that took at most x ms");
        one.points.iter().for_each(|[ms, share]| published(&name, ms, y, [*share; 3]));
    }
    for stack in &paper.stack {
        let name = format!("{}: {}", stack.ours, stack.label);
        stack.values.iter().for_each(|(number, value)| published(&name, &"", number, [*value; 3]));
    }
    out
}

/// Quoted, where it would break the line.
fn cell(words: &str) -> String {
    match words.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", words.replace('"', "\"\"")),
        false => words.to_owned(),
    }
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
        assert_eq!([cell("a"), cell("b,\"c\"\n")], ["a", "\"b,\"\"c\"\"\n\""]);
    }
}
