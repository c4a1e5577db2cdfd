//! `experiments/*/measured.json` is as `--record` and `import` write it: whole, of clean revisions (INV-10).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

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
    let (mut hints, mut changes) = (Vec::new(), Changes::new(root));
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
                let changes = changes.since(commit, &sources);
                if changes > 0 {
                    let (at, machine) = (commit.get(..10).unwrap_or_default(), &entry.machine);
                    hints.push(format!(
                        "{path}: {machine}: {changes} of its source files changed since {at}; measure it again"
                    ));
                }
            }
        }
    }
    hints.extend(outdated_rows(tree, &mut changes));
    hints
}

/// Folders of the NIC that programs of others ran on.
const OF_THE_NIC: [&str; 4] =
    ["apps/softnic/src", "crates/mlx5-device/src", "crates/roce/src", "crates/soft-nic/src"];

/// The same of the rows of `compat`, by the revision that they name.
fn outdated_rows(tree: &Tree, changes: &mut Changes) -> Vec<String> {
    let recorded = tree.get(RESULTS).and_then(|text| serde_json::from_str(text).ok());
    let recorded: Recorded = recorded.unwrap_or_default();
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    recorded.rows.iter().for_each(|row| *rows.entry(row.commit()).or_default() += 1);
    let hint = |(commit, rows): (&str, usize)| {
        let changes = changes.since(commit, &OF_THE_NIC);
        (changes > 0).then(|| {
            format!("{RESULTS}: {rows} rows: {changes} files of the NIC changed since {commit}; run `cargo xtask compat --record`")
        })
    };
    rows.into_iter().filter_map(hint).collect()
}

/// Which files have other code now than at a commit, tests and comments left aside. Entries share commits.
struct Changes<'a> {
    root: &'a Path,
    /// By path, what is built of a file of HEAD; nothing where HEAD has no such file.
    now: BTreeMap<String, Option<String>>,
    /// By commit and path.
    is_changed: BTreeMap<(String, String), bool>,
}

impl<'a> Changes<'a> {
    fn new(root: &'a Path) -> Changes<'a> {
        Changes { root, now: BTreeMap::new(), is_changed: BTreeMap::new() }
    }

    /// How many files of these sources changed since a commit; none where git cannot tell.
    fn since(&mut self, commit: &str, sources: &[impl AsRef<OsStr>]) -> usize {
        if sources.is_empty() {
            return 0;
        }
        let mut git = Command::new("git");
        git.args(["diff", "--no-renames", "--name-only", "-z", commit, "HEAD", "--"]).args(sources);
        let names = said(git.current_dir(self.root)).unwrap_or_default();
        let paths = names.split('\0').filter(|path| !path.is_empty() && !source::is_test_file(path));
        let key = |path: &str| (commit.to_owned(), path.to_owned());
        let paths: Vec<&str> = paths.collect();
        let unread = |known: &dyn Fn(&str) -> bool| -> Vec<&str> {
            paths.iter().copied().filter(|path| !known(path)).collect()
        };
        let of_now = unread(&|path| self.now.contains_key(path));
        let of_then = unread(&|path| self.is_changed.contains_key(&key(path)));
        for (path, text) in texts(self.root, "HEAD", &of_now) {
            self.now.insert(path.to_owned(), text.map(|text| built(path, &text)));
        }
        for (path, text) in texts(self.root, commit, &of_then) {
            let is_changed = self.now.get(path) != Some(&text.map(|text| built(path, &text)));
            self.is_changed.insert(key(path), is_changed);
        }
        paths.iter().filter(|path| self.is_changed.get(&key(path)) == Some(&true)).count()
    }
}

/// The files of a commit at these paths, nothing for one that it has not. Fewer where git cannot tell.
fn texts<'a>(root: &Path, commit: &str, paths: &[&'a str]) -> Vec<(&'a str, Option<String>)> {
    let said = blobs(root, paths.iter().map(|path| format!("{commit}:{path}\n")).collect());
    let said = said.unwrap_or_default();
    let (mut texts, mut left) = (Vec::new(), &said[..]);
    for path in paths {
        // A line `<object> blob <bytes>`, so many bytes and a line's end; or `<name> missing`.
        let Some(end) = left.iter().position(|&byte| byte == b'\n') else { break };
        let (head, after) = (String::from_utf8_lossy(&left[..end]), &left[end + 1..]);
        let bytes = head.rsplit_once(" blob ").and_then(|(_, bytes)| bytes.parse().ok());
        left = after;
        let text = bytes.and_then(|bytes| after.split_at_checked(bytes));
        if let Some((_, after)) = text {
            left = after.strip_prefix(b"\n").unwrap_or(after);
        }
        texts.push((*path, text.map(|(text, _)| String::from_utf8_lossy(text).into_owned())));
    }
    texts
}

/// What `git cat-file --batch` answers to these lines.
fn blobs(root: &Path, names: String) -> std::io::Result<Vec<u8>> {
    let mut git = Command::new("git");
    git.args(["cat-file", "--batch"]).current_dir(root).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut git = git.spawn()?;
    let mut input = git.stdin.take().expect("stdin was piped");
    // Beside the reader: git answers before it has read all names.
    let asking = std::thread::spawn(move || input.write_all(names.as_bytes()));
    let said = git.wait_with_output()?.stdout;
    asking.join().expect("a write does not panic").map(|()| said)
}

/// What of a source file decides what is built of it: its words without comments and unit tests.
fn built(path: &str, text: &str) -> String {
    let is_code = [".rs", ".c", ".h", ".cu"].iter().any(|end| path.ends_with(end));
    let left = if is_code { source::uncommented(source::without_tests(path, text)) } else { text.to_owned() };
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
