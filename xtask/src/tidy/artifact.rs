//! `docs/artifact.md` has a row for each claim of the paper: the figure's command, the verdict that was recorded, and how long the points of
//! that run were measured. `cargo xtask docs --tables` writes the rows. The version of `Cargo.toml` is that of `CITATION.cff` and `CHANGELOG.md`.

use std::collections::BTreeMap;

use experiment::Spec;
use experiment::spec::Extent;
use experiment::verdict::Verdict;
use measure::Label;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::markdown;
use crate::workspace::Tree;

const PAGE: &str = "docs/artifact.md";

/// What a row must say of a claim.
struct Expected {
    /// In the order of the figures and of their papers.
    place: (String, usize),
    text: String,
    command: String,
    time: String,
    verdict: String,
}

/// The rows as `docs --tables` writes them, titles first.
pub fn rows(tree: &Tree) -> Vec<Vec<String>> {
    let mut all: Vec<(String, Expected)> = claims(tree).into_iter().collect();
    all.sort_by(|(_, one), (_, other)| one.place.cmp(&other.place));
    let titles = ["claim", "the paper says", "command", "time", "recorded verdict"].map(str::to_owned);
    let row = |(id, one): (String, Expected)| {
        vec![format!("`{id}`"), one.text, format!("`{}`", one.command), one.time, one.verdict]
    };
    [vec![titles.into()], all.into_iter().map(row).collect()].concat()
}

/// Claims without a row, rows without a claim, and rows that name another command or verdict.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut claims = claims(tree);
    let Some(text) = tree.get(PAGE) else {
        return claims.keys().map(|id| format!("{PAGE}: {id} has no row")).collect();
    };
    let mut violations = Vec::new();
    for row in markdown::table(text, "claim").unwrap_or_default() {
        let id = row[0].trim_matches('`');
        let Some(expected) = claims.remove(id) else {
            violations.push(format!("{PAGE}: {id} is no claim, or stands here twice"));
            continue;
        };
        let said = |cell: usize| row.get(cell).map_or("", |cell| cell.trim_matches('`'));
        for (name, said, right) in [
            ("command", said(2), expected.command),
            ("time", said(3), expected.time),
            ("verdict", said(4), expected.verdict),
        ] {
            if said != right {
                violations.push(format!("{PAGE}: {id}: the {name} is «{right}», not «{said}»"));
            }
        }
    }
    violations.extend(claims.keys().map(|id| format!("{PAGE}: {id} has no row")));
    violations.extend(versions(tree));
    violations
}

/// Files that name another version than the workspace's.
fn versions(tree: &Tree) -> Vec<String> {
    let after = |file: &str, start: &str| {
        let lines = tree.get(file).unwrap_or_default().lines();
        let found =
            lines.filter_map(|line| line.strip_prefix(start)).find(|rest| !rest.starts_with("Unreleased"));
        found.and_then(|rest| rest.split(['"', ']']).next()).unwrap_or("none")
    };
    let own = after("Cargo.toml", "version = \"");
    let named = [
        ("CITATION.cff", after("CITATION.cff", "version: ")),
        ("CHANGELOG.md", after("CHANGELOG.md", "## [")),
    ];
    let wrong = named.into_iter().filter(|(_, version)| *version != own);
    wrong
        .map(|(file, version)| format!("{file}: its version is «{version}», that of Cargo.toml «{own}»"))
        .collect()
}

/// The claims of all figures by their id.
fn claims(tree: &Tree) -> BTreeMap<String, Expected> {
    let mut all = BTreeMap::new();
    for (path, text) in tree.files() {
        let figure = path.strip_prefix("experiments/fig").and_then(|rest| rest.strip_suffix("/paper.toml"));
        let Some(figure) = figure else { continue };
        let paper: toml::Table = toml::from_str(text).unwrap_or_default();
        let measured = tree.get(&format!("experiments/fig{figure}/measured.json"));
        let measured = measured.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
        let spec = tree.get(&format!("experiments/fig{figure}/spec.toml"));
        let spec = spec.and_then(|text| Spec::parse(&format!("fig{figure}"), text).ok());
        let listed = paper.get("claim").and_then(toml::Value::as_array).into_iter().flatten();
        for (at, claim) in listed.enumerate() {
            let word =
                |key: &str| claim.get(key).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
            let (extent, time, verdict) = match word("rule").as_str() {
                "background" => (Extent::Normal, "none".to_owned(), "background".to_owned()),
                _ => recorded(&measured, spec.as_ref(), &word("id")),
            };
            let option = match extent {
                Extent::Normal => String::new(),
                extent => format!(" --{}", extent.name()),
            };
            let (place, command) = ((figure.to_owned(), at), format!("cargo xtask figure {figure}{option}"));
            all.insert(word("id"), Expected { place, text: word("text"), command, time, verdict });
        }
    }
    all
}

/// The extent of the entry whose verdict counts, how long its points were measured, and that verdict.
fn recorded(measured: &Value, spec: Option<&Spec>, id: &str) -> (Extent, String, String) {
    let entries = measured["entries"].as_array().into_iter().flatten();
    let judged = entries.flat_map(|entry| {
        let of_claim = entry["verdicts"].as_array().into_iter().flatten().filter(move |one| one["id"] == id);
        of_claim.filter_map(move |one| {
            Some((read::<Verdict>(&one["verdict"])?, read::<Label>(&one["label"])?, entry))
        })
    });
    let counts = judged.max_by_key(|(verdict, label, _)| Verdict::rank(verdict, *label));
    let Some((verdict, _, entry)) = counts else {
        return (Extent::Normal, "none".to_owned(), "not recorded".to_owned());
    };
    // The parts are another page's to name.
    let said = match verdict {
        Verdict::NeedsHardware(_) => "needs hardware".to_owned(),
        verdict => verdict.to_string(),
    };
    (extent(entry), spec.map_or_else(String::new, |spec| time(entry, spec)), said)
}

/// How much of its grid a recorded run measured.
fn extent(entry: &Value) -> Extent {
    entry["extent"].as_str().and_then(Extent::named).unwrap_or(Extent::Normal)
}

/// What the points of a recorded run asked for, by its rows and the spec's grid.
fn time(entry: &Value, spec: &Spec) -> String {
    let grid = spec.grid(extent(entry));
    let (mut points, mut seconds) = (0, 0.0);
    for row in entry["rows"].as_array().into_iter().flatten() {
        let repetitions = row["repetitions"].as_u64().unwrap_or_default();
        points += repetitions;
        seconds += repetitions as f64 * grid.seconds_of(row["series"].as_str().unwrap_or_default());
    }
    match seconds {
        0.0 => "seconds".to_owned(),
        seconds if seconds < 100.0 => format!("{seconds:.0} s, {points} points"),
        seconds => format!("{:.0} min, {points} points", seconds / 60.0),
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str =
        "[[claim]]\nid = \"a\"\nrule = \"flat\"\n[[claim]]\nid = \"b\"\nrule = \"background\"\n";
    const SPEC: &str = "title = \"t\"\napp = \"bench-nic\"\nvalues = [\"v\"]\nrange = \"v\"\nquick = { repeat = 1, seconds = 1.0 }\n\
        full = { repeat = 1, seconds = 2.0 }\ngrid = { series = [\"s\", \"t\"], repeat = 1, seconds = 20.0 }\n";
    const MEASURED: &str = r#"{"entries": [{"extent": "normal", "rows": [{"series": "s", "repetitions": 5}, {"series": "t", "repetitions": 4}], "verdicts": [
        {"id": "a", "label": "emulated", "verdict": "reproduced"}, {"id": "a", "label": "emulated", "verdict": "in-part"},
        {"id": "a", "label": "modelled", "verdict": "not-reproduced"},
        {"id": "a", "label": "hardware", "verdict": {"needs-hardware": ["nic"]}}]}]}"#;
    const A: &str = "| `a` | x | `cargo xtask figure 9` | 3 min, 9 points | in part |\n";
    const B: &str = "| `b` | x | `cargo xtask figure 9` | none | background |\n";

    fn found(rows: &str) -> Vec<String> {
        let page = format!("| claim | says | command | time | verdict |\n|---|---|---|---|---|\n{rows}");
        let files = [
            ("experiments/fig9/paper.toml", PAPER),
            ("experiments/fig9/measured.json", MEASURED),
            ("experiments/fig9/spec.toml", SPEC),
            ("Cargo.toml", "version = \"0.1.0\"\n"),
            ("CITATION.cff", "version: 0.1.0\n"),
            ("CHANGELOG.md", "## [Unreleased]\n\n## [0.1.0] — 2026-11-26\n\n## [0.0.9]\n"),
            (PAGE, page.as_str()),
        ];
        check(&Tree::of(&files))
    }

    #[test]
    fn each_claim_has_a_row_with_its_command_and_its_recorded_verdict() {
        let row = |a: &str| format!("{a}{B}");
        for (rows, wrong) in [
            (row(A), None),
            (A.to_owned(), Some("b has no row")),
            (row(&A.repeat(2)), Some("a is no claim, or stands here twice")),
            (row(&A.replace("figure 9", "figure 4")), Some("the command is «cargo xtask figure 9»")),
            (row(&A.replace("9 points", "8 points")), Some("the time is «3 min, 9 points»")),
            (row(&A.replace("in part", "reproduced")), Some("the verdict is «in part»")),
            (row(&A.replace("in part", "not reproduced")), Some("the verdict is «in part»")),
        ] {
            let found = found(&rows);
            match wrong {
                None => assert!(found.is_empty(), "{found:?}"),
                Some(wrong) => assert!(found.len() == 1 && found[0].contains(wrong), "{wrong}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_file_with_another_version_is_named() {
        let of = |citation: &str, changes: &str| {
            let files = [
                ("Cargo.toml", "version = \"0.2.0\"\n"),
                ("CITATION.cff", citation),
                ("CHANGELOG.md", changes),
            ];
            versions(&Tree::of(&files))
        };
        assert_eq!(of("version: 0.2.0\n", "## [Unreleased]\n## [0.2.0] — day\n## [0.1.0]\n"), [""; 0]);
        let found = of("version: 0.1.0\n", "## [Unreleased]\n");
        assert!(
            found.len() == 2 && found[0].contains("CITATION.cff") && found[0].contains("«0.1.0»"),
            "{found:?}"
        );
        assert!(
            found[1].contains("CHANGELOG.md") && found[1].contains("that of Cargo.toml «0.2.0»"),
            "{found:?}"
        );
    }

    #[test]
    fn the_page_has_the_36_claims_of_the_paper() {
        assert_eq!(claims(&Tree::read(&crate::workspace::root()).unwrap()).len(), 36);
    }
}
