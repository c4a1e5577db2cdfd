//! Tables of our documents that are made from `experiments/*/measured.json`, between a line `<!-- table: NAME -->` and the next
//! `<!-- end of table -->`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

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
    let rows_of = match name {
        "bench-post-gpu" => posts,
        "fig4" => rates,
        name => bail!("no table is called {name}"),
    };
    let path = format!("experiments/{name}/measured.json");
    let measured: Value =
        serde_json::from_str(tree.get(&path).with_context(|| format!("{path} is missing"))?)?;
    let entries = measured["entries"].as_array().with_context(|| format!("{path} has no entries"))?;
    let rows = rows_of(entries);
    if rows.len() < 2 {
        bail!("{path}: nothing for table {name} was found in it");
    }
    let mut lines: Vec<String> = rows.iter().map(|cells| format!("| {} |", cells.join(" | "))).collect();
    lines.insert(1, format!("|{}", "---|".repeat(rows[0].len())));
    Ok(lines.join("\n"))
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map(three_digits).unwrap_or_default(),
        _ => "—".to_owned(),
    }
}

/// Three significant digits: 1225, 68.5, 1.30, 0.041.
fn three_digits(number: f64) -> String {
    let digits = match number.abs() {
        x if x >= 100.0 || x == 0.0 => 0,
        x => (2.0 - x.log10().floor()).clamp(0.0, 6.0) as usize,
    };
    format!("{number:.digits$}")
}

/// Posts beside gpunetio's, as far as posters look for room and the ring lies in host memory.
fn posts(entries: &[Value]) -> Vec<Vec<String>> {
    let mut table = vec![row([
        "row",
        "early, ns",
        "strict, ns",
        "gpunetio, ns",
        "early ÷ gpunetio",
        "required",
        "verdict",
    ])];
    let rows = entries.last().and_then(|entry| entry["rows"].as_array()).into_iter().flatten();
    for measured in rows {
        let name = text(&measured["row"]);
        if measured["against"] != "gpunetio" || !name.ends_with("/host") || name.contains("/unchecked/") {
            continue;
        }
        let required = &measured["required"];
        let required = match (&required["at_most"], &required["at_least"]) {
            (Value::Null, Value::Null) => "—".to_owned(),
            (Value::Null, least) => format!("≥ {}", text(least)),
            (most, _) => format!("≤ {}", text(most)),
        };
        let times = ["early", "strict", "theirs"].map(|side| text(&measured[side]["p50_ns"]));
        let [ratio, verdict] = ["ratio_early", "verdict"].map(|field| text(&measured[field]));
        table.push([vec![format!("`{name}`")], times.into(), vec![ratio, required, verdict]].concat());
    }
    table
}

fn machine(entry: &Value) -> String {
    let rate = &entry["provenance"]["nic_options"]["rate_gbps"];
    let rate = if rate.is_null() { String::new() } else { format!(", shaped to {} Gbit/s", text(rate)) };
    format!("{}{rate}", text(&entry["machine"]))
}

/// Medians of figure 4 at five payloads, in Gbit/s of wire bytes.
fn rates(entries: &[Value]) -> Vec<Vec<String>> {
    const PAYLOADS: [(u64, &str); 5] =
        [(64, "64 B"), (1024, "1 KiB"), (16384, "16 KiB"), (131_072, "128 KiB"), (1 << 20, "1 MiB")];
    let mut table =
        vec![[row(["machine", "poster"]), PAYLOADS.map(|(_, name)| name.to_owned()).into()].concat()];
    for entry in entries {
        let mut lines: BTreeMap<String, [String; 5]> = BTreeMap::new();
        for measured in entry["rows"].as_array().into_iter().flatten() {
            let others = measured["at"].as_object();
            let Some(at) = PAYLOADS.iter().position(|(bytes, _)| measured["x"] == *bytes) else { continue };
            // One request a call, as the paper's posters; longer lists are rows of their own.
            if others.is_some_and(|others| others.values().any(|value| *value != 1)) {
                continue;
            }
            // The median comes first, then the least and the most.
            let rate = text(&measured["values"]["wire_gbps"][0]);
            lines.entry(text(&measured["series"])).or_insert_with(|| [const { "—" }; 5].map(str::to_owned))
                [at] = rate;
        }
        let of = machine(entry);
        table.extend(
            lines
                .into_iter()
                .map(|(series, cells)| [vec![of.clone(), format!("`{series}`")], cells.into()].concat()),
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: &str = r#"{"entries":[{"rows":[
        {"row":"a/first-lap/host","against":"gpunetio","early":{"p50_ns":68.4668},"strict":{"p50_ns":1225.1},"theirs":null,
         "ratio_early":0.4517,"required":{"at_most":0.35},"verdict":"missed"},
        {"row":"b/unchecked/host","against":"gpunetio"}, {"row":"c/first-lap/gpu","against":"gpunetio"}]}]}"#;

    fn tree() -> Tree {
        Tree::of(&[
            ("experiments/bench-post-gpu/measured.json", MEASURED),
            ("experiments/fig4/measured.json", "{\"entries\":[]}"),
        ])
    }

    #[test]
    fn a_table_is_made_of_what_was_measured_and_the_text_around_it_stays() {
        let old = "# x\n\n<!-- table: bench-post-gpu -->\n| old |\n<!-- end of table -->\n\nText.\n";
        let new = renewed(&tree(), old).unwrap();
        let row = "| `a/first-lap/host` | 68.5 | 1225 | — | 0.452 | ≤ 0.350 | missed |\n<!-- end of table -->\n\nText.\n";
        assert!(
            new.starts_with("# x\n\n<!-- table: bench-post-gpu -->\n| row |") && new.ends_with(row),
            "{new}"
        );
        assert_eq!(renewed(&tree(), &new).unwrap(), new);
        assert_eq!(new.lines().count(), 9, "{new}");
    }

    #[test]
    fn a_marker_that_leads_nowhere_is_an_error() {
        for (marker, words) in [
            ("bench-post-gpu -->\n", "end of table"),
            ("nothing -->\n<!-- end of table -->", "no table is called nothing"),
            ("bench-nic -->\n<!-- end of table -->", "no table is called bench-nic"),
            ("fig4 -->\n<!-- end of table -->", "nothing for table fig4"),
        ] {
            let error = renewed(&tree(), &format!("\n{BEGIN}{marker}")).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }
}
