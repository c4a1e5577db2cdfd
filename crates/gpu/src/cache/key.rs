//! The key of an entry: SHA-256 over all that an image depends on, each part with its name and length.

#![forbid(unsafe_code)]

use std::fmt;

use sha2::{Digest, Sha256};

/// Names one content.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(pub(super) [u8; 32]);

impl Key {
    /// The name of the entry's file.
    pub fn file_name(&self) -> String {
        format!("{self:?}.cubin")
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Takes part after part. Lengths are hashed too, so that no two lists of parts read the same.
pub struct KeyBuilder(Sha256);

impl Default for KeyBuilder {
    fn default() -> Self {
        KeyBuilder(Sha256::new())
    }
}

impl KeyBuilder {
    /// Adds one part; the order of parts counts.
    pub fn part(mut self, name: &str, bytes: &[u8]) -> KeyBuilder {
        for piece in [name.as_bytes(), bytes] {
            self.0.update((piece.len() as u64).to_le_bytes());
            self.0.update(piece);
        }
        self
    }

    pub fn key(self) -> Key {
        Key(self.0.finalize().into())
    }
}
