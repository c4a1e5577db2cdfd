//! The entries of a file, one after the other.

use super::entry::{Form, MOST_VALUES, Tag, unzigzag};
use super::format::{Reader, RecordingError};

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
        passed_ns: u16,
        digest: u16,
    },
}

pub struct Decoder {
    pub reader: Reader,
    bytes: Vec<u8>,
    at: usize,
}

impl Decoder {
    pub fn new(reader: Reader) -> Decoder {
        Decoder { reader, bytes: Vec::new(), at: 0 }
    }

    /// Whether there is more; reads a further block where that is needed.
    fn has(&mut self, count: usize) -> Result<bool, RecordingError> {
        while self.bytes.len() - self.at < count {
            let Some(block) = self.reader.block()? else { return Ok(false) };
            // Blocks are whole words, as what is dropped is.
            self.bytes.drain(..self.at / 8 * 8);
            self.at %= 8;
            self.bytes.extend(block.into_iter().flat_map(u64::to_le_bytes));
        }
        Ok(true)
    }

    fn bytes(&mut self, count: usize) -> Result<&[u8], RecordingError> {
        if !self.has(count)? {
            return Err(self.reader.cut_off("the end mark is missing"));
        }
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    /// A number of at most eight bytes.
    fn number(&mut self, bytes: usize) -> Result<u64, RecordingError> {
        Ok(self.bytes(bytes)?.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
    }

    /// Whether only padding follows.
    pub fn is_at_end(&mut self) -> Result<bool, RecordingError> {
        self.skip_padding();
        Ok(!self.has(1)?)
    }

    fn skip_padding(&mut self) {
        if self.bytes.get(self.at) == Some(&0) {
            self.at = self.bytes.len().min(self.at.next_multiple_of(8));
        }
    }

    pub fn next_entry(&mut self) -> Result<Entry, RecordingError> {
        let tag = loop {
            match self.number(1)? {
                0 => self.at = self.at.next_multiple_of(8),
                number => break number as u8,
            }
        };
        let unknown = || self.reader.damaged(format!("an entry of unknown kind {tag}"));
        let tag = Tag::of(tag).ok_or_else(unknown)?;
        let guessed = self.number(1)? as u32;
        let body = match tag.form() {
            Form::Time => Body::Time { passed_ns: self.number(2)? as u16, digest: self.number(2)? as u16 },
            Form::Bytes => {
                let len = self.number(3)? as usize;
                Body::Bytes(self.bytes(len)?.to_vec())
            }
            Form::Values => self.values()?,
        };
        Ok(Entry { tag, guessed, body })
    }

    fn values(&mut self) -> Result<Body, RecordingError> {
        let count = self.number(1)? as usize;
        if count > MOST_VALUES {
            let what = format!("an entry of {count} values, at most {MOST_VALUES} can be");
            return Err(self.reader.damaged(what));
        }
        let missed = self.number(count.div_ceil(8))?;
        let mut differences = vec![0; count];
        for (at, difference) in differences.iter_mut().enumerate() {
            if missed >> at & 1 != 0 {
                let bytes = self.number(1)? as usize;
                if !(1..=8).contains(&bytes) {
                    return Err(self.reader.damaged(format!("a value of {bytes} bytes")));
                }
                *difference = unzigzag(self.number(bytes)?);
            }
        }
        Ok(Body::Values(differences))
    }
}
