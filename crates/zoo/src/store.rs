//! A folder of model files, each of which is whole: it has its name only after its SHA-256 was checked.
//!
//! A file grows under another name, is synced, checked, and renamed. What a crash leaves is never taken for a
//! model. A download that was cut stays as `NAME.part` and goes on from its end. Reading checks again: disks
//! and users change files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;

use crate::{Digest, Manifest};

/// What goes wrong with the files.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StoreError {
    #[error("{path}: not there")]
    Missing { path: PathBuf },
    #[error(
        "{path}: SHA-256 is {found}, not {wanted}; nothing was kept of it. The publisher's file changed, or another \
         one was given: compare with [weights] of the model's file in modelzoo/models"
    )]
    Refused { path: PathBuf, found: Digest, wanted: Digest },
    #[error("{path}: SHA-256 is {found}, not {wanted}: the file was changed; remove it and make it again")]
    Damaged { path: PathBuf, found: Digest, wanted: Digest },
    #[error("{path}: another process is writing it")]
    Busy { path: PathBuf },
    #[error("{path}: no space is left on the device; free some, or name another folder")]
    Full { path: PathBuf },
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

impl StoreError {
    fn io(path: &Path, error: io::Error) -> StoreError {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
            io::ErrorKind::NotFound => StoreError::Missing { path },
            _ => StoreError::Io { path, error },
        }
    }
}

/// The folder.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Files in this folder, which is made when something is written.
    pub fn at(folder: impl Into<PathBuf>) -> Store {
        Store { folder: folder.into() }
    }

    /// The built models of the checkout or the bundle that has this folder of manifests.
    pub fn beside(manifests: &Path) -> Store {
        let root = manifests.ancestors().nth(2).unwrap_or(manifests);
        let is_bundle = root.join("bundle.json").is_file();
        Store::at(root.join(if is_bundle { "zoo" } else { "target/zoo" }))
    }

    /// The ONNX file of a model with seeded weights, and its origin, for people. A missing file is built in
    /// memory.
    pub fn seeded(&self, manifest: &Manifest) -> Result<(Vec<u8>, String), StoreError> {
        let name = manifest.seeded_file();
        match self.read(&name, manifest.seeded.sha256) {
            Ok(file) => Ok((file, self.path(&name).display().to_string())),
            Err(StoreError::Missing { path }) => {
                let how = format!(
                    "seeded weights, built in memory: {} is not there, `cargo xtask zoo build {}` keeps it",
                    path.display(),
                    manifest.name
                );
                Ok((manifest.build(), how))
            }
            Err(error) => Err(error),
        }
    }

    /// Where the file of this name is, or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A file's bytes. Error: it is not there, or has another SHA-256.
    pub fn read(&self, name: &str, wanted: Digest) -> Result<Vec<u8>, StoreError> {
        let path = self.path(name);
        let bytes = fs::read(&path).map_err(|error| StoreError::io(&path, error))?;
        same(path, Digest::of(&bytes), wanted)?;
        Ok(bytes)
    }

    /// Checks a file without keeping its bytes.
    pub fn check(&self, name: &str, wanted: Digest) -> Result<PathBuf, StoreError> {
        let path = self.path(name);
        let found = File::open(&path).and_then(Digest::of_reader);
        let found = found.map_err(|error| StoreError::io(&path, error))?;
        same(path.clone(), found, wanted)?;
        Ok(path)
    }

    /// Puts a whole file there. Two processes that write the same one do not meet: the later rename wins.
    pub fn write(&self, name: &str, bytes: &[u8], wanted: Digest) -> Result<PathBuf, StoreError> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let growing = format!("{name}.{}.{number}.tmp", std::process::id());
        let mut partial = Partial::open(self, name, &growing)?;
        let written =
            partial.restart().and_then(|()| partial.append(bytes)).and_then(|()| partial.finish(wanted));
        if written.is_err() {
            let _ = fs::remove_file(self.path(&growing));
        }
        written
    }

    /// A file that may have been begun earlier. Error: `Busy` while another process has it.
    pub fn resume(&self, name: &str) -> Result<Partial, StoreError> {
        fs::create_dir_all(&self.folder).map_err(|error| StoreError::io(&self.folder, error))?;
        // The lock has a file of its own, which is never renamed: the holder's part is the one that has the
        // name.
        let path = self.path(&format!("{name}.lock"));
        let lock = OpenOptions::new().create(true).append(true).open(&path);
        let lock = lock.map_err(|error| StoreError::io(&path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { path: self.path(name) }),
            Err(TryLockError::Error(error)) => return Err(StoreError::io(&path, error)),
        }
        let mut partial = Partial::open(self, name, &format!("{name}.part"))?;
        partial.lock = Some(lock);
        Ok(partial)
    }
}

fn same(path: PathBuf, found: Digest, wanted: Digest) -> Result<(), StoreError> {
    if found == wanted { Ok(()) } else { Err(StoreError::Damaged { path, found, wanted }) }
}

/// A file that is not whole yet.
#[derive(Debug)]
pub struct Partial {
    file: File,
    growing: PathBuf,
    path: PathBuf,
    bytes: u64,
    /// Held, and released with this.
    lock: Option<File>,
}

impl Partial {
    fn open(store: &Store, name: &str, growing: &str) -> Result<Partial, StoreError> {
        fs::create_dir_all(&store.folder).map_err(|error| StoreError::io(&store.folder, error))?;
        let growing = store.path(growing);
        let file = OpenOptions::new().create(true).read(true).append(true).open(&growing);
        let file = file.map_err(|error| StoreError::io(&growing, error))?;
        let bytes = file.metadata().map_err(|error| StoreError::io(&growing, error))?.len();
        Ok(Partial { file, growing, path: store.path(name), bytes, lock: None })
    }

    /// Bytes that are there.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Drops what is there.
    pub fn restart(&mut self) -> Result<(), StoreError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.file.set_len(0).map_err(|error| StoreError::io(&self.growing, error))?;
        self.bytes = 0;
        Ok(())
    }

    /// Adds bytes at the end.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|error| StoreError::io(&self.growing, error))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its name, if it is what was wanted; else removes it.
    pub fn finish(mut self, wanted: Digest) -> Result<PathBuf, StoreError> {
        let found = self.sync_and_digest().map_err(|error| StoreError::io(&self.growing, error))?;
        if found != wanted {
            fs::remove_file(&self.growing).map_err(|error| StoreError::io(&self.growing, error))?;
            return Err(StoreError::Refused { path: self.path, found, wanted });
        }
        let renamed = fs::rename(&self.growing, &self.path).and_then(|()| {
            // The name is on disk only after its folder is.
            File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
        });
        renamed.map_err(|error| StoreError::io(&self.path, error))?;
        Ok(self.path)
    }

    /// The digest of what is in the file, not of what was meant to be written.
    fn sync_and_digest(&mut self) -> io::Result<Digest> {
        self.file.sync_all()?;
        self.file.seek(SeekFrom::Start(0))?;
        Digest::of_reader(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is gone with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("zoo-store-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let folder = Folder::new("read");
        let store = Store::at(&folder.0);
        let digest = Digest::of(b"model");
        assert!(matches!(store.read("m.onnx", digest), Err(StoreError::Missing { .. })));
        assert_eq!(store.write("m.onnx", b"model", digest).unwrap(), store.path("m.onnx"));
        assert_eq!(store.read("m.onnx", digest).unwrap(), b"model");
        assert_eq!(store.check("m.onnx", digest).unwrap(), store.path("m.onnx"));
        assert_eq!(folder.names(), ["m.onnx"]);
    }

    #[test]
    fn a_wrong_hash_is_refused_and_leaves_nothing() {
        let folder = Folder::new("refused");
        let store = Store::at(&folder.0);
        let wanted = Digest::of(b"model");
        let refused = store.write("m.onnx", b"modem", wanted).unwrap_err();
        assert!(matches!(refused, StoreError::Refused { .. }), "{refused}");
        let mut partial = store.resume("m.onnx").unwrap();
        partial.append(b"modem").unwrap();
        assert!(matches!(partial.finish(wanted), Err(StoreError::Refused { .. })));
        assert_eq!(folder.names(), ["m.onnx.lock"]);
    }

    #[test]
    fn a_half_written_file_is_never_taken_for_whole() {
        let folder = Folder::new("half");
        let store = Store::at(&folder.0);
        let wanted = Digest::of(b"model");
        let mut partial = store.resume("m.onnx").unwrap();
        partial.append(b"mod").unwrap();
        drop(partial);
        assert!(matches!(store.read("m.onnx", wanted), Err(StoreError::Missing { .. })));
        assert!(matches!(store.check("m.onnx", wanted), Err(StoreError::Missing { .. })));
        // Half of it under the whole file's name, as a copy that was cut would be.
        fs::write(store.path("m.onnx"), b"mod").unwrap();
        assert!(matches!(store.read("m.onnx", wanted), Err(StoreError::Damaged { .. })));
        assert!(matches!(store.check("m.onnx", wanted), Err(StoreError::Damaged { .. })));
        // The next process goes on where the first one ended.
        let mut partial = store.resume("m.onnx").unwrap();
        assert_eq!(partial.bytes(), 3);
        partial.append(b"el").unwrap();
        partial.finish(wanted).unwrap();
        assert_eq!(store.read("m.onnx", wanted).unwrap(), b"model");
    }

    #[test]
    fn one_process_at_a_time_goes_on_with_a_file() {
        let folder = Folder::new("busy");
        let store = Store::at(&folder.0);
        let first = store.resume("m.onnx").unwrap();
        assert!(matches!(store.resume("m.onnx"), Err(StoreError::Busy { .. })));
        drop(first);
        store.resume("m.onnx").unwrap();
    }

    #[test]
    fn a_full_disk_is_named_and_leaves_no_model() {
        let folder = Folder::new("full");
        let store = Store::at(&folder.0);
        fs::create_dir_all(&folder.0).unwrap();
        // Writing to this device fails as on a full disk.
        std::os::unix::fs::symlink("/dev/full", store.path("m.onnx.part")).unwrap();
        let full = store.resume("m.onnx").unwrap().append(b"model").unwrap_err();
        assert!(matches!(full, StoreError::Full { .. }), "{full}");
        assert!(full.to_string().contains("no space is left"), "{full}");
        assert!(!store.path("m.onnx").exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let error = Store::at("/dev/null/zoo").write("m.onnx", b"model", Digest::of(b"model")).unwrap_err();
        assert!(error.to_string().starts_with("/dev/null/zoo"), "{error}");
    }
}
