//! A finding of a check.

use std::fmt;

/// One thing that is wrong, and where.
#[derive(Clone, Debug)]
pub struct Violation {
    place: String,
    text: String,
}

impl Violation {
    /// Somewhere that has no line.
    pub fn new(place: impl Into<String>, text: impl Into<String>) -> Violation {
        Violation { place: place.into(), text: text.into() }
    }

    /// A line of a file.
    pub fn at(path: &str, line: usize, text: impl Into<String>) -> Violation {
        Violation::new(format!("{path}:{line}"), text)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}
