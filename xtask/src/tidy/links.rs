//! Document links, anchors and paths resolve; the book has every page; tables are as measured (INV-12).

use std::collections::BTreeMap;

use super::markdown;
use crate::docs::{picture, tables};
use crate::workspace::{Tree, root};

const SUMMARY: &str = "docs/SUMMARY.md";

pub fn check(tree: &Tree) -> Vec<String> {
    let documents: Vec<(&str, &str)> = tree.files().filter(|(path, _)| path.ends_with(".md")).collect();
    let mut violations = Vec::new();
    for (path, text) in &documents {
        for (line, target) in markdown::links(text) {
            let wrong = wrong(tree, path, target);
            violations.extend(wrong.map(|why| format!("{path}:{line}: {target}: {why} (INV-12)")));
        }
        violations.extend(stale(path, "a table is", text, tables::renewed(tree, text)));
    }
    let summary = tree.get(SUMMARY).unwrap_or_default();
    let listed: Vec<String> = markdown::links(summary).map(|(_, target)| format!("docs/{target}")).collect();
    let pages = documents.iter().filter(|(path, _)| path.starts_with("docs/") && *path != SUMMARY);
    let missing = pages.filter(|(path, _)| !listed.iter().any(|page| page == path));
    violations.extend(missing.map(|(path, _)| format!("{path}: is not in {SUMMARY} (INV-12)")));
    violations.extend(named(tree));
    violations
        .extend(tree.get(picture::PATH).and_then(|committed| redrawn(committed, picture::figure4(&root()))));
    violations
}

/// The picture, if it is not what measured.json gives.
fn redrawn(committed: &str, drawn: anyhow::Result<String>) -> Option<String> {
    stale(picture::PATH, "is", committed, drawn)
}

/// What is wrong with a committed file that is made otherwise now, or cannot be made. `what`: part and verb.
fn stale(path: &str, what: &str, committed: &str, made: anyhow::Result<String>) -> Option<String> {
    let made = made.map(|made| made == committed).map_err(|error| format!("{error:#}"));
    let why = format!("{what} not as measured.json has it: cargo xtask docs --tables");
    made.map_or_else(Some, |is_equal| (!is_equal).then_some(why)).map(|why| format!("{path}: {why}"))
}

/// Documents that sources name.
fn named(tree: &Tree) -> Vec<String> {
    let mut violations = Vec::new();
    // The checks' own tests name documents that are not there.
    for (path, text) in tree.files().filter(|(path, _)| !path.starts_with("xtask/src/tidy/")) {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if path.ends_with(".toml") {
            for (line, number) in text.lines().zip(1..).filter(|(line, _)| line.starts_with('#')) {
                let names =
                    line.split(|c| !is_name(c)).filter(|name| name.contains('/') && name.ends_with(".rs"));
                let gone = names.filter(|name| !tree.holds(name));
                violations.extend(gone.map(|name| format!("{path}:{number}: {name} is not there (INV-12)")));
            }
        }
        for (at, _) in text.match_indices("docs/") {
            let whole = !text[..at].ends_with(is_name) || text[..at].ends_with("../");
            let name = text[at..].split(|c| !is_name(c)).next().unwrap_or_default();
            let Some((name, _)) = name.split_once(".md").filter(|_| whole) else { continue };
            let name = format!("{name}.md");
            if tree.get(&name).is_none() {
                let line = text[..at].matches('\n').count() + 1;
                violations.push(format!("{path}:{line}: {name} is not there (INV-12)"));
            }
        }
    }
    violations
}

/// What is wrong with a link of the document at `path`.
fn wrong(tree: &Tree, path: &str, target: &str) -> Option<&'static str> {
    if target.starts_with("https://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let file = if file.is_empty() { path.to_owned() } else { resolve(path, file)? };
    if !tree.holds(&file) {
        return Some("is not there");
    }
    if path.starts_with("docs/") && !file.starts_with("docs/") {
        return Some("leaves the book: name the file as code instead");
    }
    match (anchor, tree.get(&file)) {
        (Some(anchor), Some(text)) if !anchors(text).contains_key(anchor) => {
            Some("no heading has this anchor")
        }
        (Some(_), None) => Some("a folder has no headings"),
        _ => None,
    }
}

/// A relative path from a document's folder, seen from the root; of one that leads out of the tree, itself.
fn resolve(document: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." if parts.pop().is_none() => return Some(link.to_owned()),
            ".." => {}
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Anchors of a document as mdBook and GitHub make them, with how often each heading came.
fn anchors(text: &str) -> BTreeMap<String, usize> {
    let mut anchors = BTreeMap::new();
    for heading in markdown::unfenced(text.lines()).filter_map(|(_, line)| line.strip_prefix('#')) {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = anchors.entry(anchor.clone()).or_insert(0);
        *count += 1;
        if *count > 1 {
            let again = format!("{anchor}-{}", *count - 1);
            anchors.insert(again, 1);
        }
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let page = "# A page\n\n## What it has: `x`\n## Twice\n## Twice\n```\n# no heading\n```\n";
        for (text, wrong) in [
            ("[a](docs/page.md) [b](docs/page.md#what-it-has-x) [c](https://x.y/z)", None),
            ("[a](docs/page.md#twice-1)", None),
            (
                "[a](docs/page.md#no-heading)",
                Some("README.md:1: docs/page.md#no-heading: no heading has this anchor (INV-12)"),
            ),
            ("[a](docs/gone.md)", Some("README.md:1: docs/gone.md: is not there (INV-12)")),
            ("`[a](docs/gone)`\n```\n[a](x)\n```\n", None),
            ("![a](docs/x.svg)", Some("README.md:1: docs/x.svg: is not there (INV-12)")),
            ("[a](docs#x)", Some("README.md:1: docs#x: a folder has no headings (INV-12)")),
        ] {
            let tree = Tree::of(&[("README.md", text), ("docs/page.md", page), (SUMMARY, "[p](page.md)")]);
            let found = check(&tree);
            let found: Vec<&str> =
                found.iter().map(String::as_str).filter(|said| !said.contains(".md is not there")).collect();
            assert_eq!(found, wrong.into_iter().collect::<Vec<_>>(), "{text}");
        }
    }

    #[test]
    fn a_source_that_a_spec_names_is_there() {
        let spec = "# xtask/src/a.rs reads it, and xtask/src/gone.rs\nx = 1\n";
        let found = named(&Tree::of(&[("experiments/e/spec.toml", spec), ("xtask/src/a.rs", "")]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            found[0].to_string(),
            "experiments/e/spec.toml:1: xtask/src/gone.rs is not there (INV-12)"
        );
    }

    #[test]
    fn a_picture_of_another_run_is_named() {
        let committed = Tree::read(&root()).unwrap().get(picture::PATH).unwrap().to_owned();
        assert!(redrawn(&committed, picture::figure4(&root())).is_none());
        let other = committed.replacen("points=\"", "points=\"1", 1);
        for (text, drawn) in
            [(&other, picture::figure4(&root())), (&committed, Err(anyhow::anyhow!("no run")))]
        {
            assert!(redrawn(text, drawn).is_some());
        }
    }

    #[test]
    fn the_book_has_every_page_and_does_not_lead_out_of_itself() {
        for (files, wrong) in [
            ([("docs/a.md", "x"), (SUMMARY, "[a](a.md)")], None),
            ([("docs/a.md", "x"), (SUMMARY, "")], Some("docs/a.md: is not in docs/SUMMARY.md (INV-12)")),
            ([("docs/a.md", "[x](../LICENSE)"), (SUMMARY, "[a](a.md)")], Some("leaves the book")),
            (
                [("src/a.rs", "//! See docs/a.md."), (SUMMARY, "")],
                Some("src/a.rs:1: docs/a.md is not there (INV-12)"),
            ),
            (
                [("docs/a.md", "\n<!-- table: x -->\n<!-- end of table -->\n"), (SUMMARY, "[a](a.md)")],
                Some("no table is called x"),
            ),
        ] {
            let files = [&files[..], &[("LICENSE", "x")]].concat();
            let found = check(&Tree::of(&files));
            assert_eq!(found.len(), usize::from(wrong.is_some()), "{files:?}: {found:?}");
            assert!(wrong.is_none_or(|wrong| found[0].contains(wrong)), "{found:?}");
        }
    }
}
