//! `cargo xtask docs`: the book of `docs/`, built by mdBook, its tables made from measured results, and its
//! tutorials followed.

pub mod picture;
pub mod tables;
mod tutorial;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::process::{done, on_path};
use crate::refused::refused;
use crate::workspace::{Tree, root, target_dir};

/// The version that is installed; an mdBook on PATH is used as it is.
const MDBOOK: &str = "0.5.4";

#[derive(Args)]
pub struct Options {
    /// Write the tables and the picture that are made from recorded results again, and build nothing.
    #[arg(long)]
    tables: bool,
    /// Run a tutorial of docs/tutorials/ as it stands, and say how long each section takes.
    #[arg(long, value_name = "TUTORIAL", conflicts_with = "tables")]
    follow: Option<String>,
    /// With --follow: write the times to docs/tutorials/times.json; refuses a tree with changes.
    #[arg(long, requires = "follow")]
    record: bool,
    /// Install nothing: without mdBook, print the command that installs it and stop.
    #[arg(long)]
    no_install: bool,
}

/// Builds the book into `target/book`, or writes the tables.
pub fn run(options: &Options) -> Result<()> {
    if options.tables {
        return write_tables();
    }
    if let Some(page) = &options.follow {
        return tutorial::follow(page, options.record);
    }
    let book = target_dir().join("book");
    let mut mdbook = Command::new(mdbook(options.no_install)?);
    mdbook.arg("build").arg(root().join("docs")).arg("--dest-dir").arg(&book);
    done(&mut mdbook).context("mdbook could not build the book of docs/; what is wrong stands above")?;
    say!("book: {}", book.join("index.html").display());
    Ok(())
}

pub fn write_tables() -> Result<()> {
    let tree = Tree::read(&root())?;
    let mut written = 0;
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
        let renewed = tables::renewed(&tree, text).with_context(|| format!("the tables of {path}"))?;
        if renewed != text {
            fs::write(root().join(path), renewed).with_context(|| format!("writing {path}"))?;
            say!("{path}: written");
            written += 1;
        }
    }
    let drawn = picture::figure4(&root())?;
    if tree.get(picture::PATH) != Some(&drawn) {
        fs::write(root().join(picture::PATH), drawn).with_context(|| format!("writing {}", picture::PATH))?;
        say!("{}: drawn", picture::PATH);
        written += 1;
    }
    say!("tables: {written} files written, the others are as measured.json has it");
    Ok(())
}

/// The program: on PATH, or in `target/tools`, where it is installed if it is in neither.
fn mdbook(no_install: bool) -> Result<PathBuf> {
    let tools = target_dir().join("tools");
    if let Some(found) = on_path(&["mdbook"], &[&tools.join("bin")]) {
        return Ok(found);
    }
    let version = format!("={MDBOOK}");
    let mut cargo = Command::new("cargo");
    // The dev profile and no features: built in half the time, and this book takes a second either way.
    cargo.args(["install", "mdbook", "--version", &version, "--locked", "--debug", "--no-default-features"]);
    cargo.arg("--root").arg(&tools);
    if no_install {
        return Err(refused(format!("mdbook is not there; this installs it: {cargo:?}")));
    }
    say!("mdbook is not there: building version {MDBOOK} into {}, some minutes, once", tools.display());
    done(&mut cargo).context("mdbook could not be installed")?;
    Ok(tools.join("bin/mdbook"))
}
