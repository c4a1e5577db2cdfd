//! One drawing of an experiment.

/// One drawing.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    pub svg: String,
}
