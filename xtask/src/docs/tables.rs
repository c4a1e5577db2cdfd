//! Tables of our documents made from `experiments/*/measured.json`, between a line `<!-- table: NAME -->` and
//! the next `<!-- end of table -->`. The numbers to list, and what x is, may follow an experiment's name:
//! `<!-- table: fig1 by instances: runs_per_s input_gbps -->`. `times PAGE` has a tutorial's times. Tables of
//! a laboratory note are of `docs/notes/laboratory.json`: `<!-- table: laboratory PAGE/NAME -->`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use experiment::Spec;
use experiment::measured::{Entry, Measured};
use experiment::table::Row;
use experiment::verdict::{Judged, Verdict, judge};
use measure::Provenance;
use serde::Deserialize;
use serde_json::Value;

use super::tutorial;
use crate::compat::results;
use crate::figure::serving;
use crate::tidy::artifact;
use crate::workspace::Tree;

const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end of table -->";

/// The text with its tables made anew.
pub fn renewed(tree: &Tree, text: &str) -> Result<String> {
    let (mut out, mut rest) = (String::new(), text);
    // A code span may quote the marker: only a line that begins with it is one.
    while let Some(at) = rest.find(&format!("\n{BEGIN}")) {
        let (before, marker) = rest.split_at(at + 1);
        let (line, behind) = marker.split_once('\n').context("a table's marker ends the file")?;
        let name = line[BEGIN.len()..].trim_end().trim_end_matches("-->").trim();
        let (_, after) =
            behind.split_once(END).with_context(|| format!("table {name}: `{END}` is missing"))?;
        out += &format!("{before}{line}\n{}\n{END}", table(tree, name)?);
        rest = after;
    }
    Ok(out + rest)
}

fn table(tree: &Tree, name: &str) -> Result<String> {
    if name == "works-with" {
        return results::table(tree);
    }
    if name == "claims" {
        return Ok(markdown(&artifact::rows(tree)));
    }
    if let Some(page) = name.strip_prefix("times ") {
        return Ok(markdown(&tutorial::rows(tree, page)?));
    }
    if let Some(place) = name.strip_prefix("laboratory ") {
        return laboratory(tree, place);
    }
    let (name, numbers) = name.split_once(": ").unwrap_or((name, ""));
    let (name, x) = name.split_once(" by ").map_or((name, None), |(name, x)| (name, Some(x)));
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    let experiment = name.trim_end_matches("-threads");
    let read = |file: &str| {
        let path = format!("experiments/{experiment}/{file}");
        tree.get(&path).map(|text| (path.clone(), text)).with_context(|| format!("{path} is missing"))
    };
    let made: &dyn Fn(&[Entry]) -> Vec<Vec<String>> = match name {
        _ if !numbers.is_empty() => &|entries| listed(entries, x, &numbers),
        "bench-post-gpu" => &posts,
        "bench-nic" | "bench-gpu" => {
            let (path, text) = read("spec.toml")?;
            let spec = Spec::parse(name, text).context(path)?;
            &move |entries| aims(&spec, entries)
        }
        "fig4" => &rates,
        "fig6" => &services,
        "fig7-threads" => &by_thread,
        name => bail!("no table is called {name}, and no numbers stand behind it"),
    };
    let (path, text) = read("measured.json")?;
    let measured: Measured = serde_json::from_str(text).with_context(|| path.clone())?;
    let is_number = |name: &&str| {
        let mut rows = measured.entries.iter().flat_map(|entry| &entry.rows);
        *name == "revision" || rows.any(|row| row.values.contains_key(*name))
    };
    if let Some(unknown) = numbers.iter().find(|name| !is_number(name)) {
        bail!("{path}: no row has the number `{unknown}`, which table {name} lists");
    }
    let rows = made(&measured.entries);
    ensure!(rows.len() > 1, "{path}: nothing for table {name} was found in it");
    Ok(markdown(&rows))
}

/// A table of a laboratory note, `PAGE/NAME`, and where it was measured.
fn laboratory(tree: &Tree, place: &str) -> Result<String> {
    const PATH: &str = "docs/notes/laboratory.json";
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        on: String,
        revision: Option<String>,
        day: Option<String>,
        titles: Vec<String>,
        rows: Vec<Vec<String>>,
    }
    let all: Value = serde_json::from_str(tree.get(PATH).unwrap_or("{}")).context(PATH)?;
    let found = all.pointer(&format!("/{place}"));
    let found = found.with_context(|| format!("{PATH} has no table {place}"))?;
    let table = Table::deserialize(found).with_context(|| format!("{PATH}: {place}"))?;
    let width = table.titles.len();
    if let Some(row) = table.rows.iter().find(|row| row.len() != width) {
        bail!("{PATH}: {place}: {} cells below {width} titles: {row:?}", row.len());
    }
    let revision = table.revision.map(|revision| format!("revision `{revision}`"));
    let day = table.day.map(|day| format!("noted {day}"));
    let on = [Some(table.on), revision, day].into_iter().flatten().collect::<Vec<_>>().join(", ");
    Ok(format!("{}\n\nMeasured on {on}.", markdown(&[vec![table.titles], table.rows].concat())))
}

/// Rows of cells, titles first, as a document has them.
fn markdown(rows: &[Vec<String>]) -> String {
    let mut lines: Vec<String> = rows.iter().map(|cells| format!("| {} |", cells.join(" | "))).collect();
    lines.insert(1, format!("|{}", "---|".repeat(rows[0].len())));
    lines.join("\n")
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

/// Median of a number, with three significant digits: 1225, 68.5, 1.30, 0.041.
fn median(row: &Row, name: &str) -> Option<String> {
    let [number, ..] = row.values.get(name)?;
    let digits = match number.abs() {
        x if x >= 100.0 || x == 0.0 => 0,
        x => (2.0 - x.log10().floor()).clamp(0.0, 6.0) as usize,
    };
    Some(format!("{number:.digits$}"))
}

const NONE: &str = "—";

/// Posts beside gpunetio's put, its put with a collapsed CQ, and its pieces, where posters look for room and
/// the ring lies in host memory.
fn posts(entries: &[Entry]) -> Vec<Vec<String>> {
    let title = ["early, ns", "strict, ns", "gpunetio, ns", "early ÷ gpunetio", "required", "verdict"];
    let name = entries.last().map_or_else(|| "row".to_owned(), |entry| at("row".to_owned(), entry));
    let mut table = vec![[vec![name], row(title)].concat()];
    let rows = entries.last().into_iter().flat_map(|entry| &entry.rows);
    let is_shown = |series: &str| {
        let ends = ["/host", "/host/collapsed", "/host/pieces"];
        ends.iter().any(|end| series.ends_with(end)) && !series.contains("/unchecked/")
    };
    for measured in rows.filter(|row| is_shown(&row.series)) {
        let cell = |name| median(measured, name).unwrap_or_else(|| NONE.to_owned());
        let bound = |sign: &str, name| Some(format!("{sign} {}", median(measured, name)?));
        let required = bound("≤", "at_most").or_else(|| bound("≥", "at_least"));
        let number = |name| measured.values.get(name).map(|[median, ..]| *median);
        let verdict = match (number("ratio_early"), number("at_most"), number("at_least")) {
            (None, ..) | (_, None, None) => NONE,
            (Some(ratio), most, least) => {
                let is_met =
                    most.is_none_or(|most| ratio <= most) && least.is_none_or(|least| ratio >= least);
                if is_met { "met" } else { "missed" }
            }
        };
        let numbers = ["early_ns", "strict_ns", "theirs_ns", "ratio_early"].map(cell);
        let required = required.unwrap_or_else(|| NONE.to_owned());
        let name = format!("`{}`", measured.series);
        table.push([vec![name], numbers.into(), vec![required, verdict.to_owned()]].concat());
    }
    table
}

fn machine(entry: &Entry) -> String {
    let rate = entry.provenance.nic_options.get("rate_gbps").and_then(serde_json::Value::as_f64);
    let rate = rate.map_or_else(String::new, |rate| format!(", shaped to {rate:.0} Gbit/s"));
    format!("{}{rate}", entry.machine)
}

fn revision(provenance: &Provenance) -> String {
    format!("`{}`", provenance.revision.commit.get(..10).unwrap_or("unknown"))
}

/// A name in a table that has no column of revisions, with those of the entry's rows.
fn at(name: String, entry: &Entry) -> String {
    let revisions: BTreeSet<String> = entry.sources().map(revision).collect();
    [name].into_iter().chain(revisions).collect::<Vec<_>>().join(", ")
}

/// Aims and reported numbers: what the present spec asks, and each machine's median and verdict. A recorded
/// verdict with the same aim counts, as it knows every repetition; else the entry's rows are judged anew.
fn aims(spec: &Spec, entries: &[Entry]) -> Vec<Vec<String>> {
    let mut table = vec![
        [row(["what", "asked"]), entries.iter().map(|entry| at(machine(entry), entry)).collect()].concat(),
    ];
    for claim in &spec.claims {
        let judged = entries.iter().map(|entry| {
            let anew = judge(claim, &entry.points(&spec.name));
            let disturbed = entry.verdicts.iter().any(|one| one.disturbed);
            let recorded = entry.verdicts.iter().find(|one| one.is_by_rule_of(&anew)).cloned();
            recorded.unwrap_or(Judged { aim: true, disturbed, ..anew })
        });
        let judged: Vec<Judged> = judged.collect();
        let Some(first) = judged.first() else { break };
        let asked = first.criterion.split_once(" is ").map_or(NONE, |(_, bound)| bound);
        let asked = asked.split_once(", where ").map_or(asked, |(bound, _)| bound);
        table.push([vec![claim.text.clone(), asked.to_owned()], judged.iter().map(found).collect()].concat());
    }
    table
}

/// The number that a verdict rests on, and the verdict.
fn found(judged: &Judged) -> String {
    let value = judged.evidence.first().and_then(|line| line.rsplit_once(": ")).map(|(_, value)| value);
    match (value, &judged.verdict) {
        (None, _) => judged.said(),
        (Some(value), Verdict::Reported) => value.to_owned(),
        (Some(value), _) => format!("{value}, {}", judged.said()),
    }
}

/// Service times of figure 6: a line for each series with the numbers of both passes.
fn services(entries: &[Entry]) -> Vec<Vec<String>> {
    const NUMBERS: [&str; 7] =
        ["one_us", "half_us", "most_us", "full_us", "full_attended_us", "full_per_s", "one_flag_us"];
    let numbers = |row: &Row| Some(NUMBERS.map(|name| median(row, name)));
    let title = [row(["on", "series"]), row(NUMBERS)].concat();
    [vec![title], by_series(entries, on, numbers)].concat()
}

/// A line for each series of an entry, with the last number of each column that its rows have. `numbers`:
/// those of a row, unless the row does not count.
fn by_series<const N: usize>(
    entries: &[Entry],
    name: fn(&Entry) -> String,
    numbers: impl Fn(&Row) -> Option<[Option<String>; N]>,
) -> Vec<Vec<String>> {
    let mut table = Vec::new();
    for entry in entries {
        let mut lines: BTreeMap<&str, [Option<String>; N]> = BTreeMap::new();
        for (row, numbers) in entry.rows.iter().filter_map(|row| Some((row, numbers(row)?))) {
            let cells = lines.entry(&row.series).or_insert_with(|| [const { None }; N]);
            cells.iter_mut().zip(numbers).for_each(|(cell, number)| *cell = number.or(cell.take()));
        }
        let of = at(name(entry), entry);
        table.extend(lines.into_iter().map(|(series, cells)| {
            let cells = cells.map(|cell| cell.unwrap_or_else(|| NONE.to_owned()));
            [vec![of.clone(), format!("`{series}`")], cells.into()].concat()
        }));
    }
    table
}

/// Cores of each of a server's threads. A run from before they were kept has a line that says so.
fn by_thread(entries: &[Entry]) -> Vec<Vec<String>> {
    let mut table = vec![row(["on", "series", "thread", "of", "cores", "range"])];
    for entry in entries {
        let lines = serving::threads::table(&entry.rows).into_iter().skip(1);
        let count = table.len();
        table.extend(lines.map(|line| [vec![at(on(entry), entry)], line].concat()));
        if table.len() == count {
            let of = at(on(entry), entry);
            table.push(row([&of, "not kept by the recorded run", NONE, NONE, NONE, NONE]));
        }
    }
    table
}

/// The GPU of an entry, or its machine without one.
fn on(entry: &Entry) -> String {
    let gpu = &entry.provenance.gpu_device;
    if gpu.is_empty() { machine(entry) } else { gpu.clone() }
}

/// A line for each row of an entry: GPU, or machine without one; series, x if it has a name, medians. Parts
/// of an entry may be of several revisions: `revision` is a row's.
fn listed(entries: &[Entry], x: Option<&str>, numbers: &[&str]) -> Vec<Vec<String>> {
    let title = ["on", "series"].into_iter().chain(x).chain(numbers.iter().copied());
    let mut table = vec![title.map(str::to_owned).collect()];
    for (entry, measured) in entries.iter().flat_map(|entry| entry.rows.iter().map(move |row| (entry, row))) {
        let names = [on(entry), format!("`{}`", measured.series)].into_iter();
        let number = |name: &&str| match *name {
            "revision" => revision(entry.of(measured)),
            name => median(measured, name).unwrap_or_else(|| NONE.to_owned()),
        };
        let numbers = numbers.iter().map(number);
        table.push(names.chain(x.map(|_| measured.x.to_string())).chain(numbers).collect());
    }
    table
}

/// Medians of figure 4 at five payloads, in Gbit/s of wire bytes.
fn rates(entries: &[Entry]) -> Vec<Vec<String>> {
    const PAYLOADS: [(u64, &str); 5] =
        [(64, "64 B"), (1024, "1 KiB"), (16384, "16 KiB"), (131_072, "128 KiB"), (1 << 20, "1 MiB")];
    let numbers = |row: &Row| {
        // One request a call, as the paper's posters; longer lists are rows of their own.
        let counts =
            row.at.values().all(|value| *value == 1) && PAYLOADS.iter().any(|(bytes, _)| row.x == *bytes);
        counts.then(|| PAYLOADS.map(|(bytes, _)| median(row, "wire_gbps").filter(|_| row.x == bytes)))
    };
    let title = [row(["machine", "poster"]), row(PAYLOADS.map(|(_, name)| name))].concat();
    [vec![title], by_series(entries, machine, numbers)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::point::{Point, example};
    use experiment::table::rows;
    use experiment::verdict::Judged;

    fn entry(rows: Vec<Row>) -> Entry {
        Entry {
            machine: "m".into(),
            label: measure::Label::Emulated,
            extent: experiment::spec::Extent::Full,
            provenance: example("a", 1).provenance,
            rows,
            verdicts: Vec::new(),
            ratios: Default::default(),
            samples: Default::default(),
        }
    }

    #[test]
    fn a_table_of_a_note_is_as_the_laboratory_has_it_with_where_it_was_measured() {
        let lab = r#"{"a": {"good": {"on": "m, 2 cores", "day": "2026-11-22", "titles": ["x", "y"], "rows": [["1", "2 µs"]]},
            "wide": {"on": "m", "titles": ["x"], "rows": [["1"], ["2", "3"]]}, "bare": {"titles": [], "rows": []}}}"#;
        let tree = Tree::of(&[("docs/notes/laboratory.json", lab)]);
        let made = |name: &str| renewed(&tree, &format!("\n{BEGIN}laboratory {name} -->\n{END}"));
        let good = "\n| x | y |\n|---|---|\n| 1 | 2 µs |\n\nMeasured on m, 2 cores, noted 2026-11-22.\n<!-- end of table -->";
        assert!(made("a/good").unwrap().ends_with(good), "{}", made("a/good").unwrap());
        for (name, words) in [
            ("a/none", "docs/notes/laboratory.json has no table a/none"),
            ("a/wide", "a/wide: 2 cells below 1 titles: [\"2\", \"3\"]"),
            ("a/bare", "a/bare: missing field `on`"),
        ] {
            let said = format!("{:#}", made(name).unwrap_err());
            assert!(said.ends_with(words), "{said}");
        }
    }

    const SPEC: &str = r#"
        title = "t"
        app = "bench-nic"
        values = ["value"]
        range = "value"
        quick = { repeat = 1, seconds = 1.0 }
        full = { repeat = 1, seconds = 1.0 }
        grid = { series = ["write", "copy"], repeat = 1, seconds = 1.0 }
        [[claim]]
        id = "a"
        text = "WRITE ÷ copy"
        source = "README.md"
        series = ["write"]
        rule = "bound"
        field = "value"
        by = "copy"
        at_least = 0.85
        [[claim]]
        id = "b"
        text = "WRITE"
        source = "README.md"
        series = ["write"]
        rule = "bound"
        field = "value"
    "#;

    fn tree(bench_nic: Vec<Entry>) -> Tree {
        let posts = [
            (
                "a/first-lap/host",
                &[("early_ns", 68.4668), ("strict_ns", 1225.1), ("ratio_early", 0.4517), ("at_most", 0.35)][..],
            ),
            ("a/original/host", &[("ratio_early", 2.5), ("at_least", 2.5)]),
            ("a/steady-1/host/collapsed", &[("theirs_ns", 1714.37)]),
            ("a/host/original-release", &[]),
            ("b/unchecked/host", &[]),
            ("c/first-lap/gpu", &[]),
        ];
        let row = |(series, values): (&str, &[(&str, f64)])| {
            let point = values.iter().fold(example("x", 0), |point, (name, value)| point.with(name, *value));
            Row { series: series.to_owned(), ..rows(&[point]).remove(0) }
        };
        let written = |entries: Vec<Entry>| serde_json::to_string(&Measured { entries }).unwrap();
        Tree::of(&[
            ("experiments/bench-post-gpu/measured.json", &written(vec![entry(posts.map(row).into())])),
            ("experiments/bench-nic/measured.json", &written(bench_nic)),
            ("experiments/bench-nic/spec.toml", SPEC),
            ("experiments/fig4/measured.json", &written(vec![])),
        ])
    }

    #[test]
    fn an_aim_is_the_present_specs_and_one_that_is_gone_is_not_printed() {
        let of = |measured: &[(&str, f64)], at_least: f64, disturbed| {
            let point =
                |(series, value): &(&str, f64)| Point { x: 0, ..example(series, 0) }.with("value", *value);
            let judged = Judged {
                id: "a".into(),
                text: "WRITE ÷ copy".into(),
                source: "README.md".into(),
                verdict: Verdict::Reproduced,
                label: measure::Label::Emulated,
                evidence: vec!["holds: write / copy: 0.86".into()],
                criterion: format!("holds when value ÷ that of copy is at least {at_least}"),
                aim: true,
                disturbed,
            };
            let rows = rows(&measured.iter().map(point).collect::<Vec<_>>());
            Entry { verdicts: vec![judged], ..entry(rows) }
        };
        let (better, worse) = ([("write", 90.0), ("copy", 100.0)], [("write", 84.0), ("copy", 100.0)]);
        // The first was judged by the spec's own aim, the others by one that is gone.
        let entries = vec![
            of(&better, 0.85, false),
            of(&better, 0.8, false),
            of(&worse, 0.8, true),
            of(&better[1..], 0.8, false),
        ];
        let text = renewed(&tree(entries), &format!("\n{BEGIN}bench-nic -->\n{END}")).unwrap();
        let line = "| WRITE ÷ copy | at least 0.85 | 0.86, aim met | 0.90, aim met | 0.84, aim not met, under load | \
            no points to judge it by, needs data |\n| WRITE | — | 90.00 | 90.00 | 84.00 | no points";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_table_is_made_of_what_was_measured_and_the_text_around_it_stays() {
        let old = "# x\n\n<!-- table: bench-post-gpu -->\n| old |\n<!-- end of table -->\n\nText.\n";
        let new = renewed(&tree(vec![]), old).unwrap();
        let row = "| `a/first-lap/host` | 68.5 | 1225 | — | 0.452 | ≤ 0.350 | missed |\n\
            | `a/original/host` | — | — | — | 2.50 | ≥ 2.50 | met |\n\
            | `a/steady-1/host/collapsed` | — | — | 1714 | — | — | — |\n<!-- end of table -->\n\nText.\n";
        assert!(
            new.starts_with("# x\n\n<!-- table: bench-post-gpu -->\n| row, `unknown` |")
                && new.ends_with(row),
            "{new}"
        );
        assert_eq!(renewed(&tree(vec![]), &new).unwrap(), new);
        assert_eq!(new.lines().count(), 11, "{new}");
    }

    #[test]
    fn a_model_has_a_line_with_each_way_of_its_peer() {
        let point = [("ours_us", 100.0), ("compiled_nhwc_us", 80.0), ("ratio", 1.25)];
        let point =
            point.iter().fold(example("gpu-fp16/a", 0), |point, (name, value)| point.with(name, *value));
        let compared = Point { series: "gpu-fp32/a".into(), ..point.clone() }.with("python_us", 90.0);
        let mut part = rows(&[compared]).remove(0);
        let mut entry = entry(rows(&[point]));
        part.provenance = Some(entry.provenance.clone());
        (entry.provenance.revision.commit, part.provenance.as_mut().unwrap().revision.commit) =
            ("0".repeat(40), "1".repeat(40));
        entry.rows.push(part);
        let measured = serde_json::to_string(&Measured { entries: vec![entry] }).unwrap();
        let tree = Tree::of(&[("experiments/bench-models/measured.json", &measured)]);
        let numbers = "ours_us python_us compiled_nhwc_us ratio revision";
        let text = renewed(&tree, &format!("\n{BEGIN}bench-models by x: {numbers} -->\n{END}")).unwrap();
        assert!(text.contains("| on | series | x | ours_us |"), "{text}");
        for (series, python, revision) in
            [("gpu-fp16/a", "—", "0000000000"), ("gpu-fp32/a", "90.0", "1111111111")]
        {
            let line = format!("| m | `{series}` | 0 | 100 | {python} | 80.0 | 1.25 | `{revision}` |");
            assert!(text.contains(&line), "{text}");
        }
        let misspelt = renewed(&tree, &format!("\n{BEGIN}bench-models: our_us -->\n{END}"));
        let said = misspelt.unwrap_err().to_string();
        assert!(said.ends_with("no row has the number `our_us`, which table bench-models lists"), "{said}");
    }

    #[test]
    fn figure_6_has_a_line_for_each_series_and_figure_7_one_for_each_thread() {
        let named = |values: &[(&str, f64)], x| {
            let point = Point { x, ..example("gpu-graph-m", 0) };
            values.iter().fold(point, |point, (name, value)| point.with(name, *value))
        };
        let passes = rows(&[
            named(&[("one_us", 250.0), ("full_us", 700.0)], 0),
            named(&[("half_us", 300.0), ("most_us", 1234.0)], 1),
        ]);
        let threads = rows(&[named(&[("thread softnic-nic", 1.09)], 0)]);
        let written = |rows| serde_json::to_string(&Measured { entries: vec![entry(rows)] }).unwrap();
        let tree = Tree::of(&[
            ("experiments/fig6/measured.json", &written(passes)),
            ("experiments/fig7/measured.json", &written(threads)),
        ]);
        let made = |name: &str| renewed(&tree, &format!("\n{BEGIN}{name} -->\n{END}")).unwrap();
        let line = "\n| m, `unknown` | `gpu-graph-m` | 250 | 300 | 1234 | 700 | — | — | — |\n";
        assert!(made("fig6").contains(line), "{}", made("fig6"));
        let line = "\n| m, `unknown` | gpu-graph-m | softnic-nic | NIC | 1.09 | 1.09–1.09 |\n";
        assert!(made("fig7-threads").contains(line), "{}", made("fig7-threads"));
        let old = Tree::of(&[("experiments/fig7/measured.json", &written(rows(&[named(&[], 0)])))]);
        let text = renewed(&old, &format!("\n{BEGIN}fig7-threads -->\n{END}")).unwrap();
        assert!(text.contains("| m, `unknown` | not kept by the recorded run | — |"), "{text}");
    }

    #[test]
    fn a_marker_that_leads_nowhere_is_an_error() {
        for (marker, words) in [
            ("bench-post-gpu -->\n", "end of table"),
            ("nothing -->\n<!-- end of table -->", "no table is called nothing"),
            ("bench-nic -->\n<!-- end of table -->", "nothing for table bench-nic"),
            ("fig4 -->\n<!-- end of table -->", "nothing for table fig4"),
        ] {
            let error = renewed(&tree(vec![]), &format!("\n{BEGIN}{marker}")).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
