//! Results on disk: one JSON object a line, synced before the next measurement, so that a cut run resumes.
//!
//! Only the last line may be torn (power loss, SIGKILL during a write): readers leave it out and say so,
//! writers cut it off before they append.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a results file could not be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each message names its fields")]
pub enum JsonLinesError {
    /// The file system said no.
    #[error("{path}")]
    Io { path: PathBuf, source: io::Error },
    /// A whole line that is not one of ours.
    #[error("{path}, line {line}")]
    Line { path: PathBuf, line: usize, source: serde_json::Error },
}

/// What a results file held.
#[derive(Debug)]
pub struct Records<T> {
    /// The whole lines.
    pub records: Vec<T>,
    /// Length of a torn last line, which is not among `records`.
    pub torn_bytes: usize,
}

/// A results file that is appended to, line by line.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    /// Opens `path` for appending, makes it if it is missing, and cuts off a torn last line.
    pub fn append_to(path: &Path) -> Result<JsonLines, JsonLinesError> {
        let io = |source| JsonLinesError::Io { path: path.to_owned(), source };
        // A device or a pipe has no last line, and may be read for ever.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file")));
        }
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        let whole = whole_bytes(&std::fs::read(path).map_err(io)?) as u64;
        file.set_len(whole).map_err(io)?;
        file.seek(SeekFrom::Start(whole)).map_err(io)?;
        Ok(JsonLines { path: path.to_owned(), file })
    }

    /// Writes one line and waits until the disk has it.
    pub fn push(&mut self, record: &impl Serialize) -> Result<(), JsonLinesError> {
        let io = |source| JsonLinesError::Io { path: self.path.clone(), source };
        let mut line = serde_json::to_vec(record).map_err(|error| io(error.into()))?;
        line.push(b'\n');
        // One write: what another process reads is torn at most at the end of the file.
        self.file.write_all(&line).map_err(io)?;
        self.file.sync_data().map_err(io)
    }
}

/// Reads all whole lines of `path`; a missing file has none.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Records<T>, JsonLinesError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(JsonLinesError::Io { path: path.to_owned(), source }),
    };
    let whole = whole_bytes(&bytes);
    let mut records = Vec::new();
    for (index, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        records.push(serde_json::from_slice(line).map_err(|source| JsonLinesError::Line {
            path: path.to_owned(),
            line: index + 1,
            source,
        })?);
    }
    Ok(Records { records, torn_bytes: bytes.len() - whole })
}

/// Bytes up to and including the last newline.
fn whole_bytes(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("measure-{}-{name}.jsonl", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        for path in ["/dev/full", "/dev/null", "/tmp"] {
            let error = JsonLines::append_to(Path::new(path)).unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(error.to_string().contains(path) && source.contains("no regular file"), "{error}");
        }
    }

    #[test]
    fn what_was_pushed_is_read_back() {
        let path = scratch("back");
        let mut lines = JsonLines::append_to(&path).unwrap();
        lines.push(&[1, 2]).unwrap();
        lines.push(&[3, 4]).unwrap();
        assert_eq!(read::<[u32; 2]>(&path).unwrap().records, [[1, 2], [3, 4]]);
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_then_cut_off() {
        let path = scratch("torn");
        std::fs::write(&path, "[1,2]\n[3,").unwrap();
        let before = read::<[u32; 2]>(&path).unwrap();
        assert_eq!((before.records, before.torn_bytes), (vec![[1, 2]], 3));

        JsonLines::append_to(&path).unwrap().push(&[5, 6]).unwrap();
        let after = read::<[u32; 2]>(&path).unwrap();
        assert_eq!((after.records, after.torn_bytes), (vec![[1, 2], [5, 6]], 0));
    }

    #[test]
    fn a_bad_line_in_the_middle_is_named() {
        let path = scratch("bad");
        std::fs::write(&path, "[1,2]\nnonsense\n[5,6]\n").unwrap();
        let error = read::<[u32; 2]>(&path).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn a_missing_file_has_no_records() {
        assert!(read::<u32>(&scratch("none")).unwrap().records.is_empty());
    }

    #[test]
    fn a_folder_in_the_way_is_an_error_with_its_name() {
        let error = JsonLines::append_to(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(error.contains(&*std::env::temp_dir().to_string_lossy()), "{error}");
    }
}
