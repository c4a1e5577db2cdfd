//! The entries of a file, one after the other.

use super::entry::{Form, MOST_BYTES, MOST_VALUES, Tag};
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
        passed_ns: u32,
        digest: u16,
    },
}

pub struct Decoder {
    pub reader: Reader,
    block: std::vec::IntoIter<u64>,
}

impl Decoder {
    pub fn new(reader: Reader) -> Decoder {
        Decoder { reader, block: Vec::new().into_iter() }
    }

    /// The next word; reads a further block where that is needed.
    fn next(&mut self) -> Result<Option<u64>, RecordingError> {
        loop {
            match self.block.next() {
                None => match self.reader.block()? {
                    None => return Ok(None),
                    Some(block) => self.block = block.into_iter(),
                },
                word => return Ok(word),
            }
        }
    }

    fn word(&mut self) -> Result<u64, RecordingError> {
        self.next()?.ok_or_else(|| self.reader.cut_off("the end mark is missing"))
    }

    /// Whether nothing follows.
    pub fn is_at_end(&mut self) -> Result<bool, RecordingError> {
        Ok(self.next()?.is_none())
    }

    pub fn next_entry(&mut self) -> Result<Entry, RecordingError> {
        let head = self.word()?;
        let [kind, guessed, count, ..] = head.to_le_bytes();
        let unknown = || self.reader.damaged(format!("an entry of unknown kind {kind}"));
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
            return Err(self.reader.damaged(format!("an entry of {len} bytes, at most {MOST_BYTES} can be")));
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
            return Err(self.reader.damaged(what));
        }
        let difference = |at| if missed >> at & 1 == 0 { Ok(0) } else { self.word() };
        Ok(Body::Values((0..count).map(difference).collect::<Result<_, _>>()?))
    }
}
