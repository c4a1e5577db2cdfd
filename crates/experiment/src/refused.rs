//! What a user can mend: one line that says what, where and what to do, and exit status 2.

use std::fmt;

/// The error that `main` turns into exit status 2.
#[derive(Debug)]
pub struct Refused(String);

/// A refusal as an error.
pub fn refused(text: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Refused(text.into()))
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}
