//! One drawing of an experiment, and what it is drawn from.

use crate::{Experiment, Point};

/// The points of a run of an experiment, and its series that have none.
#[derive(Clone, Copy)]
pub struct RunPoints<'a> {
    pub experiment: &'a Experiment,
    pub points: &'a [Point],
    pub unmeasured: &'a [String],
}

/// One drawing.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Stem of its files.
    pub name: String,
    pub title: String,
    pub svg: String,
}
