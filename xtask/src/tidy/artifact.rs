//! `docs/artifact.md` has a row for each claim of the paper, with the figure's command and the verdict that was recorded.

use std::collections::BTreeMap;

use experiment::verdict::Verdict;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Violation, markdown};
use crate::workspace::Tree;

const PAGE: &str = "docs/artifact.md";

/// What a row must say of a claim.
struct Expected {
    command: String,
    verdict: String,
}

/// Claims without a row, rows without a claim, and rows that name another command or verdict.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut claims = claims(tree);
    let Some(text) = tree.get(PAGE) else {
        return claims.keys().map(|id| Violation::new(PAGE, format!("{id} has no row"))).collect();
    };
    let mut violations = Vec::new();
    for row in markdown::table(text, "claim").unwrap_or_default() {
        let id = row[0].trim_matches('`');
        let Some(expected) = claims.remove(id) else {
            violations.push(Violation::new(PAGE, format!("{id} is no claim, or stands here twice")));
            continue;
        };
        let said = |cell: usize| row.get(cell).map_or("", |cell| cell.trim_matches('`'));
        for (name, said, right) in
            [("command", said(2), expected.command), ("verdict", said(4), expected.verdict)]
        {
            if said != right {
                violations.push(Violation::new(PAGE, format!("{id}: the {name} is «{right}», not «{said}»")));
            }
        }
    }
    violations.extend(claims.keys().map(|id| Violation::new(PAGE, format!("{id} has no row"))));
    violations
}

/// The claims of all figures by their id.
fn claims(tree: &Tree) -> BTreeMap<String, Expected> {
    let mut all = BTreeMap::new();
    for (path, text) in tree.files() {
        let figure = path.strip_prefix("experiments/fig").and_then(|rest| rest.strip_suffix("/paper.toml"));
        let Some(figure) = figure else { continue };
        let paper: toml::Table = toml::from_str(text).unwrap_or_default();
        let measured = tree.get(&format!("experiments/fig{figure}/measured.json"));
        for claim in paper.get("claim").and_then(toml::Value::as_array).into_iter().flatten() {
            let Some(id) = claim.get("id").and_then(toml::Value::as_str) else { continue };
            let verdict = match claim.get("rule").and_then(toml::Value::as_str) {
                Some("background") => "background".to_owned(),
                _ => recorded(measured, id),
            };
            all.insert(id.to_owned(), Expected { command: format!("cargo xtask figure {figure}"), verdict });
        }
    }
    all
}

/// The verdict that counts of those in an experiment's entries.
fn recorded(measured: Option<&str>, id: &str) -> String {
    let Some(text) = measured else { return "not recorded".to_owned() };
    let measured: Value = serde_json::from_str(text).unwrap_or_default();
    let entries = measured["entries"].as_array().into_iter().flatten();
    let verdicts = entries.flat_map(|entry| entry["verdicts"].as_array().into_iter().flatten());
    let of_claim = verdicts.filter(|verdict| verdict["id"] == id);
    let judged = of_claim.filter_map(|one| Some((read(&one["verdict"])?, read(&one["label"])?)));
    match judged.max_by_key(|(verdict, label)| Verdict::rank(verdict, *label)) {
        // The parts are another page's to name.
        Some((Verdict::NeedsHardware(_), _)) => "needs hardware".to_owned(),
        Some((verdict, _)) => verdict.to_string(),
        None => "not recorded".to_owned(),
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
    const MEASURED: &str = r#"{"entries": [{"verdicts": [
        {"id": "a", "label": "emulated", "verdict": "reproduced"}, {"id": "a", "label": "emulated", "verdict": "in-part"},
        {"id": "a", "label": "modelled", "verdict": "not-reproduced"},
        {"id": "a", "label": "hardware", "verdict": {"needs-hardware": ["nic"]}}]}]}"#;
    const A: &str = "| `a` | x | `cargo xtask figure 9` | 1 min | in part |\n";
    const B: &str = "| `b` | x | `cargo xtask figure 9` | 1 min | background |\n";

    fn found(rows: &str) -> Vec<String> {
        let page = format!("| claim | says | command | time | verdict |\n|---|---|---|---|---|\n{rows}");
        let files = [
            ("experiments/fig9/paper.toml", PAPER),
            ("experiments/fig9/measured.json", MEASURED),
            (PAGE, page.as_str()),
        ];
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_claim_has_a_row_with_its_command_and_its_recorded_verdict() {
        let row = |a: &str| format!("{a}{B}");
        for (rows, wrong) in [
            (row(A), None),
            (A.to_owned(), Some("b has no row")),
            (row(&A.repeat(2)), Some("a is no claim, or stands here twice")),
            (row(&A.replace("figure 9", "figure 4")), Some("the command is «cargo xtask figure 9»")),
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
    fn the_page_has_the_36_claims_of_the_paper() {
        assert_eq!(claims(&Tree::read(&crate::workspace::root()).unwrap()).len(), 36);
    }
}
