//! SHA-256 of a file, as manifests and publishers write it: 64 hexadecimal digits.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of bytes in memory.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// Of all that a reader gives.
    pub fn of_reader(mut reader: impl Read) -> io::Result<Digest> {
        let mut hasher = Sha256::new();
        let mut block = vec![0; 1 << 20];
        loop {
            match reader.read(&mut block)? {
                0 => return Ok(Digest(hasher.finalize().into())),
                count => hasher.update(&block[..count]),
            }
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Digest, String> {
        let refused = || format!("{text:?} is no SHA-256: 64 hexadecimal digits");
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let mut bytes = [0; 32];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).map_err(|_| refused())?;
        }
        Ok(Digest(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Digest, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_standard_s_example_and_survives_text() {
        // The example of NIST's Secure Hash Standard: "abc".
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap(), Digest::of_reader(&b"abc"[..]).unwrap());
        for wrong in ["", "ba78", &text.replace('b', "g"), &format!("{text}0"), &text.replace("ba", "é")] {
            assert!(wrong.parse::<Digest>().unwrap_err().contains("64 hexadecimal digits"), "{wrong}");
        }
    }
}
