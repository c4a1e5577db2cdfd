//! Man pages and shell completions of a program, made by clap from its command line, as in `/usr/share`.
//!
//! Each program writes its own: `PROGRAM --write-manual ~/.local/share`, where `man`, bash and fish find
//! them. The option is for packagers and stands in no help. Sources of the folders: `manpath(1)`, `README.md`
//! of bash-completion, `zshcompsys(1)`, fish's document «Writing your own completions». Knows no program.

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

/// The option, as the first argument of a program.
pub const OPTION: &str = "--write-manual";

/// Where pages lie below the folder.
pub const PAGES: &str = "man/man1";

/// Each shell, and the folder where it looks for completions.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Why there is no manual.
#[allow(missing_docs)] // The messages say it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{OPTION}: give the folder for man pages and completions behind it, as {OPTION} ~/.local/share")]
    NoFolder,
    #[error("{OPTION} takes one folder, and no further option: {0:?}")]
    Further(OsString),
    #[error("writing {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
}

/// Writes the manual if these arguments (the process's, with the program's name first) ask for it. None: they
/// ask for something else.
pub fn asked(
    command: Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Option<Result<Vec<PathBuf>, Error>> {
    let mut words = arguments.into_iter().skip(1);
    if words.next().as_deref() != Some(OsStr::new(OPTION)) {
        return None;
    }
    let folder = words.next().filter(|folder| !folder.is_empty());
    Some(match (folder, words.next()) {
        (None, _) => Err(Error::NoFolder),
        (_, Some(further)) => Err(Error::Further(further)),
        (Some(folder), None) => write(command, Path::new(&folder)),
    })
}

/// Writes a page for the program and for each of its commands, and completions for each shell: their paths.
pub fn write(command: Command, share: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut written = Vec::new();
    let pages = share.join(PAGES);
    made(&pages)?;
    // A page for `help` and each of its arguments would say nothing.
    let mut shown = command.clone().disable_help_subcommand(true);
    shown.build();
    page(&shown, &pages, &mut written)?;
    // Completions are for one word: `xtask`, where the page says `cargo xtask`.
    let word = command.get_name().to_owned();
    let mut typed = command.bin_name(&word).display_name(&word);
    for (shell, folder) in SHELLS {
        let folder = share.join(folder);
        made(&folder)?;
        let written_to = clap_complete::generate_to(shell, &mut typed, &word, &folder);
        written.push(written_to.map_err(|error| Error::Write { path: folder, error })?);
    }
    Ok(written)
}

/// The page of a command, and those below it.
fn page(command: &Command, pages: &Path, written: &mut Vec<PathBuf>) -> Result<(), Error> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = pages.join(format!("{name}.1"));
    let made = File::create(&path)
        .and_then(|mut file| clap_mangen::Man::new(command.clone()).manual("Doorbell").render(&mut file));
    made.map_err(|error| Error::Write { path: path.clone(), error })?;
    written.push(path);
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.into_iter().try_for_each(|below| page(below, pages, written))
}

fn made(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::Write { path: folder.to_owned(), error })
}

#[cfg(test)]
mod tests;
