//! One entry on disk: what stands before the content, and reading it with suspicion.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::Key;

/// Kind and version of the file; another version is another's.
const MAGIC: &[u8; 16] = b"doorbell image 1";
/// Magic, key, length (little endian), SHA-256 of the content.
const HEADER: usize = 16 + 32 + 8 + 32;
/// No image of ours is larger; a file that is was not written by us.
const MOST: u64 = 256 << 20;

/// Why an entry is no good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("the cached image is cut off: {found} bytes instead of {expected}")]
    Length {
        /// Bytes that are there.
        found: u64,
        /// Bytes that should be.
        expected: u64,
    },
    #[error("the cached image is damaged: its checksum does not match")]
    Checksum,
    #[error("the cached image is stale: it was written for something else")]
    Stale,
    #[error("the cached image cannot be read: {0}")]
    Unreadable(String),
}

/// What stands before `content`.
pub fn header(key: &Key, content: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER);
    header.extend(MAGIC);
    header.extend(key.0);
    header.extend((content.len() as u64).to_le_bytes());
    header.extend(Sha256::digest(content));
    header
}

/// The content of the entry at `path`; `None` when there is none.
pub fn read(path: &Path, key: &Key) -> Result<Option<Vec<u8>>, Damage> {
    let unreadable = |error: std::io::Error| Damage::Unreadable(error.to_string());
    // Asked before it is opened: opening a pipe would wait for its other end.
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        // Of a folder that cannot be looked into, the writer will tell, once.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(error)),
    };
    if !file.is_file() {
        return Err(Damage::Unreadable("it is no file".into()));
    }
    if file.len() > MOST {
        return Err(Damage::Length { found: file.len(), expected: MOST });
    }
    let mut bytes = Vec::with_capacity(file.len() as usize);
    // It may have grown since, or gone.
    match File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
        Ok(_) => content(bytes, key).map(Some),
    }
}

fn content(mut bytes: Vec<u8>, key: &Key) -> Result<Vec<u8>, Damage> {
    let Some((header, content)) = bytes.split_at_checked(HEADER) else {
        return Err(Damage::Length { found: bytes.len() as u64, expected: HEADER as u64 });
    };
    let (magic, rest) = header.split_at(16);
    let (named, rest) = rest.split_at(32);
    let (length, checksum) = rest.split_at(8);
    if magic != MAGIC || named != key.0 {
        return Err(Damage::Stale);
    }
    let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    if content.len() as u64 != length {
        let (found, expected) = (bytes.len() as u64, length.saturating_add(HEADER as u64));
        return Err(Damage::Length { found, expected });
    }
    if *checksum != *Sha256::digest(content) {
        return Err(Damage::Checksum);
    }
    bytes.drain(..HEADER);
    Ok(bytes)
}
