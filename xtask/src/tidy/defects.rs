//! The defects of the paper's release: the note lists all of them, and the tests that it names exist.

use std::collections::BTreeMap;

use super::markdown;
use crate::workspace::Tree;

const NOTE: &str = "docs/notes/release-defects.md";
/// Letters of the numbers, and how many defects each has.
const FAMILIES: [(char, u32); 4] = [('P', 11), ('S', 14), ('M', 17), ('R', 6)];
/// No defects of code: no test is named after them.
const NOT_CODE: [&str; 5] = ["M3", "M8", "R4", "R5", "R6"];

/// A row of the note: its line, and its cells behind the number.
struct Row<'a> {
    line: usize,
    cells: Vec<&'a str>,
}

impl Row<'_> {
    /// What covers the defect.
    fn cover(&self) -> &str {
        self.cells.last().copied().unwrap_or_default()
    }
}

/// Numbers that are missing, twice or unknown; named tests and files that do not exist; tests of a defect
/// that its row does not name; defects of code that no test is named after.
pub fn check(tree: &Tree) -> Vec<String> {
    let Some(text) = tree.get(NOTE) else { return vec![format!("{NOTE}: is missing")] };
    let mut violations = Vec::new();
    let mut found: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    for (id, row) in rows(text) {
        let line = row.line;
        if found.insert(id, row).is_some() {
            violations.push(format!("{NOTE}:{line}: {id} stands here twice"));
        }
    }
    let all: Vec<String> = FAMILIES
        .iter()
        .flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")))
        .collect();
    for id in all.iter().filter(|id| !found.contains_key(id.as_str())) {
        violations.push(format!("{NOTE}: {id} is missing"));
    }
    for (id, row) in &found {
        let say = |text: String| format!("{NOTE}:{}: {id} {text}", row.line);
        if !all.iter().any(|known| known == id) {
            violations.push(say("is no defect of the release".into()));
        }
        if row.cells.len() != 3 || row.cells.iter().any(|cell| cell.is_empty()) {
            violations.push(say("has not three cells: the defect, what stands here, what covers it".into()));
        }
        let mut named =
            markdown::code_spans(row.cover()).filter_map(|(_, span)| defect(span.split_once("::")?.1));
        if !NOT_CODE.contains(id) && !named.any(|named| named == *id) {
            let name = format!("release_{}_…", id.to_lowercase());
            violations.push(say(format!("is a defect of code, and its row names no test {name}")));
        }
        violations.extend(gone(tree, id, row.cover()).into_iter().map(say));
    }
    violations.extend(unnamed(tree, &found));
    violations
}

/// Lines of tables that begin with a number such as S1.
fn rows(text: &str) -> Vec<(&str, Row<'_>)> {
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(inside) = line.strip_prefix('|').and_then(|rest| rest.trim_end().strip_suffix('|')) else {
            continue;
        };
        let mut cells = inside.split('|').map(str::trim);
        let id = cells.next().unwrap_or_default();
        if id.starts_with(|c: char| c.is_ascii_uppercase()) && ends_in_number(id) {
            rows.push((id, Row { line: index + 1, cells: cells.collect() }));
        }
    }
    rows
}

/// What is wrong with the names of a cell that says what covers a defect.
fn gone(tree: &Tree, id: &str, cover: &str) -> Vec<String> {
    let spans: Vec<&str> = markdown::code_spans(cover).map(|(_, span)| span).collect();
    let mut wrong = Vec::new();
    if !spans.iter().any(|span| span.contains('/')) {
        wrong.push("names no test and no measurement".to_owned());
    }
    for span in spans.into_iter().filter(|span| span.contains('/')) {
        let Some((path, test)) = span.split_once("::") else {
            if !tree.holds(span) {
                wrong.push(format!("names {span}, which is not there"));
            }
            continue;
        };
        if !tree.get(path).is_some_and(|text| tests(text).any(|(name, _)| name == test)) {
            wrong.push(format!("names the test {test}, which {path} does not have"));
        }
        if defect(test).is_some_and(|other| other != id) {
            wrong.push(format!("names {test}, which is another defect's"));
        }
    }
    wrong
}

/// Tests of a defect that its row does not name.
fn unnamed(tree: &Tree, rows: &BTreeMap<&str, Row<'_>>) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !path.ends_with(file!())) {
        for (test, line) in tests(text) {
            let Some(id) = defect(test) else { continue };
            let span = format!("`{path}::{test}`");
            if !rows.get(id.as_str()).is_some_and(|row| row.cover().contains(&span)) {
                violations.push(format!(
                    "{path}:{line}: {test} is not in the row {id} of {NOTE}; name it there as {span}"
                ));
            }
        }
    }
    violations
}

/// The defect that a test is named after: S1 of `release_s1_…` and of `gpu_release_s1_…`.
fn defect(test: &str) -> Option<String> {
    let id = test.strip_prefix("gpu_").unwrap_or(test).strip_prefix("release_")?.split('_').next()?;
    ends_in_number(id).then(|| id.to_ascii_uppercase())
}

/// Whether there are digits behind the first character, and nothing else.
fn ends_in_number(word: &str) -> bool {
    let mut rest = word.chars();
    rest.next().is_some() && !rest.as_str().is_empty() && rest.all(|c| c.is_ascii_digit())
}

/// Functions with `#[test]` above them: name and line.
fn tests(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut is_test = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim_start();
        match line.strip_prefix("fn ") {
            Some(rest) => {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                std::mem::take(&mut is_test).then_some((name, index + 1))
            }
            None => {
                is_test |= line == "#[test]";
                None
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    const MEASURED: &str = "experiments/fig4/measured.json";

    fn ids() -> impl Iterator<Item = String> {
        FAMILIES.iter().flat_map(|(letter, count)| (1..=*count).map(move |n| format!("{letter}{n}")))
    }

    fn test_of(id: &str) -> String {
        format!("release_{}_flag", id.to_lowercase())
    }

    /// The source that has a test of each defect of code.
    fn source() -> String {
        let of_code = ids().filter(|id| !NOT_CODE.contains(&id.as_str()));
        let tests: String = of_code.map(|id| format!("#[test]\nfn {}() {{\n}}\n", test_of(&id))).collect();
        format!("//! It.\n\n{tests}fn helper() {{}}\n")
    }

    #[test]
    fn a_defect_is_named_by_one_character_and_digits() {
        for (test, id) in [
            ("gpu_release_s1_flag", Some("S1")),
            ("release_11_it", Some("11")),
            ("release_é1_it", Some("é1")),
        ] {
            assert_eq!(defect(test).as_deref(), id, "{test}");
        }
        assert_eq!(
            ["release_s_it", "release_s1a_it", "release__it", "s1_it"].map(defect),
            [const { None }; 4]
        );
    }

    /// All rows, of which that of `id` has this cover, or is left out where it has none.
    fn note(id: &str, cover: &str) -> String {
        let row = |row: String| match row == id {
            true if cover.is_empty() => String::new(),
            true => format!("| {row} | was | is | {cover} |\n"),
            false if NOT_CODE.contains(&row.as_str()) => format!("| {row} | was | is | `{MEASURED}` |\n"),
            false => format!("| {row} | was | is | `a/b.rs::{}` |\n", test_of(&row)),
        };
        format!(
            "# Defects\n\n| n | was | here | by |\n|---|---|---|---|\n{}",
            ids().map(row).collect::<String>()
        )
    }

    fn found(note: &str) -> Vec<String> {
        check(&Tree::of(&[(NOTE, note), ("a/b.rs", &source()), (MEASURED, "{}")]))
    }

    #[test]
    fn a_whole_note_passes() {
        assert_eq!(found(&note("", "")), [""; 0]);
    }

    #[test]
    fn a_wrong_name_a_missing_row_and_a_row_without_cover_are_named() {
        for (id, cover, words) in [
            ("S1", "`a/b.rs::release_s1_flags`", "the test release_s1_flags, which a/b.rs does not have"),
            ("S1", "`a/c.rs::release_s1_flag`", "which a/c.rs does not have"),
            // A function that is no test.
            ("S2", "`a/b.rs::helper`", "the test helper"),
            ("S2", "`a/b.rs::release_s1_flag`", "another defect's"),
            ("S2", "`experiments/fig9`", "experiments/fig9, which is not there"),
            ("S2", "by eye", "names no test"),
            (
                "M4",
                "`experiments/fig4/measured.json`",
                "M4 is a defect of code, and its row names no test release_m4_…",
            ),
            ("S2", "", "S2 is missing"),
        ] {
            let found = found(&note(id, cover));
            assert!(found.iter().any(|one| one.contains(words)), "{id} {cover}: {found:?}");
        }
        let twice = note("", "") + "| S1 | was | is | x |\n| S15 | was | is | x |\n| S16 | was |\n";
        let found = found(&twice);
        for words in ["S1 stands here twice", "S15 is no defect", "S16 has not three cells"] {
            assert!(found.iter().any(|one| one.contains(words)), "{words}: {found:?}");
        }
    }

    #[test]
    fn a_test_of_a_defect_that_no_row_names_is_found() {
        let found = found(&note("S1", "`a/b.rs::release_s1_other`"));
        let line = source().lines().position(|line| line.contains("release_s1_flag")).unwrap() + 1;
        let wanted = format!("a/b.rs:{line}: release_s1_flag is not in the row S1");
        assert!(found.iter().any(|one| one.starts_with(&wanted)), "{found:?}");
    }

    #[test]
    fn the_committed_note_passes() {
        let found = check(&Tree::read(&root()).unwrap());
        assert!(found.is_empty(), "{found:?}");
    }
}
