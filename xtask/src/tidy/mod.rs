//! `cargo xtask tidy`: every textual check of the tree, in some seconds; it compiles nothing but itself.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};

use crate::workspace::{Metadata, Tree, root};

mod arrows;
pub mod artifact;
mod circles;
mod defects;
mod docs;
mod invariants;
mod licences;
mod links;
pub mod markdown;
mod measured;
mod numbers;
mod posting;
mod purity;
mod sizes;
mod source;
mod unsafe_code;

#[derive(Args)]
pub struct Options {
    /// Checks to run; all without any.
    checks: Vec<Check>,
    /// Also print production lines by crate.
    #[arg(long)]
    report: bool,
}

/// A check by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// Which crate may use which; no circle of files inside a crate.
    Arrows,
    /// Pure crates do no I/O.
    Purity,
    /// Posting loops only post.
    Posting,
    /// First lines of files, abbreviations, and the names in ARCHITECTURE.md.
    Docs,
    /// `unsafe` on its floors.
    UnsafeCode,
    /// Links, anchors and generated tables of the documents.
    Links,
    /// Allow list of licences, no GPL text.
    Licences,
    /// Numbers of invariants.
    Invariants,
    /// Each defect of the paper's release has a row in the note, and the tests that it names exist.
    Defects,
    /// Each claim of the paper has a row in docs/artifact.md, with its command and the recorded verdict.
    Artifact,
    /// Committed results are what `--record` writes.
    Measured,
    /// Figures with a unit in documents equal the JSON field, paper's point or constant that they name.
    Numbers,
    /// Nothing large is in git.
    Large,
    /// At most 600 lines a Rust file, 110 columns a comment; NIC: 80 lines a function, 12 public fields.
    Sizes,
}

/// Runs the checks, prints every violation, fails when there is one.
pub fn run(options: &Options) -> Result<()> {
    let root = root();
    let tree = Tree::read(&root)?;
    let checks = if options.checks.is_empty() { Check::value_variants() } else { &options.checks };
    // Only two checks need it, and it takes longer than all the others together.
    let metadata = match checks.iter().any(|check| matches!(check, Check::Arrows | Check::Licences)) {
        true => Metadata::read(&root)?,
        false => Metadata { packages: Vec::new() },
    };
    let mut count = 0;
    for check in checks {
        let violations = violations(*check, &tree, &metadata)?;
        let name = name(*check);
        violations.iter().for_each(|violation| say!("tidy {name}: {violation}"));
        count += violations.len();
    }
    if checks.contains(&Check::Measured) {
        measured::outdated(&tree, &root).iter().for_each(|hint| say!("tidy measured: {hint}"));
    }
    if options.report {
        say!("{}", sizes::report(&tree));
    }
    ensure!(count == 0, "tidy: {count} violations");
    say!("tidy: {} checks of {} files, nothing wrong", checks.len(), tree.files().count());
    Ok(())
}

/// What is wrong: lines `PLACE: what`, where the place is a file, often with its number.
fn violations(check: Check, tree: &Tree, metadata: &Metadata) -> Result<Vec<String>> {
    Ok(match check {
        Check::Arrows => [arrows::check(tree, metadata)?, circles::check(tree)].concat(),
        Check::Purity => purity::check(tree),
        Check::Posting => posting::check(tree),
        Check::Docs => docs::check(tree),
        Check::Links => links::check(tree),
        Check::UnsafeCode => unsafe_code::check(tree),
        Check::Defects => defects::check(tree),
        Check::Artifact => artifact::check(tree),
        Check::Measured => measured::check(tree),
        Check::Numbers => numbers::check(tree),
        Check::Large => sizes::large(tree),
        Check::Sizes => sizes::check(tree),
        Check::Licences => licences::check(tree, metadata)?,
        Check::Invariants => {
            let names: Vec<String> = Check::value_variants().iter().map(|check| name(*check)).collect();
            invariants::check(tree, &names.iter().map(String::as_str).collect::<Vec<_>>())
        }
    })
}

fn name(check: Check) -> String {
    check.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
