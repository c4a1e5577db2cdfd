//! `experiments/*/measured.json` is as `--record` and `import` write it: whole, of clean revisions (INV-10).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use experiment::measured::Measured;
use serde::Deserialize;

use crate::compat::results::{RESULTS, Recorded};
use crate::measured;
use crate::process::said;
use crate::tidy::source;
use crate::workspace::Tree;

/// Every such file, by the experiment whose folder it lies in; and the sources that each spec names.
pub fn check(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with("/spec.toml")) {
        let Ok(Sources { sources }) = toml::from_str(text) else { continue };
        let gone = sources.iter().filter(|source| !tree.holds(source));
        violations.extend(gone.map(|gone| format!("{path}: its source {gone} is not there")));
    }
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with("measured.json")) {
        let problems = match path.split('/').collect::<Vec<_>>()[..] {
            ["experiments", name, "measured.json"]
                if tree.holds(&format!("experiments/{name}/spec.toml")) =>
            {
                measured::problems(text)
            }
            _ => vec!["belongs to no experiment".to_owned()],
        };
        violations.extend(problems.into_iter().map(|problem| format!("{path}: {problem}")));
    }
    violations
}

/// Entries whose sources changed since their revision: hints, no violations, since a later run may give the
/// same numbers. Nothing where git cannot tell. Rows of `compat` are entries too.
pub fn outdated(tree: &Tree, root: &Path) -> Vec<String> {
    let mut hints = Vec::new();
    for (path, text) in tree.files() {
        let ["experiments", name, "measured.json"] = path.split('/').collect::<Vec<_>>()[..] else {
            continue;
        };
        let spec =
            tree.get(&format!("experiments/{name}/spec.toml")).and_then(|text| toml::from_str(text).ok());
        let Some(Sources { sources }) = spec else { continue };
        let measured: Measured = serde_json::from_str(text).unwrap_or_default();
        for entry in &measured.entries {
            let commits: BTreeSet<&str> = entry.sources().map(|from| from.revision.commit.as_str()).collect();
            for commit in commits {
                let changes = changes(root, commit, &sources);
                if changes > 0 {
                    let (at, machine) = (commit.get(..10).unwrap_or_default(), &entry.machine);
                    hints.push(format!(
                        "{path}: {machine}: {changes} of its source files changed since {at}; measure it again"
                    ));
                }
            }
        }
    }
    hints.extend(outdated_rows(tree, root));
    hints
}

/// Folders of the NIC that programs of others ran on.
const OF_THE_NIC: [&str; 4] =
    ["apps/softnic/src", "crates/mlx5-device/src", "crates/roce/src", "crates/soft-nic/src"];

/// The same of the rows of `compat`, by the revision that they name.
fn outdated_rows(tree: &Tree, root: &Path) -> Vec<String> {
    let recorded = tree.get(RESULTS).and_then(|text| serde_json::from_str(text).ok());
    let recorded: Recorded = recorded.unwrap_or_default();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    recorded.rows.iter().for_each(|row| *rows.entry(row.commit()).or_default() += 1);
    let hint = |(commit, rows): (&str, usize)| {
        let changes = changes(root, commit, &OF_THE_NIC);
        (changes > 0).then(|| {
            format!("{RESULTS}: {rows} rows: {changes} files of the NIC changed since {commit}; run `cargo xtask compat --record`")
        })
    };
    rows.into_iter().filter_map(hint).collect()
}

/// How many files of these sources have other code now than at a commit, tests and comments left aside; none
/// where git cannot tell.
fn changes(root: &Path, commit: &str, sources: &[impl AsRef<OsStr>]) -> usize {
    if sources.is_empty() {
        return 0;
    }
    let mut git = Command::new("git");
    // With so much context both texts of a file are whole.
    git.args([
        "-c",
        "core.quotePath=off",
        "diff",
        "--no-renames",
        "--no-color",
        "--no-ext-diff",
        "--no-prefix",
    ]);
    git.args(["--unified=1000000", commit, "HEAD", "--"]).args(sources);
    let said = said(git.current_dir(root)).unwrap_or_default();
    let is_changed = |file: &&str| {
        let (names, diff) = file.split_once('\n').unwrap_or_default();
        // The name stands there twice, apart by a blank.
        let path = &names[..names.len() / 2];
        let Some((_, lines)) = diff.split_once("\n@@ ") else { return diff.contains("Binary files ") };
        let text = |sign| {
            let lines = lines.lines().skip(1).filter_map(|line| line.strip_prefix([' ', sign]));
            built(path, &lines.collect::<Vec<_>>().join("\n"))
        };
        !source::is_test_file(path) && text('-') != text('+')
    };
    format!("\n{said}").split("\ndiff --git ").filter(is_changed).count()
}

/// What of a source file decides what is built of it: its words without comments and unit tests.
fn built(path: &str, text: &str) -> String {
    let left = match source::is_code(path) {
        true => source::uncommented(source::without_tests(path, text)),
        false => text.to_owned(),
    };
    left.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a spec says of its sources.
#[derive(Deserialize)]
struct Sources {
    #[serde(default)]
    sources: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_whose_sources_changed_since_is_named_and_no_other() {
        let folder = std::env::temp_dir().join(format!("xtask-outdated-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let code = "/// One.\nfn f() {}\n";
        for (file, text) in [("a/x", "1"), ("b/x", "1"), ("c/f.rs", code), ("c/f_tests.rs", code)] {
            std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            std::fs::write(folder.join(file), text).unwrap();
        }
        let git = |arguments: &[&str]| {
            let who = ["-c", "user.name=t", "-c", "user.email=t@t"];
            let output = Command::new("git").args(who).args(arguments).current_dir(&folder).output().unwrap();
            assert!(output.status.success(), "git {arguments:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        git(&["init", "-q"]);
        git(&["add", "-A"]);
        git(&["commit", "-q", "-m", "one"]);
        let first = git(&["rev-parse", "HEAD"]);
        std::fs::write(folder.join("b/x"), "2").unwrap();
        // What is built of these stays the same.
        let of_words = "/// Two\n/// lines.\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        std::fs::write(folder.join("c/f.rs"), of_words).unwrap();
        std::fs::write(folder.join("c/f_tests.rs"), "fn h() {}\n").unwrap();
        git(&["commit", "-q", "-a", "-m", "two"]);
        let of = |commit: &str| {
            let mut provenance = experiment::point::example("a", 1).provenance;
            provenance.revision.commit = commit.to_owned();
            provenance
        };
        let said_of = |commit: &str, part: Option<&str>, sources: &str| {
            let mut rows = experiment::table::rows(&[experiment::point::example("a", 1)]);
            rows[0].provenance = part.map(of);
            let entry = serde_json::json!({
                "machine": "m", "label": "emulated", "extent": "normal", "provenance": of(commit), "rows": rows, "verdicts": [],
            });
            let entry = serde_json::json!({"entries": [entry]});
            let (measured, spec) = (entry.to_string(), format!("sources = {sources}"));
            let files = [
                ("experiments/e/measured.json", measured.as_str()),
                ("experiments/e/spec.toml", spec.as_str()),
            ];
            outdated(&Tree::of(&files), &folder)
        };
        let hint =
            format!("experiments/e/measured.json: m: 1 of its source files changed since {}", &first[..10]);
        let said = |commit: &str, sources: &str| said_of(commit, None, sources);
        assert!(said(&first, "[\"b\"]")[0].starts_with(&hint));
        let head = git(&["rev-parse", "HEAD"]);
        let of_part = said_of(&head, Some(&first), "[\"b\"]");
        assert!(of_part.len() == 1 && of_part[0].starts_with(&hint), "{of_part:?}");
        for (commit, sources) in
            [(&*first, "[\"a\", \"c\"]"), (&*head, "[\"b\"]"), (&*first, "[]"), ("0123", "[\"b\"]")]
        {
            assert_eq!(said(commit, sources), [""; 0], "{commit} {sources}");
        }
        // Rows of programs of others, by the NIC.
        std::fs::create_dir_all(folder.join("crates/roce/src")).unwrap();
        std::fs::write(folder.join("crates/roce/src/x"), "1").unwrap();
        git(&["add", "-A"]);
        git(&["commit", "-q", "-m", "three"]);
        let newest = git(&["rev-parse", "HEAD"]);
        let row = |revision: &str| serde_json::json!({ "program": "p", "row": "r", "version": "1", "ran": "x", "verdict": "works", "on": "s", "revision": revision });
        let rows = [row(&format!("{}, with changes", &first[..12])), row(&newest), row("unknown")];
        let results = serde_json::json!({ "rows": rows }).to_string();
        let found = outdated(&Tree::of(&[(RESULTS, &results)]), &folder);
        let words = format!("{RESULTS}: 1 rows: 1 files of the NIC changed since {};", &first[..12]);
        assert!(found.len() == 1 && found[0].starts_with(&words), "{found:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
    use crate::workspace::root;

    #[test]
    fn a_file_that_was_not_recorded_is_named() {
        for (path, text, count) in [
            ("experiments/fig4/measured.json", "{\"entries\":[]}", 0),
            ("experiments/bench-nic/measured.json", "{\"entries\":[]}", 0),
            ("experiments/fig4/measured.json", "{\"entries\":[{\"machine\":\"a\"}]}", 1),
            ("experiments/bench-nic/measured.json", "nonsense", 1),
            ("experiments/other/measured.json", "{\"entries\":[]}", 1),
            ("measured.json", "{\"entries\":[]}", 1),
        ] {
            assert_eq!(
                check(&Tree::of(&[
                    (path, text),
                    ("experiments/fig4/spec.toml", ""),
                    ("experiments/bench-nic/spec.toml", "")
                ]))
                .len(),
                count,
                "{path}: {text}"
            );
        }
    }

    #[test]
    fn a_source_that_moved_away_is_named() {
        let spec = ("experiments/e/spec.toml", "sources = [\"apps/a/src\", \"apps/b\"]");
        let found = check(&Tree::of(&[spec, ("apps/a/src/main.rs", "")]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().contains("apps/b is not there"), "{found:?}");
    }

    #[test]
    fn what_is_committed_passes() {
        assert!(check(&Tree::read(&root()).unwrap()).is_empty());
    }
}
