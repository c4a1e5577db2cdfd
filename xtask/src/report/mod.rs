//! What becomes of points: statistics, verdicts against the paper, plots.

pub mod compare;
pub mod figures;
pub mod modelled;
pub mod paper;
mod plot;
pub mod png;
pub mod statistics;
pub mod wire_model;
