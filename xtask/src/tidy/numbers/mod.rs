//! A figure with a unit in a document names its source and equals it (style: a number has a home).
//!
//! `CONTRIBUTING.md`, «Numbers in documents», says how to write one. Code blocks, code spans and generated
//! tables are no prose.

use std::collections::BTreeMap;

use crate::workspace::Tree;

mod formula;
mod origin;
mod page;
mod quantity;
#[cfg(test)]
mod tests;

use origin::NumberChoice;
use page::Page;
use quantity::{Quantity, Unit};

/// Figures without a source, sources that are not there, and figures that do not equal theirs.
pub fn check(tree: &Tree) -> Vec<String> {
    pages(tree).flat_map(|(path, text)| of_page(tree, path, &Page::read(text))).collect()
}

fn pages(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let is_page = |path: &str| {
        ["README.md", "ARCHITECTURE.md"].contains(&path)
            || (path.starts_with("docs/") && path.ends_with(".md"))
            || (path.starts_with("experiments/") && path.ends_with("/README.md"))
    };
    tree.files().filter(move |(path, _)| is_page(path))
}

fn of_page(tree: &Tree, path: &str, page: &Page<'_>) -> Vec<String> {
    let mut violations = Vec::new();
    let mut say = |line: usize, text: String| violations.push(format!("{path}:{line}: {text}"));
    let mut names = BTreeMap::new();
    for (line, name, source) in &page.names {
        match value(tree, &names, source) {
            _ if names.contains_key(*name) => say(*line, format!("{name} is defined twice")),
            Ok(quantity) => drop(names.insert((*name).to_owned(), quantity)),
            Err(why) => say(*line, format!("{name} = {source}: {why}")),
        }
        if !page.uses(name) {
            say(*line, format!("no figure uses {name}"));
        }
    }
    for (line, comment) in &page.strays {
        say(*line, format!("«{comment}» stands behind no figure; write it directly behind one"));
    }
    for figure in &page.figures {
        let said = figure.said.replace('\n', " ");
        match figure.source {
            Some(source) => {
                let quantity = value(tree, &names, source);
                if let Err(why) = quantity.and_then(|quantity| quantity.compare(figure.number, figure.unit)) {
                    say(figure.line, format!("«{said}» is not {source}: {why}"));
                }
            }
            None if !figure.is_asked() => {}
            // How long a run of it takes is an experiment's own to say.
            None if path.starts_with("experiments/") && figure.is_in_words() => {}
            None => {
                let how = "(CONTRIBUTING.md, «Numbers in documents»), or reword the sentence";
                say(figure.line, format!("«{said}» has no source: write {said}<!-- = FILE#WHERE --> {how}"));
            }
        }
    }
    violations
}

/// What a source says: `FILE#WHERE`, after `least` or `most` of several elements, or a formula of names of
/// the page. At its end `in UNIT`, if the place does not tell it.
fn value(tree: &Tree, names: &BTreeMap<String, Quantity>, source: &str) -> Result<Quantity, String> {
    let with_unit = source.rsplit_once(" in ").and_then(|(before, unit)| Some((before, Unit::named(unit)?)));
    if let Some((before, unit)) = with_unit {
        return value(tree, names, before)?.in_unit(unit);
    }
    if let Some((file, place)) = source.split_once('#') {
        let of_several = [("least ", NumberChoice::Least), ("most ", NumberChoice::Most)];
        let prefix = of_several.iter().find_map(|(word, of)| Some((file.strip_prefix(word)?, *of)));
        let (file, of) = prefix.unwrap_or((file, NumberChoice::One));
        return origin::read(tree, file.trim(), place, of);
    }
    let mut words = formula::words(source).peekable();
    if words.peek().is_none() {
        return Err("it names no file, and nothing that the page defines".into());
    }
    if let Some(unknown) = words.find(|word| !names.contains_key(*word)) {
        return Err(format!("the page defines no {unknown}"));
    }
    formula::evaluate(source, &|name| names.get(name).copied().ok_or_else(|| format!("no {name}")))
}
