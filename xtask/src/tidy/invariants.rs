//! Every cited invariant is in ARCHITECTURE.md; every listed one is cited in code and has an existing check.

use std::collections::BTreeMap;

use super::markdown;
use crate::workspace::Tree;

const MAP: &str = "ARCHITECTURE.md";

/// Numbers against citations, both ways, and the named checks against the tree.
pub fn check(tree: &Tree, tidy_checks: &[&str]) -> Vec<String> {
    let Some(rows) = tree.get(MAP).and_then(|map| markdown::table(map, "n")) else {
        return vec![format!("{MAP}: no table with the header `n`: the invariants")];
    };
    let listed: BTreeMap<&str, &str> =
        rows.iter().map(|row| (row[0].as_str(), row.get(2).map_or("", String::as_str))).collect();
    let cited = citations(tree);
    let mut violations = Vec::new();
    for (number, place) in cited.iter().filter(|(number, _)| !listed.contains_key(number.as_str())) {
        violations.push(format!("{place}: cites INV-{number}, which {MAP} does not list"));
    }
    for (number, checked_by) in listed {
        if !cited.contains_key(number) {
            violations.push(format!("{MAP}: INV-{number} is cited nowhere in code"));
        }
        violations.extend(missing_check(tree, tidy_checks, number, checked_by));
    }
    violations
}

/// Number → first place that cites it, in code and configuration (prose does not count).
fn citations(tree: &Tree) -> BTreeMap<String, String> {
    let mut cited = BTreeMap::new();
    for (path, text) in tree.files().filter(|(path, _)| !path.ends_with(".md")) {
        for (index, line) in text.lines().enumerate() {
            for rest in line.split("INV-").skip(1) {
                let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
                if !number.is_empty() {
                    cited.entry(number).or_insert_with(|| format!("{path}:{}", index + 1));
                }
            }
        }
    }
    cited
}

/// What is wrong with the third cell: it must name a command, and what the command names must be there.
fn missing_check(tree: &Tree, tidy_checks: &[&str], number: &str, checked_by: &str) -> Option<String> {
    let spans = markdown::code_spans(checked_by).map(|(_, span)| span);
    let mut commands = spans.filter(|span| span.starts_with("cargo ")).peekable();
    if commands.peek().is_none() {
        return Some(format!("{MAP}: INV-{number} names no command that checks it"));
    }
    let gone = |command: &str| {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["cargo", "xtask", "tidy", check, ..] => !tidy_checks.contains(&check),
            ["cargo", "test", "-p", package, filter, ..] => !has_test(tree, package, filter),
            _ => false,
        }
    };
    let gone = commands.find(|command| gone(command))?;
    Some(format!("{MAP}: INV-{number} is checked by `{gone}`, which selects nothing"))
}

fn has_test(tree: &Tree, package: &str, filter: &str) -> bool {
    let inside = |path: &str| path.split('/').any(|part| part == package);
    let selects = |path: &str, text: &str| {
        let module = path.ends_with(&format!("/{filter}.rs")) || path.contains(&format!("/{filter}/"));
        module
            || text.lines().any(|line| line.trim_start().starts_with("fn ") && line.contains(filter))
            || text.contains(&format!("mod {filter} "))
    };
    tree.rust().any(|(path, text)| inside(path) && selects(path, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(row: &str, code: &str) -> Vec<String> {
        let map = format!("| n | invariant | checked by |\n|---|---|---|\n{row}\n");
        let code = code.replace("INV", "INV-");
        let tree = Tree::of(&[("ARCHITECTURE.md", &map), ("crates/roce/src/a.rs", &code)]);
        check(&tree, &["arrows"])
    }

    #[test]
    fn a_listed_cited_and_checked_invariant_passes() {
        assert!(
            found("| 7 | same | `cargo test -p roce replay` |", "// INV7\nfn replay_is_equal() {}")
                .is_empty()
        );
        assert!(found("| 7 | same | `cargo xtask tidy arrows` |", "// INV7").is_empty());
    }

    #[test]
    fn each_hole_is_named() {
        for (row, code, what) in [
            ("| 7 | same | `cargo xtask tidy arrows` |", "// INV7 INV8", "cites INV-8"),
            ("| 7 | same | `cargo xtask tidy arrows` |", "// none", "INV-7 is cited nowhere"),
            ("| 7 | same | by eye |", "// INV7", "names no command"),
            ("| 7 | same | `cargo test -p roce replay` |", "// INV7", "selects nothing"),
            ("| 7 | same | `cargo xtask tidy colours` |", "// INV7", "selects nothing"),
        ] {
            let found = found(row, code);
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
    }
}
