//! The file of a recording: a header, then blocks of entries ([`super::entry`]).
//!
//! | | |
//! |---|---|
//! | header | magic, 8 bytes; version; length of the settings (TOML); start time; checksum; the settings |
//! | block | a mark and the number of its words; checksum; the words. An entry may go on in the next block |
//!
//! All numbers are little-endian 64-bit words. A length is compared with its bound before it is used.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::entry::{Form, MOST_BYTES, MOST_VALUES, Tag};
use crate::link::record;

const MAGIC: [u8; 8] = *b"\x89softnic";

/// Version of the format and of its entries' meaning; messages of shared memory are as in its records.
pub const VERSION: u64 = 10 << 32 | record::VERSION as u64;

fn shown(version: u64) -> String {
    format!("{}.{}", version >> 32, version as u32)
}

/// First half of a block's first word; the number of words is the second.
const BLOCK: u64 = 0x6b63_6f6c;

pub const BLOCK_WORDS: usize = 32 * 1024;

const MAX_SETTINGS: u64 = 64 * 1024;

/// Why a file is not replayed, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("{}: cannot be read: {error}; give a file that `softnic run --record` has written", file.display())]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error("{}: is no recording; give a file that `softnic run --record` has written", file.display())]
    Foreign { file: PathBuf },
    #[error(
        "{}: a recording of version {}, and this softnic reads {}; replay it with the softnic that wrote it",
        file.display(), shown(*found), shown(VERSION)
    )]
    Version { file: PathBuf, found: u64 },
    #[error("{}: damaged at byte {at}: {what}; record the program again", file.display())]
    Damaged { file: PathBuf, at: u64, what: String },
    #[error(
        "{}: cut off at byte {at}: {what}; the program was killed or the disk was full, record it again",
        file.display()
    )]
    CutOff { file: PathBuf, at: u64, what: &'static str },
}

/// A word that differs changes the sum, whatever follows. Two steps a word, as each waits for the one before.
pub fn checksum(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(1, |sum: u64, word| sum.rotate_left(5).wrapping_add(word))
}

pub fn header(settings: &str, start_ns: u64) -> Vec<u8> {
    let words = [VERSION, settings.len() as u64, start_ns];
    let sum = header_sum(&words, settings.as_bytes());
    let numbers = words.into_iter().chain([sum]).flat_map(u64::to_le_bytes);
    MAGIC.into_iter().chain(numbers).chain(settings.bytes()).collect()
}

fn header_sum(words: &[u64; 3], settings: &[u8]) -> u64 {
    checksum(words.iter().copied().chain(settings.iter().map(|byte| u64::from(*byte))))
}

/// Writes a block into `out`, in place of what it held.
pub fn block(words: impl ExactSizeIterator<Item = u64>, out: &mut Vec<u8>) {
    let count = words.len();
    out.resize(16 + 8 * count, 0);
    let (head, body) = out.split_at_mut(16);
    let sum = checksum(words.zip(body.as_chunks_mut().0).map(|(word, place)| {
        *place = word.to_le_bytes();
        word
    }));
    head[..8].copy_from_slice(&(BLOCK | (count as u64) << 32).to_le_bytes());
    head[8..].copy_from_slice(&sum.to_le_bytes());
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub tag: Tag,
    /// Answers as guessed before it.
    pub guessed: u32,
    pub body: Body,
}

#[derive(Debug, Clone)]
pub enum Body {
    /// Differences from the guesses.
    Values(Vec<u64>),
    Bytes(Vec<u8>),
    Time {
        passed_ns: u32,
        digest: u16,
    },
}

/// A recording that is read from its start.
pub struct Reader {
    input: BufReader<File>,
    pub file: PathBuf,
    /// Bytes read.
    pub at: u64,
    pub settings: String,
    pub start_ns: u64,
    /// What follows of the block that was read last.
    rest: std::vec::IntoIter<u64>,
}

impl Reader {
    /// Opens a recording and checks its header.
    pub fn open(path: &Path) -> Result<Reader, RecordingError> {
        let file = path.to_owned();
        let unreadable = |error| RecordingError::Unreadable { file: file.clone(), error };
        let input = BufReader::new(File::open(path).map_err(unreadable)?);
        let mut reader =
            Reader { input, file, at: 0, settings: String::new(), start_ns: 0, rest: Vec::new().into_iter() };
        if reader.next(MAGIC.len())? != MAGIC {
            return Err(RecordingError::Foreign { file: reader.file });
        }
        let [version, len, start_ns, sum] = reader.words("its header is not whole")?;
        if version != VERSION {
            return Err(RecordingError::Version { file: reader.file, found: version });
        }
        if len > MAX_SETTINGS {
            return Err(reader.damaged(format!("settings of {len} bytes, at most {MAX_SETTINGS} can be")));
        }
        let settings = reader.next(len as usize)?;
        if settings.len() < len as usize {
            return Err(reader.cut_off("its settings are not whole"));
        }
        if header_sum(&[version, len, start_ns], &settings) != sum {
            return Err(reader.damaged("the checksum of the header does not fit".to_owned()));
        }
        reader.settings = String::from_utf8_lossy(&settings).into_owned();
        reader.start_ns = start_ns;
        Ok(reader)
    }

    /// The words of the next block; `None` at the end of the file.
    pub fn block(&mut self) -> Result<Option<Vec<u64>>, RecordingError> {
        if self.input.fill_buf().is_ok_and(<[u8]>::is_empty) {
            return Ok(None);
        }
        let [first] = self.words("a block's first word is not whole")?;
        let (mark, count) = (first & 0xffff_ffff, first >> 32);
        if mark != BLOCK || !(1..=BLOCK_WORDS as u64).contains(&count) {
            return Err(self.damaged(format!("{first:#x} is no block's beginning")));
        }
        let [sum] = self.words("a block's checksum is not whole")?;
        let bytes = self.next(8 * count as usize)?;
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|eight| u64::from_le_bytes(*eight)).collect();
        if words.len() < count as usize {
            return Err(self.cut_off("a block is not whole"));
        }
        if checksum(words.iter().copied()) != sum {
            return Err(self.damaged(format!("the checksum of a block of {count} words does not fit")));
        }
        Ok(Some(words))
    }

    /// The next word; reads a further block where that is needed.
    fn next_word(&mut self) -> Result<Option<u64>, RecordingError> {
        loop {
            if let Some(word) = self.rest.next() {
                return Ok(Some(word));
            }
            let Some(block) = self.block()? else { return Ok(None) };
            self.rest = block.into_iter();
        }
    }

    fn word(&mut self) -> Result<u64, RecordingError> {
        self.next_word()?.ok_or_else(|| self.cut_off("the end mark is missing"))
    }

    /// Whether nothing follows.
    pub fn is_at_end(&mut self) -> Result<bool, RecordingError> {
        Ok(self.next_word()?.is_none())
    }

    pub fn next_entry(&mut self) -> Result<Entry, RecordingError> {
        let head = self.word()?;
        let [kind, guessed, count, ..] = head.to_le_bytes();
        let unknown = || self.damaged(format!("an entry of unknown kind {kind}"));
        let tag = Tag::of(kind).ok_or_else(unknown)?;
        let body = match tag.form() {
            Form::Time => Body::Time { passed_ns: (head >> 32) as u32, digest: (head >> 16) as u16 },
            Form::Bytes => self.bytes((head >> 32) as usize)?,
            Form::Values => self.values(count.into(), (head >> 24) as u16)?,
        };
        Ok(Entry { tag, guessed: guessed.into(), body })
    }

    fn bytes(&mut self, len: usize) -> Result<Body, RecordingError> {
        if len > MOST_BYTES {
            return Err(self.damaged(format!("an entry of {len} bytes, at most {MOST_BYTES} can be")));
        }
        let mut bytes = Vec::new();
        while bytes.len() < len {
            bytes.extend(self.word()?.to_le_bytes());
        }
        bytes.truncate(len);
        Ok(Body::Bytes(bytes))
    }

    fn values(&mut self, count: usize, missed: u16) -> Result<Body, RecordingError> {
        if count > MOST_VALUES {
            let what = format!("an entry of {count} values, at most {MOST_VALUES} can be");
            return Err(self.damaged(what));
        }
        let difference = |at| if missed >> at & 1 == 0 { Ok(0) } else { self.word() };
        Ok(Body::Values((0..count).map(difference).collect::<Result<_, _>>()?))
    }

    /// The next numbers; `short` says that they are not whole.
    fn words<const N: usize>(&mut self, short: &'static str) -> Result<[u64; N], RecordingError> {
        let bytes = self.next(8 * N)?;
        let words = bytes.as_chunks().0.first_chunk();
        words.map(|words| words.map(u64::from_le_bytes)).ok_or_else(|| self.cut_off(short))
    }

    /// The next bytes; fewer than asked for at the end of the file alone.
    fn next(&mut self, count: usize) -> Result<Vec<u8>, RecordingError> {
        let mut bytes = Vec::new();
        let read = self.input.by_ref().take(count as u64).read_to_end(&mut bytes);
        self.at +=
            read.map_err(|error| RecordingError::Unreadable { file: self.file.clone(), error })? as u64;
        Ok(bytes)
    }

    pub fn damaged(&self, what: String) -> RecordingError {
        RecordingError::Damaged { file: self.file.clone(), at: self.at, what }
    }

    pub fn cut_off(&self, what: &'static str) -> RecordingError {
        RecordingError::CutOff { file: self.file.clone(), at: self.at, what }
    }
}
