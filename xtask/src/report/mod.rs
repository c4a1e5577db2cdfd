//! `cargo xtask report`: a static page of all figures and claims; each figure as SVG, PNG, PDF and CSV.
//!
//! Numbers, verdicts and drawings are the harness's (`crates/experiment`). The page holds its style, script,
//! drawings and numbers, and fetches nothing. Every file is replaced whole, the page last.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use clap::Args;
use experiment::run::write_whole;
use experiment::{Drawing, csv};

use crate::refused::refused;
use crate::workspace::{root, target_dir};

mod added;
mod claims;
mod figures;
mod page;
mod picture;
mod section;
mod side_by_side;
#[cfg(test)]
mod tests;

use claims::Claims;
use figures::Figure;
use side_by_side::side_by_side;

/// Pixels of a PNG per unit of its SVG.
const PNG_SCALE: f32 = 2.0;
/// The page's file.
const PAGE: &str = "index.html";

#[derive(Args, Default)]
pub struct Options {
    /// Folder of the page and of the figures' files [default: target/report].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Open the page in the browser.
    #[arg(long)]
    open: bool,
    /// Show these results beside the recorded ones, marked as added, without a commit: the --out of `figure`
    /// or `figure all`, a file in it, or a measured.json. They change no claim's verdict. Repeatable.
    #[arg(long, value_name = "RESULTS")]
    add: Vec<PathBuf>,
    /// Show the recorded results alone, without those that `figure` left in this checkout's results/figN.
    #[arg(long, conflicts_with = "add")]
    recorded: bool,
    /// Draw the top of the page into this PNG too, by headless Chromium.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// Reads what is recorded and what is added, then draws and writes.
/// Error: refused, after all of that, with a line for each of the results that are not on the page.
pub fn run(options: &Options) -> Result<()> {
    let out = options.out.clone().unwrap_or_else(|| target_dir().join("report"));
    let here = if options.recorded { Vec::new() } else { added::here(&root(), &options.add) };
    let (figures, left_out) = gathered(&root(), &here, &options.add)?;
    let claims = Claims::of(&figures);
    let room = out.display();
    let wrong =
        format!("report: not all of it was written; make room in {room} or mend it, or give another --out");
    let page = written(&figures, &claims, &out).context(wrong)?;
    for figure in &figures {
        say!("figure {}: {}", figure.number(), figure.standing());
    }
    say!("{} claims: {}", claims.lines.len(), claims.counted());
    say!("report: {}", page.display());
    if let Some(file) = &options.picture {
        picture::take(&page, file)?;
        say!("picture: {}", file.display());
    }
    if options.open {
        open(&page);
    }
    if left_out.is_empty() { Ok(()) } else { Err(refused(left_out.join("\n"))) }
}

/// All figures with their recorded entries, what lies `here`, and `add`; a line for each failure of `add`.
fn gathered(root: &Path, here: &[PathBuf], add: &[PathBuf]) -> Result<(Vec<Figure>, Vec<String>)> {
    let mut figures = figures::recorded(root)?;
    for results in here {
        // Nobody named them: what is wrong with them is said, and is no failure.
        added::add(&mut figures, root, results).unwrap_or_else(|line| say!("{line}"));
    }
    let each = added::folders(add);
    let left_out = each.iter().filter_map(|results| added::add(&mut figures, root, results).err()).collect();
    figures::finish(&mut figures, root)?;
    Ok((figures, left_out))
}

/// Writes all files; the path of the page.
fn written(figures: &[Figure], claims: &Claims<'_>, out: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(out).with_context(|| format!("--out {}", out.display()))?;
    for figure in figures.iter().filter(|figure| figure.has_numbers()) {
        let text = csv(&figure.entries(), &figure.paper);
        write_whole(&out.join(format!("{}.csv", figure.name())), text.as_bytes())?;
    }
    side_by_side(figures.iter().flat_map(Figure::files).collect(), |(stem, svg)| {
        let path = |kind: &str| out.join(format!("{stem}.{kind}"));
        write_whole(&path("svg"), svg.as_bytes())?;
        let drawing = Drawing::read(svg)?;
        write_whole(&path("png"), &drawing.png(PNG_SCALE)?)?;
        write_whole(&path("pdf"), &drawing.pdf()?)
    })?;
    let page = out.join(PAGE);
    write_whole(&page, page::page(figures, claims)?.as_bytes())?;
    Ok(page)
}

/// Hands the page to the desktop; where there is none, its path was printed.
fn open(page: &Path) {
    let mut opener = Command::new("xdg-open");
    opener.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // It may be the browser itself, which stays.
    if opener.spawn().is_err() {
        say!("no program here opens a page (xdg-open): open the file in a browser");
    }
}
