//! One message of a conversation: magic, version, length, and so many bytes of a value.
//!
//! ```text
//! 0   "softnctl"
//! 8   version      4 bytes, little-endian
//! 12  length       4 bytes, little-endian: bytes of the value that follows
//! ```
//! A request is a [`Request`](super::Request), its answer a `Result` of the requested value or a sentence,
//! both as postcard encodes them.

use std::io;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::os::unix_stream::Stream;

/// Of the conversation, both ways.
pub const VERSION: u32 = 4;
pub const MAX_REQUEST_BYTES: usize = 1024;
pub const MAX_ANSWER_BYTES: usize = 64 * 1024;

const MAGIC: [u8; 8] = *b"softnctl";
const HEADER_BYTES: usize = 16;

pub(super) fn bytes_of(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("memory for an answer")
}

/// The value of these bytes, all of which it takes. Errors: `InvalidData`.
pub(super) fn value_of<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(invalid(
            "a message that this softnic does not know; use the softnic that started the program",
        )),
    }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

pub fn encode(value: &impl Serialize) -> Vec<u8> {
    let value = bytes_of(value);
    let numbers = [VERSION, value.len() as u32].into_iter().flat_map(u32::to_le_bytes);
    MAGIC.into_iter().chain(numbers).chain(value).collect()
}

fn length_of(header: &[u8; HEADER_BYTES], max: usize) -> io::Result<usize> {
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
    let (version, length) = (number(8), number(12) as usize);
    match () {
        () if !header.starts_with(&MAGIC) => Err(invalid("what came is no message of softnic ctl")),
        () if version != VERSION => Err(invalid(format!(
            "version {version} of softnic ctl's messages came, this is version {VERSION}; use the softnic that started the program"
        ))),
        () if length > max => Err(invalid(format!("a message of {length} bytes, {max} are allowed"))),
        () => Ok(length),
    }
}

/// Reads one message with a value of at most `max` bytes.
///
/// Errors: those of the stream; `InvalidData` for what is no such message.
pub(super) fn receive<T: DeserializeOwned>(stream: &Stream, max: usize, until: Instant) -> io::Result<T> {
    let mut header = [0; HEADER_BYTES];
    stream.receive(&mut header, until)?;
    let mut bytes = vec![0; length_of(&header, max)?];
    stream.receive(&mut bytes, until)?;
    value_of(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_its_magic_version_length_and_value() {
        let bytes = encode(&"h");
        assert_eq!(bytes, b"softnctl\x04\0\0\0\x02\0\0\0\x01h");
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
        let value = |name: &str, value: u64| (name.to_owned(), value);
        for answer in [Ok(vec![]), Ok(vec![value("a", 1), value("b", 2)]), Err("no QP 7".to_owned())] {
            let back: Result<Vec<(String, u64)>, String> = value_of(&bytes_of(&answer)).unwrap();
            assert_eq!(back, answer);
        }
        for bytes in [&b""[..], b"\x02", b"\0\x01", b"\x01\x01\xff", b"\0\0more"] {
            assert!(value_of::<Result<Vec<(String, u64)>, String>>(bytes).is_err(), "{bytes:?}");
        }
    }
}
