//! Files say what they are, abbreviations stand in the glossary, the map names what exists (INV-12).

use std::collections::BTreeSet;

use super::{Violation, markdown};
use crate::workspace::Tree;

const MAP: &str = "ARCHITECTURE.md";
const GLOSSARY: &str = "docs/glossary.md";
/// Longest that the map may get: a map, not an atlas.
const MAP_LINES: usize = 250;

/// All three checks.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations = first_lines(tree);
    violations.extend(abbreviations(tree));
    violations.extend(map(tree));
    violations
}

/// What the first line of a file of each kind begins with.
fn opening(path: &str) -> Option<&'static [&'static str]> {
    Some(match path.rsplit_once('.')?.1 {
        "rs" => &["//! "],
        "h" | "c" | "cc" | "cpp" | "cu" | "cuh" => &["// ", "/* ", "/** "],
        "py" => &["\"\"\"", "# ", "#!"],
        "toml" if path.starts_with("experiments/") => &["# "],
        _ => return None,
    })
}

fn first_lines(tree: &Tree) -> Vec<Violation> {
    let says = |path: &str, text: &str| {
        opening(path).is_none_or(|openings| openings.iter().any(|opening| text.starts_with(opening)))
    };
    let silent = tree.files().filter(|(path, text)| !says(path, text));
    silent
        .map(|(path, _)| Violation::at(path, 1, "the first line does not say what the file is (INV-12)"))
        .collect()
}

fn abbreviations(tree: &Tree) -> Vec<Violation> {
    let known: BTreeSet<&str> = tree.get(GLOSSARY).map(glossary).unwrap_or_default();
    let mut violations = Vec::new();
    for (path, text) in tree.files() {
        let is_rust = path.ends_with(".rs");
        let is_prose = path.ends_with(".md") && (!path.contains('/') || path.starts_with("docs/"));
        if !is_rust && (!is_prose || path == GLOSSARY) {
            continue;
        }
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            let prose = match is_rust {
                true => line.trim_start().strip_prefix("//!").unwrap_or(""),
                false => line,
            };
            if prose.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            if fenced {
                continue;
            }
            for word in capitals(prose).into_iter().filter(|word| !known.contains(word)) {
                violations.push(Violation::at(
                    path,
                    index + 1,
                    format!("`{word}` is not in {GLOSSARY} (INV-12)"),
                ));
            }
        }
    }
    violations
}

/// First cells of the glossary's tables; a cell may hold several forms, separated by commas.
fn glossary(text: &str) -> BTreeSet<&str> {
    let first_cells = text.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    first_cells.flat_map(|cell| cell.split(',')).map(|form| form.trim().trim_matches('`')).collect()
}

/// Words of two or more capitals (digits may follow), code spans and link targets left out: QP, RC, AETH, INV left out.
fn capitals(line: &str) -> Vec<&str> {
    let prose = line.split('`').step_by(2);
    let words = prose.flat_map(|part| part.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    let words = words.map(|word| word.strip_suffix('s').unwrap_or(word));
    let is_abbreviation = |word: &&str| {
        word.len() >= 2
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit())
            && word.chars().filter(char::is_ascii_uppercase).count() >= 2
            && *word != "INV"
    };
    words.filter(is_abbreviation).collect()
}

fn map(tree: &Tree) -> Vec<Violation> {
    let Some(text) = tree.get(MAP) else { return vec![Violation::new(MAP, "is missing")] };
    let mut violations = Vec::new();
    if text.lines().count() > MAP_LINES {
        violations
            .push(Violation::new(MAP, format!("has {} lines, at most {MAP_LINES}", text.lines().count())));
    }
    for (line, span) in markdown::code_spans(text) {
        let missing = match kind(span) {
            Named::Path => expand(span).into_iter().find(|path| !tree.holds(path)),
            Named::Type => (!defines(tree, span)).then(|| span.to_owned()),
            Named::Other => None,
        };
        if let Some(missing) = missing {
            violations.push(Violation::at(MAP, line, format!("`{missing}` is not there (INV-12)")));
        }
    }
    violations
}

enum Named {
    Path,
    Type,
    Other,
}

fn kind(span: &str) -> Named {
    let tops = ["crates/", "apps/", "vendor/", "xtask/", "docs/", "experiments/", ".ci/", ".cargo/"];
    let is_name = span.chars().all(|c| c.is_ascii_alphanumeric());
    if span.contains(' ') || span.contains('<') {
        Named::Other
    } else if tops.iter().any(|top| span.starts_with(top)) {
        Named::Path
    } else if is_name
        && span.starts_with(|c: char| c.is_ascii_uppercase())
        && span.contains(|c: char| c.is_ascii_lowercase())
    {
        Named::Type
    } else {
        Named::Other
    }
}

/// `a/{b,c}.rs` as `a/b.rs` and `a/c.rs`.
fn expand(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (choices, after))) = parts else { return vec![path.to_owned()] };
    choices.split(',').flat_map(|choice| expand(&format!("{before}{choice}{after}"))).collect()
}

fn defines(tree: &Tree, name: &str) -> bool {
    let is = |line: &str, keyword: &str| {
        line.split_once(keyword).is_some_and(|(_, rest)| {
            rest.strip_prefix(name)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    };
    let kinds = ["struct ", "enum ", "trait ", "type "];
    tree.rust().any(|(_, text)| text.lines().any(|line| kinds.iter().any(|kind| is(line, kind))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: (&str, &str) = ("ARCHITECTURE.md", "# Map\n");

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_that_does_not_say_what_it_is_is_named() {
        for (path, text, count) in [
            ("a/src/lib.rs", "use x;\n", 1),
            ("a/src/lib.rs", "//! Role.\n", 0),
            ("a/include/a.h", "#pragma once\n", 1),
            ("a/include/a.h", "// Role.\n", 0),
            ("experiments/fig4/spec.toml", "app = 1\n", 1),
            ("Cargo.toml", "[workspace]\n", 0),
        ] {
            assert_eq!(found(&[GOOD, (path, text)]).len(), count, "{path}: {text}");
        }
    }

    #[test]
    fn an_abbreviation_must_stand_in_the_glossary() {
        let glossary = ("docs/glossary.md", "| QP, QPs | queue pair |\n");
        let files = |line| [GOOD, glossary, ("a/src/lib.rs", line)];
        assert!(found(&files("//! One QP, two QPs, `SQ` in code, IPv4, INV-3.\n")).is_empty());
        let wrong = found(&files("//! One QP.\n//! One PSN.\n"));
        assert!(wrong.len() == 1 && wrong[0].starts_with("a/src/lib.rs:2: `PSN`"), "{wrong:?}");
        let prose = found(&[GOOD, glossary, ("README.md", "An MR.\n```sh\nREQUIRE=x MR\n```\n")]);
        assert_eq!(prose.len(), 1, "{prose:?}");
    }

    #[test]
    fn the_map_names_only_what_exists() {
        let source = ("crates/roce/src/psn.rs", "//! x\npub struct Psn(u32);\n");
        let map = |text| [("ARCHITECTURE.md", text), source];
        assert!(
            found(&map("`Psn` in `crates/roce/src/{psn}.rs`, `cargo test`, `crates/roce/`\n")).is_empty()
        );
        for text in ["`Psm`\n", "`crates/roce/src/{psn,aeth}.rs`\n", "`docs/gone.md`\n", &"x\n".repeat(251)] {
            assert_eq!(found(&map(text)).len(), 1, "{text}");
        }
    }

    #[test]
    fn no_map_is_a_violation() {
        assert_eq!(found(&[]).len(), 1);
    }
}
