//! Images on disk, so that a program compiles its kernels once. Every file there is checked; no failure of
//! the cache is an error of the program.
//!
//! An entry is a file named after its key, the SHA-256 of all that the image depends on. It holds key, length
//! and SHA-256 of the content. A damaged, truncated or foreign entry is rebuilt, with a message. Writers sync
//! and rename a file of their own: any number of processes may build one entry at once, each reads a whole
//! one or none. An unwritable folder (read-only, full) costs a compile each time, and one message. The
//! checksum is against accidents: a user who can write to the folder chooses what runs on the GPU. So it is
//! made for its owner alone. Left out: a limit on its size (entries are some 200 KiB; delete the folder at
//! any time).

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

mod entry;
mod key;

pub use entry::Damage;
pub use key::{Key, KeyBuilder};

/// The variable that names the folder.
pub const GIVEN: &str = "DOORBELL_CACHE";
/// A writer's own file that is older was left behind by a process that was killed.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// Where the bytes of an image came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// From disk.
    Cached,
    /// Built, since no entry was there.
    Built,
    /// Built, since the entry was no good.
    Rebuilt(Damage),
}

type Voice = Box<dyn Fn(&str) + Send + Sync>;

/// A folder of images, or none.
pub struct Cache {
    folder: Option<PathBuf>,
    voice: Voice,
    /// Whether it was said that nothing can be kept.
    said: AtomicBool,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Cache {
    /// In `DOORBELL_CACHE`, else `$XDG_CACHE_HOME/doorbell`, else `~/.cache/doorbell`; none without a home.
    pub fn usual() -> Cache {
        let cache = Cache::of(usual_folder(&|name| std::env::var_os(name)));
        if cache.folder.is_none() {
            cache.say_once(&format!("neither {GIVEN}, XDG_CACHE_HOME nor HOME names a folder"));
        }
        cache
    }

    /// In `folder`, which is made when first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache::of(Some(folder.into()))
    }

    /// Nothing is kept, and nothing is said of it.
    pub fn off() -> Cache {
        Cache::of(None)
    }

    fn of(folder: Option<PathBuf>) -> Cache {
        // A closed stderr is no reason to fail.
        let voice = |text: &str| drop(writeln!(io::stderr(), "doorbell: {text}"));
        Cache { folder, voice: Box::new(voice), said: AtomicBool::new(false) }
    }

    /// Says what is to be said there instead of on stderr.
    pub fn voice(mut self, voice: impl Fn(&str) + Send + Sync + 'static) -> Cache {
        self.voice = Box::new(voice);
        self
    }

    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The content of `key`, from disk or made by `build` and kept. Error: only what `build` gives.
    pub fn get_or_build<E>(
        &self,
        key: &Key,
        build: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<(Vec<u8>, Origin), E> {
        let origin = match self.find(key) {
            Ok(Some(content)) => return Ok((content, Origin::Cached)),
            Ok(None) => Origin::Built,
            Err(damage) => Origin::Rebuilt(damage),
        };
        let content = build()?;
        self.keep(key, &content);
        Ok((content, origin))
    }

    /// The content of `key`, if it is on disk. Error: what is there is no good, which was said.
    pub fn find(&self, key: &Key) -> Result<Option<Vec<u8>>, Damage> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let path = folder.join(key.file_name());
        entry::read(&path, key).inspect_err(|damage| {
            (self.voice)(&format!("{}: {damage}; it is built again", path.display()));
        })
    }

    /// Keeps the content of `key`, in the place of any that is there.
    pub fn keep(&self, key: &Key, content: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = store(folder, &folder.join(key.file_name()), key, content) {
            self.say_once(&format!("{}: {error}", folder.display()));
        }
    }

    fn say_once(&self, why: &str) {
        if !self.said.swap(true, Ordering::Relaxed) {
            (self.voice)(&format!(
                "compiled kernels cannot be kept, so each start compiles them again: {why}"
            ));
        }
    }
}

fn usual_folder(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG base directory specification: a relative path is to be ignored.
    let absolute = |path: &PathBuf| path.is_absolute();
    set(GIVEN)
        .or_else(|| set("XDG_CACHE_HOME").filter(absolute).map(|folder| folder.join("doorbell")))
        .or_else(|| set("HOME").filter(absolute).map(|folder| folder.join(".cache/doorbell")))
}

/// Puts an entry in place as a whole, or leaves nothing.
fn store(folder: &Path, path: &Path, key: &Key, content: &[u8]) -> io::Result<()> {
    // Ours alone among processes and threads of this machine.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    sweep(folder);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let own = folder.join(format!(".{}.{}.{number}.tmp", key.file_name(), std::process::id()));
    let written = write(&own, key, content).and_then(|()| fs::rename(&own, path));
    if written.is_err() {
        let _ = fs::remove_file(&own);
    }
    written
}

/// Synced, so that the name that follows is of a whole entry after a power cut too.
fn write(path: &Path, key: &Key, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(&entry::header(key, content))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Removes what killed writers left behind.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let old = || {
            let age = entry.metadata().ok()?.modified().ok()?.elapsed().ok()?;
            Some(age > LEFT_BEHIND)
        };
        if name.starts_with('.') && name.ends_with(".tmp") && old() == Some(true) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
