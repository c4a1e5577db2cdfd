//! One message of a conversation: magic, version, length, and so many bytes of UTF-8 text.
//!
//! ```text
//! 0   "softnctl"
//! 8   version      4 bytes, little-endian
//! 12  length       4 bytes, little-endian: bytes of text that follow
//! ```
//! A request is one line of words. An answer begins with a line `ok` or `error REASON`; lines `name value` follow an `ok`.

use std::io;
use std::time::Instant;

use crate::os::unix_stream::Stream;

/// Of the conversation, both ways.
pub const VERSION: u32 = 1;
pub const MAX_REQUEST_BYTES: usize = 1024;
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

const MAGIC: [u8; 8] = *b"softnctl";
const HEADER_BYTES: usize = 16;

/// What a NIC answers: names and values, or why not.
pub type Answer = Result<Vec<(String, String)>, String>;

/// Why a message was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("{0}")]
    Kernel(#[from] io::Error),
    #[error("what came is no message of softnic ctl")]
    Magic,
    #[error(
        "version {0} of softnic ctl's messages came, this is version {VERSION}; use the softnic that started the program"
    )]
    Version(u32),
    #[error("a message of {length} bytes, {max} are allowed")]
    Length { length: usize, max: usize },
    #[error("a message that is not UTF-8 text")]
    Text,
}

pub fn encode(text: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

fn length_of(header: &[u8; HEADER_BYTES], max: usize) -> Result<usize, FrameError> {
    let [m0, m1, m2, m3, m4, m5, m6, m7, v0, v1, v2, v3, l0, l1, l2, l3] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    match () {
        () if [m0, m1, m2, m3, m4, m5, m6, m7] != MAGIC => Err(FrameError::Magic),
        () if version != VERSION => Err(FrameError::Version(version)),
        () if length > max => Err(FrameError::Length { length, max }),
        () => Ok(length),
    }
}

/// Reads one message of at most `max` bytes of text.
pub(super) fn receive(stream: &Stream, max: usize, until: Instant) -> Result<String, FrameError> {
    let mut header = [0; HEADER_BYTES];
    stream.receive(&mut header, until)?;
    let mut bytes = vec![0; length_of(&header, max)?];
    stream.receive(&mut bytes, until)?;
    String::from_utf8(bytes).map_err(|_| FrameError::Text)
}

pub(super) fn text_of(answer: &Answer) -> String {
    match answer {
        Ok(lines) => {
            lines.iter().fold("ok\n".to_owned(), |text, (name, value)| format!("{text}{name} {value}\n"))
        }
        Err(reason) => format!("error {reason}\n"),
    }
}

pub(super) fn parse_answer(text: &str) -> Option<Answer> {
    let mut lines = text.lines();
    let first = lines.next()?;
    if let Some(reason) = first.strip_prefix("error ") {
        return Some(Err(reason.to_owned()));
    }
    let pair = |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.to_owned()));
    (first == "ok").then(|| lines.map(pair).collect::<Option<Vec<_>>>())?.map(Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_its_magic_version_length_and_text() {
        let bytes = encode("hi");
        assert_eq!(bytes, b"softnctl\x01\0\0\0\x02\0\0\0hi");
        let header: [u8; 16] = bytes[..16].try_into().unwrap();
        assert_eq!(length_of(&header, 2).unwrap(), 2);
        for (at, byte, max, words) in [
            (0, b'x', 2, "no message of softnic ctl"),
            (8, 9, 2, "version 9"),
            (12, 3, 2, "a message of 3 bytes, 2 are allowed"),
            (15, 0xff, 1024, "1024 are allowed"),
        ] {
            let mut header = header;
            header[at] = byte;
            let error = length_of(&header, max).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn answers_come_back_and_nonsense_does_not() {
        let value = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for answer in [Ok(vec![]), Ok(vec![value("a", "1"), value("b", "x y")]), Err("no QP 7".to_owned())] {
            assert_eq!(parse_answer(&text_of(&answer)), Some(answer));
        }
        for text in ["", "yes\n", "ok\nlonely\n"] {
            assert_eq!(parse_answer(text), None, "{text:?}");
        }
    }
}
